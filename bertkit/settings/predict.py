"""What `bertkit predict` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from bertkit.base.typed_settings import outside, refuse, unused
from bertkit.tasks.task_config import TaskConfig

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
        taken = "predictions.json", "nbest_predictions.json", "null_odds.json"
        refuse(
            self.input is None and self.text is None and "missing value: set input=, or text=",
            self.input is not None and self.text is not None and "input= and text=: set one of the two",
            unused(
                self,
                "",
                ("text_pair", self.text is None, "without text=; give both in a file, by input="),
                ("format", self.text is not None, "with text="),
                ("carry_input", self.text is not None, "with text="),
            ),
            outside(self, "", top_k="[1, inf)"),
            self.output != "-"
            and self.output == self.input
            and f"output={self.output} is the input; choose another file",
            self.output.endswith((".conll", ".partial"))
            and f"output={self.output}: predictions are written there; choose a name such as mine.jsonl",
            self.output.split("/")[-1] in taken
            and f"output={self.output}: SQuAD's file of that name is written beside it; choose mine.jsonl",
        )
