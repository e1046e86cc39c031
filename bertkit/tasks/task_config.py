"""Settings of a task: its files and their format, its labels, metrics and published recipe.

`conf/task/` has a file for each benchmark.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from bertkit.base import plugins
from bertkit.base.errors import user_name
from bertkit.base.intervals import MAX_INT32, Count, Interval, Positive, Real, Share, ShareBelow1, Size
from bertkit.base.text_files import control_character, is_text_encoding
from bertkit.base.typed_settings import IF_SET, refuse, unused
from bertkit.model.bert_config import BertShape, ProblemType

Column = str | Annotated[int, Interval(-MAX_INT32, MAX_INT32)] | tuple[str, ...] | None


def names_of(column: Column) -> tuple[str, ...]:
    """Return the names that a column may have; none if the setting is a number."""
    match column:
        case str():
            return (column,)
        case tuple():
            return column
    return ()


def first_name(column: Column) -> str:
    """Return the first name that a column may have, or its number."""
    return str(next(iter(names_of(column)), column))


def number_of(column: Column, usual: int) -> int:
    """Return the number of a column, the usual one if the setting is none; names are for tables."""
    return column if isinstance(column, int) else usual


def must_exist(column: Column) -> bool:
    """Whether a table must have the column: of a list of names, it may have none."""
    return isinstance(column, (str, int))


# usual column names in datasets: for lists of words, their tags, running text, and its entities
WORDS, TAGS, TEXTS = ("tokens", "words"), ("tags", "ner_tags", "ner", "pos_tags"), ("text", "sentence")
ENTITIES = (
    "label",
    "labels",
    "entities",
    "spans",
    "ents",
)  # of Doccano, of users and spaCy, of Prodigy, of spaCy's Doc.to_json

# the module with each kind of task, which registers it with the decorator for plug-ins; imported on first use
KINDS = {
    "sequence": "bertkit.tasks.label_kinds",
    "tagging": "bertkit.tasks.tagging",
    "spans": "bertkit.tasks.spans.task",
    "choice": "bertkit.tasks.choice",
    "generation": "bertkit.tasks.generation",
    "minimal_pairs": "bertkit.tasks.minimal_pairs",
}

OWN_SETTINGS = ("tagging", "spans", "generation")  # kinds with a group of settings of their own


@dataclass(frozen=True)
class FilesConfig:
    """The files of each split: names or patterns, tried in order, in `data_dir` and in the task's folder below it."""

    train: str | tuple[str, ...]
    dev: str | tuple[str, ...]
    test: str | tuple[str, ...]
    dev_mismatched: str | tuple[str, ...]
    test_mismatched: str | tuple[str, ...]


def unused_hub(explicit_keys: Sequence[str], data_dir: str | None) -> list[str]:
    """List the settings of a dataset of the hub that the user set although the files in `data_dir` are read."""
    keys = [key for key in explicit_keys if key.startswith("task.hub") and data_dir is not None]
    return [
        f"{key}: has no effect with data_dir={data_dir}, whose files are read; leave one of them out" for key in keys
    ]


@dataclass(frozen=True)
class HubConfig:
    """A dataset of the Hugging Face hub and the names of its splits; used if `data_dir` is not set."""

    path: str | None
    name: str | None
    revision: str | None
    train: str | None
    dev: str | None
    test: str | None
    dev_mismatched: str | None
    test_mismatched: str | None


@dataclass(frozen=True)
class ColumnsConfig:
    """The columns, each a name or a number (0 is the first, -1 the last). The names in a list are tried in order.

    A column with a single name must exist. With a list, `id`, `text_pair`, `ending_start` and `answers` may be missing.
    """

    id: Column  # the example's id; without it, examples are numbered
    text: Column  # sequence: the first segment
    text_pair: Column  # sequence: the second segment
    label: Column  # sequence: the label; choice: the number of the right ending
    words: Column  # tagging: the column of the words in CoNLL files; in other files a list of words
    tags: Column  # tagging: the tags, stored like the words
    question: Column  # spans: the question
    context: Column  # spans: the passage; choice: the first segment
    answers: Column  # spans: SQuAD's `[{text, answer_start}]`, or `{text: [], answer_start: []}`, or only the text
    endings: Column  # choice: the columns of the second segments, or one column with a list
    ending_start: Column  # choice: the common beginning of all endings
    source: Column = None  # generation: the input text
    target: Column = None  # generation: the output text


