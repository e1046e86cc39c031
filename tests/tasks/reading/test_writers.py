"""Files of predictions, read back by other programs: no text changes, and no column is lost."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from bertkit.base.errors import InputError
from bertkit.tasks.reading.writers import Csv, Parquet

TEXTS = ["a\nb", "a\r\nb", "a\rb", "\r", 'say "hi"', "a\tb", "007", "NA", "", "  a", "a, b", "\u2028a", "null", "=1+1"]


def test_texts_in_csv_are_read_by_python_and_pandas() -> None:
    import pandas

    file = io.StringIO(newline="")
    Csv(file, ",").put([{"text": text, "label": "x"} for text in TEXTS])
    assert [row["text"] for row in csv.DictReader(io.StringIO(file.getvalue(), newline=""))] == TEXTS
    frame = pandas.read_csv(io.BytesIO(file.getvalue().encode()), keep_default_na=False, dtype=str)
    assert frame["text"].tolist() == TEXTS
    assert file.getvalue().startswith('text,label\n"a\nb",x\n"a\r\nb",x\n"a\rb",x\n')  # a line feed ends a row


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
