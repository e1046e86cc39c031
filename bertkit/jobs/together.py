"""Fine-tuning on several tasks at once (Liu et al. 2019, MT-DNN): a job made of jobs.

    mrpc  FinetuningJob ---- head --+
    cola  FinetuningJob ---- head --+-- one encoder, one optimizer; the batch of a step is that of one task
    mnli  FinetuningJob ---- head --+

Each job keeps its task, its data and its model, whose encoder is that of the first job's model. A run trains the first model; the heads
of the others are what its objective trains beside it. At the end every task has a model of its own, as if it had been trained alone.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from bertkit.base.batch import Batch
from bertkit.base.errors import InputError, NumericsError, counted, say
from bertkit.base.files import to_json, write_durably
from bertkit.base.typed_settings import to_mapping
from bertkit.display.report import write_report
from bertkit.inference.forward import SplitScores
from bertkit.jobs import task_data
from bertkit.jobs.finetuning import FinetuningJob
from bertkit.jobs.finetuning_plan import in_directory, make_job
from bertkit.jobs.finetuning_result import BestOnDev, results_of
from bertkit.launch.world import say_once, world_from_environment
from bertkit.model.heads import BertWithHeads
from bertkit.model.label_scale import HEAD
from bertkit.objectives.losses import DeviceInputs, head_losses
from bertkit.objectives.objective import Objective
from bertkit.run import finished
from bertkit.run.choices import Choices
from bertkit.run.directory import RESULT
from bertkit.run.memory_plan import LargestBatch
from bertkit.run.opening import check, write_identity
from bertkit.run.publishing import write_files
from bertkit.run.state import TrainingState
from bertkit.run.trainer import run_steps
from bertkit.settings.finetune import FinetuneSettings
from bertkit.tasks.batching import TogetherOrder
from bertkit.train.accelerator import Accelerator
from bertkit.train.checkpoint import delete_old_checkpoints
from bertkit.train.losses import LossTerm

NAME = "together"  # of the objective, in the settings of a run


class TaskHeads(Objective):
    """The loss of the task that a batch is from; its only target has the name of the task."""

    def __init__(self, models: Mapping[str, BertWithHeads]) -> None:
        self.models = models  # by task, all with the same encoder

    def begin(self, model: BertWithHeads) -> nn.Module:
        """Return the heads of the other models."""
        return nn.ModuleDict({task: other.heads[HEAD] for task, other in self.models.items() if other is not model})

    def losses(self, model: nn.Module, batch: Batch, precision: str = "fp32") -> dict[str, LossTerm]:
        """Run the encoder and every head: the heads of other tasks get a gradient of 0, since every parameter needs one in every step."""
        inputs, ((task, target),) = DeviceInputs.of(model, precision), batch.targets.items()
        with inputs.autocast():
            pooled = model(**inputs.arguments(batch)).pooled_output
            logits = {name: member.heads[HEAD](pooled) for name, member in self.models.items()}
        labelled = dataclasses.replace(batch, targets={HEAD: target})
        (term,) = head_losses(self.models[task], labelled, {HEAD: logits.pop(task)}).values()
        nothing = 0 * sum(rows.float().sum() for rows in logits.values())
        return {task: dataclasses.replace(term, sum=term.sum + nothing)}


class TogetherJob(FinetuningJob):
    """Fine-tuning of one encoder on the examples of several tasks, with a head for each.

    Of the tasks' learning rates it takes the lowest, of their epochs the most, where these are auto. The best weights are those with the
    highest mean of the tasks' best metrics.
    """

    label = "fine-tuning together"

    def __init__(self, members: Mapping[str, FinetuningJob], directory: Path) -> None:
        """Join the jobs, which belong to this one from now on; the run is in `directory`, the results of each task in its own."""
        first, of_tasks = next(iter(members.values())), [job.settings for job in members.values()]
        rates = [settings.optimizer.peak for settings in of_tasks]
        shared: dict[str, Any] = {
            "optimizer": dataclasses.replace(first.settings.optimizer, peak_learning_rate=min(rates)),
            "num_epochs": max(settings.epochs for settings in of_tasks),
            "objective": NAME,
            "objective_options": {"tasks": [*members]},
        }
        for task, job in members.items():
            job.model.bert, job.data.batches.head = first.model.bert, task
            job.settings = dataclasses.replace(job.settings, **shared)
        settings = dataclasses.replace(first.settings, output_dir=str(directory))
        objective = TaskHeads({task: job.model for task, job in members.items()})
        super().__init__(settings, first.start, objective, first.data, first.units)
        self.members = members

    @property
    def content(self) -> dict[str, object]:
        """The hashes of all data and of the starting weights."""
        prints = [finished.fingerprint(job.data.train.source, job.data.dev.source) for job in self.members.values()]
        return super().content | {"data_fingerprint": [digest for pair in prints for digest in pair]}

    @property
    def facts(self) -> dict[str, Any]:
        """The files of all tasks, the tokenizer and the starting weights."""
        texts = [job.facts["corpus"] for job in self.members.values()]
        corpus = {
            "description": "; ".join(text["description"] for text in texts),
            "has_pairs": any(text["has_pairs"] for text in texts),
            "has_singles": any(text["has_singles"] for text in texts),
            "files_sha256": [digest for text in texts for digest in text["files_sha256"]],
            "decimal_marks": {mark: place for text in texts for mark, place in text["decimal_marks"].items()},
        }
        return super().facts | {"corpus": corpus}

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in which every training example of every task is used once."""
        return sum(job.steps_per_epoch for job in self.members.values())

    def order_by(self, choices: Choices) -> TogetherOrder:
        """Return the task of each step, and its training examples, for some choices."""
        orders = {task: job.order_of_task(choices) for task, job in self.members.items()}
        return TogetherOrder(orders, self.settings.seed)

    def lines(self, state: TrainingState) -> list[str]:
        """Describe the share of each task, and what every run describes."""
        shares = [f"{counted(job.steps_per_epoch, 'step')} of {task}" for task, job in self.members.items()]
        return [f"one encoder, {len(shares)} heads; in an epoch {', '.join(shares)}", *super().lines(state)]

    def largest_batches(self) -> list[LargestBatch]:
        """Return the largest micro-batch of each task."""
        orders = self.order_by(self.choices).orders.values()
        return [task_data.largest_batch(self.settings, self.model, order, self.objective) for order in orders]

    def scores(self, accelerator: Accelerator) -> dict[str, SplitScores]:
        """Predict and score the dev rows of each task."""
        for job in self.members.values():
            job.model.fast = self.model.fast  # the kernels of the run
        return {task: job.score(accelerator, job.model) for task, job in self.members.items()}

    def measure(self, accelerator: Accelerator, model: nn.Module) -> dict[str, float]:
        """Return the scores of each task as TASK_METRIC, and the means of their best metrics and of their losses."""
        return self._metrics(self.scores(accelerator))

    def _metrics(self, scores: Mapping[str, SplitScores]) -> dict[str, float]:
        metrics = {f"{task}_{name}": value for task, dev in scores.items() for name, value in dev.scores.items()}
        best = [dev.scores[self.members[task].data.task.config.best_metric] for task, dev in scores.items()]
        return metrics | {
            "score": statistics.fmean(best),
            "loss": statistics.fmean(dev.loss for dev in scores.values()),
        }

    def score_of(self, metrics: Mapping[str, float]) -> float:
        """Return the mean score."""
        return metrics["score"]

    def dev_lines(self, metrics: Mapping[str, float]) -> list[str]:
        """Describe the scores of each task."""
        return [f"  dev: {', '.join(f'{name} {value:.4f}' for name, value in metrics.items())}"]

    def publish(self, state: TrainingState) -> None:
        """Score the best weights; write the model, predictions and metrics of each task into its directory, and the means and the report here."""
        best_step = state.load_best()
        scores = self.scores(state.accelerator)
        if not state.accelerator.is_main_process:
            return
        for task, job in self.members.items():
            place, dev = Path(job.settings.output_dir), scores[task]
            best = BestOnDev(best_step, dev.scores, dev.predictions, chosen_by="mean score")
            results = results_of(job.settings, state, self.steps_per_epoch, job.data, best, job.baseline)
            place.mkdir(parents=True, exist_ok=True)
            write_identity(place, to_mapping(job.settings), job.identity, job.facts)
            write_files(place, job.model, self.tokenizer, results.facts, results.files)
            write_report(place, {}, self.charts, results.review)
            write_durably(place / RESULT, to_json(results.result))
            say(f"{task} {results.line}", f"model:  {place / 'model'}", f"report: {place / 'report.html'}")
        write_report(state.directory, self.baselines(self.steps), self.charts)
        delete_old_checkpoints(state.directory, self.steps, state.writer.config.keep_last, (best_step,))
        metrics = self._metrics(scores)
        write_durably(state.directory / RESULT, to_json(metrics | {"best_step": best_step}))
        say(f"mean score {metrics['score']:.4f}", f"report: {state.directory / 'report.html'}")


