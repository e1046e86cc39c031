"""The settings of `bertkit export`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ExportSettings:
    """`bertkit export`."""

    model_dir: str
    output_dir: str
    head: Literal["pretraining", "masked_lm", "encoder", "task"] | None
    google: bool
    onnx: bool | Literal["int8"]
    sentence_transformers: bool | Literal["mean", "cls"]
    license: str | None
    language: str | None
