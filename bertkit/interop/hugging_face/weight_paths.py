"""The weight files of Hugging Face: where they are in a directory."""

from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.text_files import read_json

_FILES = ("model.safetensors", "pytorch_model.bin")  # whole, or in shards with an index beside them


def weight_paths(folder: Path) -> list[Path]:
    """List the weight files: one, or the shards in an index."""
    for name in _FILES:
        if (folder / name).is_file():
            return [folder / name]
        index = _index(folder, name)
        if index.is_file():
            return _shards(index)
    missing = "no model.safetensors or pytorch_model.bin, and no TensorFlow checkpoint"
    raise InputError(f"{folder}: {missing}; copy the model's weights there, or choose another model_dir=")


def has_weights(directory: Path) -> bool:
    """Whether a directory has weights in a format of Hugging Face."""
    return any((directory / name).is_file() or _index(directory, name).is_file() for name in _FILES)


def _index(directory: Path, name: str) -> Path:
    return directory / f"{name}.index.json"


def _shards(index: Path) -> list[Path]:
    match read_json(index):
        case {"weight_map": dict(weight_map)} if weight_map:
            shards = sorted(set(map(str, weight_map.values())))
        case _:
            raise InputError(f"{index}: no weight_map; copy the whole directory again")
    expected = Path(index.name.removesuffix(".index.json")).suffix
    if any(Path(shard).name != shard for shard in shards):
        raise InputError(f"{index}: names a file outside of its directory")
    if any(Path(shard).suffix != expected for shard in shards):
        raise InputError(f"{index}: names {shards[0]}, expected files that end in {expected}")
    missing = [shard for shard in shards if not index.with_name(shard).is_file()]
    if missing:
        raise InputError(f"{index}: {', '.join(missing)} missing; copy the whole directory")
    return [index.with_name(shard) for shard in shards]
