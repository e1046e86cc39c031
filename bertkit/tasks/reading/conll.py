"""Read CoNLL files and CoNLL-U as sentences or documents of words and tags; convert tagging schemes.

CoNLL-2000, 2002, 2003 and GermEval 2014: each line has a word and its tags, a blank line ends a sentence, `-DOCSTART-` begins
a document. Cells are separated by tabs if the first word's line has a tab, otherwise by blanks. If the words are not in
column 0, as in GermEval, a line that begins with `#` is a comment.

CoNLL-U (universaldependencies.org/format.html): ten columns separated by tabs; `#` begins a comment, `# newdoc` a document.
Multiword ranges such as 1-2 and empty nodes such as 1.1 are not words.

Tags may mark chunks (tagged phrases, such as names) in the schemes IOB1, IOB2 or BIOES:

    words   Sue   and  Bob   Bob   in   New   York   City
    iob1    I-PER O    I-PER B-PER O    I-LOC I-LOC  I-LOC     B- only after a chunk of the same type
    iob2    B-PER O    B-PER B-PER O    B-LOC I-LOC  I-LOC     B- begins every chunk
    bioes   S-PER O    S-PER S-PER O    B-LOC I-LOC  E-LOC     S- is a chunk of one word, E- ends one of several

BIOES has other spellings: L- and U- for E- and S- (BILOU), M- for I- (BMES), and M- and W- for I- and S- (BMEWO). A tag I- or E-
that does not continue a chunk begins a new one, as in the CoNLL evaluation (conlleval; Ramshaw and Marcus 1995, Ratinov and Roth 2009).
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bertkit.base.errors import InputError
from bertkit.base.text_files import is_blank
from bertkit.tasks.reading.cells import CountedRows, wrong_number
from bertkit.tasks.task_config import TaskConfig, number_of

Chunk = tuple[str, int, int]  # type, number of the first word, number after the last word
_PREFIXES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}  # and what they mean
_SPELLINGS = {"B": "BI", "I": "IM", "E": "EL", "S": "SUW"}
_PARTS = re.compile(f"([{''.join(_PREFIXES)}])-(.+)", re.DOTALL)
FORM, UPOS = 1, 3  # CoNLL-U: the columns of words and part-of-speech tags
_SENTENCE_ID, _DOCUMENT_ID = re.compile(r"#\s*sent_id\s*=\s*(.*\S)"), re.compile(r"#\s*newdoc id\s*=\s*(.*\S)")
_REMARK = re.compile(r"# (id|sent_id|newdoc|newpar|text|global\.columns)\b")  # in MultiCoNER, CoNLL-U Plus and others
_NO_WORD = re.compile(r"\d+[-.]\d+")  # the number of a multiword range or an empty node in CoNLL-U
_NAMES_OF_WORDS = {"word", "words", "token", "tokens", "text", "sentence"}
_NAMES_OF_OTHERS = {"id", "tag", "tags", "ner", "ner_tags", "pos", "pos_tags", "label", "labels"}
MAX_WORDS = 1_000_000  # in a sentence or document
BLANKS = re.compile("[ \t]+")  # a no-break space is part of a word


class TagParts(NamedTuple):
    """The parts of a tag: B and PER of `B-PER`, E and PER of `L-PER`, O and "" of `O`."""

    prefix: str
    type: str


@functools.lru_cache(maxsize=1024)  # a file has many tags, but few different ones
def parts_of(tag: str) -> TagParts | None:
    """Split a tag into prefix and type; return None for a tag that marks no chunk and is not O."""
    if tag == "O":
        return TagParts("O", "")
    marked = _PARTS.fullmatch(tag)
    return TagParts(_PREFIXES[marked[1]], marked[2]) if marked else None


def chunks_of(tags: Sequence[str]) -> list[Chunk]:
    """Return the chunks that tags mark, in any scheme; raises ValueError(tag) if a tag has no valid prefix."""
    chunks: list[Chunk] = []
    start, open_kind = 0, None
    for place, tag in enumerate(tags):
        parts = parts_of(tag)
        if parts is None:
            raise ValueError(tag)
        prefix, kind = parts
        continues = prefix in ("I", "E") and kind == open_kind
        if not continues:
            if open_kind is not None:
                chunks.append((open_kind, start, place))
            start, open_kind = place, None if prefix == "O" else kind
        if prefix in ("E", "S"):
            chunks.append((kind, start, place + 1))
            open_kind = None
    if open_kind is not None:
        chunks.append((open_kind, start, len(tags)))
    return chunks


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """Convert a sentence's tags to the scheme "iob1", "iob2" or "bioes"; raises ValueError if a tag has no valid prefix."""
    converted, before = ["O"] * len(tags), ("", 0)  # the type and end of the chunk before
    for kind, start, end in chunks_of(tags):
        converted[start:end] = [f"I-{kind}"] * (end - start)
        if scheme == "bioes":
            converted[start] = f"B-{kind}"
            converted[end - 1] = f"E-{kind}" if end - start > 1 else f"S-{kind}"
        elif scheme == "iob2" or before == (kind, start):
            converted[start] = f"B-{kind}"
        before = (kind, end)
    return converted


