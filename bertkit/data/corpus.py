"""Files, or a `datasets` name, to documents. A document is a list of sentences.

Text files hold one sentence per line and a blank line between documents. JSON lines, JSON, parquet and hub datasets
hold one document per record; WikiExtractor output, one per `<doc>` block; their text is split into sentences.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import glob
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bertkit.data.config import CorpusConfig
from bertkit.data.python_docs import python_documents
from bertkit.errors import InputError

Document = list[str]

FORMATS = {".txt": "text", ".text": "text", ".jsonl": "jsonl", ".json": "json", ".parquet": "parquet"}
SNIFFED_BYTES = 1024
BLOCK_BYTES = 1 << 18  # read, decoded and cut into lines at once


@dataclass(frozen=True)
class Span:
    """A run of whole documents of one file.

    Attributes:
        path: of the file.
        kind: its format.
        start: its first byte.
        end: the byte after its last one; None for a file that can only be read as a whole.
        num_bytes: its share of the work, in bytes on disk.
    """

    path: Path
    kind: str
    start: int
    end: int | None
    num_bytes: int


Part = tuple[Span, ...]  # what one worker reads; without spans it is the whole of a source that is no files


class Corpus:
    """A source of documents that can be read again and again, with its progress in bytes.

    Attributes:
        total_bytes: the size of all files; None where it is not known.
        bytes_read: how far the current pass has come.
        ignored: files of a given folder that are not text.
    """

    def __init__(self, config: CorpusConfig, leave_out: Iterable[Path] = (), *, join_files: bool = False) -> None:
        """Find the files; those at or below `leave_out`, where results go, are not among them.

        Args:
            config: where the text is.
            leave_out: files and directories.
            join_files: only a blank line ends a document of a text file, and the end of the file does not, as in
                google-research/bert create_pretraining_data.py.

        Raises:
            InputError: a path or pattern matches nothing, or nothing of a known format.
        """
        self.config = config
        self.leave_out = {path.resolve() for path in leave_out}
        self.join_files = join_files
        self._is_utf8 = codecs.lookup(config.encoding).name == "utf-8"
        self.files: list[tuple[Path, str]] = []
        self.ignored: list[Path] = []
        self.bytes_read = 0
        if config.source == "files":
            self._find_files()
        self.total_bytes = sum(path.stat().st_size for path, _ in self.files) if self.files else None

    @property
    def has_document_breaks(self) -> bool:
        """Whether blank lines are what separates documents."""
        return any(kind == "text" for _, kind in self.files)

    def describe(self) -> str:
        """Say where the text comes from."""
        if self.config.source == "python_docs":
            return "the documentation that ships with Python (PSF licence)"
        if self.config.source == "hub":
            return f"the dataset {self.config.path} of the hub, streamed"
        kinds = sorted({kind for _, kind in self.files})
        text = f"{len(self.files)} {'file' if len(self.files) == 1 else 'files'} ({', '.join(kinds)}), "
        text += f"{(self.total_bytes or 0) / 1e6:.1f} MB"
        if self.ignored:
            names = ", ".join(path.name for path in self.ignored[:3])
            text += f"; ignored {len(self.ignored)} other ({names}{', ...' if len(self.ignored) > 3 else ''})"
        return text

    def __iter__(self) -> Iterator[Document]:
        """Read every document, in the order of the sorted file names.

        Raises:
            InputError: a file is not what its format says, with the file and the line.
        """
        self.bytes_read = 0
        num_documents = 0
        for part in self.parts(self.total_bytes or 1):
            for document in self.documents(part):
                num_documents += 1
                yield document
        if num_documents == 0:
            self.refuse_empty()

    def refuse_empty(self) -> None:
        """Name the file that the corpus consists of, when nothing was found in it.

        Raises:
            InputError: there is only one file.
        """
        if len(self.files) == 1:
            raise InputError(f"{self.files[0][0]}: no text in this file; expected sentences, one per line")

    def parts(self, part_bytes: int) -> list[Part]:
        """Cut the corpus between documents into parts that can be read on their own; in their order they are the corpus.

        Plain files are cut after a blank line (a record, a `</doc>`); compressed files, JSON, parquet, and files that
        are read as one, are not cut.

        Args:
            part_bytes: about the size of a part; a longer document, or a file that cannot be cut, is a longer part.
        """
        if self.config.source != "files":
            return [()]
        parts: list[Part] = []
        waiting: list[Span] = []
        for paths, kind in self._read_together():
            spans = [span for path in paths for span in self._spans(path, kind, part_bytes)]
            for group in [spans] if len(paths) > 1 else [[span] for span in spans]:
                if waiting and sum(span.num_bytes for span in (*waiting, *group)) > part_bytes:
                    parts.append(tuple(waiting))
                    waiting = []
                waiting += group
        return [*parts, tuple(waiting)]

    def documents(self, part: Part) -> Iterator[Document]:
        """Read the documents of a part.

        Raises:
            InputError: a file is not what its format says, with the file and the line.
        """
        if self.config.source == "python_docs":
            yield from python_documents()
        elif self.config.source == "hub":
            yield from self._read_records(self._open_hub(), self.config.path)
        elif self.join_files:
            for kind, spans in itertools.groupby(part, key=lambda span: span.kind):
                for together in [list(spans)] if kind == "text" else [[span] for span in spans]:
                    yield from self._read_spans(together)
        else:
            for span in part:
                yield from self._read_spans([span])

    def _find_files(self) -> None:
        given = self.config.path
        patterns = [given] if isinstance(given, str) else list(given or ())
        found: dict[Path, str] = {}
        for pattern in patterns:
            path = Path(pattern).expanduser()
            if path.is_dir():
                inside = sorted(item for item in path.rglob("*") if item.is_file())
                inside = [item for item in inside if not item.name.startswith(".") and not self._is_left_out(item)]
                kinds = {item: self._format(item) for item in inside}
                self.ignored += [item for item in inside if kinds[item] is None]
                matches = [item for item in inside if kinds[item] is not None]
                if not matches:
                    raise InputError(
                        f"corpus.path={pattern}: no text in this folder; expected .txt, .txt.gz, .jsonl, .json, .parquet "
                        "or WikiExtractor files"
                    )
            elif path.exists():
                if not path.is_file():
                    raise InputError(f"corpus.path={pattern}: neither a file nor a folder")
                matches = [path]
            else:
                matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
                matches = [item for item in matches if item.is_file()]
                if not matches:
                    raise InputError(
                        f"corpus.path={pattern}: no such file, folder or match; for a dataset of the hub, add corpus=hub"
                    )
            found |= {item: self._format(item) or "text" for item in matches}
        self.files = list(found.items())

    def _is_left_out(self, path: Path) -> bool:
        here = path.resolve()
        return not self.leave_out.isdisjoint([here, *here.parents])

    def _format(self, path: Path) -> str | None:
        """The format of a file, by its ending, or by its first bytes where it has none that is known."""
        if self.config.format != "auto":
            return self.config.format
        suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
        if suffix in FORMATS:
            return FORMATS[suffix]
        with _open_bytes(path) as file:
            try:
                head = file.read(SNIFFED_BYTES).lstrip()
            except (OSError, EOFError, zlib.error):
                return None
        if head.startswith(b"<doc "):
            return "wikiextractor"
        if head.startswith(b"{") and b'"text"' in head:
            return "jsonl"
        return None

    def _read_together(self) -> Iterator[tuple[list[Path], str]]:
        """The files one by one, or neighbours of text as if they were one."""
        for kind, group in itertools.groupby(self.files, key=lambda file: file[1]):
            paths = [path for path, _ in group]
            if self.join_files and kind == "text":
                yield paths, kind
            else:
                yield from (([path], kind) for path in paths)

    def _spans(self, path: Path, kind: str, part_bytes: int) -> Iterator[Span]:
        size = path.stat().st_size
        if path.suffix == ".gz" or kind not in _DOCUMENT_ENDS or (self.join_files and kind == "text"):
            yield Span(path, kind, 0, None, size)
            return
        start = 0
        while start < size:
            aim = start + part_bytes
            end = size if aim >= size else _next_document(path, kind, aim)
            yield Span(path, kind, start, end, end - start)
            start = end

    def _read_spans(self, spans: list[Span]) -> Iterator[Document]:
        first = spans[0]
        before = self.bytes_read
        split = self.config.sentences == "split" or (self.config.sentences == "auto" and first.kind != "text")
        if first.kind in ("json", "parquet"):
            yield from self._read_records(_open_table(first.path, first.kind), first.path)
        elif first.kind == "text":
            for lines in _text_documents(itertools.chain.from_iterable(map(self._line_blocks, spans))):
                yield _as_sentences(lines, split) if split else lines
        else:
            read = self._json_documents if first.kind == "jsonl" else self._wiki_documents
            yield from filter(None, (_as_sentences(lines, split) for lines in read(first)))
        self.bytes_read = before + sum(span.num_bytes for span in spans)

    def _line_blocks(self, span: Span) -> Iterator[tuple[int, list[str]]]:
        """Decode the lines of a span, many at once; with the number, in the span, of the first of them."""
        before = self.bytes_read
        number = 1
        unfinished: list[bytes] = []
        with span.path.open("rb") as raw, _open_bytes(span.path, raw) as file:
            file.seek(span.start)
            left = None if span.end is None else span.end - span.start
            while True:
                try:
                    read = file.read1(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left))
                except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                    where = self._where(span, number)
                    raise InputError(f"{where}: damaged gzip file ({error}); restore it") from None
                left = None if left is None else left - len(read)
                self.bytes_read = before + raw.tell() - span.start
                end = read.rfind(b"\n") + 1
                if end or not read:
                    data = b"".join((*unfinished, read[:end]))
                    unfinished = [read[end:]]
                    if data:
                        yield number, self._decode(span, number, data)
                        number += data.count(b"\n")
                else:
                    unfinished.append(read)
                if not read:
                    return

    def _decode(self, span: Span, number: int, data: bytes) -> list[str]:
        """The lines of a block; line by line where the encoding is not UTF-8 or the block has a fault."""
        lines = None
        if self._is_utf8 and b"\0" not in data:
            with contextlib.suppress(UnicodeDecodeError):
                lines = data.removesuffix(b"\n").decode("utf-8").split("\n")
        if lines is None:
            lines = [self._decode_line(span, number + n, line) for n, line in enumerate(io.BytesIO(data))]
        if span.start == 0 and number == 1:
            lines[0] = lines[0].lstrip("\ufeff")
        return lines

    def _decode_line(self, span: Span, number: int, line: bytes) -> str:
        if b"\0" in line:
            raise InputError(
                f"{self._where(span, number)}: not text (a zero byte at column {line.index(0) + 1}); remove the file, "
                "or convert it to UTF-8"
            )
        try:
            return line.decode(self.config.encoding)
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self._where(span, number)}: not {self.config.encoding.upper()} (byte 0x{line[error.start]:02x} at column "
                f"{error.start + 1}); convert the file or set corpus.encoding"
            ) from None

    def _where(self, span: Span, number: int) -> str:
        """Name a line of a span by its file and its number there, counted only now that it is asked for."""
        with span.path.open("rb") as file:
            blocks = iter(lambda: file.read(min(BLOCK_BYTES, span.start - file.tell())), b"")
            return f"{span.path}:{number + sum(block.count(10) for block in blocks)}"

    def _json_documents(self, span: Span) -> Iterator[list[str]]:
        for first, lines in self._line_blocks(span):
            for number, line in enumerate(lines, first):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    where = self._where(span, number)
                    raise InputError(f"{where}: not JSON ({error}); expected one object per line") from None
                yield self._text_of(record, functools.partial(self._where, span, number)).splitlines()

    def _wiki_documents(self, span: Span) -> Iterator[list[str]]:
        """The paragraphs of each `<doc>` block, without the title that its first line repeats."""
        document: list[str] | None = None
        for first, lines in self._line_blocks(span):
            for number, line in enumerate(lines, first):
                if line.startswith("<doc "):
                    document = []
                    title = re.search(r'title="(.*)">', line)
                    heading = title.group(1) if title else None
                elif line.startswith("</doc>"):
                    yield document or []
                    document = None
                elif document is None:
                    if line.strip():
                        where = self._where(span, number)
                        raise InputError(f"{where}: text outside of <doc> ... </doc>; set corpus.format=text")
                elif document or line.strip() != heading:
                    document.append(line)
        if document:
            yield document

    def _read_records(self, records: Iterator[Any], source: Any) -> Iterator[Document]:
        for number, record in enumerate(records, 1):
            lines = self._text_of(record, functools.partial("{}: record {}".format, source, number)).splitlines()
            document = _as_sentences(lines, self.config.sentences != "lines")
            if document:
                yield document

    def _text_of(self, record: Any, where: Callable[[], str]) -> str:
        field = self.config.field
        if not isinstance(record, dict) or field not in record:
            fields = ", ".join(record) if isinstance(record, dict) else type(record).__name__
            raise InputError(f"{where()}: no field '{field}' (it has: {fields}); set corpus.field=")
        if not isinstance(record[field], str):
            raise InputError(f"{where()}: field '{field}' is {type(record[field]).__name__}, expected text")
        return _LONE_SURROGATE.sub("\ufffd", record[field])

    def _open_hub(self) -> Iterator[Any]:
        import datasets

        try:
            name = self.config.path if isinstance(self.config.path, str) else None
            return iter(datasets.load_dataset(name, self.config.name, split=self.config.split, streaming=True))
        except Exception as error:
            reason = " ".join(str(error).split())
            raise InputError(f"corpus.path={self.config.path}: cannot open this dataset ({reason})") from None


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair, as JSON can hold it; no text that can be encoded


def _open_bytes(path: Path, raw: io.BufferedReader | None = None) -> io.BufferedReader:
    if path.suffix == ".gz":
        return cast(io.BufferedReader, gzip.GzipFile(path) if raw is None else gzip.GzipFile(fileobj=raw))
    return path.open("rb") if raw is None else raw


def _open_table(path: Path, kind: str) -> Iterator[Any]:
    """Stream the records of a JSON or parquet file through `datasets`."""
    import datasets

    try:
        yield from datasets.load_dataset(kind, data_files=str(path), split="train", streaming=True)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not readable as {kind} ({reason})") from None


def _text_documents(blocks: Iterable[tuple[int, list[str]]]) -> Iterator[list[str]]:
    document: list[str] = []
    for _, lines in blocks:
        for has_text, run in itertools.groupby(map(str.strip, lines), bool):
            if has_text:
                document += run
            elif document:
                yield document
                document = []
    if document:
        yield document


# What the line before a new document is like, in bytes, for the formats that can be cut.
_DOCUMENT_ENDS: dict[str, Callable[[bytes], bool]] = {
    "text": lambda line: not line.strip(),
    "jsonl": lambda line: True,
    "wikiextractor": lambda line: line.startswith(b"</doc>"),
}


def _next_document(path: Path, kind: str, at: int) -> int:
    """Find the first byte, from `at` on, after which a document begins; the end of the file where there is none."""
    with path.open("rb") as file:
        file.seek(at - 1)
        at += len(file.readline()) - 1  # to the beginning of a line
        for line in file:
            at += len(line)
            if _DOCUMENT_ENDS[kind](line):
                break
    return at


def _as_sentences(lines: list[str], split: bool) -> Document:
    sentences = [sentence for line in lines for sentence in split_sentences(line)] if split else lines
    return [sentence.strip() for sentence in sentences if sentence.strip()]


# A sentence ends at . ! ? (with closing quotes or brackets) before white space and something that can start one.
_END = re.compile(r"""(?<=[.!?])["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z0-9À-ÞА-ЯΑ-Ω])|(?<=[。！？])""")
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|Sr|Jr|St|Gen|Col|Capt|Lt|Rev|Hon|vs|etc|cf|al|approx|ca|no|No|Vol|vol|pp|p|Fig|fig|e\.g|i\.e"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|Inc|Ltd|Co|Corp)|\b[A-Z])\.$"
)


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph at the ends of its sentences: punctuation before an upper-case letter, digit or quote.

    Abbreviations and initials ("Mr. Smith", "J. Brown") do not end a sentence. A rule, not a model: fast, without
    data of its own, and good enough to cut segments at.
    """
    sentences: list[str] = []
    start = 0
    for match in _END.finditer(paragraph):
        sentence = paragraph[start : match.end()].strip()
        if _ABBREVIATION.search(sentence):
            continue
        sentences.append(sentence)
        start = match.end()
    sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence]
