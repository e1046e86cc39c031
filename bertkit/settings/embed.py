"""What `bertkit embed` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertkit.errors import InputError

ENDINGS = (".npy", ".parquet", ".jsonl")


@dataclass(frozen=True)
class EmbedSettings:
    """`bertkit embed`."""

    model_dir: str
    input: str
    output: str
    overwrite: bool
    pooling: Literal["mean", "cls", "max"] | None
    normalize: bool | None
    column: str | int | None
    format: Literal["text", "csv", "tsv", "jsonl", "json", "parquet"] | None
    max_seq_length: int | None
    batch_tokens: int | None
    precision: Literal["fp32", "bf16"]
    device: Literal["auto", "cpu", "cuda"]

    def __post_init__(self) -> None:
        problems = []
        if self.output != "-" and self.output == self.input:
            problems.append(f"output={self.output} is the input; choose another file")
        if self.output != "-" and not self.output.endswith(ENDINGS):
            problems.append(
                f"output={self.output}: expected a name that ends in {', '.join(ENDINGS)}, or - for JSON lines"
            )
        for name, least in (("max_seq_length", 3), ("batch_tokens", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                problems.append(f"{name}={value}: expected at least {least}")
        if self.column is not None and self.format == "text":
            problems.append(f"column={self.column}: has no effect with format=text; leave it out")
        if problems:
            raise InputError(*problems)
