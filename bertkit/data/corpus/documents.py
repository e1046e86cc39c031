"""Files, or a dataset of the Hugging Face hub -> documents, which are lists of sentences.

A text file has one sentence per line and a blank line between documents. JSON lines, JSON, parquet and hub datasets have one
document per record; the output of WikiExtractor has one document per `<doc>` block. The text of these formats is split into
sentences.
"""

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError, check_distinct, named
from bertkit.base.files import BLOCK_BYTES
from bertkit.base.hub_ids import is_offline
from bertkit.base.json_stream import json_values
from bertkit.base.text_files import (
    as_utf8,
    is_blank,
    is_utf16,
    line_blocks,
    parse_json,
    text_blocks,
    unpacked,
    unpacking,
    without_surrogates,
)
from bertkit.data.corpus.sources import Portion, Span, cut_file, find_files, python_documents, split_sentences
from bertkit.data.data_config import CorpusConfig

Document = list[str]
RECORDS_AT_ONCE = 1024  # records of a parquet file in memory


class PlacedDocument(list[str]):
    """A document with its place in its file: the number of its first line or record, from 1; and its title, or ""."""

    def __init__(self, lines: Iterable[str] = (), number: int = 0, title: str = "") -> None:
        super().__init__(lines)
        self.number, self.title = number, title