def scheme_of(labels: Iterable[str]) -> str:
    """Return the scheme of a model's labels: IOB2 if each type has a label B-, as if there are no labels, otherwise IOB1 or BIOES."""
    parts = [own for own in map(parts_of, labels) if own is not None and own.type]
    if any(own.prefix in ("E", "S") for own in parts):
        return "bioes"
    return "iob2" if {own.type for own in parts} == {own.type for own in parts if own.prefix == "B"} else "iob1"


def as_labels(tags: Sequence[str], labels: Collection[str]) -> list[str]:
    """Write a sentence's tags as a model with these labels spells them; with I- where it lacks a B-, as IOB1 may."""

    def spelled(tag: str) -> str:
        ways = (f"{prefix}{tag[1:]}" for prefix in _SPELLINGS.get(tag[0], ""))
        return next((own for own in ways if own in labels), tag)

    return [*map(spelled, convert(tags, scheme_of(labels)))]


def first_break(tags: Sequence[str], scheme: str) -> int | None:
    """Return the first word whose tag breaks the scheme; None if no tag does."""
    pairs = enumerate(zip(tags, convert(tags, scheme), strict=True))
    return next((place for place, (tag, expected) in pairs if parts_of(tag) != parts_of(expected)), None)


def detect_scheme(sentences: Sequence[Sequence[str]]) -> str:
    """Return the scheme that most sentences follow; IOB2 if several schemes fit equally well.

    "none" means that the tags mark no chunks: no tag is O, and some tags have no prefix such as B-. Sentences that contain an
    invalid tag are ignored.
    """
    distinct = {*itertools.chain.from_iterable(sentences)}
    marked = {tag for tag in distinct if tag[:1] in _PREFIXES and tag[1:2] == "-"}
    if distinct != {"O"} and not (marked and ("O" in distinct or marked == distinct)):
        return "none"
    whole = [tags for tags in sentences if all(map(parts_of, tags))]
    if any(_PREFIXES[tag[0]] in ("E", "S") for tag in marked):
        return "bioes"
    return min(("iob2", "iob1"), key=lambda scheme: sum(first_break(tags, scheme) is not None for tags in whole))


@dataclass
class Sentence:
    """A sentence or document."""

    id: object = None  # from the file
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)  # one for each word; empty if the file has no tags
    lines: list[int] = field(default_factory=list)  # the line number of each word
    breaks: list[int] = field(default_factory=list)  # in a document: the first word of each sentence but the first
    is_from_text: bool = False  # whether the words were in one text, between blanks

    def end_sentence(self) -> None:
        """Begin the next sentence of a document with the next word."""
        if self.words:
            self.breaks.append(len(self.words))

    def sentences(self) -> list[slice]:
        """Return the range of words of each sentence."""
        return [slice(*pair) for pair in itertools.pairwise([0, *self.breaks, len(self.words)])]


def read_words(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Sentence]]:
    """Read each line, also a blank one, as a sentence without tags; blanks separate the words."""
    for number, line in lines:
        words = [] if is_blank(line) else list(filter(None, BLANKS.split(line)))
        yield number, Sentence(words=words, lines=[number] * len(words))


