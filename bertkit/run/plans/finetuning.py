"""The plan of a fine-tuning run."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from bertkit.base.errors import say
from bertkit.base.files import sha256_file
from bertkit.base.typed_settings import to_mapping
from bertkit.interop.load import load_tokenizer
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.launch.world import world_from_environment
from bertkit.objectives.losses import task_losses
from bertkit.objectives.objective import Objective, make_objective
from bertkit.run import finished, task_data
from bertkit.run.finished import continued_finetuning
from bertkit.run.resume_rules import FINETUNE, Rules, identity_of
from bertkit.run.starts.finetuning import start_finetuning
from bertkit.run.starts.fitting import check_task
from bertkit.run.starts.start import Start
from bertkit.run.state import Choices
from bertkit.run.task_data import TaskData
from bertkit.settings.finetune import FinetuneSettings
from bertkit.tasks.batching import TrainingOrder
from bertkit.tasks.reading.training_data import TrainingData
from bertkit.tasks.trainable import task_of
from bertkit.train.micro_batches import AUTO_MICRO_TOKENS
from bertkit.train.processes import Accelerator, choose_device, make_accelerator


@dataclass(frozen=True, kw_only=True)
class FinetuningPlan:
    """A fine-tuning run."""

    settings: FinetuneSettings
    identity: dict[str, object]
    facts: dict[str, Any]  # for the manifest
    accelerator: Accelerator
    start: Start
    choices: Choices
    data: TaskData
    order: TrainingOrder
    objective: Objective
    steps: int

    @property
    def rules(self) -> Rules:
        """Which settings may change when the run is resumed."""
        return FINETUNE

    @property
    def evaluation_tokens(self) -> int:
        """The most tokens in a forward pass of an evaluation."""
        return AUTO_MICRO_TOKENS[self.accelerator.device.type]

    def resumed_with(self, choices: Choices) -> FinetuningPlan:
        """Return the plan with the choices of the run, which may have begun with others."""
        if choices == self.choices:
            return self
        order = task_data.training_order(self.settings, self.data, choices, self.accelerator.num_processes)
        return dataclasses.replace(self, choices=choices, order=order)


def _objective_of(settings: FinetuneSettings) -> Objective:
    smoothing = settings.task.label_smoothing
    losses = functools.partial(task_losses, label_smoothing=smoothing)
    return make_objective(settings.objective, settings.objective_options, losses, smoothing)


def plan_finetuning(given: FinetuneSettings, read: TrainingData | None = None) -> FinetuningPlan:
    """Plan a run that is not finished; raises InputError if data, model and settings do not fit together.

    `read` has the examples, if a check has read them already.
    """
    settings = continued_finetuning(given)
    splits_of = functools.cache(lambda: finished.splits_of(settings, read))
    choose_device(settings.device)  # fail before reading all the files
    objective = _objective_of(settings)
    task_of(settings.task).check_metrics()
    if settings.calibrate:
        task_of(settings.task).decisions((), ())
    world = world_from_environment()
    source = None if settings.model_dir is None else resolve_model_dir(settings.model_dir)
    tokenizer = load_tokenizer(source) if source is not None else task_data.new_tokenizer(settings, splits_of)
    tokenizer.max_length = settings.task.max_seq_length  # saved, so that transformers truncates at the same length
    data = task_data.make_task_data(splits_of(), tokenizer)
    data.task.check_metrics()
    if world.is_main:
        say(*tokenizer.notes, *data.describe(settings))
    units = task_data.label_units(settings, data)
    start = start_finetuning(settings, source, tokenizer, data.labels, units)
    check_task(settings, start.model.config, tokenizer, data.has_pairs)
    settings = settings.with_rate(settings.rate_for(start.model.config.hidden_size))
    task_data.weigh_classes(settings, data)
    steps = task_data.steps_of(settings, data.batches, world.size)
    accelerator = make_accelerator(settings.device, world.size, settings.launch.hang_timeout_seconds)
    choices = task_data.choose(settings, accelerator)
    identity = identity_of(to_mapping(settings), FINETUNE)
    identity["data_fingerprint"] = finished.fingerprint(splits_of())
    identity["starting_weights"] = start.weights_sha256
    method = None if settings.dev_share is None else finished.held_out_by(settings)
    identity |= {} if method is None else {"dev_split": method}
    identity |= {"label_scale": units.scale} if units is not None else {}
    identity |= {"vocabulary": tokenizer.vocabulary_sha256} if source is None else {}  # trained again at every start
    return FinetuningPlan(
        settings=settings,
        identity=identity,
        facts={
            "corpus": {
                "description": data.train.source.description,
                "has_pairs": data.train.coverage.has_pairs,
                "files_sha256": [sha256_file(path) for path in data.train.source.files],
            },
            "tokenizer_sha256": tokenizer.vocabulary_sha256,
            "init_from": start.init_from,
        },
        accelerator=accelerator,
        start=start,
        choices=choices,
        data=data,
        order=task_data.training_order(settings, data, choices, world.size),
        objective=objective,
        steps=steps,
    )
