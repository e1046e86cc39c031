"""Prediction from Python: texts, pairs or rows -> mappings like the lines that `bertkit predict` writes."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.base.errors import InputError, named, warn
from bertkit.base.hub_ids import path_of
from bertkit.base.processors import check_precision, fit_threads
from bertkit.base.typed_settings import build
from bertkit.inference.chunks import read_rows
from bertkit.inference.forward import Running, faults_of, predict_distributed, predict_local, with_features
from bertkit.inference.task_model import Predictor, TaskModel, open_task_model
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.predict import PredictSettings
from bertkit.settings.search import SearchSettings
from bertkit.settings.serve import ServeSettings
from bertkit.tasks.feature import Feature, Logits
from bertkit.tasks.reading.readers import read_examples
from bertkit.tasks.reading.source import SplitExamples
from bertkit.tasks.task import AnyTask, Example, Row
from bertkit.train import processes


def load_predictor(model_dir: str | os.PathLike[str], **settings: object) -> LoadedPredictor:
    """Load a model for prediction from Python, with the settings of `bertkit predict`.

    >>> predictor = bertkit.load_predictor(stars)
    >>> sorted(predictor("a good day")["probabilities"])
    ['bad', 'good']
    >>> predictor.logits(["a good day", "a bad day"]).shape
    (2, 2)

    Raises:
        InputError: the model has no prediction head, or a setting is wrong.
    """
    from bertkit.settings.reading.compose import compose_values

    values = {"model_dir": path_of(model_dir), "input": "-", "output": "-", **settings}
    chosen = build(PredictSettings, compose_values("predict", values))
    check_precision(chosen.precision, chosen.device)
    fit_threads()
    return LoadedPredictor(chosen)


def open_predictor(settings: PredictSettings | SearchSettings, top_k: int = 1) -> Predictor:
    """Load a model with its task onto the device; `top_k` is the number of tokens predicted for each [MASK].

    Raises InputError if the model has no prediction head, or its labels differ from the task's.
    """
    return _on_device(open_task_model(str(settings.model_dir), settings.task, settings.task_changes), settings, top_k)


def open_translator(settings: SearchSettings | ServeSettings) -> Predictor | None:
    """Load the model `translate=` onto the device; None without one. Raises InputError if it is not an encoder-decoder."""
    if settings.translate is None:
        return None
    opened = open_task_model(settings.translate, None, {}, setting="translate")
    if opened.task.head != "generation":
        kind = opened.task.kind
        raise InputError(
            f"translate={settings.translate}: its task is of kind {kind}; give a model fine-tuned on task=translation"
        )
    return _on_device(opened, settings)


def _on_device(
    opened: TaskModel, settings: PredictSettings | SearchSettings | ServeSettings, top_k: int = 1
) -> Predictor:
    device = processes.choose_device(settings.device)
    return opened.predictor(settings.precision, device, top_k=top_k, kernels=settings.kernels)


class PredictedSplit(NamedTuple):
    """The examples of a split, and what a model predicts for each."""

    source: SplitExamples
    predictions: list[Any]


def predict_split(model_dir: Path, settings: FinetuneSettings, split: str) -> PredictedSplit:
    """Predict a split of a task's data, in this process, with a model fine-tuned by these settings."""
    source = read_examples(settings.task, settings.data_dir, split)
    opened = dataclasses.replace(open_task_model(str(model_dir), settings.task, {}), task=source.task)
    device = processes.choose_device(settings.device)
    predictor = opened.predictor(settings.precision, device, kernels=settings.kernels)
    features = predictor.features(source.examples)
    return PredictedSplit(source, predict_distributed(processes.ALONE, predictor, source.examples, features))


class Remarks:
    """Counts, over the chunks of an input, what is to be said about its predictions."""

    def __init__(self) -> None:
        self.num_examples = self.num_truncated = 0
        self.faults = Counter[str]()

    def add(self, task: AnyTask, predictions: Sequence[object], rows: Sequence[Row]) -> None:
        """Count the predictions of a chunk, and their rows."""
        self.num_examples += len(rows)
        self.num_truncated += sum(row["truncated"] for row in rows)
        self.faults.update(task.faults(predictions))

    def warnings(self, task: AnyTask) -> list[str]:
        """Return a warning about truncated examples, and about each fault of the predictions."""
        cut = [task.truncated(self.num_truncated, self.num_examples)] if self.num_truncated else []
        return [*cut, *faults_of(self.faults, self.num_examples)]


class LoadedPredictor:
    """A function from texts, pairs of texts or rows to predictions, as `bertkit predict` writes them.

    The names in `labels` have the order of the logits; there are none if the model predicts no labels.
    """

    def __init__(self, settings: PredictSettings) -> None:
        self._predictor = open_predictor(settings, settings.top_k)
        self.labels = self._predictor.task.labels

    def __repr__(self) -> str:
        labels = f", labels: {named(self.labels)}" if self.labels else ""
        return f"LoadedPredictor({self._predictor.task.kind}{labels})"

    def __call__(self, inputs: object) -> Any:
        """Return a mapping for each input, in the same order, as `predict` writes it; a single mapping for a single input.

        An input is a text; a pair `(text, text_pair)` or `(question, context)`; or a row, which maps columns to values as in a
        file for `predict`. Many are in a list, array, generator, a column or the whole of a pandas data frame or a
        `datasets.Dataset`. For a tagging model, an element of a list can also be a list of words. Raises InputError if an
        input lacks what the task needs.
        """
        if isinstance(inputs, (str, tuple, Mapping)):
            return self([inputs])[0]
        rows, about_rows, remarks = list[Row](), list[str](), list[str]()
        counts = Remarks()
        for read in read_inputs(self._predictor, inputs):
            predictions = predict_local(self._predictor, read.task, read.examples, read.features)
            own = read.task.rows(read.examples, read.features, predictions)
            counts.add(read.task, predictions, own)
            rows += own
            about_rows, remarks = [*read.warnings], counts.warnings(read.task)
        warn(*about_rows)
        for remark in remarks:
            warnings.warn(remark, stacklevel=2)  # once, where the inputs come one by one
        return rows

    def logits(self, inputs: object) -> Any:
        """Return the model's logits for n inputs, as for a call.

        They are (n, C) for labels, (n, 1) for regression, (n, choices) for multiple choice. For tagging and question answering
        they are a list of (T, C) or (T, 2), one for each sequence of T tokens; a long input has several, its windows.

        Raises:
            InputError: the model generates text or fills masks, so it has no logits for a whole input; or an input lacks what
                the task needs.
        """
        task = self._predictor.task.with_logits()
        inputs = [inputs] if isinstance(inputs, (str, tuple, Mapping)) else inputs
        logits: list[Logits] = []
        for read in read_inputs(self._predictor, inputs):
            outputs = Running(self._predictor, read.task.head).logits(
                read.features, read.task.num_choices(read.examples)
            )
            logits += read.task.with_logits().logits_of(read.examples, read.features, outputs)
        return task.stacked(logits)


@dataclass(frozen=True)
class ReadInputs:
    """A chunk of inputs."""

    task: AnyTask  # predicts these examples: a tagger has another task for running text
    examples: list[Example]
    features: list[Feature]
    warnings: Sequence[str] = ()  # about all that was read so far


def read_inputs(predictor: Predictor, inputs: object) -> Iterator[ReadInputs]:
    """Read inputs in chunks; raises InputError if an input lacks what the task needs."""
    read = read_rows(predictor.task, inputs)
    for examples, features in with_features(predictor, read.task, read.chunks):
        yield ReadInputs(read.task, examples, features, read.warnings)
