"""The settings of `bertkit predict`."""

from dataclasses import dataclass
from typing import Literal

from bertkit.base.intervals import Size
from bertkit.base.typed_settings import refuse, unused
from bertkit.settings.command import Command
from bertkit.settings.inputs import CHECK, TextSettings

SQUAD_FILES = ("predictions.json", "nbest_predictions.json", "null_odds.json")  # written beside the output


@dataclass(frozen=True, kw_only=True)
class PredictSettings(TextSettings):
    """`bertkit predict`."""

    carry_input: bool  # whether each prediction is preceded by the fields of its input row
    top_k: Size
    precision: Literal["fp32", "bf16", "fp16"]
    kernels: Literal["auto", "plain"]

    def __post_init__(self) -> None:
        refuse(
            self.text_problems(),
            unused(self, "", ("carry_input", self.text is not None, "with text=")),
            self.unknown_ending("prediction_format"),
            self.output.split("/")[-1] in SQUAD_FILES
            and f"output={self.output}: predict writes SQuAD's file under this name; choose another name, such as mine.jsonl",
        )


COMMAND = Command(
    "predict",
    PredictSettings,
    stage="bertkit.stages.predict",
    needs="model and inputs",
    gives="predictions, one line each",
    positions=("model_dir", "input"),
    rows={"input": "input"},
    returns="values",
    check=CHECK,
    short_without_file={"--text": "text", "--pair": "text_pair"},
    short={"": "input", "--text": "task.columns.text", "--pair": "task.columns.text_pair", "--output": "output"},
)
