"""Runs beside one another: what each scored, which settings differ, and where two of them part and why."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.config import at, differences
from bertkit.lines import read_json
from bertkit.run.directory import RESULT, read_manifest, read_settings
from bertkit.train.log import read_metrics

# what a setting or a fact of the manifest changes; a name stands for everything below it that has no line of its own
CHANGES = {
    "seed": "seed",
    "data_fingerprint": "data",
    "tokenizer_sha256": "data",
    "segments": "data",
    "final_phase": "data",
    "max_train_examples": "data",
    "dev_share": "data",
    "task": "data",
    "data": "data",
    "batch.sequences": "batch",
    "masking": "masks",
    "starting_weights": "start",
    "init_moments": "start",
    "reinit_layers": "start",
    **dict.fromkeys(("model", "attention", "norm", "pooling", "decoder"), "start"),
    **dict.fromkeys(("tokenizer", "vocabulary"), "data"),
    "optimizer": "optimizer",
    "schedule": "optimizer",
    "steps": "optimizer",
    "num_epochs": "optimizer",
    "freeze": "optimizer",
    "layer_decay": "optimizer",
    "class_weights": "optimizer",
    "batch": "arithmetic",
    "precision": "arithmetic",
    "kernels": "arithmetic",
    "compile": "arithmetic",
    "reproducibility": "arithmetic",
    "device": "arithmetic",
    "world_size": "arithmetic",
    "packages": "arithmetic",
    "bertkit": "arithmetic",
    "git_revision": "arithmetic",
}
NO_CAUSES = (
    "task.metrics",
    "task.best_metric",
    "task.recipe",
    "task.files",
    "task.folders",
    "task.hub",
)  # of what is learned
MEANING = {
    "seed": "the start, the order of the examples, the masks and dropout",
    "data": "what the model reads",
    "batch": "how many examples make up a step",
    "masks": "which tokens are hidden",
    "start": "the weights before the first step, or the shape of the model",
    "optimizer": "what a step makes of a gradient",
    "arithmetic": "rounding, and with it everything after",
}
# the first thing that differs in the log -> what may be behind it, the likeliest first; the others come after
SIGNS = {
    "batch": ("batch", "data", "seed"),
    "learning_rate": ("optimizer", "batch", "data"),
    "loss": ("data", "start", "masks", "seed", "optimizer", "arithmetic"),
}
_OTHERS = ("step", "epoch", "tokens_per_second")


@dataclass(frozen=True)
class RunRecord:
    """What a run left of itself.

    Attributes:
        name: by which it is told from the others.
        settings: the resolved ones.
        facts: what the manifest says of data, start, versions and processes.
        rows: of metrics.jsonl.
        result: the final metrics; of a run that is not finished the newest ones.
        is_finished: whether the final ones are there.
    """

    name: str
    settings: dict[str, Any]
    facts: dict[str, Any]
    rows: list[dict[str, Any]]
    result: dict[str, Any]
    is_finished: bool

    @property
    def last_step(self) -> int:
        """The last step that is logged; 0 where none is."""
        return int(self.rows[-1]["step"]) if self.rows else 0


@dataclass(frozen=True)
class Cause:
    """A difference between two runs that may be why they part."""

    kind: str  # a key of MEANING
    key: str
    first: Any
    second: Any


@dataclass(frozen=True)
class Parting:
    """Where two runs part.

    Attributes:
        step: the first logged one whose values differ; None where all that both logged are the same.
        alike: the last logged step before it; None where there is none.
        num_shared: steps that both have logged.
        differing: the values that differ at that step, by name.
        causes: the likeliest first; those of the first one's kind explain what is seen.
    """

    step: int | None
    alike: int | None
    num_shared: int
    differing: dict[str, tuple[Any, Any]]
    causes: list[Cause]


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
            return Parting(step, alike, len(shared), found, _causes(first, second, found))
        alike = step
    return Parting(None, alike, len(shared), {}, _causes(first, second, {}))


def _differing_values(row: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = [name for name in row if name in other and name not in _OTHERS and not name.startswith("eval_")]
    return {name: (row[name], other[name]) for name in names if row[name] != other[name]}


def _causes(first: RunRecord, second: RunRecord, found: Mapping[str, Any]) -> list[Cause]:
    """Give the differences that change what is learned; those come first that fit the first sign of it in the log."""
    sign = next((name for name in ("batch", "loss", "learning_rate") if name in found), "loss")
    order = [*SIGNS[sign], *(kind for kind in MEANING if kind not in SIGNS[sign])]
    causes = []
    for key, (one, other) in differing([first, second]).items():
        kind = kind_of(key)
        if kind is not None:
            causes.append(Cause(kind, key, one, other))
    return sorted(causes, key=lambda cause: order.index(cause.kind))


def kind_of(key: str) -> str | None:
    """Say what a setting changes of what is learned; None: nothing."""
    if any(key == name or key.startswith(f"{name}.") for name in NO_CAUSES):
        return None
    name = key
    while name and name not in CHANGES:
        name = name.rpartition(".")[0]
    return CHANGES.get(name)
