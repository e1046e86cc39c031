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

BILOU is BIOES with L- and U- instead of E- and S-. A tag I-, E- or L- that does not continue a chunk begins a new one, as in
the CoNLL evaluation (conlleval; Ramshaw and Marcus 1995, Ratinov and Roth 2009).
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.text_files import is_blank
from bertkit.tasks.task_config import TaskConfig

Chunk = tuple[str, int, int]  # type, number of the first word, number after the last word
_MARKED = re.compile("[BIESLU]-")
FORM, UPOS = 1, 3  # CoNLL-U: the columns of words and part-of-speech tags
_UNIT_ID = re.compile(r"#\s*(sent_id|newdoc id)\s*=\s*(.*\S)")
MAX_WORDS = 1_000_000  # in a sentence or document
BLANKS = re.compile("[ \t]+")  # a no-break space is part of a word
_NO_WORD = re.compile(r"\d+[-.]\d+$")


def parts_of(tag: str) -> tuple[str, str] | None:
    """Split a tag into prefix and type: `B-PER` into B and PER, `O` into O and "". Return None for any other tag."""
    if tag == "O":
        return "O", ""
    prefix, dash, kind = tag.partition("-")
    return (prefix, kind) if dash and kind and prefix in ("B", "I", "E", "S", "L", "U") else None


def chunks_of(tags: Sequence[str]) -> list[Chunk]:
    """Return the chunks that tags mark, in any scheme; raises ValueError(tag) if a tag has no valid prefix."""
    chunks: list[Chunk] = []
    start, open_kind = 0, None
    for place, tag in enumerate(tags):
        parts = parts_of(tag)
        if parts is None:
            raise ValueError(tag)
        prefix, kind = parts
        continues = prefix in ("I", "E", "L") and kind == open_kind
        if not continues:
            if open_kind is not None:
                chunks.append((open_kind, start, place))
            start, open_kind = place, None if prefix == "O" else kind
        if prefix in ("E", "L", "S", "U"):
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


def first_break(tags: Sequence[str], scheme: str) -> int | None:
    """Return the first word whose tag breaks the scheme; None if no tag does."""
    spelling = str.maketrans("LU", "ES") if scheme == "bioes" else {}
    for place, (tag, expected) in enumerate(zip(tags, convert(tags, scheme), strict=True)):
        if tag[0].translate(spelling) + tag[1:] != expected:
            return place
    return None


def detect_scheme(sentences: Sequence[Sequence[str]]) -> str:
    """Return the scheme that most sentences follow; IOB2 if several schemes fit equally well.

    "none" means that the tags mark no chunks: no tag is O, and some tags have no prefix such as B-. Sentences that contain an
    invalid tag are ignored.
    """
    distinct = {tag for tags in sentences for tag in tags}
    marked = {tag for tag in distinct if _MARKED.match(tag)}
    if distinct != {"O"} and not (marked and ("O" in distinct or marked == distinct)):
        return "none"
    whole = [tags for tags in sentences if all(map(parts_of, tags))]
    if any(tag[0] in "ESLU" for tag in marked):
        return "bioes"
    num_breaks = {s: sum(first_break(tags, s) is not None for tags in whole) for s in ("iob2", "iob1")}
    return min(num_breaks, key=lambda scheme: num_breaks[scheme])


@dataclass
class Sentence:
    """A sentence or document."""

    id: str | None = None  # from the file
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)  # one for each word; empty if the file has no tags
    lines: list[int] = field(default_factory=list)  # the line number of each word
    breaks: list[int] = field(default_factory=list)  # in a document: the first word of each sentence but the first

    def sentences(self) -> list[slice]:
        """Return the range of words of each sentence."""
        return [slice(*pair) for pair in itertools.pairwise([0, *self.breaks, len(self.words)])]


def read_words(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Sentence]]:
    """Read each line, also a blank one, as a sentence without tags; blanks separate the words."""
    for number, line in lines:
        words = [] if is_blank(line) else [word for word in BLANKS.split(line) if word]
        yield number, Sentence(words=words, lines=[number] * len(words))


