"""Stage: a model on a task's labelled split -> its metrics; on a prepared dataset -> MLM and NSP loss and accuracy."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError, say
from bertkit.base.typed_settings import at
from bertkit.data.batches.instances import has_instances, open_instances
from bertkit.data.batches.sampling import ExampleSource, InstanceSampler, Sampler
from bertkit.data.corpus.manifest import SPLITS
from bertkit.data.corpus.prepared import PreparedDataset, check_unchanged, open_prepared
from bertkit.data.data_config import InstancesConfig, SegmentsConfig
from bertkit.interop.load import load_packed, resolve_model_dir
from bertkit.launch.world import world_from_environment
from bertkit.model.heads import BertWithHeads
from bertkit.predict.answers import answer, mean_loss, perplexity
from bertkit.predict.measure import measure_split
from bertkit.predict.task_model import check_labels, open_task_model, task_settings_of_run
from bertkit.run.compatibility import check_dataset, check_vocabulary, settings_of_instances
from bertkit.run.directory import read_manifest, run_of
from bertkit.run.task_data import Coverage
from bertkit.settings.evaluate import EvaluateSettings
from bertkit.tasks.reading import readers
from bertkit.tasks.scoring.metrics import signatures
from bertkit.tasks.scoring.review import measured_beside
from bertkit.tasks.shapes import check_metrics, make_features
from bertkit.train import micro_batches
from bertkit.train.losses import LossTerm
from bertkit.train.processes import Accelerator, leaving_together, make_accelerator


def run(settings: EvaluateSettings) -> dict[str, Any] | None:
    """Evaluate; give the metrics, in the first process.

    Raises:
        InputError: the model has no masked LM head, or its vocabulary is not the dataset's; it is not of the task, or the
            split has no labels.
    """
    if settings.task is not None or task_settings_of_run(settings.model_dir) is not None:
        return _evaluate_task(settings)
    settings.check_for_prepared()
    settings = _as_trained(settings)
    assert settings.data_dir is not None, "required without a task"
    dataset = open_prepared(Path(settings.data_dir))
    model, report = load_packed(settings.model_dir)
    if "masked_lm" not in model.heads:
        raise InputError(
            f"model_dir={settings.model_dir}: no masked LM head to evaluate ({len(report.loaded)} tensors)"
        )
    segments, _ = (
        settings_of_instances(settings, dataset)
        if _measures_instances(settings, dataset)
        else (settings.segments, None)
    )
    check_dataset(model.config, dataset, segments)
    check_vocabulary(resolve_model_dir(settings.model_dir), dataset)
    accelerator = make_accelerator(settings.device, world_from_environment().size, settings.launch.hang_timeout_seconds)
    with leaving_together(accelerator):
        return _measure(settings, dataset, model, accelerator)


def _measure(
    settings: EvaluateSettings, dataset: PreparedDataset, model: BertWithHeads, accelerator: Accelerator
) -> dict[str, Any] | None:
    prepared_model = accelerator.prepare_model(model, evaluation_mode=True)
    chosen = _split_for(settings, dataset)
    names = SPLITS if chosen == "all" else (chosen,)
    check_unchanged(dataset, None if has_instances(dataset) else names)
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name in names:
        if dataset.splits[name].num_documents == 0:
            continue
        sampler = _sampler(settings, dataset, name)
        for key, (value, count) in measure_split(
            accelerator, prepared_model, sampler, settings.max_sequences, settings.batch_sequences, settings.precision
        ).items():
            totals[key] = totals.get(key, 0.0) + value * count
            counts[key] = counts.get(key, 0) + count
    if not totals:
        way = "; prepare more documents, or with a larger held_out_prob,"
        if has_instances(dataset):
            way = ", since fixed instances hold all of them; leave segments out to measure the instances,"
        raise InputError(
            f"data_dir={settings.data_dir}: no documents in split {'+'.join(names)}{way} or set split=all, which is text that "
            "the model may have seen"
        )
    if not world_from_environment().is_main:
        return None
    metrics = {key: totals[key] / counts[key] for key in totals}
    return {**metrics, "split": "+".join(names)}


def _evaluate_task(settings: EvaluateSettings) -> dict[str, Any] | None:
    """Score a labelled split as fine-tuning scores its dev split."""

    opened = open_task_model(settings.model_dir, settings.task, settings.task_changes)
    task = opened.task
    settings.check_for_task(task)
    check_metrics(task)
    check_labels(settings.model_dir, opened)
    split = "dev" if settings.split == "auto" else settings.split
    if settings.task is None and settings.data_dir is None and not {"files", "hub"} & settings.task_changes.keys():
        raise InputError(
            f"model_dir={settings.model_dir}: missing value: set data_dir= to the folder of {task.name}, or task.files.{split}=, or "
            f"task={task.name} for its dataset on the hub; what a run says of it is not opened"
        )
    source = readers.read_examples(task, settings.data_dir, split, opened.labels or None)
    examples = source.examples
    num_unlabelled = sum(not opened.shape.is_labelled(example) for example in examples)
    if num_unlabelled:
        raise InputError(
            f"split={split}: {source.description}: {num_unlabelled:,} of {len(examples):,} examples have no label to measure "
            "against; take split=dev, or bertkit predict"
        )
    coverage = Coverage(opened.tokenizer.facts)
    features = list(coverage.passing(make_features(task, examples, opened.tokenizer, opened.labels)))
    warnings = [*source.warnings, *coverage.warnings(examples, source.description)]
    accelerator = make_accelerator(settings.device, world_from_environment().size, settings.launch.hang_timeout_seconds)
    with leaving_together(accelerator):
        micro_tokens = micro_batches.AUTO_MICRO_TOKENS[accelerator.device.type]
        model = accelerator.prepare_model(opened.model, evaluation_mode=True)
        predictor = opened.predictor(settings.precision, micro_tokens, model)
        losses: list[LossTerm] | None = [] if task.kind == "generation" else None
        predictions = answer(accelerator, predictor, examples, features, losses)
        told = {} if losses is None else {"perplexity": perplexity(mean_loss(accelerator, losses))}
        if not world_from_environment().is_main:
            return None
        for line in (source.describe(), *(f"warning: {text}" for text in warnings)):
            say(line, file=sys.stderr)
        # the numbers of labels as the task has them: f1 is of its label 1, whatever the model's order
        labels = task.label_names or opened.labels
        metrics = opened.shape.score(task, examples, predictions, labels) | told
        more = measured_beside(opened.shape.review(task, examples, predictions, labels))
        signed = signatures(task.metrics)
        more |= {"signatures": signed} if signed else {}
        return {**metrics, "num_examples": len(examples), "split": split, **more}


def _as_trained(settings: EvaluateSettings) -> EvaluateSettings:
    """Draw pairs as for the model's run, unless the command line says how: what a label means is the run's to say."""
    run_dir, segments = run_of(settings.model_dir), settings.segments
    is_given = "segments.next_sentence" in settings.given
    if run_dir is None or is_given or isinstance(segments, InstancesConfig) or not segments.has_pairs:
        return settings
    trained = read_manifest(run_dir).identity
    next_sentence = at(trained, "segments.next_sentence")
    if at(trained, "segments.kind") != segments.kind or next_sentence in (None, segments.next_sentence):
        return settings
    if world_from_environment().is_main:
        say(f"next_sentence={next_sentence}, as in the run of {settings.model_dir}", file=sys.stderr)
    return dataclasses.replace(settings, segments=dataclasses.replace(segments, next_sentence=next_sentence))


def _measures_instances(settings: EvaluateSettings, dataset: PreparedDataset) -> bool:
    """Whether the dataset's stored instances are what is measured: where it has them, unless pairs or blocks are given."""
    return settings.segments.kind == "google" or (has_instances(dataset) and "segments" not in settings.given)


def _sampler(settings: EvaluateSettings, dataset: PreparedDataset, split: str) -> ExampleSource:
    if _measures_instances(settings, dataset):
        return InstanceSampler(open_instances(dataset), settings.seed)
    assert isinstance(settings.segments, SegmentsConfig)
    return Sampler(dataset.splits[split], dataset.tokenizer.facts, settings.segments, settings.masking, settings.seed)


def _split_for(settings: EvaluateSettings, dataset: PreparedDataset) -> str:
    """The held-out documents when the model was trained on this very dataset, else all of it."""
    if _measures_instances(settings, dataset):
        if settings.split in ("held_out", "all"):
            raise InputError(
                f"split={settings.split}: {dataset.directory} holds fixed instances of all its documents; leave split out"
            )
        if "seed" in settings.given:
            raise InputError(
                f"seed={settings.seed}: has no effect on the fixed instances of {dataset.directory}; leave it out, or take "
                "segments=pairs"
            )
        return "train"
    if settings.split != "auto":
        return settings.split
    run_dir = run_of(settings.model_dir)
    if run_dir is not None and read_manifest(run_dir).data_fingerprint == dataset.fingerprint:
        return "held_out"
    return "all"
