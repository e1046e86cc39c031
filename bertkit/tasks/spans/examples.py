"""Questions with their contexts, and their features. A long context is cut into overlapping windows, one feature each:

    [CLS] who lives there ? [SEP] some pieces of the context [SEP]

Axes: T tokens of a window.
Source: Devlin et al. 2019, sections 4.2 and 4.3; google-research/bert run_squad.py.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError, counted
from bertkit.data.corpus.tokenizer import Tokenizer, after_marks
from bertkit.tasks.feature import ContextToken, SpanFeature, pieces
from bertkit.tasks.reading.cells import Cells, CountedRows
from bertkit.tasks.reading.labels import IMPOSSIBLE, as_number, is_impossible
from bertkit.tasks.reading.reading import Reading, optional_value, required_text
from bertkit.tasks.task_config import SpansConfig

START = "answer_start"  # where an answer begins, in characters
NO_ANSWER = (0, 0)  # the label of a window without the answer: the position of [CLS], as start and as end


@dataclass(frozen=True)
class Answer:
    """An answer in a context: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclass(frozen=True)
class SpanExample:
    """A question about a context."""

    id: str
    question: str
    context: str  # may be empty
    answers: tuple[Answer, ...] | None  # the accepted answers; empty if the question has no answer; None if unknown


def read(reading: Reading, is_always_answered: bool) -> Iterator[SpanExample]:
    """Read a question from each row; raises InputError if a column is missing or a row is wrong."""
    config, is_input = reading.config, reading.is_input
    question = reading.find(config.columns.question, "question")
    context = reading.find(config.columns.context, "context")
    field = None if is_input else reading.find_optional(config.columns.answers, "answers")
    ids = reading.ids(is_unique=True)  # the output files use ids as keys
    ambiguous, contradicted = CountedRows(), CountedRows()

    def example(row: Cells, where: str, line: int) -> SpanExample:
        example_id = ids.take(optional_value(row, ids.field), where, line)
        where = f"{where}: question '{example_id}'"
        question_text, text = required_text(row, question, where), required_text(row, context, where)
        answers: tuple[Answer, ...] | None = None
        value = None if field is None else row.get(field)
        pairs = _texts_and_starts(value, row.get(START), where, field)
        if not is_input and is_impossible(row, where):
            answers = ()
            if any(isinstance(answer, str) and answer and answer in text for answer, _ in pairs):  # "[]" is not
                contradicted.add(where)
        elif value is not None:
            answers = tuple(_answer(*pair, text, where) for pair in pairs)
            if any(
                start is None and text.count(answer.text) > 1 for (_, start), answer in zip(pairs, answers, strict=True)
            ):
                ambiguous.add(where)
        if reading.is_labelled and answers is None:
            raise InputError(f"{where}: no answers; only a test file may have none; set task.columns.answers=")
        if answers == () and is_always_answered:
            raise InputError(f"{where}: empty answers; task={config.name} needs one for each question; try task=squad2")
        reading.note_empty(where, question_text, text)
        return SpanExample(example_id, question_text, text, answers)

    def examples() -> Iterator[SpanExample]:
        yield from reading.each(example)
        name = reading.table.name
        several = f"{counted(ambiguous.num_rows, 'question')} with an answer without {START} that its context has several times"
        way = "the first place is taken, a whole word if there is one"
        both = f"{counted(contradicted.num_rows, 'question')} with {IMPOSSIBLE} and an answer, the first at {contradicted.first}"
        reading.file_warnings += [
            *ambiguous.warning(f"{name}: {several}, the first at {ambiguous.first}; {way}"),
            *contradicted.warning(f"{name}: {both}; they count as questions without an answer"),
        ]

    return examples()


def _texts_and_starts(value: object, start: object, where: str, field: str | None) -> list[tuple[object, object]]:
    """Return (text, start) of each answer, from SQuAD's list, the hub's two lists, or a single text with its own column of starts.

    A start is None if it is unknown.
    """
    match value:
        case None | "":
            return []
        case str():
            number = as_number(start) if isinstance(start, str) else math.inf  # of a table without types
            return [(value, number if number < math.inf else start or None if isinstance(start, str) else start)]
        case {"text": str() as text, **rest}:
            return [(text, rest.get(START))]
        case [*texts] if texts and isinstance(start, list) and len(start) == len(texts):
            return list(zip(texts, start, strict=True))
        case {"text": list() as texts, "answer_start": list() as starts} if len(texts) == len(starts):
            return list(zip(texts, starts, strict=True))
        case list() if all(isinstance(item, dict) for item in value):
            return [(item.get("text"), item.get(START)) for item in value]
    raise InputError(f"{where}: field '{field}' holds no answers; expected [{{text, answer_start}}, ...]")