@dataclass(frozen=True)
class _Layout:
    """What the lines of a file mean, and where its columns are."""

    words: int  # the column of the words
    tags: int
    comment: str | None  # the beginning of a line that is a comment; None: there are none
    document: str  # the beginning of a line that begins a document
    no_word: re.Pattern[str] | None = None  # the first cell of a line that is no word
    num_cells: int = 0  # of a line; 0: as many as the first line has

    @classmethod
    def of(cls, task: TaskConfig, format: str) -> "_Layout":
        """Return the layout of a format, with the columns that the task numbers."""
        usual, columns = _LAYOUTS[format], task.columns
        words, tags = number_of(columns.words, usual.words), number_of(columns.tags, usual.tags)
        comment = task.comment or usual.comment or ("#" if words != 0 else None)
        return dataclasses.replace(usual, words=words, tags=tags, comment=comment)

    def is_comment(self, line: str) -> bool:
        """Whether a line has no word, but the id of a sentence or document, or a remark."""
        is_remark = _REMARK.match(line) is not None if self.comment is None else line.startswith(self.comment)
        return is_remark or line.startswith(self.document)


_LAYOUTS = {
    "conll": _Layout(words=0, tags=-1, comment=None, document="-DOCSTART-"),
    "conllu": _Layout(FORM, UPOS, comment="#", document="# newdoc", no_word=_NO_WORD, num_cells=10),
}

_COMMENTS = (
    "if lines with # are comments, set \"task.comment='#'\", or task.columns.words=1 task.columns.tags=2 if column 0 numbers "
    "the words, as in GermEval"
)


class _Column(NamedTuple):
    """A column that is read."""

    setting: str
    number: int
    cell: str  # what messages call one of its cells
    advice: str = ""  # if a cell is empty


class _Lines:
    """Cuts lines into cells; all have as many as the first one."""

    def __init__(self, layout: _Layout) -> None:
        self.layout, self.num_cells, self.has_tabs, self.first = layout, layout.num_cells, True, " "
        self.columns = [
            _Column("words", layout.words, "word"),
            _Column("tags", layout.tags, "tag", ", or set task.columns.tags="),
        ]

    def add(self, line: str, number: int, name: Path, sentence: Sentence) -> None:
        """Add the word of a line to a sentence; raises InputError for a wrong number of cells, or an empty cell."""
        where, layout = f"{name}:{number}", self.layout
        if self.num_cells == 0:
            self.has_tabs, self.first = "\t" in line, line
        cells = line.split("\t") if self.has_tabs else BLANKS.split(line.strip(" "))
        names = set[str]() if self.num_cells else {cell.strip('"').lower() for cell in cells}
        if not _NAMES_OF_WORDS.isdisjoint(names) and not _NAMES_OF_OTHERS.isdisjoint(names):
            way = "remove it, or if each row has a whole sentence set task.format=tsv, for predict format=tsv"
            raise InputError(f"{where}: the first line names the columns; {way}")
        self.num_cells = self.num_cells or len(cells)
        if len(cells) != self.num_cells:
            is_numbered = layout.words == 0 and cells[0].isdigit()  # as in GermEval
            way = "set task.columns.words=1 if column 0 numbers the words" if is_numbered else "correct the line"
            way = _COMMENTS if "#" in (line[0], self.first[0]) else way
            raise InputError(f"{where}: {wrong_number(cells, self.num_cells)}; {way}")
        if layout.no_word and layout.no_word.fullmatch(cells[0]):
            return
        columns = self.columns[: len(cells)]  # the only column has the words
        for column in columns:
            if not -len(cells) <= column.number < len(cells):
                missing = f"no column {column.number} (it has {len(cells)})"
                raise InputError(f"{where}: {missing}; set task.columns.{column.setting}=")
        for column in columns:
            cell = cells[column.number]
            if not (cell if column.setting == "words" else cell.strip()):  # a no-break space is a word
                is_comment = line.startswith("#")
                way = _COMMENTS if is_comment else f"correct the line{column.advice}"
                raise InputError(f"{where}: empty {column.cell}; {way}")
        sentence.words.append(cells[layout.words])
        sentence.tags += [cells[column.number].strip() for column in columns[1:]]
        sentence.lines.append(number)
        if len(sentence.words) > MAX_WORDS:
            raise InputError(f"{where}: more than {MAX_WORDS:,} words without a blank line; add blank lines")


