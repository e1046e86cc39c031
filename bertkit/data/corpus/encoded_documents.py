"""Encoded documents on disk, written by worker processes before the corpus becomes a dataset.

    00003-000.npz    the first documents of portion 3 of the corpus: ids, lengths, and counts for the statistics
    00003.done       portion 3 is complete: 1 file

A file depends only on its documents and the vocabulary, so any number of processes and machines can write them, and an
interrupted command continues with them. In the order of their names they are the corpus.
"""

import hashlib
import io
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields
from itertools import chain, islice
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import PeerError
from bertkit.base.files import write_durably
from bertkit.data.corpus.documents import Corpus, Document
from bertkit.data.corpus.long_texts import FlatIds
from bertkit.data.corpus.prepared import token_dtype
from bertkit.data.corpus.sources import Portion
from bertkit.data.corpus.tokenizer import load_tokenizer
from bertkit.data.corpus.word_cache import WordCache

FOLDER = "pieces"  # of the files; part of the format of a shard
CHARACTERS_AT_ONCE = 1 << 18  # tokenized together
NUM_CACHED_WORDS = 1 << 18  # of each process, about 60 MB
MAX_FILE_CHARACTERS = 1 << 24  # a portion that cannot be cut, such as a compressed file, has several files


@dataclass(frozen=True)
class EncodedDocuments:
    """Some documents of the corpus."""

    tokens: NDArray[np.int32]  # ids of all sentences
    sentence_lengths: NDArray[np.int64]  # tokens of each sentence with tokens, (sentences,)
    document_sentences: NDArray[np.int64]  # such sentences of each document, 0 for an empty one, (documents,)
    digests: NDArray[np.uint8]  # the SHA-256 of each document's text, (documents, 32)
    num_words: NDArray[np.int64]  # words between spaces in documents that are not empty, (1,)
    sentence_hashes: NDArray[np.uint64]  # the distinct hashes of their sentences
    hash_counts: NDArray[np.int64]  # of each hash


def text_sha256(documents: Iterable[Document]) -> str:
    """Hash a text by the digests of its documents."""
    return _sha256(hashlib.sha256(_text(document)).digest() for document in documents)


def text_sha256_of_files(paths: Iterable[Path]) -> str:
    """Hash the text of encoded documents; equal to `text_sha256`."""
    return _sha256(_load_digests(path).tobytes() for path in paths)


def hash_sentence(sentence: bytes) -> bytes:
    """Hash a sentence to 8 bytes, to count repeats."""
    return hashlib.blake2b(sentence, digest_size=8).digest()


