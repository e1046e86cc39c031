"""Fine-tuning, planned from settings, the files of a task, and the model of `model_dir` with the task's head.

What is `auto` is resolved here, before a file is written; only `run.state.TrainingState` may take over choices, such as the
micro-batches, from the checkpoint that a run resumes from.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bertkit.base.errors import InputError, counted, say
from bertkit.base.typed_settings import refuse
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face.config_json import require_class
from bertkit.interop.load import load_directory, load_tokenizer
from bertkit.interop.model_dir import hashes_of, resolve_model_dir
from bertkit.jobs import task_data
from bertkit.jobs.finetuning import FinetuningJob
from bertkit.launch.world import say_once, world_from_environment
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import BertConfig, NormConfig
from bertkit.model.head.head import head_of
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import reinitialise_top
from bertkit.model.label_scale import LabelUnits, learn_in_units
from bertkit.objectives.objective import Objective, make_objective
from bertkit.run import finished
from bertkit.run.directory import continued_identity
from bertkit.run.fitting import check_task, check_tokenizer
from bertkit.run.memory_plan import check_size
from bertkit.run.resume_rules import FINETUNE
from bertkit.run.start import InitFrom, Start, new_model
from bertkit.settings.finetune import DecoderSettings, FinetuneSettings
from bertkit.tasks.reading.training_data import TrainingData
from bertkit.tasks.trainable import task_of
from bertkit.train.accelerator import make_accelerator
from bertkit.train.processes import choose_device

SCORE = "score"  # the name of the only label in a regression
JobT = TypeVar("JobT", bound=FinetuningJob)


def plan_finetuning(given: FinetuneSettings, read: TrainingData | None = None) -> FinetuningJob:
    """Plan a run that is not finished; raises InputError if data, model and settings do not fit together.

    `read` has the examples, if a check has read them already.
    """
    settings = finished.continued_finetuning(given)
    saved = continued_identity(settings, FINETUNE)
    splits_of = functools.cache(lambda: finished.splits_of(settings, read))
    choose_device(settings.device)  # fail before reading all the files
    objective = make_objective(settings.objective, settings.objective_options)
    return in_directory(make_job(settings, splits_of, objective, is_old=bool(saved) and "label_scale" not in saved))


def in_directory(job: JobT) -> JobT:
    """Give a job its steps, its directory and its device."""
    settings = job.settings
    job.steps, job.directory = steps_of(job), Path(settings.output_dir)
    return job.on(
        make_accelerator(settings.device, world_from_environment().size, settings.launch.hang_timeout_seconds)
    )


def make_job(
    settings: FinetuneSettings, splits_of: Callable[[], TrainingData], objective: Objective, is_old: bool = False
) -> FinetuningJob:
    """Make the features of a task, and load the model with the task's head; `is_old` as in `label_units`."""
    task_of(settings.task).check_metrics()
    if settings.calibrate:
        task_of(settings.task).decisions((), ())
    source = None if settings.model_dir is None else resolve_model_dir(settings.model_dir)
    tokenizer = load_tokenizer(source) if source is not None else task_data.new_tokenizer(settings, splits_of)
    tokenizer.max_length = settings.task.max_seq_length  # saved, so that transformers truncates at the same length
    data = task_data.make_task_data(splits_of(), tokenizer)
    data.task.check_metrics()
    if world_from_environment().is_main:
        say(*tokenizer.notes, *data.describe(settings))
    units = task_data.label_units(settings, data, is_old)
    start = start_finetuning(settings, source, tokenizer, data.labels, units)
    check_task(settings, start.model.config, tokenizer, data.has_pairs)
    task_data.weigh_labels(settings, data)
    settings = settings.with_rate(settings.rate_for(start.model.config.hidden_size))
    settings = settings.with_epochs(settings.epochs_for(len(data.batches)))
    return FinetuningJob(settings, start, objective, data, units)


def steps_of(job: FinetuningJob) -> int:
    """Return the number of steps in a run; raises InputError if the warm-up or the last batch does not fit."""
    settings, num_examples, num_processes = job.settings, len(job.data.batches), world_from_environment().size
    steps = math.ceil(round(settings.epochs * job.steps_per_epoch, 6))  # 25 / 11 * 11 is a little more than 25
    if settings.epochs * num_examples < 1:
        raise InputError(
            f"num_epochs={settings.epochs:g} of {num_examples:,} examples is less than one example; raise it"
        )
    if settings.warmup_of(steps) > steps:
        warmup = f"schedule.warmup_steps={settings.schedule.warmup_steps}"
        raise InputError(f"{warmup} exceeds the {steps} steps of the run; lower it")
    rest = num_examples % settings.batch.sequences or settings.batch.sequences
    if rest < num_processes:
        raise InputError(
            f"the last batch of an epoch has {counted(rest, 'example')} for {num_processes} processes; change batch.sequences"
        )
    return steps


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
    if source is None:
        assert settings.decoder is not None, "checked by the settings"
        new = _new_encoder_decoder(settings, settings.decoder, tokenizer)
        say_once(f"starting with a new model, decoder={settings.decoder.kind}")
        return Start(new, tokenizer, None, layer_decay=settings.layer_decay)
    task, facts, head = settings.task, tokenizer.facts, task_of(settings.task).head
    model, report = load_directory(
        source,
        (head,),
        head_of(head).is_pooled,
        settings.seed,
        labels=(SCORE,) if task.is_regression else labels,
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
        frozen_depth > num_layers
        and settings.layer_decay != 1
        and f"layer_decay={settings.layer_decay}: has no effect with freeze={settings.freeze}; leave it out",
        frozen_depth > num_layers + 1 - settings.reinit_layers
        and f"reinit_layers={settings.reinit_layers} with freeze={settings.freeze}: a new layer would stay as it is drawn; change one of "
        "them",
    )
    check_tokenizer(f"model_dir={settings.model_dir or ''}", tokenizer, model.config)
    reinitialise_top(model, settings.reinit_layers, settings.seed)
    say_once(f"starting from {settings.model_dir}: {report}")
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
