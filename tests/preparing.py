"""`bertkit prepare` as the tests call it, and what it wrote."""

import hashlib
from pathlib import Path

from bertkit.cli import run
from bertkit.data.corpus.tokenizer import SPECIAL_TOKENS


def prepare(corpus: Path, output: Path, *more: str) -> int:
    return run(["prepare", f"corpus.path={corpus}", f"output_dir={output}", "tokenizer.vocab_size=131", *more])


def snapshot(folder: Path) -> dict[str, tuple[str, int]]:
    """The hash and the time of every file."""
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
