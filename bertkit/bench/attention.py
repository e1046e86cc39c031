"""Attentions beside one another: time and memory of a training step of one sequence, by its tokens."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from bertkit.bench.rounds import Round, held, one_round, started
from bertkit.bench.scaling import exponent
from bertkit.bench.workload import BERTKIT, System, Workload, make_workload, write_new_model
from bertkit.config import build, nearest, to_mapping
from bertkit.data.prepared import open_prepared
from bertkit.errors import InputError
from bertkit.model.config import PRETRAINING_HEADS, AttentionConfig, BertConfig, NormConfig
from bertkit.settings.bench import BenchSettings
from bertkit.view.bench_page import Findings
from bertkit.view.charts import LineChart
from bertkit.view.page import Table
from bertkit.view.progress import Progress


def compare_attention(settings: BenchSettings) -> Findings:
    """Take steps with each of `options` at each of `lengths`, in a process of its own.

    Memory is the highest point of the process beyond what it held with model and optimizer before.
    """
    seconds: dict[str, list[tuple[float, float]]] = {option: [] for option in settings.options}
    megabytes: dict[str, list[tuple[float, float]]] = {option: [] for option in settings.options}
    progress = Progress("measuring", len(settings.options) * len(settings.lengths))
    with tempfile.TemporaryDirectory(prefix="bertkit-bench-") as scratch, progress:
        workload = make_workload(settings, "pretrain", Path(scratch), max(settings.lengths))
        tokenizer = open_prepared(workload.data_dir).tokenizer
        for number, option in enumerate(settings.options):
            config = config_with(option, workload.config)
            model_dir = Path(scratch) / f"option-{number}"
            write_new_model(config, PRETRAINING_HEADS, tokenizer, model_dir, with_pooler=True)
            for length in settings.lengths:
                named: dict[str, Any] = {"config": config, "model_dir": model_dir, "max_seq_length": length}
                of_length = replace(workload, **named, batch_sequences=1, is_full=True)
                before, rounds = _rounds(of_length, option, settings)
                taken = statistics.median(each.seconds for each in rounds) / settings.steps_per_round
                seconds[option].append((length, taken))
                megabytes[option].append((length, rounds[-1].megabytes - before / 1e6))
                progress.advance(sum(map(len, megabytes.values())))
    results = [
        {
            "option": option,
            "seconds_exponent": exponent(seconds[option]),
            "megabytes_exponent": exponent(megabytes[option]),
            "points": [
                {"length": int(length), "seconds": taken, "megabytes": most}
                for (length, taken), (_, most) in zip(seconds[option], megabytes[option], strict=True)
            ],
        }
        for option in settings.options
    ]
    of_step = f"of a step of one sequence, {settings.precision}"
    tables = [_table(f"Milliseconds {of_step}", seconds, 1000), _table(f"Megabytes {of_step}", megabytes, 1)]
    charts = [
        LineChart(f"{title} {of_step}, by tokens", list(lines.items()), is_log=True)
        for title, lines in (("Seconds", seconds), ("Megabytes", megabytes))
    ]
    return Findings("seconds", results, tables, charts)


def _rounds(workload: Workload, option: str, settings: BenchSettings) -> tuple[int, list[Round]]:
    """Give the bytes that the process holds before, and the rounds without the first, which warms up."""
    with started(workload, System(option, BERTKIT, settings.precision)) as ask:
        before: int = ask(held)
        return before, [ask(one_round, number) for number in range(settings.rounds + 1)][1:]


def _table(title: str, lines: dict[str, list[tuple[float, float]]], factor: float) -> Table:
    """Put a figure of each option at each length into a table, with the exponent of each option."""
    head = ("tokens", *(option.replace("attention.", "") for option in lines))
    columns = list(lines.values())
    rows = [
        (f"{int(row[0][0]):,}", *(f"{factor * value:,.3g}" if value < 100 else f"{value:,.0f}" for _, value in row))
        for row in zip(*columns, strict=True)
    ]
    powers = [exponent(line) for line in columns]
    return Table(title, head, [*rows, ("exponent", *("" if power is None else f"{power:.2f}" for power in powers))])


def config_with(option: str, config: BertConfig) -> BertConfig:
    """Change what an option names, such as `attention.pattern=window attention.window=64`.

    Raises:
        InputError: it names no setting of attention or norm, or its value is none of it.
    """
    groups: dict[str, Any] = to_mapping(_Groups(config.attention, config.norm))
    known = [f"{group}.{name}" for group, values in groups.items() for name in values]
    for key, value in _pairs(option):
        if key not in known:
            raise InputError(f"options: unknown key '{key}' in '{option}'{nearest(key, known)}")
        group, _, name = key.partition(".")
        try:
            groups[group][name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InputError(f"options: '{key}={value}' in '{option}': expected a value without spaces") from None
    built = build(_Groups, groups)
    unused = [line for key, _ in _pairs(option) for line in built.attention.without_effect(key.partition(".")[2])]
    if unused:
        raise InputError(*unused)
    return replace(config, attention=built.attention, norm=built.norm, pooling="mean")  # [CLS] may see only itself


@dataclass(frozen=True)
class _Groups:
    attention: AttentionConfig
    norm: NormConfig


def _pairs(option: str) -> Sequence[tuple[str, str]]:
    found = [each.partition("=")[::2] for each in option.split()]
    return [(key, value) for key, value in found]
