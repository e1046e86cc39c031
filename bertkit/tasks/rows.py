"""Rows and tagged sentences to examples, for each shape of task."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from bertkit import signs
from bertkit.errors import InputError
from bertkit.tasks import chunks
from bertkit.tasks.config import Column, TaskConfig
from bertkit.tasks.files.conll import Sentence
from bertkit.tasks.files.labels import Ids, Labels, as_number
from bertkit.tasks.files.source import Source
from bertkit.tasks.files.tables import Table
from bertkit.tasks.task import Answer, ChoiceExample, Example, SequenceExample, SpanExample, TaggingExample

WORDS, TAGS = ("tokens", "words"), ("tags", "ner_tags", "ner", "pos_tags")  # what data sets call them


def read_rows(
    task: TaskConfig, table: Table, kind: str, is_labelled: bool | None, labels: tuple[str, ...] | None
) -> Source:
    """Read the rows of an open table; `kind` is its format, the rest as for `readers.read_file`."""
    table = dataclasses.replace(table, rows=signs.beating(table.rows))
    if task.kind == "sequence":
        return _sequence(task, table, kind, is_labelled, labels)
    if task.kind == "tagging":
        sentences = list(_sentences(task, table))
        return tagging(task, sentences, table.name, table.place, kind, is_labelled, labels)
    if task.kind == "spans":
        return _spans(task, table, kind, is_labelled)
    return _choice(task, table, kind, is_labelled)


def _sequence(
    task: TaskConfig, table: Table, kind: str, is_labelled: bool | None, labels: tuple[str, ...] | None
) -> Source:
    text = table.find(task.columns.text, "text", True)
    pair = table.find(task.columns.text_pair, "text_pair", task.needs_pair)
    id_field = table.find(task.columns.id, "id", False)
    field = _label_field(task.columns.label, table, is_labelled)
    ids, reader = Ids(id_field), Labels(task, field, labels, table.is_typed)
    examples: list[SequenceExample] = []
    empty: list[str] = []
    num_skipped = 0
    for number, row in table.rows:
        where = table.place(number)
        label: str | float | tuple[str, ...] | None = None
        if field is not None:
            value = _value(row, field, where) if is_labelled or field in row else None
            if value in task.skip_labels:
                if is_labelled:
                    num_skipped += 1
                    continue
                value = None  # of a test file, every row counts
            if value not in (None, "") or is_labelled:
                label = (reader.names_of if task.multi_label else reader.name_of)(value, where)
        first = _text(row, text, where)
        second = None if pair is None else _text(row, pair, where)
        if not first.strip() or (second is not None and not second.strip()):
            empty.append(where)
        example_id = ids.take(_given(row, id_field), where)
        examples.append(SequenceExample(example_id, first, second, label))
    oddities = _skipped(table, num_skipped, task) + _empty(empty)
    if task.header is None and task.column_names is None and not table.has_header:
        oddities += _header_as_row(table, examples)
    description = f"{table.name} ({kind}{'' if table.has_header else ', without a header'})"
    labels = reader.all()
    return _source(description, table.name, examples, labels, labels, oddities)


def _header_as_row(table: Table, examples: list[SequenceExample]) -> list[str]:
    """Columns are given by their numbers, and the first line has a label that no other has: perhaps a header's word."""
    labels = [example.label for example in examples]
    if len(labels) < 3 or labels[0] is None or labels.count(labels[0]) > 1 or isinstance(labels[0], float):
        return []
    return [
        f"{table.place(1)}: the label {labels[0]!r} comes only in the first line, which is read as an example; if it is a "
        "header, set task.header=true, else task.header=false"
    ]


def _label_field(column: Column, table: Table, is_labelled: bool | None) -> str | None:
    if is_labelled is False:
        return None
    if is_labelled is None:
        wanted = (column,) if isinstance(column, str) else column
        return table.find(wanted, "label", False)
    try:
        return table.find(column, "label", True)
    except InputError as error:
        raise InputError(f"{error} (labels are expected here; a test file has none)") from None