class Corpus:
    """Documents that can be read several times; counts the bytes read."""

    def __init__(self, config: CorpusConfig, leave_out: Iterable[Path] = (), *, join_files: bool = False) -> None:
        """Find the files, except those in `leave_out`, the output of the command.

        With `join_files`, a document may continue in the next text file, until a blank line, as in google-research/bert
        create_pretraining_data.py. Raises InputError if a path or pattern matches no file of a known format.
        """
        self.config, self.join_files = config, join_files
        self.bytes_read = 0  # progress of the current reading
        # `ignored` are files in the folders that are not text; duplicates are further paths to the same files, such as links
        self.files, self.ignored, self.num_duplicates = (
            find_files(config, leave_out) if config.source == "files" else ([], [], 0)
        )
        self.total_bytes = sum(path.stat().st_size for path, _ in self.files) if self.files else None  # None: no files

    @property
    def has_document_breaks(self) -> bool:
        """Whether blank lines separate the documents of a file."""
        return any(kind == "text" for _, kind in self.files)

    def describe(self) -> str:
        """Describe the corpus in one line."""
        if self.config.source == "python_docs":
            return "the documentation that ships with Python (PSF licence)"
        if self.config.source == "hub":
            return f"the dataset {self.config.path} of the hub, streamed"
        kinds = sorted({kind for _, kind in self.files})
        text = f"{len(self.files)} {'file' if len(self.files) == 1 else 'files'} ({', '.join(kinds)}), "
        text += f"{(self.total_bytes or 0) / 1e6:.1f} MB"
        if self.num_duplicates:
            text += f"; {self.num_duplicates:,} more names of the same files, each read once"
        if self.ignored:
            names = [path.name for path in self.ignored[:3]] + ["..."] * (len(self.ignored) > 3)
            text += f"; ignored {len(self.ignored)} other ({', '.join(names)})"
        return text

    def states_of_files(self) -> list[list[Any]]:
        """Return the path, size and modification time of every file, to detect changes."""
        states = ((path.resolve(), path.stat()) for path, _ in self.files)
        return [[str(path), state.st_size, state.st_mtime_ns] for path, state in states]

    def __iter__(self) -> Iterator[Document]:
        """Yield every document, file by file; raises InputError as `documents` does."""
        self.bytes_read = 0
        is_empty = True
        for portion in self.portions(self.total_bytes or 1):
            for document in self.documents(portion):
                is_empty = False
                yield document
        if is_empty:
            self.refuse_empty()

    def refuse_empty(self) -> None:
        """Raise InputError with the name of the file, if an empty corpus consists of a single file."""
        if len(self.files) == 1:
            raise InputError(f"{self.files[0][0]}: no text in this file; expected sentences, one per line")

    def portions(self, num_bytes: int) -> list[Portion]:
        """Cut the corpus, between documents, into portions of about `num_bytes`, which can be read independently."""
        if self.config.source != "files":
            return [()]
        portions: list[Portion] = []
        waiting: list[Span] = []
        for group in self._uncut(num_bytes):
            if waiting and sum(span.num_bytes for span in (*waiting, *group)) > num_bytes:
                portions.append(tuple(waiting))
                waiting = []
            waiting += group
        return [*portions, tuple(waiting)]

    def _uncut(self, num_bytes: int) -> Iterator[list[Span]]:
        """Yield groups of spans that must be in one portion: a single span, or all text files if they are joined."""
        for kind, group in itertools.groupby(self.files, key=lambda file: file[1]):
            paths = [path for path, _ in group]
            if self.join_files and kind == "text":
                yield [Span(path, kind, 0, None, path.stat().st_size) for path in paths]
            else:
                encoding = self.config.encoding
                yield from ([span] for path in paths for span in cut_file(path, kind, num_bytes, encoding))

    def documents(self, portion: Portion) -> Iterator[Document]:
        """Yield the documents of a portion; raises InputError if a file is not in its format."""
        if self.config.source == "python_docs":
            yield from python_documents()
        elif self.config.source == "hub":
            yield from self._read_records(enumerate(self._open_hub(), 1), f"{self.config.path}: record {{}}".format)
        else:
            for kind, spans in itertools.groupby(portion, key=lambda span: span.kind):
                for group in [list(spans)] if self.join_files and kind == "text" else [[span] for span in spans]:
                    yield from self._read_spans(group)

    def _read_spans(self, spans: list[Span]) -> Iterator[Document]:
        first = spans[0]
        before = self.bytes_read
        if first.kind == "text":
            for lines in _text_documents(itertools.chain.from_iterable(map(self._line_blocks, spans))):
                yield _as_sentences(lines, True) if self.config.sentences == "split" else lines
        elif first.kind == "wikiextractor":
            split = self.config.sentences != "lines"
            yield from filter(None, (_as_sentences(lines, split) for lines in self._wiki_documents(first)))
        elif first.kind == "jsonl":
            yield from self._read_records(self._json_lines(first), functools.partial(self._where, first))
        else:
            values = (value for _, value, _ in json_values(first.path, self._line_blocks(first)))
            records = parquet_records(first.path)[1] if first.kind == "parquet" else values
            yield from self._read_records(enumerate(records, 1), f"{first.path}: record {{}}".format)
        self.bytes_read = before + sum(span.num_bytes for span in spans)

    def _line_blocks(self, span: Span) -> Iterator[tuple[int, Any]]:
        """Yield blocks of a span's lines, or of JSON's text, with the number of the first line, counted from the span's start."""
        before, number = self.bytes_read, 1
        where = functools.partial(self._where, span)
        with span.path.open("rb") as raw, unpacking(lambda: where(number)):
            file, encoding = unpacked(raw, span.path), self.config.encoding
            if is_utf16(encoding):
                file, encoding = as_utf8(file, encoding)
            named = {"encoding": encoding, "advice": "convert the file or set corpus.encoding"}
            if span.kind == "json":
                blocks: Iterator[tuple[int, Any]] = text_blocks(file, where, **named)
            else:
                blocks = line_blocks(file, where, start=span.start, end=span.end, **named)
            for number, lines in blocks:
                self.bytes_read = before + raw.tell() - span.start
                yield number, lines
                number += len(lines) if isinstance(lines, list) else lines.count("\n")

    def _where(self, span: Span, number: int) -> str:
        """Return file:line for a line of a span; counts the lines before the span."""
        with span.path.open("rb") as file:
            blocks = iter(lambda: file.read(min(BLOCK_BYTES, span.start - file.tell())), b"")
            return f"{span.path}:{number + sum(block.count(10) for block in blocks)}"

    def _json_lines(self, span: Span) -> Iterator[tuple[int, Any]]:
        for first, lines in self._line_blocks(span):
            for number, line in enumerate(lines, first):
                try:
                    if not is_blank(line):
                        yield number, parse_json(line)
                except ValueError as error:
                    where = self._where(span, number)
                    raise InputError(f"{where}: not JSON ({error}); expected one object per line") from None

    def _wiki_documents(self, span: Span) -> Iterator[list[str]]:
        """Yield the paragraphs of each `<doc>` block, without its title."""
        document: PlacedDocument | None = None
        for first, lines in self._line_blocks(span):
            for number, line in enumerate(lines, first):
                if line.startswith("<doc "):
                    title = re.search(r'title="(.*)">', line)
                    heading = title.group(1) if title else None
                    document = PlacedDocument([], number, heading or "")
                elif line.startswith("</doc>"):
                    yield document or []
                    document = None
                elif document is None:
                    if not is_blank(line):
                        where = self._where(span, number)
                        raise InputError(f"{where}: text outside <doc> ... </doc>; set corpus.format=text")
                elif document or line.strip() != heading:
                    document.append(line)
        if document:
            yield document

    def _read_records(self, records: Iterable[tuple[int, Any]], where: Callable[[int], str]) -> Iterator[Document]:
        field = self.config.field
        for number, record in records:
            if not isinstance(record, dict) or field not in record:
                fields = named(record) if isinstance(record, dict) else type(record).__name__
                raise InputError(f"{where(number)}: no field '{field}' (it has: {fields}); set corpus.field=")
            text, title = record[field], record.get("title")
            if not isinstance(text, str):
                raise InputError(f"{where(number)}: field '{field}' is {type(text).__name__}, expected text")
            title = without_surrogates(title) if isinstance(title, str) and field != "title" else ""
            lines = PlacedDocument(without_surrogates(text).splitlines(), number, title)
            document = _as_sentences(lines, self.config.sentences != "lines")
            if document:
                yield document

    def _open_hub(self) -> Iterator[Any]:
        is_offline()
        import datasets

        try:
            name = self.config.path if isinstance(self.config.path, str) else None
            return iter(datasets.load_dataset(name, self.config.name, split=self.config.split, streaming=True))
        except Exception as error:
            reason = " ".join(str(error).split())
            raise InputError(f"corpus.path={self.config.path}: cannot open this dataset ({reason})") from None


