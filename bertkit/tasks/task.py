"""The data that every task passes on from step to step, and the parts of a shape of task.

    files -> rows -> examples -> features -> batches -> logits -> predictions -> scores

Axes: T tokens of a sequence, C labels.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bertkit.base.batch import PretrainBatch
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.scoring import metrics
from bertkit.tasks.task_config import SHAPES, TaskConfig

if TYPE_CHECKING:
    from bertkit.tasks.reading.source import Reading

LabelNames = Sequence[str]  # names in the order of their numbers
EXAMPLES_AT_ONCE = 4096  # tokenized together
TABLES = ("tsv", "csv", "jsonl", "json", "parquet")


@dataclass(frozen=True)
class Feature:
    """One sequence `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` that the model sees; an example may have several."""

    example: int  # index of its example in the list
    input_ids: list[int]  # T of them
    token_type_ids: list[int]  # T of them
    # sequence: the label's number; a float for a regression; with several labels at once, 0.0 or 1.0 for every label
    # tagging: a label's number for every token, -100 for none, T of them
    # spans: (start, end), inclusive positions among the T tokens, (0, 0) for no answer
    # choice: the number of the right ending, on every feature of an example; None if unknown
    label: Any
    origins: Any = None  # the way back from the T tokens to the example, such as word numbers or character offsets
    num_cut: int = 0  # pieces of its example that did not fit and that no other feature holds


@dataclass(frozen=True)
class FittingMetrics:
    """The metrics that fit a task's predictions."""

    what: str  # the predictions, in words
    metrics: tuple[str, ...]  # the usual one first
    way_out: str = ""  # advice after a metric that does not fit; empty: to take one of these


@dataclass(frozen=True)
class PredictionFile:
    """A file that `predict` writes beside its JSON lines, a chunk of the examples at a time."""

    name: str  # of the file; an ending replaces the output's own
    text: Callable[[Sequence[Any], Sequence[Any]], str]  # from the examples and predictions of a chunk
    frame: tuple[str, str, str] = ("", "", "")  # the beginning, the separator of two chunks, and the end
    empty: str = ""  # the whole file if there are no examples


@dataclass(frozen=True)
class Shape:
    """A shape of task: how files become examples, examples features, and logits predictions, scores and files.

    To add a shape, write a file that ends with one of these, and add a line to `task_config.SHAPES`.
    """

    kind: str  # its name
    head: str  # of the model
    unit: str  # the plural that messages use for examples
    formats: tuple[str, ...]  # of the files that `predict` reads
    # rows of a table -> examples, lazily; missing columns are refused at once
    read: Callable[[Reading], Iterator[Any]]
    content: Callable[[Any], Any]  # the text of an example, without its label and id
    # the labels of an example, for counts; None for an unknown one
    labels_of: Callable[[Any], Sequence[str | float | None]]
    is_labelled: Callable[[Any], bool]  # whether an example's prediction can be scored
    # labels are there where the examples have them
    features: Callable[[TaskConfig, Sequence[Any], Tokenizer, LabelNames], list[Feature]]
    # logits of the features -> a prediction for every example
    predictions: Callable[
        [TaskConfig, Sequence[Any], Sequence[Feature], Sequence[Any], LabelNames, Tokenizer], list[Any]
    ]
    fitting_metrics: Callable[
        [TaskConfig, LabelNames | None], FittingMetrics
    ]  # with None, only the data knows the labels
    # the task's metrics of predictions, in the order of the examples
    score: Callable[[TaskConfig, Sequence[Any], Sequence[Any], LabelNames], dict[str, float]]
    # whether all predictions are the same though the labels differ: the model has learned nothing
    is_degenerate: Callable[[TaskConfig, Sequence[Any], Sequence[Any]], bool]
    eval_files: Callable[[Sequence[Any], Sequence[Any]], dict[str, str]]  # a labelled split's predictions, by file name
    row: Callable[[Any, Any], dict[str, Any]]  # the line that `predict` writes for an example
    # settings of the columns that a bare text, or a pair of texts, fills; none if an example is more than that
    text_columns: tuple[str, ...] = ("text", "text_pair")
    needs_pair: bool = False  # whether a single text is never an example, whatever the task
    # the format of lines without columns: "text", "words", or None if an example is more than a line
    plain: str | None = None
    is_word_level: bool = False  # whether its files have columns of words, such as CoNLL, unless their endings differ
    has_labels: bool = False  # whether its models have labels by name, or predict a number
    has_classes: bool = True  # whether there is nothing to learn if all labels are the same
    has_choices: bool = False  # whether an example has several sequences side by side
    has_token_logits: bool = False  # whether every token has logits, (T, C), and not the whole sequence
    answers_questions: bool = False  # whether a prediction is an answer in a passage, with `n_best` and `null_odds`
    generates_text: bool = False  # whether its models write texts, token by token, so that the loss gives a perplexity
    num_choices: Callable[[Sequence[Any]], int] = lambda examples: 1  # neighbouring features that belong together
    prediction_files: tuple[PredictionFile, ...] = ()  # more files that `predict` writes
    # the baseline: predict the commonest training label for every example
    guess: Callable[[TaskConfig, Sequence[Any], Sequence[Any]], list[Any]] | None = None
    predicted_labels: Callable[[Any], Sequence[str | float]] = (
        lambda prediction: ()
    )  # a prediction as `labels_of` writes labels
    # a labelled split's predictions -> what `review` shows beside the scores
    review: Callable[[TaskConfig, Sequence[Any], Sequence[Any], LabelNames], dict[str, Any]] = lambda *_: {}
    # masked LM's own batches; None for a head that sees whole sequences
    pack: Callable[[Sequence[Feature]], PretrainBatch] | None = None


