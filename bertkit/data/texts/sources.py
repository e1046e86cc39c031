"""Files of text, found and cut between documents; and paragraphs, cut into sentences."""

import codecs
import contextlib
import glob
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bertkit.base.blocks import MAGIC_BYTES, ending_of, packing_of
from bertkit.base.errors import InputError
from bertkit.base.files import is_special
from bertkit.base.text_files import LINE_MB, TOO_LONG, UTF_16, is_utf16, unpacked
from bertkit.data.data_config import CorpusConfig
from bertkit.data.texts.parquet import saved_dataset

FORMATS = {
    ".txt": "text", ".text": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
KINDS = {"lines": "text with a document per line"}  # formats whose names do not say what they are
TABLES = {".csv": "", ".tsv": ", delimiter='\\t'"}  # how csv.DictReader reads them
_ABOUT = ("dataset_info.json", "dataset_infos.json")  # what `datasets` writes beside its files
SNIFFED_BYTES = 1024
_MAGIC = {b"<doc ": "wikiextractor", b"PAR1": "parquet", b"ARROW1": "arrow"}  # the first bytes of files
_JSON = re.compile(rb'(\[\s*)?\{\s*"')
_MARKUP = re.compile(rb"<(\?xml|!doctype|html)|\{\\rtf", re.IGNORECASE)
# a line is a document if most of the first ones are filled with so many sentences
LINE_BYTES, FEWEST_LINES, MOST_LINES, LINE_SENTENCES = 1 << 20, 10, 100, 3


@dataclass(frozen=True)
class Stretch:
    """Consecutive whole documents of a file."""

    path: Path
    kind: str  # the file's format
    start: int  # the first byte
    end: int | None  # the byte after the last one; None if the file cannot be cut
    num_bytes: int  # size on disk


Portion = tuple[Stretch, ...]  # a part of the corpus, read by one worker; () is the whole of a corpus without files


class FoundFiles(NamedTuple):
    """The files of a corpus."""

    files: list[tuple[Path, str]]  # each with its format
    ignored: list[Path]  # what else is in the folders: files that are not text, links to folders, other splits
    num_duplicates: int  # further paths to the same files, such as links


def find_files(config: CorpusConfig, leave_out: Iterable[Path]) -> FoundFiles:
    """Find the files of a corpus; raises InputError if a path or pattern matches no file of a known format."""
    left_out = {path.resolve() for path in leave_out}
    kinds: dict[Path, str] = {}
    ignored: list[Path] = []
    for pattern in config.paths:
        named = _matches(pattern)
        kinds |= {item: _format(item, config) or _as_text(item) for item in named if item.is_file()}
        folders = [item for item in named if item.is_dir()]
        inside = [item for folder in folders for item in _below(folder, config.split)]
        inside = [item for item in inside if left_out.isdisjoint([item.resolve(), *item.resolve().parents])]
        known = {item: kind for item in inside if item.is_file() and (kind := _format(item, config)) is not None}
        if len(folders) == len(named) and not known:
            raise InputError(
                f"corpus.path={pattern}: no text in this folder; expected .txt, .jsonl, .json, .parquet, WikiExtractor files "
                "or a directory of datasets.save_to_disk; corpus.format=text reads every file as text"
            )
        ignored += [item for item in inside if item not in known]
        kinds |= known
    once = {(state.st_dev, state.st_ino): item for item in reversed(kinds) if (state := item.stat())}
    with_kinds = [(item, kinds[item]) for item in reversed(once.values())]
    return FoundFiles(with_kinds, [item for item in ignored if item not in kinds], len(kinds) - len(once))


def _matches(pattern: str) -> list[Path]:
    """Return a file or a folder, or those that a pattern matches; of one with `**`, which looks into folders, only the files."""
    path = Path(os.path.expanduser(pattern))
    if is_special(path):
        raise InputError(f"corpus.path={pattern}: neither a file nor a folder")
    names = [path] if path.exists() else map(Path, sorted(glob.glob(str(path), recursive=True)))
    found = [item for item in names if item.is_file() or (item.is_dir() and "**" not in pattern)]
    if not found:
        raise InputError(f"corpus.path={pattern}: no such file, folder or match; for a hub dataset, add corpus=hub")
    return found


def _below(folder: Path, split: str = "train") -> list[Path]:
    """List all files below a folder but hidden ones; every folder must be readable.

    Links to folders are not followed. Of a dataset of `datasets` only the files of the split are listed; the links, and the
    folders of other splits, are items too.
    """
    errors: list[OSError] = []
    items: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=errors.append):
        if saved := saved_dataset(Path(root), split, "corpus.split"):
            items += [*saved.files, *saved.others]
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        items += [Path(root, name) for name in (*names, *links) if not name.startswith(".")]
    if errors:
        raise InputError(f"{errors[0].filename}: {errors[0].strerror}; make it readable, or list the other folders")
    return sorted(items)


def _beginning(path: Path, num_bytes: int) -> bytes:
    """Return the first bytes of the uncompressed file; fewer if it is damaged or an archive, as its reader will say."""
    head = bytearray()
    with path.open("rb") as raw, contextlib.suppress(EOFError, InputError):
        file = unpacked(raw, path)
        while len(head) < num_bytes and (block := file.read1(num_bytes)):
            head += block
    return bytes(head[:num_bytes])


def _format(path: Path, config: CorpusConfig) -> str | None:
    """Return the format of a file, by its ending or else by its first bytes; None if it is not text."""
    if config.format != "auto":
        return config.format
    kind = None if path.name in _ABOUT else FORMATS.get(ending_of(path))
    if kind == "text":
        _check_text(path)
    if kind is not None:
        return kind
    head = _beginning(path, SNIFFED_BYTES).lstrip()
    has_field = _JSON.match(head) is not None and f'"{config.field}"'.encode() in head
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "jsonl" if has_field else None)


