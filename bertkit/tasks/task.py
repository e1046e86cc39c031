"""`Task`, what all tasks share: a class for each kind of input and output, such as a text with a label.

    files -> rows -> examples -> features -> batches -> logits -> predictions -> scores

An example is what the user's file holds, such as a text with its label. A feature is a sequence of tokens for the model.
A `Task` predicts. A `TrainableTask` also has labels and scores; most are a `HeadTask`, which predicts from the logits of a head.

Axes: T tokens of a sequence, C labels.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.feature import Feature, Logits, MaskFeature, TargetFeature
from bertkit.tasks.reading.cells import FilledRows, ShortRows
from bertkit.tasks.reading.reading import Reading
from bertkit.tasks.reading.writers import rounded
from bertkit.tasks.task_config import Column, GenerationConfig, TaskConfig

LabelNames = tuple[str, ...]  # the name of label 0 first
Row = dict[str, Any]  # a line that `predict` writes
Written = list[tuple[list[int], float]]  # texts for a source (ids without [CLS] and [SEP]) and their scores; best first
TOKENIZED_AT_ONCE = 4096  # tokenized together; more would take too much memory
TABLES = ("tsv", "csv", "jsonl", "json", "parquet", "xlsx")
CONLL_FORMATS = ("conll", "conllu")
ENDINGS = {f".{format}": format for format in (*TABLES, *CONLL_FORMATS)} | {".ndjson": "jsonl"}


class Example(Protocol):
    """What all examples have."""

    @property
    def id(self) -> str:
        """From the file, or the number of the row."""


ExampleT = TypeVar("ExampleT", bound=Example)
FeatureT = TypeVar("FeatureT", bound=Feature)
PredictionT = TypeVar("PredictionT")


@dataclass(frozen=True)
class ExtraFile(Generic[ExampleT, PredictionT]):
    """A file that `predict` writes in addition to its JSON lines, chunk by chunk."""

    name: str  # the file's name, or only its ending, such as `.conll`, after the name of the output
    text: Callable[[Sequence[ExampleT], Sequence[PredictionT]], str]  # formats a chunk
    frame: tuple[str, str, str] = ("", "", "")  # the file's beginning, the separator between chunks, and the file's end
    empty: str = ""  # the content of the file if there are no examples


class Mark(NamedTuple):
    """A part of a text, `text[start:end]`, and its label, if it has one."""

    start: int
    end: int
    label: str = ""


@dataclass(frozen=True)
class Verdict:
    """A prediction for readers: the answer, its text with the answer marked in it, and probabilities by name, the largest first."""

    answer: str  # may be empty, if the marks say it
    shares: Sequence[tuple[str, float]] = ()
    text: str = ""
    marks: Sequence[Mark] = ()  # in the order of the text, without overlaps


@dataclass(frozen=True)
class TopTokens:
    """The most probable tokens at a [MASK], the best first."""

    ids: list[int]
    probabilities: list[float]


class Runner(Protocol):
    """A model that a task runs on its features; `inference/forward.py` has it."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""

    def logits(self, features: Sequence[Feature], num_choices: int = 1) -> list[Logits]:
        """Return the logits of each feature: (C,), or (T, C) for a head with an output for each token."""

    def texts(self, features: Sequence[Feature], search: GenerationConfig) -> list[Written]:
        """Return the texts that the model writes for each feature, the best first."""

    def best_tokens(self, features: Sequence[MaskFeature]) -> list[list[TopTokens]]:
        """Return the most probable tokens at each mask of each feature."""

    def log_probabilities(self, features: Sequence[TargetFeature]) -> list[list[float]]:
        """Return the log-probability of each target of each feature."""


