"""The archive for the GLUE server: what is written, and every damage that is refused."""

import re
import zipfile
from pathlib import Path

import pytest
from task_configs import task_config

from bertkit.base.errors import InputError
from bertkit.tasks.scoring.benchmark import SHEETS, check_archive, table, write_archive
from bertkit.tasks.sequence import SequencePrediction

NAMES = ["CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv",
         "WNLI.tsv", "AX.tsv"]  # fmt: skip
LABELS = {"STS-B.tsv": ("0.000", "5.000"), **dict.fromkeys(("QNLI.tsv", "RTE.tsv"), ("entailment", "not_entailment")),
          **dict.fromkeys(("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"), ("contradiction", "neutral"))}  # fmt: skip
INDICES = {name: ["0", "1", "2"] for name in NAMES}


def tables() -> dict[str, str]:
    results = {}
    for name in NAMES:
        first, second = LABELS.get(name, ("0", "1"))
        results[name] = f"index\tprediction\n0\t{first}\n1\t{second}\n2\t{first}\n"
    return results


def write_zip(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_it_is_written_byte_for_byte_alike(tmp_path: Path) -> None:
    assert [sheet.name for sheet in SHEETS] == NAMES
    write_archive(tmp_path / "a.zip", tables(), INDICES)
    write_archive(tmp_path / "b.zip", tables(), INDICES)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == NAMES
        assert {name: archive.read(name).decode() for name in NAMES} == tables()
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert check_archive(tmp_path / "a.zip") == dict.fromkeys(NAMES, 3)
    assert check_archive(tmp_path / "a.zip", INDICES) == dict.fromkeys(NAMES, 3)


def replaced(name: str, old: str, new: str) -> dict[str, str]:
    files = tables()
    assert old in files[name]
    return {**files, name: files[name].replace(old, new, 1)}


def without(name: str) -> dict[str, str]:
    return {key: text for key, text in tables().items() if key != name}


# what is wrong, the files, what is said of it
DAMAGED = {
    "a file missing": (without("AX.tsv"), "no AX.tsv"),
    "a file too many": ({**tables(), "notes.txt": "x"}, "'notes.txt' is not a GLUE file"),
    "a folder": ({**without("RTE.tsv"), "glue/RTE.tsv": "x", "RTE.tsv": "x"}, "'glue/RTE.tsv' is in a folder"),
    "another header": (replaced("RTE.tsv", "index\tprediction", "id\tlabel"), r"RTE.tsv:1: header 'id\tlabel'"),
    "no header": (replaced("RTE.tsv", "index\tprediction\n", ""), "RTE.tsv:1: header '0\\tentailment'"),
    "an index missing": (replaced("QQP.tsv", "1\t1\n", ""), "QQP.tsv:3: index '2', expected 1"),
    "an index twice": (replaced("QQP.tsv", "2\t0", "1\t0"), "QQP.tsv:4: index '1', expected 2"),
    "indices out of order": (replaced("QQP.tsv", "0\t0\n1\t1", "1\t1\n0\t0"), "QQP.tsv:2: index '1', expected 0"),
    "a row too few": (replaced("WNLI.tsv", "2\t0\n", ""), "WNLI.tsv: 2 predictions for 3 test examples"),
    "a row too many": (replaced("WNLI.tsv", "2\t0\n", "2\t0\n3\t0\n"), "WNLI.tsv: 4 predictions for 3 test examples"),
    "no rows": ({**tables(), "WNLI.tsv": "index\tprediction\n"}, "WNLI.tsv: 0 predictions for 3"),
    "another label": (replaced("MNLI-m.tsv", "neutral", "maybe"), "MNLI-m.tsv:3: unknown label 'maybe'"),
    "a number for a name": (replaced("QNLI.tsv", "entailment", "1"), "QNLI.tsv:2: unknown label '1'"),
    "a name for a number": (replaced("CoLA.tsv", "0\t0", "0\tacceptable"), "CoLA.tsv:2: unknown label 'acceptable'"),
    "a score out of range": (replaced("STS-B.tsv", "5.000", "5.001"), "STS-B.tsv:3: score '5.001'"),
    "a score that is none": (replaced("STS-B.tsv", "5.000", "nan"), "STS-B.tsv:3: score 'nan'"),
    "carriage returns": (replaced("SST-2.tsv", "0\t0\n", "0\t0\r\n"), "SST-2.tsv:2: unknown label '0\\r'"),
    "a column too many": (replaced("SST-2.tsv", "0\t0\n", "0\t0\t0.9\n"), "SST-2.tsv:2: unknown label '0\\t0.9'"),
    "an empty line": (replaced("SST-2.tsv", "0\t0\n", "0\t0\n\n"), "SST-2.tsv:3: index '', expected 1"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_archives_are_refused_in_a_line(damage: str, tmp_path: Path) -> None:
    files, line = DAMAGED[damage]
    path = write_zip(tmp_path / "x.zip", files)
    with pytest.raises(InputError, match=re.escape(line)) as error:
        check_archive(path, INDICES)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match=re.escape(line)):  # and never written
        write_archive(tmp_path / "y.zip", files, INDICES)
    assert not (tmp_path / "y.zip").exists()


def test_without_the_test_files_indices_count_from_0(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", replaced("WNLI.tsv", "2\t0\n", ""))
    assert check_archive(path)["WNLI.tsv"] == 2
    path = write_zip(tmp_path / "x.zip", replaced("WNLI.tsv", "1\t1\n", ""))
    with pytest.raises(InputError, match=r"WNLI.tsv:3: index '2', expected 1"):
        check_archive(path)


def test_damaged_zip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_text("index\tprediction\n")
    with pytest.raises(InputError, match=r"x.zip: not a valid zip"):
        check_archive(tmp_path / "x.zip")
    content = bytearray(write_zip(tmp_path / "y.zip", tables()).read_bytes())
    content[content.index(b"index") + 1] ^= 1
    (tmp_path / "y.zip").write_bytes(content)
    with pytest.raises(InputError, match=r"y.zip: not a valid zip"):
        check_archive(tmp_path / "y.zip")
    large = write_zip(tmp_path / "large.zip", replaced("WNLI.tsv", "2\t0\n", "2\t0\n" * 5_000_000))
    with pytest.raises(InputError, match=r"large.zip: WNLI.tsv: larger than 16 MB"):
        check_archive(large)
    with pytest.raises(InputError, match=r"z.zip: No such file"):
        check_archive(tmp_path / "z.zip")


def test_duplicate_name_in_zip_is_refused(tmp_path: Path) -> None:
    write_zip(tmp_path / "x.zip", tables())
    with zipfile.ZipFile(tmp_path / "x.zip", "a") as archive, pytest.warns(UserWarning, match=r"Duplicate"):
        archive.writestr("RTE.tsv", "x")
    with pytest.raises(InputError, match=r"2 files RTE.tsv"):
        check_archive(tmp_path / "x.zip")


# task, what a model says, what the server reads
SERVED = [
    ("cola", ["unacceptable", "acceptable"], ["0", "1"]),
    ("sst2", ["negative", "positive"], ["0", "1"]),
    ("mrpc", ["not_equivalent", "equivalent"], ["0", "1"]),
    ("qqp", ["not_duplicate", "duplicate"], ["0", "1"]),
    ("mnli", ["entailment", "neutral", "contradiction"], ["entailment", "neutral", "contradiction"]),
    ("ax", ["entailment", "neutral", "contradiction"], ["entailment", "neutral", "contradiction"]),
    ("qnli", ["entailment", "not_entailment"], ["entailment", "not_entailment"]),
    ("rte", ["entailment", "not_entailment"], ["entailment", "not_entailment"]),
    ("wnli", ["not_entailment", "entailment"], ["0", "1"]),
    ("stsb", [-0.2, 5.3, 2.34567], ["0.000", "5.000", "2.346"]),
]


@pytest.mark.parametrize(("task", "labels", "served"), SERVED)
def test_the_labels_of_the_server(task: str, labels: list[str | float], served: list[str]) -> None:
    predictions = [SequencePrediction(str(n), label, {}) for n, label in enumerate(labels)]
    expected = "".join(f"{n}\t{label}\n" for n, label in enumerate(served))
    assert table(task_config(task), predictions) == "index\tprediction\n" + expected
    (allowed,) = {sheet.labels for sheet in SHEETS if sheet.task == task}
    assert allowed is None or set(served) == set(allowed)