@dataclass(frozen=True)
class SpansConfig:
    """How a long context is cut into windows, and how an answer is chosen."""

    window_step: Size  # tokens from the start of a window to the start of the next one, Google's `doc_stride`
    max_query_length: Size  # tokens of a question; a longer question is truncated
    n_best: Annotated[int, Interval(1, 10_000)]  # the number of candidate answers
    max_answer_length: Size  # tokens of an answer
    null_score_diff_threshold: Real  # "no answer" is predicted if its score exceeds the best answer's by more
    is_always_answered: bool  # every question has an answer in its context (SQuAD 1.1)


@dataclass(frozen=True)
class TaggingConfig:
    """How long sentences and documents are cut into windows."""

    window_overlap: Count | None  # tokens in two consecutive windows, rounded to whole words; null: half a window


@dataclass(frozen=True)
class GenerationConfig:
    """The length of generated texts, the search for them, and label smoothing."""

    max_target_length: Annotated[int, Interval(2, 65535)]  # tokens of a text, including the final [SEP]
    num_beams: Annotated[int, Interval(1, 1000)]  # the width of beam search; no effect with sample=true
    # a text's score is the sum of its tokens' log probabilities / length ** length_penalty
    length_penalty: Annotated[float, Interval(-10, 10)]
    label_smoothing: ShareBelow1  # probability that is distributed over all tokens (Szegedy et al. 2016, section 7)
    num_candidates: Annotated[int, Interval(1, 1000)]  # texts that `predict` writes for each input
    sample: bool  # sample tokens by their probabilities, instead of beam search
    temperature: Annotated[float, Interval(1e-6, 1e6)]  # divides the logits before sampling
    top_k: Size | None  # sample from this many most probable tokens; null: from all
    # sample from the most probable tokens with this total probability; null: from all
    top_p: Annotated[float, Interval(0, 1, "(]")] | None

    def __post_init__(self) -> None:
        group, most, is_greedy = "task.generation.", self.num_beams, not self.sample
        why = "without task.generation.sample=true"
        refuse(
            self.num_candidates > most
            and is_greedy
            and f"{group}num_candidates={self.num_candidates}: expected 1 to {most}; lower it, or raise {group}num_beams",
            unused(self, group, ("temperature", is_greedy, why, 1), *((n, is_greedy, why) for n in ("top_k", "top_p"))),
        )


@dataclass(frozen=True)
class RecipeConfig:
    """The hyper-parameters of the publication."""

    batch_sequences: Size
    peak_learning_rate: Positive
    num_epochs: Size
    warmup_share: Share


