"""`manifest.json` of a prepared dataset, or of a shard of one: what it says, how it is written, and how it is believed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertkit.base.errors import InputError
from bertkit.base.files import sha256_file, to_json
from bertkit.base.text_files import read_json
from bertkit.base.typed_settings import checked, differences
from bertkit.data.data_config import InstancesConfig, MaskingConfig

FORMAT = "bertkit prepared dataset 1"
SHARD_FORMAT = "bertkit prepared shard 1"  # of what shard=i/n makes
SPLITS = ("train", "held_out")
MADE_ANEW = "remove {} and run bertkit prepare again"


@dataclass(frozen=True)
class _FileFacts:
    """What a manifest says of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class _SplitFacts:
    documents: int
    sentences: int
    tokens: int
    shard_tokens: tuple[int, ...]


@dataclass(frozen=True)
class _TextFacts:
    description: str
    text_sha256: str


@dataclass(frozen=True)
class _Statistics:
    unigram_entropy: float


@dataclass(frozen=True)
class _Shard:
    shard: str


@dataclass(frozen=True)
class ShardManifest:
    """What `manifest.json` says of a shard, of all that is read from it."""

    identity: _Shard
    source_files: tuple[tuple[str | int, ...], ...]
    files: dict[str, _FileFacts]


@dataclass(frozen=True)
class _Fixed:
    segments: InstancesConfig
    masking: MaskingConfig


@dataclass(frozen=True)
class _Manifest:
    """What `manifest.json` says of a dataset, of all that is read from it."""

    fingerprint: str
    identity: dict[str, Any]
    source_files: tuple[tuple[str | int, ...], ...]
    corpus: _TextFacts
    statistics: _Statistics
    splits: dict[Literal["train", "held_out"], _SplitFacts]
    files: dict[str, _FileFacts]
    instances: _Fixed | None = None


def fingerprint(settings: Any) -> str:
    """Hash every setting that shapes a result, and nothing else."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


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
    checked(_Manifest, manifest, directory / "manifest.json", MADE_ANEW.format(directory))
    return manifest


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
    checked(
        _Manifest if kind == FORMAT else ShardManifest, manifest, output_dir / "manifest.json", "choose another one"
    )
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
        InputError: naming the first that is not, or that lies elsewhere.
    """
    for name, facts in manifest["files"].items():
        path = directory / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(
                f"{directory / 'manifest.json'}: names {name!r}, which lies elsewhere; do not trust this directory"
            )
        if not path.is_file() or path.stat().st_size != facts["bytes"]:
            state = f"{path.stat().st_size} bytes" if path.is_file() else "missing"
            raise InputError(
                f"{path}: {state}, expected {facts['bytes']} bytes; remove {directory} and run bertkit prepare again"
            )


def damaged_files(directory: Path, manifest: dict[str, Any], parts: Collection[str] | None = None) -> list[str]:
    """List the files whose SHA-256 differs from the manifest's: all, or those of some folders."""
    return [
        name
        for name, facts in manifest["files"].items()
        if (parts is None or Path(name).parts[0] in parts) and sha256_file(directory / name) != facts["sha256"]
    ]
