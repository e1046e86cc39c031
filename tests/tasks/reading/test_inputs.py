"""What an input without labels is taken for, and what its lines become."""

import dataclasses
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from task_configs import task_config

from bertkit.base.errors import InputError
from bertkit.base.text_files import PEEKED_BYTES
from bertkit.tasks import trainable as tasks
from bertkit.tasks.reading.readers import Inputs, open_inputs
from bertkit.tasks.task_config import TaskConfig

TAGS = ("O", "B-X", "I-X")


def task_of(name: str, **columns: Any) -> TaskConfig:
    task = task_config(name)
    return dataclasses.replace(task, columns=dataclasses.replace(task.columns, **columns))


def opened(
    task: TaskConfig, content: str | bytes, name: str = "-", format: str | None = None, labels: tuple[str, ...] = ()
) -> Inputs:
    data = content.encode() if isinstance(content, str) else content
    file = io.BufferedReader(io.BytesIO(data), PEEKED_BYTES)  # type: ignore[arg-type,type-var]
    return open_inputs(tasks.task_of(task, labels), file, Path(name), format)


def rows_of(inputs: Inputs) -> list[tuple[Any, ...]]:
    return [tuple(dataclasses.astuple(example)[1:-1]) for chunk in inputs.chunks for example in chunk]


@pytest.mark.parametrize(("column", "values", "is_told"), [
    ("ticket_id", "ab", True), ("Ticket-Nr", "ab", True), ("TicketID", "ab", True), ("Bestell Nummer", "ab", True), ("uuid", "ab", True),
    ("ticket_id", "aa", False), ("paid", "ab", False), ("Id der Person", "ab", False), ("ID", "a", False),
])  # fmt: skip
def test_a_column_of_ids_is_told(column: str, values: str, is_told: bool) -> None:
    """It is hinted at if each row has its own value; without a hint in the column 'id', which is taken."""
    inputs = opened(
        task_of("sequence"), f"{column},text\n" + "".join(f"{value},kan lon\n" for value in values), "a.csv"
    )
    list(inputs.chunks)
    assert [line for line in inputs.warnings if f"task.columns.id={column}" in line.replace("'", "")] == inputs.warnings
    assert bool(inputs.warnings) == is_told


def test_an_input_may_call_its_text_text() -> None:
    """Whatever the column was called in training."""
    assert rows_of(opened(task_of("sequence", text="Beschreibung"), "text\nkan lon\n", "a.csv"))[0][0] == "kan lon"


WORDS = [
    ("His blood type is O\n", [["His", "blood", "type", "is", "O"]]),
    ("kan O\nlon O\n", [["kan", "O"], ["lon", "O"]]),  # no blank line
    ("type O\n\ntype O\n", [["type", "O"], [], ["type", "O"]]),  # no sentence of several lines
    ("a b O\nb O\n\n", [["a", "b", "O"], ["b", "O"], []]),  # other numbers of columns
    ("kan lon\nmin kar\n\nlor mir\n", [["kan", "lon"], ["min", "kar"], [], ["lor", "mir"]]),  # no tags
    ("[ kan ] lon\n", [["[", "kan", "]", "lon"]]),
]
COLUMNS = [
    ("kan B-X\nlon I-X\n\nmin O\n", [["kan", "lon"], ["min"]]),
    ("kan S-X\nlon O\n\n", [["kan", "lon"]]),  # of another scheme than the model's
    ("-DOCSTART- O\n\nkan O\n", [["kan"]]),
    ("kan\nlon\n\nmin\n", [["kan", "lon"], ["min"]]),  # a test file without tags
    ("# id\n1\tkan\t" + "\t".join("_" * 8) + "\n\n", [["kan"]]),
]


@pytest.mark.parametrize(("kind", "mark"), [("csv", ","), ("tsv", "\t")])
def test_a_table_in_a_pipe_is_one_for_a_tagger_too(kind: str, mark: str) -> None:
    """As in a file: its header, and each row with its id, was a sentence."""
    content = "id,text,label\n7,kan lon,good\n8,min,bad\n".replace(",", mark)
    inputs = opened(task_config("tagging"), content, labels=TAGS)
    assert inputs.description.startswith(f"- read as {kind}")
    examples = [example for chunk in inputs.chunks for example in chunk]
    assert [(example.id, example.text) for example in examples] == [("7", "kan lon"), ("8", "min")]
    words = opened(task_config("tagging"), f"the text{mark} id\n", labels=TAGS)
    assert words.description.startswith("- read as words")
    with pytest.raises(InputError, match="no column 'text' or 'sentence'"):
        opened(task_config("tagging"), content.replace("text", "words"), labels=TAGS)


@pytest.mark.parametrize(("content", "expected", "kind"), [(*row, "words") for row in WORDS] + [(*row, "conll") for row in COLUMNS])  # fmt: skip
def test_tagging_input_is_read_as_words_or_columns(content: str, expected: list[list[str]], kind: str) -> None:
    inputs = opened(task_config("tagging"), content, labels=TAGS)
    assert inputs.description.startswith(f"- read as {kind}")
    assert [list(words) for (words,) in rows_of(inputs)] == expected


