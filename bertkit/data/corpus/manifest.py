"""`manifest.json` of a prepared dataset, or of a shard of one: how it is written, read and checked."""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.base.files import sha256_file, to_json
from bertkit.base.text_files import read_json
from bertkit.base.typed_settings import checked, differences
from bertkit.data.data_config import InstancesConfig, MaskingConfig

FORMAT = "bertkit prepared dataset 1"
SHARD_FORMAT = "bertkit prepared shard 1"  # made with shard=i/n
SPLITS = ("train", "held_out")
MADE_ANEW = "remove {} and run bertkit prepare again"


# the fields of a manifest that are read, by which it is checked


@dataclass(frozen=True)
class _File:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _Split:
    documents: int
    sentences: int
    tokens: int
    shard_tokens: tuple[int, ...]


@dataclass(frozen=True)
class _Text:
    description: str
    text_sha256: str


@dataclass(frozen=True)
class _Statistics:
    unigram_entropy: float


@dataclass(frozen=True)
class _Instances:
    segments: InstancesConfig
    masking: MaskingConfig


@dataclass(frozen=True)
class _Manifest:
    identity: dict[str, Any]
    source_files: tuple[tuple[str | int, ...], ...]
    files: dict[str, _File]


@dataclass(frozen=True)
class _DatasetManifest(_Manifest):
    fingerprint: str
    corpus: _Text
    statistics: _Statistics
    splits: dict[str, _Split]
    instances: _Instances | None = None


def fingerprint(settings: Any) -> str:
    """Hash every setting that shapes a result, and nothing else."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def write_manifest(directory: Path, facts: dict[str, Any], kind: str = FORMAT) -> None:
    """Write `manifest.json` with some facts and the size and SHA-256 of every file."""
    files = {
        path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.relative_to(directory).parts[0].startswith(".")  # temporary files
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
        raise InputError(f"data_dir={directory}: no manifest.json; expected the output of bertkit prepare")
    other = f"{directory / 'manifest.json'}: not of a prepared dataset; run bertkit prepare"
    return _read(directory, FORMAT, other, MADE_ANEW.format(directory))


def read_shard_manifest(directory: Path) -> dict[str, Any]:
    """Read the manifest of a shard, and check the shard's files.

    Raises:
        InputError: the directory holds something else, or a file has changed.
    """
    other = f"merge: {directory} is not a shard; expected the output of bertkit prepare shard=i/n"
    manifest = _read(directory, SHARD_FORMAT, other, "prepare this shard again")
    check_files(directory, manifest)
    if damaged := damaged_files(directory, manifest):
        raise InputError(f"merge: {directory / damaged[0]} changed since it was made; prepare this shard again")
    return manifest


def _read(directory: Path, kind: str, other: str, way_out: str) -> dict[str, Any]:
    """Read a manifest of this format; `other` is the message for another one."""
    path = directory / "manifest.json"
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != kind:
        raise InputError(other)
    if kind == SHARD_FORMAT:
        checked(_Manifest, manifest, path, way_out)
        checked(dict[str, str], {"identity.shard": manifest["identity"].get("shard")}, path, way_out)
    else:
        checked(_DatasetManifest, manifest, path, way_out)
    return manifest


def is_there(output_dir: Path, kind: str, facts: dict[str, Any], text_sha256: Callable[[], str]) -> bool:
    """Whether a directory holds this very dataset, or shard of one; the text decides where only places or times of files differ.

    Raises:
        InputError: it holds something else.
    """
    if not output_dir.exists() or (output_dir.is_dir() and not any(output_dir.iterdir())):
        return False
    expected = "prepared dataset" if kind == FORMAT else "shard of one"
    other = f"output_dir={output_dir} exists and is not a {expected}; choose another one"
    if not (output_dir / "manifest.json").is_file():
        raise InputError(other)
    manifest = _read(output_dir, kind, other, "choose another one")
    changes = differences(manifest["identity"], facts["identity"])
    changed = [f"{key}: {old!r} there, {new!r} here" for key, old, new in changes]
    if not changed and manifest["source_files"] != facts["source_files"]:
        sizes = [sorted(size for _, size, _ in listed["source_files"]) for listed in (manifest, facts)]
        if sizes[0] != sizes[1] or manifest["corpus"]["text_sha256"] != text_sha256():
            changed = ["the text changed"]
    if changed:
        raise InputError(f"output_dir={output_dir} holds another dataset ({'; '.join(changed)}); choose another one")
    check_files(output_dir, manifest)
    return True


def check_files(directory: Path, manifest: dict[str, Any]) -> None:
    """Check that every file of a manifest exists with its size.

    Raises:
        InputError: a file does not, or lies outside of the directory.
    """
    for name, facts in manifest["files"].items():
        path = directory / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(
                f"{directory / 'manifest.json'}: {name!r}, which lies elsewhere; do not trust this dataset"
            )
        if not path.is_file() or path.stat().st_size != facts["bytes"]:
            state = f"{path.stat().st_size} bytes" if path.is_file() else "missing"
            raise InputError(f"{path}: {state}, expected {facts['bytes']} bytes; {MADE_ANEW.format(directory)}")


def damaged_files(directory: Path, manifest: dict[str, Any], parts: Collection[str] | None = None) -> list[str]:
    """List the files whose SHA-256 differs from the manifest's, of all folders or of some."""
    return [
        name
        for name, facts in manifest["files"].items()
        if (parts is None or Path(name).parts[0] in parts) and sha256_file(directory / name) != facts["sha256"]
    ]
