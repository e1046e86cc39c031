"""Stage: split text into passages, and add them to a library for full-text search, one file per transaction."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.base.errors import InputError, say
from bertkit.base.files import BLOCK_BYTES, folder_for
from bertkit.base.json_stream import json_values
from bertkit.base.text_files import read_lines
from bertkit.data.corpus.documents import Corpus
from bertkit.data.corpus.sources import Span
from bertkit.search.library import FileChanges, opened_for_writing
from bertkit.search.library_file import check_library
from bertkit.search.passages import LibraryDocument, document_of, document_of_text
from bertkit.settings.index import IndexSettings
from bertkit.view.console import Progress

SNIFFED_BYTES = 1 << 16
_SQUAD = re.compile(rb'\s*\{\s*"(version|data)"\s*:')  # the beginning of the official files


class _Source(NamedTuple):
    """A file of the corpus, or the whole corpus if it has no files."""

    name: str
    path: Path | None = None
    kind: str = ""


def run(settings: IndexSettings) -> None:
    """Add the corpus to the library.

    Raises:
        InputError: a file is not in its format (the library keeps the files before it), or the output is not a library.
        StorageError: the disk is full; committed documents are kept.
    """
    output = Path(settings.output)
    if output.is_dir():
        raise InputError(f"output={output} is a folder; choose a file in it, such as {output / 'library.db'}")
    if output.exists():
        check_library(output, "output")
    corpus = Corpus(settings.corpus, [output])
    sources = _sources_of(corpus, settings)
    say(f"reading {corpus.describe()}")
    with (
        folder_for(output.absolute().parent),
        opened_for_writing(output, settings.passages) as library,
        Progress("indexing", corpus.total_bytes) as progress,
    ):
        before = library.counts()
        num_done = num_removed = done_bytes = 0
        for source in sources:
            content_hash = _hash(source, settings)
            if library.has(source.name, content_hash):
                num_done += 1
            else:
                corpus.bytes_read = done_bytes  # the total after this file is read again
                changes = library.sync(source.name, content_hash, _with_progress(source, corpus, progress))
                progress.line(f"{source.name}: {_describe(changes)}")
            done_bytes += source.path.stat().st_size if source.path else 0
            progress.advance(done_bytes)
        if settings.remove:
            num_removed = library.remove_others([source.name for source in sources])
        has_changed = num_done < len(sources) or num_removed > 0
        counts = library.finish() if has_changed else before
    if not counts["passages"]:
        raise InputError(f"{corpus.describe()}: no text in it; output={output} has no passages")
    totals = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    if not has_changed:
        say(f"{output}: done already, no file has changed; {totals}")
        return
    if num_removed:
        say(f"{num_removed:,} missing files removed")
    say(f"{output}: {totals}; {output.stat().st_size / 1e6:,.1f} MB")


def _with_progress(source: _Source, corpus: Corpus, progress: Progress) -> Iterator[LibraryDocument]:
    for document in _documents(corpus, source):
        progress.advance(corpus.bytes_read)
        yield document


def _describe(changes: FileChanges) -> str:
    parts = [(changes.num_new, "new"), (changes.num_same, "unchanged"), (changes.num_removed, "removed")]
    return (", ".join(f"{count:,} {what}" for count, what in parts if count) or "no") + " documents"


def _sources_of(corpus: Corpus, settings: IndexSettings) -> list[_Source]:
    """List the files of a corpus; a corpus without files is one source."""
    if settings.corpus.source != "files":
        return [_Source("python_docs" if settings.corpus.source == "python_docs" else f"hub:{settings.corpus.path}")]
    if settings.corpus.format == "auto":
        corpus.files = [(path, "squad" if _is_squad(path, kind) else kind) for path, kind in corpus.files]
    return [_Source(str(path.absolute()), path, kind) for path, kind in corpus.files]


def _is_squad(path: Path, kind: str) -> bool:
    with path.open("rb") as file:
        return kind == "json" and _SQUAD.match(file.read(SNIFFED_BYTES)) is not None


def _documents(corpus: Corpus, source: _Source) -> Iterator[LibraryDocument]:
    path, kind = source.path, source.kind
    if path is None:
        return (document_of(document, "document") for document in corpus.documents(()))
    if kind == "squad":
        return _squad_documents(path)
    is_split = kind == "text" and corpus.config.sentences == "split"
    units = {"text": "from line" if is_split else "line", "json": "record", "parquet": "record"}
    documents = corpus.documents((Span(path, kind, 0, None, path.stat().st_size),))
    return (document_of(document, units.get(kind, "from line")) for document in documents)


def _squad_documents(path: Path) -> Iterator[LibraryDocument]:
    """Yield the contexts in SQuAD's JSON, nested or flat, as documents with the title of their article.

    Raises:
        InputError: the file has another layout.
    """
    content = next((value for _, value, _ in json_values(path, read_lines(path, in_blocks=True))), None)
    number = 0
    for article in _list(path, "", content, "data"):
        nested = _list(path, "data: ", article, "paragraphs") if "context" not in article else [article]
        title = article.get("title")
        for paragraph in nested:
            number += 1
            context = paragraph.get("context") if isinstance(paragraph, dict) else None
            if not isinstance(context, str):
                raise InputError(f"{path}: paragraph {number}: no string 'context'; expected SQuAD's layout")
            if context.strip():
                yield document_of_text(context, title if isinstance(title, str) else "", "paragraph", number)


def _list(path: Path, where: str, record: Any, field: str) -> list[dict[str, Any]]:
    items = record.get(field) if isinstance(record, dict) else None
    if not isinstance(items, list) or (field == "data" and not all(isinstance(item, dict) for item in items)):
        raise InputError(f"{path}: {where}no list '{field}' of objects; expected SQuAD's layout, data and paragraphs")
    return items


def _hash(source: _Source, settings: IndexSettings) -> str | None:
    """Hash the bytes of a file and the settings for reading it; None without a file."""
    if source.path is None:
        return None
    corpus = settings.corpus
    settings_of_reading = repr((source.kind, corpus.field, corpus.sentences, corpus.encoding))
    digest = hashlib.blake2b(settings_of_reading.encode(), digest_size=16)
    with source.path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
