"""The settings of `bertkit embed`."""

from dataclasses import dataclass
from typing import Literal

from bertkit.base.typed_settings import outside, refuse, unused
from bertkit.settings.predict import InputSettings

ENDINGS = (".npy", ".parquet", ".jsonl")


@dataclass(frozen=True, kw_only=True)
class EmbedSettings(InputSettings):
    """`bertkit embed`."""

    model_dir: str
    input: str
    pooling: Literal["mean", "cls", "max"] | None
    normalize: bool | None
    column: str | int | None
    format: Literal["text", "csv", "tsv", "jsonl", "json", "parquet"] | None
    max_seq_length: int | None
    batch_tokens: int | None
    precision: Literal["fp32", "bf16"]

    def __post_init__(self) -> None:
        refuse(
            self.input_problems(),
            self.output != "-"
            and not self.output.endswith(ENDINGS)
            and f"output={self.output}: expected a name that ends in {', '.join(ENDINGS)}, or - for JSON lines",
            outside(self, "", max_seq_length="[3, inf)", batch_tokens="[1, inf)"),
            unused(self, "", ("column", self.format == "text", "with format=text")),
        )