def _text_documents(blocks: Iterable[tuple[int, list[str]]]) -> Iterator[list[str]]:
    document = PlacedDocument()
    for number, lines in blocks:
        for blank, run in itertools.groupby(map(str.strip, lines), is_blank):
            if not blank:
                document.number = document.number or number
                before = len(document)
                document += run
                number += len(document) - before
            else:
                number += sum(1 for _ in run)
                if document:
                    yield document
                    document = PlacedDocument()
    if document:
        yield document


def _as_sentences(lines: list[str], split: bool) -> Document:
    sentences = [sentence for line in lines for sentence in split_sentences(line)] if split else lines
    filled = [sentence.strip() for sentence in sentences if not is_blank(sentence)]
    return PlacedDocument(filled, lines.number, lines.title) if isinstance(lines, PlacedDocument) else filled


def parquet_records(path: Path, data: bytes | None = None) -> tuple[dict[str, list[str]], Iterator[dict[str, Any]]]:
    """Open a parquet file, or its content `data`; needs neither a cache nor the network.

    Return the label names of each class-label column, if `datasets` wrote the file, and an iterator over the records. Both
    raise InputError if the file is missing or damaged.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    if data is None and not path.is_file():
        raise InputError(f"{path}: no such file")

    def damaged(error: Exception) -> InputError:
        reason = " ".join(str(error).split()) or type(error).__name__
        return InputError(f"{path}: not readable as parquet ({reason}); restore the file")

    def records() -> Iterator[dict[str, Any]]:
        with file:
            try:
                for batch in file.iter_batches(RECORDS_AT_ONCE, use_threads=False):
                    yield from batch.to_pylist()
            except (pa.ArrowException, OSError, ValueError) as error:
                raise damaged(error) from None

    try:
        file = ParquetFile(path if data is None else pa.BufferReader(data))
        check_distinct(file.schema_arrow.names, str(path))
        return _label_names(file.schema_arrow.metadata or {}), records()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(error) from None


def _label_names(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """Return the label names that `datasets` stores in a parquet file's metadata; empty if another program wrote it."""
    names: dict[str, list[str]] = {}
    if b"huggingface" not in metadata:
        return names
    try:
        for column, feature in json.loads(metadata[b"huggingface"])["info"]["features"].items():
            label = feature.get("feature", feature)  # in a column of lists, the labels of the items
            if isinstance(label, dict) and isinstance(label.get("names"), list):
                names[column] = label["names"]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return {}
    return names
