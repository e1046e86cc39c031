"""A run directory: whose it is, whether it is done, and a clean stop.

config.yaml    the resolved configuration
manifest.json  versions, git revision, hashes, world size, command line, and the settings that identify the run
eval.json      the final metrics; its presence says that the run is done
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from bertkit import __version__
from bertkit.config import differences
from bertkit.errors import InputError
from bertkit.files import locked, read_json, to_json, write_durably
from bertkit.launch import world_from_environment

RESULT = "eval.json"
FILES_OF_A_RUN = (
    "config.yaml", "manifest.json", "metrics.jsonl", RESULT, "report.html", "predictions.jsonl", "predictions.txt",
    "predictions.json", "nbest_predictions.json", "null_odds.json",
)  # fmt: skip
PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "safetensors")
MAX_LISTED = 6


def is_finished(directory: Path, settings: dict[str, Any]) -> bool:
    """Tell whether `directory` holds a finished run with these settings."""
    if not all((directory / name).exists() for name in (RESULT, "model", "manifest.json")):
        return False
    manifest = read_json(directory / "manifest.json")
    identity = manifest.get("identity") if isinstance(manifest, dict) else None
    return isinstance(identity, dict) and all(identity.get(key) == value for key, value in settings.items())


def run_of(model_dir: str | Path) -> Path | None:
    """Find the run that a model directory is, or lies in as checkpoint or final model."""
    path = Path(model_dir).expanduser().resolve()
    for candidate in (path, path.parent, path.parent.parent):
        if (candidate / "config.yaml").is_file() and (candidate / "manifest.json").is_file():
            return candidate
    return None


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """Read what a run wrote of itself when it began.

    Raises:
        InputError: the file is not as a run writes it.
    """
    manifest = read_json(run_dir / "manifest.json")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("identity"), dict):
        raise InputError(f"{run_dir / 'manifest.json'}: not the manifest of a run; restore it")
    return manifest


def read_settings(run_dir: Path) -> dict[str, Any]:
    """Read the resolved settings of a run.

    Raises:
        InputError: the file is not as a run writes it.
    """
    path = run_dir / "config.yaml"
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        settings = None
    if not isinstance(settings, dict):
        raise InputError(f"{path}: not the settings of a run; restore it")
    return settings


def check(directory: Path, identity: dict[str, Any]) -> None:
    """Refuse a directory that is not free for this run.

    Raises:
        InputError: the directory holds another run, or something that is no run.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise InputError(f"output_dir={directory} is a file; choose a directory")
    if not (directory / "manifest.json").is_file():
        started = {".lock", "config.yaml", "config.yaml.partial", "manifest.json.partial"}  # stopped while it began
        others = sorted({path.name for path in directory.iterdir()} - started)
        if others:
            raise InputError(
                f"output_dir={directory} exists and holds no run ({', '.join(others[:3])}); choose another one"
            )
        return
    manifest = read_json(directory / "manifest.json")
    if not isinstance(manifest, dict) or "identity" not in manifest:
        raise InputError(f"output_dir={directory} holds something else than a run; choose another one")
    changed = differences(manifest["identity"], identity)
    if changed:
        listed = [f"{key}: {old!r} there, {new!r} here" for key, old, new in changed[:MAX_LISTED]]
        if len(changed) > MAX_LISTED:
            listed.append(f"and {len(changed) - MAX_LISTED} more")
        raise InputError(
            f"output_dir={directory} holds another run ({'; '.join(listed)}); choose another directory (with "
            f"init_from={directory} to train its model further), or use its settings"
        )


def write_identity(directory: Path, settings: dict[str, Any], identity: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write what a run is into its directory; what a run started with is never overwritten."""
    if (directory / "manifest.json").is_file():
        return
    header = f"# bertkit {__version__}; the settings of this run\n"
    write_durably(directory / "config.yaml", header + yaml.safe_dump(settings, sort_keys=False))
    manifest = {
        "bertkit": __version__,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "git_revision": _git_revision(),
        "world_size": world_from_environment().size,
        "command_line": sys.argv[1:],
        **facts,
        "identity": identity,
    }
    write_durably(directory / "manifest.json", to_json(manifest))


@contextlib.contextmanager
def opened(
    directory: Path, settings: dict[str, Any], identity: dict[str, Any], facts: dict[str, Any]
) -> Iterator[None]:
    """Make or reopen the directory of a run and hold it.

    Raises:
        InputError: the directory holds another run, or something that is no run.
        LockedError: the run is live elsewhere.
    """
    check(directory, identity)
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory):
        check(directory, identity)  # once more: another start may have come first
        write_identity(directory, settings, identity, facts)
        yield


def _git_revision() -> str | None:
    """The revision of bertkit's own checkout; None where it is installed without one."""
    package = Path(__file__).resolve().parent
    if not (package.parent / ".git").exists():
        return None
    command = ["git", "-C", str(package), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


@contextlib.contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM into a request; the second one ends the process at once.

    Gives a function that tells whether a stop was requested.
    """
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def remember(number: int, _: FrameType | None) -> None:
        received.append(number)
        for known, handler in before.items():
            signal.signal(known, handler)

    for number in before:
        signal.signal(number, remember)
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
