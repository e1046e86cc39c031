"""A model that predicts from Python: texts, pairs or rows -> what `bertkit predict` writes of them."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import build
from bertkit.kernels import fast
from bertkit.predict.answers import answer_here, logits_here
from bertkit.predict.task_model import Predictor, check_labels, open_task_model
from bertkit.settings.predict import PredictSettings
from bertkit.tasks.reading.readers import open_inputs
from bertkit.tasks.reading.rows import as_json_lines
from bertkit.tasks.shapes import make_features
from bertkit.tasks.task import Feature, Shape
from bertkit.tasks.task_config import TaskConfig
from bertkit.train import micro_batches, processes


def load_predictor(model_dir: str | os.PathLike[str], **settings: Any) -> LoadedPredictor:
    """Load a model that predicts texts, pairs or rows; the settings are those of `bertkit predict`.

    >>> predictor = bertkit.load_predictor(stars)
    >>> sorted(predictor("a good day")["probabilities"])
    ['bad', 'good']
    >>> predictor.logits(["a good day", "a bad day"]).shape
    (2, 2)

    Returns:
        What is called with inputs.

    Raises:
        InputError: the model has no head to predict with, or a setting is wrong.
    """
    from bertkit.settings.compose import compose, spelled

    overrides = spelled({"model_dir": model_dir, "input": "-", "output": "-", **settings})
    return LoadedPredictor(build(PredictSettings, compose("predict", overrides)))


def open_predictor(settings: PredictSettings) -> Predictor:
    """Load a model with its task, on its device, ready to predict.

    Raises:
        InputError: the model has no head to predict with, or it is of other labels than the task.
    """
    device = processes.choose_device(settings.device)
    opened = open_task_model(settings.model_dir, settings.task, settings.task_changes)
    if opened.task.labels != "auto":
        check_labels(settings.model_dir, opened)
    opened.model.use(fast.choose(settings.kernels))
    micro_tokens = micro_batches.AUTO_MICRO_TOKENS[device.type]
    return opened.predictor(settings.precision, micro_tokens, opened.model.to(device), settings.top_k)


class LoadedPredictor:
    """Predict texts, pairs of texts, or rows, as `bertkit predict` does.

    Attributes:
        labels: the names in the order of the logits; none for numbers, answers, choices, texts and [MASK].
    """

    def __init__(self, settings: PredictSettings) -> None:
        self._predictor = open_predictor(settings)
        self.labels = tuple(self._predictor.labels)

    def __call__(self, inputs: Any) -> Any:
        """Predict.

        Args:
            inputs: a text, a pair `(text, text_pair)` or `(question, context)`, or a row: a mapping of columns to values,
                as in a file that `predict` reads. A tagger finds the entities of a text, with their characters; within a
                list it also takes a list of words. Or many of these: a list, a `datasets.Dataset`, a pandas frame.

        Returns:
            A mapping for each input, in their order, as `predict` writes it; the mapping alone for one text, pair or row.

        Raises:
            InputError: an input lacks what the task needs.
        """
        if isinstance(inputs, (str, tuple, Mapping)):
            return self([inputs])[0]
        return [
            predictor.shape.row(example, prediction)
            for predictor, examples, features in read_inputs(self._predictor, inputs)
            for example, prediction in zip(examples, answer_here(predictor, examples, features), strict=True)
        ]

    def logits(self, inputs: Any) -> Any:
        """Give the model's own numbers.

        Args:
            inputs: as for a call.

        Returns:
            (n, C) for labels, n inputs; (n, 1) for numbers; (n, choices) for choices; for tags and answers a list with (T, C)
            or (T, 2) of each sequence of T tokens that the model sees, windows of long inputs one after another.

        Raises:
            InputError: a masked LM has none of a whole input, nor has a model that writes; or as for a call.
        """
        if self._predictor.shape.head == "generation":
            raise InputError(
                "logits: a model that writes has none before it writes; call load_model with decoder_input_ids"
            )
        if self._predictor.shape.pack is not None:
            raise InputError("logits: a masked LM gives tokens at [MASK]; call load_model for its logits")
        inputs = [inputs] if isinstance(inputs, (str, tuple, Mapping)) else inputs
        found: list[Any] = []
        for predictor, examples, features in read_inputs(self._predictor, inputs):
            rows = logits_here(predictor, examples, features)
            num_choices = predictor.shape.num_choices(examples)
            found += (
                rows
                if num_choices == 1
                else [np.concatenate(rows[n : n + num_choices]) for n in range(0, len(rows), num_choices)]
            )
        if self._predictor.shape.head in ("token", "span"):
            return found
        return np.stack(found).astype(np.float32) if found else np.zeros((0, len(self.labels)), np.float32)


def read_inputs(predictor: Predictor, inputs: Any) -> Iterator[tuple[Predictor, list[Any], list[Feature]]]:
    """Read inputs as a `LoadedPredictor` takes them: examples, some at a time, their features, and what predicts them.

    Raises:
        InputError: an input lacks what the task needs.
    """
    rows, task = _as_rows(inputs, predictor.shape, predictor.task)
    lines = "".join(f"{line}\n" for line in as_json_lines(rows, "inputs"))
    stream = cast(io.BufferedReader, io.BufferedReader(io.BytesIO(lines.encode())))
    labels = tuple(predictor.labels)
    found = open_inputs(predictor.shape, task, stream, Path("inputs"), "jsonl", labels)
    predictor = dataclasses.replace(predictor, shape=found.shape)  # a tagger reads running text by another one
    for examples in found.chunks:
        yield predictor, examples, list(make_features(task, examples, predictor.tokenizer, labels, found.shape))


def _as_rows(inputs: Any, shape: Shape, task: TaskConfig) -> tuple[Any, TaskConfig]:
    """Name the columns of inputs that have none."""
    first = inputs[0] if isinstance(inputs, Sequence) and len(inputs) else None
    if not isinstance(first, (str, tuple, list)):
        return inputs, task
    if shape.is_of_words:
        names: tuple[str, ...] = ("text",) if isinstance(first, str) else ("words",)
    elif shape.head == "generation":
        names = ("source", "text_pair")
    else:
        names = ("question", "context") if shape.head == "span" else ("text", "text_pair")
    if isinstance(first, tuple) and (shape.pack is not None or shape.head == "generation"):
        what = "a masked LM" if shape.pack is not None else "a model of generation"
        raise InputError(f"inputs: pairs, but {what} reads single texts; give {_wanted(shape, names[:1])}")
    columns = dataclasses.replace(task.columns, id=None, **{name: name for name in names})
    if not isinstance(first, tuple):
        if shape.head == "span" or shape.has_choices or task.needs_pair:
            raise InputError(f"inputs: a model of {shape.kind} with one text; give {_wanted(shape, names)}")
        columns, names = dataclasses.replace(columns, text_pair=None), names[:1]
    rows = []
    for number, given in enumerate(inputs, start=1):
        values = given if isinstance(given, tuple) else (given,)
        if type(given) is not type(first) or len(values) != len(names):
            raise InputError(f"inputs:{number}: {given!r:.80}: expected {_wanted(shape, names)}, as the first one is")
        rows.append(dict(zip(names, values, strict=True)))
    return rows, dataclasses.replace(task, columns=columns)


def _wanted(shape: Shape, names: Sequence[str]) -> str:
    if shape.has_choices:
        return "rows with a context and its endings"
    return "a text" if len(names) == 1 else f"pairs ({', '.join(names)})"
