"""Load a model and its tokenizer from any model directory.

Loading is strict: every tensor of the directory is loaded or left out by a named rule, every parameter of the model is loaded
or newly initialised by a named rule, and anything else is an error that lists the names.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bertkit.base.errors import InputError, listed, say
from bertkit.base.files import sha256_file
from bertkit.base.hub_ids import is_id, path_of
from bertkit.base.processors import check_precision
from bertkit.data.corpus.tokenizer import Rules, Tokenizer
from bertkit.data.corpus.tokenizer import load_tokenizer as load_tokenizer_files
from bertkit.interop.exports.sentence_transformers import max_length_of
from bertkit.interop.google import bundle
from bertkit.interop.google import checkpoint as google
from bertkit.interop.hugging_face import directory as hugging_face
from bertkit.interop.hugging_face.config_json import changed_from_bert, problem_type_of, read_config
from bertkit.interop.hugging_face.names import from_hugging_face, in_decoder, to_hugging_face
from bertkit.interop.padded import PaddedBert
from bertkit.model.bert import init_weights
from bertkit.model.bert_config import (
    HEADS,
    POOLED_HEADS,
    TASK_HEADS,
    BertConfig,
    DecoderConfig,
    HeadConfig,
    ProblemType,
    head_problems,
)
from bertkit.model.heads import BertWithHeads
from bertkit.train.checkpoint import checkpoints_dir, fault_of, newest_valid

_TEXT_FILES = ("config.json", "bert_config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class LoadReport:
    """What happened to every parameter and tensor."""

    loaded: list[str]  # parameters of the model taken from the directory
    skipped: dict[str, str]  # tensors of the directory that were left out, with the reason
    new: list[str]  # newly initialised parameters, which the directory does not contain

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        parts += [f"{number} left out ({rule})" for rule, number in sorted(Counter(self.skipped.values()).items())]
        if self.new:
            heads = sorted({name.split(".")[1] for name in self.new})
            parts.append(f"{len(self.new)} newly initialised ({', '.join(heads)})")
        return ", ".join(parts)


def load_model(model_dir: str | Path, heads: Sequence[str] | None = None) -> PaddedBert:
    """Load any model directory, in evaluation mode, for padded (B, T) tensors.

    Args:
        model_dir: a run directory, a checkpoint, a Hugging Face directory, a TensorFlow checkpoint, or a hub id.
        heads: the heads to load, such as `["masked_lm"]`; None for all heads in the directory.

    Raises:
        InputError: the directory cannot be loaded, or lacks one of `heads`.
    """
    directory, own = resolve_model_dir(model_dir), list(heads) if isinstance(heads, (list, tuple)) else [heads]
    if heads is not None and any(not isinstance(head, str) or head not in HEADS or own.count(head) > 1 for head in own):
        raise InputError(f"heads={heads!r}: expected a list of heads, each once, among {', '.join(HEADS)}")
    model, report = load_directory(directory, heads)
    missing = sorted({name.split(".")[1] for name in report.new})
    if missing:
        raise InputError(
            f"{directory}: no weights for the {' and the '.join(missing)}; choose other heads, or heads=None for all in it"
        )
    try:
        check_precision("bf16", "auto")  # whoever loads it may compute in bfloat16
    except InputError as error:
        say(f"warning: {error}", file=sys.stderr)
    return PaddedBert(model).eval()


def load_packed(
    model_dir: str | Path, heads: Sequence[str] | None = None, with_pooler: bool | None = None
) -> tuple[BertWithHeads, LoadReport]:
    """Load any model directory as the model for packed batches that training uses."""
    return load_directory(resolve_model_dir(model_dir), heads, with_pooler)


def load_tokenizer(model_dir: str | Path, rules: Rules | None = None) -> Tokenizer:
    """Load the tokenizer of any model directory, a prepared dataset, or a vocabulary file.

    `rules` split text into words as Google's code or Hugging Face's does; None for the rules of a prepared dataset, or else
    Hugging Face's.

    Raises:
        InputError: there is no tokenizer, or BERT cannot use it.
    """
    path = path_of(model_dir)
    if path.is_file():
        return load_tokenizer_files(path, rules=rules)
    if (path / "tokenizer").is_dir():
        return load_tokenizer_files(path / "tokenizer", rules=rules)
    if checkpoints_dir(path).is_dir() or not path.is_dir():
        path = resolve_model_dir(model_dir)
    tokenizer = load_tokenizer_files(_folder(path), rules=rules)
    tokenizer.max_length = max_length_of(_folder(path))
    return tokenizer


def resolve_model_dir(model_dir: str | Path, setting: str = "model_dir") -> Path:
    """Find the directory with a configuration and weights; for a prefix whose directory has several checkpoints, the prefix.

    `model_dir` is a run directory (its newest valid checkpoint; after fine-tuning the final model, its best checkpoint), a
    checkpoint, a Hugging Face directory, a TensorFlow checkpoint (a directory, or a prefix such as `DIR/bert_model.ckpt`), or
    a hub id. `setting` is its name in messages. Raises InputError if there is no such directory, or it contains no model.
    """
    path = path_of(model_dir, setting)
    if not path.is_dir():
        prefix = google.find_checkpoint(path)
        if prefix is not None:
            google.config_file(prefix)
            return prefix if len(list(prefix.parent.glob("*.index"))) > 1 else prefix.parent
        if path.exists() or not is_id(str(model_dir)):
            raise InputError(
                f"{setting}={model_dir}: no such directory; expected a run, a checkpoint, a Hugging Face model, a "
                "TensorFlow checkpoint, or a hub id such as google-bert/bert-base-uncased"
            )
        path = hugging_face.fetch(str(model_dir), setting)
    if checkpoints_dir(path).is_dir() or (path / "config.yaml").is_file():
        return _model_of_run(path, f"{setting}={model_dir}")
    prefix = _google_prefix(path)
    if prefix is not None:
        google.config_file(prefix)
        return path
    if not (path / "config.json").is_file():
        raise InputError(f"{setting}={model_dir}: no config.json and no checkpoints in this directory")
    if (path / "state.json").is_file():
        fault = fault_of(path)
        if fault is not None:
            raise InputError(f"{setting}={model_dir} is damaged: {fault}; take another checkpoint")
    return path


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
    prefix = _google_prefix(directory)
    weight_files = hugging_face.weight_files(directory) if prefix is None else bundle.checkpoint_files(prefix)
    present = [path for name in _TEXT_FILES if (path := _folder(directory) / name).is_file()]
    return {path.name: sha256_file(path) for path in [*weight_files, *present]}


def _google_prefix(directory: Path) -> Path | None:
    """Find a Google checkpoint at a prefix, or in a directory without Hugging Face weights."""
    return None if hugging_face.has_weights(directory) else google.find_checkpoint(directory)


def _folder(directory: Path) -> Path:
    return directory if directory.is_dir() else directory.parent  # for a checkpoint's prefix


@dataclass(frozen=True)
class _Stored:
    """What a model directory contains."""

    directory: Path
    config_path: Path
    config: BertConfig
    tensors: Mapping[str, Tensor]  # all tensors, by Hugging Face's names
    weights: dict[str, Tensor]  # the tensors that bertkit knows, by bertkit's names
    their_names: Mapping[str, str]  # Hugging Face's names by bertkit's names
    skipped: dict[str, str]  # tensors left out, with the reason

    def has(self, part: str) -> bool:
        """Whether there are weights for a part of the model."""
        return any(name.startswith(f"{part}.") for name in self.weights)

    @property
    def has_decoder_apart(self) -> bool:
        """Whether a weight of the decoder differs from the encoder's."""
        pairs = [(name, in_decoder(name)) for name in self.weights if name.startswith("bert.")]
        return any(
            twin in self.weights and not torch.equal(self.weights[name], self.weights[twin]) for name, twin in pairs
        )


