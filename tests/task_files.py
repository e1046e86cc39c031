"""Files of tasks as the tests write and read them."""

import json
from pathlib import Path
from typing import Any

from task_configs import task_config

from bertkit.tasks.reading.readers import read_examples
from bertkit.tasks.reading.source import SplitExamples
from bertkit.tasks.sequence import SequenceExample
from bertkit.tasks.words import TaggingExample


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder: Path, task: str, split: str, *overrides: str, **options: Any) -> SplitExamples:
    return read_examples(task_config(task, *(f"task.{text}" for text in overrides)), str(folder), split, **options)


def rows(source: SplitExamples) -> list[tuple[Any, ...]]:
    assert all(isinstance(example, SequenceExample) for example in source.examples)
    return [(e.id, e.text, e.text_pair, e.label) for e in source.examples]  # type: ignore[union-attr]


def tagged(source: SplitExamples) -> list[tuple[Any, ...]]:
    assert all(isinstance(example, TaggingExample) for example in source.examples)
    return [(e.words, e.tags) for e in source.examples]  # type: ignore[union-attr]


RECORDS = [{"id": "x", "text": 'One, "two"\nthree', "label": "good"}, {"id": "y", "text": "vier", "label": "bad"}]
EXPECTED = [("x", 'One, "two"\nthree', None, "good"), ("y", "vier", None, "bad")]


OWN = {
    "train.csv": 'id,text,label\nx,"One, ""two""\nthree",good\ny,vier,bad\n',
    "train.jsonl": "".join(json.dumps(record) + "\n" for record in RECORDS),
    "train.json": json.dumps(RECORDS, indent=1),
    "train.parquet": b"",
}

SWAG_HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
