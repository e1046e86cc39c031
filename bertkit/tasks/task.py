"""What flows through every task, and what makes up a shape of task.

    files -> rows -> examples -> features -> batches -> logits -> predictions -> scores

Axes: T tokens of a sequence, C labels.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bertkit.base.batch import PretrainBatch
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.task_config import TaskConfig

if TYPE_CHECKING:
    from bertkit.tasks.reading.source import Reading

LabelNames = Sequence[str]  # names in the order of their numbers
TABLES = ("tsv", "csv", "jsonl", "json", "parquet")


@dataclass(frozen=True)
class Feature:
    """One sequence `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` that the model sees; an example may have several."""

    example: int  # the place of its example in the list
    input_ids: list[int]  # T of them
    token_type_ids: list[int]  # T of them
    # sequence: the label's number, or a float, or for several labels at once a 0.0 or 1.0 for each
    # tagging: a label's number for each token, -100 for none, T of them
    # spans: (start, end), inclusive positions among the T tokens, (0, 0) for no answer
    # choice: the number of the right ending, on each of the features of an example; None where it is not known
    label: Any
    # what the shape needs to find its way back from tokens to the example, such as word numbers or character offsets, T
    # of them; None where nothing is needed
    where: Any = None
    num_cut: int = 0  # pieces of its example that did not fit and that no other feature holds


@dataclass(frozen=True)
class Measured:
    """What a task predicts, and how that is measured."""

    what: str  # is predicted, in words
    metrics: tuple[str, ...]  # that measure it, the usual one first
    way_out: str = ""  # what to do where another one is asked for; empty: to take one of these


@dataclass(frozen=True)
class Beside:
    """A file that `predict` writes beside its JSON lines, a chunk of the examples at a time."""

    name: str  # of the file; an ending takes the place of the output's own
    text: Callable[[Sequence[Any], Sequence[Any]], str]  # of the examples and predictions of a chunk
    frame: tuple[str, str, str] = ("", "", "")  # what begins the file, parts two chunks and ends it
    empty: str = ""  # the file where there are no examples


@dataclass(frozen=True)
class Shape:
    """A shape of task: how its files become examples, examples features, and logits predictions, scores and files.

    A shape is a file that ends with one of these, and a line in `config.SHAPES`.
    """

    kind: str  # its name
    head: str  # of the model
    unit: str  # what a message calls several examples
    formats: tuple[str, ...]  # of the files that it is predicted from
    # the rows of a table, as examples on their way; its columns are found, or refused, at once
    read: Callable[[Reading], Iterator[Any]]
    content: Callable[[Any], Any]  # what is read of an example, without its label and id
    # what a description counts of an example; None for a label that is not known
    labels_of: Callable[[Any], Sequence[str | float | None]]
    is_labelled: Callable[[Any], bool]  # whether an example has what its prediction is scored against
    # of examples, with labels where they have them
    features: Callable[[TaskConfig, Sequence[Any], Tokenizer, LabelNames], list[Feature]]
    # of the logits of each feature, one for each example
    predictions: Callable[
        [TaskConfig, Sequence[Any], Sequence[Feature], Sequence[Any], LabelNames, Tokenizer], list[Any]
    ]
    # what is predicted with these labels, None where only the data knows them
    measured: Callable[[TaskConfig, LabelNames | None], Measured]
    # the task's metrics of predictions, in the order of the examples, against the examples' labels
    score: Callable[[TaskConfig, Sequence[Any], Sequence[Any], LabelNames], dict[str, float]]
    # whether a model says the same of every example though their labels differ: it has learned nothing
    is_degenerate: Callable[[TaskConfig, Sequence[Any], Sequence[Any]], bool]
    files: Callable[[Sequence[Any], Sequence[Any]], dict[str, str]]  # of a labelled split's predictions, by name
    row: Callable[[Any, Any], dict[str, Any]]  # what `predict` writes of an example
    # the format of lines without columns: "text", "words", or None where an example is more than that
    plain: str | None = None
    is_of_words: bool = False  # whether its files are columns of words, as CoNLL's, unless their endings say otherwise
    has_names: bool = False  # whether a model of it has labels by name, or predicts a number
    has_classes: bool = True  # whether there is nothing to learn where all labels are the same
    has_choices: bool = False  # whether an example has several sequences side by side
    # how many neighbouring features of examples belong together
    num_choices: Callable[[Sequence[Any]], int] = lambda examples: 1
    beside: tuple[Beside, ...] = ()  # the files that it writes beside these rows
    # what one predicts of examples who has only counted the labels of the training examples, and says the commonest
    guess: Callable[[TaskConfig, Sequence[Any], Sequence[Any]], list[Any]] | None = None
    said_of: Callable[[Any], Sequence[str | float]] = lambda prediction: ()  # a prediction, in the words of `labels_of`
    # of a labelled split's predictions, what `review` says beside the scores
    review: Callable[[TaskConfig, Sequence[Any], Sequence[Any], LabelNames], dict[str, Any]] = lambda *_: {}
    # masked LM's own way to batches; None for a head that sees whole sequences
    pack: Callable[[Sequence[Feature]], PretrainBatch] | None = None


def commonest(values: Iterable[Any]) -> Any:
    """Give the value that comes most often, the first of several."""
    return Counter(values).most_common(1)[0][0]


def says_the_same(said: Iterable[Any], true: Iterable[Any]) -> bool:
    """Whether there is one thing that is said, and several that are true."""
    return len(set(said)) == 1 and len(set(true)) > 1


def labelled_lines(examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, str]:
    """Give a file with a line for each prediction, and with the example's own label as `reference`."""
    pairs = zip(examples, predictions, strict=True)
    return {"predictions.jsonl": json_lines({**asdict(p), "reference": example.label} for example, p in pairs)}


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Write a line for each row."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
