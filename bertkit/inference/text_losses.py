"""Losses of a model on the text of a prepared dataset, as `evaluate` measures them: fixed sequences with fixed masks."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import at, refuse
from bertkit.data.batches.examples import open_examples
from bertkit.data.batches.instances import has_instances
from bertkit.data.batches.sampling import DatasetExamples
from bertkit.data.corpus.manifest import SPLITS
from bertkit.data.corpus.prepared import PreparedDataset, check_unchanged, open_prepared
from bertkit.inference.forward import with_perplexity
from bertkit.inference.held_out import HeldOutText, SplitLosses
from bertkit.inference.pseudo_perplexity import pseudo_perplexity, sample_sentences
from bertkit.interop.load import load_packed
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.kernels import fast
from bertkit.launch.world import say_once, world_from_environment
from bertkit.model.heads import BertWithHeads
from bertkit.run.directory import read_manifest, run_of
from bertkit.run.fitting import check_dataset
from bertkit.settings.evaluate import EvaluateSettings
from bertkit.settings.pretrain import unused_masking
from bertkit.train.accelerator import ending_together, make_accelerator, ranks_in
from bertkit.train.processes import Ranks


def losses_on_text(settings: EvaluateSettings) -> dict[str, Any] | None:
    """Measure a model on the text of a prepared dataset; return the losses in the main process, and None in the others."""
    settings.check_for_prepared()
    settings = _with_pairs_of_run(settings)
    assert settings.data_dir is not None, "required without a task"
    dataset = open_prepared(Path(settings.data_dir))
    model = load_packed(settings.model_dir).model
    model.use(fast.choose("auto"))
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
    check_dataset(model.config, dataset, examples.segments, resolve_model_dir(settings.model_dir))
    accelerator = make_accelerator(settings.device, world_from_environment().size, settings.launch.hang_timeout_seconds)
    with ending_together(accelerator):
        return _measure(settings, dataset, examples, model.to(accelerator.device), ranks_in(accelerator))


def _measure(
    settings: EvaluateSettings,
    dataset: PreparedDataset,
    examples: DatasetExamples,
    model: BertWithHeads,
    ranks: Ranks,
) -> dict[str, Any] | None:
    chosen, size, precision = _split_for(settings, dataset, examples), settings.batch_sequences, settings.precision
    names = SPLITS if chosen == "all" else (chosen,)
    check_unchanged(dataset, None if has_instances(dataset) else names)
    samplers = [examples.source(name, settings.seed) for name in names if name in examples.splits]
    measured = [
        HeldOutText(dataset, sampler, settings.max_sequences, size, precision).measure(ranks, model)
        for sampler in samplers
    ]
    if not measured:
        hint = "prepare more documents, or set a larger held_out_prob there,"
        if has_instances(dataset):
            hint = "all documents are in the fixed instances: leave segments out to measure the instances,"
        raise InputError(
            f"data_dir={settings.data_dir}: no documents in split {'+'.join(names)}; {hint} or set split=all"
        )
    pseudo = {}
    if "masked_lm" in model.heads:
        splits = [dataset.splits[name] for name in names if name in examples.splits]
        sentences = sample_sentences(splits, examples.segments.max_seq_length, settings.max_sequences)
        pseudo = pseudo_perplexity(ranks, model, sentences, dataset.tokenizer.facts, precision)
    if not world_from_environment().is_main:
        return None
    return with_perplexity(SplitLosses.joined(measured).metrics()) | pseudo | {"split": "+".join(names)}


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
    say_once(f"measuring next_sentence={next_sentence}, the objective of {settings.model_dir}", file=sys.stderr)
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
