"""Read JSON and JSON lines as records. SQuAD's JSON, nested or flat, becomes a flat record for each question:

    {"data": [{"paragraphs": [{"context": ..., "qas": [{"id": ..., "question": ..., "answers": [...]}]}]}]}
    {"data": [{"id": ..., "question": ..., "context": ..., "answers": ...}]}

`plausible_answers` of SQuAD 2.0 do not answer the question and are ignored.

What spaCy and Label Studio write of entities becomes a record with a text and its entities:

    ["a text", {"entities": [[0, 1, "LABEL"]]}]
    {"id": ..., "data": {"text": "a text"}, "annotations": [{"result": [{"type": "labels", "value": {"start": 0, "end": 1, "labels": ["LABEL"]}}]}]}
"""

import itertools
import json
from collections.abc import Iterator, Sequence

from bertkit.base.errors import InputError, refusing
from bertkit.base.json_stream import json_values
from bertkit.base.text_files import is_blank, parse_json
from bertkit.tasks.reading.cells import BLANK, Lines

Records = Iterator[tuple[int, object]]
MAX_FAILED_SEARCHES = 100  # for the line of a question's id; each search goes through the whole file


def json_lines(name: str, lines: Lines) -> Records:
    """Yield a record for each line, and `BLANK` for a blank one."""
    number = 0
    with refusing(ValueError, lambda error: f"{name}:{number}: not JSON ({error}); expected one object per line"):
        for number, line in lines:
            yield number, BLANK if is_blank(line) else parse_json(line)


def json_records(name: str, blocks: Lines) -> Records:
    """Return the records of `{"data": [...]}`, of an array, or of JSON lines, whichever the text contains."""
    values = json_values(name, blocks)
    start = list(itertools.islice(values, 2))
    match start:
        case [(line, {"data": list() as data}, text)] if text:
            return _flat_records(name, line, text, data)
        case [(line, dict() as whole, text)] if text:
            return _flat_records(name, line, text, [whole])
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
    match record:
        case {"paragraphs": paragraphs}:
            for n, paragraph in enumerate(_list(paragraphs, f"{name}: {where}", "paragraphs")):
                yield from _questions_of(paragraph, f"{name}: {where}.paragraphs[{n}]")
        case _:
            yield record


def _questions_of(paragraph: object, where: str) -> Iterator[object]:
    match paragraph:
        case {"context": context, **rest}:
            questions = rest.get("qas")
        case _:
            raise InputError(f"{where}: no field 'context'; expected SQuAD's layout, with context and qas")
    for m, question in enumerate(_list(questions, where, "qas")):
        match question:
            case dict():
                yield {**question, "context": context}
            case _:
                raise InputError(f"{where}.qas[{m}]: expected an object with id, question and answers")


def _list(items: object, where: str, field: str) -> list[object]:
    match items:
        case list():
            return items
    raise InputError(f"{where}: no list '{field}'; expected SQuAD's layout, data, paragraphs and qas")


def with_entities(record: object) -> object:
    """Return a pair of spaCy, or a task of Label Studio, with its text and entities as fields; any other record as it is.

    Raises ValueError if several people have labelled a text, and nobody has decided between them.
    """
    match record:
        case [str(text), {"entities": entities}]:
            return {"text": text, "entities": entities}
        case {"text": str(text), "tokens": [dict(), *_], **others}:  # spaCy's own words, with their places
            return {"text": text, **others}
        case {"data": dict() as data, **others}:
            return {"id": others.get("id"), **data, **_labelled(others.get("annotations"))}
    return record


def _labelled(annotations: object) -> dict[str, object]:
    """Return the entities in the annotations of Label Studio that count; None if nobody has labelled the text."""
    kept = [one for one in annotations if not one.get("was_cancelled")] if isinstance(annotations, list) else []
    kept = [one for one in kept if one.get("ground_truth")] or kept
    if len(kept) > 1:
        raise ValueError(
            f"{len(kept)} annotations of one text; mark one of them as the ground truth, or remove the others"
        )
    return {"entities": [each for one in kept for each in _regions(one.get("result") or ())] if kept else None}


def _regions(results: Sequence[object]) -> Iterator[dict[str, object]]:
    for result in results:
        match result:
            case {"type": str(kind), "value": {"start": start, "end": end, **value}} if kind.endswith("labels"):
                yield {"start": start, "end": end, "label": value.get(kind), "text": value.get("text")}


def cells_of(record: object) -> dict[str, object]:
    """Return the fields of a record, as `with_entities` reads it, with its texts as `joined_texts` does; raises ValueError for what is none."""
    match with_entities(record):
        case dict() as row:
            return {key: joined_texts(value, key) for key, value in row.items()}
        case other:
            expected = "expected an object with named fields (a list of them belongs in a .json file)"
            raise ValueError(f"{type(other).__name__}; {expected}")


def joined_texts(value: object, field: str) -> object:
    """Join surrogate pairs in all texts of a field; raises ValueError for half of one, which no tokenizer can read."""
    match value:
        case str() if not value.isascii():
            try:
                return value.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                raise ValueError(f"{field!r:.80} contains half of a surrogate pair; remove it") from None
        case dict():
            return {key: joined_texts(item, field) for key, item in value.items()}
        case list():
            return [joined_texts(item, field) for item in value]
    return value
