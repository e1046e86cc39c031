"""Stage: a model on a task's labelled split -> its metrics; on a prepared dataset -> MLM and NSP loss and accuracy."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from torch import nn

from bertkit.batch import PretrainBatch
from bertkit.config import differences, to_mapping
from bertkit.data.config import InstancesConfig, MaskingConfig, SegmentsConfig
from bertkit.data.instances import has_instances, open_instances, stored_settings
from bertkit.data.prepared import SPLITS, PreparedDataset, Split, open_prepared
from bertkit.data.sampling import ExampleSource, InstanceSampler, Sampler
from bertkit.errors import InputError, NumericsError
from bertkit.interop.load import load_packed, load_tokenizer, resolve_model_dir
from bertkit.launch.launcher import world_from_environment
from bertkit.model.config import BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.run.answers import answer
from bertkit.run.directory import read_manifest, run_of
from bertkit.run.objective import pretraining_losses
from bertkit.run.task_model import check_labels, open_task_model, task_settings_of_run
from bertkit.settings.schemas import EvaluateSettings, PretrainSettings
from bertkit.tasks import shapes
from bertkit.tasks.coverage import Survey
from bertkit.tasks.files import readers
from bertkit.train import loop


def run(settings: EvaluateSettings) -> None:
    """Evaluate and print the metrics as JSON.

    Raises:
        InputError: the model has no masked LM head, or its vocabulary is not the dataset's; it is not of the task, or the
            split has no labels.
    """
    if settings.task is not None or task_settings_of_run(settings.model_dir) is not None:
        _evaluate_task(settings)
        return
    settings.check_for_prepared()
    assert settings.data_dir is not None, "required without a task"
    dataset = open_prepared(Path(settings.data_dir))
    model, report = load_packed(settings.model_dir)
    if "masked_lm" not in model.heads:
        raise InputError(
            f"model_dir={settings.model_dir}: no masked LM head to evaluate ({len(report.loaded)} tensors)"
        )
    segments, _ = as_stored(settings, dataset) if _measures_instances(settings, dataset) else (settings.segments, None)
    check_fit(model.config, dataset, segments)
    check_vocabulary(resolve_model_dir(settings.model_dir), dataset)
    accelerator = loop.make_accelerator(settings.device, world_from_environment().size)
    with loop.leaving_together(accelerator):
        _measure_and_print(settings, dataset, model, accelerator)


def _measure_and_print(
    settings: EvaluateSettings, dataset: PreparedDataset, model: BertWithHeads, accelerator: loop.Accelerator
) -> None:
    prepared_model = accelerator.prepare_model(model, evaluation_mode=True)
    chosen = _split_for(settings, dataset)
    names = SPLITS if chosen == "all" else (chosen,)
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name in names:
        if dataset.splits[name].num_documents == 0:
            continue
        sampler = _sampler(settings, dataset, name)
        for key, (value, count) in evaluate_split(
            accelerator, prepared_model, sampler, settings.max_sequences, settings.batch_sequences, settings.precision
        ).items():
            totals[key] = totals.get(key, 0.0) + value * count
            counts[key] = counts.get(key, 0) + count
    if not totals and has_instances(dataset):
        raise InputError(
            f"data_dir={settings.data_dir}: no documents in split {'+'.join(names)}, since fixed instances hold all of them; "
            "leave segments out to measure the instances, or set split=all, which is text that the model may have seen"
        )
    if not totals:
        raise InputError(
            f"data_dir={settings.data_dir}: no documents in split {'+'.join(names)}; prepare with a larger "
            "held_out_prob, or set split=all, which is text that the model may have seen"
        )
    if world_from_environment().is_main:
        metrics = {key: totals[key] / counts[key] for key in totals}
        if not all(map(math.isfinite, metrics.values())):
            raise NumericsError(f"model_dir={settings.model_dir}: a loss is not finite; its weights are beyond use")
        print(json.dumps({**metrics, "split": "+".join(names)}, indent=2))


def _evaluate_task(settings: EvaluateSettings) -> None:
    """Score a labelled split as fine-tuning scores its dev split."""

    opened = open_task_model(settings.model_dir, settings.task, settings.task_changes)
    task = opened.task
    settings.check_for_task(task)
    shapes.check_metrics(task)
    check_labels(settings.model_dir, opened)
    split = "dev" if settings.split == "auto" else settings.split
    source = readers.read_examples(task, settings.data_dir, split, opened.labels or None)
    examples = source.examples
    num_unlabelled = sum(not shapes.is_labelled(task, example) for example in examples)
    if num_unlabelled:
        raise InputError(
            f"split={split}: {source.description}: {num_unlabelled:,} of {len(examples):,} examples have no label to measure "
            "against; take split=dev, or bertkit predict"
        )
    survey = Survey(opened.tokenizer.facts)
    features = list(survey.passing(shapes.make_features(task, examples, opened.tokenizer, opened.labels)))
    warnings = [*source.warnings, *survey.warnings(examples, source.description)]
    accelerator = loop.make_accelerator(settings.device, world_from_environment().size)
    with loop.leaving_together(accelerator):
        predictions = answer(
            accelerator,
            accelerator.prepare_model(opened.model, evaluation_mode=True),
            task,
            examples,
            features,
            opened.labels,
            opened.tokenizer,
            precision=settings.precision,
            micro_tokens=loop.TOKENS_AT_ONCE[accelerator.device.type],
        )
        if world_from_environment().is_main:
            for line in (readers.describe(source), *(f"warning: {text}" for text in warnings)):
                print(line, file=sys.stderr)
            # the numbers of labels as the task has them: f1 is of its label 1, whatever the model's order
            metrics = shapes.score(task, examples, predictions, task.label_names or opened.labels)
            print(json.dumps({**metrics, "num_examples": len(examples), "split": split}, indent=2))


def _measures_instances(settings: EvaluateSettings, dataset: PreparedDataset) -> bool:
    """Whether the dataset's stored instances are what is measured: where it has them, unless pairs or blocks are given."""
    return settings.segments.kind == "google" or (has_instances(dataset) and "segments" not in settings.given)


