"""Compare runs: their scores, the settings that differ, and the first step at which two of them diverge."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.typed_settings import at, differences
from bertkit.run.directory import RESULT, read_manifest, read_scores, read_settings
from bertkit.run.resume_rules import FINETUNE, FREE, PRETRAIN, WARN, Change, class_of
from bertkit.train.log import read_metrics

# settings that are not FREE (`resume_rules`), but cannot explain a divergence, since they do not affect the weights
IRRELEVANT = (
    "evaluation",
    *(f"task.{name}" for name in ("metrics", "best_metric", "recipe", "files", "folders", "hub")),
)
RULES = {**FINETUNE, **PRETRAIN, "device": WARN}  # another device rounds differently
NOT_COMPARED = ("step", "epoch", "tokens_per_second")
NOT_SCORES = ("steps", "best_step", "best_epoch", "num_examples", "is_degenerate")


@dataclass(frozen=True)
class RunRecord:
    """The contents of a run's files, for a comparison."""

    name: str
    settings: dict[str, object]
    facts: dict[str, object]  # from the manifest: data, starting weights, versions, number of processes
    rows: list[dict[str, Any]]  # the rows of metrics.jsonl
    result: dict[str, Any]  # the final metrics; for an unfinished run the newest evaluation
    is_finished: bool

    @property
    def kind(self) -> str:
        """What the run trains for."""
        return "fine-tuning" if "task" in self.settings else "pretraining"

    @property
    def last_step(self) -> int:
        """The last logged step; 0 if there is none."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def scores(self) -> dict[str, float]:
        """The scores among the final metrics, and the median speed."""
        scores = {
            name: value
            for name, value in self.result.items()
            if isinstance(value, (int, float))
            and name not in NOT_SCORES
            and not name.endswith(("total", "thresh", "threshold"))
        }
        speeds = sorted(row["tokens_per_second"] for row in self.rows if "tokens_per_second" in row)
        return scores | ({"tokens/s": speeds[len(speeds) // 2]} if speeds else {})


@dataclass(frozen=True)
class Divergence:
    """The first step at which two runs differ."""

    step: int | None  # the first step that both runs logged, with different values; None if there is none
    step_before: int | None  # the last step that both runs logged before `step`; None if there is none
    num_shared: int  # the number of steps that both runs logged
    values: dict[str, tuple[object, object]]  # the values at `step` that differ, by name
    causes: list[Change]  # differences in settings and facts that can change the weights


def read_run(path: Path) -> RunRecord | None:
    """Read the files of a run; None if the directory holds no run."""
    if not all((path / name).is_file() for name in ("manifest.json", "config.yaml")):
        return None
    manifest, rows = read_manifest(path), read_metrics(path / "metrics.jsonl")
    is_finished = (path / RESULT).is_file()
    if is_finished:
        result = read_scores(path)
    else:
        evaluations = [{key[5:]: row[key] for key in row if key.startswith("eval_")} for row in rows]
        result = next((scores for scores in reversed(evaluations) if scores), {})
    identity, settings = manifest.identity, read_settings(path)
    data = identity.get("data_fingerprint", manifest.data_fingerprint)
    facts: dict[str, object] = {
        # with dev_share the seed chooses the examples of both splits: then the files tell whether the data is the same
        "data_fingerprint": _short_hash(
            at(manifest.corpus or {}, "files_sha256") if settings.get("dev_share") else data
        ),
        "starting_weights": _short_hash(identity.get("starting_weights")),
        "tokenizer_sha256": manifest.tokenizer_sha256,
        "world_size": manifest.world_size,
        "packages": manifest.packages,
        "bertkit": manifest.bertkit,
        "git_revision": manifest.git_revision,
    }
    return RunRecord(str(path), settings, facts, rows, result, is_finished)


def by_seed(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Group runs that differ only in their seed."""
    groups: list[list[RunRecord]] = []
    for record in records:
        for group in groups:
            if different_settings([group[0], record]).keys() == {"seed"}:
                group.append(record)
                break
        else:
            groups.append([record])
    return groups


def _short_hash(value: object) -> str | None:
    """Hash a value to twelve hexadecimal digits; None stays None."""
    return None if value is None else hashlib.blake2b(repr(value).encode(), digest_size=6).hexdigest()


def different_settings(records: Sequence[RunRecord]) -> dict[str, list[object]]:
    """Return the settings and facts that differ, with the value in each run; `model.*` has no effect beside `model_dir`."""
    wholes = [{**record.settings, **record.facts, "output_dir": None} for record in records]
    skipped = "model." if any(whole.get("model_dir") for whole in wholes) else "output_dir"
    keys = dict.fromkeys(key for other in wholes[1:] for key, _, _ in differences(wholes[0], other))
    return {key: [at(whole, key) for whole in wholes] for key in keys if not key.startswith(skipped)}


def find_divergence(first: RunRecord, second: RunRecord) -> Divergence:
    """Find the first step at which two runs differ, and the possible causes."""
    causes = [Change(key, *pair) for key, pair in different_settings([first, second]).items() if _is_cause(key, first)]
    rows, others = ({row["step"]: row for row in record.rows} for record in (first, second))
    shared = sorted(rows.keys() & others.keys())
    for index, step in enumerate(shared):
        row, other = rows[step], others[step]
        names = [name for name in row if name in other and name not in NOT_COMPARED and not name.startswith("eval_")]
        values = {name: (row[name], other[name]) for name in names if row[name] != other[name]}
        if values:
            return Divergence(step, shared[index - 1] if index else None, len(shared), values, causes)
    return Divergence(None, shared[-1] if shared else None, len(shared), {}, causes)


def _is_cause(key: str, record: RunRecord) -> bool:
    """Return whether a setting or fact can change the weights."""
    if any(key == name or key.startswith(f"{name}.") for name in IRRELEVANT):
        return False
    return key.partition(".")[0] in record.facts or class_of(key, RULES) != FREE
