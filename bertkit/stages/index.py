"""Stage: text -> a library of passages, which grows by transactions."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.base.errors import InputError, say
from bertkit.base.files import BLOCK_BYTES, folder_for
from bertkit.base.text_files import join_lines, parse_json, read_lines
from bertkit.data.corpus.documents import Corpus
from bertkit.data.corpus.sources import Span
from bertkit.search.library import Added, opened_for_writing
from bertkit.search.library_file import check_library
from bertkit.search.passages import LibraryDocument, document_of, document_of_text
from bertkit.settings.index import IndexSettings
from bertkit.view.console import Progress

SNIFFED_BYTES = 1 << 16
_SQUAD = re.compile(rb'\s*\{\s*"(version|data)"\s*:')  # the beginning of the official files


class _Source(NamedTuple):
    """A file of documents, or a corpus without files."""

    name: str
    path: Path | None = None
    kind: str = ""


def run(settings: IndexSettings) -> None:
    """Index.

    Raises:
        InputError: a file is not in its format (the files before it are in the library), or the output is not a library.
        StorageError: the disk is full; committed documents are kept.
    """
    output = Path(settings.output)
    if output.is_dir():
        raise InputError(f"output={output} is a folder; give a file in it, such as {output / 'library.db'}")
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
            hash = _hash(source, settings)
            if library.has(source.name, hash):
                num_done += 1
            else:
                corpus.bytes_read = done_bytes  # reading adds to it
                added = library.add(source.name, hash, _counted(source, corpus, progress))
                progress.line(f"{source.name}: {_counts(added)}")
            done_bytes += source.path.stat().st_size if source.path else 0
            progress.advance(done_bytes)
        if settings.remove:
            num_removed = library.remove_others([source.name for source in sources])
        is_new = num_done < len(sources) or num_removed > 0
        counts = library.finish() if is_new else before
    if not counts["passages"]:
        raise InputError(f"{corpus.describe()}: no text in it; output={output} has no passages")
    totals = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    if not is_new:
        say(f"{output}: done already, no file has changed; {totals}")
        return
    if num_removed:
        say(f"{num_removed:,} missing files removed")
    say(f"{output}: {totals}; {output.stat().st_size / 1e6:,.1f} MB")


def _counted(source: _Source, corpus: Corpus, progress: Progress) -> Iterator[LibraryDocument]:
    for document in _documents(corpus, source):
        progress.advance(corpus.bytes_read)
        yield document


def _counts(added: Added) -> str:
    parts = [(added.num_new, "new"), (added.num_same, "unchanged"), (added.num_removed, "removed")]
    return (", ".join(f"{count:,} {what}" for count, what in parts if count) or "no") + " documents"


def _sources_of(corpus: Corpus, settings: IndexSettings) -> list[_Source]:
    """List the files of a corpus, or the corpus itself if it has none."""
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
        return _of_squad(path)
    is_split = kind == "text" and corpus.config.sentences == "split"
    units = {"text": "from line" if is_split else "line", "json": "record", "parquet": "record"}
    documents = corpus.documents((Span(path, kind, 0, None, path.stat().st_size),))
    return (document_of(document, units.get(kind, "from line")) for document in documents)


def _of_squad(path: Path) -> Iterator[LibraryDocument]:
    """Give the contexts of SQuAD's JSON, nested or flat, with the titles of their articles.

    Raises:
        InputError: the file has another layout.
    """
    try:
        content = parse_json(join_lines(path, read_lines(path)))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); restore the file") from None
    number = 0
    for article in _list(path, "", content, "data"):
        nested = _list(path, "data: ", article, "paragraphs") if "context" not in article else [article]
        title = article.get("title")
        for paragraph in nested:
            number += 1
            context = paragraph.get("context") if isinstance(paragraph, dict) else None
            if not isinstance(context, str):
                raise InputError(f"{path}: paragraph {number}: no text 'context'; expected SQuAD's layout")
            if context.strip():
                yield document_of_text(context, title if isinstance(title, str) else "", "paragraph", number)


def _list(path: Path, where: str, record: Any, field: str) -> list[dict[str, Any]]:
    items = record.get(field) if isinstance(record, dict) else None
    if not isinstance(items, list) or (field == "data" and not all(isinstance(item, dict) for item in items)):
        raise InputError(f"{path}: {where}no list '{field}' of objects; expected SQuAD's layout, data and paragraphs")
    return items


def _hash(source: _Source, settings: IndexSettings) -> str | None:
    """Hash the bytes of a file and the way of reading them; None without a file."""
    if source.path is None:
        return None
    corpus = settings.corpus
    reading = repr((source.kind, corpus.field, corpus.sentences, corpus.encoding))
    hash = hashlib.blake2b(reading.encode(), digest_size=16)
    with source.path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            hash.update(block)
    return hash.hexdigest()