def _sampler(settings: EvaluateSettings, dataset: PreparedDataset, split: str) -> ExampleSource:
    if _measures_instances(settings, dataset):
        return InstanceSampler(open_instances(dataset), settings.seed)
    assert isinstance(settings.segments, SegmentsConfig)
    return Sampler(dataset.splits[split], dataset.tokenizer.facts, settings.segments, settings.masking, settings.seed)


def as_stored(
    settings: PretrainSettings | EvaluateSettings, dataset: PreparedDataset
) -> tuple[InstancesConfig, MaskingConfig]:
    """Give the settings of the stored instances.

    Raises:
        InputError: there are none, or the command line or its experiment asks for something else than what is stored.
    """
    if not has_instances(dataset):
        raise InputError(
            f"data_dir={dataset.directory}: no fixed instances for segments=google; make them with bertkit prepare "
            "segments=google, or take segments=pairs"
        )
    segments, masking = stored_settings(dataset)
    wanted = {"segments": to_mapping(settings.segments), "masking": to_mapping(settings.masking)}
    stored = {"segments": to_mapping(segments), "masking": to_mapping(masking)}
    changed = [
        f"{key}={new!r} here, {old!r} there"
        for key, old, new in differences(stored, wanted)
        if key in settings.given or (key.startswith("masking.") and "masking" in settings.given)
    ]
    if changed:
        raise InputError(
            f"data_dir={dataset.directory} holds fixed instances, cut and masked already ({'; '.join(changed)}); leave these "
            "settings out or set them as there, or prepare another dataset with them"
        )
    return segments, masking


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
    if run_dir is not None and read_manifest(run_dir).get("data_fingerprint") == dataset.fingerprint:
        return "held_out"
    return "all"


def check_vocabulary(source: Path, dataset: PreparedDataset) -> None:
    """Refuse a model whose own tokenizer numbers the tokens otherwise than the dataset's; a model may come without one.

    Raises:
        InputError: naming the first token that differs.
    """
    folder = source if source.is_dir() else source.parent  # of a TensorFlow checkpoint's prefix
    if not any((folder / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        return
    theirs, ours = load_tokenizer(folder).vocab, dataset.tokenizer.vocab
    if theirs != ours:
        place = next((n for n, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), None)
        what = f"token {place} is {theirs[place]!r} and {ours[place]!r}" if place is not None else "one is longer"
        raise InputError(
            f"{folder}: its vocabulary of {len(theirs)} is not that of {dataset.directory}, {len(ours)} ({what}); prepare "
            f"the text with tokenizer.path={folder}"
        )


def check_fit(
    config: BertConfig,
    dataset: PreparedDataset,
    segments: SegmentsConfig | InstancesConfig,
    setting: str = "segments.max_seq_length",
) -> None:
    """Refuse a model and a dataset that do not belong together; `setting` is what the caller calls the length.

    Raises:
        InputError: another vocabulary size, sequences longer than the model's positions, or pairs for one segment type.
    """
    problems = []
    if config.vocab_size != dataset.tokenizer.vocab_size:
        problems.append(
            f"the model has a vocabulary of {config.vocab_size}, {dataset.directory} one of {dataset.tokenizer.vocab_size}; "
            "prepare the text with tokenizer.path= of the model's directory"
        )
    if segments.max_seq_length > config.max_position_embeddings:
        problems.append(
            f"max_seq_length={segments.max_seq_length} exceeds the model's max_position_embeddings="
            f"{config.max_position_embeddings}; "
            f"lower {setting}"
        )
    if segments.has_pairs and config.type_vocab_size < 2:
        problems.append(
            f"the model has type_vocab_size={config.type_vocab_size}, pairs need 2; take segments=full_sentences"
        )
    if problems:
        raise InputError("\n".join(problems))


def evaluate_split(
    accelerator: loop.Accelerator,
    model: nn.Module,
    sampler: ExampleSource,
    max_sequences: int | None,
    batch_sequences: int,
    precision: str = "fp32",
) -> dict[str, tuple[float, int]]:
    """Give `mlm_loss`, `mlm_accuracy`, `nsp_loss` and `nsp_accuracy` of a split, each with its number of predictions.

    The sequences are the same every time; each process takes a range of its own.
    """
    total = sampler.epoch_length if max_sequences is None else min(max_sequences, sampler.epoch_length)
    rank, size = accelerator.process_index, accelerator.num_processes
    first, last = total * rank // size, total * (rank + 1) // size

    def batches() -> Iterator[PretrainBatch]:
        for start in range(first, last, batch_sequences):
            yield sampler.in_order(start, min(start + batch_sequences, last))

    results = loop.evaluate(accelerator, model, functools.partial(pretraining_losses, precision=precision), batches())
    return {
        f"{name}_{kind}": (value, result.count)
        for name, result in results.items()
        for kind, value in (("loss", result.loss), ("accuracy", result.accuracy))
    }


def held_out_sampler(split: Split, sampler: Sampler) -> Sampler:
    """Give a sampler over held-out text with the settings of another, and the seed that evaluation always uses."""
    return Sampler(split, sampler.vocab, sampler.segments, sampler.masking, seed=0)
