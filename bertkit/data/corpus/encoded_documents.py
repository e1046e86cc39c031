"""Documents as token ids on disk, written by worker processes; dataset_writer.py then makes a dataset of them.

    00003-000.npz    the first documents of portion 3 of the corpus: ids, lengths, and counts for the statistics
    00003.done       marks portion 3 as complete; contains the number of its files

The content of a file depends only on its documents and the vocabulary, not on the number of processes and machines. An
interrupted command keeps the files that it has written. Sorted by name, the files contain the documents in corpus order.
"""

import hashlib
import io
import multiprocessing
import os
import signal
import sys
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

from bertkit.base.errors import PeerError, say
from bertkit.base.files import write_durably
from bertkit.base.processors import num_processors
from bertkit.data.corpus.long_texts import FlatIds
from bertkit.data.corpus.min_hash import minima_of
from bertkit.data.corpus.prepared import token_dtype
from bertkit.data.corpus.tokenizer import load_tokenizer
from bertkit.data.corpus.word_cache import WordCache
from bertkit.data.texts.documents import REPLACEMENT, Corpus
from bertkit.data.texts.records import Document
from bertkit.data.texts.sources import Portion

FOLDER = "pieces"  # the folder of these files, of portions of the corpus, in a shard
CHARACTERS_AT_ONCE = 1 << 18  # characters tokenized together
NUM_CACHED_WORDS = 1 << 18  # in each process, up to 16 MB
MAX_FILE_CHARACTERS = 1 << 24  # a larger portion, such as a compressed file, is written to several files


@dataclass(frozen=True)
class EncodedDocuments:
    """Some documents of the corpus. Sentences without tokens are left out; a document without tokens has 0 sentences."""

    tokens: NDArray[np.int32]  # token ids of all sentences
    sentence_lengths: NDArray[np.int64]  # number of tokens in each sentence, (sentences,)
    document_sentences: NDArray[np.int64]  # number of sentences in each document, (documents,)
    digests: NDArray[np.uint8]  # SHA-256 of each document's text, (documents, 32)
    num_words: NDArray[
        np.int64
    ]  # number of words, separated by spaces, in each document, 0 without tokens, (documents,)
    sentence_hashes: NDArray[np.uint64]  # a hash of each sentence, (sentences,)
    minima: NDArray[
        np.uint32
    ]  # see `min_hash.minima_of`, (documents, numbers), or (documents, 0) if they are not needed
    has_lost: NDArray[np.bool_]  # whether a document has U+FFFD, in place of a lost character, (documents,)

    def take(self, is_chosen: NDArray[np.bool_]) -> "EncodedDocuments":
        """Return some of the documents."""
        of_sentences = np.repeat(is_chosen, self.document_sentences)
        of_tokens = np.repeat(of_sentences, self.sentence_lengths)
        by_sentence = (self.sentence_lengths[of_sentences], self.sentence_hashes[of_sentences])
        return EncodedDocuments(
            self.tokens[of_tokens],
            by_sentence[0],
            self.document_sentences[is_chosen],
            self.digests[is_chosen],
            self.num_words[is_chosen],
            by_sentence[1],
            self.minima[is_chosen],
            self.has_lost[is_chosen],
        )


def text_sha256(documents: Iterable[Document]) -> str:
    """Return the SHA-256 of the SHA-256 of all documents."""
    return _sha256(hashlib.sha256(_text(document)).digest() for document in documents)


def text_sha256_of_files(paths: Iterable[Path]) -> str:
    """Return `text_sha256` of the documents in these files."""
    return _sha256(load_columns(path, "digests")[0].tobytes() for path in paths)


def hash_sentence(sentence: bytes) -> bytes:
    """Return a hash of 8 bytes, to count repeated sentences."""
    return hashlib.blake2b(sentence, digest_size=8).digest()


