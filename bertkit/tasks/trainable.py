"""`TrainableTask` and `HeadTask`: what fine-tuning and `evaluate` need of a task, its labels and scores."""

import importlib
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertkit.base import plugins
from bertkit.base.errors import InputError, counted
from bertkit.tasks.feature import Logits
from bertkit.tasks.reading.near_duplicates import Content
from bertkit.tasks.reading.writers import rounded
from bertkit.tasks.scoring import metrics
from bertkit.tasks.scoring.calibration import Decisions
from bertkit.tasks.scoring.review import Review
from bertkit.tasks.scoring.sampled_metrics import SampledScores
from bertkit.tasks.task import ExampleT, FeatureT, LabelNames, LogitsTask, PredictionT, Runner, Task
from bertkit.tasks.task_config import KINDS, TaskConfig

ValueT = TypeVar("ValueT", bound=Hashable)
Embed = Callable[[Sequence[str]], NDArray[np.float32]]  # texts -> vectors, (n, D)


@dataclass(frozen=True)
class TaskMetrics:
    """The metrics that can score a task's predictions."""

    predictions: str  # a description of the predictions, for messages
    metrics: tuple[str, ...]  # the usual metric first
    advice: str = ""  # the end of the message about a metric that does not fit; empty: "expected some of" the metrics


