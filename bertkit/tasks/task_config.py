"""Settings of a task: where its examples are, how its files are written, its labels, metrics and published recipe.

The facts of each benchmark stand in `conf/task/`. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from bertkit.base.typed_settings import outside, refuse, unused

Column = str | int | tuple[str, ...] | None
WORDS, TEXTS = (
    ("tokens", "words"),
    ("text", "sentence"),
)  # what data sets call lists of words, and running text to be tagged

# the kinds of tasks -> where each has its SHAPE; imported when it is asked for
SHAPES = {
    "sequence": "bertkit.tasks.sequence",
    "tagging": "bertkit.tasks.tagging",
    "spans": "bertkit.tasks.spans.shape",
    "choice": "bertkit.tasks.choice",
    "generation": "bertkit.tasks.generation",
}


@dataclass(frozen=True)
class FilesConfig:
    """The files of each split: names or patterns, tried in their order, below `data_dir` or the task's folder in it."""

    train: str | tuple[str, ...]
    dev: str | tuple[str, ...]
    test: str | tuple[str, ...]
    dev_mismatched: str | tuple[str, ...]
    test_mismatched: str | tuple[str, ...]


@dataclass(frozen=True)
class HubConfig:
    """A dataset of the Hugging Face hub, and what it calls the splits; read where there is no `data_dir`."""

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
    """Which column holds what: a header's name, or a number from 0 (-1 is the last); a list is tried in its order.

    One name or number must be there. Of a list for `id`, `text_pair`, `ending_start` or `answers`, none need be.
    """

    id: Column  # of the example; without one, examples are numbered
    text: Column  # the first segment of a sequence
    text_pair: Column  # its second segment
    label: Column  # of a sequence; the number of the right ending of a choice
    words: Column  # the words of a sentence: their column in CoNLL files, a list of them in others
    tags: Column  # the same for their tags
    question: Column  # of a span
    context: Column  # where its answer is looked for; the first segment of a choice
    answers: Column  # SQuAD's `[{text, answer_start}]`, `{text: [], answer_start: []}`, or the text alone
    endings: Column  # the columns of the second segments of a choice, or one column that holds a list
    ending_start: Column  # what every ending begins with
    source: Column = None  # the text that another is made of
    target: Column = None  # the text that is made


@dataclass(frozen=True)
class SpansConfig:
    """How a long context is cut into windows, and how an answer is chosen."""

    window_step: int  # tokens from the start of a window to the start of the next, Google's `doc_stride`
    max_query_length: int  # pieces of a question that are kept
    n_best: int  # candidates that are kept
    max_answer_length: int  # tokens of an answer
    null_score_diff_threshold: float  # "no answer" is predicted when it scores higher than the best answer by more
    is_always_answered: bool  # every question has an answer in its context (SQuAD 1.1)

    def __post_init__(self) -> None:
        refuse(
            outside(self, "task.spans.", window_step="[1, inf)", max_query_length="[1, inf)"),
            outside(self, "task.spans.", n_best="[1, inf)", max_answer_length="[1, inf)"),
        )


@dataclass(frozen=True)
class TaggingConfig:
    """How long sentences and documents become windows."""

    window_overlap: int | None  # pieces that neighbours share, rounded down to whole words; null: half a window


