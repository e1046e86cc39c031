"""What is predicted of a text or a pair of texts: one label, several labels, or a number.

Axes: C labels.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertkit.base import plugins
from bertkit.base.errors import named, nearest
from bertkit.tasks.feature import Logits, softmax
from bertkit.tasks.reading.labels import Labels, NumericLabels
from bertkit.tasks.reading.reading import Reading
from bertkit.tasks.scoring import metrics, review, tfidf
from bertkit.tasks.scoring.calibration import Decisions
from bertkit.tasks.scoring.review import Review
from bertkit.tasks.scoring.sampled_metrics import SampledScores, errors
from bertkit.tasks.sequence import (
    Probabilities,
    ReadLabel,
    SequenceExample,
    SequencePrediction,
    SequenceTask,
    known,
)
from bertkit.tasks.task import LabelNames, Row, Verdict
from bertkit.tasks.task_config import TaskConfig
from bertkit.tasks.trainable import TaskMetrics, most_frequent

NO_LABEL = "(none)"  # stands for an empty set of labels
NEAR_0 = 2.0**-53  # the least probability of a label beside 1
MIN_DEVIATION = 0.01  # standard deviation of predictions / of labels; below, a regression has learned nothing


def sigmoid(logits: Logits) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)), in float64."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64))))


class OneLabel(SequenceTask[str]):
    """Texts with one of several labels."""

    learn = staticmethod(tfidf.labels_by_words)

    def label_reader(self, reading: Reading, field: str | None) -> ReadLabel[str]:
        """Return the function that checks a label."""
        reading.labels = labels = Labels(self.config, field, reading.known_labels, reading.table.is_typed)
        return labels.name_of

    def target(self, label: str) -> int:
        """Return the label's number."""
        if label not in self.numbers:
            hint = nearest(str(label), self.numbers) or f"; expected one of {named(self.numbers)}"
            raise ValueError(f"unknown label {label!r:.80}{hint}")
        return self.numbers[label]

    def written(self, label: str) -> str | int:
        """Return the label as it is written: a number if all labels are whole numbers."""
        return self.as_written[label]

    def outputs(self, logits: Logits) -> NDArray[np.float64]:
        """Return the probability of each label."""
        return softmax(logits)

    def prediction(self, example: str, output: NDArray[np.float64]) -> SequencePrediction[str]:
        """Return the most probable label."""
        return SequencePrediction(example, self.labels[int(output.argmax())], Probabilities(self.numbers, output))

    def fitting_metrics(self) -> TaskMetrics:
        """Return the metrics of two labels, or of more."""
        if len(self.labels) > 2:
            return TaskMetrics("one of several labels", (*metrics.MULTI_LABEL, "matthews_correlation"))
        return TaskMetrics("one of two labels", ("accuracy", "f1", "f1_macro", "f1_micro", "matthews_correlation"))

    @property
    def remark(self) -> str:
        """Name the label whose F1 is measured, unless the settings have chosen the order of the labels."""
        is_told = "f1" in self.config.metrics and not self.config.label_names and len(self.labels) == 2
        first, second = self.labels if is_told else ("", "")
        return f"F1 is that of '{second}'; task.labels=[{second},{first}] would take '{first}'" if is_told else ""

    def names_in(self, label: str) -> Sequence[str]:
        """Return the label."""
        return [label]

    def predicted_labels(self, prediction: SequencePrediction[str]) -> Sequence[str]:
        """Return the label."""
        return [prediction.label]

    def for_metrics(self, labels: Sequence[str]) -> list[int]:
        """Return the numbers of labels."""
        return [self.numbers[label] for label in labels]

    def guess(self, labels: Sequence[str]) -> str:
        """Return the most frequent label."""
        return most_frequent(labels)

    def decisions(
        self, examples: Sequence[SequenceExample[str]], predictions: Sequence[SequencePrediction[str]]
    ) -> Decisions:
        """Return one decision for each text."""
        probabilities = np.array([[[*p.probabilities.values()]] for p in predictions])
        return Decisions.of(probabilities, [[number] for number in self.for_metrics(known(examples))])

    def review_of(self, cases: Sequence[review.Case], predictions: Sequence[SequencePrediction[str]]) -> Review:
        """Return scores by label, confusions, calibration and mistakes."""
        return review.review_of_labels(cases, self.labels)


