"""Encode the parts of a corpus, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from bertkit.data.corpus import Corpus, Document, Part
from bertkit.data.pieces import is_done, write_pieces
from bertkit.data.prepared import token_dtype
from bertkit.data.tokenizer import load_tokenizer
from bertkit.data.word_cache import WordCache
from bertkit.errors import PeerError
from bertkit.progress import Progress


@dataclass(frozen=True)
class EncodingJob:
    """What every worker needs to know.

    Attributes:
        corpus: the text.
        tokenizer_dir: the tokenizer.
        pieces_dir: where the pieces go.
        num_cached_words: see WordCache; 0 to do without.
    """

    corpus: Corpus
    tokenizer_dir: Path
    pieces_dir: Path
    num_cached_words: int


class Encoder:
    """Turns parts of the corpus into pieces on the disk; one for each process, to keep its word cache."""

    def __init__(self, job: EncodingJob) -> None:
        self.job = job
        tokenizer = load_tokenizer(job.tokenizer_dir)
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.encode = (
            WordCache(tokenizer, job.num_cached_words).encode_flat if job.num_cached_words else tokenizer.encode_flat
        )

    def write(self, number: int, documents: Iterator[Document]) -> None:
        """Encode a part, given by its number and its documents."""
        write_pieces(documents, self.encode, self.job.pieces_dir, number, self.dtype)


def encode_parts(job: EncodingJob, parts: dict[int, Part], num_workers: int | None) -> None:
    """Encode the parts that are not done yet; the result does not depend on the number of workers.

    Args:
        job: what to encode.
        parts: the parts by their numbers.
        num_workers: processes; None for one a core, where each gets two parts or more.

    Raises:
        InputError: a file is not what its format says; of several, the first in the order of the corpus.
        PeerError: a worker was killed.
    """
    todo = {number: part for number, part in parts.items() if not is_done(job.pieces_dir, number)}
    sizes = {number: sum(span.num_bytes for span in part) for number, part in parts.items()}
    done = sum(size for number, size in sizes.items() if number not in todo)
    if num_workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        num_workers = min(cores, len(todo) // 2)
    with Progress("encoding", sum(sizes.values()) or None, done=done) as progress:
        if min(num_workers, len(todo)) <= 1:
            encoder = Encoder(job)
            job.corpus.bytes_read = done
            for number, part in todo.items():
                encoder.write(number, _watched(job.corpus, part, progress))
        else:
            for number in _encode_in_processes(job, todo, min(num_workers, len(todo))):
                progress.advance(progress.done + sizes[number])


def _watched(corpus: Corpus, part: Part, progress: Progress) -> Iterator[Document]:
    for document in corpus.documents(part):
        progress.advance(corpus.bytes_read)
        yield document


def _encode_in_processes(job: EncodingJob, parts: dict[int, Part], num_workers: int) -> Iterator[int]:
    """Give the number of each part, in their order, as soon as it is done."""
    spawn = multiprocessing.get_context("spawn")  # the tokenizers library has threads, which a fork would lose
    pool = ProcessPoolExecutor(num_workers, spawn, _start_worker, (job,))
    try:
        futures = {number: pool.submit(_encode_part, number, part) for number, part in parts.items()}
        for number, future in futures.items():
            future.result()
            yield number
    except BrokenProcessPool:
        raise PeerError(
            "a worker process was killed, perhaps for want of memory; run the same command again to go on, "
            f"with fewer than num_workers={num_workers}"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(job: EncodingJob) -> None:
    """Set up a worker process, which ends with its parent, however that ends."""
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops the workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for every core
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encoder = Encoder(job)


_encoder: Encoder  # of a worker process


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _encode_part(number: int, part: Part) -> None:
    _encoder.write(number, _encoder.job.corpus.documents(part))