def _sha256(digests: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for digest in digests:
        whole.update(digest)
    return whole.hexdigest()


def _text(document: Document) -> bytes:
    return "\n".join(document).encode("utf-8", "surrogatepass")


def encode_documents(documents: list[Document], encode: Callable[[list[str]], FlatIds]) -> EncodedDocuments:
    """Encode documents; each must have a sentence."""
    tokens, lengths = encode(list(chain.from_iterable(documents)))
    has_tokens = lengths > 0
    first = np.cumsum([0, *map(len, documents[:-1])])
    document_sentences = np.add.reduceat(has_tokens, first, dtype=np.int64)
    texts = list(map(_text, documents))
    kept = b"\n".join(text for text, count in zip(texts, document_sentences.tolist(), strict=True) if count)
    sentences = kept.split(b"\n") if kept else []
    hashes, counts = np.unique(np.frombuffer(b"".join(map(hash_sentence, sentences)), "<u8"), return_counts=True)
    return EncodedDocuments(
        tokens,
        lengths[has_tokens],
        document_sentences,
        np.frombuffer(b"".join(hashlib.sha256(text).digest() for text in texts), np.uint8).reshape(-1, 32),
        np.array([kept.count(b" ") + len(sentences)]),
        hashes,
        counts,
    )


def encoded_files(directory: Path) -> list[Path]:
    """The files in the order of the corpus."""
    return sorted(directory.glob("*.npz"), key=lambda path: [int(number) for number in path.stem.split("-")])


def load_documents(path: Path) -> EncodedDocuments:
    """Read a file."""
    with np.load(path) as columns:
        return EncodedDocuments(**columns)


def _load_digests(path: Path) -> NDArray[np.uint8]:
    with np.load(path) as columns:
        return np.asarray(columns["digests"])


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Group documents for numpy, in constant memory."""
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


def _save(batches: list[EncodedDocuments], path: Path, dtype: np.dtype[np.unsignedinteger]) -> None:
    names = [field.name for field in fields(EncodedDocuments)]
    columns = {name: np.concatenate([getattr(batch, name) for batch in batches]) for name in names}
    columns["tokens"] = columns["tokens"].astype(dtype)
    columns["num_words"] = columns["num_words"].sum(keepdims=True)
    columns["sentence_hashes"], place = np.unique(columns["sentence_hashes"], return_inverse=True)
    columns["hash_counts"] = np.bincount(place, columns["hash_counts"])
    for name in ("sentence_lengths", "document_sentences", "hash_counts"):
        columns[name] = columns[name].astype(np.int32)
    content = io.BytesIO()
    np.savez(content, **columns)  # type: ignore[arg-type]  # no column is named allow_pickle
    write_durably(path, content.getvalue())


@dataclass(frozen=True)
class EncodingJob:
    """The settings of all workers."""

    corpus: Corpus
    portions: dict[int, Portion]  # to encode, by number
    tokenizer_dir: Path
    output_dir: Path

    @property
    def num_bytes(self) -> int:
        """The size of the text; 0 where unknown."""
        return sum(map(_num_bytes, self.portions.values()))


def encode_portions(job: EncodingJob, num_workers: int | None) -> Iterator[int]:
    """Encode the remaining portions; the result does not depend on the number of workers.

    By default there is a worker for each core, if each gets at least two portions.

    Yields:
        The number of bytes done, first those of an interrupted command.

    Raises:
        InputError: a file does not fit its format: the first one in the order of the corpus.
        PeerError: a worker was killed.
    """
    todo = [number for number in job.portions if not _done(job.output_dir, number).exists()]
    done = job.num_bytes - sum(_num_bytes(job.portions[number]) for number in todo)
    yield done
    if num_workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        num_workers = min(cores, len(todo) // 2)
    if min(num_workers, len(todo)) > 1:
        for number in _encode_in_processes(job, todo, min(num_workers, len(todo))):
            yield (done := done + _num_bytes(job.portions[number]))
        return
    encoder = _Encoder(job)
    job.corpus.bytes_read = done
    for number in todo:
        for _ in encoder.encode(number):
            yield job.corpus.bytes_read


def _num_bytes(portion: Portion) -> int:
    return sum(span.num_bytes for span in portion)


class _Encoder:
    """Encodes the portions of a job in one process, with a cache of words."""

    def __init__(self, job: EncodingJob) -> None:
        tokenizer = load_tokenizer(job.tokenizer_dir)
        self.job, self.dtype, self.cache = (
            job,
            token_dtype(tokenizer.vocab_size),
            WordCache(tokenizer, NUM_CACHED_WORDS),
        )

    def encode(self, number: int) -> Iterator[None]:
        """Write the files of a portion, after those of an interrupted run; yield after each batch."""
        directory, documents = self.job.output_dir, self.job.corpus.documents(self.job.portions[number])
        num_files = 0
        while (path := directory / f"{number:05d}-{num_files:03d}.npz").exists():
            num_skipped = len(_load_digests(path))
            next(islice(documents, num_skipped, num_skipped), None)
            num_files += 1
        waiting: list[EncodedDocuments] = []
        characters = 0
        for batch in _batches(documents):
            waiting.append(encode_documents(batch, self.cache.encode_flat))
            characters += sum(map(len, chain.from_iterable(batch)))
            if characters >= MAX_FILE_CHARACTERS:
                _save(waiting, directory / f"{number:05d}-{num_files:03d}.npz", self.dtype)
                waiting, characters, num_files = [], 0, num_files + 1
            yield
        if waiting:
            _save(waiting, directory / f"{number:05d}-{num_files:03d}.npz", self.dtype)
            num_files += 1
        write_durably(_done(directory, number), f"{num_files}\n")


def _done(directory: Path, number: int) -> Path:
    """The file that marks a portion as complete."""
    return directory / f"{number:05d}.done"


def _encode_in_processes(job: EncodingJob, numbers: list[int], num_workers: int) -> Iterator[int]:
    """Yield the number of each portion, in order, when it is done."""
    spawn = multiprocessing.get_context("spawn")  # a fork would lose the threads of the tokenizers library
    pool = ProcessPoolExecutor(num_workers, spawn, _start_worker, (job,))
    try:
        futures = {number: pool.submit(_encode_portion, number) for number in numbers}
        for number, future in futures.items():
            future.result()
            yield number
    except BrokenProcessPool:
        raise PeerError(
            "a worker process was killed, perhaps for lack of memory; to continue, repeat the command with fewer than "
            f"num_workers={num_workers}"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_encoder: _Encoder  # of a worker process


def _start_worker(job: EncodingJob) -> None:
    """Set up a worker process, which ends with its parent."""
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each core has a process
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent(sentinel: int = parent.sentinel) -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    _encoder = _Encoder(job)


def _encode_portion(number: int) -> None:
    for _ in _encoder.encode(number):
        pass
