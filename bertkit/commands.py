"""What a command is, for the command line and for Python: its settings are composed and checked, then its page runs.

torch is imported by the pages, after every key and type has been checked.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from collections.abc import Callable
from typing import Any

from bertkit.launch import launcher, watch, world

TRAINING = ("pretrain", "finetune")
PARALLEL = (*TRAINING, "evaluate")


def composed(command: str, overrides: list[str], config_dir: str | None = None) -> dict[str, Any]:
    """Compose the configuration of a command, a plain mapping.

    Raises:
        InputError: unknown keys and options, malformed overrides.
    """
    from bertkit.settings.compose import compose

    return compose(command, overrides, config_dir)


def built(command: str, mapping: dict[str, Any]) -> Any:
    """Check a configuration, or what the launcher hands on; give the settings of the command.

    Raises:
        InputError: all that is wrong with it, a line each.
    """
    from bertkit.config import build
    from bertkit.settings.schemas import SCHEMAS

    return build(SCHEMAS[command], mapping)


def runs_elsewhere(command: str, settings: Any) -> bool:
    """Run a command in processes of its own, to their end; or say that another process is enough; or enter a world."""
    if command not in PARALLEL:
        return not world.world_from_environment().is_main
    if _launched(command, settings):
        return True
    watch.enter(settings.launch)
    return False


def page_of(command: str) -> Callable[[Any], Any]:
    """Import what does the work of a command: a function of its settings, which gives what was found or None."""
    _quieten_libraries()
    page = importlib.import_module("bertkit.bench.run" if command == "bench" else f"bertkit.stages.{command}")
    return functools.partial(page.run, launched=_launched) if command == "glue" else page.run


def _launched(command: str, settings: Any) -> bool:
    """Run a command in processes of its own where its settings ask for several; False where they do not."""
    if not launcher.starts_workers(settings.launch):
        return False
    launcher.start(command, settings)
    return True


def _quieten_libraries() -> None:
    """Keep third-party notices off the terminal; bertkit's own lines say what matters."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.filterwarnings("ignore", module=r"(torch|accelerate|datasets|transformers|huggingface_hub)\b.*")
