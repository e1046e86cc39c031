"""Any model directory -> a model and its tokenizer; and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bertkit.data.tokenizer import Rules, Tokenizer
from bertkit.data.tokenizer import load_tokenizer as load_tokenizer_files
from bertkit.errors import InputError
from bertkit.files import building_dir, read_json
from bertkit.interop import weights
from bertkit.interop.google import checkpoint as tensorflow
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.interop.hugging_face import hub
from bertkit.interop.hugging_face.directory import LoadReport
from bertkit.model.config import HEADS
from bertkit.model.heads import BertWithHeads, PaddedBert
from bertkit.train.checkpoint import checkpoints_dir, fault_of, newest_valid, write_tensors


def resolve_model_dir(model_dir: str | Path, setting: str = "model_dir") -> Path:
    """Find the directory with a configuration and weights.

    Args:
        model_dir: a run directory (its newest valid checkpoint, or its final model, which fine-tuning takes from its best one), a checkpoint, a Hugging Face
            directory, a TensorFlow checkpoint (its directory, or its prefix `DIR/bert_model.ckpt`), or a hub id.
        setting: what the caller calls it.

    Returns:
        The directory; a prefix stays one where its directory holds several checkpoints.

    Raises:
        InputError: no such directory, or nothing in it to load.
    """
    path = Path(model_dir).expanduser()
    if not path.is_dir():
        prefix = tensorflow.find_checkpoint(path)
        if prefix is not None:
            huggingface.config_path(prefix)
            return prefix if len(list(prefix.parent.glob("*.index"))) > 1 else prefix.parent
        if path.exists() or not hub.is_id(str(model_dir)):
            raise InputError(
                f"{setting}={model_dir}: no such directory; expected a run, a checkpoint, a Hugging Face model, a "
                "TensorFlow checkpoint or a hub id"
            )
        path = hub.fetch(str(model_dir), setting)
    if checkpoints_dir(path).is_dir() or (path / "config.yaml").is_file():
        if (path / "predictions.jsonl").is_file() and (path / "model" / "config.json").is_file():
            return path / "model"  # a task's: its best checkpoint, not its newest
        checkpoint, faults = newest_valid(path)
        if checkpoint is not None:
            return checkpoint
        if (path / "model" / "config.json").is_file():
            return path / "model"
        raise InputError("\n".join([*faults, f"{setting}={model_dir}: a run without a valid checkpoint"]))
    if weights.google_checkpoint(path) is not None:
        huggingface.config_path(path)
        return path
    if not (path / "config.json").is_file():
        raise InputError(f"{setting}={model_dir}: no config.json and no checkpoints in this directory")
    if (path / "state.json").is_file():
        fault = fault_of(path)
        if fault is not None:
            raise InputError(f"{setting}={model_dir} is damaged: {fault}; take another checkpoint")
    return path


def load_packed(
    model_dir: str | Path, heads: Sequence[str] | None = None, with_pooler: bool | None = None, seed: int = 0
) -> tuple[BertWithHeads, LoadReport]:
    """Load any model directory as the packed model that training uses."""
    return huggingface.load(resolve_model_dir(model_dir), heads, with_pooler, seed)


def load_model(model_dir: str | Path, heads: Sequence[str] | None = None) -> PaddedBert:
    """Load any model directory, in evaluation mode, for padded (B, T) tensors.

    Args:
        model_dir: a run directory, a checkpoint, a Hugging Face directory, a TensorFlow checkpoint, or a hub id.
        heads: the heads to load, such as `["masked_lm"]`; None for those that the directory holds.

    Raises:
        InputError: the directory cannot be loaded, or lacks a head that was asked for.
    """
    directory = resolve_model_dir(model_dir)
    if isinstance(heads, str) or len(set(map(str, heads or ()))) != len(heads or ()):
        raise InputError(f"heads={heads!r}: expected a list of heads, each once, such as ['masked_lm']")
    unknown = [head for head in heads or () if head not in HEADS]
    if unknown:
        raise InputError(f"heads={list(heads or ())}: unknown {unknown[0]!r}; bertkit has {', '.join(HEADS)}")
    model, report = huggingface.load(directory, heads)
    missing = sorted({name.split(".")[1] for name in report.new})
    if missing:
        raise InputError(f"{directory}: no weights for the {' and the '.join(missing)}; choose among those it holds")
    return PaddedBert(model).eval()


def load_tokenizer(model_dir: str | Path, rules: Rules | None = None) -> Tokenizer:
    """Load the tokenizer of any model directory, a prepared dataset, or a vocabulary file.

    `rules` are Google's or Hugging Face's; None: those of a prepared dataset, else Hugging Face's.

    Raises:
        InputError: there is none, or BERT cannot use it.
    """
    path = Path(model_dir).expanduser()
    if path.is_file():
        return load_tokenizer_files(path, rules=rules)
    if (path / "tokenizer").is_dir():
        return load_tokenizer_files(path / "tokenizer", rules=rules)
    if checkpoints_dir(path).is_dir() or not path.is_dir():
        path = resolve_model_dir(model_dir)
    return load_tokenizer_files(path if path.is_dir() else path.parent, rules=rules)


def export_model(model: PaddedBert | BertWithHeads, tokenizer: Tokenizer, output_dir: str | Path) -> Path:
    """Write a Hugging Face directory of the class that has the model's heads; nothing is compared.

    An earlier export of the same class is replaced.

    Raises:
        InputError: the directory holds something else, the vocabulary is of another size than the model's, or a weight is
            not finite.
    """
    final = Path(output_dir)
    if final.exists() and not final.is_dir():
        raise InputError(f"output_dir={final} is a file; choose a directory")
    if final.exists() and any(final.iterdir()):
        ours = {"model.safetensors", "README.md", "parity.json", *text_files(model, tokenizer)}
        others = sorted(path.name for path in final.iterdir() if path.name not in ours)
        packed = model.model if isinstance(model, PaddedBert) else model
        there = read_json(final / "config.json") if (final / "config.json").is_file() else None
        if not isinstance(there, dict) or there.get("architectures") != [huggingface.architecture_of(packed)]:
            others.append("a model of another class")
        if others:
            raise InputError(f"output_dir={final} holds something else ({', '.join(others[:3])}); choose another one")
    with building_dir(final) as partial:
        write_model(model, tokenizer, partial)
    return final


def text_files(model: PaddedBert | BertWithHeads, tokenizer: Tokenizer) -> dict[str, str]:
    """Give every small file of a model directory, by name: configuration and tokenizer."""
    packed = model.model if isinstance(model, PaddedBert) else model
    dtype = next(packed.parameters()).dtype
    config = huggingface.config_json(packed.config, huggingface.architecture_of(packed), dtype)
    return {"config.json": config, **tokenizer.files(packed.config.max_position_embeddings)}


def write_model(
    model: PaddedBert | BertWithHeads,
    tokenizer: Tokenizer,
    directory: Path,
    more_files: Mapping[str, str] | None = None,
) -> None:
    """Write weights, configuration and tokenizer into an existing directory."""
    packed = model.model if isinstance(model, PaddedBert) else model
    if tokenizer.vocab_size != packed.config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model {packed.config.vocab_size}; they do not belong "
            "together"
        )
    tensors = huggingface.tensors_of(packed)
    problems = weights.check_values(tensors)
    if problems:
        raise InputError(f"the model cannot be written: {'; '.join(problems[:8])}")
    for name, content in {**text_files(packed, tokenizer), **(more_files or {})}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(content, encoding="utf-8")
    write_tensors(directory / "model.safetensors", tensors)
