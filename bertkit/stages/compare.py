"""Stage: several runs -> a table and a page of their scores, curves and settings; of two, where they diverge and why.

Where several settings come with several seeds each, the seeds of a setting make one row: mean and standard deviation.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError, say
from bertkit.run.comparison import Parting, RunRecord, by_seed, differing, part, read_run
from bertkit.run.outputs import check_output, write_output
from bertkit.settings.compare import CompareSettings
from bertkit.view.compare import comparison_page, scores_table, settings_table

MAX_LENGTH = 60  # of a value that is shown
MAX_VALUES = 4  # of a step of the log


def run(settings: CompareSettings) -> None:
    """Compare.

    Raises:
        InputError: fewer than two of the directories hold a run, or a file of one is damaged.
    """
    check_output(settings.output, settings.overwrite)
    records, others = [], []
    for name in dict.fromkeys(os.path.normpath(name) for name in settings.runs):
        found = read_run(Path(name).expanduser())
        if found is None:
            others.append(name)
        else:
            records.append(found)
    if others:
        say(f"left out, for they hold no run: {', '.join(others)}", file=sys.stderr)
    if len(records) < 2:
        raise InputError(
            f"runs={list(settings.runs)}: {len(records)} of them hold(s) a run; expected at least two directories of "
            "pretraining or fine-tuning"
        )
    records = _named(records)
    groups = by_seed(records)
    if sum(len(group) > 1 for group in groups) < 2:  # else several seeds of several settings
        groups = [[record] for record in records]
    names = [_name_of(group) for group in groups]
    measured = [
        (name, _standing(min(group, key=lambda record: record.is_finished)), [scores_of(record) for record in group])
        for name, group in zip(names, groups, strict=True)
    ]
    scores = scores_table(measured)
    firsts = [group[0] for group in groups]
    rows = {key: [_shown(value) for value in values] for key, values in differing(firsts).items()}
    lines = _told(names, part(*records)) if len(records) == 2 else []
    table = settings_table(names, rows)
    say(*scores.markdown().split("\n"), "")
    say(*(table.markdown().split("\n") if rows else ["no settings differ"]))
    say("", *lines)
    curves = [(name, [record.rows for record in group]) for name, group in zip(names, groups, strict=True)]
    page = comparison_page(curves, lines, [scores, table])
    write_output(settings.output, page)
    say(f"page: {settings.output}")


def _named(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Call the runs by what tells their paths apart."""
    paths = [Path(record.name).resolve() for record in records]
    above = Path(os.path.commonpath([path.parent for path in paths]))
    return [
        dataclasses.replace(record, name=str(path.relative_to(above)))
        for record, path in zip(records, paths, strict=True)
    ]


def _name_of(group: Sequence[RunRecord]) -> str:
    """Call a run by its name, and several seeds by the first of them."""
    if len(group) == 1:
        return group[0].name
    return f"{re.sub(r'[/_. -]*seed[/_. -]*[0-9]+$', '', group[0].name) or group[0].name}, {len(group)} seeds"


def _standing(record: RunRecord) -> str:
    return f"{record.last_step:,}" if record.is_finished else f"{record.last_step:,}, not finished"


def scores_of(record: RunRecord) -> dict[str, float]:
    """Give the scores of a run, and how fast it was in the middle of its log."""
    left_out = ("steps", "best_step", "best_epoch", "num_examples", "is_degenerate")
    scores = {
        name: value
        for name, value in record.result.items()
        if isinstance(value, (int, float))
        and name not in left_out
        and not name.endswith(("total", "thresh", "threshold"))
    }
    speeds = sorted(row["tokens_per_second"] for row in record.rows if "tokens_per_second" in row)
    return scores | ({"tokens/s": speeds[len(speeds) // 2]} if speeds else {})


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"


def _told(names: Sequence[str], parting: Parting) -> list[str]:
    """Say where two runs part, and why, a line each."""
    first, second = names
    if not parting.num_shared:
        return [
            f"{first} and {second} log no step that both have; set the same log.every_steps to see where they diverge"
        ]
    if parting.step is None:
        end = f"{first} and {second} are the same at all {parting.num_shared:,} steps that both log"
        return [f"{end}, though {_named_keys(parting)} differ" if parting.causes else end]
    before = "" if parting.alike is None else f"; at step {parting.alike:,}, logged before it, they are still the same"
    shown = [f"{name} ({_number(one)} and {_number(other)})" for name, (one, other) in parting.differing.items()]
    more = f" and {len(shown) - MAX_VALUES} more" if len(shown) > MAX_VALUES else ""
    lines = [
        f"{first} and {second} diverge at step {parting.step:,}{before}",
        f"what differs there: {', '.join(shown[:MAX_VALUES])}{more}",
    ]
    if "batch" in parting.differing:
        lines.append("the examples of the step are others")
    lines += [
        f"why: {cause.key} is {_shown(cause.old)} in {first} and {_shown(cause.new)} in {second}"
        for cause in parting.causes
    ]
    if not parting.causes:
        lines.append(
            "why: no setting, data, start or version of the two differs; another machine or number of threads may round otherwise"
        )
    return lines


def _named_keys(parting: Parting) -> str:
    return ", ".join(cause.key for cause in parting.causes)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