@dataclass(frozen=True)
class GenerationConfig:
    """How long the texts are that are made, how they are searched for, and what training does to their labels."""

    max_target_length: int  # tokens of a text, with the one that ends it
    num_beams: int  # beginnings that the search keeps; without effect where tokens are drawn
    length_penalty: float  # the score of a text is the sum of its log probabilities / length ** length_penalty
    label_smoothing: float  # the share of each label that goes to all tokens alike (Szegedy et al. 2016, section 7)
    num_candidates: int  # texts that `predict` gives of each input
    sample: bool  # tokens are drawn by their probabilities, instead of the most probable ones taken
    temperature: float  # what logits are divided by before tokens are drawn
    top_k: int | None  # only so many tokens, the most probable ones, are drawn from; null: all
    top_p: float | None  # only the fewest tokens that have this probability together are drawn from; null: all

    def __post_init__(self) -> None:
        group, most, greedy = "task.generation.", max(1, self.num_beams), "without task.generation.sample=true"
        refuse(
            outside(
                self,
                group,
                max_target_length="[2, inf)",
                num_beams="[1, inf)",
                num_candidates="[1, inf)",
                top_k="[1, inf)",
            ),
            outside(
                self,
                group,
                label_smoothing="[0, 1)",
                length_penalty="[-10, 10]",
                temperature="(0, inf)",
                top_p="(0, 1]",
            ),
            self.num_candidates > most
            and not self.sample
            and f"{group}num_candidates={self.num_candidates}: expected 1 to {most}, at most {group}num_beams; change one of "
            "the two",
            unused(
                self,
                group,
                ("temperature", not self.sample, greedy, 1),
                ("top_k", not self.sample, greedy),
                ("top_p", not self.sample, greedy),
            ),
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
    """One data set: a file of `conf/task/`, with what the command line changes."""

    name: str  # of the task
    kind: str  # its shape, one of `SHAPES`
    folders: tuple[str, ...]  # what the folder below `data_dir` may be called
    files: FilesConfig  # of each split
    format: Literal["auto", "tsv", "csv", "jsonl", "json", "parquet", "label_text", "conll", "conllu"]  # of the files
    header: bool | None  # whether tables begin with a line of column names; null: if they hold those asked for
    column_names: tuple[str, ...] | None  # of tables without such a line
    columns: ColumnsConfig  # which column holds what
    needs_pair: bool  # a file without the column of the second segment is refused; else a text may stand alone
    # names in the order of their numbers; auto: those of the training file; regression: numbers
    labels: Literal["auto", "regression"] | tuple[str, ...] | tuple[int, ...] | None
    labels_in_files: tuple[str, ...] | None  # what the files hold for each name; null: the names. Either is read
    multi_label: bool  # several labels of an example may hold at once, or none of them
    label_separator: str  # what parts them in a text, such as a table's cell; JSON and parquet may have a list
    label_range: tuple[float, ...] | None  # smallest and largest label of a regression
    skip_labels: tuple[str, ...]  # rows with such a label are left out and counted
    skip_short_rows: bool  # rows with too few cells are left out and counted, not refused
    # how tags mark chunks; auto: detected. Whatever it is, the examples have IOB2. none: tags are labels
    scheme: Literal["auto", "iob1", "iob2", "bioes", "none"]
    documents: bool  # examples are documents (`-DOCSTART-`, `# newdoc`) instead of sentences
    comment: str | None  # lines of CoNLL files that begin so are no words; null: none, `#` where words are not column 0
    hub: HubConfig  # the data set on the hub
    metrics: tuple[str, ...]  # what is measured
    best_metric: str  # what chooses the best checkpoint; the larger, the better
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
            self.kind not in SHAPES and f"task.kind={self.kind!r}: expected {' or '.join(SHAPES)}",
            names is not None
            and len(set(names)) < len(names)
            and f"task.labels={list(names)}: a label is there twice; leave one of them out",
            isinstance(self.labels, tuple)
            and len(self.labels) < 2
            and f"task.labels={list(self.labels)}: expected at least two, or auto, or regression",
            self.labels_in_files is not None
            and len(self.labels_in_files) != len(names or ())
            and f"task.labels_in_files={list(self.labels_in_files)}: expected one for each of task.labels={list(names or ())}, "
            "or null if the files hold the names",
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
            not self.label_separator and "task.label_separator='': expected a text that parts labels, such as ','",
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
        """The names of the labels in the order of their numbers; None where only the data knows them."""
        return tuple(map(str, self.labels)) if isinstance(self.labels, tuple) else None


# settings that runs of earlier versions have, and the values at which they change nothing
RETIRED: dict[str, dict[str, Any]] = {
    "spans": {"window_overlap": None, "alignment": "offsets"},
    "tagging": {"label_all_pieces": False},
}


def without_retired(task: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a run's task what later versions do not have; what it changed stays, and is refused by name."""
    kept = dict(task)
    for group, retired in RETIRED.items():
        if isinstance(task.get(group), dict):
            kept[group] = {k: v for k, v in task[group].items() if k not in retired or v != retired[k]}
    return kept