def read_conll(
    task: TaskConfig, name: Path, format: str, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, Sentence]]:
    """Yield sentences, or documents, with the line where each begins.

    Raises InputError if a line has too few or too many cells, or an empty word or tag; or if task.documents=true, but no line
    begins a document.
    """
    is_conllu, columns = format == "conllu", task.columns
    words, tags = (FORM, UPOS) if is_conllu else (0, -1)
    words = columns.words if isinstance(columns.words, int) else words  # a name is for tables, a number for CoNLL files
    tags = columns.tags if isinstance(columns.tags, int) else tags
    comment = task.comment or ("#" if is_conllu or words != 0 else None)
    current, num_documents = Sentence(), 0
    num_cells, tabs = 10 if is_conllu else 0, is_conllu
    for number, line in lines:
        is_document = line.startswith("# newdoc" if is_conllu else "-DOCSTART-")
        num_documents += is_document
        is_break = is_blank(line)
        if current.words and (is_document or (is_break and not task.documents)):
            yield current.lines[0], current
            current = Sentence()
        if is_break:
            if current.words:
                current.breaks.append(len(current.words))
            continue
        if is_document or (comment and line.startswith(comment)):
            named = _UNIT_ID.match(line)
            if named and (named[1] == "newdoc id") == task.documents:
                current.id = named[2]
            continue
        if num_cells == 0:
            tabs = "\t" in line
        cells = line.split("\t") if tabs else BLANKS.split(line.strip(" "))
        num_cells = num_cells or len(cells)
        if len(cells) != num_cells:
            much = "many" if len(cells) > num_cells else "few"
            is_numbered = words == 0 and cells[0].isdigit()  # as in GermEval
            way = "set task.columns.words=1 if column 0 numbers the words" if is_numbered else "correct the line"
            raise InputError(f"{name}:{number}: too {much} cells ({len(cells)}, expected {num_cells}); {way}")
        if is_conllu and _NO_WORD.match(cells[0]):
            continue
        _append(current, cells, words, tags, f"{name}:{number}")
        if len(current.words) > MAX_WORDS:
            raise InputError(f"{name}:{number}: more than {MAX_WORDS:,} words without a blank line; add blank lines")
        current.lines.append(number)
    if current.words:
        yield current.lines[0], current
    if task.documents and not num_documents:
        mark = "# newdoc" if is_conllu else "-DOCSTART-"
        raise InputError(f"{name}: no line '{mark}', so the file has no documents; set task.documents=false")


def _append(sentence: Sentence, cells: list[str], words: int, tags: int, where: str) -> None:
    has_tags = len(cells) > 1
    for setting, column in (("words", words), ("tags", tags))[: 1 + has_tags]:
        if not -len(cells) <= column < len(cells):
            raise InputError(f"{where}: no column {column} (it has {len(cells)}); set task.columns.{setting}=")
    word = cells[words]
    if not word.strip():
        raise InputError(f"{where}: empty word; correct the line")
    sentence.words.append(word)
    if has_tags:
        if not cells[tags].strip():
            raise InputError(f"{where}: empty tag; correct the line, or set task.columns.tags=")
        sentence.tags.append(cells[tags].strip())


def to_iob2(
    task: TaskConfig, sentences: Sequence[Sentence], name: str, place: Callable[[int], str]
) -> tuple[str, list[str]]:
    """Convert the tags of all sentences to IOB2, in place; return their original scheme, and warnings.

    If the settings name the scheme, every tag must follow it. If the scheme is detected, tags that break it are counted, and
    interpreted as in the CoNLL evaluation. A chunk ends with its sentence, also inside a document.
    """
    tagged = [sentence for sentence in sentences if sentence.tags]
    scheme: str = task.scheme
    if scheme == "auto":
        scheme = detect_scheme([sentence.tags[words] for sentence in tagged for words in sentence.sentences()])
    if scheme == "none":
        return scheme, []
    breaks: list[tuple[str, int]] = []
    for sentence in tagged:
        for tag, line in zip(sentence.tags, sentence.lines, strict=True):
            if parts_of(tag) is None:
                raise InputError(
                    f"{place(line)}: invalid tag '{tag:.80}'; expected O, or B-, I- (E-, S-) and a type, as in B-PER; "
                    "or set task.scheme=none if tags mark no chunks"
                )
        for words in sentence.sentences():
            tags = sentence.tags[words]
            at = first_break(tags, scheme)
            if at is not None:
                breaks.append((tags[at], sentence.lines[words][at]))
            sentence.tags[words] = convert(tags, "iob2")
    if not breaks:
        return scheme, []
    tag, line = breaks[0]
    if task.scheme != "auto":
        raise InputError(f"{place(line)}: tag '{tag:.80}' breaks {scheme.upper()}; correct it, or set task.scheme=auto")
    broken = f"sentences with a tag that breaks {scheme.upper()}: {len(breaks):,} (first '{tag:.80}' at {place(line)})"
    return scheme, [f"{name}: {broken}; interpreted as in the CoNLL evaluation"]