def _sha256(digests: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for digest in digests:
        whole.update(digest)
    return whole.hexdigest()


def _text(document: Document) -> bytes:
    return "\n".join(document).encode("utf-8", "surrogatepass")


def encode_documents(
    documents: list[Document], encode: Callable[[list[str]], FlatIds], for_near: bool = False
) -> EncodedDocuments:
    """Encode documents with at least one sentence each; `for_near` also computes what finds near-duplicates."""
    tokens, lengths = encode(list(chain.from_iterable(documents)))
    has_tokens = lengths > 0
    first = np.cumsum([0, *map(len, documents[:-1])])
    document_sentences = np.add.reduceat(has_tokens, first, dtype=np.int64)
    texts = list(map(_text, documents))
    hashes = np.frombuffer(b"".join(map(hash_sentence, b"\n".join(texts).split(b"\n"))), "<u8")
    num_words = [text.count(b" ") + text.count(b"\n") + 1 for text in texts]
    return EncodedDocuments(
        tokens,
        lengths[has_tokens],
        document_sentences,
        np.frombuffer(b"".join(hashlib.sha256(text).digest() for text in texts), np.uint8).reshape(-1, 32),
        np.where(document_sentences > 0, num_words, 0),
        hashes[has_tokens],
        minima_of(tokens, np.add.reduceat(lengths, first)) if for_near else np.zeros((len(texts), 0), np.uint32),
        np.array([REPLACEMENT.encode() in text for text in texts]),
    )


def encoded_files(directory: Path) -> list[Path]:
    """Return the files in corpus order."""
    return sorted(directory.glob("*.npz"), key=lambda path: [int(number) for number in path.stem.split("-")])


def load_documents(path: Path) -> EncodedDocuments:
    """Read a file of encoded documents."""
    with np.load(path) as columns:
        return EncodedDocuments(**columns)


def load_columns(path: Path, *names: str) -> list[NDArray[np.generic]]:
    """Read some columns of a file of encoded documents, by their names."""
    with np.load(path) as columns:
        return [columns[name] for name in names]


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Group documents into batches of about `CHARACTERS_AT_ONCE`."""
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
    for name in ("sentence_lengths", "document_sentences"):
        columns[name] = columns[name].astype(np.int32)
    content = io.BytesIO()
    np.savez(content, **columns)  # type: ignore[arg-type]  # no column is named allow_pickle
    write_durably(path, content.getvalue())


@dataclass(frozen=True)
class EncodingJob:
    """The job of all worker processes."""

    corpus: Corpus
    portions: dict[int, Portion]  # by number
    tokenizer_dir: Path
    output_dir: Path

    @property
    def num_bytes(self) -> int:
        """The size of the text; 0 if unknown."""
        return sum(map(_num_bytes, self.portions.values()))


def encode_portions(job: EncodingJob, num_workers: int | None) -> Iterator[int]:
    """Encode the portions that have no `.done` file; the result does not depend on the number of workers.

    By default there is one worker per core, but at least two portions per worker. Yields the number of bytes done, with those
    that an interrupted command has done. Raises InputError for the first file that is not in its format, PeerError if a worker
    was killed.
    """
    todo = [number for number in job.portions if not _done(job.output_dir, number).exists()]
    done = job.num_bytes - sum(_num_bytes(job.portions[number]) for number in todo)
    yield done
    if num_workers is None:
        num_workers = min(num_processors(), len(todo) // 2)
    if min(num_workers, len(todo)) > 1 and (pool := _open_pool(job, min(num_workers, len(todo)))):
        for number in _encode_in_processes(pool, todo):
            yield (done := done + _num_bytes(job.portions[number]))
        return
    encoder = _Encoder(job)
    job.corpus.bytes_read = done
    for number in todo:
        for _ in encoder.encode(number):
            yield job.corpus.bytes_read


def _num_bytes(portion: Portion) -> int:
    return sum(stretch.num_bytes for stretch in portion)


class _Encoder:
    """Encodes the portions of a job in one process, with a cache of words."""

    def __init__(self, job: EncodingJob) -> None:
        tokenizer = load_tokenizer(job.tokenizer_dir)
        self.job, self.dtype = job, token_dtype(tokenizer.vocab_size)
        self.for_near = job.corpus.config.deduplicate == "near"
        self.encode_flat = WordCache(tokenizer, NUM_CACHED_WORDS).encode_flat
        if not tokenizer.words_by.is_of_bert:
            self.encode_flat = tokenizer.encode_flat

    def encode(self, number: int) -> Iterator[None]:
        """Write the files of a portion that an interrupted command has not written; yield after each batch."""
        directory, documents = self.job.output_dir, self.job.corpus.documents(self.job.portions[number])
        num_files = 0
        while (path := directory / f"{number:05d}-{num_files:03d}.npz").exists():
            num_skipped = len(load_columns(path, "digests")[0])
            next(islice(documents, num_skipped, num_skipped), None)
            num_files += 1
        waiting: list[EncodedDocuments] = []
        characters = 0
        for batch in _batches(documents):
            waiting.append(encode_documents(batch, self.encode_flat, self.for_near))
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
    """Return the file that marks a portion as complete."""
    return directory / f"{number:05d}.done"


def _open_pool(job: EncodingJob, num_workers: int) -> ProcessPoolExecutor | None:
    """Open a pool of worker processes; None where the system has no semaphores for them."""
    spawn = multiprocessing.get_context("spawn")  # a fork would lose the threads of the tokenizers library
    try:
        return ProcessPoolExecutor(num_workers, spawn, _start_worker, (job,))
    except OSError as error:  # such as a container without a writable /dev/shm
        say(f"warning: no worker processes here ({error.strerror}); one process tokenizes the text", file=sys.stderr)
        return None


def _encode_in_processes(pool: ProcessPoolExecutor, numbers: list[int]) -> Iterator[int]:
    """Encode portions in worker processes; yield the number of each portion, in order, when it is done."""
    try:
        futures = {number: pool.submit(_encode_portion, number) for number in numbers}
        for number, future in futures.items():
            future.result()
            yield number
    except BrokenProcessPool:
        raise PeerError(
            "a worker process was killed, perhaps for lack of memory; to continue, repeat the command with a lower num_workers="
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_encoder: _Encoder  # set in each worker process


def _start_worker(job: EncodingJob) -> None:
    """Set up a worker process, which exits when its parent exits."""
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is one process per core
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
