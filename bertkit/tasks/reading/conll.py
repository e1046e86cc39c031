"""CoNLL column files and CoNLL-U -> sentences or documents of words and tags.

Columns (CoNLL-2000, 2002, 2003, GermEval 2014): a word per line with its tags, a blank line after a sentence,
`-DOCSTART-` before a document. Tabs separate the cells if the first word's line has one, else blanks. Where words are not
in column 0, as in GermEval, a line that begins with `#` names the source of the sentence.

CoNLL-U (universaldependencies.org/format.html): ten columns separated by tabs; `#` begins a comment, `# newdoc` a
document; multiword ranges such as 1-2 and empty nodes such as 1.1 are not words.

Tags may mark chunks, such as names, in IOB1, IOB2 or BIOES:

    words   Sue   and  Bob   Bob   in   New   York   City
    iob1    I-PER O    I-PER B-PER O    I-LOC I-LOC  I-LOC     B- only after a chunk of the same type
    iob2    B-PER O    B-PER B-PER O    B-LOC I-LOC  I-LOC     B- begins every chunk
    bioes   S-PER O    S-PER S-PER O    B-LOC I-LOC  E-LOC     S- is a chunk of one word, E- ends one of several

BILOU is BIOES with L- and U- for E- and S-. An I-, E- or L- that continues no chunk begins one, as in the CoNLL
evaluation (conlleval; Ramshaw and Marcus 1995, Ratinov and Roth 2009).
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.text_files import is_blank
from bertkit.tasks.task_config import TaskConfig

Chunk = tuple[str, int, int]  # type, first word, one past the last
_MARKED = re.compile("[BIESLU]-")
FORM, UPOS = 1, 3  # columns of CoNLL-U
_UNIT_ID = re.compile(r"#\s*(sent_id|newdoc id)\s*=\s*(.*\S)")
MOST_WORDS = 1_000_000  # of a sentence or document
BLANKS = re.compile("[ \t]+")  # a no-break space belongs to its word
_NO_WORD = re.compile(r"\d+[-.]\d+$")


def parts_of(tag: str) -> tuple[str, str] | None:
    """Split a tag into prefix and type: `B-PER` -> B, PER; `O` -> O, "". None if it does not parse."""
    if tag == "O":
        return "O", ""
    prefix, dash, kind = tag.partition("-")
    return (prefix, kind) if dash and kind and prefix in ("B", "I", "E", "S", "L", "U") else None


def chunks_of(tags: Sequence[str]) -> list[Chunk]:
    """Read the chunks of a sentence in any scheme.

    Raises:
        ValueError: a tag does not parse; the message is the tag.
    """
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


def tags_of_chunks(chunks: Iterable[Chunk], num_words: int, scheme: str) -> list[str]:
    """Write chunks as a tag for each of `num_words` words, in "iob1", "iob2" or "bioes"."""
    tags = ["O"] * num_words
    before: Chunk | None = None
    for kind, start, end in chunks:
        for place in range(start, end):
            tags[place] = f"I-{kind}"
        if scheme == "bioes":
            tags[start] = f"B-{kind}"
            tags[end - 1] = f"E-{kind}" if end - start > 1 else f"S-{kind}"
        elif scheme == "iob2" or (before is not None and before[2] == start and before[0] == kind):
            tags[start] = f"B-{kind}"
        before = (kind, start, end)
    return tags


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """Write the tags of a sentence in another scheme; raises ValueError if a tag does not parse."""
    return tags_of_chunks(chunks_of(tags), len(tags), scheme)


def first_break(tags: Sequence[str], scheme: str) -> int | None:
    """Find the first word whose tag differs from the scheme's; None where all agree."""
    spelling = str.maketrans("LU", "ES") if scheme == "bioes" else {}
    for place, (tag, expected) in enumerate(zip(tags, convert(tags, scheme), strict=True)):
        if tag[0].translate(spelling) + tag[1:] != expected:
            return place
    return None


def detect_scheme(sentences: Sequence[Sequence[str]]) -> str:
    """Detect the scheme that fits most sentences; where several fit, such as for single words, IOB2.

    Without an O and without a prefix on every tag, tags mark no chunks: "none". Sentences with a tag that does not parse
    are ignored.
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
    """The words of a sentence or document."""

    id: str | None = None  # from the file
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)  # one for each word; empty where the file has none
    lines: list[int] = field(default_factory=list)  # of the words in the file
    breaks: list[int] = field(default_factory=list)  # the first words of a document's further sentences

    def sentences(self) -> list[slice]:
        """Give the words of each sentence."""
        return [slice(*pair) for pair in itertools.pairwise([0, *self.breaks, len(self.words)])]


def read_words(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Sentence]]:
    """Read a sentence without tags from every line, blank lines too; blanks separate the words."""
    for number, line in lines:
        words = [] if is_blank(line) else [word for word in BLANKS.split(line) if word]
        yield number, Sentence(words=words, lines=[number] * len(words))


def read_conll(
    task: TaskConfig, name: Path, format: str, lines: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, Sentence]]:
    """Read sentences, or documents, with the lines where they begin.

    Raises:
        InputError: a line has too few or too many cells, or an empty word or tag; or a file without marks of documents is
            read with task.documents=true.
    """
    is_conllu, columns = format == "conllu", task.columns
    words, tags = (FORM, UPOS) if is_conllu else (0, -1)
    words = columns.words if isinstance(columns.words, int) else words  # names are for tables
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
        if len(current.words) > MOST_WORDS:
            raise InputError(f"{name}:{number}: more than {MOST_WORDS:,} words without a blank line; put one in")
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
    """Convert the tags of all sentences to IOB2; return their former scheme, and warnings.

    Every tag must fit the scheme of the settings. A detected scheme may be broken: the tag is read as in the CoNLL
    evaluation, and counted. A chunk ends with its sentence, also inside of a document.
    """
    file_warnings: list[str] = []
    tagged = [sentence for sentence in sentences if sentence.tags]
    scheme: str = task.scheme
    if scheme == "auto":
        scheme = detect_scheme([sentence.tags[words] for sentence in tagged for words in sentence.sentences()])
    if scheme == "none":
        return scheme, file_warnings
    breaks: list[tuple[str, int]] = []
    for sentence in tagged:
        for tag, line in zip(sentence.tags, sentence.lines, strict=True):
            if parts_of(tag) is None:
                raise InputError(
                    f"{place(line)}: tag '{tag}' does not parse; expected O, or B-, I- (E-, S-) and a type, as in B-PER; "
                    "or set task.scheme=none if tags mark no chunks"
                )
        for words in sentence.sentences():
            tags = sentence.tags[words]
            at = first_break(tags, scheme)
            if at is not None:
                breaks.append((tags[at], sentence.lines[words][at]))
            sentence.tags[words] = convert(tags, "iob2")
    if breaks:
        tag, line = breaks[0]
        if task.scheme != "auto":
            raise InputError(f"{place(line)}: tag '{tag}' breaks {scheme.upper()}; correct it, or set task.scheme=auto")
        file_warnings.append(
            f"{name}: sentences with a tag that breaks {scheme.upper()}: {len(breaks):,} (first '{tag}' at "
            f"{place(line)}); read as the CoNLL evaluation does"
        )
    return scheme, file_warnings
