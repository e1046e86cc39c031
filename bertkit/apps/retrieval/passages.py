"""Documents -> overlapping passages of whole sentences, with their places in the file; texts -> search words."""

import functools
import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bertkit.base.errors import install_extra, refusing
from bertkit.base.text_files import without_surrogates
from bertkit.data.data_config import PassagesConfig
from bertkit.data.texts.records import PlacedDocument
from bertkit.data.texts.sources import split_sentences

MAX_CACHED_STEMS = 100_000
MAX_QUERY_WORDS = 256  # different words; further words of a long question are ignored
# scripts without spaces between words: Thai, Lao, Burmese, Khmer and the Tai languages (line breaking class SA of Unicode);
# Chinese and Japanese
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_UNSPACED_RUN = re.compile(f"[{_UNSPACED}]+")
_MARKS = "".join(
    c for c in map(chr, (*range(0xE00, 0x1AB0), *range(0xA9E0, 0xAAE0))) if unicodedata.category(c)[0] == "M"
)
_LETTER = re.compile(f"[{_UNSPACED}][{_MARKS}]*")  # a letter with its vowel signs and tone marks
_LETTERS = re.compile(r"[^\W\d_]+")
_WORD = re.compile(rf"[^\s{_UNSPACED}]+|(?:{_LETTER.pattern}){{1,2}}")
_INSIDE_WORD = re.compile(rf"[^\W_{_UNSPACED}\uac00-\ud7a3]{{2}}")  # two letters or digits
_SPACED = re.compile(rf"[^\s{_UNSPACED}]+")
LONGEST_UNCUT = 50  # longer words, such as addresses, may be cut
_UNCUT = re.compile(rf"[^\s{_UNSPACED}]{{1,{LONGEST_UNCUT}}}|{_LETTER.pattern}")


class TextSpan(NamedTuple):
    """A place in a text: `text[start:end]`."""

    start: int
    end: int


@dataclass(frozen=True)
class LibraryDocument:
    """A document to be added to a library."""

    title: str  # may be empty
    text: str
    sentences: tuple[tuple[int, int], ...]  # (start, end) of each sentence in the text
    unit: str  # "line" if every sentence is a line of the file, else what `number` counts, such as "record"
    number: int  # number of its first line, or record, in the file, from 1; 0 if unknown
    columns: str = "{}"  # the short columns of its record, as JSON

    @property
    def key(self) -> bytes:
        """A hash of its content; equal documents in different files have the same key."""
        content = f"{self.title}\0{self.text}\0{self.unit == 'line'}\0{self.columns}"
        return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True)
class Passage:
    """A part of a document: `document.text[start:end]`, with the sentences from `first` to `last`, counted from 0."""

    start: int
    end: int
    first: int
    last: int


def document_of(sentences: Sequence[str], unit: str) -> LibraryDocument:
    """Make a library document of a corpus document; its sentences are joined with spaces."""
    at, spans = 0, []
    for sentence in sentences:
        spans.append((at, at + len(sentence)))
        at += len(sentence) + 1
    placed = sentences if isinstance(sentences, PlacedDocument) else PlacedDocument()
    columns = without_surrogates(json.dumps(placed.columns, ensure_ascii=False))
    return LibraryDocument(placed.title, " ".join(sentences), tuple(spans), unit, placed.number, columns)


def document_of_text(text: str, title: str, unit: str, number: int) -> LibraryDocument:
    """Make a library document of a text, which is kept unchanged and split into sentences."""
    text = without_surrogates(text)
    return LibraryDocument(without_surrogates(title), text, tuple(_sentence_places(text)), unit, number)


def _sentence_places(text: str) -> Iterator[TextSpan]:
    at = 0
    for sentence in split_sentences(text):
        start = text.index(sentence, at)
        at = start + len(sentence)
        yield TextSpan(start, at)


def sentence_around(text: str, place: int) -> TextSpan:
    """Return the sentence with the character at `place`."""
    return next(span for span in _sentence_places(text) if place < span.end)


