"""Stage: several runs -> a table and a page of their scores, curves and settings; for two, where they diverge and why.

Where several settings have several seeds, the seeds of a setting make one row: mean and standard deviation.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError, say
from bertkit.run.comparison import Divergence, RunRecord, by_seed, different_settings, find_divergence, read_run
from bertkit.run.outputs import check_output, write_output
from bertkit.settings.compare import CompareSettings
from bertkit.view.report import comparison_page, scores_table, settings_table

MAX_LENGTH = 60  # of a value in the table
MAX_VALUES = 4  # of a step of the log


def run(settings: CompareSettings) -> None:
    """Compare.

    Raises:
        InputError: fewer than two of the directories hold a run, or a file of one is damaged.
    """
    check_output(settings.output, settings.overwrite)
    names = dict.fromkeys(os.path.normpath(name) for name in settings.runs)
    runs = {name: read_run(Path(name).expanduser()) for name in names}
    others = [name for name, record in runs.items() if record is None]
    if others:
        say(f"left out, without a run: {', '.join(others)}", file=sys.stderr)
    records = _with_short_names([record for record in runs.values() if record is not None])
    if len(records) < 2:
        raise InputError(
            f"runs={list(settings.runs)}: {len(records)} of them hold(s) a run; expected at least two run directories"
        )
    groups = by_seed(records)
    if sum(len(group) > 1 for group in groups) < 2:  # not several seeds of several settings
        groups = [[record] for record in records]
    labels = [_label(group) for group in groups]
    rows = []
    for label, group in zip(labels, groups, strict=True):
        slowest = min(group, key=lambda record: record.is_finished)
        steps = f"{slowest.last_step:,}{'' if slowest.is_finished else ', not finished'}"
        rows.append((label, steps, [record.scores for record in group]))
    scores = scores_table(rows)
    different = different_settings([group[0] for group in groups])
    table = settings_table(labels, {key: [_shown(value) for value in values] for key, values in different.items()})
    lines = _describe(labels, find_divergence(*records)) if len(records) == 2 else []
    say(*scores.markdown().split("\n"), "")
    say(*(table.markdown().split("\n") if different else ["no settings differ"]), "", *lines)
    curves = [(label, [record.rows for record in group]) for label, group in zip(labels, groups, strict=True)]
    write_output(settings.output, comparison_page(curves, lines, [scores, table]))
    say(f"page: {settings.output}")


def _with_short_names(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Name the runs by the part of their paths that differs."""
    paths = [Path(record.name).resolve() for record in records]
    above = os.path.commonpath([path.parent for path in paths]) if paths else ""
    named = zip(records, paths, strict=True)
    return [dataclasses.replace(record, name=str(path.relative_to(above))) for record, path in named]


def _label(group: Sequence[RunRecord]) -> str:
    """Label a run with its name, and several seeds with the name of the first."""
    name = group[0].name
    if len(group) == 1:
        return name
    return f"{re.sub(r'[/_. -]*seed[/_. -]*[0-9]+$', '', name) or name}, {len(group)} seeds"


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _describe(labels: Sequence[str], divergence: Divergence) -> list[str]:
    """Tell where two runs diverge, and why."""
    first, second = labels
    causes = divergence.causes
    if not divergence.num_shared:
        return [f"{first} and {second} log no step that both have; set the same log.every_steps for both"]
    if divergence.step is None:
        line = f"{first} and {second} are the same at all {divergence.num_shared:,} steps that both log"
        return [f"{line}, though {', '.join(cause.key for cause in causes)} differ" if causes else line]
    before, values = divergence.step_before, divergence.values
    same = "" if before is None else f"; at step {before:,}, logged before it, they are still the same"
    shown = [f"{name} ({' and '.join(map(_number, pair))})" for name, pair in values.items()]
    more = f" and {len(shown) - MAX_VALUES} more" if len(shown) > MAX_VALUES else ""
    lines = [
        f"{first} and {second} diverge at step {divergence.step:,}{same}",
        f"what differs there: {', '.join(shown[:MAX_VALUES])}{more}",
    ]
    if "batch" in values:
        lines.append("the step has other examples")
    if not causes:
        lines.append("why: no setting, data, start or version differs; another machine may round differently")
    return lines + [
        f"why: {cause.key} is {_shown(cause.old)} in {first} and {_shown(cause.new)} in {second}" for cause in causes
    ]
