"""The plan of a pretraining run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.typed_settings import refuse, to_mapping
from bertkit.data.batches.sampling import DatasetExamples
from bertkit.data.corpus.prepared import PreparedDataset, check_usable, open_prepared
from bertkit.launch.world import world_from_environment
from bertkit.objectives.losses import pretraining_losses
from bertkit.objectives.objective import Objective, make_objective
from bertkit.run.finished import continued_pretraining, examples_of
from bertkit.run.length_phases import choose_micro_sequences, lengths_of
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


def plan_pretraining(given: PretrainSettings) -> PretrainingPlan:
    """Plan a run that is not finished; raises InputError if data, model and settings do not fit together."""
    continued = continued_pretraining(given)
    given, known = continued.given, continued.known
    dataset, objective = open_prepared(Path(given.data_dir)), objective_of(given)
    examples = examples_of(dataset, given, objective == "next_token" or given.predicts_next_token)
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
        identity=identity_of(to_mapping(given), PRETRAIN) | continued.own | {"steps": length.steps} | content,
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
        most_steps=_most_steps(settings, continued.saved),
    )


def _most_steps(settings: PretrainSettings, saved: Mapping[str, Any]) -> int | None:
    """Return the last step that a resumed run shares with a longer one, if it is to be longer now."""
    before = saved.get("steps")
    return branch_step(settings, before) if isinstance(before, int) and before < settings.num_steps else None


def _choices_for_pretraining(settings: PretrainSettings, accelerator: Accelerator) -> Choices:
    """Choose what is auto, such as the size of a micro-batch, for this device."""
    cut = choose_micro_sequences(settings, accelerator.device.type, accelerator.num_processes)
    fewest = min(len(micro_batch_ranges(settings.batch.sequences, most)) for most in cut)
    return make_choices(settings, accelerator, cut, fewest, lengths=lengths_of(settings))
