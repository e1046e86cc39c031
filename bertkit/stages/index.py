"""Stage: split text into passages, and add them to a library for full-text search."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bertkit.apps.retrieval.encoders import PassageEncoder
from bertkit.apps.retrieval.library import Library
from bertkit.apps.retrieval.library_writer import LibraryWriter, opened_for_writing, stored_files
from bertkit.apps.retrieval.passages import LibraryDocument, document_of, document_of_text
from bertkit.base.errors import InputError, counted, refusing, say, warn
from bertkit.base.files import partial_path
from bertkit.base.json_stream import json_values
from bertkit.base.text_files import JsonObject, read_lines, without_surrogates
from bertkit.data.texts.documents import LOST, Corpus, open_corpus
from bertkit.data.texts.sources import Stretch
from bertkit.display.console import Progress
from bertkit.settings.index import IndexSettings

SNIFFED_BYTES = 1 << 16
_SQUAD = re.compile(rb'\s*\{\s*"(version|data)"\s*:')  # the beginning of the official files


class _IndexedFile(NamedTuple):
    """A file of the corpus, or the whole corpus if it has no files."""

    name: str
    path: Path | None = None
    kind: str = ""


def run(settings: IndexSettings) -> None:
    """Add the corpus to the library, which stays as it was after an error; after a full disk, the same command continues."""
    output = Path(settings.output)
    encoder = None
    if settings.model_dir is not None:
        encoder = PassageEncoder(settings.model_dir, "model_dir", numbers=settings.vectors)
    identity = None if encoder is None else encoder.identity
    stored = stored_files(output, settings.passages, identity)
    corpus = open_corpus(settings.corpus, [output, partial_path(output.resolve())])
    sources = _sources_of(corpus, settings)
    say(f"reading {corpus.describe()}")
    hashes = {source.name: _hash(source, settings) for source in sources}
    is_known = all(known is not None and known == stored.hashes.get(name) for name, known in hashes.items())
    is_known = is_known and stored.encoder == identity
    if is_known and not (settings.remove and stored.hashes.keys() - hashes.keys()):
        totals = f"{counted(len(stored.hashes), 'file')}, {counted(Library(output).num_passages, 'passage')}"
        say(f"{output}: done already, no file has changed; {totals}")
        return
    num_removed = num_lost = done_bytes = 0
    with (
        opened_for_writing(output, settings.passages, repr((settings, identity))) as library,
        Progress("indexing", corpus.total_bytes) as progress,
    ):
        for source in sources:
            if not library.has(source.name, hashes[source.name]):
                corpus.bytes_read = done_bytes  # the total after this file is read again
                changes = library.sync(source.name, hashes[source.name], _with_progress(source, corpus, progress))
                progress.line(f"{source.name}: {_describe(changes)}")
                num_lost += changes["lost characters"]
            done_bytes += source.path.stat().st_size if source.path else 0
            progress.advance(done_bytes)
        if settings.remove:
            num_removed = library.remove_others(hashes)
        counts = library.finish()
        if not counts["passage"]:
            raise InputError(f"{corpus.describe()}: no text in it; output={output} would have no passages")
        if encoder is not None:
            _add_vectors(library, encoder, counts["passage"])
    if num_lost:
        warn(f"{counted(num_lost, 'new document')} {LOST}")
    if num_removed:
        say(f"{counted(num_removed, 'missing file')} removed")
    totals = ", ".join(counted(count, name) for name, count in counts.items())
    say(f"{output}: {totals}; {output.stat().st_size / 1e6:,.1f} MB")


def _add_vectors(library: LibraryWriter, encoder: PassageEncoder, num_passages: int) -> None:
    """Store a vector for each passage that has none."""
    num_done = library.prepare_vectors(encoder.identity)
    with Progress("vectors", num_passages, done=num_done) as progress:
        for block in library.without_vectors():
            vectors = encoder.of_passages([text for _, text in block])
            library.add_vectors([number for number, _ in block], vectors, encoder.identity.numbers)
            num_done += len(block)
            progress.advance(num_done)
    if encoder.num_cut:
        warn(encoder.embedder.cut_warning(encoder.num_cut, num_passages))


def _with_progress(source: _IndexedFile, corpus: Corpus, progress: Progress) -> Iterator[LibraryDocument]:
    for document in _documents(corpus, source):
        progress.advance(corpus.bytes_read)
        yield document


def _describe(changes: Counter[str]) -> str:
    parts = [f"{changes[what]:,} {what}" for what in ("new", "already stored", "removed") if changes[what]]
    return f"documents: {', '.join(parts) or 'none'}"


def _sources_of(corpus: Corpus, settings: IndexSettings) -> list[_IndexedFile]:
    """List the files of a corpus; a corpus without files is one source."""
    if settings.corpus.source != "files":
        return [
            _IndexedFile("python_docs" if settings.corpus.source == "python_docs" else f"hub:{settings.corpus.path}")
        ]
    if settings.corpus.format == "auto":
        corpus.files = [(path, "squad" if _is_squad(path, kind) else kind) for path, kind in corpus.files]
    sources = [_IndexedFile(str(path.absolute()), path, kind) for path, kind in corpus.files]
    for source in sources:
        if without_surrogates(source.name) != source.name:
            raise InputError(f"{source.name}: this name is not UTF-8; rename the file or its folder")
    return sources


def _is_squad(path: Path, kind: str) -> bool:
    with path.open("rb") as file:
        return kind == "json" and _SQUAD.match(file.read(SNIFFED_BYTES)) is not None


def _documents(corpus: Corpus, source: _IndexedFile) -> Iterator[LibraryDocument]:
    path, kind = source.path, source.kind
    if path is None:
        return (document_of(document, "document") for document in corpus.documents(()))
    if kind == "squad":
        return _squad_documents(path)
    is_split = kind == "text" and corpus.config.sentences == "split"
    units = {"text": "from line" if is_split else "line", **dict.fromkeys(("json", "parquet", "arrow"), "record")}
    documents = corpus.documents((Stretch(path, kind, 0, None, path.stat().st_size),))
    return (document_of(document, units.get(kind, "from line")) for document in documents)


def _squad_documents(path: Path) -> Iterator[LibraryDocument]:
    """Yield the contexts in SQuAD's JSON, nested or flat, as documents with the title of their article."""
    number, found = 0, list[tuple[str, str, int]]()
    layout = "expected SQuAD's layout: data, a list; in it paragraphs, with context"
    with refusing((KeyError, TypeError, AttributeError), lambda _: f"{path}: paragraph {number}: {layout}"):
        content: JsonObject = next((value for _, value, _ in json_values(path, read_lines(path, in_blocks=True))), {})
        for article in content["data"]:
            for paragraph in article.get("paragraphs", [article]):
                number += 1
                if paragraph["context"].strip():
                    title = article.get("title")
                    found.append((paragraph["context"], title if isinstance(title, str) else "", number))
    for context, title, place in found:
        yield document_of_text(context, title, "paragraph", place)


def _hash(source: _IndexedFile, settings: IndexSettings) -> str | None:
    """Hash the bytes of a file and the settings for reading it; None without a file."""
    if source.path is None:
        return None
    corpus = settings.corpus
    settings_of_reading = repr((source.kind, corpus.field, corpus.sentences, corpus.encoding))
    with source.path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(settings_of_reading.encode(), digest_size=16))
    return digest.hexdigest()
