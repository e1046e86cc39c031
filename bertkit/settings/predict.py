"""What `bertkit predict` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from bertkit.errors import InputError
from bertkit.tasks.config import TaskConfig

PredictFormat = Literal[
    "text", "words", "tsv", "csv", "jsonl", "json", "squad", "conll", "conllu", "parquet", "label_text"
]


@dataclass(frozen=True)
class PredictSettings:
    """`bertkit predict`.

    Attributes:
        task_changes: what is set of the model's own task, where no other one is chosen.
    """

    model_dir: str
    input: str
    output: str
    task: TaskConfig | None
    task_changes: dict[str, Any]
    format: PredictFormat | None
    top_k: int
    precision: Literal["fp32", "bf16"]
    kernels: Literal["auto", "plain"]
    device: Literal["auto", "cpu", "cuda"]

    def __post_init__(self) -> None:
        problems = []
        if self.top_k < 1:
            problems.append(f"top_k={self.top_k}: expected at least 1")
        if self.output != "-" and self.output == self.input:
            problems.append(f"output={self.output} is the input; choose another file")
        for ending in (".conll", ".partial"):
            if self.output.endswith(ending):
                problems.append(f"output={self.output}: JSON lines are written there; choose a name such as mine.jsonl")
        if self.output.split("/")[-1] in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
            problems.append(f"output={self.output}: SQuAD's file of that name is written beside it; choose mine.jsonl")
        if problems:
            raise InputError("\n".join(problems))