class SeveralLabels(SequenceTask[tuple[str, ...]]):
    """Texts with several labels at once, or none."""

    learn = staticmethod(tfidf.sets_by_words)

    def label_reader(self, reading: Reading, field: str | None) -> ReadLabel[tuple[str, ...]]:
        """Return the function that checks several labels."""
        reading.labels = labels = Labels(self.config, field, reading.known_labels, reading.table.is_typed)
        return labels.names_of

    def is_without_label(self, value: object) -> bool:
        """Return False: an empty cell has no labels."""
        return False

    def target(self, label: tuple[str, ...]) -> list[float]:
        """Return 1.0 for each label of an example, 0.0 for the others."""
        return [float(name in label) for name in self.labels]

    def written(self, label: tuple[str, ...]) -> list[str | int]:
        """Return the labels as they are written: numbers if all labels are whole numbers."""
        return [self.as_written[name] for name in label]

    def outputs(self, logits: Logits) -> NDArray[np.float64]:
        """Return the probability of each label."""
        return sigmoid(logits)

    def prediction(self, example: str, output: NDArray[np.float64]) -> SequencePrediction[tuple[str, ...]]:
        """Return all labels above 0.5."""
        above = tuple(self.labels[number] for number in np.flatnonzero(output > 0.5))
        return SequencePrediction(example, above, Probabilities(self.numbers, output))

    def fitting_metrics(self) -> TaskMetrics:
        """Return the metrics of sets of labels."""
        return TaskMetrics("several labels at once", metrics.MULTI_LABEL)

    def names_in(self, label: tuple[str, ...]) -> Sequence[str]:
        """Return all labels."""
        return label or (NO_LABEL,)

    def predicted_labels(self, prediction: SequencePrediction[tuple[str, ...]]) -> Sequence[str]:
        """Return all labels."""
        return self.names_in(prediction.label)

    def for_metrics(self, labels: Sequence[tuple[str, ...]]) -> NDArray[np.bool_]:
        """Return whether each example has each label."""
        return np.array([[name in label for name in self.labels] for label in labels])

    def guess(self, labels: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """Return the labels that more than half of the examples have."""
        counts = Counter(name for label in labels for name in label)
        return tuple(name for name, count in counts.items() if count > len(labels) / 2)

    def decisions(
        self,
        examples: Sequence[SequenceExample[tuple[str, ...]]],
        predictions: Sequence[SequencePrediction[tuple[str, ...]]],
    ) -> Decisions:
        """Return a decision between no and yes for each label of each text."""
        shares = np.array([[*p.probabilities.values()] for p in predictions])
        shares = np.clip(shares, NEAR_0, 1 - NEAR_0)  # 1 stands for all that float64 cannot tell from it
        return Decisions.of(np.stack([1 - shares, shares], -1), self.for_metrics(known(examples)))

    def review_of(
        self, cases: Sequence[review.Case], predictions: Sequence[SequencePrediction[tuple[str, ...]]]
    ) -> Review:
        """Review each label of each example separately, as true or false."""
        single = [
            review.Case(
                case.example, {**case.texts, "label": name}, name in case.gold, share > 0.5, max(share, 1 - share)
            )
            for case, p in zip(cases, predictions, strict=True)
            for name, share in p.probabilities.items()
        ]
        return review.review_of_label_sets(single, self.labels)


class Number(SequenceTask[float]):
    """Texts with a number: a regression."""

    learn = staticmethod(tfidf.numbers_by_words)

    def label_reader(self, reading: Reading, field: str | None) -> ReadLabel[float]:
        """Return the function that checks a number."""
        reading.labels = labels = NumericLabels(self.config, field, reading.known_labels, reading.table.is_typed)
        return labels.number_of

    def target(self, label: float) -> float:
        """Return the number."""
        if isinstance(label, str):  # the labels of another task
            raise ValueError(f"label {label!r}: expected a number: this task is a regression")
        return float(label)

    def outputs(self, logits: Logits) -> NDArray[np.float64]:
        """Return the numbers."""
        return logits.astype(np.float64)

    def prediction(self, example: str, output: NDArray[np.float64]) -> SequencePrediction[float]:
        """Return the number."""
        return SequencePrediction(example, float(output[0]), {})

    def row(self, example: SequenceExample[float], prediction: SequencePrediction[float]) -> Row:
        """Return the id and the number."""
        return {"id": prediction.id, "label": prediction.label}

    def verdict(self, example: SequenceExample[float], prediction: SequencePrediction[float]) -> Verdict:
        """Return the number."""
        return Verdict(f"{prediction.label:.4g}")

    def fitting_metrics(self) -> TaskMetrics:
        """Return the correlations."""
        return TaskMetrics("numbers", ("pearson", "spearmanr", "r2"))

    def names_in(self, label: float) -> Sequence[float]:
        """Return the number."""
        return [label]

    def for_metrics(self, labels: Sequence[float]) -> Sequence[float]:
        """Return the numbers."""
        return labels

    def guess(self, labels: Sequence[float]) -> float:
        """Return the mean."""
        return float(np.mean(np.array(labels, float)))

    def score(
        self, examples: Sequence[SequenceExample[float]], predictions: Sequence[SequencePrediction[float]]
    ) -> dict[str, float]:
        """Compute the task's metrics, and the errors in the units of the labels: the root mean square, and the mean."""
        errors = np.array([prediction.label for prediction in predictions]) - np.array(known(examples))
        sizes = {"rmse": float(np.sqrt(np.mean(errors**2))), "mae": float(np.abs(errors).mean())}
        return super().score(examples, predictions) | sizes

    def sampled(
        self, examples: Sequence[SequenceExample[float]], predictions: Sequence[SequencePrediction[float]]
    ) -> SampledScores:
        """Return the scores as those of samples."""
        return super().sampled(examples, predictions) | errors(
            [prediction.label for prediction in predictions], known(examples)
        )

    def is_degenerate(
        self, examples: Sequence[SequenceExample[float]], predictions: Sequence[SequencePrediction[float]]
    ) -> bool:
        """Check whether the predictions hardly vary beside the labels."""
        deviation = np.std([prediction.label for prediction in predictions])
        return bool(deviation < MIN_DEVIATION * np.std(known(examples)))

    def review_of(self, cases: Sequence[review.Case], predictions: Sequence[SequencePrediction[float]]) -> Review:
        """Return predicted against true numbers, and the largest errors."""
        return review.review_of_numbers(cases)


class SigmoidNumber(Number):
    """Texts with a number from 0 to 1, the sigmoid of the logit: a cross-encoder of sentence-transformers."""

    def outputs(self, logits: Logits) -> NDArray[np.float64]:
        """Return the numbers, from 0 to 1."""
        return sigmoid(logits)


class NextSentencePair(OneLabel):
    """Pairs of texts, of which the second follows the first or does not; pretraining trains this head, not fine-tuning."""

    head = "next_sentence"

    def page_inputs(self) -> list[object]:
        """Return an example of a pair."""
        return [["It rained all day.", "So we stayed at home."]]


@plugins.option("task", "sequence")
def sequence_task(config: TaskConfig, labels: LabelNames) -> OneLabel | SeveralLabels | Number:
    """Return the task for the kind of labels that the settings name."""
    if config.is_regression:
        return Number(config, labels)
    return SeveralLabels(config, labels) if config.multi_label else OneLabel(config, labels)
