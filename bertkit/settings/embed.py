"""The settings of `bertkit embed`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from bertkit.base.intervals import MAX_INT32, Interval, Size
from bertkit.base.typed_settings import refuse, unused
from bertkit.settings.command import Command
from bertkit.settings.inputs import CHECK, InputSettings


@dataclass(frozen=True, kw_only=True)
class EmbedSettings(InputSettings):
    """`bertkit embed`."""

    model_dir: str
    input: str
    pooling: Literal["mean", "cls", "max"] | None
    normalize: bool | None
    text_column: str | Annotated[int, Interval(-MAX_INT32, MAX_INT32)] | None
    format: Literal["text", "csv", "tsv", "jsonl", "json", "parquet", "xlsx"] | None
    max_seq_length: Annotated[int, Interval(3, MAX_INT32)] | None
    batch_tokens: Size | None
    precision: Literal["fp32", "bf16", "fp16"]

    def __post_init__(self) -> None:
        refuse(
            self.overwritten_input,
            self.unknown_ending("vector_format"),
            unused(self, "", ("text_column", self.format == "text", "with format=text")),
        )


COMMAND = Command(
    "embed",
    EmbedSettings,
    stage="bertkit.stages.embed",
    needs="encoder and texts",
    gives="one vector for each text",
    positions=("model_dir", "input"),
    rows={"input": "input"},
    returns="values",
    check=CHECK,
    user_names={"task.columns.text": "text_column", "task.format": "format", "task.encoding": ""},
    short={"": "input", "--text": "text_column", "--output": "output"},
)
