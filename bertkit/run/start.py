"""The start of a training run: a new model, or the model of `model_dir`, perhaps with the moments of its optimizer.

Also checks that the model, the tokenizer, the dataset and the settings fit together.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bertkit.base.errors import InputError, say
from bertkit.base.files import sha256_file
from bertkit.base.typed_settings import at, refuse
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.data.data_config import AnySegments
from bertkit.interop.hugging_face.config_json import read_config, require_class
from bertkit.interop.load import hashes_of, load_directory, load_tokenizer, resolve_model_dir
from bertkit.launch.world import world_from_environment
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import POOLED_HEADS, PRETRAINING_HEADS, BertConfig, NormConfig
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights, reinitialise_top
from bertkit.model.label_scale import LabelUnits, learn_in_units
from bertkit.model.layers import depth_of
from bertkit.run.directory import read_manifest, run_of
from bertkit.run.length_phases import lengths_of
from bertkit.run.memory_plan import check_size
from bertkit.run.resume_rules import RunSettings
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.tasks.trainable import task_of
from bertkit.train import checkpoint
from bertkit.train.optimizer import MOMENTS
from bertkit.train.processes import choose_device


def check_dataset(
    config: BertConfig,
    dataset: PreparedDataset,
    segments: AnySegments,
    longest: int | None = None,
) -> None:
    """Raise InputError if vocabulary sizes differ, a length exceeds the model's positions, or pairs need a second segment type.

    `longest` is the length of a final phase.
    """
    refuse(
        config.vocab_size != dataset.tokenizer.vocab_size
        and f"the model has a vocabulary of {config.vocab_size} tokens, {dataset.directory} has {dataset.tokenizer.vocab_size}; "
        "prepare the text with tokenizer.path= set to the model's directory",
        config.too_long("max_seq_length", segments.max_seq_length, "segments.max_seq_length"),
        longest is not None and config.too_long("max_seq_length", longest, "final_phase.max_seq_length"),
        segments.has_pairs
        and config.type_vocab_size == 1
        and f"the model has type_vocab_size={config.type_vocab_size}, pairs need 2; set segments=full_sentences",
    )


def check_task(settings: FinetuneSettings, config: BertConfig, has_pairs: bool) -> None:
    """Raise InputError if a length exceeds the model's positions, or there are pairs for a model with one segment type."""
    refuse(
        settings.task.length_problems(config),
        has_pairs
        and config.type_vocab_size == 1
        and f"model_dir={settings.model_dir}: type_vocab_size={config.type_vocab_size}, pairs need 2",
    )


