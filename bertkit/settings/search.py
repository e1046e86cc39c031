"""The settings of `bertkit search`."""

from dataclasses import dataclass, field
from typing import Any, Literal

from bertkit.base.typed_settings import outside, refuse, unused
from bertkit.settings.names import VERBATIM
from bertkit.settings.predict import InputSettings
from bertkit.tasks.task_config import TaskConfig

ORDERS = ("search", "bert", "both")


@dataclass(frozen=True)
class BothConfig:
    """The weights of `order=both`: softmax(search * BM25) * sigmoid(bert * score of the reader + bias)."""

    search: float
    bert: float
    bias: float

    def __post_init__(self) -> None:
        wrong = outside(self, "both.", search="[0, inf)", bert="[0, inf)", bias="(-inf, inf)")
        refuse(f"{line}; fit=true estimates it" for line in wrong)


@dataclass(frozen=True, kw_only=True)
class SearchSettings(InputSettings):
    """`bertkit search`.

    Attributes:
        question: one question, instead of an input.
        order: how passages are ranked; "all" for each order separately.
        candidates: number of passages that the search engine passes to the reader (the question answering model).
        fit: whether to fit `both` to the labels of the input.
        glossary: a TSV file; each row has a word, and words to add to a question that contains it.
        task_changes: changes to the model's own task, which is used if `task` is None.
    """

    index: str
    question: str | None = field(metadata=VERBATIM)
    order: Literal["search", "bert", "both", "all"] | None
    top_k: int
    candidates: int
    both: BothConfig
    fit: bool
    glossary: str | None
    max_questions: int | None
    task: TaskConfig | None
    task_changes: dict[str, Any]
    precision: Literal["fp32", "bf16"]
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
            outside(self, "", top_k="[1, 1e6]", candidates="[1, 1e6]", max_questions="[1, 1e6]"),
        )
