"""Opens the directory of a training run: detects a finished run, locks the directory, refuses a directory of another run."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bertkit import __version__
from bertkit.base.errors import InputError, counted, listed, named, nearest, say
from bertkit.base.files import (
    LOCK,
    flush,
    folder_for,
    locked,
    naming,
    remove,
    remove_leftovers,
    to_json,
    write_durably,
)
from bertkit.base.memory import processes_here
from bertkit.base.typed_settings import differences, dotted_keys, refuse, to_mapping
from bertkit.display import console
from bertkit.interop.hugging_face.config_json import not_in_transformers
from bertkit.launch.world import command_line, newest_checkpoint, world_from_environment
from bertkit.model.heads import num_parameters
from bertkit.run import directory as run_directory
from bertkit.run import resume_rules
from bertkit.run.directory import FILES_OF_A_RUN, FOLDERS_OF_A_RUN, RESULT, Changed, Manifest
from bertkit.run.job import AnyJob
from bertkit.run.memory_plan import buffer_bytes, memory_lines
from bertkit.run.resume_rules import Change, Rules
from bertkit.run.state import TrainingState
from bertkit.train.accelerator import Accelerator, ending_together, ranks_in

EPOCHS = r"epoch-\d{5}-\w{12}\..+"  # files in cache/; the names of partial ones end with host and process
PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "safetensors")
MAX_PAIRS = 3  # how many settings that differ an error names


class AnotherRunError(InputError):
    """The directory of a run holds another run."""


@contextlib.contextmanager
def open_run(job: AnyJob) -> Iterator[Callable[[int], None]]:
    """Open the directory of a run on process 0; yield a function that records, with the current step, the changed settings."""
    accelerator, settings, identity = job.accelerator, job.settings, job.identity
    directory, mapping = Path(settings.output_dir), to_mapping(settings)
    with ending_together(accelerator), contextlib.ExitStack() as stack:
        _check_same(accelerator, mapping | identity)
        opened = lock_run(directory, mapping, identity, job.facts, job.rules, settings.resume.allow)
        changes = ranks_in(accelerator).on_first(lambda: stack.enter_context(opened))

        def record(step: int) -> None:
            lines = ranks_in(accelerator).on_first(lambda: record_changes(directory, changes, step, mapping, identity))
            if accelerator.is_main_process:
                say(*(f"warning: {line}" for line in lines))

        yield record


def _check_same(accelerator: Accelerator, ours: Mapping[str, object]) -> None:
    """Raise InputError in every process, on all hosts, if the settings and data of one differ from those of process 0."""
    first = ranks_in(accelerator).on_first(lambda: ours)

    def compare() -> None:
        for key, there, here in differences(first, ours):
            if not key.startswith("launch.") and not key.endswith("_dir"):  # these may differ between hosts
                where = f"process {accelerator.process_index} on {socket.gethostname()}"
                raise InputError(
                    f"{where}: {key}={here!r}, but {there!r} in process 0; give all hosts the same settings"
                )

    ranks_in(accelerator).on_every(compare)


@contextlib.contextmanager
def lock_run(
    directory: Path,
    settings: Mapping[str, object],
    identity: dict[str, object],
    facts: dict[str, Any],
    rules: Rules,
    allow: Sequence[str],
) -> Iterator[list[Change]]:
    """Make or reopen the directory of a run, lock it, and delete partial files of a crash; yield the changed settings.

    With `overwrite` in the settings another run is kept elsewhere until this one has a checkpoint; after an error before, it is put
    back.
    """
    overwrite, kept = settings.get("overwrite", False), _kept(directory)
    try:
        check(directory, identity, rules, allow)
    except AnotherRunError:
        if not overwrite:
            raise
        _set_aside(directory, kept)
    with naming(directory), folder_for(directory), locked(directory):
        changes = check(directory, identity, rules, allow)  # again, since another process may have locked it in between
        _remove_leftovers(directory)
        is_new = not (directory / "manifest.json").exists()
        if is_new:
            write_identity(directory, settings, identity, facts)
        try:
            yield changes
        except InputError:
            if is_new and newest_checkpoint(str(directory)) is None:
                for name in (LOCK, *FILES_OF_A_RUN, *FOLDERS_OF_A_RUN):
                    if os.path.lexists(directory / name):
                        remove(directory / name)
            raise
        finally:  # within the lock: another process with the same command ends before it
            if overwrite and kept.exists():
                _end_replacing(directory, kept)


def _remove_leftovers(directory: Path) -> None:
    """Delete the partial files of a crash."""
    remove_leftovers(directory.resolve(), "|".join(map(re.escape, (*FILES_OF_A_RUN, "model"))))
    remove_leftovers(directory / "cache", EPOCHS)


def _kept(directory: Path) -> Path:
    """Return where a run is kept while another one replaces it."""
    path = Path(os.path.abspath(directory))
    return path.with_name(f".{path.name}.replaced")


def _set_aside(directory: Path, kept: Path) -> None:
    """Move a run, and copy back the rows that Python gave; a run without a checkpoint is deleted if another one is kept.

    Raises InputError if the directory holds files that are not the run's.
    """
    with naming(directory), locked(directory):
        _remove_leftovers(directory)
        others = sorted({path.name for path in directory.iterdir()} - {LOCK, *FILES_OF_A_RUN, *FOLDERS_OF_A_RUN})
        if others:
            raise InputError(
                f"output_dir={directory}: overwrite=true would delete {named(others)}, which the run did not write; move "
                "them elsewhere, or choose another directory"
            )
        if kept.exists() and not _has_begun(directory):
            for path in [path for path in directory.iterdir() if path.name not in (LOCK, "rows")]:
                remove(path)
            return
        if kept.exists():
            remove(kept)
        os.rename(directory, kept)
        if (kept / "rows").is_dir():
            shutil.copytree(kept / "rows", directory / "rows")


def _end_replacing(directory: Path, kept: Path) -> None:
    """Delete the run that is kept, or put it back if the new one has no checkpoint."""
    if not _has_begun(directory):
        if directory.exists():
            remove(directory)
        os.rename(kept, directory)
    else:
        remove(kept)


def _has_begun(directory: Path) -> bool:
    return newest_checkpoint(str(directory)) is not None or run_directory.has_results(directory)


def check(directory: Path, identity: dict[str, object], rules: Rules, allow: Sequence[str]) -> list[Change]:
    """Return the settings that differ from the saved ones; raises InputError if this run may not use the directory."""
    known = dotted_keys(identity)
    refuse([f"resume.allow: no fixed setting '{name}'{nearest(name, known)}" for name in allow if name not in known])
    run_directory.check_free(directory)
    saved = run_directory.saved_identity(directory)
    if not saved:
        return []
    for name in FOLDERS_OF_A_RUN:
        if (directory / name).is_symlink():
            raise InputError(f"output_dir={directory}: {name} in it is a link; replace the link by the folder itself")
    changes = resume_rules.changes(saved, identity)
    refused = resume_rules.refused(changes, rules, allow)
    if refused:
        pairs = [f"{change.key}: {change.old!r:.40} there, {change.new!r:.40} here" for change in refused]
        raise AnotherRunError(
            f"output_dir={directory} holds another run ({listed(pairs, most=MAX_PAIRS)}); choose another directory (with "
            f"model_dir={directory} to train its model further), {resume_rules.remedies(refused, rules)}, or set overwrite=true "
            "to replace it"
        )
    return changes


def write_identity(
    directory: Path, settings: Mapping[str, object], identity: dict[str, object], facts: dict[str, Any]
) -> None:
    """Write the settings and the manifest of a new run."""
    _write_settings(directory, settings)
    manifest = Manifest(
        bertkit=__version__,
        python=platform.python_version(),
        packages=_packages(),
        git_revision=_git_revision(),
        world_size=world_from_environment().size,
        command_line=command_line.get(),
        **facts,
        identity=identity,
    )
    write_durably(directory / "manifest.json", to_json(to_mapping(manifest)))


def record_changes(
    directory: Path, changes: Sequence[Change], step: int, settings: Mapping[str, object], identity: dict[str, object]
) -> list[str]:
    """Record the changed settings of a run that resumes at a step; return a line about each. A finished run becomes unfinished.

    If the process is killed before this call, the next start records the changes.
    """
    manifest = run_directory.read_manifest(directory)
    # if a damaged checkpoint makes a run resume before the step of an earlier change, that change now applies from `step` on
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


def _write_settings(directory: Path, settings: Mapping[str, object]) -> None:
    header = f"# bertkit {__version__}; the settings of this run\n"
    write_durably(directory / "config.yaml", header + yaml.safe_dump(settings, sort_keys=False))


@functools.cache  # as the code of this process was loaded once, whatever becomes of it on disk
def _packages() -> dict[str, str]:
    """Return the versions of the packages on which results depend."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


