"""The plan of a pretraining run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.typed_settings import refuse, to_mapping
from bertkit.data.batches.examples import open_examples
from bertkit.data.batches.sampling import DatasetExamples
from bertkit.data.corpus.prepared import PreparedDataset, check_usable, open_prepared
from bertkit.launch.world import world_from_environment
from bertkit.objectives.losses import pretraining_losses
from bertkit.objectives.objective import Objective, make_objective
from bertkit.run.directory import continued_identity, saved_identity
from bertkit.run.length_phases import choose_micro_sequences, lengths_of
from bertkit.run.opening import is_done
from bertkit.run.resume_rules import PRETRAIN, Rules, identity_of
from bertkit.run.run_length import RunLength, branch_step, choose_steps
from bertkit.run.starts.pretraining import objective_of, start_pretraining
from bertkit.run.starts.start import Start
from bertkit.run.state import Choices, make_choices
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train.micro_batches import micro_batch_ranges
from bertkit.train.processes import Accelerator, make_accelerator


@dataclass(frozen=True, kw_only=True)
class PretrainingPlan:
    """A pretraining run."""

    settings: PretrainSettings
    identity: dict[str, object]
    facts: dict[str, Any]  # for the manifest
    accelerator: Accelerator
    start: Start
    choices: Choices
    dataset: PreparedDataset
    examples: DatasetExamples
    objective: Objective
    length: RunLength
    most_steps: int | None  # of the checkpoint from which the run resumes, if it was shorter before

    @property
    def rules(self) -> Rules:
        """Which settings may change when the run is resumed."""
        return PRETRAIN

    @property
    def steps(self) -> int:
        """The number of steps in the run."""
        return self.settings.num_steps


def plan_pretraining(given: PretrainSettings) -> PretrainingPlan | None:
    """Plan a run, or return None if it is done; raises InputError if data, model and settings do not fit together."""
    own: dict[str, object] = {}
    if given.segments.is_fixed:  # the data's fingerprint covers their segments and masks
        own |= {"segments": {"kind": given.segments.kind}, "masking": None}
    begun = given.as_begun(saved_identity(Path(given.output_dir)))
    saved = continued_identity(begun, PRETRAIN, own)
    given = begun if saved else given
    known = _with_saved_steps(given, saved)
    own |= {"steps": known.steps}
    open_dataset = functools.cache(lambda: open_prepared(Path(given.data_dir)))

    def fingerprint() -> str:
        _examples_of(open_dataset(), given, is_next=False)  # refuses other settings than those of fixed instances
        return open_dataset().fingerprint

    if is_done(given, PRETRAIN, own, fingerprint):
        return None
    dataset, objective = open_dataset(), objective_of(given)
    examples = _examples_of(dataset, given, objective == "next_token" or given.predicts_next_token)
    masking = examples.masking or given.masking
    settings = dataclasses.replace(known, objective=objective, segments=examples.segments, masking=masking)
    check_usable(dataset)
    made = make_objective(settings.objective, settings.objective_options, pretraining_losses)
    refuse(
        masking.has("by_words")
        and not dataset.tokenizer.facts.borders.continues.any()
        and f"masking={masking.kind}: the vocabulary of {given.data_dir} does not mark where a word goes on; use masking=bert"
    )
    start = start_pretraining(settings, dataset)
    accelerator = make_accelerator(settings.device, world_from_environment().size, settings.launch.hang_timeout_seconds)
    choices = _choices_for_pretraining(settings, accelerator)
    length = choose_steps(settings, examples, start.model, accelerator, choices)
    settings = settings.with_steps(length.steps)
    content = {"data_fingerprint": dataset.fingerprint, "starting_weights": start.weights_sha256}
    return PretrainingPlan(
        settings=settings,
        identity=identity_of(to_mapping(given), PRETRAIN) | own | {"steps": length.steps} | content,
        facts={
            "data_fingerprint": dataset.fingerprint,
            "corpus": dataset.manifest["corpus"],
            "tokenizer_sha256": dataset.tokenizer.vocabulary_sha256,
            "init_from": start.init_from,
        },
        accelerator=accelerator,
        start=start,
        choices=choices,
        dataset=dataset,
        examples=examples,
        objective=made,
        length=length,
        most_steps=_most_steps(settings, saved),
    )


def _with_saved_steps(given: PretrainSettings, saved: Mapping[str, Any]) -> PretrainSettings:
    """Return the settings with the steps of the run that is resumed, if they are auto, or for as many epochs."""
    steps, is_same = saved.get("steps"), given.num_epochs in (None, saved.get("num_epochs"))
    return given.with_steps(steps) if given.steps == "auto" and is_same and isinstance(steps, int) else given


def _most_steps(settings: PretrainSettings, saved: Mapping[str, Any]) -> int | None:
    """Return the last step that a resumed run shares with a longer one, if it is to be longer now."""
    before = saved.get("steps")
    return branch_step(settings, before) if isinstance(before, int) and before < settings.num_steps else None


def _examples_of(dataset: PreparedDataset, given: PretrainSettings, is_next: bool) -> DatasetExamples:
    """Open the examples of a dataset; for next tokens (`is_next`), segments that suit them."""
    keys = given.explicit_keys
    segments = given.segments.for_next_tokens(keys) if is_next else given.segments
    return open_examples(dataset, segments, given.masking, keys, predicts_next_token=is_next)


def _choices_for_pretraining(settings: PretrainSettings, accelerator: Accelerator) -> Choices:
    """Choose what is auto, such as the size of a micro-batch, for this device."""
    cut = choose_micro_sequences(settings, accelerator.device.type, accelerator.num_processes)
    fewest = min(len(micro_batch_ranges(settings.batch.sequences, most)) for most in cut)
    return make_choices(settings, accelerator, cut, fewest, lengths=lengths_of(settings))
