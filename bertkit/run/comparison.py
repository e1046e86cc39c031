"""Runs beside one another: what each scored, which settings differ, and where two of them part and why."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.text_files import read_json
from bertkit.base.typed_settings import at, differences
from bertkit.run.directory import RESULT, read_manifest, read_settings
from bertkit.run.rules import FINETUNE, FREE, PRETRAIN, WARN, Change, class_of
from bertkit.train.log import read_metrics

# settings that a resumed run may not change, or not unsaid, and which change nothing of what is learned
NO_CAUSES = (
    "evaluation",
    *(f"task.{name}" for name in ("metrics", "best_metric", "recipe", "files", "folders", "hub")),
)
RULES = {**FINETUNE, **PRETRAIN, "device": WARN}  # another device rounds otherwise
_OTHERS = ("step", "epoch", "tokens_per_second")


@dataclass(frozen=True)
class RunRecord:
    """What a run left of itself."""

    name: str  # by which it is told from the others
    settings: dict[str, Any]  # the resolved ones
    facts: dict[str, Any]  # what the manifest says of data, start, versions and processes
    rows: list[dict[str, Any]]  # of metrics.jsonl
    result: dict[str, Any]  # the final metrics; of a run that is not finished the newest ones
    is_finished: bool  # whether the final ones are there

    @property
    def last_step(self) -> int:
        """The last step that is logged; 0 where none is."""
        return int(self.rows[-1]["step"]) if self.rows else 0


@dataclass(frozen=True)
class Parting:
    """Where two runs part."""

    step: int | None  # the first logged one whose values differ; None where all that both logged are the same
    alike: int | None  # the last logged step before it; None where there is none
    num_shared: int  # steps that both have logged
    differing: dict[str, tuple[Any, Any]]  # the values that differ at that step, by name
    causes: list[Change]  # the settings and facts that differ and change what is learned


def read_run(path: Path) -> RunRecord | None:
    """Read what a run left; None where the directory holds none.

    Raises:
        InputError: a file of it is damaged.
    """
    if not all((path / name).is_file() for name in ("manifest.json", "config.yaml")):
        return None
    manifest = read_manifest(path)
    log = path / "metrics.jsonl"
    rows = read_metrics(log) if log.is_file() else []
    is_finished = (path / RESULT).is_file()
    measured = [row for row in rows if any(key.startswith("eval_") for key in row)]
    newest = {key[5:]: value for key, value in (measured[-1] if measured else {}).items() if key.startswith("eval_")}
    identity = manifest.identity
    facts: dict[str, Any] = {
        "data_fingerprint": _short(identity.get("data_fingerprint", manifest.data_fingerprint)),
        "starting_weights": _short(identity.get("starting_weights")),
    }
    for name in ("tokenizer_sha256", "world_size", "packages", "bertkit", "git_revision"):
        facts[name] = getattr(manifest, name)
    result = read_json(path / RESULT) if is_finished else newest
    return RunRecord(str(path), read_settings(path), facts, rows, result, is_finished)


def by_seed(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Put runs together that differ in their seed alone."""
    groups: list[list[RunRecord]] = []
    for record in records:
        alike = (group for group in groups if not differing([group[0], record]).keys() - {"seed"})
        group = next(alike, None)
        if group is None:
            groups.append([record])
        else:
            group.append(record)
    return groups


def _short(hashes: Any) -> str | None:
    """Put one or more hashes into twelve digits."""
    return None if hashes is None else hashlib.blake2b(repr(hashes).encode(), digest_size=6).hexdigest()


def differing(records: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Give the settings and facts in which any run differs from the first, with the value of each run."""
    wholes = [{**record.settings, **record.facts} for record in records]
    for whole in wholes:
        whole.pop("output_dir", None)
    keys: dict[str, None] = {}
    for other in wholes[1:]:
        keys |= dict.fromkeys(key for key, _, _ in differences(wholes[0], other))
    return {key: [at(whole, key) for whole in wholes] for key in keys}


def part(first: RunRecord, second: RunRecord) -> Parting:
    """Find the first step at which two runs differ, and what may be why."""
    rows, others = ({row["step"]: row for row in record.rows} for record in (first, second))
    shared = sorted(rows.keys() & others.keys())
    alike = None
    for step in shared:
        found = _differing_values(rows[step], others[step])
        if found:
            return Parting(step, alike, len(shared), found, _causes(first, second))
        alike = step
    return Parting(None, alike, len(shared), {}, _causes(first, second))


def _differing_values(row: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = [name for name in row if name in other and name not in _OTHERS and not name.startswith("eval_")]
    return {name: (row[name], other[name]) for name in names if row[name] != other[name]}


def _causes(first: RunRecord, second: RunRecord) -> list[Change]:
    """Give the differences that change what is learned."""

    def is_cause(key: str) -> bool:
        if any(key == name or key.startswith(f"{name}.") for name in NO_CAUSES):
            return False
        return key.partition(".")[0] in first.facts or class_of(key, RULES) != FREE

    return [Change(key, *values) for key, values in differing([first, second]).items() if is_cause(key)]
