"""Stage: measure a model on the labelled split of a task, or by its MLM and NSP losses on a prepared dataset."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError, say
from bertkit.base.typed_settings import at, refuse
from bertkit.data.batches.examples import open_examples
from bertkit.data.batches.instances import has_instances
from bertkit.data.batches.sampling import DatasetExamples
from bertkit.data.corpus.manifest import SPLITS
from bertkit.data.corpus.prepared import PreparedDataset, check_unchanged, open_prepared
from bertkit.inference.forward import mean_loss, measure_split, predict_distributed, with_perplexity
from bertkit.inference.task_model import check_labels, open_task_model, task_settings_of_run
from bertkit.interop.load import load_packed, resolve_model_dir
from bertkit.launch.world import world_from_environment
from bertkit.model.heads import BertWithHeads
from bertkit.run.directory import read_manifest, run_of
from bertkit.run.start import check_dataset, check_vocabulary
from bertkit.run.task_data import Coverage
from bertkit.settings.evaluate import EvaluateSettings
from bertkit.settings.pretrain import unused_masking
from bertkit.tasks.reading import readers
from bertkit.tasks.scoring.baseline import Baseline
from bertkit.tasks.scoring.metrics import signatures
from bertkit.tasks.scoring.review import eval_json_parts
from bertkit.tasks.trainable import task_of
from bertkit.train.losses import LossTerm
from bertkit.train.micro_batches import AUTO_MICRO_TOKENS
from bertkit.train.processes import Accelerator, ending_together, make_accelerator


def run(settings: EvaluateSettings) -> None:
    """Evaluate a model, and print the metrics."""
    metrics = scores(settings)
    if metrics is not None:
        say(*json.dumps(metrics, indent=2).split("\n"))


def scores(settings: EvaluateSettings) -> dict[str, Any] | None:
    """Evaluate a model; return the metrics in the main process, and None in the others."""
    if settings.task is not None or task_settings_of_run(settings.model_dir) is not None:
        return _evaluate_task(settings)
    settings.check_for_prepared()
    settings = _with_pairs_of_run(settings)
    assert settings.data_dir is not None, "required without a task"
    dataset = open_prepared(Path(settings.data_dir))
    model, _ = load_packed(settings.model_dir)
    predicts_next_token = "next_token" in model.heads
    if predicts_next_token:
        refuse(unused_masking(settings.explicit_keys))
        settings = dataclasses.replace(settings, segments=settings.segments.for_next_tokens(settings.explicit_keys))
    elif "masked_lm" not in model.heads:
        raise InputError(
            f"model_dir={settings.model_dir}: no head for masked LM or next tokens; set task= to measure it on a task"
        )
    examples = open_examples(
        dataset,
        settings.segments,
        settings.masking,
        settings.explicit_keys,
        predicts_next_token=predicts_next_token,
        draws_from_any=True,
    )
    check_dataset(model.config, dataset, examples.segments)
    check_vocabulary(resolve_model_dir(settings.model_dir), dataset)
    accelerator = make_accelerator(settings.device, world_from_environment().size, settings.launch.hang_timeout_seconds)
    with ending_together(accelerator):
        return _measure(settings, dataset, examples, model, accelerator)


def _measure(
    settings: EvaluateSettings,
    dataset: PreparedDataset,
    examples: DatasetExamples,
    model: BertWithHeads,
    accelerator: Accelerator,
) -> dict[str, Any] | None:
    prepared_model = accelerator.prepare_model(model, evaluation_mode=True)
    chosen, size, precision = _split_for(settings, dataset, examples), settings.batch_sequences, settings.precision
    names = SPLITS if chosen == "all" else (chosen,)
    check_unchanged(dataset, None if has_instances(dataset) else names)
    samplers = [examples.source(name, settings.seed) for name in names if name in examples.splits]
    most, measured = settings.max_sequences, dict[str, list[tuple[float, int]]]()
    for sampler in samplers:
        for key, pair in measure_split(accelerator, prepared_model, sampler, most, size, precision).items():
            measured.setdefault(key, []).append(pair)
    if not measured:
        hint = "prepare more documents, or set a larger held_out_prob there,"
        if has_instances(dataset):
            hint = "all documents are in the fixed instances: leave segments out to measure the instances,"
        raise InputError(
            f"data_dir={settings.data_dir}: no documents in split {'+'.join(names)}; {hint} or set split=all"
        )
    if not world_from_environment().is_main:
        return None
    means = {
        key: sum(value * count for value, count in pairs) / sum(count for _, count in pairs)
        for key, pairs in measured.items()
    }
    return with_perplexity(means) | {"split": "+".join(names)}


def _evaluate_task(settings: EvaluateSettings) -> dict[str, Any] | None:
    """Measure a labelled split in the same way as fine-tuning measures its dev split."""
    opened = open_task_model(settings.model_dir, settings.task, settings.task_changes)
    config, labels = opened.task.config, opened.task.labels
    settings.check_for_task(config)
    task = task_of(config, config.label_names or labels)  # its second label is the positive class of f1
    task.check_metrics()
    check_labels(settings.model_dir, opened.task)
    split = "dev" if settings.split == "auto" else settings.split
    if settings.task is None and settings.data_dir is None and not {"files", "hub"} & settings.task_changes.keys():
        raise InputError(
            f"model_dir={settings.model_dir}: missing value: set data_dir= to the folder of {config.name}, or task.files.{split}=, or "
            f"task={config.name} for its dataset on the hub; files that are named in a run's settings are not opened"
        )
    source = readers.read_examples(config, settings.data_dir, split, labels or None)
    examples = source.examples
    num_unlabelled = sum(not task.is_labelled(example) for example in examples)
    if num_unlabelled:
        raise InputError(
            f"split={split}: {source.description}: {num_unlabelled:,} of {len(examples):,} examples have no label; use predict"
        )
    coverage = Coverage(opened.tokenizer.facts)
    features = list(coverage.counted(opened.task.each_feature(examples, opened.tokenizer)))
    accelerator = make_accelerator(settings.device, world_from_environment().size, settings.launch.hang_timeout_seconds)
    with ending_together(accelerator):
        model = accelerator.prepare_model(opened.model, evaluation_mode=True)
        predictor = opened.predictor(settings.precision, AUTO_MICRO_TOKENS[accelerator.device.type], model)
        losses: list[LossTerm] = []
        predictions = predict_distributed(accelerator, predictor, examples, features, losses)
        by_loss = task.loss_scores(mean_loss(accelerator, losses))
    if not world_from_environment().is_main:
        return None
    warnings = [*source.warnings, *coverage.warnings(examples, source.description)]
    say(source.describe(), *(f"warning: {warning}" for warning in warnings), file=sys.stderr)
    metrics = task.score(examples, predictions) | by_loss
    signed = signatures(config.metrics)
    return {
        **metrics,
        "intervals": Baseline(task, examples, None, {}).intervals(predictions, metrics),
        "num_examples": len(examples),
        "split": split,
        **eval_json_parts(task.review(examples, predictions)),
        **({"signatures": signed} if signed else {}),
    }


def _with_pairs_of_run(settings: EvaluateSettings) -> EvaluateSettings:
    """Use the next sentence objective of the model's own run, unless the command line sets it."""
    run_dir, segments = run_of(settings.model_dir), settings.segments
    is_set = "segments.next_sentence" in settings.explicit_keys
    if run_dir is None or is_set or segments.kind != "pairs":
        return settings
    trained = read_manifest(run_dir).identity
    next_sentence = at(trained, "segments.next_sentence")
    if at(trained, "segments.kind") != segments.kind or next_sentence in (None, segments.next_sentence):
        return settings
    if world_from_environment().is_main:
        say(f"measuring next_sentence={next_sentence}, the objective of {settings.model_dir}", file=sys.stderr)
    return dataclasses.replace(settings, segments=dataclasses.replace(segments, next_sentence=next_sentence))


def _split_for(settings: EvaluateSettings, dataset: PreparedDataset, examples: DatasetExamples) -> str:
    """Return the split to measure; by default held_out if the model was trained on this dataset, else all documents."""
    if examples.segments.is_fixed:
        if settings.split in ("held_out", "all"):
            raise InputError(
                f"split={settings.split}: the instances of {dataset.directory} have no splits; leave split out"
            )
        if "seed" in settings.explicit_keys:
            raise InputError(
                f"seed={settings.seed}: has no effect on the instances of {dataset.directory}; leave it out"
            )
        return "train"
    if settings.split != "auto":
        return settings.split
    run_dir = run_of(settings.model_dir)
    if run_dir is not None and read_manifest(run_dir).data_fingerprint == dataset.fingerprint:
        return "held_out"
    return "all"
