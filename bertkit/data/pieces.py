"""Pieces of a corpus: what one worker makes of a run of documents, and how the pieces become one dataset.

    00003-000.npz    the first piece of part 3 of the corpus: ids, lengths, and what the statistics need
    00003.done       part 3 is whole: 1 piece

A piece depends on its documents and the vocabulary alone, so pieces are made by any number of processes and machines,
and survive the process that made them. In the order of their names they are the corpus.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertkit.data.corpus import Document
from bertkit.data.lint import CorpusStatistics, hash_sentence
from bertkit.data.tokenizer import FlatIds
from bertkit.files import write_durably

CHARACTERS_AT_ONCE = 1 << 18  # tokenized together
MAX_PIECE_CHARACTERS = 1 << 24  # of a part that cannot be cut, such as a compressed file

Encode = Callable[[list[str]], FlatIds]


@dataclass(frozen=True)
class Piece:
    """Encoded documents.

    Attributes:
        tokens: ids of all sentences in a row.
        sentence_lengths: tokens of each sentence that has any, (sentences,).
        document_sentences: such sentences of each document, 0 for an empty one, (documents,).
        digests: the SHA-256 of each document's text, (documents, 32).
        num_words: words between spaces, of the documents that are not empty.
        sentence_hashes: the different hashes of their sentences.
        hash_counts: how often each occurs.
    """

    tokens: NDArray[np.int32]
    sentence_lengths: NDArray[np.int64]
    document_sentences: NDArray[np.int64]
    digests: NDArray[np.uint8]
    num_words: NDArray[np.int64]
    sentence_hashes: NDArray[np.uint64]
    hash_counts: NDArray[np.int64]


def digest(document: Document) -> bytes:
    """Hash a document's text; whether it is held out depends on it."""
    return hashlib.sha256(_text(document)).digest()


def _text(document: Document) -> bytes:
    return "\n".join(document).encode("utf-8", "surrogatepass")


def encode_documents(documents: list[Document], encode: Encode) -> Piece:
    """Encode documents, of which none is without sentences."""
    tokens, lengths = encode(list(chain.from_iterable(documents)))
    has_tokens = lengths > 0
    first = np.cumsum([0, *map(len, documents[:-1])])
    document_sentences = np.add.reduceat(has_tokens, first, dtype=np.int64)
    texts = list(map(_text, documents))
    kept = b"\n".join(text for text, count in zip(texts, document_sentences.tolist(), strict=True) if count)
    sentences = kept.split(b"\n") if kept else []
    hashes, counts = np.unique(np.frombuffer(b"".join(map(hash_sentence, sentences)), "<u8"), return_counts=True)
    return Piece(
        tokens,
        lengths[has_tokens],
        document_sentences,
        np.frombuffer(b"".join(hashlib.sha256(text).digest() for text in texts), np.uint8).reshape(-1, 32),
        np.array([kept.count(b" ") + len(sentences)]),
        hashes,
        counts,
    )


def write_pieces(
    documents: Iterator[Document], encode: Encode, directory: Path, part: int, dtype: np.dtype[np.unsignedinteger]
) -> None:
    """Encode the documents of a part, and write a piece whenever there is enough for one.

    What an interrupted run has written is taken as it is.
    """
    number = 0
    while (path := directory / f"{part:05d}-{number:03d}.npz").exists():
        skipped = len(load_digests(path))
        next(islice(documents, skipped, skipped), None)
        number += 1
    waiting: list[Piece] = []
    characters = 0
    for batch in _batches(documents):
        waiting.append(encode_documents(batch, encode))
        characters += sum(map(len, chain.from_iterable(batch)))
        if characters >= MAX_PIECE_CHARACTERS:
            _save(waiting, directory / f"{part:05d}-{number:03d}.npz", dtype)
            waiting, characters, number = [], 0, number + 1
    if waiting:
        _save(waiting, directory / f"{part:05d}-{number:03d}.npz", dtype)
        number += 1
    write_durably(directory / f"{part:05d}.done", f"{number}\n")


def is_done(directory: Path, part: int) -> bool:
    """Whether all pieces of a part are there."""
    return (directory / f"{part:05d}.done").exists()


def piece_paths(directory: Path) -> list[Path]:
    """The pieces in the order of the corpus."""
    return sorted(directory.glob("*.npz"), key=lambda path: [int(number) for number in path.stem.split("-")])


def load_piece(path: Path) -> Piece:
    """Read a piece."""
    with np.load(path) as columns:
        return Piece(**columns)


def load_digests(path: Path) -> NDArray[np.uint8]:
    """Read no more than the digests of a piece's documents."""
    with np.load(path) as columns:
        return np.asarray(columns["digests"])


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in groups large enough for numpy, small enough for flat memory."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += sum(map(len, document))
        if characters >= CHARACTERS_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _save(pieces: list[Piece], path: Path, dtype: np.dtype[np.unsignedinteger]) -> None:
    tokens, lengths, sentences, digests, words, hashes, counts = zip(*map(astuple, pieces), strict=True)
    unique, place = np.unique(np.concatenate(hashes), return_inverse=True)
    content = io.BytesIO()
    np.savez(
        content,
        tokens=np.concatenate(tokens).astype(dtype),
        sentence_lengths=np.concatenate(lengths).astype(np.int32),
        document_sentences=np.concatenate(sentences).astype(np.int32),
        digests=np.concatenate(digests),
        num_words=np.sum(words, axis=0),
        sentence_hashes=unique,
        hash_counts=np.bincount(place, np.concatenate(counts)).astype(np.int32),
    )
    write_durably(path, content.getvalue())


def count_piece(piece: Piece, statistics: CorpusStatistics) -> None:
    """Add a piece to the statistics of its corpus."""
    statistics.add(
        piece.tokens, piece.document_sentences, int(piece.num_words[0]), piece.sentence_hashes, piece.hash_counts
    )