@dataclass(frozen=True)
class Task(ABC, Generic[ExampleT, FeatureT, PredictionT]):
    """A task, with what `predict` needs: from rows to examples, features, predictions and rows."""

    config: TaskConfig
    labels: LabelNames = ()  # none if the model predicts no labels

    kind: ClassVar[str]  # the setting `task.kind`
    head: ClassVar[str]  # the model's head
    unit: ClassVar[str]  # what messages call an example
    formats: ClassVar[tuple[str, ...]]  # the file formats that `predict` accepts
    plain: ClassVar[str | None] = None  # the format of a file without columns; None if a line is not enough
    # the settings of the columns that a text, or a pair of texts, fills; empty if an example needs more than two texts
    text_columns: ClassVar[tuple[str, ...]] = ("text", "text_pair")
    copied: ClassVar[tuple[str, ...]] = ("id",)  # the fields of `row` that are the example's own

    @abstractmethod
    def read(self, reading: Reading) -> Iterator[ExampleT]:
        """Read rows lazily as examples; refuse missing columns before the first row; set `reading.labels`."""

    @abstractmethod
    def features(self, examples: Sequence[ExampleT], tokenizer: Tokenizer) -> list[FeatureT]:
        """Tokenize examples; a feature has a label if its example has one. Those of an example are consecutive."""

    @abstractmethod
    def predict(self, model: Runner, examples: Sequence[ExampleT], features: Sequence[FeatureT]) -> list[PredictionT]:
        """Run the model on the features, and return a prediction for each example."""

    @abstractmethod
    def row(self, example: ExampleT, prediction: PredictionT) -> Row:
        """Return the line that `predict` writes for an example, without `truncated`."""

    def verdict(self, example: ExampleT, prediction: PredictionT) -> Verdict:
        """Return the prediction for readers."""
        row = self.row(example, prediction)
        return Verdict(", ".join(f"{name} {value}" for name, value in row.items() if name != "id"))

    def extra_files(self) -> Sequence[ExtraFile[ExampleT, PredictionT]]:
        """Return the further files that `predict` writes."""
        return ()

    def alternatives(self, prediction: PredictionT, num_alternatives: int) -> list[Row]:
        """Return the best answers to a question, the best first; none for other tasks."""
        return []

    def faults(self, predictions: Sequence[PredictionT]) -> dict[str, int]:
        """Return what is wrong with some predictions, as the end of a warning, "3 of 7 texts ...", and with how many."""
        return {}

    def truncated(self, num_truncated: int, num_examples: int, num_targets: int = 0) -> str:
        """Return the warning about truncated examples, of which `num_targets` have a truncated target."""
        config, windows = self.config, " or set task.long_texts=mean" if self.head == "sequence" else ""
        limit = f"task.max_seq_length={config.max_seq_length}"
        limit = limit if config.spans is None else f"task.spans.max_query_length={config.spans.max_query_length}"
        return f"{num_truncated:,} of {num_examples:,} examples were truncated by {limit}; raise it{windows}"

    @property
    def needs_pair(self) -> bool:
        """Whether every example needs two texts."""
        return self.config.needs_pair

    @property
    def has_words(self) -> bool:
        """Whether a file may hold words with tags."""
        return "conll" in self.formats

    def num_choices(self, examples: Sequence[ExampleT]) -> int:
        """Return the number of consecutive features that form one item; refuse wrong examples."""
        return 1

    def input_columns(self) -> list[Column]:
        """Return the columns of an input."""
        columns: dict[str, Column] = vars(self.config.columns)
        return [columns[name] for name in self.text_columns if self.config.takes_pairs or name != "text_pair"]

    def page_inputs(self) -> list[object]:
        """Return examples of inputs, for the server's page."""
        if self.needs_pair:
            return [["The company sold the ship in May.", "In May the ship was sold by the company."]]
        return ["A warm and funny film that I would gladly see again.", "It was too long, and nothing in it was new."]

    def columns_filled_by(self, value: str | tuple[str, ...] | list[str]) -> Sequence[str]:
        """Return the columns that an input from Python fills, which is not a row."""
        return self.text_columns if isinstance(value, tuple) or self.needs_pair else self.text_columns[:1]

    def file_format(self, ending: str) -> str | None:
        """Return the format of a file with labels: the one that is set, or that of the ending; None if it is unknown."""
        return ENDINGS.get(ending) if self.config.format == "auto" else self.config.format

    def input_format(self, ending: str) -> str | None:
        """Return the format of an input by its ending; None if the ending says nothing."""
        return ENDINGS.get(ending)

    def short_rows(self) -> ShortRows:
        """Return how rows of an input with too few cells are treated."""
        return FilledRows()

    def for_heads(self, heads: Collection[str]) -> AnyTask:
        """Return the task for a model with these heads."""
        return self

    def for_format(self, format: str) -> AnyTask:
        """Return the task that reads an input of this format."""
        return self

    def for_columns(self, names: Sequence[str]) -> AnyTask:
        """Return the task that reads an input with these columns."""
        return self

    @abstractmethod
    def with_logits(self) -> AnyLogitsTask:
        """Return the task, if it has logits for a whole input; raises InputError if not."""

    def changed(self, **settings: Any) -> Self:
        """Return a copy with changed settings."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, **settings))

    def each_feature(self, examples: Sequence[ExampleT], tokenizer: Tokenizer) -> Iterator[FeatureT]:
        """Turn all examples into features, `TOKENIZED_AT_ONCE` at a time."""
        if examples:
            self.num_choices(examples)  # refuses a wrong example before any tokenizing
        for start in range(0, len(examples), TOKENIZED_AT_ONCE):
            for feature in self.features(examples[start : start + TOKENIZED_AT_ONCE], tokenizer):
                yield feature if start == 0 else feature.of_example(feature.example + start)

    def rows(
        self, examples: Sequence[ExampleT], features: Sequence[FeatureT], predictions: Sequence[PredictionT]
    ) -> list[Row]:
        """Return the row of each example; `truncated` says whether a part of it is in no feature."""
        truncated = {feature.example for feature in features if feature.num_cut}
        pairs = zip(examples, predictions, strict=True)
        return [{**rounded(self.row(*pair)), "truncated": number in truncated} for number, pair in enumerate(pairs)]


class LogitsTask(Task[ExampleT, FeatureT, PredictionT]):
    """A task whose model has logits for each feature."""

    def with_logits(self) -> Self:
        """Return the task."""
        return self

    def logits_of(
        self, examples: Sequence[ExampleT], features: Sequence[FeatureT], logits: Sequence[Logits]
    ) -> list[Logits]:
        """Return the logits of each example; of each feature, if there are logits for each token."""
        return list(logits)

    def stacked(self, logits: Sequence[Logits]) -> Sequence[Logits] | NDArray[np.float32]:
        """Return the logits of examples as one array, (n, C), without labels (n, 1); as they are, if there are logits for each token."""
        return np.stack(logits).astype(np.float32) if logits else np.zeros((0, len(self.labels) or 1), np.float32)


AnyTask = Task[Any, Any, Any]
AnyLogitsTask = LogitsTask[Any, Any, Any]
