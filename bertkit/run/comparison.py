"""Compare runs: their scores, the settings that differ, and the first step at which two of them diverge."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.text_files import read_json
from bertkit.base.typed_settings import at, differences
from bertkit.run.directory import RESULT, read_manifest, read_settings
from bertkit.run.resume_rules import FINETUNE, FREE, PRETRAIN, WARN, Change, class_of
from bertkit.train.log import read_metrics

# settings that are not free but do not affect training, so they cannot explain a divergence
NO_CAUSES = (
    "evaluation",
    *(f"task.{name}" for name in ("metrics", "best_metric", "recipe", "files", "folders", "hub")),
)
RULES = {**FINETUNE, **PRETRAIN, "device": WARN}  # another device rounds differently
NOT_COMPARED = ("step", "epoch", "tokens_per_second")
NO_SCORES = ("steps", "best_step", "best_epoch", "num_examples", "is_degenerate")


@dataclass(frozen=True)
class RunRecord:
    """The files of a run, as they are compared."""

    name: str
    settings: dict[str, Any]
    facts: dict[str, Any]  # data, starting weights, versions and processes, from the manifest
    rows: list[dict[str, Any]]  # of metrics.jsonl
    result: dict[str, Any]  # the final metrics, or the newest ones of an unfinished run
    is_finished: bool

    @property
    def last_step(self) -> int:
        """The last logged step; 0 without any."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def scores(self) -> dict[str, float]:
        """The numbers in the result that are scores, and the median speed."""
        scores = {
            name: value
            for name, value in self.result.items()
            if isinstance(value, (int, float))
            and name not in NO_SCORES
            and not name.endswith(("total", "thresh", "threshold"))
        }
        speeds = sorted(row["tokens_per_second"] for row in self.rows if "tokens_per_second" in row)
        return scores | ({"tokens/s": speeds[len(speeds) // 2]} if speeds else {})


@dataclass(frozen=True)
class Divergence:
    """Where two runs diverge."""

    step: int | None  # the first one logged by both with different values; None where all are the same
    step_before: int | None  # the last one logged by both before it; None without any
    num_shared: int  # steps that both have logged
    values: dict[str, tuple[Any, Any]]  # different ones at that step, by name
    causes: list[Change]  # differences in settings and facts that change what is learned


def read_run(path: Path) -> RunRecord | None:
    """Read the files of a run; None where the directory holds none.

    Raises:
        InputError: a file is damaged.
    """
    if not all((path / name).is_file() for name in ("manifest.json", "config.yaml")):
        return None
    manifest, rows = read_manifest(path), read_metrics(path / "metrics.jsonl")
    is_finished = (path / RESULT).is_file()
    if is_finished:
        result = read_json(path / RESULT)
    else:
        evaluations = [{key[5:]: row[key] for key in row if key.startswith("eval_")} for row in rows]
        result = next((scores for scores in reversed(evaluations) if scores), {})
    identity = manifest.identity
    facts: dict[str, Any] = {
        "data_fingerprint": _short(identity.get("data_fingerprint", manifest.data_fingerprint)),
        "starting_weights": _short(identity.get("starting_weights")),
    }
    for name in ("tokenizer_sha256", "world_size", "packages", "bertkit", "git_revision"):
        facts[name] = getattr(manifest, name)
    return RunRecord(str(path), read_settings(path), facts, rows, result, is_finished)


def by_seed(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Group runs that differ in their seed alone."""
    groups: list[list[RunRecord]] = []
    for record in records:
        for group in groups:
            if not different_settings([group[0], record]).keys() - {"seed"}:
                group.append(record)
                break
        else:
            groups.append([record])
    return groups


def _short(hashes: Any) -> str | None:
    """Shorten one or more hashes to twelve digits."""
    return None if hashes is None else hashlib.blake2b(repr(hashes).encode(), digest_size=6).hexdigest()


def different_settings(records: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Give the settings and facts in which any run differs from the first, with the value of each run."""
    wholes = [{**record.settings, **record.facts, "output_dir": None} for record in records]
    keys = {key: None for other in wholes[1:] for key, _, _ in differences(wholes[0], other)}
    return {key: [at(whole, key) for whole in wholes] for key in keys}


def diverge(first: RunRecord, second: RunRecord) -> Divergence:
    """Find the first step at which two runs differ, and possible causes."""
    causes = [Change(key, *pair) for key, pair in different_settings([first, second]).items() if _is_cause(key, first)]
    rows, others = ({row["step"]: row for row in record.rows} for record in (first, second))
    shared = sorted(rows.keys() & others.keys())
    for place, step in enumerate(shared):
        values = _different_values(rows[step], others[step])
        if values:
            return Divergence(step, shared[place - 1] if place else None, len(shared), values, causes)
    return Divergence(None, shared[-1] if shared else None, len(shared), {}, causes)


def _different_values(row: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = [name for name in row if name in other and name not in NOT_COMPARED and not name.startswith("eval_")]
    return {name: (row[name], other[name]) for name in names if row[name] != other[name]}


def _is_cause(key: str, record: RunRecord) -> bool:
    """Tell whether a setting or fact changes what is learned."""
    if any(key == name or key.startswith(f"{name}.") for name in NO_CAUSES):
        return False
    return key.partition(".")[0] in record.facts or class_of(key, RULES) != FREE
