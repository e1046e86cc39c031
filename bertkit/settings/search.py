"""What `bertkit search` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from bertkit.base.typed_settings import outside, refuse, unused
from bertkit.tasks.task_config import TaskConfig

ORDERS = ("search", "bert", "both")


@dataclass(frozen=True)
class BothConfig:
    """How `both` weighs the two scores: softmax(search * BM25) * sigmoid(bert * reader's score + bias)."""

    search: float
    bert: float
    bias: float

    def __post_init__(self) -> None:
        wrong = outside(self, "both.", search="[0, inf)", bert="[0, inf)", bias="(-inf, inf)")
        refuse(f"{line}; fit=true finds it" for line in wrong)


@dataclass(frozen=True)
class SearchSettings:
    """`bertkit search`.

    Attributes:
        question: to ask in place of an input.
        order: by what passages are ordered; "all" for each in turn.
        candidates: passages that the engine finds for the reader, at least `top_k`.
        fit: find `both` on the labels of the input.
        glossary: a TSV of words and what widens a question that has them.
        task_changes: what is set of the model's own task, where no other one is chosen.
    """

    index: str
    model_dir: str | None
    question: str | None
    input: str | None
    output: str
    overwrite: bool
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
    device: Literal["auto", "cpu", "cuda"]

    @property
    def orders(self) -> tuple[str, ...]:
        """The orders that are asked for; by default all that there can be, of one question the last of them."""
        order = self.order or ("search" if self.model_dir is None else "both" if self.question is not None else "all")
        return ORDERS if order == "all" else (order,)

    def __post_init__(self) -> None:
        is_one, has_reader = self.question is not None, self.model_dir is not None
        refuse(
            self.input is None and not is_one and "missing value: set question=, or input=",
            self.input is not None and is_one and "input= and question=: set one of the two",
            self.order == "all" and is_one and "order=all: has no effect with question=; choose search, bert or both",
            not has_reader
            and self.order not in (None, "search")
            and f"order={self.order}: needs a reader; set model_dir= to a model fine-tuned on questions",
            unused(
                self,
                "",
                ("fit", is_one, "with question="),
                ("max_questions", is_one, "with question="),
                ("fit", not has_reader, "without model_dir="),
                ("task", not has_reader, "without model_dir="),
                ("task_changes", not has_reader, "without model_dir=", {}),
                ("fit", has_reader and "both" not in self.orders, f"with order={self.order}"),
            ),
            outside(self, "", top_k="[1, 1e6]", candidates="[1, 1e6]", max_questions="[1, 1e6]"),
            self.output != "-"
            and self.output == self.input
            and f"output={self.output} is the input; choose another file",
        )
