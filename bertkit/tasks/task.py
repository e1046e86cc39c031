"""`Feature` and `Shape`: what all tasks share. A shape of task is a kind of input and output, such as a text with a label.

    files -> rows -> examples -> features -> batches -> logits -> predictions -> scores

An example is what the user's file holds, such as a text with its label. A feature is a sequence of tokens for the model.

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

from bertkit.base import plugins
from bertkit.base.batch import PretrainBatch
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.scoring import metrics
from bertkit.tasks.task_config import SHAPES, TaskConfig

if TYPE_CHECKING:
    from bertkit.tasks.reading.source import Reading

LabelNames = Sequence[str]  # the name of label 0 first
TOKENIZED_AT_ONCE = 4096  # tokenized together; more would take too much memory
TABLES = ("tsv", "csv", "jsonl", "json", "parquet")


@dataclass(frozen=True)
class Feature:
    """One sequence for the model, `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`; an example may have several."""

    example: int  # the index of the example in the list of examples
    input_ids: list[int]  # length T
    token_type_ids: list[int]  # length T
    # None if unknown, otherwise for each shape:
    # sequence: the label's number; a float for a regression; for several labels at once, 0.0 or 1.0 for each label
    # tagging: the label's number of each of the T tokens, -100 for a token without one
    # spans: (start, end), inclusive positions among the T tokens, (0, 0) for no answer
    # choice: the number of the right ending, the same in all features of an example
    # generation: the token ids of the target text
    label: Any
    origins: Any = None  # the part of the example that each token comes from, such as word numbers or character offsets
    num_cut: int = 0  # pieces (tokens) of the example that were truncated and are in no other feature


@dataclass(frozen=True)
class TaskMetrics:
    """The metrics that can score a task's predictions."""

    predictions: str  # a description of the predictions, for messages
    metrics: tuple[str, ...]  # the usual metric first
    advice: str = ""  # the end of the message about a metric that does not fit; empty: "expected some of" the metrics


@dataclass(frozen=True)
class ExtraFile:
    """A file that `predict` writes in addition to its JSON lines, chunk by chunk."""

    name: str  # the file's name, or only its ending, such as `.conll`, after the name of the output
    text: Callable[[Sequence[Any], Sequence[Any]], str]  # formats the examples and predictions of a chunk
    frame: tuple[str, str, str] = ("", "", "")  # the file's beginning, the separator between chunks, and the file's end
    empty: str = ""  # the content of the file if there are no examples


@dataclass(frozen=True)
class Shape:
    """The functions and properties of a shape of task, from the rows of a file to predictions, scores and files.

    To add a shape, write a file that ends with an object of this class, and add a line to `task_config.SHAPES`.
    """

    kind: str  # the name of the shape, the setting `task.kind`
    head: str  # the model's head
    unit: str  # what messages call the examples, in the plural
    formats: tuple[str, ...]  # the file formats that `predict` accepts
    # reads rows lazily as examples; refuses missing columns before the first row; sets `reading.labels`
    read: Callable[[Reading], Iterator[Any]]
    content: Callable[[Any], Any]  # returns the text of an example, without its label and id
    # returns the labels of an example, to be counted; None for an unknown label
    labels_of: Callable[[Any], Sequence[str | float | None]]
    is_labelled: Callable[[Any], bool]  # whether an example's prediction can be scored
    # tokenizes examples; a feature has a label if its example has one
    features: Callable[[TaskConfig, Sequence[Any], Tokenizer, LabelNames], list[Feature]]
    # computes a prediction for each example from the logits of the features
    predictions: Callable[
        [TaskConfig, Sequence[Any], Sequence[Feature], Sequence[Any], LabelNames, Tokenizer], list[Any]
    ]
    fitting_metrics: Callable[[TaskConfig, LabelNames | None], TaskMetrics]  # labels None: not known yet
    # computes the task's metrics; predictions are in the order of the examples
    score: Callable[[TaskConfig, Sequence[Any], Sequence[Any], LabelNames], dict[str, float]]
    # whether all predictions are equal although the labels differ: the model has learned nothing
    is_degenerate: Callable[[TaskConfig, Sequence[Any], Sequence[Any]], bool]
    # formats the predictions on a labelled split, by file name
    eval_files: Callable[[Sequence[Any], Sequence[Any]], dict[str, str]]
    row: Callable[[Any, Any], dict[str, Any]]  # the line that `predict` writes for an example, without `truncated`
    # the settings of the columns that a text, or a pair of texts, fills; empty if an example needs more than two texts
    text_columns: tuple[str, ...] = ("text", "text_pair")
    needs_pair: bool = False  # whether every example needs two texts
    # the format of a file without columns, "text" or "words"; None if an example needs more than a line
    plain: str | None = None
    is_word_level: bool = False  # whether each word has a label; files without another ending are then CoNLL
    has_labels: bool = False  # whether its models have named labels, or predict a number
    has_classes: bool = True  # whether labels are classes: a file with a single class is then useless
    has_choices: bool = False  # whether an example has several alternative sequences
    has_token_logits: bool = False  # whether there are logits for each token, (T, C), not for the whole sequence
    answers_questions: bool = False  # whether a prediction is an answer in a passage, with `n_best` and `null_odds`
    generates_text: bool = False  # whether its models write text token by token; the loss then gives a perplexity
    num_choices: Callable[[Sequence[Any]], int] = lambda examples: 1  # consecutive features that form one item
    extra_files: tuple[ExtraFile, ...] = ()  # further files that `predict` writes
    # the baseline's predictions, from the training examples: always the most frequent training label
    guess: Callable[[TaskConfig, Sequence[Any], Sequence[Any]], list[Any]] | None = None
    # returns the labels of a prediction, comparable with `labels_of`
    predicted_labels: Callable[[Any], Sequence[str | float]] = lambda prediction: ()
    # computes what the report shows about the predictions on a labelled split, besides the scores
    review: Callable[[TaskConfig, Sequence[Any], Sequence[Any], LabelNames], dict[str, Any]] = lambda *_: {}
    # packs features into masked LM batches; None for all other heads
    pack: Callable[[Sequence[Feature]], PretrainBatch] | None = None


