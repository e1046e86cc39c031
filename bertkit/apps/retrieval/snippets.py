"""Snippets: the part of a passage that shows why it was found, and the words of the question in it."""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bertkit.apps.retrieval.library_file import tokenizer_of
from bertkit.apps.retrieval.passages import TextSpan, places_of_words, searchable, uncut_places
from bertkit.data.data_config import PassagesConfig

SNIPPET_CHARS = 200  # two or three lines of a terminal
MAX_CACHED_WORDS = 100_000


class Snippet(NamedTuple):
    """A part of a passage, from its character `start` on, with blanks for line breaks; `marks` are places in `text`."""

    text: str
    start: int
    marks: list[TextSpan]


class Marker:
    """Finds the words of a question in texts, compared as in the index: by FTS5's tokenizer, in a database in memory."""

    def __init__(self, settings: PassagesConfig) -> None:
        self._stemming, self._terms = settings.stemming, dict[str, set[str]]()
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.executescript(f"""
            CREATE VIRTUAL TABLE words USING fts5(word, content='', tokenize='{tokenizer_of(settings)}');
            CREATE VIRTUAL TABLE terms USING fts5vocab(words, instance)""")

    def marks(self, texts: Sequence[str], words: Sequence[str]) -> list[list[TextSpan]]:
        """Return the places of the words, which `words_of` made, in each text; words that touch one another are one place."""
        places = [list(places_of_words(text)) for text in texts]
        spelled = [[text[start:end] for start, end in spans] for text, spans in zip(texts, places, strict=True)]
        if len(self._terms) > MAX_CACHED_WORDS:
            self._terms.clear()
        new = list({word for some in spelled for word in some} - self._terms.keys())
        analyzed = self._analyzed([" ".join(words), *(searchable(word, self._stemming) for word in new)])
        asked = analyzed[0]
        self._terms |= zip(new, analyzed[1:], strict=True)
        return [
            _joined(span for span, word in zip(spans, some, strict=True) if self._terms[word] & asked)
            for spans, some in zip(places, spelled, strict=True)
        ]

    def _analyzed(self, texts: Sequence[str]) -> list[set[str]]:
        """Return the terms of each text, as the index has them."""
        terms = [set[str]() for _ in texts]
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO words (rowid, word) VALUES (?, ?)", enumerate(texts))
        for number, term in self._connection.execute("SELECT doc, term FROM terms"):
            terms[number].add(term)
        self._connection.execute("ROLLBACK")
        return terms


def _joined(spans: Iterable[tuple[int, int]]) -> list[TextSpan]:
    """Join spans that touch or overlap, as the pairs of letters do in a script without spaces."""
    joined: list[TextSpan] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1].end:
            before = joined.pop()
            start, end = before.start, max(before.end, end)
        joined.append(TextSpan(start, end))
    return joined


def snippet_of(passage: str, marks: Sequence[TextSpan], answer: TextSpan | None) -> Snippet:
    """Cut at most SNIPPET_CHARS characters out of a passage, at words: around the answer, or else the most different marks."""
    shown = _densest(passage, marks) if answer is None else answer
    room = max(0, SNIPPET_CHARS - (shown.end - shown.start))
    first = max(0, min(shown.start - room // 2, len(passage) - SNIPPET_CHARS))
    last = first + SNIPPET_CHARS
    words = list(uncut_places(passage, first, last))
    start = min([shown.start, *(start for start, _ in words if start >= first)])
    end = max([min(shown.end, last), *(end for _, end in words if end <= last)])
    inside = [mark for mark in marks if mark.start < end and mark.end > start]
    moved = [TextSpan(max(mark.start, start) - start, min(mark.end, end) - start) for mark in inside]
    return Snippet(re.sub(r"\s", " ", passage[start:end]), start, moved)


def _densest(passage: str, marks: Sequence[TextSpan]) -> TextSpan:
    """Return the first place, within SNIPPET_CHARS, with the most different words; the beginning if there are no marks."""
    limits = ((number, mark.start + SNIPPET_CHARS) for number, mark in enumerate(marks))
    near = [[other for other in marks[number:] if other.end <= limit] for number, limit in limits]
    best = max(near, key=lambda some: len({passage[start:end].casefold() for start, end in some}), default=[])
    return TextSpan(best[0].start, best[-1].end) if best else TextSpan(0, 0)
