"""Settings of a task: its files and their format, its labels, metrics and published recipe.

`conf/task/` has a file for each benchmark.
"""

from dataclasses import dataclass
from typing import Any, Literal

from bertkit.base import plugins
from bertkit.base.typed_settings import outside, refuse, unused

Column = str | int | tuple[str, ...] | None
WORDS, TEXTS = ("tokens", "words"), ("text", "sentence")  # names in datasets: lists of words, running text to be tagged

# kind of task -> the module of its SHAPE, imported on first use
SHAPES = {
    "sequence": "bertkit.tasks.sequence",
    "tagging": "bertkit.tasks.tagging",
    "spans": "bertkit.tasks.spans.shape",
    "choice": "bertkit.tasks.choice",
    "generation": "bertkit.tasks.generation",
}


@dataclass(frozen=True)
class FilesConfig:
    """The files of each split: names or patterns, tried in order, below `data_dir` or the task's folder in it."""

    train: str | tuple[str, ...]
    dev: str | tuple[str, ...]
    test: str | tuple[str, ...]
    dev_mismatched: str | tuple[str, ...]
    test_mismatched: str | tuple[str, ...]


@dataclass(frozen=True)
class HubConfig:
    """A dataset of the Hugging Face hub, and its names of the splits; read where there is no `data_dir`."""

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
    """The columns: a header's name, or a number from 0 (-1 is the last); the names in a list are tried in order.

    A column must exist, except `id`, `text_pair`, `ending_start` or `answers` with a list.
    """

    id: Column  # of the example; without one, examples are numbered
    text: Column  # the first segment of a sequence
    text_pair: Column  # the second segment of a sequence
    label: Column  # of a sequence; the number of the right ending of a choice
    words: Column  # of a sentence: their column in CoNLL files, else a list
    tags: Column  # of the words, likewise
    question: Column  # of a span
    context: Column  # of a span; the first segment of a choice
    answers: Column  # SQuAD's `[{text, answer_start}]`, `{text: [], answer_start: []}`, or the text alone
    endings: Column  # the columns of the second segments of a choice, or one column with a list
    ending_start: Column  # the common beginning of all endings
    source: Column = None  # the input text of a generation
    target: Column = None  # the output text of a generation


@dataclass(frozen=True)
class SpansConfig:
    """How a long context is cut into windows, and how an answer is chosen."""

    window_step: int  # tokens from the start of a window to the start of the next one, Google's `doc_stride`
    max_query_length: int  # pieces of a question; longer ones are cut
    n_best: int  # candidates
    max_answer_length: int  # tokens
    null_score_diff_threshold: float  # "no answer" is predicted if its score exceeds the best answer's by more
    is_always_answered: bool  # every question has an answer in its context (SQuAD 1.1)

    def __post_init__(self) -> None:
        refuse(
            outside(self, "task.spans.", window_step="[1, inf)", max_query_length="[1, inf)"),
            outside(self, "task.spans.", n_best="[1, inf)", max_answer_length="[1, inf)"),
        )


@dataclass(frozen=True)
class TaggingConfig:
    """How long sentences and documents are cut into windows."""

    window_overlap: int | None  # pieces shared by neighbours, rounded down to whole words; null: half a window


@dataclass(frozen=True)
class GenerationConfig:
    """The length of generated texts, the search for them, and label smoothing."""

    max_target_length: int  # tokens of a text, with the last one, [SEP]
    num_beams: int  # of beam search; without effect with sample=true
    length_penalty: float  # the score of a text is the sum of its log probabilities / length ** length_penalty
    label_smoothing: float  # the share of each label that all tokens share equally (Szegedy et al. 2016, section 7)
    num_candidates: int  # texts for each input of `predict`
    sample: bool  # draw tokens by their probabilities, instead of beam search
    temperature: float  # divides the logits before tokens are drawn
    top_k: int | None  # draw from this number of most probable tokens; null: from all
    top_p: float | None  # draw from the most probable tokens with this total probability; null: from all

    def __post_init__(self) -> None:
        group, most, is_greedy = "task.generation.", max(1, self.num_beams), not self.sample
        why = "without task.generation.sample=true"
        refuse(
            outside(self, group, max_target_length="[2, inf)", num_beams="[1, inf)", num_candidates="[1, inf)"),
            outside(self, group, top_k="[1, inf)", label_smoothing="[0, 1)", length_penalty="[-10, 10]"),
            outside(self, group, temperature="(0, inf)", top_p="(0, 1]"),
            self.num_candidates > most
            and is_greedy
            and f"{group}num_candidates={self.num_candidates}: expected 1 to {most}, at most {group}num_beams; change one "
            "of them",
            unused(self, group, ("temperature", is_greedy, why, 1), *((n, is_greedy, why) for n in ("top_k", "top_p"))),
        )