def load_directory(
    directory: Path,
    heads: Sequence[str] | None = None,
    with_pooler: bool | None = None,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    problem_type: ProblemType | None = None,
    decoder: DecoderConfig | None = None,
    head: HeadConfig | None = None,
) -> tuple[BertWithHeads, LoadReport]:
    """Build the model in a directory from `resolve_model_dir`, and load its weights.

    What is None comes from the directory: all its heads, their labels and settings, and a pooler, which there is also if the
    heads need it. The rows of a sequence or token head with the same `labels` are put into this order; a head with other ones
    is newly initialised. If the directory has no decoder, `decoder` starts as a copy of the encoder and the masked LM head,
    with newly initialised cross-attention. Raises InputError, which lists all tensors that are left over, are missing or have
    another shape.
    """
    stored = _read(directory)
    own_heads = [head for head in HEADS if stored.has(f"heads.{head}")]
    heads = own_heads if heads is None else heads
    if with_pooler is None:
        is_free = stored.has("bert.pooler") and tuple(heads) != ("generation",)  # a decoder does not use it
        with_pooler = is_free or bool(set(heads) & set(POOLED_HEADS))
    is_new_decoder = decoder is not None and stored.config.decoder is None
    head = (head or stored.config.head) if set(heads) & set(TASK_HEADS) else HeadConfig()
    config = dataclasses.replace(stored.config, decoder=_decoder_of(stored, heads, decoder), head=head)
    if is_new_decoder:
        stored.weights.update({name: tensor for each, tensor in stored.weights.items() if (name := in_decoder(each))})
    if labels is not None:
        config = dataclasses.replace(config, labels=tuple(labels), problem_type=problem_type)
    _relabel(stored, heads, config)
    problems = head_problems(config.attention, config.pooling, heads)
    if problems:
        raise InputError(*(f"{stored.config_path}: {each}" for each in problems))
    with torch.device("meta"):
        model = BertWithHeads(config, heads, with_pooler)
    new = _check_fit(stored, model, bool(set(own_heads) & set(POOLED_HEADS)), is_new_decoder)
    model.to_empty(device="cpu")
    if new:
        init_weights(model, config.initializer_range, torch.Generator().manual_seed(seed))
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in parameters.keys() & stored.weights.keys():
            parameters[name].copy_(stored.weights[name])
    return model, LoadReport(sorted(set(parameters) - set(new)), stored.skipped, new)


