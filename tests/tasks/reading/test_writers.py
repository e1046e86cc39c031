"""Files of predictions, read back by other programs: no text changes, and no column is lost."""

import csv
import datetime
import decimal
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from task_files import read, rows, write

from bertkit.base.errors import InputError
from bertkit.tasks.reading.writers import Csv, Parquet, PredictionFormat, Tsv

TEXTS = ["a\nb", "a\r\nb", "a\rb", "\r", 'say "hi"', "a\tb", "007", "NA", "", "  a", "a, b", "\u2028a", "null", "=1+1"]


@pytest.mark.parametrize(("kind", "mark"), [(Csv, ","), (Tsv, "\t")])
def test_texts_in_tables_are_read_by_python_and_pandas(kind: type[Csv], mark: str) -> None:
    import pandas

    file = io.StringIO(newline="")
    kind(file, ",").put([{"text": text, "label": "x"} for text in TEXTS])
    read = csv.DictReader(io.StringIO(file.getvalue(), newline=""), delimiter=mark)
    assert [row["text"] for row in read] == TEXTS
    frame = pandas.read_csv(io.BytesIO(file.getvalue().encode()), sep=mark, keep_default_na=False, dtype=str)
    assert frame["text"].tolist() == TEXTS
    begins = 'text,label\n"a\nb",x\n"a\r\nb",x\n"a\rb",x\n'  # a line feed ends a row
    assert file.getvalue().startswith(begins.replace(",", mark))


@pytest.mark.parametrize("kind", [Csv, Tsv])
def test_texts_in_tables_are_read_back(kind: type[Csv], tmp_path: Path) -> None:
    """A cell of a TSV file that is in quotes for a carriage return alone kept them."""
    file = io.StringIO(newline="")
    texts = [text for text in TEXTS if text]
    kind(file, ",").put([{"text": text, "label": "x" if n % 2 else "y"} for n, text in enumerate(texts)])
    write(tmp_path, f"train.{kind.__name__.lower()}", file.getvalue())
    assert [row[1] for row in rows(read(tmp_path, "sequence", "train"))] == texts
    write(tmp_path, "train.tsv", 'text\tlabel\na, b\tx\n"c\rd"\ty\n')
    assert [row[1] for row in rows(read(tmp_path, "sequence", "train", "files.train=train.tsv"))] == ["a, b", "c\rd"]


def test_a_column_of_several_types_is_one_of_texts_in_parquet(tmp_path: Path) -> None:
    """Also where a later chunk has the other type: the predictions ended in an error."""
    from pyarrow import parquet

    first = [{"id": 17, "year": 2020, "score": 1}, {"id": "3", "year": None, "score": None}]
    with (tmp_path / "a.parquet").open("wb") as binary, Parquet(binary, ",") as table:
        table.put([row | {"long": 2**70} for row in first])
        table.put([{"id": None, "year": "n/a", "score": 0.5}, {"id": True, "year": [1, {"x": None}], "score": 2}])
    read = parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert read["id"] == ["17", "3", None, "true"]
    assert read["year"] == ["2020", None, "n/a", '[1, {"x": null}]']
    assert read["score"] == [1.0, None, 0.5, 2.0]
    assert read["long"] == [str(2**70)] * 2 + [None] * 2


def test_dates_and_decimals_of_a_parquet_file_are_texts(tmp_path: Path) -> None:
    import pandas

    row = {"when": datetime.datetime(2026, 1, 2), "price": decimal.Decimal("1.50")}
    expected = {"when": "2026-01-02 00:00:00", "price": "1.50"}
    lines, table = io.StringIO(), io.StringIO()
    PredictionFormat(lines, ",").put([row])
    Csv(table, ",").put([row])
    with (tmp_path / "a.parquet").open("wb") as binary, Parquet(binary, ",") as parquet:
        parquet.put([row])
    assert json.loads(lines.getvalue()) == expected
    assert table.getvalue() == "when,price\n2026-01-02 00:00:00,1.50\n"
    assert pandas.read_parquet(tmp_path / "a.parquet").to_dict("records") == [expected]


def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    """The gaps of a parquet file, which carry_input copies; as pandas writes them."""
    import pandas

    rows: list[dict[str, Any]] = [{"age": 1.5, "own": [1.0]}, {"age": math.nan, "own": [math.inf, {"a": math.nan}]}]
    lines, table = io.StringIO(), io.StringIO()
    PredictionFormat(lines, ",").put(rows)
    Csv(table, ",").put(rows)
    with (tmp_path / "a.parquet").open("wb") as binary, Parquet(binary, ",") as parquet:
        parquet.put([{"age": row["age"]} for row in rows])
    assert lines.getvalue() == '{"age": 1.5, "own": [1.0]}\n{"age": null, "own": [null, {"a": null}]}\n'
    assert table.getvalue() == 'age,own\n1.5,[1.0]\n,"[null, {""a"": null}]"\n'
    assert pandas.read_parquet(tmp_path / "a.parquet")["age"].isna().tolist() == [False, True]


def test_bytes_are_refused() -> None:
    for put in (PredictionFormat(io.StringIO(), ",").put, Csv(io.StringIO(), ",").put):
        with pytest.raises(InputError, match="the input has bytes, b'ab': "):
            put([{"text": "a", "image": b"ab"}])


LATER: list[dict[str, Any]] = [{"text": "a"}, {"text": "b", "source": "mail"}, {"text": "c", "place": {"page": 3}}]


def test_a_column_that_the_first_row_lacks_is_kept(tmp_path: Path) -> None:
    import pyarrow.parquet

    file = io.StringIO(newline="")
    writer = Csv(file, ",")
    writer.put(LATER)
    assert file.getvalue() == "text,source,place.page\na,,\nb,mail,\nc,,3\n"
    with pytest.raises(InputError, match="a later row has 'score', for which the file has no column"):
        writer.put([{"text": "d", "score": 0.5}])
    with (tmp_path / "a.parquet").open("wb") as binary, Parquet(binary, ",") as table:
        table.put(LATER)
        table.put([{"text": "d", "score": 0.5}])
    rows = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    filled = [{name: value for name, value in row.items() if value is not None} for row in rows]
    assert json.dumps(filled) == json.dumps([*LATER, {"text": "d", "score": 0.5}])
