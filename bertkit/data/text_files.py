"""Which files hold the text, in what format, and where they can be cut between two documents."""

from __future__ import annotations

import glob
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bertkit.data.config import CorpusConfig
from bertkit.errors import InputError

FORMATS = {".txt": "text", ".text": "text", ".jsonl": "jsonl", ".json": "json", ".parquet": "parquet"}
SNIFFED_BYTES = 1024


@dataclass(frozen=True)
class Span:
    """Whole documents of one file, one after another."""

    path: Path  # of the file
    kind: str  # its format
    start: int  # its first byte
    end: int | None  # the byte after its last one; None for a file that can only be read as a whole
    num_bytes: int  # its share of the work, in bytes on disk


Portion = tuple[Span, ...]  # of a corpus: what one worker reads; empty for the whole of a source that has no files


def find_files(config: CorpusConfig, leave_out: Iterable[Path]) -> tuple[list[tuple[Path, str]], list[Path]]:
    """Find the files of a corpus, each with its format, and those of a given folder that are not text.

    Raises:
        InputError: a path or pattern matches nothing, or nothing of a known format.
    """
    left_out = {path.resolve() for path in leave_out}
    given = config.path
    patterns = [given] if isinstance(given, str) else list(given or ())
    found: dict[Path, str] = {}
    ignored: list[Path] = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        if path.is_dir():
            inside = [item for item in sorted(path.rglob("*")) if item.is_file() and not item.name.startswith(".")]
            inside = [item for item in inside if left_out.isdisjoint([item.resolve(), *item.resolve().parents])]
            kinds = {item: _format(item, config) for item in inside}
            ignored += [item for item, kind in kinds.items() if kind is None]
            found |= (matches := {item: kind for item, kind in kinds.items() if kind is not None})
            if not matches:
                raise InputError(
                    f"corpus.path={pattern}: no text in this folder; expected .txt, .txt.gz, .jsonl, .json, .parquet "
                    "or WikiExtractor files"
                )
            continue
        if path.exists() and not path.is_file():
            raise InputError(f"corpus.path={pattern}: neither a file nor a folder")
        files = [path] if path.exists() else [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        files = [item for item in files if item.is_file()]
        if not files:
            raise InputError(
                f"corpus.path={pattern}: no such file, folder or match; for a dataset of the hub, add corpus=hub"
            )
        found |= {item: _format(item, config) or "text" for item in files}
    return list(found.items()), ignored


def _format(path: Path, config: CorpusConfig) -> str | None:
    """The format of a file, by its ending, or by its first bytes where it has none that is known."""
    if config.format != "auto":
        return config.format
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix in FORMATS:
        return FORMATS[suffix]
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            head = file.read(SNIFFED_BYTES).lstrip()
        except (OSError, EOFError, zlib.error):
            return None
    if head.startswith(b"<doc "):
        return "wikiextractor"
    return "jsonl" if head.startswith(b"{") and b'"text"' in head else None


# What the line before a new document is like, in bytes, for the formats that can be cut.
_DOCUMENT_ENDS: dict[str, Callable[[bytes], bool]] = {
    "text": lambda line: not line.strip(),
    "jsonl": lambda line: True,
    "wikiextractor": lambda line: line.startswith(b"</doc>"),
}


def cut_file(path: Path, kind: str, num_bytes: int) -> Iterator[Span]:
    """Cut a file into spans of about `num_bytes`: after a blank line, a record or a `</doc>`.

    Compressed files, JSON and parquet are one span.
    """
    size = path.stat().st_size
    if path.suffix == ".gz" or kind not in _DOCUMENT_ENDS:
        yield Span(path, kind, 0, None, size)
        return
    start = 0
    while start < size:
        aim = start + num_bytes
        end = size if aim >= size else _next_document(path, kind, aim)
        yield Span(path, kind, start, end, end - start)
        start = end


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
