"""A task by itself, as a command composes it."""

from bertkit.base.typed_settings import build
from bertkit.settings.reading.compose import compose
from bertkit.tasks.task_config import TaskConfig


def task_config(name: str, *overrides: str, directory: str | None = None) -> TaskConfig:
    """A task of `conf/task`, or of a directory of one's own, with overrides as on the command line."""
    return build(TaskConfig, compose("finetune", [f"task={name}", *overrides], directory)["task"], "task")
