"""What a training run begins with: weights, made anew or those of another model, and perhaps its optimizer's moments."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit.base.errors import InputError, say
from bertkit.base.files import sha256_file
from bertkit.base.typed_settings import at
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.load import hashes_of, load_directory, resolve_model_dir
from bertkit.launch.world import world_from_environment
from bertkit.model.bert import init_weights
from bertkit.model.bert_config import (
    POOLED_HEADS,
    PRETRAINING_HEADS,
    AttentionConfig,
    BertConfig,
    NormConfig,
)
from bertkit.model.heads import BertWithHeads
from bertkit.model.layer_depth import depth_of, reinitialise_top
from bertkit.run.compatibility import check_dataset, check_tokenizer, check_vocabulary
from bertkit.run.directory import read_manifest, run_of
from bertkit.run.length_phases import segments_of
from bertkit.run.memory_plan import check_size
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.tasks.shapes import shape_of
from bertkit.train import checkpoint
from bertkit.train.optimizer import MOMENTS
from bertkit.train.processes import choose_device

SCORE = "score"  # the label of a regression


@dataclass(frozen=True)
class Start:
    """What a run begins with."""

    model: BertWithHeads  # with the weights to start from
    tokenizer: Tokenizer  # goes into every checkpoint
    moments: dict[str, Tensor] = field(default_factory=dict)  # of the optimizer
    frozen_depth: int = 0  # how much of the model is not trained, as `run.depth` counts it
    # the learning rate of each layer is that of the one above, times this; the heads have the full rate
    layer_decay: float = 1.0

    def rate_scale_of(self, name: str) -> float:
        """What the learning rate of a parameter is multiplied with."""
        num_layers = self.model.config.num_hidden_layers
        return float(self.layer_decay ** (num_layers + 1 - depth_of(name, num_layers)))


def known_start(settings: PretrainSettings) -> dict[str, Any]:
    """The starting weights as they identify a run; nothing where they are no longer here to be read."""
    if settings.model_dir is None:
        return {"starting_weights": None}
    if not Path(settings.model_dir).expanduser().exists():
        return {}
    return {"starting_weights": _hashes_of_start(settings, resolve_model_dir(settings.model_dir))}


def _hashes_of_start(settings: PretrainSettings, source: Path) -> dict[str, str]:
    hashes = hashes_of(source)
    if settings.init_moments:
        hashes |= {path.name: sha256_file(path) for path in checkpoint.moment_files(source)}
    return hashes


def build_model(settings: PretrainSettings, dataset: PreparedDataset) -> tuple[BertWithHeads, dict[str, Any] | None]:
    """Make the model anew, or from `model_dir`; give it with what is known of the weights it starts from."""
    predicts_next = settings.segments.predicts_next
    heads = PRETRAINING_HEADS if predicts_next else ("masked_lm",)
    if settings.model_dir is not None:
        source = resolve_model_dir(settings.model_dir)
        model, report = load_directory(source, heads, with_pooler=predicts_next, seed=settings.seed)
        _check_size(settings, model.config)
        for segments, setting in zip(segments_of(settings), ("segments", "final_phase"), strict=False):
            check_dataset(model.config, dataset, segments, f"{setting}.max_seq_length")
        check_vocabulary(source, dataset)
        summary = str(report)
        if world_from_environment().is_main:
            say(f"starting from {settings.model_dir}, whose shape replaces model=: {summary}")
        facts = {"model_dir": settings.model_dir, "summary": summary, "sha256": _hashes_of_start(settings, source)}
        return model, {**facts, "shape": dataclasses.asdict(model.config)}
    vocab = dataset.tokenizer.facts
    config = BertConfig(
        **dataclasses.asdict(settings.model),
        vocab_size=vocab.size,
        attention=settings.attention,
        norm=settings.norm,
        pooling=settings.pooling,
        pad_token_id=vocab.pad,
    )
    check_dataset(config, dataset, settings.segments)
    _check_size(settings, config)
    model = BertWithHeads(config, heads, with_pooler=predicts_next)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(settings.seed))
    return model, None


def _check_size(settings: PretrainSettings, config: BertConfig) -> None:
    longest = max(segments.max_seq_length for segments in segments_of(settings))
    check_size(config, settings.batch.sequences, longest, choose_device(settings.device).type, "batch.sequences")


def starting_moments(settings: PretrainSettings, model: BertWithHeads) -> dict[str, Tensor]:
    """Read the optimizer's moments of `model_dir`; with `init_moments` false there are none.

    Raises:
        InputError: `model_dir` has no moments, or they are those of other parameters.
    """
    if settings.model_dir is None or not settings.init_moments:
        return {}
    source = resolve_model_dir(settings.model_dir)
    if not checkpoint.moment_files(source):
        raise InputError(
            f"model_dir={settings.model_dir} has no optimizer state; take a bertkit run or one of its checkpoints, or "
            "set init_moments=false"
        )
    made_by = run_of(source)
    if made_by is not None:
        name = at(read_manifest(made_by).identity, "optimizer.name")
        if name != settings.optimizer.name:
            raise InputError(
                f"model_dir={settings.model_dir} was trained with optimizer={name}, whose moments mean something else to "
                f"{settings.optimizer.name}; take optimizer={name}, or set init_moments=false"
            )
    moments = checkpoint.read_moments(source)
    wanted = {f"{name}.{moment}": p.shape for name, p in model.named_parameters() for moment in MOMENTS}
    others = sorted(wanted.items() ^ {name: tensor.shape for name, tensor in moments.items()}.items())
    if others:
        raise InputError(
            f"{source} holds moments of other parameters than this run's (such as {others[0][0]}); train the same heads, "
            "or set init_moments=false"
        )
    return moments


def _make_task_model(settings: FinetuneSettings, tokenizer: Tokenizer) -> tuple[BertWithHeads, dict[str, Any]]:
    """Make a model that starts from nothing: encoder and decoder."""
    shape, decoder, facts = settings.model, settings.decoder, tokenizer.facts
    assert shape is not None, "refused by the settings"
    assert decoder is not None, "refused by the settings"
    is_transformer = decoder.kind == "transformer"
    sizes = dataclasses.asdict(shape) | {"initializer_range": decoder.std_of(shape.hidden_size)}
    config = BertConfig(
        **sizes,
        vocab_size=facts.size,
        attention=AttentionConfig(positions="sinusoidal" if is_transformer else "none"),
        norm=NormConfig(placement=decoder.norm),
        decoder=decoder.of_model(facts.cls, facts.sep),
        pad_token_id=facts.pad,
    )
    longest, device = settings.task.max_seq_length, choose_device(settings.device).type
    check_size(config, settings.batch.sequences, longest, device, "batch.sequences")
    model = BertWithHeads(config, ("generation",), with_pooler=False)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(settings.seed))
    return model, {"model_dir": None, "summary": f"a new model, decoder={decoder.kind}", "sha256": None}


def build_task_model(
    settings: FinetuneSettings, source: Path | None, tokenizer: Tokenizer, labels: tuple[str, ...]
) -> tuple[BertWithHeads, dict[str, Any]]:
    """Load a model with the task's head, a new one where it has none of these labels; give it with what is known of it.

    Without a source it is made anew.

    Raises:
        InputError: the tokenizer is not the model's, or more is to be frozen or drawn anew than there is.
    """
    if source is None:
        return _make_task_model(settings, tokenizer)
    task, head = settings.task, shape_of(settings.task).head
    named: dict[str, Any] = {"labels": labels} if labels else {}
    if task.is_regression:
        named = {"labels": (SCORE,), "problem_type": "regression"}
    if task.multi_label:
        named["problem_type"] = "multi_label_classification"
    if settings.decoder is not None:
        named = {"decoder": settings.decoder.of_model(tokenizer.facts.cls, tokenizer.facts.sep)}
    model, report = load_directory(source, (head,), head in POOLED_HEADS, settings.seed, **named)
    num_layers = model.config.num_hidden_layers
    settings.frozen_depth(num_layers)
    if settings.reinit_layers > num_layers:
        raise InputError(f"reinit_layers={settings.reinit_layers}: the model has {num_layers} layers; lower it")
    check_tokenizer(settings.model_dir or "", tokenizer, model.config)
    reinitialise_top(model, settings.reinit_layers, settings.seed)
    summary = str(report)
    return model, {"model_dir": settings.model_dir, "summary": summary, "sha256": hashes_of(source)}
