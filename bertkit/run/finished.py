"""A finished run is recognised before torch is imported: by its settings, its starting weights and its data."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertkit.base.errors import InputError
from bertkit.base.hub_ids import is_id
from bertkit.base.typed_settings import at, to_mapping
from bertkit.data.batches.examples import open_examples
from bertkit.data.batches.sampling import DatasetExamples
from bertkit.data.corpus.prepared import PreparedDataset, open_prepared
from bertkit.launch.world import say_once
from bertkit.run.directory import (
    RESULT,
    continued_identity,
    has_results,
    is_finished,
    read_manifest,
    read_scores,
    saved_identity,
)
from bertkit.run.resume_rules import FINETUNE, PRETRAIN, Rules, RunSettings, identity_of
from bertkit.run.start_weights import starting_weights
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.tasks.reading.held_out import STRATIFIED
from bertkit.tasks.reading.source import SplitExamples
from bertkit.tasks.reading.training_data import TrainingData, read_training_data
from bertkit.tasks.scoring.metrics import keys_of


def is_finetuned(given: FinetuneSettings, read: TrainingData | None = None) -> bool:
    """Return whether a fine-tuning run is finished, and print a line if so; `read` has the examples, if a check has read them."""
    settings = continued_finetuning(given)

    def fingerprint_of_splits() -> list[str]:
        splits = splits_of(settings, read)
        return fingerprint(splits.train, splits.dev)

    return _is_done(settings, FINETUNE, {}, fingerprint_of_splits)


class FinishedScores(NamedTuple):
    """What a finished run of fine-tuning measured."""

    values: dict[str, float]  # the task's metrics
    is_degenerate: bool  # whether it predicts the same for every example


def read_metrics(run_dir: Path, metrics: Sequence[str], file: str = RESULT) -> FinishedScores:
    """Read the metrics of a finished run; raises InputError if one is missing."""
    scores, names = read_scores(run_dir, file), keys_of(metrics)
    for name in names:
        if not isinstance(scores.get(name), (int, float)):
            raise InputError(f"{run_dir / file}: it has no number {name!r}; restore it")
    return FinishedScores({name: scores[name] for name in names}, bool(scores.get("is_degenerate")))


def is_pretrained(given: PretrainSettings) -> bool:
    """Return whether a pretraining run is finished, and print a line if so."""
    continued = continued_pretraining(given)
    settings = continued.given

    def fingerprint_of_dataset() -> str:
        dataset = open_prepared(Path(settings.data_dir))
        examples_of(dataset, settings, is_next=False)  # refuses other settings than those of fixed instances
        return dataset.fingerprint

    return _is_done(settings, PRETRAIN, continued.own, fingerprint_of_dataset)


def _is_done(settings: RunSettings, rules: Rules, own: dict[str, object], fingerprint: Callable[[], object]) -> bool:
    """Return whether this run is already finished, and print a line if so.

    Settings are compared first; those in `own` have another value in the identity. Then starting weights and data are compared,
    if they still exist. `fingerprint` reads all the data, so it is called last.
    """
    directory = Path(settings.output_dir)
    if not has_results(directory):
        return False
    identity = identity_of(to_mapping(settings), rules) | own
    if not is_finished(directory, identity, rules):
        return False
    content = starting_weights(settings)
    start = (read_manifest(directory).init_from or {}).get("model_dir")
    if not content and is_id(str(settings.model_dir)) and start not in (None, settings.model_dir):
        return False  # a model of the hub is known by its name
    if settings.data_dir is not None and Path(os.path.expanduser(settings.data_dir)).exists():
        content["data_fingerprint"] = fingerprint()
    if not is_finished(directory, content, rules):
        return False
    say_once(f"done already: the model is in {directory / 'model'}")
    return True


def continued_finetuning(given: FinetuneSettings) -> FinetuneSettings:
    """Return the settings of a run; one that is resumed keeps its learning rate and its epochs."""
    saved = saved_identity(Path(given.output_dir))
    rate, epochs = at(saved, "optimizer.peak_learning_rate"), saved.get("num_epochs")
    resumed = given.with_rate(rate) if isinstance(rate, float) else given
    resumed = resumed.with_epochs(epochs) if isinstance(epochs, (int, float)) else resumed
    return resumed if continued_identity(resumed, FINETUNE) else given


@dataclass(frozen=True)
class ContinuedPretraining:
    """The settings of a run: as `given`, but for defaults that it began with; and with its `known` number of steps."""

    given: PretrainSettings
    known: PretrainSettings
    own: dict[str, object]  # the settings that have another value in the identity
    saved: Mapping[str, Any]  # the identity of the run that is resumed; empty for a new one


def continued_pretraining(given: PretrainSettings) -> ContinuedPretraining:
    """Return the settings of a run; one that is resumed keeps what is not set."""
    own: dict[str, object] = {}
    if given.segments.is_fixed:  # the data's fingerprint covers their segments and masks
        own |= {"segments": {"kind": given.segments.kind}, "masking": None}
    begun = given.as_begun(saved_identity(Path(given.output_dir)))
    saved = continued_identity(begun, PRETRAIN, own)
    given = begun if saved else given
    steps, is_same = saved.get("steps"), given.num_epochs in (None, saved.get("num_epochs"))
    known = given.with_steps(steps) if given.steps == "auto" and is_same and isinstance(steps, int) else given
    return ContinuedPretraining(given, known, own | {"steps": known.steps}, saved)


def splits_of(settings: FinetuneSettings, read: TrainingData | None = None) -> TrainingData:
    """Return both splits: those that a check has `read`, unless the run keeps an older split."""
    method = held_out_by(settings)
    if read is not None and (settings.dev_share is None or read.method == method):
        return read
    return read_training_data(settings, method)


def held_out_by(settings: FinetuneSettings) -> str | None:
    """Return the method by which `dev_share` chooses examples; runs that earlier versions began keep theirs."""
    saved = continued_identity(settings, FINETUNE)
    return at(saved, "dev_split") if saved else STRATIFIED


def fingerprint(train: SplitExamples, dev: SplitExamples) -> list[str]:
    """Return a hash of the examples of each split, with 32 hexadecimal digits."""
    digests = []
    for split in (train, dev):
        digests.append(hashlib.blake2b(digest_size=16))
        for example in split.examples:
            digests[-1].update(repr(example).encode("utf-8", "surrogatepass"))
    return [digest.hexdigest() for digest in digests]


def examples_of(dataset: PreparedDataset, given: PretrainSettings, is_next: bool) -> DatasetExamples:
    """Open the examples of a dataset; for next tokens (`is_next`), segments that suit them."""
    keys = given.explicit_keys
    segments = given.segments.for_next_tokens(keys) if is_next else given.segments
    return open_examples(dataset, segments, given.masking, keys, predicts_next_token=is_next)