def cut(document: LibraryDocument, settings: PassagesConfig) -> Iterator[Passage]:
    """Cut a document into passages of whole sentences, with at most `words` words.

    A passage begins with the last sentences of the previous passage, with at most `overlap` words. Only a sentence that is
    longer than a passage is cut.
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
        next_first, room = last + 1, settings.overlap
        while next_first - 1 > first and pieces[next_first - 1][3] <= room:
            next_first -= 1
            room -= pieces[next_first][3]
        first = next_first


def _pieces(text: str, start: int, end: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Yield the whole sentence, or pieces of `most` words if it is longer, as (start, end, number of words)."""
    words = [match.span() for match in _WORD.finditer(text, start, end)]
    for at in range(0, max(1, len(words)), most):
        some = words[at : at + most]
        if len(words) <= most:
            yield start, end, len(words)
        else:
            yield some[0][0], some[-1][1], len(some)


def place_of(unit: str, number: int, passage: Passage) -> str:
    """Describe the place of a passage in its file: the lines, or the document and the characters."""
    if unit == "line" and number:
        first, last = number + passage.first, number + passage.last
        return f"line {first}" if first == last else f"lines {first}-{last}"
    where = f"{unit} {number}, " if number else ""
    return f"{where}characters {passage.start}-{passage.end}"


@functools.cache
def stemmer_of(stemming: str) -> Callable[[str], str]:
    """Return the function from a text to its text of stems; raises InputError without its package. FTS5 stems English itself."""
    if stemming in ("none", "english"):
        return str
    with refusing(ImportError, lambda _: f"passages.stemming={stemming} needs nltk: {install_extra('search')}"):
        from nltk.stem.snowball import SnowballStemmer

    @functools.lru_cache(MAX_CACHED_STEMS)
    def stem(word: str) -> str:
        return str(
            SnowballStemmer(stemming).stem(word)
        )  # a new one, since the Arabic one has a state, and threads search

    return functools.partial(_LETTERS.sub, lambda match: stem(match[0].lower()))


def searchable(text: str, stemming: str, *, is_question: bool = False) -> str:
    """Normalize a text for the index, or for a question, with spaces between words.

    Compatibility characters (full-width letters, ligatures) become ordinary characters. Text in a script without spaces is
    replaced by the overlapping pairs of its letters, as in Lucene's CJKBigramFilter; the index has single letters too, for
    questions of one letter. A letter has its vowel signs and tone marks, since alone they are in nearly every passage.
    """

    def words(match: re.Match[str]) -> str:
        letters = _LETTER.findall(match[0])
        pairs = list(map("".join, itertools.pairwise(letters)))
        return f" {' '.join(pairs if is_question and pairs else pairs + letters)} "

    return stemmer_of(stemming)(_UNSPACED_RUN.sub(words, unicodedata.normalize("NFKC", text)))


def words_of(question: str, more: Sequence[str] = (), stemming: str = "none") -> list[str]:
    """Return the different words of a question and of `more`, or their stems; punctuation separates words."""
    plain = searchable(" ".join([question, *more]), stemming, is_question=True).casefold()
    return list(dict.fromkeys(plain.translate(_BLANKS).split()))[:MAX_QUERY_WORDS]


class _Blanks(dict[int, str]):
    """What `str.translate` needs to replace each character that belongs to no word by a blank."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        is_part = character.isalnum() or unicodedata.category(character)[0] == "M"
        self[code] = character if is_part else " "
        return self[code]


_BLANKS = _Blanks()


def has_words(text: str, part: str) -> bool:
    """Whether a text contains a part that neither begins nor ends inside a word: "191" is not in "1914".

    Scripts without spaces have no such borders, and Korean endings are attached to their word.
    """
    for match in re.finditer(f"(?={re.escape(part)})", text):
        edges = (match.start(), match.start() + len(part))
        if not any(_INSIDE_WORD.fullmatch(text[max(0, edge - 1) : edge + 1]) for edge in edges):
            return True
    return False


def places_of_words(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each word as the index has it; in a script without spaces, of each letter and pair of letters."""
    plain = text.translate(_BLANKS)
    yield from (word.span() for word in _SPACED.finditer(plain))
    for run in _UNSPACED_RUN.finditer(plain):
        letters = [letter.span() for letter in _LETTER.finditer(plain, *run.span())]
        yield from letters
        yield from ((start, end) for (start, _), (_, end) in itertools.pairwise(letters))


def uncut_places(text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of what is not cut about `text[first:last]`: words with their punctuation; letters, in a script without spaces."""
    return (match.span() for match in _UNCUT.finditer(text, max(0, first - LONGEST_UNCUT), last + LONGEST_UNCUT))