def _answer(text: object, start: object, context: str, where: str) -> Answer:
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            f"{where}: empty answer ({text!r:.80}); correct it, or remove it if the question has no answer"
        )
    if start is None:
        found = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context) or re.search(re.escape(text), context)
        if found is None:
            raise InputError(f"{where}: answer {text!r:.80} is not in its context; correct it")
        start = found.start()
    if isinstance(start, float) and start.is_integer():  # as pandas writes a column with gaps
        start = int(start)
    if isinstance(start, bool) or not isinstance(start, int):
        raise InputError(
            f"{where}: answer_start {start!r:.80} of answer {text!r:.80}; expected a whole number of characters"
        )
    if start < 0 or context[start : start + len(text)] != text:
        there = context[start : start + len(text)] if start >= 0 else ""
        raise InputError(
            f"{where}: answer {text!r:.80} is not in its context at answer_start={start}, but {there!r:.80}"
        )
    return Answer(text, start)


def make_features(
    examples: Sequence[SpanExample], tokenizer: Tokenizer, max_seq_length: int, settings: SpansConfig
) -> list[SpanFeature]:
    """Turn each question into one feature for each window of its context; a question keeps its first `max_query_length` pieces.

    An empty context has one window. Raises InputError if `max_query_length` leaves no room for the context.
    """
    facts, between = tokenizer.facts, tokenizer.between
    most = max_seq_length - len(between) - 3
    if settings.max_query_length > most:
        raise InputError(
            f"max_query_length={settings.max_query_length}: leaves no room for the context in "
            f"max_seq_length={max_seq_length}; set 0 to {most}"
        )
    questions = pieces(tokenizer, [example.question for example in examples])
    contexts = list(dict.fromkeys(example.context for example in examples))
    pieces_of = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
    features = []
    for place, (example, question) in enumerate(zip(examples, questions, strict=True)):
        asked = tokenizer.cut(question, settings.max_query_length)
        head = [facts.cls, *asked, *between]
        passage = pieces_of[example.context]
        starts, ends = _starts(passage.offsets), _ends(example.context, passage.offsets)
        room = max_seq_length - len(head) - 1
        windows = _windows(len(passage.ids), room, min(settings.window_step, room))
        gold = None if not example.answers else _gold_pieces(passage.offsets, example.answers[0])
        num_cut = max(0, len(question) - settings.max_query_length)
        for (first, last), is_max_context in zip(windows, _max_contexts(windows, len(passage.ids)), strict=True):
            label = None if example.answers is None else NO_ANSWER
            if gold is not None and first <= gold[0] and gold[1] < last:
                label = (gold[0] - first + len(head), gold[1] - first + len(head))
            places = [
                ContextToken(start, end, bool(is_max))
                for start, end, is_max in zip(starts[first:last], ends[first:last], is_max_context, strict=True)
            ]
            origins = [*[None] * len(head), *places, None]
            ids = [*head, *passage.ids[first:last], facts.sep]
            types = tokenizer.pair_types(len(asked), last - first)
            features.append(
                SpanFeature(place, ids, types, label, num_first=len(head), num_cut=num_cut, origins=origins)
            )
    return features


def _starts(offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Return where an answer starts that starts with each piece: after one of white space with the next one."""
    starts, last = list[int](), offsets[-1][1] if offsets else 0
    for start, end in reversed(offsets):
        last = start if start < end else last
        starts.append(last)
    return starts[::-1]


def _ends(context: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Return where an answer ends that ends with each piece: after the marks that belong to its last letter, as in run_squad.py."""
    next_starts = [*(start for start, _ in offsets[1:]), len(context)]
    return [after_marks(context, end, most) for (_, end), most in zip(offsets, next_starts, strict=False)]


def _windows(num_pieces: int, room: int, step: int) -> list[tuple[int, int]]:
    """Divide pieces into windows (first, last), with `last` excluded; the last window ends with the last piece."""
    count = 1 + max(0, math.ceil((num_pieces - room) / step))
    return [(number * step, min(number * step + room, num_pieces)) for number in range(count)]


def _max_contexts(windows: Sequence[tuple[int, int]], num_pieces: int) -> list[NDArray[np.bool_]]:
    """Return for each window which of its pieces have the most context in it; of equal windows the first counts.

    Source: run_squad.py `_check_is_max_context`: the smaller number of pieces on either side + 0.01 * the window's length.
    """
    best = np.full(num_pieces, -1.0)
    owner = np.zeros(num_pieces, dtype=np.int64)
    for number, (first, last) in enumerate(windows):
        positions = np.arange(first, last)
        score = np.minimum(positions - first, last - 1 - positions) + 0.01 * (last - first)
        better = positions[score > best[first:last]]
        best[better], owner[better] = score[better - first], number
    return [owner[first:last] == number for number, (first, last) in enumerate(windows)]


def _gold_pieces(offsets: Sequence[tuple[int, int]], answer: Answer) -> tuple[int, int] | None:
    """Return the first and the last piece that contain a character of the answer; None if no piece does.

    run_squad.py looks for the shortest sequence of pieces that spells the answer. The result is the same, unless an answer
    begins or ends inside a piece.
    """
    end = answer.start + len(answer.text)
    touched = [number for number, (a, b) in enumerate(offsets) if a < end and answer.start < b]
    return (touched[0], touched[-1]) if touched else None
