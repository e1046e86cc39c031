"""What every process of the tests does more cheaply; to be imported before anything of bertkit.

Hydra takes 0.2 s for a configuration, so each is composed once for all processes, in a folder that the first of them makes, and each
of its files read once. Nobody waits for the disk, 4 ms
each of the forty times in a short run: who cuts the power, or looks at the calls, starts an interpreter of its own
(tests/train/test_durability.py, tests/train/test_log.py). With NOTHING_CHEAPER=1 in the environment, as every night
(.github/workflows/nightly.yml), all of it is as users have it.
"""

import atexit
import contextlib
import functools
import hashlib
import io
import os
import pickle
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

compose_anew, load_anew = hydra.compose, OmegaConf.load
replace = os.replace  # which tests replace
COMPOSED = "BERTKIT_TESTS_COMPOSED"
if COMPOSED not in os.environ:
    os.environ[COMPOSED] = tempfile.mkdtemp(prefix="bertkit-composed-")
    atexit.register(shutil.rmtree, os.environ[COMPOSED], ignore_errors=True)
FOLDER = Path(os.environ[COMPOSED])
# as pickles, since a copy of a configuration takes four times as long
loaded = functools.cache(lambda text: pickle.dumps(load_anew(io.StringIO(text))))


@functools.cache
def composed(search_path: str, name: str, overrides: tuple[str, ...]) -> bytes:
    """Return a configuration that a process of the tests has composed, or compose it; where nothing can be written, for this process alone."""
    place = FOLDER / hashlib.sha256(repr((search_path, name, overrides)).encode()).hexdigest()
    with contextlib.suppress(OSError):
        return place.read_bytes()
    result = pickle.dumps(compose_anew(name, overrides=list(overrides)))
    with contextlib.suppress(OSError):
        own = place.with_suffix(f".{os.getpid()}")
        own.write_bytes(result)
        replace(own, place)
    return result


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


if "NOTHING_CHEAPER" not in os.environ:
    os.fsync = flush_nothing
    hydra.compose = compose_once
    OmegaConf.load = staticmethod(load_once)  # type: ignore[method-assign, assignment]