def plan_together(runs: Sequence[FinetuneSettings], directory: Path) -> TogetherJob:
    """Plan a run on several tasks of texts, whose settings differ in the task and its directory alone; InputError as `plan_finetuning`."""
    members = {}
    for settings in runs:
        splits_of = functools.cache(functools.partial(finished.splits_of, settings))
        members[settings.task.name] = make_job(settings, splits_of, Objective())
    units = [task for task, job in members.items() if job.units is not None]
    if units:
        raise InputError(f"{units[0]}: numbers without a stated range are not learned together with other tasks")
    job = in_directory(TogetherJob(members, directory))
    for member in members.values():
        check(Path(member.settings.output_dir), member.identity, member.rules, member.settings.resume.allow)
    return job


def finetune_together(
    runs: Sequence[FinetuneSettings], directory: Path
) -> Iterator[tuple[FinetuneSettings, NumericsError | None]]:
    """Train or resume a run on several tasks, in all its processes; a finished one stays as it is.

    On process 0, yields the settings of each task, with the error if the numbers were not finite. The other errors are those of
    `run_steps` and `plan_together`.
    """
    is_main, failed = world_from_environment().is_main, None
    say_once(f"-- {', '.join(settings.task.name for settings in runs)} together, seed {runs[0].seed}")
    job = plan_together(runs, directory)
    places = [directory, *(Path(settings.output_dir) for settings in runs)]
    has_results = all((place / RESULT).is_file() for place in places)
    is_done = has_results and not check(directory, job.identity, job.rules, job.settings.resume.allow)
    if is_done:
        say_once(f"done already: {directory}")
    try:
        for _ in () if is_done else run_steps(job):
            pass
    except NumericsError as error:
        failed = error
    yield from ((settings, failed) for settings in runs if is_main)
