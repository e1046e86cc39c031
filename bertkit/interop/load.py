"""Any model directory -> a model and its tokenizer.

Loading is strict: a named rule loads or leaves out every tensor of the directory, and loads or initialises every parameter of
the model. Everything else is an error that lists the names.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bertkit.base.errors import InputError, listed
from bertkit.base.files import sha256_file
from bertkit.base.hub_ids import is_id
from bertkit.data.corpus.tokenizer import Rules, Tokenizer
from bertkit.data.corpus.tokenizer import load_tokenizer as load_tokenizer_files
from bertkit.interop.google import bundle
from bertkit.interop.google import checkpoint as google
from bertkit.interop.hugging_face import directory as hugging_face
from bertkit.interop.hugging_face import hub
from bertkit.interop.hugging_face.config_json import changed_from_bert, problem_type_of, read_config
from bertkit.interop.hugging_face.names import from_hugging_face, in_decoder, to_hugging_face
from bertkit.interop.padded import PaddedBert
from bertkit.model.bert import init_weights
from bertkit.model.bert_config import HEADS, POOLED_HEADS, BertConfig, DecoderConfig, ProblemType, head_problems
from bertkit.model.heads import BertWithHeads
from bertkit.train.checkpoint import checkpoints_dir, fault_of, newest_valid

_TEXT_FILES = ("config.json", "bert_config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class LoadReport:
    """The fate of every name."""

    loaded: list[str]  # parameters of the model that come from the directory
    skipped: dict[str, str]  # tensors of the directory that were left out, and the rule for each
    new: list[str]  # parameters that the directory does not hold, newly initialised

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
        InputError: the directory cannot be loaded, or lacks a head.
    """
    directory = resolve_model_dir(model_dir)
    names = [heads] if isinstance(heads, str) else list(heads or ())
    if isinstance(heads, str) or any(names.count(name) > 1 or name not in HEADS for name in names):
        raise InputError(f"heads={heads!r}: expected a list of different heads among {', '.join(HEADS)}")
    model, report = load_directory(directory, heads)
    missing = sorted({name.split(".")[1] for name in report.new})
    if missing:
        raise InputError(f"{directory}: no weights for the {' and the '.join(missing)}; choose other heads")
    return PaddedBert(model).eval()


def load_packed(
    model_dir: str | Path, heads: Sequence[str] | None = None, with_pooler: bool | None = None
) -> tuple[BertWithHeads, LoadReport]:
    """Load any model directory as the packed model that training uses."""
    return load_directory(resolve_model_dir(model_dir), heads, with_pooler)


