"""What `bertkit search` accepts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from bertkit.errors import InputError
from bertkit.tasks.config import TaskConfig

ORDERS = ("search", "bert", "both")


@dataclass(frozen=True)
class BothConfig:
    """How `both` weighs the two scores: softmax(search * BM25) * sigmoid(bert * reader's score + bias)."""

    search: float
    bert: float
    bias: float

    def __post_init__(self) -> None:
        problems = [
            f"both.{name}={value}: expected a number from 0; fit=true finds it"
            for name, value in (("search", self.search), ("bert", self.bert))
            if not 0 <= value < math.inf
        ]
        if not math.isfinite(self.bias):
            problems.append(f"both.bias={self.bias}: expected a number; fit=true finds it")
        if problems:
            raise InputError(*problems)


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
        problems = []
        if (self.input is None) == (self.question is None):
            is_none = self.question is None
            problems.append(
                "missing value: set question=, or input=" if is_none else "input= and question=: set one of the two"
            )
        if self.question is not None:
            if self.order == "all":
                problems.append("order=all: has no effect with question=; choose search, bert or both")
            given = {"fit": self.fit, "max_questions": self.max_questions is not None}
            problems += [f"{name}: has no effect with question=" for name, is_set in given.items() if is_set]
        if self.model_dir is None:
            if self.order not in (None, "search"):
                problems.append(
                    f"order={self.order}: needs a reader; set model_dir= to a model fine-tuned on questions"
                )
            without_effect = {"fit": self.fit, "task": self.task is not None or self.task_changes}
            problems += [
                f"{name}: has no effect without model_dir=" for name, is_set in without_effect.items() if is_set
            ]
        elif self.fit and "both" not in self.orders:
            problems.append(f"fit: has no effect with order={self.order}; take order=both or order=all")
        for name, value in (
            ("top_k", self.top_k),
            ("candidates", self.candidates),
            ("max_questions", self.max_questions),
        ):
            if value is not None and not 1 <= value <= 1_000_000:
                problems.append(f"{name}={value}: expected 1 to 1,000,000")
        if self.output != "-" and self.output == self.input:
            problems.append(f"output={self.output} is the input; choose another file")
        if problems:
            raise InputError(*problems)
