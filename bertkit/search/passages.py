"""Documents -> overlapping passages of whole sentences, each with its place; and the words that a text is found by."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bertkit.base.text_files import without_surrogates
from bertkit.data.corpus.documents import PlacedDocument
from bertkit.data.corpus.sources import split_sentences
from bertkit.data.data_config import PassagesConfig

MOST_QUERY_WORDS = 256  # different ones of a question; of 10,000 characters the first of them say what is sought
# Han, kana, and the scripts of Thai, Lao, Burmese and Khmer, which are written without spaces
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_RUN = re.compile(f"[{_UNSPACED}]+")
_WORD = re.compile(rf"[^\s{_UNSPACED}]+|[{_UNSPACED}]{{1,2}}")


@dataclass(frozen=True)
class LibraryDocument:
    """A document as it enters a library."""

    title: str  # its own; may be empty
    text: str  # as it will be quoted
    # the characters of each in the text, first and last excluded; what is cut no further than it must
    sentences: tuple[tuple[int, int], ...]
    unit: str  # what `number` counts in its file: "line" where every sentence is a line, else such as "record"
    number: int  # its place in its file, from 1; 0 where it is not known

    @property
    def key(self) -> bytes:
        """Stands for what is in it, wherever it comes from."""
        content = f"{self.title}\0{self.text}\0{self.unit == 'line'}"
        return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True)
class Passage:
    """A part of a document: `document.text[start:end]`, its sentences from `first` to `last`, counted from 0."""

    start: int
    end: int
    first: int
    last: int


def document_of(sentences: Sequence[str], unit: str) -> LibraryDocument:
    """Put the sentences of a corpus's document together, with a space between them; a line may stand for each."""
    at, spans = 0, []
    for sentence in sentences:
        spans.append((at, at + len(sentence)))
        at += len(sentence) + 1
    placed = sentences if isinstance(sentences, PlacedDocument) else PlacedDocument()
    return LibraryDocument(placed.title, " ".join(sentences), tuple(spans), unit, placed.number)


def document_of_text(text: str, title: str, unit: str, number: int) -> LibraryDocument:
    """Take a text as it stands, so that what is quoted of it has its characters; sentences are found by a rule."""
    text, at, spans = without_surrogates(text), 0, []
    for sentence in split_sentences(text):
        at = text.index(sentence, at)
        spans.append((at, at + len(sentence)))
        at += len(sentence)
    return LibraryDocument(without_surrogates(title), text, tuple(spans), unit, number)


def cut(document: LibraryDocument, settings: PassagesConfig) -> Iterator[Passage]:
    """Cut a document into passages of at most `words` words, whole sentences as far as they fit.

    The next passage begins with as many of the last sentences of the one before as have `overlap` words together. A
    sentence that is longer than a passage is cut between words.
    """
    pieces = [
        (number, *piece)
        for number, (start, end) in enumerate(document.sentences)
        for piece in _pieces(document.text, start, end, settings.words)
    ]  # (sentence, start, end, words)
    first = 0
    while first < len(pieces):
        last, room = first, settings.words - pieces[first][3]
        while last + 1 < len(pieces) and pieces[last + 1][3] <= room:
            last += 1
            room -= pieces[last][3]
        yield Passage(pieces[first][1], pieces[last][2], pieces[first][0], pieces[last][0])
        if last + 1 == len(pieces):
            return
        next_first, again = last + 1, settings.overlap
        while next_first - 1 > first and pieces[next_first - 1][3] <= again:
            next_first -= 1
            again -= pieces[next_first][3]
        first = next_first


def _pieces(text: str, start: int, end: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Give a sentence as it is, or in pieces of `most` words: (start, end, words)."""
    words = [found.span() for found in _WORD.finditer(text, start, end)]
    for at in range(0, max(1, len(words)), most):
        some = words[at : at + most]
        if len(words) <= most:
            yield start, end, len(words)
        else:
            yield some[0][0], some[-1][1], len(some)


def place_of(unit: str, number: int, passage: Passage) -> str:
    """Say where in its file a passage stands, for people: its lines, or its document and its characters in that."""
    if unit == "line" and number:
        first, last = number + passage.first, number + passage.last
        return f"line {first}" if first == last else f"lines {first}-{last}"
    where = f"{unit} {number}, " if number else ""
    return f"{where}characters {passage.start}-{passage.end}"


def searchable(text: str) -> str:
    """Write a text so that words between spaces are what is searched for.

    Compatibility forms (full-width letters, ligatures) become plain ones. Scripts without spaces are cut into overlapping
    pairs of characters, as Lucene's CJKBigramFilter does: a word of two characters is found where it stands.
    """
    plain = unicodedata.normalize("NFKC", text)
    return _RUN.sub(_pairs, plain)


def _pairs(found: re.Match[str]) -> str:
    run = found[0]
    return " " + " ".join(run[at : at + 2] for at in range(max(1, len(run) - 1))) + " "


def words_of(question: str, more: Sequence[str] = ()) -> list[str]:
    """Give the different words of a question, and those that widen it; whatever signs it holds are no more than spaces."""
    plain = searchable(" ".join([question, *more])).casefold()
    kept = "".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in plain)
    return list(dict.fromkeys(kept.split()))[:MOST_QUERY_WORDS]
