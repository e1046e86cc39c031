"""How the tests compose a task, until a command does."""

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from bertkit.base.typed_settings import build, conf_dir
from bertkit.tasks.task_config import TaskConfig


def task_config(name: str, *overrides: str, directory: str | None = None) -> TaskConfig:
    """A task of `conf/task`, or of a directory of one's own, with overrides as on the command line."""
    GlobalHydra.instance().clear()
    searchpath = [f"hydra.searchpath=['file://{conf_dir()}']"] if directory else []
    with initialize_config_dir(directory or str(conf_dir()), version_base="1.3"):
        composed = compose(f"task/{name}", [*overrides, *searchpath])
    mapping = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(mapping, dict)
    return build(TaskConfig, mapping["task"], "task")
