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
        text: a text to predict in place of an input.
        text_pair: its second segment.
        carry_input: the fields of a row stand before what is predicted of it.
        task_changes: what is set of the model's own task, where no other one is chosen.
    """

    model_dir: str
    input: str | None
    text: str | None
    text_pair: str | None
    output: str
    carry_input: bool
    overwrite: bool
    task: TaskConfig | None
    task_changes: dict[str, Any]
    format: PredictFormat | None
    top_k: int
    precision: Literal["fp32", "bf16"]
    kernels: Literal["auto", "plain"]
    device: Literal["auto", "cpu", "cuda"]

    def __post_init__(self) -> None:
        problems = []
        if (self.input is None) == (self.text is None):
            given = (
                "missing value: set input=, or text=" if self.text is None else "input= and text=: set one of the two"
            )
            problems.append(given)
        if self.text is None and self.text_pair is not None:
            problems.append("text_pair: has no effect without text=; leave it out, or give both in a file, by input=")
        if self.text is not None:
            without_effect = {"format": self.format, "carry_input": self.carry_input or None}
            problems += [f"{name}: has no effect with text=" for name, value in without_effect.items() if value]
        if self.top_k < 1:
            problems.append(f"top_k={self.top_k}: expected at least 1")
        if self.output != "-" and self.output == self.input:
            problems.append(f"output={self.output} is the input; choose another file")
        for ending in (".conll", ".partial"):
            if self.output.endswith(ending):
                problems.append(
                    f"output={self.output}: predictions are written there; choose a name such as mine.jsonl"
                )
        if self.output.split("/")[-1] in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
            problems.append(f"output={self.output}: SQuAD's file of that name is written beside it; choose mine.jsonl")
        if problems:
            raise InputError(*problems)
