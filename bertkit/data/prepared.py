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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit import signs
from bertkit.config import differences
from bertkit.data.tokenizer import Tokenizer, load_tokenizer
from bertkit.errors import InputError
from bertkit.files import read_json, sha256_file, to_json

FORMAT = "bertkit prepared dataset 1"
SHARD_FORMAT = "bertkit prepared shard 1"  # of what shard=i/n makes
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

    def write(self, document: list[list[int]]) -> None:
        """Append a document, the ids of its sentences; none of them may be empty."""
        lengths = np.array([len(sentence) for sentence in document])
        tokens = np.fromiter((token for sentence in document for token in sentence), self.dtype, lengths.sum())
        self.write_documents(tokens, lengths, np.array([len(document)]))

    def write_documents(
        self, tokens: NDArray[Any], sentence_lengths: NDArray[Any], document_sentences: NDArray[Any]
    ) -> None:
        """Append documents, given by the ids of all of them, the tokens of each sentence and the sentences of each document.

        No sentence and no document may be empty.
        """
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

    def _append(self, tokens: NDArray[Any]) -> None:
        if len(tokens):
            with (self.directory / f"tokens-{len(self.shard_tokens) - 1:05d}.bin").open("ab") as file:
                file.write(tokens.astype(self.dtype, copy=False).tobytes())

    def close(self) -> dict[str, Any]:
        """Write the last offsets; give the counts for the manifest."""
        self._sentences.write(np.array([self.num_tokens], "<i8").tobytes())
        self._documents.write(np.array([self.num_sentences], "<i8").tobytes())
        self._sentences.close()
        self._documents.close()
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


def is_there(output_dir: Path, kind: str, facts: dict[str, Any], text_sha256: Callable[[], str]) -> bool:
    """Whether a directory holds this very dataset, or shard of one; where only places or times of files changed, the text decides.

    Raises:
        InputError: it holds something else.
    """
    if not output_dir.exists() or (output_dir.is_dir() and not any(output_dir.iterdir())):
        return False
    manifest = read_json(output_dir / "manifest.json") if (output_dir / "manifest.json").is_file() else None
    if not isinstance(manifest, dict) or manifest.get("format") != kind:
        wanted = "prepared dataset" if kind == FORMAT else "shard of one"
        raise InputError(f"output_dir={output_dir} exists and is not a {wanted}; choose another one")
    unlike = differences(manifest["identity"], facts["identity"])
    changed = [f"{key}: {old!r} there, {new!r} here" for key, old, new in unlike]
    if not changed and manifest["source_files"] != facts["source_files"]:
        sizes = [sorted(size for _, size, _ in listed["source_files"]) for listed in (manifest, facts)]
        if sizes[0] != sizes[1] or manifest["corpus"]["text_sha256"] != text_sha256():
            changed = ["the text changed"]
    if changed:
        raise InputError(
            f"output_dir={output_dir} holds another dataset ({'; '.join(changed)}); choose another one or remove it"
        )
    check_files(output_dir, manifest)
    return True


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


def check_usable(dataset: PreparedDataset) -> None:
    """Refuse a dataset that has nothing to train on, or is not as `prepare` left it.

    Raises:
        InputError: naming the damaged files, or the first id outside the vocabulary.
    """
    damaged = damaged_files(dataset.directory, dataset.manifest)
    if damaged:
        raise InputError(
            f"{dataset.directory}: {', '.join(damaged)} changed since prepare wrote them; remove "
            "it and run bertkit prepare again"
        )
    if not dataset.splits["train"].num_documents:
        raise InputError(f"data_dir={dataset.directory}: no documents to train on; prepare more text")
    check_ids(dataset.splits["train"], dataset.tokenizer.vocab_size)


def check_ids(split: Split, vocab_size: int, chunk: int = 1 << 22) -> None:
    """Refuse a split that holds ids outside the vocabulary.

    Raises:
        InputError: naming the first such id.
    """
    for number, shard in enumerate(split._shards):
        for first in signs.beating(range(0, len(shard), chunk)):
            ids = shard[first : first + chunk]
            if len(ids) and ids.max() >= vocab_size:
                where = first + int(np.argmax(ids >= vocab_size))
                raise InputError(
                    f"tokens-{number:05d}.bin: id {shard[where]} at token {where} is outside the vocabulary of "
                    f"{vocab_size}; remove the dataset and run bertkit prepare again"
                )