def load_tokenizer(model_dir: str | Path, rules: Rules | None = None) -> Tokenizer:
    """Load the tokenizer of any model directory, a prepared dataset, or a vocabulary file.

    `rules` are those of Google or of Hugging Face; None: the rules of a prepared dataset, else those of Hugging Face.

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
    return load_tokenizer_files(_folder(path), rules=rules)


def resolve_model_dir(model_dir: str | Path, setting: str = "model_dir") -> Path:
    """Find the directory with a configuration and weights.

    Args:
        model_dir: a run directory (its newest valid checkpoint; for a finished fine-tuning the final model, from its best
            checkpoint), a checkpoint, a Hugging Face directory, a TensorFlow checkpoint (its directory, or its prefix
            `DIR/bert_model.ckpt`), or a hub id.
        setting: its name in messages.

    Returns:
        The directory; a prefix if its directory holds several checkpoints.

    Raises:
        InputError: no such directory, or nothing in it to load.
    """
    path = Path(model_dir).expanduser()
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
        path = hub.fetch(str(model_dir), setting)
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
        return model_dir  # of a task: its best checkpoint, not the newest
    checkpoint, faults = newest_valid(run_dir)
    if checkpoint is None and not has_model:
        raise InputError(*faults, f"{named}: a run without a valid checkpoint")
    return checkpoint or model_dir


def hashes_of(directory: Path) -> dict[str, str]:
    """Hash weights, configuration and tokenizer of a model directory, by file."""
    prefix = _google_prefix(directory)
    weight_files = hugging_face.weight_files(directory) if prefix is None else bundle.checkpoint_files(prefix)
    present = [path for name in _TEXT_FILES if (path := _folder(directory) / name).is_file()]
    return {path.name: sha256_file(path) for path in [*weight_files, *present]}


def _google_prefix(directory: Path) -> Path | None:
    """Find a checkpoint of Google at a prefix, or in a directory without weights of Hugging Face."""
    return None if hugging_face.has_weights(directory) else google.find_checkpoint(directory)


def _folder(directory: Path) -> Path:
    return directory if directory.is_dir() else directory.parent  # of a prefix


@dataclass(frozen=True)
class _Held:
    """The contents of a model directory."""

    directory: Path
    config_path: Path
    config: BertConfig
    tensors: Mapping[str, Tensor]  # all tensors, by their names in Hugging Face
    weights: dict[str, Tensor]  # the tensors with a place in bertkit, by its names
    names: Mapping[str, str]  # names in Hugging Face -> names in bertkit
    skipped: dict[str, str]  # tensors that were left out, and the rule for each

    def has(self, part: str) -> bool:
        """Whether there are weights of a part of the model."""
        return any(name.startswith(f"{part}.") for name in self.weights)

    @property
    def has_decoder_apart(self) -> bool:
        """Whether the weights of the decoder differ from those of the encoder."""
        both = {name: in_decoder(name) for name in self.weights if name.startswith("bert.")}
        return any(
            there in self.weights and not torch.equal(self.weights[here], self.weights[there])
            for here, there in both.items()
            if there is not None
        )


def load_directory(
    directory: Path,
    heads: Sequence[str] | None = None,
    with_pooler: bool | None = None,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    problem_type: ProblemType | None = None,
    decoder: DecoderConfig | None = None,
) -> tuple[BertWithHeads, LoadReport]:
    """Build the model of a directory from `resolve_model_dir`, and load its weights.

    Args:
        directory: configuration and weights.
        heads: the heads to build; None for all heads in the directory.
        with_pooler: None: if the directory has one, or the heads need one.
        seed: initialises new parameters.
        labels: for a sequence or token head; None for the labels of the directory. A head with the same labels is loaded in
            their new order; a head with other labels is left out and initialised.
        problem_type: goes with `labels`.
        decoder: for a generation head. If the directory has none, its weights start as those of the encoder and of the masked
            LM head, and cross-attention is initialised.

    Raises:
        InputError: tensors without a place, parameters without a tensor, or other shapes; all are listed.
    """
    held = _read(directory)
    held_heads = [head for head in HEADS if held.has(f"heads.{head}")]
    heads = held_heads if heads is None else heads
    if with_pooler is None:
        is_free = held.has("bert.pooler") and tuple(heads) != ("generation",)  # a decoder reads tokens alone
        with_pooler = is_free or bool(set(heads) & set(POOLED_HEADS))
    begins = decoder is not None and held.config.decoder is None
    config = dataclasses.replace(held.config, decoder=_decoder_of(held, heads, decoder))
    if begins:
        held.weights.update({there: tensor for here, tensor in held.weights.items() if (there := in_decoder(here))})
    if labels is not None:
        config = dataclasses.replace(config, labels=tuple(labels), problem_type=problem_type)
        _relabel(held, heads, config)
    problems = head_problems(config.attention, config.pooling, heads)
    if problems:
        raise InputError(*(f"{held.config_path}: {problem}" for problem in problems))
    with torch.device("meta"):
        model = BertWithHeads(config, heads, with_pooler)
    new = _check_fit(held, model, bool(set(held_heads) & set(POOLED_HEADS)), begins)
    model.to_empty(device="cpu")
    if new:
        init_weights(model, config.initializer_range, torch.Generator().manual_seed(seed))
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in parameters.keys() & held.weights.keys():
            parameters[name].copy_(held.weights[name])
    return model, LoadReport(sorted(set(parameters) - set(new)), held.skipped, new)


def _decoder_of(held: _Held, heads: Sequence[str], new: DecoderConfig | None) -> DecoderConfig | None:
    """Choose the decoder of a model: the requested one, or the one of the directory if the model has a generation head.

    Raises:
        InputError: there is none, or the weights are those of another kind.
    """
    there = held.config.decoder
    if new is None and there is None and "generation" in heads:
        raise InputError(f"{held.directory}: a model without a decoder; finetune with decoder=bert adds one")
    if new is None:
        if there is None or there.is_from_scratch:
            return there  # the encoder is of its kind, too
        share = there.share and not held.has_decoder_apart  # transformers trains shared weights as two
        return dataclasses.replace(there, share=share) if "generation" in heads else None
    if held.config.variant and (there is None or there.kind != new.kind):
        raise InputError(
            f"{held.config_path}: decoder={new.kind} with {', '.join(changed_from_bert(held.config))}: a decoder starts "
            "as a plain BERT; choose another model"
        )
    if new.share and held.has_decoder_apart:
        raise InputError(f"{held.directory}: its decoder and encoder differ and cannot be one; set decoder.share=false")
    return new


def _read(directory: Path) -> _Held:
    prefix = _google_prefix(directory)
    tensors, skipped = hugging_face.read_weights(directory) if prefix is None else google.read_weights(prefix)
    path = directory / "config.json" if prefix is None else google.config_file(prefix)
    config, classifier = read_config(path, tensors)
    num_layers = sum(name.endswith((".attention.self.query.weight", ".weight_ih_l0")) for name in tensors)
    if config.num_hidden_layers > 2 * num_layers + 8:  # refused before so many are built
        raise InputError(
            f"{directory}: num_hidden_layers={config.num_hidden_layers}, but there are weights for {num_layers} layers; "
            "restore the directory from its source"
        )
    names = from_hugging_face(tensors, classifier)
    return _Held(
        directory, path, config, tensors, {ours: tensors[name] for name, ours in names.items()}, names, skipped
    )


def _relabel(held: _Held, heads: Sequence[str], wanted: BertConfig) -> None:
    """Put the rows of a classifier into the order of new labels, or leave it out if its labels differ."""
    parts = tuple(f"heads.{head}." for head in ("sequence", "token") if head in heads)
    is_same = set(held.config.labels) == set(wanted.labels) and problem_type_of(held.config) == problem_type_of(wanted)
    for name in [name for name in held.weights if name.startswith(parts)]:
        if is_same:
            held.weights[name] = held.weights[name][[held.config.labels.index(label) for label in wanted.labels]]
        else:
            del held.weights[name]
            held.skipped[to_hugging_face(name)] = f"of a head of other labels: {listed(held.config.labels)}"


def _check_fit(held: _Held, model: BertWithHeads, needs_pooler: bool, begins: bool = False) -> list[str]:
    """Refuse weights that do not fit a model; list its new parameters, and note the tensors that are left out."""
    expected, problems, new = dict(model.named_parameters()), [], []
    for name, parameter in expected.items():
        part = ".".join(name.split(".")[:2])
        is_optional = name.startswith("heads.") or (part == "bert.pooler" and not needs_pooler)
        if name in held.weights:
            shape, right = tuple(held.weights[name].shape), tuple(parameter.shape)
            problems += [f"{to_hugging_face(name)}: shape {shape}, expected {right}"] if shape != right else []
        elif (is_optional and not held.has(part)) or (begins and name.startswith("heads.generation.")):
            new.append(name)
        else:
            problems.append(f"{to_hugging_face(name)}: missing")
    for name in held.tensors:
        ours = held.names.get(name, "")
        if ours not in expected and not ours.startswith(("heads.", "bert.pooler.")):
            problems.append(f"{name}: has no place in this model")
        elif ours not in expected and not (begins and in_decoder(ours) in expected):
            held.skipped[name] = "of a head that was not asked for"
    problems += hugging_face.unfit_values(held.tensors)
    if problems:
        raise InputError(
            f"{held.directory}: {len(problems)} weights do not fit {held.config_path.name}: {listed(problems)}; restore the "
            "directory from its source"
        )
    return new