def rows_of(
    shape: Shape, examples: Sequence[Any], features: Sequence[Feature], predictions: Sequence[Any]
) -> list[dict[str, Any]]:
    """Return the row that `predict` writes for each example; `truncated` says whether a part of it is in no feature."""
    truncated = {feature.example for feature in features if feature.num_cut}
    pairs = zip(examples, predictions, strict=True)
    return [{**shape.row(*pair), "truncated": number in truncated} for number, pair in enumerate(pairs)]


def most_frequent(values: Iterable[Any]) -> Any:
    """Return the most frequent value; of equally frequent values the first."""
    return Counter(values).most_common(1)[0][0]


def is_constant(predicted: Iterable[Any], true: Iterable[Any]) -> bool:
    """Check whether all predictions are equal although the labels differ."""
    return len(set(predicted)) == 1 and len(set(true)) > 1


def eval_lines(examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, str]:
    """Return predictions.jsonl: a line for each prediction, with the true label as `reference`."""
    pairs = zip(examples, predictions, strict=True)
    return {"predictions.jsonl": json_lines({**asdict(p), "reference": example.label} for example, p in pairs)}


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Format rows as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def shape_of(task: TaskConfig) -> Shape:
    """Return the shape of a task."""
    return _shape(task.kind)


def shape_of_head(head: str) -> Shape:
    """Return the first shape with this head."""
    return next(shape for shape in map(_shape, SHAPES) if shape.head == head)


def _shape(kind: str) -> Shape:
    shape: Shape = importlib.import_module(SHAPES[kind]).SHAPE if kind in SHAPES else plugins.get("shape", kind)()
    return shape


def make_features(
    task: TaskConfig, examples: Sequence[Any], tokenizer: Tokenizer, labels: LabelNames, shape: Shape | None = None
) -> Iterator[Feature]:
    """Turn the examples of a task into features, `TOKENIZED_AT_ONCE` at a time; `shape` is by default the task's."""
    shape = shape or shape_of(task)
    if examples:
        shape.num_choices(examples)  # refuses a wrong example before any tokenizing
    for start in range(0, len(examples), TOKENIZED_AT_ONCE):
        part = examples[start : start + TOKENIZED_AT_ONCE]
        for feature in shape.features(task, part, tokenizer, labels):
            yield feature if start == 0 else dataclasses.replace(feature, example=feature.example + start)


def check_metrics(task: TaskConfig, labels: LabelNames | None = None) -> None:
    """Check before training that the task's metrics exist and can score its predictions.

    `labels` is None before the data is read; checks that need the labels are then skipped. Raises InputError if a metric does
    not fit the shape or labels, or `best_metric` is not among the scores.
    """
    if not task.metrics:
        raise InputError("task.metrics=[]: expected at least one; leave it out for the task's own")
    own = [name for name in task.metrics if name not in metrics.METRICS]
    if unknown := [name for name in own if plugins.find("metric", name) is None]:
        known = plugins.names_of("metric")
        raise InputError(f"task.metrics: unknown {', '.join(unknown)}; expected some of {', '.join(known)}")
    fitting_metrics = shape_of(task).fitting_metrics(task, labels)
    fitting = fitting_metrics.metrics
    if unfit := [name for name in task.metrics if name not in (*fitting, *own)]:
        main = next((name for name in fitting if task.best_metric in metrics.METRICS[name]), None)
        best = "" if main else f" task.best_metric={metrics.METRICS[fitting[0]][0]}"
        usual = f"; expected some of {', '.join(fitting)}: set task.metrics=[{main or fitting[0]}]{best}"
        raise InputError(
            f"task.metrics: {', '.join(unfit)} cannot measure {fitting_metrics.predictions}{fitting_metrics.advice or usual}"
        )
    keys = metrics.keys_of(task.metrics)
    if task.best_metric not in keys:
        raise InputError(f"task.best_metric={task.best_metric}: expected one of {', '.join(keys)}")