@dataclass(frozen=True)
class RecipeConfig:
    """The published hyper-parameters."""

    batch_sequences: int
    peak_learning_rate: float
    num_epochs: int
    warmup_share: float


@dataclass(frozen=True)
class TaskConfig:
    """A dataset: a file of `conf/task/`, with changes from the command line."""

    name: str
    kind: str  # the shape, one of `SHAPES`
    folders: tuple[str, ...]  # possible names of the folder below `data_dir`
    files: FilesConfig
    format: Literal["auto", "tsv", "csv", "jsonl", "json", "parquet", "label_text", "conll", "conllu"]
    header: bool | None  # whether tables begin with a line of column names; null: detected
    column_names: tuple[str, ...] | None  # of tables without such a line
    columns: ColumnsConfig
    needs_pair: bool  # the column of the second segment must exist
    # names in the order of their numbers; auto: from the training file; regression: numbers
    labels: Literal["auto", "regression"] | tuple[str, ...] | tuple[int, ...] | None
    labels_in_files: tuple[str, ...] | None  # other names in the files, in the order of the labels
    multi_label: bool  # an example has any number of labels
    label_separator: str  # between several labels in a text, such as a table's cell; JSON and parquet may have a list
    label_range: tuple[float, ...] | None  # smallest and largest label of a regression
    skip_labels: tuple[str, ...]  # rows with such a label are left out and counted
    skip_short_rows: bool  # rows with too few cells are left out and counted, not refused
    # how tags in the files mark chunks; they are converted to IOB2. auto: detected; none: tags are labels
    scheme: Literal["auto", "iob1", "iob2", "bioes", "none"]
    documents: bool  # examples are documents (`-DOCSTART-`, `# newdoc`) instead of sentences
    comment: str | None  # begins comments in CoNLL files; null: none, but `#` where words are not in column 0
    hub: HubConfig
    metrics: tuple[str, ...]
    best_metric: str  # chooses the best checkpoint; the larger, the better
    max_seq_length: int  # tokens, with the special ones
    tagging: TaggingConfig | None  # windows of words; null for other shapes
    spans: SpansConfig | None  # windows and answers; null for other shapes
    recipe: RecipeConfig  # published hyper-parameters
    generation: GenerationConfig | None = None  # lengths and search of texts that are made; null for other shapes

    def __post_init__(self) -> None:
        names, columns = self.label_names, self.columns
        overlap = None if self.tagging is None else self.tagging.window_overlap
        room = self.max_seq_length - 2
        refuse(
            self.kind not in SHAPES
            and plugins.find("shape", self.kind) is None
            and f"task.kind={self.kind!r}: expected {' or '.join([*SHAPES, *plugins.names_of('shape')])}",
            names is not None
            and len(set(names)) < len(names)
            and f"task.labels={list(names)}: duplicate label; leave one of them out",
            isinstance(self.labels, tuple)
            and len(self.labels) < 2
            and f"task.labels={list(self.labels)}: expected at least two, or auto, or regression",
            self.labels_in_files is not None
            and len(self.labels_in_files) != len(names or ())
            and f"task.labels_in_files={list(self.labels_in_files)}: expected one for each of task.labels={list(names or ())}, "
            "or null if the files have the names",
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
            not self.label_separator and "task.label_separator='': expected a separator, such as ','",
            self.needs_pair
            and columns.text_pair is None
            and "task.columns.text_pair=null with task.needs_pair=true; name the column, or set needs_pair to false",
            getattr(self, self.kind, self) is None  # a shape with settings of its own
            and f"task.{self.kind}=null: expected its settings for kind={self.kind}; begin with task={self.kind}",
            overlap is not None
            and not 0 <= overlap < room
            and f"task.tagging.window_overlap={overlap}: expected 0 to {room - 1}, less than the {room} pieces of a window "
            f"(task.max_seq_length={self.max_seq_length})",
            outside(self, "task.", max_seq_length="[8, inf)"),
        )

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers."""
        return self.labels == "regression"

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """The names of the labels in the order of their numbers; None where they come from the data."""
        return tuple(map(str, self.labels)) if isinstance(self.labels, tuple) else None


# settings in runs of earlier versions, and the values without effect
RETIRED: dict[str, dict[str, Any]] = {
    "spans": {"window_overlap": None, "alignment": "offsets"},
    "tagging": {"label_all_pieces": False},
}


def without_retired(task: dict[str, Any]) -> dict[str, Any]:
    """Remove retired settings without effect from a run's task; others stay, and are refused by name."""
    kept = dict(task)
    for group, retired in RETIRED.items():
        if isinstance(task.get(group), dict):
            kept[group] = {k: v for k, v in task[group].items() if k not in retired or v != retired[k]}
    return kept
