"""GLUE: the mean score over seeds, the average over tasks, and the archive for the GLUE server, a zip file of eleven tables.

    CoLA.tsv       index<TAB>prediction
                   0<TAB>1
                   1<TAB>0
                   ...

Source: gluebenchmark.com, FAQ; file names and labels compared with four public submission scripts.
"""

import io
import re
import statistics
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError, refusing
from bertkit.base.files import check_size, write_durably
from bertkit.base.typed_settings import refuse
from bertkit.tasks.sequence import SequencePrediction
from bertkit.tasks.task_config import TaskConfig

HEADER = "index\tprediction"
SCORE_RANGE = (0.0, 5.0)
SHEET_MB = 16  # the largest sheet, QQP's, has 3.5 MB
FILE_TIME = (1980, 1, 1, 0, 0, 0)  # of all files in the zip, so that equal predictions give equal bytes
_SCORE = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class ResultSheet:
    """One table of the archive."""

    name: str  # the file name
    task: str
    split: str
    labels: tuple[str, ...] | None  # the labels that the server expects; None for a number in `SCORE_RANGE`


_NUMBERS = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
_RELATIONS = ("entailment", "neutral", "contradiction")
SHEETS = (
    ResultSheet("CoLA.tsv", "cola", "test", _NUMBERS),
    ResultSheet("SST-2.tsv", "sst2", "test", _NUMBERS),
    ResultSheet("MRPC.tsv", "mrpc", "test", _NUMBERS),
    ResultSheet("STS-B.tsv", "stsb", "test", None),
    ResultSheet("QQP.tsv", "qqp", "test", _NUMBERS),
    ResultSheet("MNLI-m.tsv", "mnli", "test", _RELATIONS),
    ResultSheet("MNLI-mm.tsv", "mnli", "test_mismatched", _RELATIONS),
    ResultSheet("QNLI.tsv", "qnli", "test", _ENTAILED),
    ResultSheet("RTE.tsv", "rte", "test", _ENTAILED),
    ResultSheet("WNLI.tsv", "wnli", "test", _NUMBERS),
    ResultSheet("AX.tsv", "ax", "test", _RELATIONS),
)


def table(task: TaskConfig, predictions: Sequence[SequencePrediction[str]]) -> str:
    """Format predictions as a table for the server: its own label names, and numbers clipped to `SCORE_RANGE`."""
    low, high = SCORE_RANGE
    served = dict(zip(task.label_names or (), task.labels_in_files or task.label_names or (), strict=True))
    rows = [HEADER]
    for prediction in predictions:
        label = prediction.label
        value = served[label] if isinstance(label, str) else f"{min(max(label, low), high):.3f}"
        rows.append(f"{prediction.id}\t{value}")
    return "\n".join(rows) + "\n"


def write_archive(path: Path, tables: Mapping[str, str], indices: Mapping[str, Sequence[str]]) -> None:
    """Write the text of each sheet by its name; equal tables give equal bytes; for errors and `indices` see `check_archive`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in tables.items():
            entry = zipfile.ZipInfo(name, FILE_TIME)
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
            archive.writestr(entry, text.encode())
    _check_content(path, buffer.getvalue(), indices)
    write_durably(path, buffer.getvalue())


def check_archive(path: Path, indices: Mapping[str, Sequence[str]] = {}) -> dict[str, int]:
    """Check that the server would accept and understand an archive; return the number of predictions of each sheet.

    `indices` holds the ids in the test file of each sheet; by default they count from 0. If the archive is wrong, InputError
    has a line for each wrong file, with its first error.
    """
    with refusing(OSError, lambda error: f"{path}: {error.strerror or error}; expected the archive of bertkit glue"):
        check_size(path)
        content = path.read_bytes()
    return _check_content(path, content, indices)


def _check_content(path: Path, content: bytes, indices: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Check the bytes of an archive; `path` is its name in errors."""
    kinds = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, zlib.error)
    wrong = refusing(kinds, lambda error: f"{path}: not a valid zip file ({error}); write it again with bertkit glue")
    with wrong, zipfile.ZipFile(io.BytesIO(content)) as archive:
        return _check_sheets(path, archive, indices)


def _check_sheets(path: Path, archive: zipfile.ZipFile, indices: Mapping[str, Sequence[str]]) -> dict[str, int]:
    names = archive.namelist()
    known = [sheet.name for sheet in SHEETS]
    problems = [f"{path}: no {name}; the server expects all {len(known)} files" for name in known if name not in names]
    for name in dict.fromkeys(names):
        if name not in known:
            what = "in a folder" if "/" in name else "not a GLUE file"
            problems.append(f"{path}: '{name}' is {what}; expected only {', '.join(known)}, at the top level")
        elif names.count(name) > 1:
            problems.append(f"{path}: {names.count(name)} files {name}; keep one of them")
    counts = {}
    for sheet in () if problems else SHEETS:
        try:
            counts[sheet.name] = _check_table(sheet, _read_sheet(archive, sheet.name), indices.get(sheet.name))
        except InputError as error:
            problems.append(f"{path}: {error}")
    refuse(*problems)
    return counts


