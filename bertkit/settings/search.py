"""The settings of `bertkit search`."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from bertkit.base.intervals import Interval, NotNegative, Real
from bertkit.base.text_files import JsonObject, is_blank
from bertkit.base.typed_settings import refuse, unused
from bertkit.settings.command import VERBATIM, Command
from bertkit.settings.inputs import CHECK, InputSettings
from bertkit.tasks.task_config import TaskConfig

Passages = Annotated[int, Interval(1, 1_000_000)]


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
    where: tuple[str, ...]  # conditions on the documents' columns, such as lang=de; a document must fulfil all of them
    question: str | None = field(metadata=VERBATIM)  # one question, instead of an input
    # how passages are ranked; "all" for each order separately
    order: Literal["search", "vectors", "hybrid", "bert", "both", "all"] | None
    encoder: str | None  # the model that made the library's vectors; None for the place where it was
    top_k: Passages
    candidates: Passages  # number of passages, the best by BM25, that the reader (the question answering model) reads
    both: BothConfig
    fit: bool  # whether to fit `both` to the labels of the input
    glossary: str | None  # a TSV file; each row has a word or more, and words to add to a question that contains them
    translate: str | None  # a translation model; its translation of a question adds words, too
    max_questions: Passages | None
    task: TaskConfig | None
    task_changes: JsonObject  # changes to the model's own task, which is used if `task` is None
    precision: Literal["fp32", "bf16", "fp16"]
    kernels: Literal["auto", "plain"]

    @property
    def num_candidates(self) -> int:
        """The number of passages to find for a question."""
        return max(self.top_k, self.candidates)

    def __post_init__(self) -> None:
        has_question, has_reader = self.question is not None, self.model_dir is not None
        refuse(
            self.missing_input("question", self.question),
            self.overwritten_input,
            self.question is not None and is_blank(self.question) and "question= is blank; expected a question",
            [
                f"where={condition}: expected a column and its value, such as where=lang=de"
                for condition in self.where
                if "=" not in condition
            ],
            self.order == "all" and has_question and "order=all: has no effect with question=; choose one order",
            not has_reader
            and self.order in ("bert", "both")
            and f"order={self.order}: needs a reader; set model_dir= to a model fine-tuned on questions",
            unused(
                self,
                "",
                ("fit", has_question, "with question="),
                ("max_questions", has_question, "with question="),
                ("fit", not has_reader, "without model_dir="),
                ("task", not has_reader, "without model_dir="),
                ("task_changes", not has_reader, "without model_dir=", {}),
                ("fit", self.order not in (None, "all", "both"), f"with order={self.order}"),
                ("encoder", self.order == "search", "with order=search"),
            ),
        )


COMMAND = Command(
    "search",
    SearchSettings,
    stage="bertkit.stages.search",
    needs="a library, a question-answering model and questions",
    gives="passages with answers, and metrics",
    positions=("index", "question"),
    rows={"input": "input"},
    returns="values",
    check=CHECK,
)