def read_conll(
    task: TaskConfig, name: Path, format: str, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, Sentence]]:
    """Yield sentences, or documents, with the line where each begins.

    Raises InputError if a line has too few or too many cells, or an empty word or tag; if the usual column of words has none, but their
    numbers or the name of the column; or if task.documents=true, but no line begins a document.
    """
    layout = _Layout.of(task, format)
    sentences = _read(task, name, layout, lines)
    head = list(itertools.islice(sentences, 2))
    if head and layout.words == 0 and not isinstance(task.columns.words, int):
        where = f"{name}:{head[0][0]}"
        if all(_is_numbered(one) for _, one in head) and sum(len(one.words) for _, one in head) > 2:
            way = "set task.columns.words=1 task.columns.tags=2, as for GermEval, or the format conllu for CoNLL-U"
            raise InputError(f"{where}: column 0 numbers the words; {way}")
    yield from itertools.chain(head, sentences)


def _is_numbered(sentence: Sentence) -> bool:
    """Whether the words of each sentence are the numbers from 1; CoNLL-U also has ranges."""
    parts = (itertools.filterfalse(_NO_WORD.fullmatch, sentence.words[words]) for words in sentence.sentences())
    return all(word == str(number) for part in parts for number, word in enumerate(part, 1))


def _read(
    task: TaskConfig, name: Path, layout: _Layout, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, Sentence]]:
    words, current, has_documents = _Lines(layout), Sentence(), False
    unit_id = _DOCUMENT_ID if task.documents else _SENTENCE_ID
    for number, line in lines:
        is_document, is_break = line.startswith(layout.document), is_blank(line)
        has_documents |= is_document
        if current.words and (is_document or (is_break and not task.documents)):
            yield current.lines[0], current
            current = Sentence()
        if is_break:
            current.end_sentence()
        elif not layout.is_comment(line):
            words.add(line, number, name, current)
        elif id_line := unit_id.match(line):
            current.id = id_line[1]
    if current.words:
        yield current.lines[0], current
    if task.documents and not has_documents:
        wrong = f"no line '{layout.document}', so the file has no documents"
        raise InputError(f"{name}: {wrong}; set task.documents=false")


def to_scheme_of(
    labels: Collection[str], task: TaskConfig, sentences: Sequence[Sentence], name: str, place: Callable[[int], str]
) -> tuple[str, list[str]]:
    """Convert the tags of all sentences to the scheme of a model's labels, in place, without labels to IOB2; return their own, and warnings.

    If the settings name the scheme, every tag must follow it. If the scheme is detected, tags that break it are counted, and
    interpreted as in the CoNLL evaluation. A chunk ends with its sentence, also inside a document.
    """
    tagged = [sentence for sentence in sentences if sentence.tags]
    scheme: str = task.scheme
    if scheme == "auto":
        scheme = detect_scheme([sentence.tags[words] for sentence in tagged for words in sentence.sentences()])
    if scheme == "none":
        return scheme, []
    broken, joined = CountedRows(), CountedRows()
    for sentence in tagged:
        for word, tag, line in zip(sentence.words, sentence.tags, sentence.lines, strict=True):
            if parts_of(tag) is None:
                way = _COMMENTS if word.startswith("#") else "or set task.scheme=none if tags mark no chunks"
                expected = "expected O, or B-, I- (E-, S-) and a type, as in B-PER"
                raise InputError(f"{place(line)}: invalid tag '{tag:.80}'; {expected}; {way}")
        for words in sentence.sentences():
            tags, lines = sentence.tags[words], sentence.lines[words]
            if (at := first_break(tags, scheme)) is not None:
                tag, where = tags[at], place(lines[at])
                if task.scheme != "auto":
                    way = "correct it, or set task.scheme=auto"
                    raise InputError(f"{where}: tag '{tag:.80}' breaks {scheme.upper()}; {way}")
                broken.add(f"'{tag:.80}' at {where}")
            sentence.tags[words] = own = as_labels(tags, labels)
            if len(chunks_of(own)) < len(chunks_of(tags)):
                joined.add(place(lines[0]))
    found = [
        (f"a tag that breaks {scheme.upper()}", broken, "interpreted as in the CoNLL evaluation"),
        ("chunks side by side that the model's labels cannot tell apart", joined, "read as one chunk, in scores too"),
    ]
    warnings = [
        f"{name}: sentences with {what}: {n.num_rows:,} (first {n.first}); {way}"
        for what, n, way in found
        if n.num_rows
    ]
    return scheme, warnings