class TrainableTask(Task[ExampleT, FeatureT, PredictionT]):
    """A task for fine-tuning, whose files have labels.

    To add one, write a file with a class, and add a line to `task_config.KINDS`.
    """

    reads_several_files: ClassVar[bool] = False  # whether all files that match the name of a split belong to it

    @abstractmethod
    def content(self, example: ExampleT) -> Content:
        """Return the text of an example, without its label and id."""

    @abstractmethod
    def labels_of(self, example: ExampleT) -> Sequence[str | float | None]:
        """Return the labels of an example, to be counted; None for an unknown label."""

    @abstractmethod
    def reference(self, example: ExampleT) -> object:
        """Return the label of an example as files of predictions have it; None if it is unknown."""

    def is_labelled(self, example: ExampleT) -> bool:
        """Whether an example's prediction can be scored."""
        return self.reference(example) is not None

    @abstractmethod
    def fitting_metrics(self) -> TaskMetrics:
        """Return the metrics that can score the predictions; labels may not be known yet."""

    def compared(
        self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]
    ) -> tuple[metrics.Inputs, metrics.Inputs]:
        """Return what the metrics compare; predictions are in the order of the examples.

        A task with a `score` of its own may do without; its scores then have no intervals.
        """
        return (), ()

    def is_degenerate(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> bool:
        """Check whether all predictions are equal although the labels differ: the model has learned nothing."""
        return is_constant(*self.compared(examples, predictions))

    def score(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> dict[str, float]:
        """Compute the task's metrics; predictions are in the order of the examples."""
        return metrics.score(self.config.metrics, *self.compared(examples, predictions))

    def sampled(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> SampledScores:
        """Return the scores as those of samples, for their intervals."""
        return metrics.sampled(self.config.metrics, *self.compared(examples, predictions))

    def classes_of(self, example: ExampleT) -> Sequence[str]:
        """Return the classes of an example; a file with a single class is useless. None if labels are no classes."""
        names = [label for label in self.labels_of(example) if isinstance(label, str)]
        return [", ".join(sorted(names))] if names else []

    def expected_labels(self) -> LabelNames:
        """Return the labels that should occur in a file."""
        return self.labels

    @property
    def remark(self) -> str:
        """What a reader of the scores must know of the labels; "" if nothing."""
        return ""

    def size(self, examples: Sequence[ExampleT]) -> str:
        """Return the number of examples, in words."""
        return counted(len(examples), self.unit)

    def unmeasured(self, examples: Sequence[ExampleT]) -> list[str]:
        """Return what the metrics of the task cannot measure in these examples, with what to set, for warnings."""
        return []

    def num_labelled(self, examples: Sequence[ExampleT]) -> int:
        """Return the number of things that have labels: the examples."""
        return len(examples)  # an example may have several labels

    def predicted_labels(self, prediction: PredictionT) -> Sequence[str]:
        """Return the labels of a prediction, comparable with `labels_of`; none if labels are no classes."""
        return ()

    def baselines(self, train: Sequence[ExampleT], examples: Sequence[ExampleT]) -> dict[str, list[PredictionT]]:
        """Return the predictions of simple methods by their names; "majority" is the most frequent training label."""
        return {}

    def by_vectors(self, train: Sequence[ExampleT], examples: Sequence[ExampleT], embed: Embed) -> list[PredictionT]:
        """Return the predictions of a linear head on the vectors of texts; none if the task does not label whole texts."""
        return []

    def eval_files(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> dict[str, Iterable[str]]:
        """Format the predictions on a labelled split: lines, by file name."""
        pairs = zip(examples, predictions, strict=True)
        rows = ({**rounded(self.row(*pair)), "reference": self.reference(pair[0])} for pair in pairs)
        return {"predictions.jsonl": json_lines(rows)}

    def loss_scores(self, loss: float) -> dict[str, float]:
        """Return the scores that the mean loss gives."""
        return {}

    def review(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> Review:
        """Compute what the report shows about the predictions on a labelled split, besides the scores."""
        return {}

    def decisions(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> Decisions:
        """Return the probabilities of labelled examples, for `calibrate=true`; raises InputError if the task has no classes."""
        raise InputError(f"calibrate=true: task={self.config.name} is no classification; leave it out")

    def check_trainable(self) -> None:
        """Raise InputError if fine-tuning does not train the task's head."""

    def check_metrics(self) -> None:
        """Check before training that the task's metrics exist and can score its predictions.

        Checks that need the labels are skipped while there are none. Raises InputError if a metric does not fit the task or its
        labels, or `best_metric` is not among the scores.
        """
        config = self.config
        if not config.metrics:
            raise InputError("task.metrics=[]: expected at least one; leave it out for the task's own")
        own = [name for name in config.metrics if name not in metrics.METRICS]
        if unknown := [name for name in own if plugins.find("metric", name) is None]:
            known = plugins.names_of("metric")
            raise InputError(f"task.metrics: unknown {', '.join(unknown)}; expected some of {', '.join(known)}")
        measured = self.fitting_metrics()
        fitting = measured.metrics
        if unfit := [name for name in config.metrics if name not in (*fitting, *own)]:
            main = next((name for name in fitting if config.best_metric in metrics.METRICS[name]), None)
            best = "" if main else f" task.best_metric={metrics.METRICS[fitting[0]][0]}"
            usual = f"; expected some of {', '.join(fitting)}: set task.metrics=[{main or fitting[0]}]{best}"
            wrong = f"{', '.join(unfit)} cannot measure {measured.predictions}"
            raise InputError(f"task.metrics: {wrong}{measured.advice or usual}")
        keys = metrics.keys_of(config.metrics)
        if config.best_metric not in keys:
            raise InputError(f"task.best_metric={config.best_metric}: expected one of {', '.join(keys)}")


class HeadTask(LogitsTask[ExampleT, FeatureT, PredictionT], TrainableTask[ExampleT, FeatureT, PredictionT]):
    """A task for fine-tuning whose predictions come from the logits of the model's head."""

    @abstractmethod
    def predictions(
        self, examples: Sequence[ExampleT], features: Sequence[FeatureT], logits: Sequence[Logits]
    ) -> list[PredictionT]:
        """Compute a prediction for each example from the logits of the features."""

    def predict(self, model: Runner, examples: Sequence[ExampleT], features: Sequence[FeatureT]) -> list[PredictionT]:
        """Run the model on the features, and return a prediction for each example."""
        return self.predictions(examples, features, model.logits(features, self.num_choices(examples)))


AnyTrainable = TrainableTask[Any, Any, Any]


def task_of(config: TaskConfig, labels: LabelNames | None = None) -> AnyTrainable:
    """Return the task of some settings, with its labels: by default those that the settings list."""
    if config.kind in KINDS:
        importlib.import_module(KINDS[config.kind])
    make = plugins.get("task", config.kind)
    task = make(config, config.label_names if labels is None else labels)
    expected = "a bertkit.tasks.trainable.TrainableTask"
    return plugins.returned("task", config.kind, task, TrainableTask, expected)  # type: ignore[type-abstract]


def most_frequent(values: Iterable[ValueT]) -> ValueT:
    """Return the most frequent value; of equally frequent values the first."""
    return Counter(values).most_common(1)[0][0]


def is_constant(predicted: Iterable[Hashable], true: Iterable[Hashable]) -> bool:
    """Check whether all predictions are equal although the labels differ."""
    return len(set(predicted)) == 1 and len(set(true)) > 1


def json_lines(rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """Format rows as JSON lines, one after another."""
    return (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
