"""The prepared dataset on disk, memory-mapped. Every token is stored once; sentences and documents are offsets.

    manifest.json            counts, hashes, and the fingerprint of the settings that affect the dataset
    tokenizer/               vocab.txt, tokenizer.json, ...
    train/tokens-00000.bin   a shard of token ids; 2 bytes each for up to 65,536 tokens in the vocabulary, else 4
    train/sentences.bin      index of the first token of each sentence, and the number of tokens; 8 bytes each
    train/documents.bin      index of the first sentence of each document, and the number of sentences; 8 bytes each
    held_out/...             the same files for the held-out documents
    instances/...            with segments=google: the fixed instances of all documents (see instances.py)

Numbers are little-endian. All tokens of a document are in one shard.
"""

import bisect
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError, StorageError, say
from bertkit.base.text_files import JsonObject
from bertkit.data.corpus.manifest import PREPARE_AGAIN, SPLITS, check_files, damaged_files, read_manifest
from bertkit.data.corpus.tokenizer import Tokenizer, load_tokenizer

TokenType = np.dtype[np.unsignedinteger]
NumberT = TypeVar("NumberT", bound=np.integer)


class SplitTokens:
    """The tokens of one split, memory-mapped."""

    def __init__(self, directory: Path, dtype: TokenType, shard_tokens: list[int]) -> None:
        # index of the first token of each sentence, and the number of tokens, (sentences + 1,)
        self.sentences = map_numbers(directory / "sentences.bin", np.dtype("<i8"))
        # index of the first sentence of each document, and the number of sentences, (documents + 1,)
        self.documents = map_numbers(directory / "documents.bin", np.dtype("<i8"))
        names = [f"tokens-{number:05d}.bin" for number in range(len(shard_tokens))]
        self._shards = [map_numbers(directory / name, dtype) for name in names]
        self._shard_starts = [0, *np.cumsum(shard_tokens).tolist()]

    @property
    def num_documents(self) -> int:
        """The number of documents in this split."""
        return len(self.documents) - 1

    @property
    def num_tokens(self) -> int:
        """The number of tokens, without special tokens."""
        return int(self._shard_starts[-1])

    def tokens(self, start: int, length: int) -> NDArray[np.unsignedinteger]:
        """Return a range of tokens, (length,), which must be inside one document."""
        shard = bisect.bisect_right(self._shard_starts, start) - 1 if len(self._shards) > 1 else 0
        offset = start - self._shard_starts[shard]
        return self._shards[shard][offset : offset + length]

    def chunks(self, size: int) -> Iterator[NDArray[np.unsignedinteger]]:
        """Yield all tokens, in order, at most `size` at once."""
        for shard in self._shards:
            for first in range(0, len(shard), size):
                yield shard[first : first + size]

    def document_of(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the document of each token, given by its place in the split."""
        return np.searchsorted(self.documents, np.searchsorted(self.sentences, tokens, "right") - 1, "right") - 1


def map_numbers(path: Path, dtype: np.dtype[NumberT]) -> NDArray[NumberT]:
    """Map a file of numbers into memory; `_end` ends the process if another program cuts the file short later."""
    if not _mapped:  # signal.signal's handlers run only after the read that failed, which is repeated forever
        ctypes.CDLL(None).signal(int(signal.SIGBUS), _handler)
    _mapped[path] = size = path.stat().st_size
    return np.asarray(np.memmap(path, dtype, "r", shape=(size // dtype.itemsize,))) if size else np.zeros(0, dtype)


def _end(_: int) -> None:
    cut = [str(path) for path, size in _mapped.items() if path.exists() and path.stat().st_size < size]
    with contextlib.suppress(OSError):
        say(f"error: cut short while in use: {', '.join(cut)}; restore it, and repeat the command", file=sys.stderr)
    os._exit(StorageError.exit_code)


_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_end)
_mapped: dict[Path, int] = {}  # the sizes of mapped files


class SplitWriter:
    """Writes the files of a split in constant memory."""

    def __init__(self, directory: Path, dtype: TokenType, shard_tokens: int) -> None:
        directory.mkdir(parents=True)
        self.directory, self.dtype, self.max_shard_tokens = directory, dtype, shard_tokens
        self.shard_tokens: list[int] = []
        self.num_tokens = self.num_sentences = self.num_documents = 0
        self._sentences = (directory / "sentences.bin").open("wb")
        self._documents = (directory / "documents.bin").open("wb")

    def write(
        self,
        tokens: NDArray[np.integer],
        sentence_lengths: NDArray[np.integer],
        document_sentences: NDArray[np.integer],
    ) -> None:
        """Append documents that are not empty; the arguments are as in `EncodedDocuments`."""
        sentence_starts = np.cumsum(sentence_lengths) - sentence_lengths
        document_starts = np.cumsum(document_sentences) - document_sentences
        first_tokens = sentence_starts[document_starts].tolist()
        written = 0
        for start, end in zip(first_tokens, [*first_tokens[1:], len(tokens)], strict=False):
            if not self.shard_tokens or self.shard_tokens[-1] + end - start > self.max_shard_tokens:
                self._append(tokens[written:start])
                written = start
                self.shard_tokens.append(0)
            self.shard_tokens[-1] += end - start
        self._append(tokens[written:])
        self._sentences.write((sentence_starts + self.num_tokens).astype("<i8").tobytes())
        self._documents.write((document_starts + self.num_sentences).astype("<i8").tobytes())
        self.num_tokens += len(tokens)
        self.num_sentences += len(sentence_lengths)
        self.num_documents += len(document_sentences)

    def _append(self, tokens: NDArray[np.integer]) -> None:
        if len(tokens):
            with (self.directory / f"tokens-{len(self.shard_tokens) - 1:05d}.bin").open("ab") as file:
                file.write(tokens.astype(self.dtype, copy=False).tobytes())

    def close(self) -> JsonObject:
        """Write the last offsets; return the counts for the manifest."""
        for file, end in ((self._sentences, self.num_tokens), (self._documents, self.num_sentences)):
            file.write(np.array([end], "<i8").tobytes())
            file.close()
        return {
            "documents": self.num_documents,
            "sentences": self.num_sentences,
            "tokens": self.num_tokens,
            "shard_tokens": self.shard_tokens,
        }


@dataclass(frozen=True)
class PreparedDataset:
    """An open prepared dataset."""

    directory: Path
    manifest: JsonObject
    tokenizer: Tokenizer
    splits: dict[str, SplitTokens]

    @property
    def fingerprint(self) -> str:
        """The hash of the settings and the text."""
        return str(self.manifest["fingerprint"])


def token_dtype(vocab_size: int) -> TokenType:
    """Return the type of stored token ids: 2 bytes for up to 65,536 tokens in the vocabulary, else 4."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def open_prepared(directory: Path) -> PreparedDataset:
    """Open a prepared dataset; raises InputError if a file has not the size in the manifest."""
    manifest = read_manifest(directory)
    check_files(directory, manifest)
    tokenizer = load_tokenizer(directory / "tokenizer")
    dtype, splits = token_dtype(tokenizer.vocab_size), {}
    for name in SPLITS:
        facts = manifest["splits"].get(name)
        if facts is None or min(facts["shard_tokens"], default=0) < 0 or sum(facts["shard_tokens"]) != facts["tokens"]:
            way_out = PREPARE_AGAIN.format(directory)
            raise InputError(f"{directory / 'manifest.json'}: splits.{name}={facts}: wrong counts of tokens; {way_out}")
        splits[name] = SplitTokens(directory / name, dtype, facts["shard_tokens"])
    return PreparedDataset(directory, manifest, tokenizer, splits)


def check_usable(dataset: PreparedDataset) -> None:
    """Raise InputError unless hashes, offsets and token ids are right and there is a document to train on."""
    check_unchanged(dataset)
    if not dataset.splits["train"].num_documents:
        raise InputError(f"data_dir={dataset.directory}: no documents to train on; prepare more text")
    check_ids(dataset.splits["train"], dataset.tokenizer.vocab_size)


def check_unchanged(dataset: PreparedDataset, splits: Collection[str] | None = None) -> None:
    """Check the hashes and offsets of a dataset, or of some splits; raises InputError if a file is damaged."""
    directory = dataset.directory
    if damaged := damaged_files(directory, dataset.manifest, None if splits is None else (*splits, "tokenizer")):
        way_out = PREPARE_AGAIN.format(directory)
        raise InputError(f"{directory}: {', '.join(damaged)} changed since prepare wrote them; {way_out}")
    for name in SPLITS if splits is None else splits:
        split = dataset.splits[name]
        check_offsets(split.sentences, split.num_tokens, directory / name / "sentences.bin")
        check_offsets(split.documents, len(split.sentences) - 1, directory / name / "documents.bin")


def check_offsets(
    starts: NDArray[np.integer], end: int, path: Path, *, is_strict: bool = True, chunk: int = 1 << 22
) -> None:
    """Raise InputError unless offsets increase (`is_strict=False`: or stay equal) from 0 to `end`, so that loops end."""
    is_sound = len(starts) > 0 and starts[0] == 0 and starts[-1] == end
    for first in range(0, len(starts) - 1, chunk):
        is_sound = is_sound and bool((np.diff(starts[first : first + chunk + 1]) >= is_strict).all())
    if not is_sound:
        way_out = PREPARE_AGAIN.format(path.parents[1])
        raise InputError(f"{path}: damaged (its offsets do not increase from 0 to {end}); {way_out}")


def check_ids(split: SplitTokens, vocab_size: int, chunk: int = 1 << 22) -> None:
    """Raise InputError unless the token ids of a split are in the vocabulary."""
    for number, shard in enumerate(split._shards):
        for first in range(0, len(shard), chunk):
            ids = shard[first : first + chunk]
            if len(ids) and ids.max() >= vocab_size:
                where = first + int(np.argmax(ids >= vocab_size))
                wrong = f"id {shard[where]} at token {where} is outside the vocabulary of {vocab_size}"
                raise InputError(f"tokens-{number:05d}.bin: {wrong}; {PREPARE_AGAIN.format('the dataset')}")
