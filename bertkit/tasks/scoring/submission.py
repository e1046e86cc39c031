"""The archive that the GLUE server takes: eleven tables of predictions in a zip; written, and checked, here.

    CoLA.tsv       index<TAB>prediction
                   0<TAB>1
                   1<TAB>0
                   ...

Source: gluebenchmark.com, FAQ; names and labels cross-read in four public scripts that submit.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.files import write_durably
from bertkit.tasks.sequence import SequencePrediction
from bertkit.tasks.task_config import TaskConfig

HEADER = "index\tprediction"
SCORE_RANGE = (0.0, 5.0)
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold: the same predictions give the same bytes
_SCORE = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class Sheet:
    """One table of the archive."""

    name: str  # of the file
    task: str  # whose test examples it answers
    split: str  # of them
    labels: tuple[str, ...] | None  # what the server takes; None for a number in `SCORE_RANGE`


_NUMBERS = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
_RELATIONS = ("entailment", "neutral", "contradiction")
SHEETS = (
    Sheet("CoLA.tsv", "cola", "test", _NUMBERS),
    Sheet("SST-2.tsv", "sst2", "test", _NUMBERS),
    Sheet("MRPC.tsv", "mrpc", "test", _NUMBERS),
    Sheet("STS-B.tsv", "stsb", "test", None),
    Sheet("QQP.tsv", "qqp", "test", _NUMBERS),
    Sheet("MNLI-m.tsv", "mnli", "test", _RELATIONS),
    Sheet("MNLI-mm.tsv", "mnli", "test_mismatched", _RELATIONS),
    Sheet("QNLI.tsv", "qnli", "test", _ENTAILED),
    Sheet("RTE.tsv", "rte", "test", _ENTAILED),
    Sheet("WNLI.tsv", "wnli", "test", _NUMBERS),
    Sheet("AX.tsv", "ax", "test", _RELATIONS),
)


def table(task: TaskConfig, predictions: Sequence[SequencePrediction]) -> str:
    """Write predictions, in the order of the test file, with the server's labels; scores are clipped to the range."""
    low, high = SCORE_RANGE
    served = dict(zip(task.label_names or (), task.labels_in_files or task.label_names or (), strict=True))
    rows = [HEADER]
    for prediction in predictions:
        label = prediction.label
        value = served[label] if isinstance(label, str) else f"{min(max(label, low), high):.3f}"
        rows.append(f"{prediction.id}\t{value}")
    return "\n".join(rows) + "\n"


def write_archive(path: Path, tables: Mapping[str, str], indices: Mapping[str, Sequence[str]]) -> None:
    """Write the archive, after it has been checked; the same tables give the same bytes.

    `tables` are the texts by the name of the sheet, `indices` as for `check_archive`.

    Raises:
        InputError: a table is not as the server takes it.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in tables.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
            archive.writestr(entry, text.encode())
    check_archive(path, indices, buffer.getvalue())
    write_durably(path, buffer.getvalue())


def check_archive(
    path: Path, indices: Mapping[str, Sequence[str]] | None = None, content: bytes | None = None
) -> dict[str, int]:
    """Refuse an archive that the server would refuse, or take for something else.

    `indices` are those of the test file by the name of the sheet; a sheet without is expected to count from 0.
    `content` are the bytes, where they are not written yet.

    Returns:
        The number of predictions of each sheet.

    Raises:
        InputError: a line for each file in which something is wrong: the first fault that it has.
    """
    if content is None:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}; give the archive that glue wrote") from None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"{path}: not a zip that can be read ({error}); write it again with bertkit glue") from None
    names = [name for name, _ in entries]
    known = [sheet.name for sheet in SHEETS]
    problems = [f"{path}: no {name}; the server takes all {len(known)} files" for name in known if name not in names]
    for name in dict.fromkeys(names):
        if name not in known:
            what = "a folder, or a file in one" if "/" in name else "no file of GLUE"
            problems.append(
                f"{path}: '{name}' is {what}; expected {', '.join(known)} at the top level and nothing else"
            )
        elif names.count(name) > 1:
            problems.append(f"{path}: {name} is there {names.count(name)} times; leave one of them")
    if problems:
        raise InputError(*problems)
    tables = dict(entries)
    counts = {}
    for sheet in SHEETS:
        try:
            counts[sheet.name] = _check_table(sheet, tables[sheet.name], (indices or {}).get(sheet.name))
        except InputError as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise InputError(*problems)
    return counts


def _check_table(sheet: Sheet, data: bytes, indices: Sequence[str] | None) -> int:
    """Check a sheet; give the number of its predictions."""
    try:
        header, *lines = data.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{sheet.name}: not UTF-8 (byte 0x{data[error.start]:02x}); write plain text") from None
    if header != HEADER:
        raise InputError(f"{sheet.name}:1: header {header[:60]!r}; expected {HEADER!r}")
    expected = list(map(str, range(len(lines)))) if indices is None else indices
    for number, (line, index) in enumerate(zip(lines, expected, strict=False), 2):
        found, _, label = line.partition("\t")
        if found != index:
            raise InputError(
                f"{sheet.name}:{number}: index {found[:60]!r}, expected {index}; keep every example, in the file's order"
            )
        _check_label(sheet, label, f"{sheet.name}:{number}")
    if not lines or len(lines) != len(expected):
        raise InputError(
            f"{sheet.name}: {len(lines)} predictions for {len(expected)} test examples; predict all of them"
        )
    return len(lines)


def _check_label(sheet: Sheet, label: str, where: str) -> None:
    if sheet.labels is not None:
        if label not in sheet.labels:
            raise InputError(f"{where}: unknown label {label!r}; expected {' or '.join(sheet.labels)}")
    elif not _SCORE.fullmatch(label) or not SCORE_RANGE[0] <= float(label) <= SCORE_RANGE[1]:
        raise InputError(f"{where}: score {label!r}; expected a number from {SCORE_RANGE[0]:g} to {SCORE_RANGE[1]:g}")