LABELS = ("NUM:dist", "LOC:city")
TREC = {"format": "label_text"}
SEQUENCES = [
    ("sequence", {}, TREC, "How far is Denver ?\n", "text: a text per line", [("How far is Denver ?", None)]),
    ("sequence", {}, TREC, "NUM:dist How far ?\nENTY:x What ?\n", "label_text: text in column 'text'", [("How far ?", None), ("What ?", None)]),
    ("sequence", {}, TREC, "NUM:dist How far ?\nWhat ?\n", "text: a text per line", [("NUM:dist How far ?", None), ("What ?", None)]),
    ("sequence", {}, {"format": "tsv"}, "kan\n", "text: a text per line", [("kan", None)]),
    ("sequence", {}, {}, "[MASK] is\n[kan]\n", "text: a text per line", [("[MASK] is", None), ("[kan]", None)]),
    ("sequence", {}, {}, "{kan}\n", "text: a text per line", [("{kan}", None)]),
    ("sequence", {}, {}, '\n{"text": "kan"}\n', "jsonl: text in column 'text'", [("", None), ("kan", None)]),
    ("sequence", {}, {}, '[\n {"text": "kan"}]', "json: text in column 'text'", [("kan", None)]),
    ("sequence", {}, {}, '{"text": "kan",\n "id": 1}', "json: text in column 'text', id in column 'id'", [("kan", None)]),
    ("sequence", {"text": "question"}, {}, '"id","question"\n"7","kan, lon"\n', "csv: text in column 'question', id in column 'id'", [("kan, lon", None)]),
    ("mrpc", {}, {}, "index\t#1 String\t#2 String\n7\tkan\tlon\n", "tsv: text in column '#1 String', text_pair in column '#2 String', id in column 'index'",
     [("kan", "lon")]),
    ("cola", {}, {}, "x\t1\t\tkan\n", "tsv without a header: text in column 'sentence'", [("kan", None)]),
    ("cola", {}, {}, "kan\n", "text: a text per line", [("kan", None)]),
    ("sequence", {}, {}, "type O\nlon O\n\n", "text: a text per line", [("type O", None), ("lon O", None), ("", None)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "columns", "more", "content", "message", "expected"), SEQUENCES)
def test_text_input_is_read_by_format_and_column(
    name: str,
    columns: dict[str, Any],
    more: dict[str, Any],
    content: str,
    message: str,
    expected: list[tuple[str, str]],
) -> None:
    inputs = opened(dataclasses.replace(task_of(name, **columns), **more), content, labels=LABELS)
    assert inputs.description == f"- read as {message}"
    assert rows_of(inputs) == expected


@pytest.mark.parametrize(("columns", "first", "message"), [
    ({"text": 0}, "fine,2", "csv without a header: text in column 'column 0'"),
    ({"text": 0}, "text,stars", "csv: text in column 'text'"),
    ({"text": 0, "label": 1}, "Text,Label", "csv: text in column 'Text'"),
    ({"text": 0, "label": 1}, "text,2", "csv without a header: text in column 'column 0'"),
    ({"text": 0, "label": 5}, "text,2", "csv: text in column 'text'"),  # an input needs no labels
])  # fmt: skip
def test_a_header_where_columns_have_numbers(columns: dict[str, Any], first: str, message: str) -> None:
    """A first line with the settings' own names was a text more, and nothing said so."""
    inputs = opened(task_of("sequence", **columns), f"{first}\nkan,3\n", name="in.csv")
    assert inputs.description == f"in.csv read as {message}"
    texts = [first.split(",")[0], "kan"] if "without" in message else ["kan"]
    assert rows_of(inputs) == [(text, None) for text in texts]


@pytest.mark.parametrize("line", ["\ufeff", "\u200b", "\u00a0\u2060"])
def test_a_line_of_nothing_that_is_seen_is_blank(line: str) -> None:
    content = f"kan\n{line}\nlon\ufeff\n"
    actual = rows_of(opened(task_config("sequence"), content, format="text"))
    assert actual == [("kan", None), ("", None), ("lon\ufeff", None)]
    assert rows_of(opened(task_config("tagging"), content, format="words")) == [(("kan",),), ((),), (("lon\ufeff",),)]
    records = f'{{"text": "kan"}}\n{line}\n{{"text": "lon"}}\n'
    assert rows_of(opened(task_config("sequence"), records, "in.jsonl")) == [("kan", None), ("", None), ("lon", None)]
    table = f"text\ttext_pair\nkan\tlon\n{line}\n"
    assert rows_of(opened(task_config("sequence"), table, "in.tsv")) == [("kan", "lon"), ("", "")]
    inputs = opened(task_config("sequence"), json.dumps({"text": line}), "in.jsonl")
    assert rows_of(inputs) == [(line, None)]
    assert inputs.warnings == ["1 example had an empty text, the first at in.jsonl:1; ignore their results"]


def test_label_text_that_is_asked_for() -> None:
    task = dataclasses.replace(task_of("sequence"), format="label_text")
    assert rows_of(opened(task, "3 kan lon\n", format="label_text")) == [("kan lon", None)]


EMPTY = [
    ("sequence", "tsv", "text\ttext_pair\nkan\tlon\n\nmin\n\n", [("kan", "lon"), ("", ""), ("min", ""), ("", "")]),
    ("sequence", "csv", "text,text_pair\nkan,lon\n\n\"mi\nn\"\n", [("kan", "lon"), ("", ""), ("mi\nn", "")]),
    ("sequence", "jsonl", '\n{"id": 5, "text": "kan"}\n \n', [("", None), ("kan", None), ("", None)]),
    ("tagging", "jsonl", '\n{"tokens": ["kan", "lon"]}\n', [((),), (("kan", "lon"),)]),
    ("spans", "jsonl", '{"id": "1", "question": "kan", "context": "lon"}\n\n', [("kan", "lon"), ("", "")]),
    ("choice", "jsonl", '{"context": "kan", "endings": ["a", "b", "c"]}\n\n', [("kan", ("a", "b", "c")), ("", ("",) * 3)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "content", "expected"), EMPTY)
def test_every_line_is_an_example(name: str, kind: str, content: str, expected: list[tuple[Any, ...]]) -> None:
    inputs = opened(task_config(name), content, f"in.{kind}")
    assert rows_of(inputs) == expected
    short = {"tsv": (1, "in.tsv:4"), "csv": (1, "in.csv:4")}.get(kind, (0, ""))
    assert (inputs.short_rows.num_rows, inputs.short_rows.first) == short


def test_ids_of_empty_lines_are_no_other_questions() -> None:
    records = [{"id": str(n), "question": "kan", "context": "lon"} for n in (1, 2)]
    content = "\n".join([json.dumps(records[0]), "", json.dumps(records[1]), "", ""])
    inputs = opened(task_config("spans"), content)
    assert [example.id for chunk in inputs.chunks for example in chunk] == ["1", "line 2", "2", "line 4"]


@pytest.mark.parametrize(("name", "file", "content", "expected"), [
    ("sequence", "in.csv.gz", "text,id\nkan,7\n", [("kan", None)]),
    ("sequence", "-", "kan\nlon\n", [("kan", None), ("lon", None)]),
    ("spans", "in.json.gz", json.dumps([{"question": "kan", "context": "lon"}]), [("kan", "lon")]),
    ("tagging", "in.conll.gz", "kan O\n\nlon O\n", [(("kan",),), (("lon",),)]),
])  # fmt: skip
def test_gzip_input_is_read_and_damage_refused(
    name: str, file: str, content: str, expected: list[tuple[Any, ...]]
) -> None:
    packed = gzip.compress(content.encode())
    assert rows_of(opened(task_config(name), packed, file)) == expected
    with pytest.raises(InputError, match=f"^{file}: damaged gzip file"):
        rows_of(opened(task_config(name), packed[:-9], file))


REFUSALS = [
    ("sequence", "-", "s1\ts2\nkan\tlon\n", "-:1: no column 'text' or 'sentence' or 'sentence1' (it has: 's1', 's2'); set "
     "task.columns.text= to its name, or without a header to its number from 0; for plain text set format=text"),
    ("sequence", "-", '"nr","question"\n"1","kan"\n', "-:1: no column 'text'"),
    ("sequence", "-", "EU B-ORG\nrejects O\n\nkan O\n", "format conll"),
    ("sequence", "eng.testb", "-DOCSTART- O\n\nkan O\n", "eng.testb: format conll"),
    ("sequence", "-", '{"text": "kan"} lon\n', "one object per line; for plain text set format=text"),
    ("sequence", "in.csv", "n;body\n1;kan, lon\n", "(it has: 'n', 'body')"),
    ("sequence", "in.tsv", "text\tid\nkan\t1\t2\n", "in.tsv:2: too many cells (3, expected 2"),
    ("sequence", "in.jsonl", '[{"text": "kan"}]\n', "in.jsonl:1: list; expected an object with named fields (a list of them belongs in a .json file)"),
    ("mrpc", "-", "kan\n", "-: task=mrpc needs pairs of texts"),
    ("mrpc", "in.jsonl", '{"sentence1": "kan"}\n', "in.jsonl:1: no column '#2 String' or 'sentence2'"),
    ("spans", "-", "What is it?\n", "-:1: no column 'question' (it has: 'What is it?')"),
    ("spans", "in.csv", "question,text\n", "in.csv:1: no column 'context'"),
    ("swag", "in.csv", "sent1,sent2,ending0\n", "in.csv:1: no column 'ending1'"),
    ("tagging", "-", '{"texts": "kan"}\n', "no column 'tokens' or 'words' (it has: 'texts')"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "content", "message"), REFUSALS)
def test_bad_inputs_are_refused_in_a_line_for_each_fault(name: str, file: str, content: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        rows_of(opened(task_config(name), content, file))
    assert message in str(error.value)
    assert not any("\n" in line for line in error.value.args)


def test_pairs_by_an_explicit_column() -> None:
    with pytest.raises(InputError, match="needs pairs of texts"):
        opened(task_of("sequence", text_pair="s2"), "kan\n")
