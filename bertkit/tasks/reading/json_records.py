"""Read JSON and JSON lines as records. SQuAD's JSON, nested or flat, becomes a flat record for each question:

    {"data": [{"paragraphs": [{"context": ..., "qas": [{"id": ..., "question": ..., "answers": [...]}]}]}]}
    {"data": [{"id": ..., "question": ..., "context": ..., "answers": ...}]}

`plausible_answers` of SQuAD 2.0 do not answer the question and are ignored.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence

from bertkit.base.errors import InputError
from bertkit.base.json_stream import json_values
from bertkit.base.text_files import is_blank, parse_json, without_surrogates
from bertkit.tasks.reading.cells import BLANK, Lines

Records = Iterator[tuple[int, object]]
MAX_FAILED_SEARCHES = 100  # for the line of a question's id; each search goes through the whole file


def json_lines(name: str, lines: Lines) -> Records:
    """Yield a record for each line, and `BLANK` for a blank one."""
    for number, line in lines:
        try:
            yield number, BLANK if is_blank(line) else parse_json(line)
        except ValueError as error:
            raise InputError(f"{name}:{number}: not JSON ({error}); expected one object per line") from None


def json_records(name: str, blocks: Lines) -> Records:
    """Return the records of `{"data": [...]}`, of an array, or of JSON lines, whichever the text contains."""
    values = json_values(name, blocks)
    start = list(itertools.islice(values, 2))
    if len(start) == 1:
        line, whole, text = start[0]
        if text and isinstance(whole, dict):
            data = whole.get("data")
            return _flat_records(name, line, text, data if isinstance(data, list) else [whole])
    return ((line, value) for line, value, _ in itertools.chain(start, values))


def _flat_records(name: str, line: int, text: str, data: Sequence[object]) -> Records:
    """Yield the records of `data`, or their nested questions, each with the line that has its id; `text` begins at `line`."""
    position, misses = -1, 0
    for number, record in enumerate(data):
        for question in _questions(name, f"data[{number}]", record):
            place = -1
            if isinstance(question, dict) and misses < MAX_FAILED_SEARCHES:
                place = text.find(json.dumps(str(question.get("id"))), position + 1)
            misses += place < 0
            if place >= 0:
                line, position = line + text.count("\n", max(position, 0), place), place
            yield line, question


def _questions(name: str, where: str, record: object) -> Iterator[object]:
    if not isinstance(record, dict) or "paragraphs" not in record:
        yield record
        return
    for n, paragraph in enumerate(_list(name, where, record, "paragraphs")):
        inside = f"{where}.paragraphs[{n}]"
        if not isinstance(paragraph, dict) or "context" not in paragraph:
            raise InputError(f"{name}: {inside}: no field 'context'; expected SQuAD's layout, with context and qas")
        for m, question in enumerate(_list(name, inside, paragraph, "qas")):
            if not isinstance(question, dict):
                raise InputError(f"{name}: {inside}.qas[{m}]: expected an object with id, question and answers")
            yield {**question, "context": paragraph["context"]}


def _list(name: str, where: str, record: Mapping[str, object], field: str) -> list[object]:
    items = record.get(field)
    if not isinstance(items, list):
        raise InputError(f"{name}: {where}: no list '{field}'; expected SQuAD's layout, data, paragraphs and qas")
    return items


def clean(value: object) -> object:
    """Replace lone surrogates, which JSON can contain, but UTF-8 cannot."""
    match value:
        case str():
            return without_surrogates(value)
        case dict():
            return {key: clean(item) for key, item in value.items()}
        case list():
            return [clean(item) for item in value]
    return value
