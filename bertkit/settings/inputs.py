"""What the commands that apply a model to inputs share: `predict`, `embed`, `view` and `search`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bertkit.base import plugins
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import unused
from bertkit.settings.command import VERBATIM, CommandSettings
from bertkit.tasks.task_config import TaskConfig

CHECK = "bertkit.jobs.checks.check_input"


@dataclass(frozen=True, kw_only=True)
class InputSettings(CommandSettings):
    """The settings that all commands with a model and inputs share."""

    model_dir: str | None
    input: str | None  # a file, or - for standard input
    output: str  # a file, or - for standard output
    overwrite: bool
    device: Literal["auto", "cpu", "cuda"]

    @property
    def texts(self) -> Sequence[str | tuple[str, str]]:
        """The text or the pair of `text=`; none if the command reads an input."""
        return ()

    @property
    def ending(self) -> str:
        """The ending of the output in lower case, which names its format."""
        return Path(self.output).suffix.lower()

    def unknown_ending(self, slot: str) -> str | None:
        """The problem that no format of the slot has the ending of the output; None if one has."""
        if self.output == "-" or plugins.find(slot, self.ending) is not None:
            return None
        endings = ", ".join(filter(None, plugins.names_of(slot)))
        return f"output={self.output}: expected a name that ends in {endings}, or - for JSON lines"

    @property
    def overwritten_input(self) -> str | None:
        """The problem that the output is the input; None if it is not."""
        is_input = self.output != "-" and self.output == self.input
        return f"output={self.output} is the input; choose another file" if is_input else None

    def missing_input(self, name: str, value: str | None) -> str | None:
        """The problem that neither the input nor the setting `name` is set, or both are; None if one of them is."""
        if (self.input is None) != (value is None):
            return None
        return f"missing value: set {name}=, or input=" if value is None else f"input= and {name}=: set one of the two"


@dataclass(frozen=True, kw_only=True)
class TextSettings(InputSettings):
    """The settings that `bertkit predict` and `bertkit view` share."""

    model_dir: str
    text: str | None = field(metadata=VERBATIM)  # one text, instead of an input
    text_pair: str | None = field(metadata=VERBATIM)  # the second text of a pair
    task: TaskConfig | None
    task_changes: JsonObject  # changes to the model's own task, which is used if `task` is None
    format: (
        Literal[
            "text", "words", "tsv", "csv", "jsonl", "json", "squad", "conll", "conllu", "parquet", "xlsx", "label_text"
        ]
        | None
    )

    @property
    def texts(self) -> Sequence[str | tuple[str, str]]:
        """The text or the pair of `text=`; none if the command reads an input."""
        if self.text is None:
            return ()
        return [self.text if self.text_pair is None else (self.text, self.text_pair)]

    def text_problems(self) -> list[str]:
        """List problems with the text, the input and the output."""
        needs_text, has_text = self.text is None, self.text is not None
        return [
            *filter(None, (self.missing_input("text", self.text), self.overwritten_input)),
            *unused(self, "", ("text_pair", needs_text, "without text=; for a file of pairs, set input=")),
            *unused(self, "", ("format", has_text, "with text=")),
        ]