@functools.cache
def _git_revision() -> str | None:
    """Return the git revision of bertkit; None if it is not installed from a git checkout."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists() or shutil.which("git") is None:
        return None
    done = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or None


def announce(job: AnyJob, state: TrainingState) -> None:
    """Print the model, the precision and device, the job's own lines, the expected memory, and the step of a resumed run."""
    settings, accelerator, model = job.settings, state.accelerator, state.bare_model
    if not accelerator.is_main_process:
        return
    config, device, num_processes = model.config, accelerator.device.type, accelerator.num_processes
    size = num_parameters(model.parameters())
    how = f"{settings.precision} on {device}, {counted(num_processes, 'process')}"
    say(console.model_line(size, config.num_hidden_layers, config.hidden_size, list(model.heads), how))
    if own := not_in_transformers(model):
        say(f"note: transformers has no BERT with {', '.join(own)}; this model is for bertkit alone, without an export")
    say(*job.lines(state))
    buffers = buffer_bytes(state.trained, num_processes, state.choices.is_strict, settings.checkpoint.background)
    batches = job.largest_batches()
    say(*memory_lines(state.trained, buffers, batches, processes_here(device), settings.recompute == "layers"))
    if state.first_step:
        say(f"resumed from step {state.first_step} of {job.steps}")
