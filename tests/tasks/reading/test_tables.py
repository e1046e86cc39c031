"""Tables, JSON and SQuAD to examples: each layout by hand, each fault in one line with its place."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from task_configs import task_config
from task_files import EXPECTED, OWN, RECORDS, SWAG_HEADER, read, rows, tagged, write
from test_inputs import opened, rows_of

from bertkit.base.errors import InputError
from bertkit.tasks.choice import ChoiceExample
from bertkit.tasks.reading.kinds import infer_task
from bertkit.tasks.reading.readers import read_file
from bertkit.tasks.spans.examples import Answer, SpanExample

# task, file, split, its bytes, the rows
GLUE = [
    ("cola", "CoLA/train.tsv", "train", "gj04\t0\t*\tA \"b.\ngj04\t1\t\tNA\n", [("0", 'A "b.', None, "unacceptable"), ("1", "NA", None, "acceptable")]),
    ("cola", "CoLA/test.tsv", "test", "index\tsentence\n7\tNone of it\n", [("7", "None of it", None, None)]),
    ("sst2", "SST-2/dev.tsv", "dev", "sentence\tlabel\r\nbleak \t0\r\na\u2028b\x85c\t1\r\n", [("0", "bleak ", None, "negative"), ("1", "a\u2028b\x85c", None, "positive")]),
    ("sst2", "SST-2/test.tsv", "test", "index\tsentence\n0\tx y\n", [("0", "x y", None, None)]),
    ("mrpc", "MRPC/dev.tsv", "dev", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t5\t6\t\" He said\tHe \"\"s\n", [("0", '" He said', 'He ""s', "equivalent")]),
    ("mrpc", "MRPC/test.tsv", "test", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n3\t5\t6\ta\tb\n", [("3", "a", "b", None)]),
    ("stsb", "STS-B/train.tsv", "train", "index\tgenre\tsentence1\tsentence2\tscore\n0\tx\ta\tb\t5.000\n1\tx\tc\td\t0.6\n", [("0", "a", "b", 5.0), ("1", "c", "d", 0.6)]),
    ("qqp", "QQP/train.tsv", "train", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n4\t1\t2\ta?\tb?\t1\n5\t1\t2\tcut\nhere\tc?\t0\n6\t1\t2\td?\te?\t0\n", [("4", "a?", "b?", "duplicate"), ("6", "d?", "e?", "not_duplicate")]),
    ("mnli", "MNLI/train.tsv", "train", "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\ta\tb\tneutral\tentailment\n1\tc\td\tneutral\t-\n2\te\tf\tneutral\tcontradiction\n", [("0", "a", "b", "entailment"), ("2", "e", "f", "contradiction")]),
    ("mnli", "MNLI/dev_matched.tsv", "dev_matched", "index\tsentence1\tsentence2\tlabel1\tlabel2\tlabel3\tgold_label\n0\ta\tb\tx\tx\tx\tneutral\n", [("0", "a", "b", "neutral")]),
    ("mnli", "MNLI/dev_mismatched.tsv", "validation_mismatched", "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n", [("0", "a", "b", "neutral")]),
    ("mnli", "MNLI/test_mismatched.tsv", "test_mismatched", "index\tsentence1\tsentence2\n9\ta\tb\n", [("9", "a", "b", None)]),
    ("qnli", "QNLI/dev.tsv", "dev", "index\tquestion\tsentence\tlabel\n0\tq?\ts.\tnot_entailment\n", [("0", "q?", "s.", "not_entailment")]),
    ("rte", "RTE/dev.tsv", "dev", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n", [("0", "a", "b", "entailment")]),
    ("wnli", "WNLI/dev.tsv", "dev", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n", [("0", "a", "b", "entailment")]),
    ("ax", "diagnostic/diagnostic.tsv", "test", "index\tsentence1\tsentence2\n0\ta\tb\n", [("0", "a", "b", None)]),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "split", "text", "expected"), GLUE)
def test_glue_tables_are_read(tmp_path: Path, task: str, name: str, split: str, text: str, expected: list[Any]) -> None:
    path = write(tmp_path, name, text)
    assert rows(read(tmp_path, task, split)) == expected  # the folder above
    assert rows(read(path.parent, task, split)) == expected  # the task's own


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    write(tmp_path, "QQP/train.tsv", GLUE[7][3])
    write(tmp_path, "MNLI/train.tsv", GLUE[8][3])
    assert f"{tmp_path}/QQP/train.tsv: skipped 2 rows with too few cells" in read(tmp_path, "qqp", "train").warnings
    assert f"{tmp_path}/MNLI/train.tsv: skipped 1 row with the label '-'" in read(tmp_path, "mnli", "train").warnings


def write_parquet(path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path)


@pytest.mark.parametrize("name", OWN)
def test_own_tables_are_read_in_every_format(tmp_path: Path, name: str) -> None:
    write_parquet(tmp_path / name) if name.endswith("parquet") else write(tmp_path, name, OWN[name])
    source = read(tmp_path, "sequence", "train")
    assert rows(source) == EXPECTED
    assert source.labels == ("bad", "good")
    assert source.description == f"{tmp_path / name} ({name[6:]})"
    assert source.describe() == f"{tmp_path / name} ({name[6:]}): 2 rows; bad 1 (50.0%), good 1 (50.0%)"


def test_json_in_its_other_layouts(tmp_path: Path) -> None:
    for text in ("".join(json.dumps(r) + "\n" for r in RECORDS), json.dumps({"data": RECORDS, "version": 1})):
        write(tmp_path, "train.json", text)
        assert rows(read(tmp_path, "sequence", "train")) == EXPECTED


def test_columns_by_name_and_by_number(tmp_path: Path) -> None:
    write(tmp_path, "train.tsv", "stars\treview\n3\tfine\n5\tgood\n")
    expected = [("0", "fine", None, "3"), ("1", "good", None, "5")]
    assert rows(read(tmp_path, "sequence", "train", "columns.text=review", "columns.label=stars")) == expected
    by_number = ("columns.text=1", "columns.label=0")
    assert rows(read(tmp_path, "sequence", "train", *by_number, "header=true")) == expected
    write(tmp_path, "train.tsv", "3\tfine\n5\tgood\n")
    source = read(tmp_path, "sequence", "train", "columns.text=-1", "columns.label=0")
    assert rows(source) == expected
    assert source.description.endswith("(tsv, without a header)")
    write(tmp_path, "train.tsv", "label\ttext\n3\tfine\n5\tgood\n")  # the settings' own names
    assert rows(read(tmp_path, "sequence", "train", *by_number)) == expected
    write(tmp_path, "train.tsv", "3\ttext\n5\tgood\n")
    assert rows(read(tmp_path, "sequence", "train", *by_number))[0] == ("0", "text", None, "3")


def test_a_missing_header_is_thought_of_where_columns_have_their_usual_names(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "fine,high\nbad,low\n")
    way_out = r"; set task\.columns\.text= to its name, or without a header to its number from 0"
    with pytest.raises(InputError, match=way_out):
        read(tmp_path, "sequence", "train")
    with pytest.raises(InputError, match=r"; set task\.columns\.text=(\n|$)"):
        read(tmp_path, "sequence", "train", "columns.text=review")
    assert rows(read(tmp_path, "sequence", "train", "columns.text=0", "columns.label=1"))[0][1] == "fine"


HEADERS = [
    # first line, settings, whether it looks like a header
    ("review,stars\n", (), True),
    ("fine,high\n", (), False),  # others have this label too
    ("review,stars\n", ("header=false",), False),  # asked for
]


@pytest.mark.parametrize(("first", "arguments", "is_odd"), HEADERS)
def test_a_header_that_is_read_as_a_row(tmp_path: Path, first: str, arguments: tuple[str, ...], is_odd: bool) -> None:
    write(tmp_path, "train.csv", f"{first}a,high\nb,low\nc,low\n")
    source = read(tmp_path, "sequence", "train", "columns.text=0", "columns.label=1", *arguments)
    label = first.strip().split(",")[1]
    expected = f"{tmp_path}/train.csv:1: no other line has the label {label!r}"
    assert [line.startswith(expected) for line in source.warnings] == [True] * is_odd


def test_gzipped_tables_are_read(tmp_path: Path) -> None:
    for name in ("train.csv", "train.jsonl"):
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.compress(OWN[name].encode()))
        assert rows(read(tmp_path, "sequence", "train")) == EXPECTED
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(InputError, match=rf"{name}\.gz: damaged gzip file \(.*\)"):
            read(tmp_path, "sequence", "train")
        path.unlink()
    (tmp_path / "train.conll.gz").write_bytes(gzip.compress(b"Bob B-PER\nx O\n"))
    assert tagged(read(tmp_path, "tagging", "train")) == [(("Bob", "x"), ("B-PER", "O"))]


def test_label_text_format_is_read(tmp_path: Path) -> None:
    write(tmp_path, "train.txt", "HUM:gr Who  is it ?\nLOC:city Where ?\n")
    source = read(tmp_path, "sequence", "train", "format=label_text")
    assert rows(source) == [("0", "Who  is it ?", None, "HUM:gr"), ("1", "Where ?", None, "LOC:city")]


def test_blank_lines_are_rows_or_errors(tmp_path: Path) -> None:
    """One column: a row each. Several: nothing at the end, an error before it."""
    task = task_config("sequence")
    assert [row[1] for row in rows(read_file(task, write(tmp_path, "a.tsv", "text\na\n\nb\n\n")))] == ["a", "", "b", ""]
    assert [row[1] for row in rows(read_file(task, write(tmp_path, "a.csv", "text\na\n\nb\n")))] == ["a", "", "b"]
    assert [row[1] for row in rows(read_file(task, write(tmp_path, "b.tsv", "text\tlabel\na\tx\n\n\n")))] == ["a"]
    with pytest.raises(InputError, match=r"b\.tsv:3: too few cells \(1, expected 2: 'text', 'label'\)"):
        read_file(task, write(tmp_path, "b.tsv", "text\tlabel\na\tx\n\nb\tx\n"))


def test_swag_is_read(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", SWAG_HEADER + '0,a,1,x,"One, two.",She,gold,runs.,"sits, too.",is,eats,2\n')
    write(tmp_path, "test.csv", SWAG_HEADER.replace(",label", "") + "0,a,1,x,One.,She,gold,a,b,c,d\n")
    endings = ("She runs.", "She sits, too.", "She is", "She eats")
    assert read(tmp_path, "swag", "train").examples == [ChoiceExample("0", "One, two.", endings, 2)]
    endings = ("She a", "She b", "She c", "She d")
    assert read(tmp_path, "swag", "test").examples == [ChoiceExample("0", "One.", endings, None)]
    record = {"context": "One.", "options": ["a", "b", "c"], "label": 1}
    write(tmp_path, "own.jsonl", json.dumps(record))
    (own,) = read(tmp_path, "choice", "train", "columns.endings=options", "files.train=own.jsonl").examples
    assert own == ChoiceExample("0", "One.", ("a", "b", "c"), 1)


@pytest.mark.parametrize("name", ["train.jsonl", "train.json"])
@pytest.mark.parametrize(
    ("task", "cells"),
    [
        ("sequence", '"text": "a \\ud83d b", "label": "x"'),
        ("tagging", '"tokens": ["a", "\\ude00"], "tags": ["O", "O"]'),
    ],
)
def test_half_of_a_surrogate_pair_is_refused(name: str, task: str, cells: str, tmp_path: Path) -> None:
    """As by transformers, whose tokenizers take no such text, and by datasets."""
    whole = cells.replace("\\ud83d", "\\ud83d\\ude00").replace('"\\ude00', '"\\ud83d\\ude00')
    write(tmp_path, name, f"{{{whole}}}\n{{{cells}}}\n")
    field = cells.partition(":")[0].strip('"')
    with pytest.raises(InputError, match=rf"{name}:2: '{field}' contains half of a surrogate pair; remove it"):
        read(tmp_path, task, "train")


def test_every_row_of_a_test_file_counts(tmp_path: Path) -> None:
    """Predictions are made for all of them: none is left out, and an empty label is one that is not known."""
    write(tmp_path, "MNLI/test.tsv", "sentence1\tsentence2\tgold_label\na\tb\t-\nc\td\t\ne\tf\tneutral\n")
    actual = [row[1:] for row in rows(read(tmp_path, "mnli", "test"))]
    assert actual == [("a", "b", None), ("c", "d", None), ("e", "f", "neutral")]


# ---- SQuAD's files


CONTEXT = "Normandy is in France. 😀 é France"
QUESTIONS = [
    SpanExample("q1", "Where?", CONTEXT, (Answer("France", 15), Answer("France", 27))),
    SpanExample("q2", "Why?", CONTEXT, ()),
]
ANSWERS = [{"text": "France", "answer_start": 15}, {"text": "France", "answer_start": 27}]
QAS = [
    {"id": "q1", "question": "Where?", "answers": ANSWERS, "is_impossible": False},
    {"id": "q2", "question": "Why?", "answers": [], "is_impossible": True, "plausible_answers": ANSWERS},
]
NESTED = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": QAS}]}]}
LISTS = {"text": ["France", "France"], "answer_start": [15, 27]}
FLAT = [{**QAS[0], "context": CONTEXT, "answers": LISTS}, {**QAS[1], "context": CONTEXT}]
SQUAD = {
    "train-v2.0.json": json.dumps(NESTED),
    "train-v2.0.flat.json": json.dumps({"data": FLAT}),
    "train-v2.0.array.json": json.dumps(FLAT, indent=2),
    "train-v2.0.lines.json": "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in FLAT),
}


@pytest.mark.parametrize("name", SQUAD)
def test_squad_is_read_in_every_version(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, SQUAD[name])
    source = read(tmp_path, "squad2", "train")
    assert source.examples == QUESTIONS
    assert source.labels == source.warnings == ()
    assert source.describe().endswith("2 questions; answered 1 (50.0%), unanswerable 1 (50.0%)")


def test_answers_that_are_texts_alone(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", f"id,question,context,answer\nq1,Where?,{CONTEXT},France\nq2,Why?,{CONTEXT},\n")
    source = read(tmp_path, "spans", "train")
    assert [example.answers for example in source.examples] == [(Answer("France", 15),), ()]  # type: ignore[union-attr]


def test_questions_without_answers(tmp_path: Path) -> None:
    write(tmp_path, "test-v1.1.json", json.dumps([{"id": 5, "question": "Where?", "context": ""}]))
    source = read(tmp_path, "squad1", "test")
    assert source.examples == [SpanExample("5", "Where?", "", None)]
    assert source.warnings == (
        f"kept 1 example with an empty text, the first at {tmp_path}/test-v1.1.json:1: question '5'",
    )


@pytest.mark.parametrize("mark", [",", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\r\n"])
def test_line_breaks_in_cells_are_kept(tmp_path: Path, mark: str, end: str) -> None:
    """Those of texts from the web, as Python and pandas read them: places of answers count both characters."""
    context = "One\r\ntwo\nthree"
    cells = ("id", "question", "context", "answer", "answer_start"), ("q1", "Who?", f'"{context}"', "three", "9")
    write(tmp_path, "train.csv" if mark == "," else "train.tsv", "".join(f"{mark.join(row)}{end}" for row in cells))
    (example,) = read(tmp_path, "spans", "train").examples
    assert example == SpanExample("q1", "Who?", context, (Answer("three", 9),))


SEMICOLONS = "text;label\na, b;good\nc;bad\n"
OTHER_FILES = [  # the content of train.csv; settings; the description
    (SEMICOLONS.encode(), [], "csv separated by ';'"),
    (SEMICOLONS.replace(";", "|").encode(), ["separator='|'"], "csv separated by '|'"),
    (SEMICOLONS.replace(";", "\t").encode("utf-16"), [], "csv separated by '\\t'"),
    (SEMICOLONS.encode("utf-16"), ["encoding=cp1252"], "csv separated by ';'"),
    *(
        (SEMICOLONS.encode(name), [f"encoding={name}"], "separated by ';'")
        for name in ("utf-16", "utf-16-le", "UTF_16BE")
    ),
    (SEMICOLONS.encode("utf-16-le"), ["encoding=utf-16"], "separated by ';'"),
    (b"text,label\n\xe9a,good\nc,bad\n,bad\nx,\n", ["encoding=cp1252", "skip_labels="], "(csv)"),
]


@pytest.mark.parametrize(("content", "overrides", "described"), OTHER_FILES)
def test_other_separators_and_encodings(tmp_path: Path, content: bytes, overrides: list[str], described: str) -> None:
    write(tmp_path, "train.csv", content)
    source = read(tmp_path, "sequence", "train", *overrides)
    texts = ["\xe9a", "c", ""] if b"\xe9a" in content else ["a, b", "c"]
    assert [example.text for example in source.examples] == texts
    assert described in source.description


@pytest.mark.parametrize("name", ["train.csv", "train.jsonl", "train.json"])
def test_every_format_in_utf_16(tmp_path: Path, name: str) -> None:
    data = gzip.compress(str(OWN[name]).encode("utf-16-le"))
    write(tmp_path, f"{name}.gz", data)
    assert rows(read(tmp_path, "sequence", "train", "encoding=utf-16-le")) == EXPECTED
    inputs = rows_of(opened(task_config("sequence", "task.encoding=utf-16-le"), data, f"{name}.gz"))
    assert [text for text, _ in inputs] == [text for _, text, _, _ in EXPECTED]


@pytest.mark.parametrize(("name", "data", "wrong"), [
    ("train.csv", b"\xff\xfe" + "text,label\nab".encode("utf-16-le") + b"\x00\xd8" + "c,x\nd,y\n".encode("utf-16-le"), "surrogate, at byte 29"),
    ("train.csv.gz", gzip.compress("text,label\na,x\nd,y\n".encode("utf-16") + b"\x41"), "truncated data, at byte 41"),
], ids=["inside", "at the end"])  # fmt: skip
def test_utf_16_that_is_damaged_is_refused(tmp_path: Path, name: str, data: bytes, wrong: str) -> None:
    """As UTF-8 is, instead of texts with U+FFFD; also where the task is inferred, and at the end of a long file."""
    path = write(tmp_path, name, data)
    for reading in (
        lambda: read(tmp_path, "sequence", "train"),
        lambda: rows_of(opened(task_config("sequence"), data, name)),
        lambda: infer_task(task_config("sequence", f"task.files.train={path}")),
    ):
        with pytest.raises(InputError, match=rf"{name}: not UTF-16 \(.*{wrong}\); restore it"):
            reading()
    long = ("text,label\n" + "a,x\nb,y\n" * 50_000).encode("utf-16-le")
    write(tmp_path, "dev.csv", b"\xff\xfe" + long + b"\x00\xdc")
    with pytest.raises(InputError, match=f"at byte {len(long) + 3:,}"):
        read(tmp_path, "sequence", "dev")


def test_an_id_that_is_nan_is_missing(tmp_path: Path) -> None:
    write(
        tmp_path, "train.jsonl", "".join(f'{{"id": {own}, "text": "a", "label": "x"}}\n' for own in ("7", "NaN", "NaN"))
    )
    assert [row[0] for row in rows(read(tmp_path, "sequence", "train"))] == ["7", "1", "2"]


def test_ids_are_the_numbers_of_rows_also_where_some_are_skipped(tmp_path: Path) -> None:
    """As `predict` numbers the rows of the same file."""
    write(tmp_path, "train.csv", "text,label\na,good\nb,\nc,bad\nd,\ne,good\n")
    for settings, warning in (
        (["skip_labels=['']"], "skipped 2 rows with no label"),
        ([], "skipped 2 rows without a label, the first at "),
    ):
        source = read(tmp_path, "sequence", "train", *settings)
        assert [(example.id, example.text) for example in source.examples] == [("0", "a"), ("2", "c"), ("4", "e")]
        assert source.warnings[0].startswith(f"{tmp_path}/train.csv: {warning}")
    write(tmp_path, "train.csv", "text,label\na,Good\nb,bad\nc,good\n")
    alike = f"{tmp_path}/train.csv: labels 'Good' and 'good' differ in capital letters alone, in blanks, in how a number is written, or in how Unicode writes them, and are classes of their own"
    (warning,) = read(tmp_path, "sequence", "train").warnings
    assert warning.startswith(alike)
    write(tmp_path, "train.csv", "text,label\na,caf\u00e9\nb,bar\nc,cafe\u0301\n")  # as macOS and others write é
    (warning,) = read(tmp_path, "sequence", "train").warnings
    assert warning.startswith(f"{tmp_path}/train.csv: labels 'cafe\u0301' and 'caf\u00e9' differ")
    for names in (
        ("yes", "yes\u200b", "no"),
        ("very good", "very  good", "bad"),
        ("1", "01", "10"),
        ("1e3", "1000", "1"),
        ("-0", "0", "1"),
        ("+1", "1", "-1"),
    ):
        write(tmp_path, "train.csv", "text,label\n" + "".join(f"a,{name}\n" for name in names))
        (warning,) = read(tmp_path, "sequence", "train").warnings
        assert warning.count("'") == 4, names  # two of the three
    write(tmp_path, "train.csv", "id,text,label\n7,a,good\n,b,\n7,c,bad\n8,d,good\n")  # repeated ids
    source = read(tmp_path, "sequence", "train")
    assert [(example.id, example.text) for example in source.examples] == [("0", "a"), ("2", "c"), ("3", "d")]
    assert source.warnings[1] == (
        f"{tmp_path}/train.csv:4: id '7' is a duplicate, first at {tmp_path}/train.csv:2; the ids are the numbers of the rows instead"
    )
    with pytest.raises(InputError, match="id '7' is a duplicate, first at"):
        read(tmp_path, "sequence", "train", "columns.id=id")  # whose name the user gave
    questions = [{"id": own, "question": "q", "context": "a", "answers": []} for own in ("1", None, "2")]
    write(tmp_path, "dev.jsonl", "\n".join(map(json.dumps, questions)))  # a number of a row that is an id, too
    source = read(tmp_path, "spans", "dev")
    assert [example.id for example in source.examples] == ["0", "1", "2"]
    assert "id '1' is a duplicate" in source.warnings[0]


SEPARATED = {  # lines, and the cells of the second row; each file has a comma in its first line
    "sep=;\ntext;label\na;x\nb, c;y\n": ("b, c", "y"),
    "text;label;price, total\na;x;1,5\nb, c, d;y;2,5\n": ("b, c, d", "y"),
    "text,label;or not\na,x\nb;c,y\n": ("b;c", "y"),
    "text,label\na;b;c,x\nb;c;d,y\n": ("b;c;d", "y"),
    "text;label;a, b, c, d\na;x;1,2,3,4\nb;y;1,2,3,4\n": ("b", "y"),
}


@pytest.mark.parametrize("content", SEPARATED)
def test_the_separator_is_what_every_line_has_as_often(tmp_path: Path, content: str) -> None:
    path = write(tmp_path, "train.csv", content)
    label = "label;or not" if ";or" in content else "label"
    _, second = rows(read(tmp_path, "sequence", "train", f"columns.label={label!r}"))
    assert (second[1], second[3]) == SEPARATED[content]
    if content.startswith("sep"):
        path.write_text(f"{content}z\n")
        with pytest.raises(InputError, match=r"train\.csv:5: too few cells \(1, expected"):
            read(tmp_path, "sequence", "train")


def test_numbers_with_commas_do_not_separate(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "one thing;x;1,5\nanother thing;y;2,5\nthings;x;13\n")
    settings = ("columns.text=0", "columns.label=1", "header=false")
    assert [row[3] for row in rows(read(tmp_path, "sequence", "train", *settings))] == ["x", "y", "x"]


QUOTED = {  # tab-separated lines, and the first texts
    'text\tlabel\n"a, b"\tx\nsay\ty\n"""c"" d"\tx\n': ["a, b", "say", '"c" d'],  # Excel's
    'text\tlabel\na, b\tx\n"c\td"\ty\n"e\nf"\tx\n': ["a, b", "c\td", "e\nf"],  # that of pandas
    'text\tlabel\na, b\tx\n"c, d"\ty\n"e"\tx\n': ["a, b", '"c, d"', '"e"'],  # without quoting
    'text\tlabel\n"a"\tx\nb\ty\n': ['"a"', "b"],
}


