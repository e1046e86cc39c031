"""`bertkit prepare` as the tests call it, its files, and splits without it."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bertkit.cli import run
from bertkit.data.corpus.prepared import SplitTokens, SplitWriter, token_dtype
from bertkit.data.corpus.tokenizer import SPECIAL_TOKENS


def prepare(corpus: Path, output: Path, *more: str) -> int:
    return run(["prepare", f"corpus.path={corpus}", f"output_dir={output}", "tokenizer.vocab_size=131", *more])


def snapshot(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        path.relative_to(folder).as_posix(): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def hashes(folder: Path) -> dict[str, str]:
    return {name: sha for name, (sha, _) in snapshot(folder).items()}


def write_vocabulary(path: Path) -> Path:
    letters = "abcdefghijklmnopqrstuvwxyz.0123456789"
    path.write_text("\n".join([*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)]) + "\n")
    return path


def write_split(
    folder: Path, documents: Iterable[list[list[int]]], shard_tokens: int = 997, size: int = 1000
) -> SplitTokens:
    """Write documents, the ids of their sentences, as a split for a vocabulary of this size."""
    writer = SplitWriter(folder, token_dtype(size), shard_tokens)
    for document in documents:
        tokens = np.array([token for sentence in document for token in sentence])
        writer.write(tokens, np.array([*map(len, document)]), np.array([len(document)]))
    return SplitTokens(folder, token_dtype(size), writer.close()["shard_tokens"])
