"""What a command is, and what the settings of every command can say of themselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bertkit.launch.launch_config import LaunchConfig

# metadata of fields
VERBATIM = {"is_verbatim": True}  # the value is passed on verbatim, bypassing Hydra
WORDS = {"is_words": True}  # the value is all the words without a key, as in `compare runs/a runs/b`


def short_name(model_dir: str) -> str:
    """Return the name of a model for readers: that of its run, or of its directory."""
    parts = Path(model_dir).expanduser().absolute().parts
    return next((part for part in reversed(parts[1:]) if part not in ("model", "checkpoints")), model_dir)


@dataclass(frozen=True)
class CommandSettings:
    """The settings of a command; a command with another answer overrides the property or the method."""

    # what most commands have, by the names of their settings
    @property
    def directory(self) -> str | None:
        """The directory that the command writes; None if it writes none."""
        return self._named("output_dir")

    @property
    def output_file(self) -> str | None:
        """The file that the command writes, "-" for standard output; None if it writes none."""
        return self._named("output")

    @property
    def models(self) -> list[str]:
        """The models that the command opens, to be checked before torch is imported."""
        model_dir = self._named("model_dir")
        return [] if model_dir is None else [model_dir]

    @property
    def worker_launch(self) -> LaunchConfig | None:
        """How the worker processes of the command are started; None for a command in one process."""
        return vars(self).get("launch")

    @property
    def computes(self) -> bool:
        """Whether the command runs a model on a device, which is what the variables of `accelerate launch` are about."""
        return "device" in vars(self)

    def _named(self, setting: str) -> str | None:
        value: str | None = vars(self).get(setting)
        return value

    @property
    def bf16_device(self) -> str | None:
        """The setting `device` of a command with precision=bf16; None for other commands and precisions."""
        own = vars(self)
        return str(own["device"]) if own.get("precision") == "bf16" else None

    @property
    def distributed(self) -> Sequence["CommandSettings"]:
        """The settings of each run that may have several processes."""
        return () if self.worker_launch is None else (self,)


@dataclass(frozen=True)
class Command:
    """A command, on the command line and as a Python function."""

    name: str
    settings: type[CommandSettings]
    stage: str  # the module with its `run(settings)`; see `returns` for its functions `values` and `scores`
    needs: str  # for `bertkit --help`
    gives: str  # for `bertkit --help`
    is_training: bool = False  # whether it saves checkpoints; then a signal stops it after a step, and it can resume
    # the parameters that take rows from Python, such as a data frame; each with the setting of a file that it replaces
    rows: Mapping[str, str] = field(default_factory=dict)
    # what Python gets: what `values(settings, inputs)` returns, if there is no output file; or a `Run` with the mapping of
    # metrics that `scores(settings)` returns; or, without an output file, its page; or a `Run` after `run(settings)`
    returns: Literal["values", "scores", "page", "run"] = "run"
    # the parameters that Python takes without their names, in order; one that takes several takes all of them
    positions: tuple[str, ...] = ()
    model: str | None = None  # where in its directory the command writes a model; None if it makes none
    scores_file: str | None = None  # the file with its final metrics, in its directory
    # a function of the settings that reads or opens the input files before torch is imported; InputError if they are wrong. What
    # it returns, unless None, the stage takes after the settings
    check: str | None = None
    # a function of the settings, and of what `check` returns, that tells before torch is imported whether there is nothing left to do
    finished: str | None = None
    # a function of the user's assignments and the directory of their own settings that returns what follows from a file for
    # other settings, `Inferred`: settings, and the reason
    infer: str | None = None
    # for the groups of which a command takes only some options: these, the usual one first
    options: Mapping[str, list[str]] = field(default_factory=dict)
    of_runs: str | None = None  # another command, whose settings the user may set for each run that this one starts
    # the short form: the setting of each option, and of "", a file without a key
    short: Mapping[str, str] = field(default_factory=dict)
    short_without_file: Mapping[str, str] = field(default_factory=dict)  # those that differ where no file is given

    # settings of tasks that the command has under another name, and those that it lacks (""), for messages
    user_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def makes_run(self) -> bool:
        """Whether the command makes one training run."""
        return self.is_training and self.model is not None
