"""Stage: compare the scores, curves and settings of several runs; for two runs, find where they diverge and why.

Runs that differ only in their seed have one row, with the mean and standard deviation; if all runs do, each also has its own.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit.base.errors import InputError, listed, say
from bertkit.base.text_files import JsonObject
from bertkit.display.page import Table
from bertkit.display.report import comparison_page, is_comparison, scores_table
from bertkit.run.comparison import Divergence, RunRecord, by_seed, different_settings, find_divergence, read_run
from bertkit.run.directory import run_of
from bertkit.run.outputs import check_output, write_output
from bertkit.settings.compare import CompareSettings

MAX_LENGTH = 60  # characters of a value in the table
MAX_VALUES = 4  # differing values to show at the step where runs diverge


@dataclass(frozen=True)
class Comparison:
    """Several runs side by side."""

    records: list[RunRecord]
    groups: list[list[RunRecord]]  # runs that differ only in their seed
    scores: Table
    settings: Table  # those that differ
    lines: list[str]  # where two runs diverge, and why
    page: str


def run(settings: CompareSettings) -> None:
    """Compare two or more runs; print the tables, and write the page."""
    comparison = _compare(settings)
    differing = comparison.settings
    say(*comparison.scores.markdown().split("\n"), "")
    say(*(differing.markdown().split("\n") if differing.rows else ["no settings differ"]), "", *comparison.lines)
    _write_page(settings, comparison)
    say(f"page: {settings.output}")


def scores(settings: CompareSettings) -> JsonObject:
    """Compare two or more runs; write the page, and return the scores of each."""
    comparison = _compare(settings)
    _write_page(settings, comparison)
    return {record.name: record.scores for record in comparison.records}


def _write_page(settings: CompareSettings, comparison: Comparison) -> None:
    """Write the page; it replaces an earlier one of `compare`, and another file only with `overwrite`."""
    check_output(settings.output, settings.overwrite or is_comparison(Path(settings.output)))
    write_output(settings.output, comparison.page)


def _compare(settings: CompareSettings) -> Comparison:
    names = dict.fromkeys(map(_run_dir, settings.runs))
    runs = {name: read_run(Path(os.path.expanduser(name))) for name in names}
    others = [name for name, record in runs.items() if record is None]
    if others:
        say(f"not a run, and left out: {', '.join(others)}", file=sys.stderr)
    records = _with_short_names([record for record in runs.values() if record is not None])
    if len(records) < 2:
        raise InputError(f"runs={list(settings.runs)}: expected at least two run directories, found {len(records)}")
    rows = groups = by_seed(records)
    if len(groups) == 1:
        groups = [[record] for record in records]
        rows = [*groups, records]
    labels = [_label(group) for group in groups]
    table = scores_table([(_label(row), _steps(row), [record.scores for record in row]) for row in rows])
    different = different_settings([group[0] for group in groups])
    lines = _describe(labels, find_divergence(*records)) if len(records) == 2 else []
    if len({record.kind for record in records}) > 1:
        kinds = ", ".join(f"{label} {group[0].kind}" for label, group in zip(labels, groups, strict=True))
        lines = [
            f"runs of different kinds ({kinds}): losses and scores measure different things; settings of both kinds are above"
        ]
        different = {key: values for key, values in different.items() if None not in values}
    differing = [(key, *map(_shown, values)) for key, values in different.items()]
    settings_table = Table("What differs", ("setting", *labels), differing)
    curves = [(label, [record.rows for record in group]) for label, group in zip(labels, groups, strict=True)]
    page = comparison_page(curves, lines, [table, settings_table])
    return Comparison(records, groups, table, settings_table, lines, page)


def _run_dir(name: str) -> str:
    """Return the directory of a run; a run's model stands for the run."""
    run_dir, path = run_of(name), Path(os.path.expanduser(name)).resolve()
    return os.path.normpath(name) if run_dir in (None, path) else str(run_dir)


def _with_short_names(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Shorten the names of the runs to the parts of their paths that differ."""
    paths = [Path(record.name).resolve() for record in records]
    above = os.path.commonpath([path.parent for path in paths]) if paths else ""
    named = zip(records, paths, strict=True)
    return [dataclasses.replace(record, name=str(path.relative_to(above))) for record, path in named]


def _label(group: Sequence[RunRecord]) -> str:
    """Label a single run with its name, and the mean of several seeds with their names, without the seed."""
    names = [record.name for record in group]
    if len(names) == 1:
        return names[0]
    shared = dict.fromkeys(re.sub(r"[/_. -]*seed[/_. -]*[0-9]+$", "", name) for name in names)
    return ": ".join(filter(None, (f"mean of {len(names)} seeds", ", ".join(filter(None, shared)))))


def _steps(group: Sequence[RunRecord]) -> str:
    slowest = min(group, key=lambda record: record.is_finished)
    return f"{slowest.last_step:,}{'' if slowest.is_finished else ', not finished'}"


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"


def _describe(labels: Sequence[str], divergence: Divergence) -> list[str]:
    """Describe where two runs diverge, and why."""
    first, second = labels
    causes = divergence.causes
    if not divergence.num_shared:
        return [f"{first} and {second} have no logged step in common; set the same log.every_steps for both"]
    if divergence.step is None:
        line = f"{first} and {second} are identical at all {divergence.num_shared:,} steps that both log"
        differ = "differs" if len(causes) == 1 else "differ"
        return [f"{line}, though {', '.join(cause.key for cause in causes)} {differ}" if causes else line]
    before, values = divergence.step_before, divergence.values
    same = "" if before is None else f"; at step {before:,}, the logged step before, they are still identical"
    shown = [
        f"{name} ({' and '.join(f'{value:.6g}' if isinstance(value, float) else str(value) for value in pair)})"
        for name, pair in values.items()
    ]
    lines = [
        f"{first} and {second} diverge at step {divergence.step:,}{same}",
        f"different values there: {listed(shown, ', ', MAX_VALUES)}",
    ]
    if "batch" in values:
        lines.append("the examples of this step differ")
    if not causes:
        lines.append(
            "why: settings, data, starting weights and versions are the same; another machine may round differently"
        )
    return lines + [
        f"why: {cause.key} is {_shown(cause.old)} in {first} and {_shown(cause.new)} in {second}" for cause in causes
    ]
