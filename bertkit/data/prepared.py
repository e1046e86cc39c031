"""The prepared dataset on disk: tokens once, documents and sentences as offsets, memory-mapped.

    manifest.json            counts, hashes, and the fingerprint of every setting that matters
    tokenizer/               vocab.txt, tokenizer.json, ...
    train/tokens-00000.bin   token ids, 2 bytes each where the vocabulary allows, else 4
    train/sentences.bin      the token at which each sentence starts, and the end; 8 bytes each
    train/documents.bin      the sentence at which each document starts, and the end; 8 bytes each
    held_out/...             the same for the documents that training never sees
    instances/...            with segments=google: the fixed instances of all documents (see instances.py)

Numbers are little-endian. A document never crosses two shards.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bertkit import signs
from bertkit.data.tokenizer import Tokenizer, load_tokenizer
from bertkit.errors import InputError
from bertkit.files import read_json, sha256_file, to_json

FORMAT = "bertkit prepared dataset 1"
SPLITS = ("train", "held_out")


def fingerprint(settings: Any) -> str:
    """Hash every setting that shapes a result, and nothing else."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


class Split:
    """The tokens of one split, memory-mapped.

    Attributes:
        sentences: the token at which each sentence starts, one more at the end, (sentences + 1,).
        documents: the sentence at which each document starts, one more at the end, (documents + 1,).
    """

    def __init__(self, directory: Path, dtype: np.dtype[Any], shard_tokens: list[int]) -> None:
        self.sentences = _map(directory / "sentences.bin", np.dtype("<i8"))
        self.documents = _map(directory / "documents.bin", np.dtype("<i8"))
        self._shards = [_map(directory / f"tokens-{number:05d}.bin", dtype) for number in range(len(shard_tokens))]
        self._shard_starts = [0, *np.cumsum(shard_tokens).tolist()]

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return len(self.documents) - 1

    @property
    def num_tokens(self) -> int:
        """The number of tokens, without special tokens."""
        return int(self._shard_starts[-1])

    def tokens(self, start: int, length: int) -> NDArray[Any]:
        """Give a run of tokens of one document, (length,)."""
        shard = bisect.bisect_right(self._shard_starts, start) - 1 if len(self._shards) > 1 else 0
        offset = start - self._shard_starts[shard]
        return self._shards[shard][offset : offset + length]


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))


class SplitWriter:
    """Writes one split, document by document, in memory that does not grow with the corpus."""

    def __init__(self, directory: Path, dtype: np.dtype[Any], shard_tokens: int) -> None:
        directory.mkdir(parents=True)
        self.directory, self.dtype, self.max_shard_tokens = directory, dtype, shard_tokens
        self.shard_tokens: list[int] = []
        self.num_tokens = self.num_sentences = self.num_documents = 0
        self._sentences = (directory / "sentences.bin").open("wb")
        self._documents = (directory / "documents.bin").open("wb")
        self._tokens: BinaryIO | None = None

    def write(self, document: list[list[int]]) -> None:
        """Append a document, the ids of its sentences; none of them may be empty."""
        lengths = np.array([len(sentence) for sentence in document])
        tokens = np.fromiter((token for sentence in document for token in sentence), self.dtype, lengths.sum())
        self.write_documents(tokens, lengths, np.array([len(document)]))

    def write_documents(
        self, tokens: NDArray[Any], sentence_lengths: NDArray[Any], document_sentences: NDArray[Any]
    ) -> None:
        """Append documents; no sentence and no document may be empty.

        Args:
            tokens: the ids of all of them.
            sentence_lengths: the tokens of each sentence.
            document_sentences: the sentences of each document.
        """
        sentence_starts = np.cumsum(sentence_lengths) - sentence_lengths
        document_starts = np.cumsum(document_sentences) - document_sentences
        first_tokens = sentence_starts[document_starts]
        written = 0
        for start, length in zip(
            first_tokens.tolist(), np.diff(first_tokens, append=len(tokens)).tolist(), strict=True
        ):
            if self._tokens is None or (
                self.shard_tokens[-1] and self.shard_tokens[-1] + length > self.max_shard_tokens
            ):
                self._write_tokens(tokens[written:start])
                written = start
                self._next_shard()
            self.shard_tokens[-1] += length
        self._write_tokens(tokens[written:])
        self._sentences.write((sentence_starts + self.num_tokens).astype("<i8").tobytes())
        self._documents.write((document_starts + self.num_sentences).astype("<i8").tobytes())
        self.num_tokens += len(tokens)
        self.num_sentences += len(sentence_lengths)
        self.num_documents += len(document_sentences)

    def _write_tokens(self, tokens: NDArray[Any]) -> None:
        if self._tokens is not None:
            self._tokens.write(tokens.astype(self.dtype, copy=False).tobytes())

    def close(self) -> dict[str, Any]:
        """Write the last offsets; give the counts for the manifest."""
        self._sentences.write(np.array([self.num_tokens], "<i8").tobytes())
        self._documents.write(np.array([self.num_sentences], "<i8").tobytes())
        for file in (self._sentences, self._documents, self._tokens):
            if file is not None:
                file.close()
        return {
            "documents": self.num_documents,
            "sentences": self.num_sentences,
            "tokens": self.num_tokens,
            "shard_tokens": self.shard_tokens,
        }

    def _next_shard(self) -> None:
        if self._tokens is not None:
            self._tokens.close()
        self._tokens = (self.directory / f"tokens-{len(self.shard_tokens):05d}.bin").open("wb")
        self.shard_tokens.append(0)


