"""Writing, reading and checking `manifest.json`, of a prepared dataset or of one of its shards."""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.files import sha256_file, to_json
from bertkit.base.text_files import JsonObject, read_json
from bertkit.base.typed_settings import checked, differences
from bertkit.data.data_config import InstancesConfig, StoredMasking

FORMAT = "bertkit prepared dataset 1"
SHARD_FORMAT = "bertkit prepared shard 3"  # made with shard=i/n
SPLITS = ("train", "held_out")
PREPARE_AGAIN = "remove {} and run bertkit prepare again"


# the fields of a manifest that bertkit reads, with the types to check


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
    masking: StoredMasking


@dataclass(frozen=True)
class _Manifest:
    identity: JsonObject
    source_files: tuple[tuple[str | int, ...], ...]
    files: dict[str, _File]


@dataclass(frozen=True)
class _DatasetManifest(_Manifest):
    fingerprint: str
    corpus: _Text
    statistics: _Statistics
    splits: dict[str, _Split]
    instances: _Instances | None = None


def fingerprint(settings: object) -> str:
    """Return the SHA-256 of settings; pass those that affect a result, and no others."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def write_manifest(directory: Path, facts: JsonObject, kind: str = FORMAT) -> None:
    """Write `manifest.json`: the fields in `facts`, and the size and SHA-256 of every file."""
    files = {
        path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.relative_to(directory).parts[0].startswith(".")  # temporary files
    }
    manifest = {"format": kind, **facts, "files": files}
    (directory / "manifest.json").write_text(to_json(manifest), encoding="utf-8")


def read_manifest(directory: Path) -> JsonObject:
    """Read and check the manifest of a prepared dataset."""
    if not directory.is_dir():
        raise InputError(f"data_dir={directory}: no such directory; make it with bertkit prepare")
    if not (directory / "manifest.json").is_file():
        raise InputError(f"data_dir={directory}: no manifest.json; expected the output of bertkit prepare")
    wrong_format = f"{directory / 'manifest.json'}: not the manifest of a prepared dataset; run bertkit prepare"
    return _read(directory, FORMAT, wrong_format, PREPARE_AGAIN.format(directory))


def read_shard_manifest(directory: Path) -> JsonObject:
    """Read the manifest of a shard, and check the shard's files."""
    wrong_format = f"merge: {directory} is not a shard; expected the output of bertkit prepare shard=i/n"
    manifest = _read(directory, SHARD_FORMAT, wrong_format, "prepare this shard again")
    check_files(directory, manifest)
    if damaged := damaged_files(directory, manifest):
        raise InputError(f"merge: {directory / damaged[0]} changed since it was made; prepare this shard again")
    return manifest


def _read(directory: Path, kind: str, wrong_format: str, way_out: str) -> JsonObject:
    """Read a manifest of the format `kind`; `wrong_format` is the error message for another format."""
    path = directory / "manifest.json"
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != kind:
        raise InputError(wrong_format)
    if kind == SHARD_FORMAT:
        checked(_Manifest, manifest, path, way_out)
        checked(dict[str, str], {"identity.shard": manifest["identity"].get("shard")}, path, way_out)
    else:
        checked(_DatasetManifest, manifest, path, way_out)
    return manifest


def is_done(output_dir: Path, kind: str, facts: JsonObject, text_sha256: Callable[[], str]) -> bool:
    """Whether a directory holds this dataset or shard, made from these files or the same text; InputError for another."""
    if not output_dir.exists() or (output_dir.is_dir() and not any(output_dir.iterdir())):
        return False
    expected = "prepared dataset" if kind == FORMAT else "shard of a dataset"
    wrong_format = f"output_dir={output_dir} exists and is not a {expected}; choose another one"
    if not (output_dir / "manifest.json").is_file():
        raise InputError(wrong_format)
    manifest = _read(output_dir, kind, wrong_format, "choose another one")
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


def check_files(directory: Path, manifest: JsonObject) -> None:
    """Raise InputError if a file of a manifest is missing, has another size, or is outside the directory."""
    for name, facts in manifest["files"].items():
        path = directory / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(
                f"{directory / 'manifest.json'}: {name!r} is outside this directory; do not trust this dataset"
            )
        if not path.is_file() or path.stat().st_size != facts["bytes"]:
            state = f"{path.stat().st_size} bytes" if path.is_file() else "missing"
            raise InputError(f"{path}: {state}, expected {facts['bytes']} bytes; {PREPARE_AGAIN.format(directory)}")


def damaged_files(directory: Path, manifest: JsonObject, parts: Collection[str] | None = None) -> list[str]:
    """List the files whose SHA-256 differs from the manifest; `parts` are the folders to check, by default all."""
    return [
        name
        for name, facts in manifest["files"].items()
        if (parts is None or Path(name).parts[0] in parts) and sha256_file(directory / name) != facts["sha256"]
    ]