def _value(row: Any, field: str, where: str) -> Any:
    if field not in row:
        raise InputError(f"{where}: no field '{field}' (it has: {', '.join(map(repr, row))}); add it")
    return row[field]


def _given(row: Any, field: str | None) -> Any:
    """A value that need not be there."""
    return None if field is None else row.get(field)


def _text(row: Any, field: str | None, where: str) -> str:
    value = _value(row, field or "", where)
    if not isinstance(value, str):
        raise InputError(f"{where}: field '{field}' is {type(value).__name__}, expected text")
    return value


def _skipped(table: Table, num_skipped: int, task: TaskConfig) -> list[str]:
    warnings = []
    if num_skipped:
        named = " or ".join(map(repr, task.skip_labels))
        warnings.append(f"{table.name}: {num_skipped:,} rows with the label {named} left out")
    if sum(table.num_skipped):
        warnings.append(f"{table.name}: {sum(table.num_skipped):,} rows with too few cells left out")
    return warnings


def _empty(places: list[str]) -> list[str]:
    return [f"{len(places):,} examples have an empty text, the first at {places[0]}"] if places else []


def _sentences(task: TaskConfig, table: Table) -> Iterator[Sentence]:
    """Sentences of files that hold a list of words in a field."""
    words = table.find(task.columns.words or WORDS, "words", True)
    tags = table.find(task.columns.tags or TAGS, "tags", False)
    id_field = table.find(task.columns.id, "id", False)
    for number, row in table.rows:
        where = table.place(number)
        found = _list(_value(row, words or "", where), words, where)
        if not all(isinstance(word, str) and word.strip() for word in found):
            raise InputError(f"{where}: field '{words}' has an empty word, or one that is no text; correct it")
        given = row.get(tags) if tags else None
        tagged = [] if given is None else _list(given, tags, where)
        if tagged and len(tagged) != len(found):
            raise InputError(f"{where}: {len(found)} {words} but {len(tagged)} {tags}; expected a tag for each word")
        if any(tag is None or not str(tag).strip() for tag in tagged):
            raise InputError(f"{where}: empty tag in field '{tags}'; correct it")
        if len({type(tag) for tag in tagged}) > 1:
            raise InputError(f"{where}: mixed types of {tags}; write all alike")
        yield Sentence(
            str(row[id_field]) if id_field and id_field in row else None,
            found,
            [str(tag) for tag in tagged],
            [number] * len(found),
        )


def _list(value: Any, field: str | None, where: str) -> list[Any]:
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list):
        raise InputError(f"{where}: field '{field}' is {type(value).__name__}, expected a list")
    return value


def tagging(
    task: TaskConfig,
    sentences: list[Sentence],
    name: str,
    place: Any,
    kind: str,
    is_labelled: bool | None,
    labels: tuple[str, ...] | None,
) -> Source:
    """Read tagged sentences; `place` names a line, `kind` is the format, the rest as for `readers.read_file`.

    Raises:
        InputError: a tag is missing, or cannot stand where it stands.
    """
    has_tags = is_labelled is not False and any(sentence.tags for sentence in sentences)
    for sentence in sentences:
        if is_labelled and sentence.words and not sentence.tags:
            raise InputError(
                f"{place(sentence.lines[0])}: no tags; expected one for each word here (a test file has none), "
                "or set task.columns.tags="
            )
    warnings: list[str] = []
    scheme = "none"
    if has_tags:
        scheme = _to_iob2(task, sentences, name, place, warnings)
    reader = Labels(task, "tag", labels, False)
    if reader.names is None and scheme != "none":
        kinds = sorted({tag[2:] for sentence in sentences for tag in sentence.tags if tag != "O"})
        reader.names = ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))
        reader.by_value = {label: label for label in reader.names}
    ids = Ids("id")
    examples: list[Example] = []
    for sentence in signs.beating(sentences):
        tags = None
        if has_tags and sentence.tags:
            for tag, line in zip(sentence.tags, sentence.lines, strict=True):
                if tag not in reader.seen:
                    reader.name_of(tag, place(line))
            tags = tuple(reader.by_value.get(tag, tag) for tag in sentence.tags)
        where = place(sentence.lines[0]) if sentence.lines else name
        examples.append(TaggingExample(ids.take(sentence.id, where), tuple(sentence.words), tags))
    warnings += _empty([name for sentence in sentences if not sentence.words])
    unit = "documents" if task.documents else "sentences"
    written = "" if scheme == "none" else f", {scheme.upper()}" + ("" if scheme == "iob2" else " read as IOB2")
    expected = task.label_names or ()
    return _source(f"{name} ({kind}, {unit}{written})", name, examples, reader.all(), expected, warnings)


