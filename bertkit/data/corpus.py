"""Files, or a `datasets` name, to documents. A document is a list of sentences.

Text files hold one sentence per line and a blank line between documents. JSON lines, JSON, parquet and hub datasets
hold one document per record; WikiExtractor output, one per `<doc>` block; their text is split into sentences.
"""

from __future__ import annotations

import glob
import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from bertkit.data.config import CorpusConfig
from bertkit.data.python_docs import python_documents
from bertkit.errors import InputError

Document = list[str]

FORMATS = {".txt": "text", ".text": "text", ".jsonl": "jsonl", ".json": "json", ".parquet": "parquet"}
SNIFFED_BYTES = 1024


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
        if self.config.source == "python_docs":
            yield from python_documents()
        elif self.config.source == "hub":
            yield from self._read_records(self._open_hub(), self.config.path)
        else:
            for paths, kind in self._read_together():
                before = self.bytes_read
                yield from self._read_files(paths, kind)
                self.bytes_read = before + sum(path.stat().st_size for path in paths)

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

    def _read_files(self, paths: list[Path], kind: str) -> Iterator[Document]:
        path = paths[0]
        if kind in ("json", "parquet"):
            yield from self._read_records(_open_table(path, kind), path)
            return
        split = self.config.sentences == "split" or (self.config.sentences == "auto" and kind != "text")
        readers = {"text": _text_documents, "jsonl": self._json_documents, "wikiextractor": _wiki_documents}
        num_documents = 0
        for lines in readers[kind](path, itertools.chain.from_iterable(map(self._lines, paths))):
            document = _as_sentences(lines, split)
            if document:
                num_documents += 1
                yield document
        if num_documents == 0 and len(self.files) == 1:
            raise InputError(f"{path}: no text in this file; expected sentences, one per line")

    def _lines(self, path: Path) -> Iterator[tuple[int, str]]:
        """Number and decode the lines of a file."""
        before = self.bytes_read
        with path.open("rb") as raw, _open_bytes(path, raw) as file:
            number = 0
            try:
                for number, line in enumerate(file, 1):
                    self.bytes_read = before + raw.tell()
                    if b"\0" in line:
                        raise InputError(
                            f"{path}:{number}: not text (a zero byte at column {line.index(0) + 1}); remove the file, "
                            "or convert it to UTF-8"
                        )
                    try:
                        text = line.decode(self.config.encoding)
                    except UnicodeDecodeError as error:
                        raise InputError(
                            f"{path}:{number}: not {self.config.encoding.upper()} (byte 0x{line[error.start]:02x} at column "
                            f"{error.start + 1}); convert the file or set corpus.encoding"
                        ) from None
                    yield number, text.lstrip("\ufeff") if number == 1 else text
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise InputError(f"{path}:{number + 1}: damaged gzip file ({error}); restore it") from None

    def _json_documents(self, path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[list[str]]:
        for number, line in lines:
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}:{number}: not JSON ({error}); expected one object per line") from None
            yield self._text_of(record, f"{path}:{number}").splitlines()

    def _read_records(self, records: Iterator[Any], source: Any) -> Iterator[Document]:
        for number, record in enumerate(records, 1):
            lines = self._text_of(record, f"{source}: record {number}").splitlines()
            document = _as_sentences(lines, self.config.sentences != "lines")
            if document:
                yield document

    def _text_of(self, record: Any, where: str) -> str:
        field = self.config.field
        if not isinstance(record, dict) or field not in record:
            fields = ", ".join(record) if isinstance(record, dict) else type(record).__name__
            raise InputError(f"{where}: no field '{field}' (it has: {fields}); set corpus.field=")
        if not isinstance(record[field], str):
            raise InputError(f"{where}: field '{field}' is {type(record[field]).__name__}, expected text")
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


def _open_bytes(path: Path, raw: BinaryIO | None = None) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(path) if raw is None else gzip.GzipFile(fileobj=raw))
    return path.open("rb") if raw is None else raw


def _open_table(path: Path, kind: str) -> Iterator[Any]:
    """Stream the records of a JSON or parquet file through `datasets`."""
    import datasets

    try:
        yield from datasets.load_dataset(kind, data_files=str(path), split="train", streaming=True)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not readable as {kind} ({reason})") from None


def _text_documents(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[list[str]]:
    document: list[str] = []
    for _, line in lines:
        if line.strip():
            document.append(line)
        elif document:
            yield document
            document = []
    yield document


def _wiki_documents(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[list[str]]:
    """The paragraphs of each `<doc>` block, without the title that its first line repeats."""
    document: list[str] | None = None
    for number, line in lines:
        if line.startswith("<doc "):
            document = []
            title = re.search(r'title="(.*)">', line)
            heading = title.group(1) if title else None
        elif line.startswith("</doc>"):
            yield document or []
            document = None
        elif document is None:
            if line.strip():
                raise InputError(f"{path}:{number}: text outside of <doc> ... </doc>; set corpus.format=text")
        elif document or line.strip() != heading:
            document.append(line)
    if document:
        yield document


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