def _decoder_of(stored: _Stored, heads: Sequence[str], decoder: DecoderConfig | None) -> DecoderConfig | None:
    """Choose the model's decoder: `decoder`, or the directory's if the generation head is loaded."""
    there = stored.config.decoder
    if decoder is None and there is None and "generation" in heads:
        raise InputError(f"{stored.directory}: a model without a decoder; finetune with decoder=bert adds one")
    if decoder is None:
        if there is None or there.is_from_scratch:
            return there  # the encoder depends on it, too
        share = there.share and not stored.has_decoder_apart  # transformers may have trained shared weights separately
        return dataclasses.replace(there, share=share) if "generation" in heads else None
    if stored.config.variant and (there is None or there.kind != decoder.kind):
        raise InputError(
            f"{stored.config_path}: decoder={decoder.kind} with {', '.join(changed_from_bert(stored.config))}: a decoder starts as a "
            "copy of a standard BERT; start from another model"
        )
    if decoder.share and stored.has_decoder_apart:
        raise InputError(f"{stored.directory}: decoder and encoder have different weights; set decoder.share=false")
    return decoder


def _read(directory: Path) -> _Stored:
    prefix = _google_prefix(directory)
    tensors, skipped = hugging_face.read_weights(directory) if prefix is None else google.read_weights(prefix)
    path = directory / "config.json" if prefix is None else google.config_file(prefix)
    config, named_heads = read_config(path, tensors)
    num_layers = sum(name.endswith((".attention.self.query.weight", ".weight_ih_l0")) for name in tensors)
    if config.num_hidden_layers > 2 * num_layers + 8:  # refused before all of them are built
        raise InputError(
            f"{directory}: num_hidden_layers={config.num_hidden_layers}, but there are weights for {num_layers} layers; "
            "restore the directory from its source"
        )
    their_names = {ours: name for name, ours in from_hugging_face(tensors, *named_heads).items()}
    by_our_name = {ours: tensors[name] for ours, name in their_names.items()}
    return _Stored(directory, path, config, tensors, by_our_name, their_names, skipped)


def _relabel(stored: _Stored, heads: Sequence[str], wanted: BertConfig) -> None:
    """Put the rows of a classifier into the order of the labels, or drop a head that differs in more than this order."""
    here, there = wanted.labels, stored.config.labels
    parts = tuple(f"heads.{head}." for head in TASK_HEADS if head in heads and head != "generation")
    is_same = stored.config.head == wanted.head and problem_type_of(stored.config) == problem_type_of(wanted)
    is_same &= here == there or (set(here) == set(there) and wanted.head.kind == "linear")
    for name in [name for name in stored.weights if name.startswith(parts)]:
        if is_same and here == there:
            continue
        if is_same:
            stored.weights[name] = stored.weights[name][[there.index(label) for label in here]]
        else:
            del stored.weights[name]
            reason = f"other labels: {listed(there)}" if set(here) != set(there) else f"head={stored.config.head.kind}"
            stored.skipped[stored.their_names[name]] = f"head with {reason}"


def _check_fit(stored: _Stored, model: BertWithHeads, needs_pooler: bool, is_new_decoder: bool = False) -> list[str]:
    """Check that the weights fit the model, record the tensors that are left out, and return the names of new parameters."""
    expected, problems, new = dict(model.named_parameters()), [], []
    for name, parameter in expected.items():
        part = ".".join(name.split(".")[:2])
        tensor = stored.weights.get(name)
        is_optional = name.startswith("heads.") or (part == "bert.pooler" and not needs_pooler)
        is_new = is_new_decoder and name.startswith("heads.generation.")
        if tensor is None and (is_new or (is_optional and not stored.has(part))):
            new.append(name)
        elif tensor is None:
            problems.append(f"{to_hugging_face(name)}: missing")
        elif tensor.shape != parameter.shape:
            shapes = f"shape {tuple(tensor.shape)}, expected {tuple(parameter.shape)}"
            problems.append(f"{to_hugging_face(name)}: {shapes}")
    ours = {name: our_name for our_name, name in stored.their_names.items()}
    for name in stored.tensors:
        if name not in ours or (ours[name] not in expected and not ours[name].startswith(("heads.", "bert.pooler."))):
            problems.append(f"{name}: this model has no such weight")
        elif ours[name] not in expected and not (is_new_decoder and in_decoder(ours[name]) in expected):
            stored.skipped[name] = "head not asked for"
    problems = problems or hugging_face.unfit_values(stored.tensors)  # values only of shapes that fit the model
    if problems:
        raise InputError(
            f"{stored.directory}: {len(problems)} weights do not fit {stored.config_path.name}: {listed(problems)}; restore the "
            "directory from its source"
        )
    return new