def _to_iob2(task: TaskConfig, sentences: list[Sentence], name: str, place: Any, warnings: list[str]) -> str:
    """Turn the tags of all sentences into IOB2; give the scheme that they were in.

    A scheme that is asked for is required of every tag. One that is detected is not: what breaks it is read as the
    CoNLL evaluation does, and counted. A chunk ends where a sentence does, also inside of a document.
    """
    tagged = [sentence for sentence in sentences if sentence.tags]
    scheme: str = task.scheme
    if scheme == "auto":
        scheme = chunks.detect_scheme([sentence.tags[part] for sentence in tagged for part in sentence.sentences()])
    if scheme == "none":
        return scheme
    breaks: list[tuple[str, int]] = []
    for sentence in tagged:
        for tag, line in zip(sentence.tags, sentence.lines, strict=True):
            if chunks.parts_of(tag) is None:
                raise InputError(
                    f"{place(line)}: tag '{tag}' does not parse; expected O, or B-, I- (E-, S-) and a type, as in B-PER; "
                    "if tags mark no chunks, set task.scheme=none"
                )
        for part in signs.beating(sentence.sentences()):
            tags = sentence.tags[part]
            at = chunks.first_break(tags, scheme)
            if at is not None:
                breaks.append((tags[at], sentence.lines[part][at]))
            sentence.tags[part] = chunks.convert(tags, "iob2")
    if breaks:
        tag, line = breaks[0]
        if task.scheme != "auto":
            raise InputError(
                f"{place(line)}: tag '{tag}' cannot stand here in {scheme.upper()}; correct it, or set task.scheme=auto"
            )
        warnings.append(
            f"{name}: sentences with a tag that breaks {scheme.upper()}: {len(breaks):,} (first '{tag}' at {place(line)}); "
            "read as the CoNLL evaluation does"
        )
    return scheme


def _spans(task: TaskConfig, table: Table, kind: str, is_labelled: bool | None) -> Source:
    question = table.find(task.columns.question, "question", True)
    context = table.find(task.columns.context, "context", True)
    field = table.find(task.columns.answers, "answers", False) if is_labelled is not False else None
    id_field = table.find(task.columns.id, "id", False)
    ids = Ids(id_field)
    examples: list[Example] = []
    empty: list[str] = []
    for number, row in table.rows:
        where = table.place(number)
        example_id = ids.take(_given(row, id_field), where)
        where = f"{where}: question '{example_id}'"
        asked, text = _text(row, question, where), _text(row, context, where)
        answers: tuple[Answer, ...] | None = None
        if is_labelled is not False and row.get("is_impossible") is True:
            answers = ()
        elif field is not None and row.get(field) is not None:
            answers = tuple(_answer(found, text, where) for found in _answers(row[field], where, field))
        if is_labelled and answers is None:
            raise InputError(
                f"{where}: no answers; they are expected here (a test file has none); set task.columns.answers="
            )
        if answers == () and task.spans is not None and task.spans.is_always_answered:
            raise InputError(
                f"{where}: empty answers, but task={task.name} has one for every question; try task=squad2"
            )
        if not asked.strip() or not text.strip():
            empty.append(where)
        examples.append(SpanExample(example_id, asked, text, answers))
    oddities = _skipped(table, 0, task) + _empty(empty)
    return _source(f"{table.name} ({kind})", table.name, examples, (), (), oddities)


