"""The settings of `bertkit predict`, and those that other commands with inputs share with it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from bertkit.base.typed_settings import outside, refuse, unused
from bertkit.settings.names import VERBATIM
from bertkit.tasks.task_config import TaskConfig

SQUAD_FILES = ("predictions.json", "nbest_predictions.json", "null_odds.json")  # written beside the output


@dataclass(frozen=True, kw_only=True)
class InputSettings:
    """The settings that all commands with a model and inputs share.

    Attributes:
        input: a file, or - for standard input.
        output: a file, or - for standard output.
    """

    model_dir: str | None
    input: str | None
    output: str
    overwrite: bool
    device: Literal["auto", "cpu", "cuda"]

    def input_problems(self, alternative: str | None = None) -> list[str]:
        """List problems with the input and the output; the setting `alternative` can replace the input."""
        problems = []
        if alternative is not None:
            is_set = getattr(self, alternative) is not None
            if self.input is None and not is_set:
                problems.append(f"missing value: set {alternative}=, or input=")
            if self.input is not None and is_set:
                problems.append(f"input= and {alternative}=: set one of the two")
        if self.output != "-" and self.output == self.input:
            problems.append(f"output={self.output} is the input; choose another file")
        return problems


@dataclass(frozen=True, kw_only=True)
class TextSettings(InputSettings):
    """The settings that `bertkit predict` and `bertkit view` share.

    Attributes:
        text: one text, instead of an input.
        text_pair: the second text of a pair.
        task_changes: changes to the model's own task, which is used if `task` is None.
    """

    model_dir: str
    text: str | None = field(metadata=VERBATIM)
    text_pair: str | None = field(metadata=VERBATIM)
    task: TaskConfig | None
    task_changes: dict[str, Any]
    format: (
        Literal["text", "words", "tsv", "csv", "jsonl", "json", "squad", "conll", "conllu", "parquet", "label_text"]
        | None
    )

    def text_problems(self) -> list[str]:
        """List problems with the text, the input and the output."""
        return self.input_problems("text") + unused(
            self,
            "",
            ("text_pair", self.text is None, "without text=; for a file of pairs, set input="),
            ("format", self.text is not None, "with text="),
        )


@dataclass(frozen=True, kw_only=True)
class PredictSettings(TextSettings):
    """`bertkit predict`.

    Attributes:
        carry_input: whether each prediction is preceded by the fields of its input row.
    """

    carry_input: bool
    top_k: int
    precision: Literal["fp32", "bf16"]
    kernels: Literal["auto", "plain"]

    def __post_init__(self) -> None:
        refuse(
            self.text_problems(),
            unused(self, "", ("carry_input", self.text is not None, "with text=")),
            outside(self, "", top_k="[1, inf)"),
            self.output.endswith((".conll", ".partial"))
            and f"output={self.output}: .conll and .partial are the endings of other files of predict; choose a name such as mine.jsonl",
            self.output.split("/")[-1] in SQUAD_FILES
            and f"output={self.output}: predict writes SQuAD's file under this name; choose another name, such as mine.jsonl",
        )