@dataclass(frozen=True)
class TaskConfig:
    """A task and its dataset: a file of `conf/task/`, whose comments explain all fields, with changes from the command line."""

    name: str
    kind: str  # one of `KINDS`, or a plug-in
    folders: tuple[str, ...]  # possible names of the task's folder in `data_dir`
    files: FilesConfig
    format: Literal["auto", "tsv", "csv", "jsonl", "json", "parquet", "xlsx", "label_text", "conll", "conllu"]
    header: bool | None  # whether a table's first line names the columns; null: detected
    column_names: tuple[str, ...] | None  # the columns of a table without a header
    columns: ColumnsConfig
    needs_pair: bool  # whether the column of the second segment must exist
    labels: (
        Literal["auto", "regression"]
        | tuple[str, ...]
        | tuple[Annotated[int, Interval(-(2**63), 2**63 - 1)], ...]
        | None
    )
    labels_in_files: tuple[str, ...] | None  # the labels' names in the files if they differ, in the order of `labels`
    multi_label: bool  # whether an example may have several labels, or none
    label_separator: str  # separates several labels in a cell; JSON and parquet may have a list instead
    label_range: tuple[Real, ...] | None  # the smallest and largest label of a regression
    skip_labels: tuple[str, ...]  # rows with one of these labels are skipped and counted
    skip_short_rows: bool  # whether rows with too few cells are skipped and counted, instead of an error
    scheme: Literal["auto", "iob1", "iob2", "bioes", "none"]
    documents: bool  # whether examples are documents (`-DOCSTART-`, `# newdoc`) instead of sentences
    comment: str | None
    hub: HubConfig
    metrics: tuple[str, ...]
    best_metric: str  # selects the best checkpoint; larger is better
    max_seq_length: Annotated[int, Interval(8, MAX_INT32)]  # tokens, including [CLS] and [SEP]
    tagging: TaggingConfig | None  # null for other kinds
    spans: SpansConfig | None  # null for other kinds
    recipe: RecipeConfig
    generation: GenerationConfig | None = None  # null for other kinds
    long_texts: Literal["mean", "max"] | None = None  # of the logits of a long text's windows; null: long texts are cut
    separator: str = field(default="auto", metadata=IF_SET)  # of a table's cells; auto: from the format and the header
    encoding: str = field(default="utf-8", metadata=IF_SET)  # of text files; UTF-16 is detected by its byte order mark
    takes_pairs: bool = field(
        default=True, metadata=IF_SET
    )  # false: single texts; a second one is refused, not left out

    def __post_init__(self) -> None:
        names, columns = self.label_names, self.columns
        overlap = None if self.tagging is None else self.tagging.window_overlap
        room = self.max_seq_length - 2
        refuse(
            self.kind not in KINDS
            and plugins.find("task", self.kind) is None
            and f"task.kind={self.kind!r}: expected {' or '.join([*KINDS, *plugins.plugins_of('task')])}",
            len(set(names)) < len(names) and f"task.labels={list(names)}: duplicate label; remove one of the two",
            [
                f"task.labels: {name!r:.80} has the control character {code}; remove it"
                for name in names
                if (code := control_character(name))
            ],
            isinstance(self.labels, tuple)
            and len(self.labels) < 2
            and f"task.labels={list(self.labels)}: expected at least two labels, or auto, or regression",
            self.labels_in_files is not None
            and len(self.labels_in_files) != len(names)
            and f"task.labels_in_files={list(self.labels_in_files)}: expected one name for each of task.labels={list(names)}, "
            "or null if the files use these names",
            self.label_range is not None
            and (len(self.label_range) != 2 or self.label_range[0] >= self.label_range[1])
            and f"task.label_range={list(self.label_range)}: expected the smallest and the largest label",
            self.kind in ("sequence", "tagging")
            and self.labels is None
            and f"task.labels=null: expected a list, or auto, for kind={self.kind}",
            self.kind == "tagging"
            and self.is_regression
            and "task.labels=regression: tags have names; expected a list, or auto",
            self.multi_label
            and (self.kind != "sequence" or self.is_regression)
            and "task.multi_label=true: expected kind=sequence with labels by name; set it to false",
            self.separator != "auto"
            and len(self.separator) != 1
            and f"task.separator={self.separator!r}: expected one character, such as ';', or auto",
            not is_text_encoding(self.encoding)
            and f"task.encoding={self.encoding}: expected UTF-16, or an encoding with one byte for a line feed, such as cp1252",
            not self.label_separator and "task.label_separator='': expected a separator, such as ','",
            self.needs_pair
            and columns.text_pair is None
            and f"{user_name('task.columns.text_pair')}=null with task.needs_pair=true; name the column, or set needs_pair to false",
            self.needs_pair
            and not self.takes_pairs
            and "task.needs_pair=true: with task.takes_pairs=false there are no pairs; leave one of them out",
            self.kind in OWN_SETTINGS
            and vars(self)[self.kind] is None
            and f"task.{self.kind}=null: kind={self.kind} needs these settings; start from task={self.kind}",
            overlap is not None
            and overlap >= room
            and f"task.tagging.window_overlap={overlap}: expected 0 to {room - 1}, less than the {room} tokens of a window "
            f"(task.max_seq_length={self.max_seq_length})",
            self.long_texts is not None
            and (self.kind != "sequence" or self.needs_pair)
            and f"task.long_texts={self.long_texts}: only for classification and regression of single texts; set it to null",
        )

    @property
    def label_smoothing(self) -> float:
        """The probability that the loss of generated texts spreads over all tokens."""
        return 0.0 if self.generation is None else self.generation.label_smoothing

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers."""
        return self.labels == "regression"

    @property
    def problem_type(self) -> ProblemType | None:
        """What a sequence head predicts; None: one label."""
        if self.is_regression:
            return "regression"
        return "multi_label_classification" if self.multi_label else None

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the labels in the order of their numbers; none if they come from the data."""
        return tuple(map(str, self.labels)) if isinstance(self.labels, tuple) else ()

    def length_problems(self, model: BertShape) -> list[str]:
        """Return an error line for each length that exceeds the model's positions."""
        problems = model.too_long("task.max_seq_length", self.max_seq_length, "task.max_seq_length")
        if self.generation is not None:
            name = "task.generation.max_target_length"
            problems += model.too_long(name, self.generation.max_target_length, name)
        return problems


# settings of runs by earlier versions, with the values that changed nothing
RETIRED: dict[str, dict[str, Any]] = {
    "spans": {"window_overlap": None, "alignment": "offsets"},
    "tagging": {"label_all_pieces": False},
}


def without_retired(task: dict[str, Any]) -> dict[str, Any]:
    """Remove retired settings that changed nothing from a run's task; all others stay, and are refused by name."""
    kept = dict(task)
    for group, retired in RETIRED.items():
        if isinstance(task.get(group), dict):
            kept[group] = {k: v for k, v in task[group].items() if k not in retired or v != retired[k]}
    return kept