def _answers(value: Any, where: str, field: str) -> list[tuple[Any, Any]]:
    """Texts and starts: of SQuAD's list, of the hub's two lists, or of a text alone, whose start is not known."""
    if isinstance(value, str):
        return [(value, None)] if value else []
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            return list(zip(texts, starts, strict=True))
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return [(item.get("text"), item.get("answer_start")) for item in value]
    raise InputError(f"{where}: field '{field}' holds no answers; expected [{{text, answer_start}}, ...]")


def _answer(found: tuple[Any, Any], context: str, where: str) -> Answer:
    text, start = found
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{where}: empty answer ({text!r}); correct it, or leave it out if there is none")
    if start is None:
        start = context.find(text)
        if start < 0:
            raise InputError(f"{where}: answer {text!r} is not in its context; correct it")
    if isinstance(start, bool) or not isinstance(start, int):
        raise InputError(f"{where}: answer_start {start!r} of answer {text!r}; expected a whole number of characters")
    if start < 0 or context[start : start + len(text)] != text:
        there = context[start : start + len(text)] if start >= 0 else ""
        raise InputError(
            f"{where}: answer {text!r} is not in its context at answer_start={start} (there is {there!r}); correct it"
        )
    return Answer(text, start)


def _choice(task: TaskConfig, table: Table, kind: str, is_labelled: bool | None) -> Source:
    context = table.find(task.columns.context, "context", True)
    begin = table.find(task.columns.ending_start, "ending_start", False)
    given = task.columns.endings
    columns = [table.find(name, "endings", True) for name in ((given,) if not isinstance(given, tuple) else given)]
    field = _label_field(task.columns.label, table, is_labelled)
    id_field = table.find(task.columns.id, "id", False)
    ids = Ids(id_field)
    examples: list[Example] = []
    empty: list[str] = []
    for number, row in table.rows:
        where = table.place(number)
        values = [_value(row, column or "", where) for column in columns]
        endings = values[0] if len(values) == 1 and isinstance(values[0], list) else values
        if len(endings) < 2 or not all(isinstance(ending, str) for ending in endings):
            raise InputError(f"{where}: expected at least two endings, each a text; set task.columns.endings=")
        if begin is not None:
            endings = [f"{_text(row, begin, where)} {ending}" for ending in endings]
        label = _place_of_right(_given(row, field), field, len(endings), where, bool(is_labelled)) if field else None
        text = _text(row, context, where)
        if not text.strip() or not all(ending.strip() for ending in endings):
            empty.append(where)
        examples.append(ChoiceExample(ids.take(_given(row, id_field), where), text, tuple(endings), label))
    oddities = _skipped(table, 0, task) + _empty(empty)
    return _source(f"{table.name} ({kind})", table.name, examples, (), (), oddities)


def _place_of_right(value: Any, field: str, num_endings: int, where: str, is_labelled: bool) -> int | None:
    if value in (None, "", -1, "-1") and not is_labelled:
        return None
    number = math.nan if isinstance(value, bool) or value is None else as_number(value)
    if number not in range(num_endings):
        raise InputError(f"{where}: {field} {value!r}; expected the number of the right ending, 0 to {num_endings - 1}")
    return int(number)


def _source(
    description: str,
    name: str,
    examples: Sequence[Example],
    labels: tuple[str, ...],
    expected_labels: tuple[str, ...],
    oddities: list[str],
) -> Source:
    if not examples:
        raise InputError(f"{description}: no examples; restore the file")
    return Source(description, list(examples), labels, name, expected_labels, tuple(oddities))
