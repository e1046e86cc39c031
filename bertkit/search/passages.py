"""Documents -> overlapping passages of whole sentences with their places; texts -> search words."""

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bertkit.base.text_files import without_surrogates
from bertkit.data.corpus.documents import PlacedDocument
from bertkit.data.corpus.sources import split_sentences
from bertkit.data.data_config import PassagesConfig

MAX_QUERY_WORDS = 256  # different words of a question; a text of 10,000 characters is cut
# scripts without spaces: Han, kana, Thai, Lao, Burmese and Khmer
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_RUN = re.compile(f"[{_UNSPACED}]+")
_WORD = re.compile(rf"[^\s{_UNSPACED}]+|[{_UNSPACED}]{{1,2}}")


@dataclass(frozen=True)
class LibraryDocument:
    """A document on its way into a library."""

    title: str  # may be empty
    text: str
    sentences: tuple[tuple[int, int], ...]  # (start, end) in the text; kept whole if possible
    unit: str  # counted by `number`: "line" if every sentence is a line, else such as "record"
    number: int  # its place in its file, from 1; 0 if unknown

    @property
    def key(self) -> bytes:
        """A hash of its content, whatever its file."""
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
    """Join the sentences of a corpus document with spaces."""
    at, spans = 0, []
    for sentence in sentences:
        spans.append((at, at + len(sentence)))
        at += len(sentence) + 1
    placed = sentences if isinstance(sentences, PlacedDocument) else PlacedDocument()
    return LibraryDocument(placed.title, " ".join(sentences), tuple(spans), unit, placed.number)


def document_of_text(text: str, title: str, unit: str, number: int) -> LibraryDocument:
    """Keep a text as it is, for exact quotes; a rule splits it into sentences."""
    text, at, spans = without_surrogates(text), 0, []
    for sentence in split_sentences(text):
        at = text.index(sentence, at)
        spans.append((at, at + len(sentence)))
        at += len(sentence)
    return LibraryDocument(without_surrogates(title), text, tuple(spans), unit, number)


def cut(document: LibraryDocument, settings: PassagesConfig) -> Iterator[Passage]:
    """Cut a document into passages of at most `words` words, of whole sentences if they fit.

    A passage begins with the last sentences of the previous one, up to `overlap` words. A sentence longer than a passage is
    cut between words.
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
    """Give a sentence whole, or in pieces of `most` words: (start, end, words)."""
    words = [match.span() for match in _WORD.finditer(text, start, end)]
    for at in range(0, max(1, len(words)), most):
        some = words[at : at + most]
        if len(words) <= most:
            yield start, end, len(words)
        else:
            yield some[0][0], some[-1][1], len(some)


def place_of(unit: str, number: int, passage: Passage) -> str:
    """Write the place of a passage in its file: its lines, or its document and characters."""
    if unit == "line" and number:
        first, last = number + passage.first, number + passage.last
        return f"line {first}" if first == last else f"lines {first}-{last}"
    where = f"{unit} {number}, " if number else ""
    return f"{where}characters {passage.start}-{passage.end}"


def searchable(text: str) -> str:
    """Normalize a text for the index, with spaces between words.

    Compatibility forms (full-width letters, ligatures) become plain ones. Scripts without spaces are cut into overlapping
    pairs of characters, as in Lucene's CJKBigramFilter, so that a word of two characters can be found.
    """
    plain = unicodedata.normalize("NFKC", text)
    return _RUN.sub(_pairs, plain)


def _pairs(match: re.Match[str]) -> str:
    run = match[0]
    return " " + " ".join(run[at : at + 2] for at in range(max(1, len(run) - 1))) + " "


def words_of(question: str, more: Sequence[str] = ()) -> list[str]:
    """Give the different words of a question, and of `more`; punctuation separates words."""
    plain = searchable(" ".join([question, *more])).casefold()
    kept = "".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in plain)
    return list(dict.fromkeys(kept.split()))[:MAX_QUERY_WORDS]
