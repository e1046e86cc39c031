"""The metadata files of a run directory: settings, manifest and final metrics.

config.yaml    the resolved configuration
manifest.json  versions, git revision, hashes, world size, command line, the identity of the run (`resume_rules`), and the
               changes of the identity on resume
eval.json      the final metrics; it exists only in a finished run
"""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.base.files import LOCK
from bertkit.base.renamed import current
from bertkit.base.text_files import parse_yaml, read_json
from bertkit.base.typed_settings import checked, to_mapping
from bertkit.run.resume_rules import (
    LENGTH,
    REFUSED,
    Change,
    Rules,
    RunSettings,
    changes,
    class_of,
    identity_of,
    refused,
)

RESULT = "eval.json"
DESCRIBING = {"config.yaml", "manifest.json"}
FILES_OF_A_RUN = (
    "config.yaml", "manifest.json", "metrics.jsonl", RESULT, "report.html", "predictions.jsonl", "predictions.txt",
    "predictions.json", "nbest_predictions.json", "null_odds.json",
)  # fmt: skip
FOLDERS_OF_A_RUN = ("cache", "checkpoints", "model", "rows", "trackers")  # rows: those that Python gave


@dataclass(frozen=True, kw_only=True)
class Changed(Change):
    """A setting that changed when a run was resumed."""

    step: int  # the last step with the old value


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """`manifest.json`, written when a run begins; earlier versions did not write the fields that have defaults."""

    bertkit: str = ""
    python: str = ""
    packages: dict[str, str] = field(default_factory=dict)  # their versions
    git_revision: str | None = None
    world_size: int = 1
    command_line: tuple[str, ...] = ()
    data_fingerprint: str | None = None
    corpus: dict[str, Any] | None = None
    tokenizer_sha256: str | None = None
    init_from: dict[str, Any] | None = None  # facts about the starting weights
    identity: dict[str, Any]  # the settings that are not free to change, and hashes of data and starting weights
    changes: tuple[Changed, ...] = ()


def has_results(directory: Path) -> bool:
    """Return whether a directory holds a finished run."""
    return bool(saved_identity(directory)) and all((directory / name).exists() for name in (RESULT, "model"))


def check_free(directory: Path) -> None:
    """Raise InputError if a directory holds anything but a run, or what a killed run left."""
    if not directory.is_dir():
        return
    left = {LOCK, "rows", "start", "config.yaml", "config.yaml.partial", "manifest.json.partial"}
    others = sorted({path.name for path in directory.iterdir()} - left)
    if others and "manifest.json" not in others:
        raise InputError(f"output_dir={directory} is not a run: it has {', '.join(others[:3])}; choose another one")
    if others and not saved_identity(directory):
        raise InputError(
            f"output_dir={directory}: its manifest.json does not belong to a run; choose another directory"
        )


def is_finished(directory: Path, identity: dict[str, object], rules: Rules) -> bool:
    """Return whether a directory holds a finished run of this identity with the same number of steps."""
    if not has_results(directory):
        return False
    keys = [change.key for change in changes(saved_identity(directory), identity)]
    return not any(key == LENGTH or class_of(key, rules) in REFUSED for key in keys)


def saved_identity(directory: Path) -> dict[str, Any]:
    """Read the identity of the run in a directory; empty if there is no run."""
    manifest = _manifest(directory)
    return {} if manifest is None else current(manifest.identity)


def continued_identity(settings: RunSettings, rules: Rules, own: dict[str, object] | None = None) -> dict[str, Any]:
    """Return the identity of the run in `output_dir`; empty if there is none, or `overwrite` replaces it.

    Settings in `own` have another value in the identity.
    """
    saved = saved_identity(Path(settings.output_dir))
    identity = identity_of(to_mapping(settings), rules) | (own or {})
    is_another = bool(refused(changes(saved, identity), rules, settings.resume.allow))
    return {} if settings.overwrite and is_another else saved


def read_manifest(run_dir: Path) -> Manifest:
    """Read the manifest of a run."""
    manifest = _manifest(run_dir)
    if manifest is None:
        raise InputError(f"{run_dir / 'manifest.json'}: not the manifest of a run; restore it")
    return manifest


def _manifest(directory: Path) -> Manifest | None:
    path = directory / "manifest.json"
    content = read_json(path) if path.is_file() else None
    # the manifest of a prepared dataset has an identity, too, and a format
    is_manifest = isinstance(content, dict) and "format" not in content and isinstance(content.get("identity"), dict)
    return checked(Manifest, content, path) if is_manifest else None


def run_of(model_dir: str | Path) -> Path | None:
    """Find the run directory of a model: the directory itself, or the run that has it as a checkpoint or final model.

    Raises InputError if one of the files that describe the run is missing.
    """
    path = Path(os.path.expanduser(model_dir)).resolve()
    for place in (path, path.parent, path.parent.parent):
        there = {name for name in (*DESCRIBING, "metrics.jsonl") if (place / name).is_file()}
        if len(there) > 1:
            for missing in DESCRIBING - there:
                raise InputError(
                    f"{place}: a run without its {missing}; restore it, or copy model/ to use the model alone"
                )
            return place
    return None


def read_scores(run_dir: Path, file: str = RESULT) -> dict[str, Any]:
    """Read the final metrics of a run; empty for an unfinished run."""
    path = run_dir / file
    if not path.is_file():
        return {}
    scores = read_json(path)
    if not isinstance(scores, dict):
        raise InputError(f"{path}: it has no scores; restore it")
    return scores


def read_settings(run_dir: Path) -> dict[str, Any]:
    """Read the resolved settings of a run."""
    path = run_dir / "config.yaml"
    settings = None
    with contextlib.suppress(OSError, ValueError):
        settings = parse_yaml(path.read_text(encoding="utf-8"))
    if not isinstance(settings, dict):
        raise InputError(f"{path}: not the settings of a run; restore it")
    return current(settings)
