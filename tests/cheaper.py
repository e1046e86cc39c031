"""What every process of the tests does more cheaply; to be imported before anything of bertkit.

Hydra takes 0.2 s for a configuration, so each is composed once, and each of its files read once. Nobody waits for the disk, 4 ms
each of the forty times in a short run: who cuts the power, or looks at the calls, starts an interpreter of its own
(tests/train/test_durability.py, tests/train/test_log.py). Intervals of scores are those of 20 resamples instead of 200, which score
everything again; tests/tasks/scoring/test_baseline.py has all.
"""

import functools
import io
import os
import pickle
from collections.abc import Sequence
from typing import Any, TextIO

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from bertkit.tasks.scoring import baseline

compose_anew, load_anew = hydra.compose, OmegaConf.load
# as pickles, since a copy of a configuration takes four times as long
composed = functools.cache(lambda _, name, overrides: pickle.dumps(compose_anew(name, overrides=list(overrides))))
loaded = functools.cache(lambda text: pickle.dumps(load_anew(io.StringIO(text))))


def compose_once(name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a configuration, or copy it from the last time; one with groups of the user's own is composed anew."""
    if any("searchpath" in override for override in overrides):
        return compose_anew(name, overrides=list(overrides))
    search_path = str(GlobalHydra.instance().config_loader().get_search_path())
    result: DictConfig = pickle.loads(composed(search_path, name, tuple(overrides)))
    return result


def load_once(file: TextIO) -> Any:
    """Read a configuration file of this content, or copy it from the last time."""
    return pickle.loads(loaded(file.read()))


def flush_nothing(descriptor: int) -> None:
    """Raise OSError unless this is the descriptor of an open file."""
    os.fstat(descriptor)


os.fsync = flush_nothing
hydra.compose = compose_once
OmegaConf.load = staticmethod(load_once)  # type: ignore[method-assign, assignment]
ALL_RESAMPLES = baseline.RESAMPLES
baseline.RESAMPLES = 20
