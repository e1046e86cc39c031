"""The hashes of the weights that a run starts from."""

import os
from pathlib import Path

from bertkit.base.files import sha256_file
from bertkit.interop.model_dir import hashes_of, resolve_model_dir
from bertkit.run.resume_rules import RunSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train.checkpoint_files import moment_files


def starting_weights(settings: RunSettings) -> dict[str, object]:
    """Return the hashes of the starting weights, for the identity of a run; empty if the weights no longer exist."""
    if settings.model_dir is None:
        return {"starting_weights": None}
    if not Path(os.path.expanduser(settings.model_dir)).exists():
        return {}
    return {"starting_weights": sha256_of_start(settings, resolve_model_dir(settings.model_dir))}


def sha256_of_start(settings: RunSettings, source: Path) -> dict[str, str]:
    """Hash the files of the starting weights, and those of the moments if they are loaded."""
    hashes = hashes_of(source)
    if isinstance(settings, PretrainSettings) and settings.init_moments:
        hashes |= {path.name: sha256_file(path) for path in moment_files(source)}
    return hashes
