"""Find the model that a setting names, and hash its files, before torch is imported: only `read` needs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bertkit.base.errors import InputError
from bertkit.base.files import sha256_file
from bertkit.base.hub_ids import is_id, missing_directory_error, path_of
from bertkit.base.typed_settings import refuse
from bertkit.data.tokenizers.other_formats import vocabulary_files
from bertkit.interop.google.files import config_file, find_checkpoint
from bertkit.interop.hugging_face.hub import fetch, fetch_tokenizer
from bertkit.interop.hugging_face.weight_paths import has_weights, weight_paths
from bertkit.interop.sentence_transformers.modules import encoder_dir
from bertkit.train.checkpoint_files import checkpoints_dir, fault_of, newest_valid

if TYPE_CHECKING:
    from bertkit.interop.hugging_face.architecture import StoredTensors

_TEXT_FILES = (
    "config.json",
    "bert_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


class ModelFiles(Protocol):
    """The files of a model, in one of the formats that bertkit reads."""

    @property
    def folder(self) -> Path:
        """The directory with the configuration and the tokenizer."""

    @property
    def config(self) -> Path:
        """The path of the configuration."""

    def weights(self) -> list[Path]:
        """List the weight files; raises InputError if one is missing."""

    def read(self) -> StoredTensors:
        """Read every tensor; raises InputError if a file is damaged."""


@dataclass(frozen=True)
class HuggingFaceFiles:
    """The files of a model directory in a format of Hugging Face."""

    folder: Path

    @property
    def config(self) -> Path:
        """The path of the configuration."""
        return self.folder / "config.json"

    def weights(self) -> list[Path]:
        """List the weight files: one, or the shards in an index."""
        return weight_paths(self.folder)

    def read(self) -> StoredTensors:
        """Read every tensor, by its name in the file; raises InputError if there are none, or a file is damaged."""
        from bertkit.interop.hugging_face.weight_files import read_weights

        return read_weights(self.folder)


@dataclass(frozen=True)
class GoogleFiles:
    """The files of a checkpoint of google-research/bert."""

    prefix: Path

    @property
    def folder(self) -> Path:
        """The directory of the checkpoint."""
        return self.prefix.parent

    @property
    def config(self) -> Path:
        """The path of the configuration; raises InputError if there is none."""
        return config_file(self.prefix)

    def weights(self) -> list[Path]:
        """List the files of the checkpoint."""
        from bertkit.interop.google.bundle import checkpoint_files

        return checkpoint_files(self.prefix)

    def read(self) -> StoredTensors:
        """Read the weights by their Hugging Face names, without the variables of the optimizer."""
        from bertkit.interop.google.checkpoint import read_release

        return read_release(self.prefix)


def files_of(directory: Path) -> ModelFiles:
    """Return the files in a directory, or at the prefix of a checkpoint: Google's where there are no Hugging Face weights.

    Raises InputError if there is an adapter, whose weights `transformers` adds.
    """
    adapter = directory / "adapter_config.json"
    refuse(
        adapter.is_file()
        and f"{adapter}: an adapter (PEFT), which bertkit does not read; save the model with it: merge_and_unload().save_pretrained(DIR)"
    )
    prefix = None if has_weights(directory) else find_checkpoint(directory)
    return HuggingFaceFiles(directory) if prefix is None else GoogleFiles(prefix)


def folder_of(directory: Path) -> Path:
    """Return the folder of a directory from `resolve_model_dir`, which may be the prefix of a checkpoint."""
    return directory if directory.is_dir() else directory.parent


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has the file of a tokenizer."""
    return bool(vocabulary_files(folder))


def resolve_model_dir(model_dir: str | Path, setting: str = "model_dir") -> Path:
    """Find the directory with a configuration and weights; for a prefix whose directory has several checkpoints, the prefix.

    `model_dir` is a run directory (its newest valid checkpoint; after fine-tuning the final model, its best checkpoint), a
    checkpoint, a Hugging Face directory, a TensorFlow checkpoint (a directory, or a prefix such as `DIR/bert_model.ckpt`), or
    a hub id. `setting` is its name in messages. Raises InputError if there is no such directory, or it contains no model.
    """
    path = path_of(model_dir, setting)
    if not path.is_dir():
        prefix = find_checkpoint(path)
        if prefix is not None:
            config_file(prefix)
            return prefix if len(list(prefix.parent.glob("*.index"))) > 1 else prefix.parent
        refuse(path.is_file() and f"{setting}={model_dir}: a file; name its folder")
        if path.exists() or not is_id(str(model_dir)):
            raise missing_directory_error(str(model_dir), setting)
        path = fetch(str(model_dir), setting)
    path = encoder_dir(path)
    if checkpoints_dir(path).is_dir() or (path / "config.yaml").is_file():
        return _model_of_run(path, f"{setting}={model_dir}")
    if not files_of(path).config.is_file():
        raise InputError(f"{setting}={model_dir}: no config.json and no checkpoints in this directory")
    fault = fault_of(path) if (path / "state.json").is_file() else None
    if fault is not None:
        raise InputError(f"{setting}={model_dir} is damaged: {fault}; take another checkpoint")
    return path


def resolve_tokenizer(name: str, setting: str = "tokenizer.path") -> Path:
    """Return the path of a tokenizer: a file or a folder, the tokenizer of a run or a dataset, or that of a hub id, which is downloaded.

    Raises InputError if the hub has no model of this name.
    """
    path = path_of(name, setting)
    if not path.exists() and is_id(name):
        return fetch_tokenizer(name, setting)
    places = (path, path / "model", path / "tokenizer")
    return next((place for place in places if vocabulary_files(place)), path)


def _model_of_run(run_dir: Path, named: str) -> Path:
    model_dir = run_dir / "model"
    has_model = (model_dir / "config.json").is_file()
    if has_model and (run_dir / "predictions.jsonl").is_file():
        return model_dir  # fine-tuning keeps its best checkpoint there
    checkpoint, faults = newest_valid(run_dir)
    if checkpoint is None and not has_model:
        raise InputError(*faults, f"{named}: a run without a valid checkpoint")
    return checkpoint or model_dir


def hashes_of(directory: Path) -> dict[str, str]:
    """Hash the weights, configuration and tokenizer files of a model directory."""
    files = files_of(directory)
    texts = [path for name in _TEXT_FILES if (path := files.folder / name).is_file()]
    read = [*files.weights(), *texts, *vocabulary_files(files.folder)]
    return {path.name: sha256_file(path) for path in read}
