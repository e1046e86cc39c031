"""Excel workbooks, and tables without a header: what is certain is read with a line about it, anything else is refused."""

import io
from pathlib import Path

import pytest
from task_configs import task_config
from task_files import read, rows, write
from test_inputs import opened, rows_of, task_of

from bertkit.base.errors import InputError
from bertkit.data.texts.workbooks import read_sheet
from bertkit.tasks.reading.kinds import infer_task

ROWS = [("id", "text", "label"), (7, "Clean, quiet\nand warm", "good"), (8, None, "bad"), (None,) * 3, (9, 4.5, "bad")]


def workbook(*sheets: list[tuple[object, ...]]) -> bytes:
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed")
    book, file = openpyxl.Workbook(), io.BytesIO()
    book.remove(book.active)
    for number, own in enumerate(sheets, 1):
        sheet = book.create_sheet(f"Part {number}")
        for row in own:
            sheet.append(row)
    book.save(file)
    return file.getvalue()


def test_workbook_is_read_as_table(tmp_path: Path) -> None:
    path = write(tmp_path, "train.xlsx", workbook([(None,), *ROWS, (None, "  ")], [("more",)]))
    found = read(tmp_path, "sequence", "train")
    expected = [("7", "Clean, quiet\nand warm", None, "good"), ("8", "", None, "bad"), ("9", "4.5", None, "bad")]
    assert rows(found) == expected
    assert found.description == f"{path} (xlsx, sheet 'Part 1', the first of 2)"
    places = [f"{path}: skipped 1 row without a label, the first at {path}: row 5: label", f"{path}: row 4"]
    assert found.warnings[0] == places[0]
    assert found.warnings[1].endswith(places[1])  # the rows of the sheet
    assert infer_task(task_config("sequence", f"task.files.train={path}"))[0] == ["task=classification"]
    texts = [one[0] for one in rows_of(opened(task_of("sequence"), path.read_bytes(), "a.xlsx"))]
    assert texts == ["Clean, quiet\nand warm", "", "", "4.5"]  # a prediction for each row, also for a blank one


def test_an_error_in_a_cell_is_no_label_and_no_text(tmp_path: Path) -> None:
    write(tmp_path, "train.xlsx", workbook([("text", "label"), ("a", "x"), ("b", "#N/A"), ("#REF!", "y")]))
    found = read(tmp_path, "sequence", "train")
    assert [row[1:] for row in rows(found)] == [("a", None, "x"), ("", None, "y")]
    assert [
        "skipped 1 row without a label" in found.warnings[0],
        "1 example with an empty text" in found.warnings[1],
    ] == [True] * 2


def test_a_character_that_excel_writes_by_its_number(tmp_path: Path) -> None:
    """XML has no carriage return: in a cell it is _x000D_, and the underscore before such a text _x005F_ (ECMA-376, 22.9.2.19)."""
    cells = ("one_x000D_\ntwo", "_x005F_x000D_", "a_x00_b", "_xD83D__xDE00_")
    write(tmp_path, "train.xlsx", workbook([("text", "label"), *((cell, n % 2) for n, cell in enumerate(cells))]))
    assert [row[1] for row in rows(read(tmp_path, "sequence", "train"))] == [
        "one\r\ntwo",
        "_x000D_",
        "a_x00_b",
        "\U0001f600",
    ]


def test_workbook_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = workbook(ROWS)
    for data in (whole[: len(whole) // 2], b"PK\x03\x04 and no more", b""):
        write(tmp_path, "train.xlsx", data)
        with pytest.raises(InputError, match=r"train\.xlsx: not readable as an Excel file .*; save the sheet as CSV"):
            read(tmp_path, "sequence", "train")
    write(tmp_path, "train.xlsx", workbook([]))
    with pytest.raises(InputError, match=r"train\.xlsx: sheet 'Part 1' is empty"):
        read(tmp_path, "sequence", "train")
    monkeypatch.setattr("bertkit.data.texts.workbooks.WHOLE_MB", 0.001)
    with pytest.raises(InputError, match=r"a\.xlsx: unpacked larger than"):
        read_sheet(Path("a.xlsx"), whole)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="openpyxl, which is not installed: pip install openpyxl"):
        read_sheet(Path("a.xlsx"), b"")


GOOD, BAD = "It was warm and quiet", "We waited for an hour"
NO_HEADER = [  # the file; the columns of text and label
    (f"{GOOD},1\n{BAD},2\nWarm,1\nCold,2\n", (0, 1)),
    (f"7,good,{GOOD}\n8,bad,{BAD}\n9,good,Warm\n10,bad,Cold\n", (2, 1)),
    (f"{GOOD},4.5\n{BAD},2\n", (0, 1)),
]
UNCLEAR = [
    f"review of a hotel,stars\n{GOOD},1\n{BAD},2\n",  # a header with other names
    f"good,{GOOD}\nbad,{BAD}\n",  # no other row has this label
    f"{GOOD},good,en\n{BAD},good,en\nWarm,bad,de\nCold,bad,de\n",  # two columns may be the labels
    f"{GOOD},{BAD},1\n{BAD},{GOOD},1\nWarm,Cold,2\nCold,Warm,2\n",  # two columns of texts
    "Warm,1\nCold,2\nWarmer,1\nColder,2\n",  # words that may be names
]


@pytest.mark.parametrize(("content", "places"), NO_HEADER)
def test_missing_header_is_seen_and_said(tmp_path: Path, content: str, places: tuple[int, int]) -> None:
    path = write(tmp_path, "train.csv", content)
    found, cells = read(tmp_path, "sequence", "train"), [line.split(",") for line in content.splitlines()]
    if cells[0][places[1]] == "4.5":
        found = read(tmp_path, "regression", "train")
    assert [(text, str(label)) for _, text, _, label in rows(found)] == [
        (own[places[0]], str(float(own[1])) if "4.5" in content else own[places[1]]) for own in cells
    ]
    as_what = dict(sorted(zip(places, ("text", "label"), strict=True), key=lambda pair: pair[1], reverse=True))
    line = ", ".join(f"column {n} is taken as {what}" for n, what in as_what.items())
    said = f"{path} has no header; {line}; if its first line is one, set task.header=true"
    assert said in found.warnings
    assert infer_task(task_config("sequence", f"task.files.train={path}"))[0][0].startswith("task=")
    inputs = opened(task_of("sequence"), content, "a.csv")
    assert len(rows_of(inputs)) == len(cells)
    assert "a.csv has no header" in inputs.warnings[0]


@pytest.mark.parametrize("content", UNCLEAR)
def test_unclear_header_is_refused(tmp_path: Path, content: str) -> None:
    write(tmp_path, "train.csv", content)
    with pytest.raises(InputError, match=r"no column 'text'.*or without a header to its number from 0"):
        read(tmp_path, "sequence", "train")
    write(tmp_path, "train.csv", NO_HEADER[0][0])
    with pytest.raises(InputError, match="no column 'text'"):
        read(tmp_path, "sequence", "train", "header=true")
