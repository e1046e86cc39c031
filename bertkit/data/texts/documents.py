"""Files, or a dataset of the Hugging Face hub -> documents, which are lists of sentences.

A text file has one sentence per line and a blank line between documents, or one document per line. JSON lines, JSON, parquet
and hub datasets have one document per record; the output of WikiExtractor has one document per `<doc>` block. The text of a
record, a block or a line that is a document is split into sentences.
"""

import functools
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from bertkit.base.errors import InputError, in_one_line, refusing
from bertkit.base.files import BLOCK_BYTES
from bertkit.base.hub_ids import is_offline
from bertkit.base.json_stream import json_values
from bertkit.base.text_files import (
    as_utf8,
    is_blank,
    line_blocks,
    parse_json,
    text_blocks,
    unpacked,
    unpacking,
)
from bertkit.base.typed_settings import refuse, unused
from bertkit.data.data_config import CorpusConfig
from bertkit.data.texts.parquet import arrow_records, parquet_records
from bertkit.data.texts.python_docs import python_documents
from bertkit.data.texts.records import Document, PlacedDocument, as_sentences, documents_of_lines, documents_of_records
from bertkit.data.texts.sources import (
    KINDS,
    Portion,
    Stretch,
    cut_file,
    find_files,
    has_document_lines,
)

BlockT = TypeVar("BlockT")

REPLACEMENT = "\ufffd"  # in place of a lost character
LOST = "with U+FFFD, which replaces half of a surrogate pair in JSON, or bytes lost in an earlier conversion; restore the text"


class Corpus(ABC):
    """Documents that can be read several times; counts the bytes read. `open_corpus` opens one."""

    def __init__(self, config: CorpusConfig) -> None:
        self.config = config
        self.bytes_read = 0  # progress of the current reading
        self.total_bytes: int | None = None  # None: no files
        self.files: list[tuple[Path, str]] = []  # each with its format

    @property
    def has_document_breaks(self) -> bool:
        """Whether blank lines separate the documents of a file."""
        return any(kind == "text" for _, kind in self.files)

    @abstractmethod
    def describe(self) -> str:
        """Describe the corpus in one line."""

    @abstractmethod
    def documents(self, portion: Portion) -> Iterator[Document]:
        """Yield the documents of a portion; raises InputError if a file is not in its format."""

    def portions(self, num_bytes: int) -> list[Portion]:
        """Cut the corpus, between documents, into portions of about `num_bytes`, which can be read independently."""
        return [()]

    def states_of_files(self) -> list[list[str | int]]:
        """Return the path, size and modification time of every file, to detect changes."""
        states = ((path.resolve(), path.stat()) for path, _ in self.files)
        return [[str(path), state.st_size, state.st_mtime_ns] for path, state in states]

    def __iter__(self) -> Iterator[Document]:
        """Yield every document, file by file; raises InputError as `documents` does."""
        self.bytes_read = 0
        is_empty = True
        for document in itertools.chain.from_iterable(map(self.documents, self.portions(self.total_bytes or 1))):
            is_empty = False
            yield document
        if is_empty:
            self.refuse_empty()

    def refuse_empty(self) -> None:
        """Raise InputError with the name of the file, if an empty corpus consists of a single file."""
        if len(self.files) == 1:
            raise InputError(f"{self.files[0][0]}: no text in this file; expected sentences, one per line")


def open_corpus(config: CorpusConfig, leave_out: Iterable[Path] = (), *, join_files: bool = False) -> Corpus:
    """Find the files, except those in `leave_out`, the output of the command; or open another source of text.

    With `join_files`, a document may continue in the next text file, until a blank line, as in google-research/bert
    create_pretraining_data.py. Raises InputError if a path or pattern matches no file of a known format.
    """
    match config.source:
        case "python_docs":
            return PythonDocs(config)
        case "hub":
            return HubDataset(config)
        case "files":
            return TextFiles(config, leave_out, join_files)
        case "texts":
            return Texts(config, (), join_files)


class PythonDocs(Corpus):
    """The documentation of the user's own Python."""

    def describe(self) -> str:
        """Describe the corpus in one line."""
        return "the documentation that ships with Python (PSF licence)"

    def documents(self, portion: Portion) -> Iterator[Document]:
        """Yield all documents."""
        return (PlacedDocument(document, number) for number, document in enumerate(python_documents(), 1))


