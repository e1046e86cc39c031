"""The commands: what each is, and what happens before its stage runs.

A command is `conf/NAME.yaml`, its defaults; `settings/NAME.py`, its settings and its record; and `stages/NAME.py`, its stage.
Its name stands in `bertkit.COMMANDS`.

A command raises the errors of `bertkit.base.errors`. The stages import torch, after all keys and types have been checked.
"""

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bertkit import COMMANDS
from bertkit.base import hub_ids, processors
from bertkit.base.files import check_output_dir, check_place
from bertkit.base.text_files import JsonObject
from bertkit.launch import launcher, world
from bertkit.settings.command import Command, CommandSettings
from bertkit.settings.reading.assignments import Assignment, keys_of
from bertkit.settings.reading.names import command_of


def all_commands() -> list[Command]:
    """Import the records of all commands, in their usual order."""
    return [command_of(name) for name in COMMANDS]


def settings_from_words(command: str, words: Sequence[str], config_dir: str | None = None) -> JsonObject:
    """Return the configuration that words of the command line give, as a plain mapping."""
    from bertkit.settings.reading.overrides import read_words

    return compose_settings(command, read_words(command, words), config_dir)


def compose_settings(
    command: str, assignments: Sequence[Assignment], config_dir: str | None = None, config: str | None = None
) -> JsonObject:
    """Return the configuration of a command, as a plain mapping; with `config`, start from the settings in that file."""
    from bertkit.settings.reading.compose import compose_assigned, compose_from_run

    if config is not None:
        return compose_from_run(command, config, assignments, config_dir)
    inferred, keys = _infer(command, assignments, config_dir), keys_of(assignments)
    composed = compose_assigned(command, [*inferred, *assignments], config_dir)
    if "task.metrics" in keys and "task.best_metric" not in keys:
        _choose_best_metric(composed.get("task") or composed.get("task_changes") or {})
    return composed


def _choose_best_metric(task: JsonObject) -> None:
    """Select checkpoints by one of the metrics that the user set, an F1 if there is one, unless the task's own is among them."""
    from bertkit.tasks.scoring.metrics import keys_of as keys_of_metrics

    metrics = task.get("metrics")
    keys = keys_of_metrics([metrics] if isinstance(metrics, str) else metrics or [])
    if keys and task.get("best_metric") not in keys:
        task["best_metric"] = next((key for key in keys if "f1" in key), keys[0])


def _infer(command: str, assignments: Sequence[Assignment], config_dir: str | None) -> list[Assignment]:
    """Infer what is not set, if the command can; print all of it in one line."""
    from bertkit.settings.reading.overrides import read_words

    infer = command_of(command).infer
    if infer is None:
        return []
    inferred = _function(infer)(assignments, config_dir)
    if inferred:
        world.say_once("; ".join(one.reason for one in inferred), file=sys.stderr)
    return read_words(command, [word for one in inferred for word in one.settings])


def build_settings(command: str, mapping: JsonObject) -> CommandSettings:
    """Check a configuration, and return the settings of the command; raises InputError with a line for each problem.

    The models and the places to write to are checked too, before any file is read.
    """
    from bertkit.base.typed_settings import build

    settings = build(command_of(command).settings, mapping)
    for model_dir in settings.models:
        hub_ids.check_model(model_dir, "model_dir")
    if settings.directory is not None:
        check_output_dir(Path(settings.directory))
    if settings.output_file not in (None, "-"):
        check_place(Path(settings.output_file), f"output={settings.output_file}")
    return settings


def check_files(command: str, settings: CommandSettings) -> list[object]:
    """Read or open the input files of a command before torch is imported; raises InputError if they are wrong.

    Returns what the stage takes after its settings, so that no file is read twice.
    """
    check = command_of(command).check
    if check is None:
        return []
    read = _function(check)(settings)
    return [] if read is None else [read]


def _function(place: str) -> Callable[..., Any]:
    """Import a function by its place, `MODULE.NAME`."""
    module, _, name = place.rpartition(".")
    function: Callable[..., Any] = vars(importlib.import_module(module))[name]
    return function


def delegate(command: str, settings: CommandSettings, read: Sequence[object]) -> bool:
    """Return True if this process has nothing to do: the run is finished; or workers run it, started here, or rank 0 alone.

    `read` is what `check_files` returned.
    """
    finished = command_of(command).finished
    if finished is not None and _function(finished)(settings, *read):
        return True
    for run in settings.distributed or (settings,):
        if run.computes:
            world.check_accelerate(os.environ, run)
        if run.bf16_device is not None:
            processors.check_precision("bf16", run.bf16_device)  # processes that start from here inherit what it sets
    launch = settings.worker_launch
    if launch is None:
        return not world.world_from_environment().is_main
    if launcher.run_in_workers(command, settings, launch, settings.directory):
        return True
    world.enter(launch)
    return False


def import_stage(command: str) -> ModuleType:
    """Import the stage of a command."""
    # without the progress bars and notices of libraries
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.filterwarnings("ignore", module=r"(torch|accelerate|datasets|transformers|huggingface_hub)\b.*")
    stage = importlib.import_module(command_of(command).stage)
    processors.fit_threads()
    return stage