@dataclass(frozen=True)
class PreparedDataset:
    """An open prepared dataset."""

    directory: Path
    manifest: dict[str, Any]
    tokenizer: Tokenizer
    splits: dict[str, Split]

    @property
    def fingerprint(self) -> str:
        """The hash of the settings and text that made it."""
        return str(self.manifest["fingerprint"])


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Two bytes a token where the vocabulary allows, else four."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def write_manifest(directory: Path, facts: dict[str, Any], kind: str = FORMAT) -> None:
    """Write `manifest.json` with the given facts and the size and SHA-256 of every file."""
    files = {
        path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.relative_to(directory).parts[0].startswith(".")  # the build's own
    }
    manifest = {"format": kind, **facts, "files": files}
    (directory / "manifest.json").write_text(to_json(manifest), encoding="utf-8")


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read and check the manifest of a prepared dataset.

    Raises:
        InputError: the directory is missing or holds something else.
    """
    if not directory.is_dir():
        raise InputError(f"data_dir={directory}: no such directory; make it with bertkit prepare")
    if not (directory / "manifest.json").is_file():
        raise InputError(f"data_dir={directory}: no manifest.json; expected what bertkit prepare makes")
    manifest = read_json(directory / "manifest.json")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{directory / 'manifest.json'}: not of a prepared dataset; run bertkit prepare")
    return manifest


def open_prepared(directory: Path) -> PreparedDataset:
    """Open a prepared dataset, checking that every file is there with its size.

    Raises:
        InputError: a file is missing or of another size than the manifest says.
    """
    manifest = read_manifest(directory)
    check_files(directory, manifest)
    tokenizer = load_tokenizer(directory / "tokenizer")
    dtype = token_dtype(tokenizer.vocab_size)
    splits = {name: Split(directory / name, dtype, manifest["splits"][name]["shard_tokens"]) for name in SPLITS}
    return PreparedDataset(directory, manifest, tokenizer, splits)


def check_files(directory: Path, manifest: dict[str, Any]) -> None:
    """Check that every file is there with its size.

    Raises:
        InputError: naming the first that is not.
    """
    for name, facts in manifest["files"].items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != facts["bytes"]:
            state = f"{path.stat().st_size} bytes" if path.is_file() else "missing"
            raise InputError(
                f"{path}: {state}, expected {facts['bytes']} bytes; remove {directory} and run bertkit prepare again"
            )


def damaged_files(directory: Path, manifest: dict[str, Any]) -> list[str]:
    """List the files whose SHA-256 differs from the manifest's."""
    return [name for name, facts in manifest["files"].items() if sha256_file(directory / name) != facts["sha256"]]


def check_ids(split: Split, vocab_size: int, chunk: int = 1 << 22) -> None:
    """Refuse a split that holds ids outside the vocabulary.

    Raises:
        InputError: naming the first such id.
    """
    for number, shard in enumerate(split._shards):
        for first in signs.beating(range(0, len(shard), chunk)):
            part = shard[first : first + chunk]
            if len(part) and part.max() >= vocab_size:
                where = first + int(np.argmax(part >= vocab_size))
                raise InputError(
                    f"tokens-{number:05d}.bin: id {shard[where]} at token {where} is outside the vocabulary of "
                    f"{vocab_size}; remove the dataset and run bertkit prepare again"
                )


def _held_out_or_instances(manifest: dict[str, Any]) -> str:
    if "instances" in manifest:
        made = manifest["instances"]
        return (
            f"{made['count']:,} fixed instances of at most {made['segments']['max_seq_length']} tokens, of all documents: none "
            "is held out for evaluation, as in the original"
        )
    held_out = manifest["splits"]["held_out"]
    return f"{held_out['documents']:,} documents, {held_out['tokens']:,} tokens held out for evaluation"


def describe(manifest: dict[str, Any], examples: Iterable[str]) -> str:
    """Say in words what a prepared dataset holds."""
    train = manifest["splits"]["train"]
    facts = manifest["statistics"]
    lines = [
        f"{train['documents']:,} documents, {train['sentences']:,} sentences, {train['tokens']:,} tokens to train on",
        _held_out_or_instances(manifest),
        f"vocabulary of {facts['vocab_size']:,}, {100 * facts['unknown_rate']:.2f} % unknown, "
        f"{facts['tokens_per_sentence']:.1f} tokens a sentence",
        f"unigram entropy {facts['unigram_entropy']:.2f} nats: the MLM loss of a model that only counts words",
    ]
    for example in examples:
        lines += ["", example]
    return "\n".join(lines)