class HubDataset(Corpus):
    """A dataset of the Hugging Face hub, or of the local cache."""

    def describe(self) -> str:
        """Describe the corpus in one line."""
        return f"the dataset {self.config.path} of the hub, streamed"

    def documents(self, portion: Portion) -> Iterator[Document]:
        """Yield the texts of all records."""
        return documents_of_records(
            self.config, enumerate(self._opened(), 1), f"{self.config.path}: record {{}}".format
        )

    def _opened(self) -> Iterator[object]:
        is_offline()
        import datasets

        path = self.config.path
        name = path if isinstance(path, str) else None
        with refusing(Exception, lambda error: f"corpus.path={path}: cannot open this dataset ({in_one_line(error)})"):
            return iter(datasets.load_dataset(name, self.config.name, split=self.config.split, streaming=True))


class TextFiles(Corpus):
    """Files of text, or of records."""

    def __init__(self, config: CorpusConfig, leave_out: Iterable[Path], join_files: bool) -> None:
        super().__init__(config)
        found, self.join_files = find_files(config, leave_out), join_files
        self.files, self.ignored, self.num_duplicates = found
        kinds, why = {kind for _, kind in self.files}, f"on {self._kinds()}"
        rows = ("lines", "text" not in kinds, why, "auto"), ("split", "arrow" not in kinds, why, "train")
        refuse(unused(config, "corpus.", *rows))
        self.files = [(path, self._with_lines(path, kind)) for path, kind in self.files]
        self.total_bytes = sum(path.stat().st_size for path, _ in self.files)

    def _with_lines(self, path: Path, kind: str) -> str:
        """Return the format of a file of text whose lines are documents, because the user or its shape says so, or else `kind`."""
        lines = self.config.lines
        if kind != "text" or lines == "sentences" or (lines == "auto" and self.join_files):
            return kind
        return "lines" if lines == "documents" or has_document_lines(path, self.config.encoding) else kind

    def _kinds(self) -> str:
        return ", ".join(sorted({KINDS.get(kind, kind) for _, kind in self.files}))

    def describe(self) -> str:
        """Describe the corpus in one line."""
        text = f"{len(self.files)} {'file' if len(self.files) == 1 else 'files'} ({self._kinds()}), "
        text += f"{(self.total_bytes or 0) / 1e6:.1f} MB"
        if self.config.lines == "auto" and any(kind == "lines" for _, kind in self.files):
            text += "; no line is blank and most have several sentences, so each is a document (else set corpus.lines=sentences)"
        if self.num_duplicates:
            text += f"; {self.num_duplicates:,} more names of the same files, each read once"
        if self.ignored:
            names = [path.name for path in self.ignored[:3]] + ["..."] * (len(self.ignored) > 3)
            text += f"; ignored {len(self.ignored)} other ({', '.join(names)})"
        return text

    def portions(self, num_bytes: int) -> list[Portion]:
        """Cut the corpus, between documents, into portions of about `num_bytes`, which can be read independently."""
        portions: list[Portion] = []
        waiting: list[Stretch] = []
        for group in self._uncut(num_bytes):
            if waiting and sum(stretch.num_bytes for stretch in (*waiting, *group)) > num_bytes:
                portions.append(tuple(waiting))
                waiting = []
            waiting += group
        return [*portions, tuple(waiting)]

    def _uncut(self, num_bytes: int) -> Iterator[list[Stretch]]:
        """Yield groups of stretches that must be in one portion: a single stretch, or all text files if they are joined."""
        for kind, group in itertools.groupby(self.files, key=lambda file: file[1]):
            paths = [path for path, _ in group]
            if self.join_files and kind == "text":
                yield [Stretch(path, kind, 0, None, path.stat().st_size) for path in paths]
            else:
                encoding = self.config.encoding
                yield from ([stretch] for path in paths for stretch in cut_file(path, kind, num_bytes, encoding))

    def documents(self, portion: Portion) -> Iterator[Document]:
        """Yield the documents of a portion; raises InputError if a file is not in its format."""
        for kind, group in itertools.groupby(portion, key=lambda stretch: stretch.kind):
            stretches = list(group)
            joined = [stretches] if self.join_files and kind == "text" else [[stretch] for stretch in stretches]
            yield from itertools.chain.from_iterable(map(self._read_stretches, joined))

    def _read_stretches(self, stretches: list[Stretch]) -> Iterator[Document]:
        before = self.bytes_read
        yield from self._documents_of(stretches)
        self.bytes_read = before + sum(stretch.num_bytes for stretch in stretches)

    def _documents_of(self, stretches: list[Stretch]) -> Iterator[Document]:
        first, record_of = stretches[0], f"{stretches[0].path}: record {{}}".format
        match first.kind:
            case "text":
                texts = documents_of_lines(itertools.chain.from_iterable(map(self._line_blocks, stretches)))
                return (as_sentences(text, True) for text in texts) if self.config.sentences == "split" else texts
            case "lines":
                lines = (PlacedDocument([line], number) for number, line in self._lines(first))
                return filter(None, (as_sentences(line, self.config.sentences != "lines") for line in lines))
            case "wikiextractor":
                split = self.config.sentences != "lines"
                return filter(None, (as_sentences(text, split) for text in self._wiki_documents(first)))
            case "jsonl":
                return documents_of_records(self.config, self._json_lines(first), functools.partial(self._where, first))
            case "parquet":
                return documents_of_records(self.config, enumerate(parquet_records(first.path).records, 1), record_of)
            case "arrow":
                return documents_of_records(self.config, enumerate(arrow_records(first.path), 1), record_of)
        values = (value for _, value, _ in json_values(first.path, self._text_blocks(first)))
        return documents_of_records(self.config, enumerate(values, 1), record_of)

    def _line_blocks(self, stretch: Stretch) -> Iterator[tuple[int, list[str]]]:
        """Yield blocks of a stretch's lines, with the number of the first line, counted from the stretch's start."""
        return self._blocks(stretch, functools.partial(line_blocks, start=stretch.start, end=stretch.end), len)

    def _text_blocks(self, stretch: Stretch) -> Iterator[tuple[int, str]]:
        """Yield blocks of a file's text, each with the number of the line in which it begins."""
        return self._blocks(stretch, text_blocks, lambda block: block.count("\n"))

    def _blocks(
        self, stretch: Stretch, read: Callable[..., Iterator[tuple[int, BlockT]]], num_lines: Callable[[BlockT], int]
    ) -> Iterator[tuple[int, BlockT]]:
        before, number = self.bytes_read, 1
        where = functools.partial(self._where, stretch)
        with stretch.path.open("rb") as raw, unpacking(lambda: where(number)):
            file, encoding = as_utf8(unpacked(raw, stretch.path), self.config.encoding)
            advice = "convert the file or set corpus.encoding"
            for number, block in read(file, where, encoding=encoding, advice=advice):
                self.bytes_read = before + raw.tell() - stretch.start
                yield number, block
                number += num_lines(block)

    def _lines(self, stretch: Stretch) -> Iterator[tuple[int, str]]:
        """Yield a stretch's lines, numbered from its start."""
        return itertools.chain.from_iterable(enumerate(lines, first) for first, lines in self._line_blocks(stretch))

    def _where(self, stretch: Stretch, number: int) -> str:
        """Return file:line for a line of a stretch; counts the lines before the stretch."""
        with stretch.path.open("rb") as file:
            blocks = iter(lambda: file.read(min(BLOCK_BYTES, stretch.start - file.tell())), b"")
            return f"{stretch.path}:{number + sum(block.count(10) for block in blocks)}"

    def _json_lines(self, stretch: Stretch) -> Iterator[tuple[int, object]]:
        for number, line in self._lines(stretch):
            try:
                if not is_blank(line):
                    yield number, parse_json(line)
            except ValueError as error:
                where = self._where(stretch, number)
                raise InputError(f"{where}: not JSON ({error}); expected one object per line") from None

    def _wiki_documents(self, stretch: Stretch) -> Iterator[PlacedDocument]:
        """Yield the paragraphs of each `<doc>` block, without its title."""
        document: PlacedDocument | None = None
        for number, line in self._lines(stretch):
            if line.startswith("<doc "):
                title = re.search(r'title="(.*)">', line)
                document = PlacedDocument([], number, title[1] if title else "")
            elif line.startswith("</doc>"):
                yield document or PlacedDocument()
                document = None
            elif document is None:
                if not is_blank(line):
                    where = self._where(stretch, number)
                    raise InputError(f"{where}: text outside <doc> ... </doc>; set corpus.format=text")
            elif document or line.strip() != document.title:
                document.append(line)
        if document:
            yield document


class Texts(TextFiles):
    """Texts from Python, in a file of JSON lines; no message quotes them."""

    def describe(self) -> str:
        """Describe the corpus in one line."""
        return f"texts from Python, {(self.total_bytes or 0) / 1e6:.1f} MB"

    def states_of_files(self) -> list[list[str | int]]:
        """Return only the names and sizes: the file, named after its content, is written for each call."""
        return [[path.name, path.stat().st_size, 0] for path, _ in self.files]

    def _where(self, stretch: Stretch, number: int) -> str:
        return f"corpus: row {super()._where(stretch, number).rpartition(':')[2]}"

    def refuse_empty(self) -> None:
        """Raise InputError."""
        raise InputError("corpus: no text in it; pass texts with words")