@pytest.mark.parametrize("content", QUOTED)
def test_quotes_where_they_are_needed_are_no_part_of_a_cell(tmp_path: Path, content: str) -> None:
    write(tmp_path, "train.tsv", content)
    assert [row[1] for row in rows(read(tmp_path, "sequence", "train"))] == QUOTED[content]


WITHOUT_HEADER = {  # lines, and the text and label of the second row
    "City: X; Price: 3; nice,1\nCity: Y; Price: 4; nice,2\n": ("City: Y; Price: 4; nice", "2"),
    '"City: X; a, b",1\n"City: Y; ""c""; d, e",2\n': ('City: Y; "c"; d, e', "2"),
    '"a; b";1\n"c, d; e";2\n': ("c, d; e", "2"),
    '"a, b; c";1\n"d; e";2\n': ("d; e", "2"),
    '"a; b\nc; d",1\n"e; f\n\n\ng; h",2\n': ("e; f\n\n\ng; h", "2"),
    "a, b;1\nc;2\nd, e, f;3\n": ("c", "2"),
    "text; a; b,1\ntext; c; d,2\n": ("text; c; d", "2"),
}


@pytest.mark.parametrize("content", WITHOUT_HEADER)
def test_marks_in_texts_do_not_separate(tmp_path: Path, content: str) -> None:
    write(tmp_path, "train.csv", content)
    source = read(tmp_path, "sequence", "train", "columns.text=0", "columns.label=1", "header=false")
    assert (rows(source)[1][1], rows(source)[1][3]) == WITHOUT_HEADER[content]


def test_a_long_cell_at_the_beginning(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", f'text;label\n"{"a, " * 100_000}";x\nb;y\n')
    assert [row[3] for row in rows(read(tmp_path, "sequence", "train"))] == ["x", "y"]


def test_the_setting_wins_over_the_separator_that_a_file_names(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "sep=;\ntext,label\na;b,x\nc,y\n")
    source = read(tmp_path, "sequence", "train", "separator=','")
    assert [(row[1], row[3]) for row in rows(source)] == [("a;b", "x"), ("c", "y")]
