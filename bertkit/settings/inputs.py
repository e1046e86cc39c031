"""The settings of the commands that apply a model to inputs: `predict`, `embed`, `view` and `search`."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from bertkit.base.intervals import MAX_INT32, Interval, NotNegative, Real, Size
from bertkit.base.text_files import is_blank
from bertkit.base.typed_settings import refuse, unused
from bertkit.settings.names import VERBATIM
from bertkit.tasks.task_config import TaskConfig

SQUAD_FILES = ("predictions.json", "nbest_predictions.json", "null_odds.json")  # written beside the output
VECTOR_ENDINGS = (".npy", ".parquet", ".jsonl")
PREDICT_ENDINGS = ("", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")  # without an ending: JSON lines
VIEW_ENDINGS = (".html", ".json", ".svg", ".png")
SET_BOTH = "layer= and head=: set both, for a picture of one head, or neither"
ORDERS = ("search", "bert", "both")
Passages = Annotated[int, Interval(1, 1_000_000)]


@dataclass(frozen=True, kw_only=True)
class InputSettings:
    """The settings that all commands with a model and inputs share."""

    model_dir: str | None
    input: str | None  # a file, or - for standard input
    output: str  # a file, or - for standard output
    overwrite: bool
    device: Literal["auto", "cpu", "cuda"]

    def input_problems(self, alternative: str | None = None) -> list[str]:
        """List problems with the input and the output; the setting `alternative` can replace the input."""
        problems = []
        if alternative is not None:
            is_set = getattr(self, alternative) is not None
            if self.input is None and not is_set:
                problems.append(f"missing value: set {alternative}=, or input=")
            if self.input is not None and is_set:
                problems.append(f"input= and {alternative}=: set one of the two")
        if self.output != "-" and self.output == self.input:
            problems.append(f"output={self.output} is the input; choose another file")
        return problems


@dataclass(frozen=True, kw_only=True)
class TextSettings(InputSettings):
    """The settings that `bertkit predict` and `bertkit view` share."""

    model_dir: str
    text: str | None = field(metadata=VERBATIM)  # one text, instead of an input
    text_pair: str | None = field(metadata=VERBATIM)  # the second text of a pair
    task: TaskConfig | None
    task_changes: dict[str, Any]  # changes to the model's own task, which is used if `task` is None
    format: (
        Literal["text", "words", "tsv", "csv", "jsonl", "json", "squad", "conll", "conllu", "parquet", "label_text"]
        | None
    )

    def text_problems(self) -> list[str]:
        """List problems with the text, the input and the output."""
        return self.input_problems("text") + unused(
            self,
            "",
            ("text_pair", self.text is None, "without text=; for a file of pairs, set input="),
            ("format", self.text is not None, "with text="),
        )


@dataclass(frozen=True, kw_only=True)
class PredictSettings(TextSettings):
    """`bertkit predict`."""

    carry_input: bool  # whether each prediction is preceded by the fields of its input row
    top_k: Size
    precision: Literal["fp32", "bf16", "fp16"]
    kernels: Literal["auto", "plain"]

    def __post_init__(self) -> None:
        refuse(
            self.text_problems(),
            unused(self, "", ("carry_input", self.text is not None, "with text=")),
            Path(self.output).suffix.lower() not in PREDICT_ENDINGS
            and f"output={self.output}: expected a name that ends in {', '.join(PREDICT_ENDINGS[1:])}, or - for JSON lines",
            self.output.split("/")[-1] in SQUAD_FILES
            and f"output={self.output}: predict writes SQuAD's file under this name; choose another name, such as mine.jsonl",
        )


@dataclass(frozen=True, kw_only=True)
class ViewSettings(TextSettings):
    """`bertkit view`."""

    positions: bool  # show the model's positions instead of an input
    row: Size  # the number of the example to show, from 1
    # the prediction to explain; None for the model's prediction
    target: str | Annotated[int, Interval(-MAX_INT32, MAX_INT32)] | None
    # of integrated gradients; None to choose the number automatically, 0 for no attributions
    # limited because the quadrature points are the roots of a polynomial of degree `steps`
    steps: Annotated[int, Interval(0, 100_000)] | None
    layer: Size | None  # the layer to draw in a picture of one head, from 1
    head: Size | None  # the head to draw in such a picture, from 1
    target_text: str | None = field(metadata=VERBATIM)  # of an encoder-decoder; None for the generated text

    @property
    def ending(self) -> str:
        """The ending of the output file, one of `VIEW_ENDINGS`."""
        return Path(self.output).suffix.lower()

    def __post_init__(self) -> None:
        is_page = self.ending in (".html", ".json") and not self.positions
        endings = VIEW_ENDINGS[:2] if self.positions else VIEW_ENDINGS
        own = {each.name for each in fields(self)} - {"model_dir", "output", "overwrite", "device", "positions", "row"}
        refuse(
            [] if self.positions else self.text_problems(),
            unused(
                self,
                "",
                *((name, self.positions, "with positions=true", {}) for name in sorted(own)),
                ("row", self.input is None, "without input=", 1),
                ("target", self.steps == 0, "with steps=0"),
                ("layer", is_page, f"on {self.ending}, which shows all heads"),
                ("head", is_page, f"on {self.ending}, which shows all heads"),
            ),
            self.ending not in endings and f"output={self.output}: expected a name that ends in {', '.join(endings)}",
            self.layer is None and self.head is not None and SET_BOTH,
        )


@dataclass(frozen=True, kw_only=True)
class EmbedSettings(InputSettings):
    """`bertkit embed`."""

    model_dir: str
    input: str
    pooling: Literal["mean", "cls", "max"] | None
    normalize: bool | None
    text_column: str | Annotated[int, Interval(-MAX_INT32, MAX_INT32)] | None
    format: Literal["text", "csv", "tsv", "jsonl", "json", "parquet"] | None
    max_seq_length: Annotated[int, Interval(3, MAX_INT32)] | None
    batch_tokens: Size | None
    precision: Literal["fp32", "bf16", "fp16"]

    def __post_init__(self) -> None:
        refuse(
            self.input_problems(),
            self.output != "-"
            and not self.output.endswith(VECTOR_ENDINGS)
            and f"output={self.output}: expected a name that ends in {', '.join(VECTOR_ENDINGS)}, or - for JSON lines",
            unused(self, "", ("text_column", self.format == "text", "with format=text")),
        )


@dataclass(frozen=True)
class BothConfig:
    """The weights of `order=both`: softmax(search * BM25) * sigmoid(bert * score of the reader + bias)."""

    search: NotNegative
    bert: NotNegative
    bias: Real


@dataclass(frozen=True, kw_only=True)
class SearchSettings(InputSettings):
    """`bertkit search`."""

    index: str
    question: str | None = field(metadata=VERBATIM)  # one question, instead of an input
    order: Literal["search", "bert", "both", "all"] | None  # how passages are ranked; "all" for each order separately
    top_k: Passages
    candidates: Passages  # number of passages, the best by BM25, that the reader (the question answering model) reads
    both: BothConfig
    fit: bool  # whether to fit `both` to the labels of the input
    glossary: str | None  # a TSV file; each row has a word or more, and words to add to a question that contains them
    translate: str | None  # a translation model; its translation of a question adds words, too
    max_questions: Passages | None
    task: TaskConfig | None
    task_changes: dict[str, Any]  # changes to the model's own task, which is used if `task` is None
    precision: Literal["fp32", "bf16", "fp16"]
    kernels: Literal["auto", "plain"]

    @property
    def orders(self) -> tuple[str, ...]:
        """The orders to rank by; by default, the best one for a single question, and all possible ones for an input."""
        order = self.order or ("search" if self.model_dir is None else "both" if self.question is not None else "all")
        return ORDERS if order == "all" else (order,)

    def __post_init__(self) -> None:
        has_question, has_reader = self.question is not None, self.model_dir is not None
        refuse(
            self.input_problems("question"),
            self.question is not None and is_blank(self.question) and "question= is blank; expected a question",
            self.order == "all"
            and has_question
            and "order=all: has no effect with question=; choose search, bert or both",
            not has_reader
            and self.order not in (None, "search")
            and f"order={self.order}: needs a reader; set model_dir= to a model fine-tuned on questions",
            unused(
                self,
                "",
                ("fit", has_question, "with question="),
                ("max_questions", has_question, "with question="),
                ("fit", not has_reader, "without model_dir="),
                ("task", not has_reader, "without model_dir="),
                ("task_changes", not has_reader, "without model_dir=", {}),
                ("fit", has_reader and "both" not in self.orders, f"with order={self.order}"),
            ),
        )
