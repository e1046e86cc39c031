"""Pretraining, planned from settings: a new model, or the model of `model_dir`, perhaps with the moments of its optimizer.

What is `auto` is resolved here, before a file is written; only `run.state.TrainingState` may take over choices, such as the
micro-batches, from the checkpoint that a run resumes from.
"""

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import at, refuse, to_mapping
from bertkit.data.batches.controls import token_counts
from bertkit.data.corpus.prepared import PreparedDataset, check_usable, open_prepared
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.interop.hugging_face.config_json import completed, read_config, require_class
from bertkit.interop.load import load_directory
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.jobs.phases import lengths_of
from bertkit.jobs.pretraining import PretrainingJob
from bertkit.jobs.run_length import choose_steps
from bertkit.launch.world import say_once, world_from_environment
from bertkit.model.bert_config import BertConfig
from bertkit.model.head.head import MaskedLMHead
from bertkit.model.heads import BertWithHeads
from bertkit.objectives.objective import make_objective
from bertkit.run.directory import read_manifest, run_of
from bertkit.run.finished import continued_pretraining, examples_of
from bertkit.run.fitting import check_dataset
from bertkit.run.memory_plan import check_size
from bertkit.run.resume_rules import PRETRAIN, identity_of
from bertkit.run.start import Start, new_model
from bertkit.run.start_weights import sha256_of_start
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train import checkpoint, checkpoint_files
from bertkit.train.accelerator import make_accelerator
from bertkit.train.optimizer import MOMENTS
from bertkit.train.processes import choose_device


def plan_pretraining(given: PretrainSettings) -> PretrainingJob:
    """Plan a run that is not finished; raises InputError if data, model and settings do not fit together."""
    continued = continued_pretraining(given)
    given, known = continued.given, continued.known
    dataset, objective = open_prepared(Path(given.data_dir)), objective_of(given)
    examples = examples_of(dataset, given, objective == "next_token" or given.predicts_next_token)
    masking = examples.masking or given.masking
    settings = dataclasses.replace(known, objective=objective, segments=examples.segments, masking=masking)
    check_usable(dataset)
    made = make_objective(settings.objective, settings.objective_options)
    refuse(
        masking.has("by_words")
        and not dataset.tokenizer.facts.borders.continues.any()
        and f"masking={masking.kind}: the vocabulary of {given.data_dir} does not mark where a word goes on; use masking=bert"
    )
    job = PretrainingJob(settings, start_pretraining(settings, dataset), made, dataset, examples)
    job.on(make_accelerator(settings.device, world_from_environment().size, settings.launch.hang_timeout_seconds))
    job.length = choose_steps(settings, examples, job.start.trained, job.accelerator, job.choices, made)
    job.steps, job.directory = job.length.steps, Path(settings.output_dir)
    job.settings = settings.with_steps(job.steps)
    job.identity = identity_of(to_mapping(given), PRETRAIN) | continued.own | {"steps": job.steps} | job.content
    job.resume_after(continued.saved)
    return job


def start_pretraining(settings: PretrainSettings, dataset: PreparedDataset) -> Start:
    """Make a new model, or load the model of `model_dir`."""
    if settings.model_dir is None:
        return _new(settings, dataset)
    return _loaded(settings, dataset, resolve_model_dir(settings.model_dir))


def config_of(settings: PretrainSettings, vocab: VocabFacts) -> BertConfig:
    """Return the configuration of a new model."""
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
    return completed(config)


def _new(settings: PretrainSettings, dataset: PreparedDataset) -> Start:
    config = config_of(settings, dataset.tokenizer.facts)
    _check(settings, config, dataset, source=None)
    model = new_model(config, settings.heads, "next_sentence" in settings.heads, settings.seed)
    for head in model.heads.values():
        if config.frequency_biases and isinstance(head, MaskedLMHead):
            head.begin_with(torch.from_numpy(token_counts(dataset.splits["train"], config.vocab_size)))
    return Start(model, dataset.tokenizer, init_from=None)


def _loaded(settings: PretrainSettings, dataset: PreparedDataset, source: Path) -> Start:
    heads = settings.heads
    model, report = load_directory(source, heads, with_pooler="next_sentence" in heads, seed=settings.seed)
    _check(settings, model.config, dataset, source)
    if settings.predicts_next_token:
        refuse(model.config.attention.next_token_problems())
        model.config = dataclasses.replace(model.config, eos_token_id=dataset.tokenizer.facts.sep)
    say_once(f"starting from {settings.model_dir}, whose configuration replaces model=: {report}")
    idle = [key for key in settings.explicit_keys if key.startswith("model.")]
    if idle:
        say_once(f"warning: {', '.join(idle)}: no effect with model_dir=, whose configuration is kept")
    frozen_depth = settings.frozen_depth(model.config.num_hidden_layers)
    moments = _read_moments(source, settings, model) if settings.init_moments else {}
    return Start(
        model,
        dataset.tokenizer,
        init_from={
            "model_dir": settings.model_dir,
            "summary": str(report),
            "sha256": sha256_of_start(settings, source),
            "shape": dataclasses.asdict(model.config),
        },
        moments=moments,
        frozen_depth=frozen_depth,
    )


def _check(settings: PretrainSettings, config: BertConfig, dataset: PreparedDataset, source: Path | None) -> None:
    """Raise InputError if a model cannot be saved, does not fit into the memory, or does not fit the dataset."""
    require_class(config, settings.heads)
    check_size(config, settings.batch.sequences, max(lengths_of(settings)), choose_device(settings.device).type)
    check_dataset(config, dataset, settings.segments, source, settings.final_phase.max_seq_length)


def objective_of(settings: PretrainSettings) -> str:
    """Return the objective; with `model_dir`, auto depends on its attention: next tokens if it is causal, else masked ones."""
    if settings.model_dir is None or settings.objective != "auto":
        return settings.objective
    path = resolve_model_dir(settings.model_dir) / "config.json"
    is_causal = path.is_file() and read_config(path).attention.pattern == "causal"
    return "next_token" if is_causal else "masked_lm"


def _read_moments(source: Path, settings: PretrainSettings, model: BertWithHeads) -> dict[str, Tensor]:
    """Read the moments of the optimizer from a checkpoint; raises InputError if they belong to another model or optimizer."""
    if not checkpoint_files.moment_files(source):
        raise InputError(
            f"model_dir={settings.model_dir} has no optimizer state; choose a run directory, or set init_moments=false"
        )
    made_by = run_of(source)
    if made_by is not None:
        ours, theirs = settings.optimizer.name, at(read_manifest(made_by).identity, "optimizer.name")
        refuse(
            theirs != ours
            and f"model_dir={settings.model_dir} was trained with optimizer={theirs}, but optimizer={ours} is set; set the same, "
            "or init_moments=false"
        )
    moments = checkpoint.read_moments(source)
    expected = {f"{name}.{moment}": p.shape for name, p in model.named_parameters() for moment in MOMENTS}
    others = sorted(expected.items() ^ {name: tensor.shape for name, tensor in moments.items()}.items())
    if others:
        raise InputError(f"{source} has moments of other parameters, such as {others[0][0]}; set init_moments=false")
    return moments
