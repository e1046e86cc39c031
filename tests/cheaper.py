"""What every process of the tests does more cheaply; to be imported before anything of bertkit.

Hydra takes 0.2 s for a configuration, so each is composed once. Intervals of scores are those of 20 resamples instead of 200,
which score everything again; tests/tasks/scoring/test_baseline.py has all.
"""

import copy
import functools
from collections.abc import Sequence

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from bertkit.tasks.scoring import baseline

compose_anew = hydra.compose
composed = functools.cache(lambda search_path, name, overrides: compose_anew(name, overrides=list(overrides)))


def compose_once(name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a configuration, or copy it from the last time; one with groups of the user's own is composed anew."""
    if any("searchpath" in override for override in overrides):
        return compose_anew(name, overrides=list(overrides))
    search_path = str(GlobalHydra.instance().config_loader().get_search_path())
    return copy.deepcopy(composed(search_path, name, tuple(overrides)))


hydra.compose = compose_once
ALL_RESAMPLES = baseline.RESAMPLES
baseline.RESAMPLES = 20
