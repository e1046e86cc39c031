"""The registry of commands, and what every command does before its stage runs.

A new command needs one line in `_ALL` and four files: its defaults in `conf/NAME.yaml`, its settings in `settings/NAME.py`, its
stage in `stages/NAME.py`, and a test of the stage.

A command raises the errors of `bertkit.base.errors`. The stages import torch, after all keys and types have been checked.
"""

import contextlib
import dataclasses
import functools
import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertkit.base import hub_ids
from bertkit.base.errors import InputError, say
from bertkit.launch import launcher, world


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the command line."""

    name: str
    needs: str  # for `bertkit --help`
    gives: str  # for `bertkit --help`
    is_training: bool = False  # whether it saves checkpoints; then a signal stops it after a step, and it can resume


_ALL = (
    Command("prepare", "text", "tokenizer and prepared dataset"),
    Command("pretrain", "prepared dataset", "BERT, by masked LM and next sentence prediction", is_training=True),
    Command("finetune", "any model and a task's files", "a model for the task, and its scores", is_training=True),
    Command(
        "glue", "any model and GLUE's files", "a model for each task and seed, a table, a submission", is_training=True
    ),
    Command("predict", "model and inputs", "predictions, one line each"),
    Command("embed", "encoder and texts", "one vector for each text"),
    Command("evaluate", "model and a task's labelled split, or a prepared dataset", "metrics"),
    Command(
        "compare", "several runs", "scores, curves and settings side by side; for two runs, where they diverge and why"
    ),
    Command("view", "any model and an input", "attention and attributions, as a page, numbers or a picture"),
    Command("serve", "models", "a JSON API and a web page"),
    Command("index", "text", "a library of passages for full-text search"),
    Command("search", "a library, a question-answering model and questions", "passages with answers, and metrics"),
    Command("export", "checkpoint", "a directory that transformers loads, verified against transformers"),
    Command("verify", "any model", "a certificate of parity with the Hugging Face implementation"),
)
COMMANDS = {command.name: command for command in _ALL}


def compose_settings(
    command: str, overrides: list[str], config_dir: str | None = None, config: str | None = None
) -> dict[str, Any]:
    """Return the configuration of a command, as a plain mapping; with `config`, start from the settings in that file."""
    from bertkit.settings.compose import compose, compose_from_run

    if config is not None:
        return compose_from_run(command, config, overrides, config_dir)
    inferred = _infer(overrides, config_dir) if command == "finetune" else []
    return compose(command, [*inferred, *overrides], config_dir)


def _infer(overrides: list[str], config_dir: str | None) -> list[str]:
    """Infer the task of a training file without `task=`, and the held-out share without a dev file; print both in one line."""
    keys = {text.partition("=")[0] for text in overrides}
    has_task, has_dev = "task" in keys, bool(keys & {"task.files.dev", "dev_share"})
    if "task.files.train" not in keys or (has_task and has_dev):
        return []
    from bertkit.base.typed_settings import build
    from bertkit.settings.compose import compose
    from bertkit.tasks.reading import kinds, readers
    from bertkit.tasks.task_config import TaskConfig

    own = [
        text for text in overrides if re.match(r"(plugins|data_dir|\w+_column|task(\.(columns|files))?(\.\w+)?)=", text)
    ]
    composed = compose("finetune", [*([] if has_task else ["task=sequence"]), "output_dir=.", *own], config_dir)
    task, data_dir = build(TaskConfig, composed["task"], "task"), composed["data_dir"]
    inferred, reasons = list[str](), list[str]()
    if not has_task:
        inferred, reason = kinds.infer_task(task, data_dir)
        reasons.append(f"{' '.join(inferred)}, because {reason}")
    with contextlib.suppress(InputError):
        has_dev = has_dev or (data_dir is not None and readers.find_file(task, data_dir, "dev") is not None)
    if not has_dev:
        inferred.append("dev_share=0.1")
        reasons.append("dev_share=0.1: 10 % of the rows are held out")
    if reasons and world.world_from_environment().is_main:
        say("; ".join(reasons), file=sys.stderr)
    return inferred


def build_settings(command: str, mapping: dict[str, Any]) -> Any:
    """Check a configuration, and return the settings of the command; raises InputError with a line for each problem."""
    from bertkit.base.typed_settings import build
    from bertkit.settings.names import schema_of

    settings: Any = build(schema_of(command), mapping)
    model_dirs = getattr(settings, "model_dir", None) or ()
    for model_dir in (model_dirs,) if isinstance(model_dirs, str) else model_dirs:
        hub_ids.check_model(model_dir, "model_dir")
    return settings


def check_files(settings: Any) -> None:
    """Read a task's local files, and open an input, before torch is imported; raises InputError if they are wrong."""
    from bertkit.base.text_files import opened_input, unpacked
    from bertkit.tasks.reading import readers
    from bertkit.tasks.task import check_metrics

    if hasattr(settings, "dev_share"):
        check_metrics(settings.task, settings.task.label_names)
        if readers.find_file(settings.task, settings.data_dir, "train") is not None:
            readers.read_splits(settings)
    source = getattr(settings, "input", None) or "-"
    if source != "-" and (Path(source).is_file() or Path(source).is_dir() or not Path(source).exists()):  # not a pipe
        with opened_input(source) as (file, _):
            unpacked(file, Path(source))


def delegate(command: str, settings: Any) -> bool:
    """Return True if other processes run the command: workers, which this call starts and waits for, or rank 0 alone."""
    for each in settings.runs if command == "glue" else (settings,):
        if hasattr(each, "launch"):
            world.check_accelerate(os.environ, each)
    if not hasattr(settings, "launch"):
        return not world.world_from_environment().is_main
    if _run_in_workers(command, settings):
        return True
    world.enter(settings.launch)
    return False


def import_stage(command: str) -> Callable[[Any], Any]:
    """Import the stage of a command; return its function, which takes the settings."""
    # without the progress bars and notices of libraries
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.filterwarnings("ignore", module=r"(torch|accelerate|datasets|transformers|huggingface_hub)\b.*")
    stage = importlib.import_module("bertkit.server.server" if command == "serve" else f"bertkit.stages.{command}")
    return functools.partial(stage.run, launch=_run_in_workers) if command == "glue" else stage.run


def _run_in_workers(command: str, settings: Any) -> bool:
    """Run a command in workers if several processes are set; return whether it did."""
    if not launcher.starts_workers(settings.launch):
        return False
    launcher.start(command, settings)
    return True
