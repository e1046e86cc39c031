"""The start of fine-tuning: the model of `model_dir` with the task's head, or a new encoder and decoder."""

import dataclasses
from pathlib import Path

from bertkit.base.errors import InputError, say
from bertkit.base.typed_settings import refuse
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face.config_json import require_class
from bertkit.interop.load import load_directory
from bertkit.interop.model_dir import hashes_of
from bertkit.launch.world import world_from_environment
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import BertConfig, NormConfig
from bertkit.model.head.head import head_of
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import reinitialise_top
from bertkit.model.label_scale import LabelUnits, learn_in_units
from bertkit.run.fitting import check_tokenizer
from bertkit.run.memory_plan import check_size
from bertkit.run.start import InitFrom, Start, new_model
from bertkit.settings.finetune import DecoderSettings, FinetuneSettings
from bertkit.tasks.trainable import task_of
from bertkit.train.processes import choose_device

SCORE = "score"  # the name of the only label in a regression


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
        assert settings.decoder is not None, "checked by the settings"
        new = _new_encoder_decoder(settings, settings.decoder, tokenizer)
        if is_main:
            say(f"starting with a new model, decoder={settings.decoder.kind}")
        return Start(new, tokenizer, None, layer_decay=settings.layer_decay)
    task, facts, head = settings.task, tokenizer.facts, task_of(settings.task).head
    model, report = load_directory(
        source,
        (head,),
        head_of(head).is_pooled,
        settings.seed,
        labels=(SCORE,) if task.is_regression else labels or None,
        problem_type=task.problem_type,
        decoder=None if settings.decoder is None else settings.decoder.of_model(facts.cls, facts.sep),
        head=settings.head,
    )
    require_class(model.config, model.heads)
    if units is not None:
        learn_in_units(model, units, is_new=bool(report.new))
    num_layers = model.config.num_hidden_layers
    frozen_depth = settings.frozen_depth(num_layers)
    if settings.reinit_layers > num_layers:
        raise InputError(f"reinit_layers={settings.reinit_layers}: the model has {num_layers} layers; lower it")
    same = model.config.shared_layers and "all layers of this model have the same weights; leave it out"
    refuse(
        same and 0 < settings.reinit_layers < num_layers and f"reinit_layers={settings.reinit_layers}: {same}",
        same and settings.layer_decay != 1 and f"layer_decay={settings.layer_decay}: {same}",
    )
    check_tokenizer(f"model_dir={settings.model_dir or ''}", tokenizer, model.config)
    reinitialise_top(model, settings.reinit_layers, settings.seed)
    if is_main:
        say(f"starting from {settings.model_dir}: {report}")
    init_from: InitFrom = {"model_dir": settings.model_dir, "summary": str(report), "sha256": hashes_of(source)}
    return Start(model, tokenizer, init_from, frozen_depth=frozen_depth, layer_decay=settings.layer_decay)


def _new_encoder_decoder(settings: FinetuneSettings, decoder: DecoderSettings, tokenizer: Tokenizer) -> BertWithHeads:
    """Make a new encoder and decoder."""
    shape, vocab = settings.model, tokenizer.facts
    assert shape is not None, "checked by the settings"
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
    return new_model(config, ("generation",), with_pooler=False, seed=settings.seed)
