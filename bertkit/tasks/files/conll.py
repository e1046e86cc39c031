"""CoNLL column files and CoNLL-U to sentences or documents of words and tags.

Columns (CoNLL-2000, 2002, 2003, GermEval 2014): a word per line with its tags, a blank line after a sentence,
`-DOCSTART-` before a document. Cells are apart by tabs if the first word's line has one, else by blanks. Where words are
not in column 0, as in GermEval, a line that begins with `#` says where the sentence comes from.

CoNLL-U (universaldependencies.org/format.html): ten columns apart by tabs; `#` begins a comment, `# newdoc` a document;
multiword ranges such as 1-2 and empty nodes such as 1.1 are no words.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path

from bertkit import signs
from bertkit.errors import InputError
from bertkit.tasks.config import Column, TaskConfig
from bertkit.tasks.files.tables import lines_of, read_text

FORM, UPOS = 1, 3  # columns of CoNLL-U
_UNIT_ID = re.compile(r"#\s*(sent_id|newdoc id)\s*=\s*(.*\S)")
_BLANKS = re.compile("[ \t]+")  # and nothing else: a no-break space belongs to its word
_NO_WORD = re.compile(r"\d+[-.]\d+$")


@dataclass
class Sentence:
    """The words of a sentence or document.

    Attributes:
        id: as the file has it.
        words: in their order.
        tags: one for each word; none where the file has none.
        lines: the places of the words in the file.
        breaks: the words of a document that begin a further sentence of it.
    """

    id: str | None = None
    words: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)

    def sentences(self) -> list[slice]:
        """Say which words make up each sentence."""
        return [slice(*pair) for pair in itertools.pairwise([0, *self.breaks, len(self.words)])]


def read_conll(task: TaskConfig, path: Path, kind: str) -> list[Sentence]:
    """Read the sentences, or documents, of a file; tags are empty where it holds words alone.

    Raises:
        InputError: a line has too few or too many cells, or an empty word or tag, with its number; documents are asked
            for and the file marks none.
    """
    is_conllu = kind == "conllu"
    words = _number(task.columns.words, FORM if is_conllu else 0)
    tags = _number(task.columns.tags, UPOS if is_conllu else -1)
    comment = task.comment or ("#" if is_conllu or words != 0 else None)
    found: list[Sentence] = []
    current = Sentence()
    num_documents = 0
    num_cells = 10 if is_conllu else 0
    tabs = is_conllu
    for number, line in enumerate(signs.beating(lines_of(read_text(path))), 1):
        is_document = line.startswith("# newdoc" if is_conllu else "-DOCSTART-")
        num_documents += is_document
        is_blank = not line.strip(" \t")
        if current.words and (is_document or (is_blank and not task.documents)):
            found.append(current)
            current = Sentence()
        if is_blank:
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
        cells = line.split("\t") if tabs else _BLANKS.split(line.strip(" "))
        num_cells = num_cells or len(cells)
        if len(cells) != num_cells:
            much = "many" if len(cells) > num_cells else "few"
            is_numbered = words == 0 and cells[0].isdigit()  # as in GermEval
            way = "set task.columns.words=1 if column 0 numbers the words" if is_numbered else "correct the line"
            raise InputError(f"{path}:{number}: too {much} cells ({len(cells)}, expected {num_cells}); {way}")
        if is_conllu and _NO_WORD.match(cells[0]):
            continue
        _append(current, cells, words, tags, f"{path}:{number}")
        current.lines.append(number)
    if current.words:
        found.append(current)
    if task.documents and not num_documents:
        mark = "# newdoc" if is_conllu else "-DOCSTART-"
        raise InputError(f"{path}: no line '{mark}', so the file has no documents; set task.documents=false")
    return found


def _number(column: Column, default: int) -> int:
    """A column's number; names are for files that have some."""
    return column if isinstance(column, int) else default


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