def most_frequent(values: Iterable[Any]) -> Any:
    """Give the most frequent value, the first of several."""
    return Counter(values).most_common(1)[0][0]


def all_predictions_equal(said: Iterable[Any], true: Iterable[Any]) -> bool:
    """Whether all predictions are the same, and the labels are not."""
    return len(set(said)) == 1 and len(set(true)) > 1


def labelled_lines(examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, str]:
    """Give predictions.jsonl: a line for every prediction, with the example's own label as `reference`."""
    pairs = zip(examples, predictions, strict=True)
    return {"predictions.jsonl": json_lines({**asdict(p), "reference": example.label} for example, p in pairs)}


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Write rows as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def shape_of(task: TaskConfig) -> Shape:
    """Give the shape of a task."""
    return _shape(task.kind)


def shape_of_head(head: str) -> Shape:
    """Give the first shape with this head."""
    return next(shape for shape in map(_shape, SHAPES) if shape.head == head)


def _shape(kind: str) -> Shape:
    shape: Shape = importlib.import_module(SHAPES[kind]).SHAPE
    return shape


def make_features(
    task: TaskConfig, examples: Sequence[Any], tokenizer: Tokenizer, labels: LabelNames, shape: Shape | None = None
) -> Iterator[Feature]:
    """Turn the examples of a task into features, some at a time, since tokenizing takes much memory.

    `shape` is the task's own by default.
    """
    shape = shape or shape_of(task)
    if examples:
        shape.num_choices(examples)  # checks all before the first
    for start in range(0, len(examples), EXAMPLES_AT_ONCE):
        part = examples[start : start + EXAMPLES_AT_ONCE]
        for feature in shape.features(task, part, tokenizer, labels):
            yield feature if start == 0 else dataclasses.replace(feature, example=feature.example + start)


def check_metrics(task: TaskConfig, labels: LabelNames | None = None) -> None:
    """Refuse metrics that are unknown or do not fit the task, before training.

    `labels` is None where they are known only from the data; checks of labels are then skipped.

    Raises:
        InputError: a metric does not fit the shape or labels, or `best_metric` is not among the scores.
    """
    unknown = [name for name in task.metrics if name not in metrics.METRICS]
    if unknown:
        raise InputError(f"task.metrics: unknown {', '.join(unknown)}; expected some of {', '.join(metrics.METRICS)}")
    measured = shape_of(task).fitting_metrics(task, labels)
    fitting = measured.metrics
    if unfit := [name for name in task.metrics if name not in fitting]:
        main = next((name for name in fitting if task.best_metric in metrics.METRICS[name]), None)
        best = "" if main else f" task.best_metric={metrics.METRICS[fitting[0]][0]}"
        usual = f"; expected some of {', '.join(fitting)}: set task.metrics=[{main or fitting[0]}]{best}"
        raise InputError(f"task.metrics: {', '.join(unfit)} cannot measure {measured.what}{measured.way_out or usual}")
    keys = [key for name in task.metrics for key in metrics.METRICS[name]]
    if task.best_metric not in keys:
        raise InputError(f"task.best_metric={task.best_metric}: expected one of {', '.join(keys)}")
