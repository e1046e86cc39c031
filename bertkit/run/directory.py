"""A run directory: whose it is, whether it is done, and a clean stop.

config.yaml    the resolved configuration
manifest.json  versions, git revision, hashes, world size, command line, the settings that identify the run, and the
               changes of them since it began, each with the step from which it holds
eval.json      the final metrics; its presence says that the run is done
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from bertkit import __version__
from bertkit.base.errors import InputError
from bertkit.base.files import LOCK, flush, folder_for, locked, remove, remove_leftovers, to_json, write_durably
from bertkit.base.text_files import parse_yaml, read_json
from bertkit.base.typed_settings import checked, to_mapping
from bertkit.launch.world import SAME_REQUEST_SECONDS, STOP_SIGNALS, newest_checkpoint, world_from_environment
from bertkit.run import rules as resume_rules
from bertkit.run.rules import LENGTH, REFUSED, Change, Rules, class_of

RESULT = "eval.json"
FILES_OF_A_RUN = (
    "config.yaml", "manifest.json", "metrics.jsonl", RESULT, "report.html", "predictions.jsonl", "predictions.txt",
    "predictions.json", "nbest_predictions.json", "null_odds.json",
)  # fmt: skip
FOLDERS_OF_A_RUN = ("cache", "checkpoints", "model")
EPOCHS = r"epoch-\d{5}-\w{12}\..+"  # in cache/, with the host and process that writes them
STDOUT = 1  # a print might be under way
PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "safetensors")


@dataclass(frozen=True, kw_only=True)
class Changed(Change):
    """A setting that changed when a run went on."""

    step: int  # from which it holds


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """`manifest.json`: what a run wrote of itself when it began; earlier versions did not say all."""

    bertkit: str = ""
    python: str = ""
    packages: dict[str, str] = field(default_factory=dict)  # versions
    git_revision: str | None = None
    world_size: int = 1
    command_line: tuple[str, ...] = ()
    data_fingerprint: str | None = None
    corpus: dict[str, Any] | None = None
    tokenizer_sha256: str | None = None
    init_from: dict[str, Any] | None = None  # the starting weights
    identity: dict[str, Any]  # the settings that are not free, and the content of data and starting weights
    changes: tuple[Changed, ...] = ()  # since it began


def is_finished(directory: Path, identity: dict[str, Any], rules: Rules) -> bool:
    """Tell whether `directory` holds a finished run of this identity, or one that leaves nothing to do for it."""
    theirs = identity_there(directory)
    if not theirs or not all((directory / name).exists() for name in (RESULT, "model")):
        return False
    found = resume_rules.changes(theirs, identity)
    return not any(change.key == LENGTH or class_of(change.key, rules) in REFUSED for change in found)


def identity_there(directory: Path) -> dict[str, Any]:
    """Read what identifies the run in a directory; empty where there is none."""
    path = directory / "manifest.json"
    manifest = read_json(path) if path.is_file() else None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("identity"), dict):
        return {}  # of something else
    return checked(Manifest, manifest, path).identity


def run_of(model_dir: str | Path) -> Path | None:
    """Find the run that a model directory is, or lies in as checkpoint or final model."""
    path = Path(model_dir).expanduser().resolve()
    for candidate in (path, path.parent, path.parent.parent):
        if (candidate / "config.yaml").is_file() and (candidate / "manifest.json").is_file():
            return candidate
    return None


def read_manifest(run_dir: Path) -> Manifest:
    """Read what a run wrote of itself when it began.

    Raises:
        InputError: the file is not as a run writes it.
    """
    path = run_dir / "manifest.json"
    manifest = read_json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("identity"), dict):
        raise InputError(f"{path}: not the manifest of a run; restore it")
    return checked(Manifest, manifest, path)


def read_scores(run_dir: Path, names: Sequence[str] = (), file: str = RESULT) -> dict[str, Any]:
    """Read the final metrics of a run, among which must be those of these names; none of a run that is not done.

    Raises:
        InputError: the file is not as a run writes it.
    """
    path = run_dir / file
    if not names and not path.is_file():
        return {}
    scores = read_json(path)
    missing = [name for name in names if not isinstance(scores, dict) or not isinstance(scores.get(name), (int, float))]
    if missing or not isinstance(scores, dict):
        raise InputError(
            f"{path}: no number {missing[0]!r}; restore it" if missing else f"{path}: no scores; restore it"
        )
    return scores


def read_settings(run_dir: Path) -> dict[str, Any]:
    """Read the resolved settings of a run.

    Raises:
        InputError: the file is not as a run writes it.
    """
    path = run_dir / "config.yaml"
    try:
        settings = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = None
    if not isinstance(settings, dict):
        raise InputError(f"{path}: not the settings of a run; restore it")
    return settings


def check(directory: Path, identity: dict[str, Any], rules: Rules, allow: Sequence[str]) -> list[Change]:
    """Refuse a directory that is not free for this run; give what differs from the run that is there.

    Raises:
        InputError: the directory holds another run, or something that is no run; or `allow` names nothing.
    """
    resume_rules.check_allowed(allow, identity)
    if not directory.exists():
        return []
    if not directory.is_dir():
        raise InputError(f"output_dir={directory} is a file; choose a directory")
    if not (directory / "manifest.json").is_file():
        started = {LOCK, "config.yaml", "config.yaml.partial", "manifest.json.partial"}  # stopped while it began
        others = sorted({path.name for path in directory.iterdir()} - started)
        if others:
            raise InputError(
                f"output_dir={directory} exists and holds no run ({', '.join(others[:3])}); choose another one"
            )
        return []
    for name in FOLDERS_OF_A_RUN:
        if (directory / name).is_symlink():
            raise InputError(
                f"output_dir={directory}: {name} in it is a link, and what is in that folder of a run is replaced and deleted; "
                "move the folder itself there"
            )
    theirs = identity_there(directory)
    if not theirs:
        raise InputError(f"output_dir={directory} holds something that is not a run; choose another one")
    changes = resume_rules.changes(theirs, identity)
    refused = resume_rules.refused(changes, rules, allow)
    if refused:
        raise InputError(
            f"output_dir={directory} holds another run ({resume_rules.listed(refused)}); choose another directory (with "
            f"model_dir={directory} to train its model further), {resume_rules.ways_out(refused, rules)}"
        )
    return changes


def write_identity(directory: Path, settings: dict[str, Any], identity: dict[str, Any], facts: dict[str, Any]) -> None:
    """Write what a run is into its directory, unless it is there."""
    if (directory / "manifest.json").is_file():
        return
    _write_settings(directory, settings)
    manifest = Manifest(
        bertkit=__version__,
        python=platform.python_version(),
        packages={name: importlib.metadata.version(name) for name in PACKAGES},
        git_revision=_git_revision(),
        world_size=world_from_environment().size,
        command_line=tuple(sys.argv[1:]),
        **facts,
        identity=identity,
    )
    write_durably(directory / "manifest.json", to_json(to_mapping(manifest)))


@contextlib.contextmanager
def held(
    directory: Path,
    settings: dict[str, Any],
    identity: dict[str, Any],
    facts: dict[str, Any],
    rules: Rules,
    allow: Sequence[str],
) -> Iterator[list[Change]]:
    """Make or reopen the directory of a run, hold it, and clean it of what a crash left; give what is to change.

    Raises:
        InputError: the directory holds another run, or something that is no run.
        LockedError: the run is live elsewhere.
    """
    check(directory, identity, rules, allow)
    with folder_for(directory), locked(directory):
        changes = check(directory, identity, rules, allow)  # once more: another start may have come first
        remove_leftovers(directory.resolve(), "|".join(map(re.escape, (*FILES_OF_A_RUN, "model"))))
        remove_leftovers(directory / "cache", EPOCHS)
        is_new = not (directory / "manifest.json").exists()
        write_identity(directory, settings, identity, facts)
        try:
            yield changes
        except InputError:
            if is_new and newest_checkpoint(str(directory)) is None:
                for name in (LOCK, *FILES_OF_A_RUN, *FOLDERS_OF_A_RUN):
                    if os.path.lexists(directory / name):
                        remove(directory / name)
            raise


def record_changes(
    directory: Path, changes: Sequence[Change], step: int, settings: dict[str, Any], identity: dict[str, Any]
) -> list[str]:
    """Write down what changes when a run goes on from a step; give a line on each change.

    A finished run is one no more. Killed in between, it sees the same changes at the next start.
    """
    manifest = read_manifest(directory)
    # of a change after this step nothing is left, when a damaged checkpoint made the run go back: it holds from here on
    entries = [dataclasses.replace(entry, step=min(entry.step, step)) for entry in manifest.changes]
    entries += [Changed(change.key, change.old, change.new, step=step) for change in changes]
    if entries == list(manifest.changes):
        return []
    if (directory / RESULT).is_file():
        (directory / RESULT).unlink()
        flush(directory)
    _write_settings(directory, settings)
    manifest = dataclasses.replace(manifest, identity=identity, changes=tuple(entries))
    write_durably(directory / "manifest.json", to_json(to_mapping(manifest)))
    return [f"{change.key}: {change.old!r} up to step {step}, {change.new!r} from here on" for change in changes]


def _write_settings(directory: Path, settings: dict[str, Any]) -> None:
    header = f"# bertkit {__version__}; the settings of this run\n"
    write_durably(directory / "config.yaml", header + yaml.safe_dump(settings, sort_keys=False))


def _git_revision() -> str | None:
    """The revision of bertkit's own checkout; None where it is installed without one."""
    package = Path(__file__).resolve().parents[1]
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
    """Turn the first SIGINT, SIGTERM or SIGUSR1 into a request; another one, some seconds later, ends the process at once.

    torchrun and Slurm send their signal more than once, and to all processes: those that follow at once mean the same.
    A launcher passes the first one on alone.

    Gives a function that tells whether a stop was requested. Only the main thread hears signals; in another one nothing is.
    """
    received: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def remember(number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        received.append(now)
        if now - received[0] > SAME_REQUEST_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif len(received) == 1 and world_from_environment().is_main:
            os.write(STDOUT, b"stopping after this step; another signal, later, ends at once\n")

    for number in before:
        signal.signal(number, remember)
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