def _as_text(path: Path) -> str:
    """Return the format of a file that is named, but has no known ending; raises InputError for a table, JSON or markup."""
    if (ending := ending_of(path)) == ".xlsx":
        raise InputError(f"{path}: an Excel file; from Python pass the column of texts: corpus=frame['text']")
    if ending in TABLES:
        rows = f"csv.DictReader(sys.stdin{TABLES[ending]})"
        script = f'python -c "import csv, json, sys; [print(json.dumps(row)) for row in {rows}]"'
        name, packing = shlex.quote(str(path)), packing_of(path, b"")
        made = shlex.quote(
            f"{path.name.removesuffix(path.suffix).removesuffix(ending) if packing else path.stem}.jsonl"
        )
        script = f"{packing.name} -dc {name} | {script} > {made}" if packing else f"{script} < {name} > {made}"
        raise InputError(
            f"{path}: a table; make JSON lines of it: {script}, and set corpus.field= to the column of texts"
        )
    _check_text(path)
    return "text"


def _check_text(path: Path) -> None:
    """Raise InputError for JSON or markup."""
    head = _beginning(path, SNIFFED_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    if _JSON.match(head):
        raise InputError(
            f"{path}: it looks like JSON; set corpus.format=jsonl or json, or corpus.format=text to read its lines"
        )
    if _MARKUP.match(head):
        raise InputError(f"{path}: it has markup; extract its text, or set corpus.format=text to read its lines")


def has_document_lines(path: Path, encoding: str) -> bool:
    """Whether each line of a text seems to be a document: the first lines have no blank one, and most have several sentences."""
    head = _beginning(path, LINE_BYTES)
    lines = head.decode("utf-16" if head.startswith(UTF_16) else encoding, "replace").split("\n")
    lines = lines[: -1 if len(head) == LINE_BYTES or not lines[-1] else None]
    if len(lines) < FEWEST_LINES or not all(map(str.strip, lines)):
        return False
    return median(len(split_sentences(line)) for line in lines[:MOST_LINES]) >= LINE_SENTENCES


# for each format that can be cut: whether a line ends a document
_DOCUMENT_ENDS: dict[str, Callable[[bytes], bool]] = {
    "text": lambda line: not line.strip(),
    "jsonl": lambda line: True,
    "lines": lambda line: True,
    "wikiextractor": lambda line: line.startswith(b"</doc>"),
}


def cut_file(path: Path, kind: str, num_bytes: int, encoding: str = "utf-8") -> Iterator[Stretch]:
    """Cut a file into stretches of about `num_bytes`, after a blank line, a record or a `</doc>`.

    A file in UTF-16, a compressed file, and one of JSON, parquet or arrow is one stretch.
    """
    size = path.stat().st_size
    if kind not in _DOCUMENT_ENDS or is_utf16(encoding) or _is_encoded(path):
        yield Stretch(path, kind, 0, None, size)
        return
    start = 0
    while start < size:
        wanted = start + num_bytes
        end = size if wanted >= size else _next_document(path, kind, wanted)
        yield Stretch(path, kind, start, end, end - start)
        start = end


def _is_encoded(path: Path) -> bool:
    """Whether a file is compressed, or in UTF-16 by its byte order mark."""
    with path.open("rb") as file:
        head = file.read(MAGIC_BYTES)
    return head.startswith(UTF_16) or packing_of(path, head) is not None


def _next_document(path: Path, kind: str, at: int) -> int:
    """Return the first place, from byte `at` on, where a document begins, or the end of the file."""
    limit = LINE_MB * 1_000_000
    with path.open("rb") as file:
        at -= 1
        file.seek(at)
        for number, line in enumerate(iter(lambda: file.readline(limit + 1), b"")):
            at += len(line)
            if len(line) > limit:
                raise InputError(f"{path}: byte {at - len(line):,}: a line {TOO_LONG}")
            if number and _DOCUMENT_ENDS[kind](line):  # the first line may be incomplete
                break
    return at


# a sentence ends after . ! ? (and closing quotes or brackets), if white space and a possible first character follow
_END = re.compile(r"""(?<=[.!?])["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z0-9À-ÞА-ЯΑ-Ω])|(?<=[。！？])""")
LONGEST_ABBREVIATION = 10  # in characters, with the full stop and the character before the abbreviation
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|Sr|Jr|St|Gen|Col|Capt|Lt|Rev|Hon|vs|etc|cf|al|approx|ca|no|No|Vol|vol|pp|p|Fig|fig|e\.g|i\.e"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Sept|Oct|Nov|Dec|Inc|Ltd|Co|Corp)|\b[A-Z])\.$"
)


def split_sentences(paragraph: str) -> list[str]:
    """Split a paragraph into sentences, at punctuation before an upper-case letter, a digit or a quote.

    Abbreviations and initials ("Mr. Smith", "J. Brown") do not end a sentence. This rule is fast, and precise enough for
    segments.
    """
    sentences: list[str] = []
    start = 0
    for match in _END.finditer(paragraph):
        # search only the last characters: the paragraph may be a whole book
        before = paragraph[max(start, match.start() - LONGEST_ABBREVIATION) : match.start()]
        if match[0][:1].isspace() and _ABBREVIATION.search(before):
            continue
        sentences.append(paragraph[start : match.end()].strip())
        start = match.end()
    sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence]
