"""The settings of `bertkit export`."""

from dataclasses import dataclass
from typing import Literal

from bertkit.settings.command import Command, CommandSettings


@dataclass(frozen=True)
class ExportSettings(CommandSettings):
    """`bertkit export`."""

    model_dir: str
    output_dir: str
    head: Literal["pretraining", "masked_lm", "encoder", "task"] | None
    google: bool
    onnx: bool | Literal["int8"]
    sentence_transformers: bool | Literal["mean", "cls"]
    license: str | None
    language: str | None


COMMAND = Command(
    "export",
    ExportSettings,
    stage="bertkit.stages.export",
    needs="checkpoint",
    gives="a directory that transformers loads, verified against transformers",
    positions=("model_dir", "output_dir"),
    model=".",
)