def _read_sheet(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as file:
        data = file.read(SHEET_MB * 1_000_000 + 1)
    if len(data) > SHEET_MB * 1_000_000:
        raise InputError(f"{name}: larger than {SHEET_MB} MB; expected a prediction a line, as bertkit glue writes it")
    return data


def _check_table(sheet: ResultSheet, data: bytes, indices: Sequence[str] | None) -> int:
    """Check a sheet and return the number of its predictions."""
    with refusing(
        UnicodeDecodeError, lambda e: f"{sheet.name}: not UTF-8 (byte 0x{data[e.start]:02x}); write plain text"
    ):
        header, *lines = data.decode("utf-8").removesuffix("\n").split("\n")
    if header != HEADER:
        raise InputError(f"{sheet.name}:1: header {header[:60]!r}; expected {HEADER!r}")
    expected = list(map(str, range(len(lines)))) if indices is None else indices
    for number, (line, index) in enumerate(zip(lines, expected, strict=False), 2):
        own_index, _, label = line.partition("\t")
        if own_index != index:
            raise InputError(
                f"{sheet.name}:{number}: index {own_index[:60]!r}, expected {index}; keep all examples in the order of the test file"
            )
        _check_label(sheet, label, f"{sheet.name}:{number}")
    if not lines or len(lines) != len(expected):
        raise InputError(f"{sheet.name}: {len(lines)} predictions for {len(expected)} test examples; predict all")
    return len(lines)


def _check_label(sheet: ResultSheet, label: str, where: str) -> None:
    if sheet.labels is not None:
        if label not in sheet.labels:
            raise InputError(f"{where}: unknown label {label!r}; expected {' or '.join(sheet.labels)}")
    elif not _SCORE.fullmatch(label) or not SCORE_RANGE[0] <= float(label) <= SCORE_RANGE[1]:
        raise InputError(f"{where}: score {label!r}; expected a number from {SCORE_RANGE[0]:g} to {SCORE_RANGE[1]:g}")


LEFT_OUT = ("wnli",)  # tasks that are not in the average, as in Devlin et al. 2019, section 4.1


@dataclass(frozen=True)
class SeedRun:
    """One task with one seed."""

    seed: int
    directory: Path
    metrics: dict[str, float]  # on the dev set
    fault: str | None  # the reason why the run is not in the mean; None if it is

    @property
    def score(self) -> float:
        """The mean of the metrics."""
        return statistics.fmean(self.metrics.values())


def best_of(task_runs: Sequence[SeedRun]) -> SeedRun | None:
    """Return the run that predicts the test files: the first with the best score, if possible one without a fault."""
    ended = [run for run in task_runs if run.metrics]
    return max([run for run in ended if run.fault is None] or ended, key=lambda run: run.score, default=None)


def summarise(results: Mapping[str, Sequence[SeedRun]], directory: Path) -> dict[str, Any]:
    """Return each task's mean and sample standard deviation over its seeds, and the average over the tasks.

    Tasks in `LEFT_OUT`, and tasks whose runs all have a fault, are not in the average.
    """
    summary: dict[str, Any] = {}
    for name, task_runs in results.items():
        counted = [run for run in task_runs if run.fault is None]
        best = best_of(task_runs)
        columns = {key: [run.metrics[key] for run in counted] for key in (counted[0].metrics if counted else ())}
        summary[name] = {
            "score": _mean_and_deviation([run.score for run in counted]) if counted else None,
            "metrics": {key: _mean_and_deviation(values) for key, values in columns.items()},
            "num_seeds": len(counted),
            "best_seed": None if best is None else best.seed,
            "runs": [
                {"seed": run.seed, "directory": str(run.directory.relative_to(directory))} | run.metrics | {"fault": run.fault}
                for run in task_runs
            ],
        }  # fmt: skip
    averaged = [name for name, row in summary.items() if row["score"] and name not in LEFT_OUT]
    average = statistics.fmean(summary[name]["score"]["mean"] for name in averaged) if averaged else None
    left_out = [name for name in summary if name not in averaged]
    return {"tasks": summary, "average": {"score": average, "tasks": averaged, "left_out": left_out}}


def _mean_and_deviation(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": statistics.fmean(values), "deviation": statistics.stdev(values) if len(values) > 1 else None}