def check_vocabulary(model_dir: Path, dataset: PreparedDataset) -> None:
    """Raise InputError if the model and the dataset have different vocabularies; a model without a tokenizer is accepted."""
    folder = model_dir if model_dir.is_dir() else model_dir.parent  # for the path prefix of a TensorFlow checkpoint
    if not any((folder / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        return
    theirs, ours = load_tokenizer(folder).vocab, dataset.tokenizer.vocab
    if theirs != ours:
        index = next((n for n, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), None)
        first = f"token {index} is {theirs[index]!r} and {ours[index]!r}" if index is not None else "one is longer"
        raise InputError(
            f"{folder} and {dataset.directory} have different vocabularies of {len(theirs)} and {len(ours)} tokens ({first}); "
            f"prepare the text with tokenizer.path={folder}"
        )


def check_tokenizer(named: str, tokenizer: Tokenizer, config: BertConfig) -> None:
    """Raise InputError if tokenizer and model have different vocabulary sizes, or a decoder does not use [CLS] and [SEP]; `named` is the model."""
    if tokenizer.vocab_size != config.vocab_size:
        raise InputError(
            f"{named}: the tokenizer has {tokenizer.vocab_size} tokens, the model {config.vocab_size}; "
            "restore the tokenizer that the model was trained with"
        )
    decoder, facts = config.decoder, tokenizer.facts
    if decoder is not None and (decoder.start_token_id, decoder.end_token_id) != (facts.cls, facts.sep):
        raise InputError(
            f"{named}: its texts begin with token {decoder.start_token_id} and end with {decoder.end_token_id}; "
            f"expected [CLS] and [SEP], {facts.cls} and {facts.sep}: set decoder_start_token_id and eos_token_id of its config.json"
        )


SCORE = "score"  # the name of the only label in a regression


@dataclass(frozen=True)
class Start:
    """The starting model of a run."""

    model: BertWithHeads
    tokenizer: Tokenizer  # saved in every checkpoint
    init_from: dict[str, Any] | None  # facts about the starting weights, for the manifest; None for a new model
    moments: dict[str, Tensor] = field(default_factory=dict)  # the moments of the optimizer, if loaded
    frozen_depth: int = 0  # which lower layers are frozen (`model.layers`)
    layer_decay: float = 1.0  # learning rate of a layer, relative to the layer above it

    @property
    def weights_sha256(self) -> dict[str, str] | None:
        """The SHA-256 of each file of the starting weights; None for a new model."""
        return None if self.init_from is None else self.init_from["sha256"]

    def rate_scale_of(self, name: str) -> float:
        """Return the factor for the learning rate of a parameter."""
        num_layers = self.model.config.num_hidden_layers
        return float(self.layer_decay ** (num_layers + 1 - depth_of(name, num_layers)))


def starting_weights(settings: RunSettings) -> dict[str, Any]:
    """Return the hashes of the starting weights, for the identity of a run; empty if the weights no longer exist."""
    if settings.model_dir is None:
        return {"starting_weights": None}
    if not Path(os.path.expanduser(settings.model_dir)).exists():
        return {}
    return {"starting_weights": _sha256_of_start(settings, resolve_model_dir(settings.model_dir))}


def _sha256_of_start(settings: RunSettings, source: Path) -> dict[str, str]:
    hashes = hashes_of(source)
    if isinstance(settings, PretrainSettings) and settings.init_moments:
        hashes |= {path.name: sha256_file(path) for path in checkpoint.moment_files(source)}
    return hashes


def start_pretraining(settings: PretrainSettings, dataset: PreparedDataset) -> Start:
    """Make a new model, or load the model of `model_dir`."""
    predicts_next, device = settings.segments.predicts_next, choose_device(settings.device).type
    longest = max(lengths_of(settings))
    heads = PRETRAINING_HEADS if predicts_next else ("next_token",) if settings.predicts_next_token else ("masked_lm",)
    if settings.model_dir is not None:
        source = resolve_model_dir(settings.model_dir)
        model, report = load_directory(source, heads, with_pooler=predicts_next, seed=settings.seed)
        require_class(model.config, heads)
        check_size(model.config, settings.batch.sequences, longest, device)
        check_dataset(model.config, dataset, settings.segments, settings.final_phase.max_seq_length)
        check_vocabulary(source, dataset)
        if settings.predicts_next_token:
            refuse(model.config.attention.next_token_problems())
            model.config = dataclasses.replace(model.config, eos_token_id=dataset.tokenizer.facts.sep)
        if world_from_environment().is_main:
            say(f"starting from {settings.model_dir}, whose configuration replaces model=: {report}")
        init_from = {
            "model_dir": settings.model_dir,
            "summary": str(report),
            "sha256": _sha256_of_start(settings, source),
            "shape": dataclasses.asdict(model.config),
        }
        moments = _read_moments(source, settings, model) if settings.init_moments else {}
        return Start(model, dataset.tokenizer, init_from, moments)
    vocab = dataset.tokenizer.facts
    config = BertConfig(
        **dataclasses.asdict(settings.model),
        vocab_size=vocab.size,
        attention=settings.attention,
        norm=settings.norm,
        feed_forward=settings.feed_forward,
        pooling=settings.pooling,
        pad_token_id=vocab.pad,
        eos_token_id=vocab.sep if settings.predicts_next_token else None,
    )
    require_class(config, heads)
    check_dataset(config, dataset, settings.segments)
    check_size(config, settings.batch.sequences, longest, device)
    return Start(_new_model(config, heads, predicts_next, settings.seed), dataset.tokenizer, None)


def objective_of(settings: PretrainSettings) -> Literal["auto", "masked_lm", "next_token"]:
    """Return the objective; with `model_dir`, auto depends on its attention: next tokens if it is causal, else masked ones."""
    if settings.model_dir is None or settings.objective != "auto":
        return settings.objective
    path = resolve_model_dir(settings.model_dir) / "config.json"
    is_causal = path.is_file() and read_config(path).attention.pattern == "causal"
    return "next_token" if is_causal else "masked_lm"


def _new_model(config: BertConfig, heads: tuple[str, ...], with_pooler: bool, seed: int) -> BertWithHeads:
    model = BertWithHeads(config, heads, with_pooler=with_pooler)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(seed))
    return model


def _read_moments(source: Path, settings: PretrainSettings, model: BertWithHeads) -> dict[str, Tensor]:
    """Read the moments of the optimizer from a checkpoint; raises InputError if they belong to another model or optimizer."""
    if not checkpoint.moment_files(source):
        raise InputError(
            f"model_dir={settings.model_dir} has no optimizer state; choose a run directory, or set init_moments=false"
        )
    made_by = run_of(source)
    name = None if made_by is None else at(read_manifest(made_by).identity, "optimizer.name")
    if made_by is not None and name != settings.optimizer.name:
        raise InputError(
            f"model_dir={settings.model_dir} was trained with optimizer={name}, but optimizer={settings.optimizer.name} is set; "
            "set the same, or init_moments=false"
        )
    moments = checkpoint.read_moments(source)
    expected = {f"{name}.{moment}": p.shape for name, p in model.named_parameters() for moment in MOMENTS}
    others = sorted(expected.items() ^ {name: tensor.shape for name, tensor in moments.items()}.items())
    if others:
        raise InputError(f"{source} has moments of other parameters, such as {others[0][0]}; set init_moments=false")
    return moments


def start_finetuning(
    settings: FinetuneSettings,
    source: Path | None,
    tokenizer: Tokenizer,
    labels: tuple[str, ...],
    units: LabelUnits | None,
) -> Start:
    """Load a model with the task's head, which is new unless the model has these labels; without `source`, make a new model.

    With `units`, the head of a regression learns in them.
    """
    is_main = world_from_environment().is_main
    if source is None:
        new = _new_encoder_decoder(settings, tokenizer)
        if is_main:
            say(f"starting with a new model, decoder={settings.decoder and settings.decoder.kind}")
        return Start(new, tokenizer, None, layer_decay=settings.layer_decay)
    task, head = settings.task, task_of(settings.task).head
    named: dict[str, Any] = {"labels": labels} if labels else {}
    if task.is_regression:
        named = {"labels": (SCORE,), "problem_type": "regression"}
    if task.multi_label:
        named["problem_type"] = "multi_label_classification"
    if settings.decoder is not None:
        named = {"decoder": settings.decoder.of_model(tokenizer.facts.cls, tokenizer.facts.sep)}
    named["head"] = settings.head
    model, report = load_directory(source, (head,), head in POOLED_HEADS, settings.seed, **named)
    if units is not None:
        learn_in_units(model, units, is_new=bool(report.new))
    num_layers = model.config.num_hidden_layers
    frozen_depth = settings.frozen_depth(num_layers)
    if settings.reinit_layers > num_layers:
        raise InputError(f"reinit_layers={settings.reinit_layers}: the model has {num_layers} layers; lower it")
    check_tokenizer(f"model_dir={settings.model_dir or ''}", tokenizer, model.config)
    reinitialise_top(model, settings.reinit_layers, settings.seed)
    if is_main:
        say(f"starting from {settings.model_dir}: {report}")
    init_from = {"model_dir": settings.model_dir, "summary": str(report), "sha256": hashes_of(source)}
    return Start(model, tokenizer, init_from, frozen_depth=frozen_depth, layer_decay=settings.layer_decay)


def _new_encoder_decoder(settings: FinetuneSettings, tokenizer: Tokenizer) -> BertWithHeads:
    """Make a new encoder and decoder."""
    shape, decoder, vocab = settings.model, settings.decoder, tokenizer.facts
    assert shape is not None, "checked by the settings"
    assert decoder is not None, "checked by the settings"
    positions = "sinusoidal" if decoder.kind == "transformer" else "none"
    config = BertConfig(
        **dataclasses.asdict(shape) | {"initializer_range": decoder.std_of(shape.hidden_size)},
        vocab_size=vocab.size,
        attention=settings.attention or AttentionConfig(positions=positions),
        norm=settings.norm or NormConfig(placement=decoder.norm),
        decoder=decoder.of_model(vocab.cls, vocab.sep),
        pad_token_id=vocab.pad,
    )
    check_size(config, settings.batch.sequences, settings.task.max_seq_length, choose_device(settings.device).type)
    return _new_model(config, ("generation",), with_pooler=False, seed=settings.seed)
