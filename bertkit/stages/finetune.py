"""Stage: any model and a task's files -> a model of the task, and its scores on the dev split.

1. Read the files, make the features, load the model; nothing is written before.
2. Open the run directory: a new one, or the same run's, to resume from its newest valid checkpoint.
3. Train; evaluate at the end of every epoch, and keep the weights of the best score.
4. Write the best model, its metrics and predictions, and the report.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit import signs
from bertkit.batch import IGNORED
from bertkit.config import to_mapping
from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import InputError
from bertkit.files import building_dir, to_json, write_durably
from bertkit.interop.exports import card
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.interop.load import load_tokenizer, resolve_model_dir, write_model
from bertkit.launch.launcher import world_from_environment
from bertkit.model import kernels
from bertkit.model.config import POOLED_HEADS
from bertkit.model.depth import depth_of, freeze_below, reinitialise_top
from bertkit.model.heads import BertWithHeads
from bertkit.progress import Progress
from bertkit.run import directory as runs
from bertkit.run import rules as resume_rules
from bertkit.run.answers import answer, mean_loss
from bertkit.run.memory import Planned, memory_lines, processes_here
from bertkit.run.memory_plan import StepShape
from bertkit.run.objective import task_losses
from bertkit.run.state import Chosen, TrainingRun, compiles
from bertkit.run.trainer import TrainingStage, opened
from bertkit.settings.schemas import FinetuneSettings
from bertkit.tasks import shapes
from bertkit.tasks.batching import Cut, FeatureBatches, TrainingOrder
from bertkit.tasks.coverage import Survey
from bertkit.tasks.files import readers
from bertkit.tasks.task import Feature
from bertkit.train import loop
from bertkit.train.checkpoint import rotate
from bertkit.train.losses import LossTerm
from bertkit.train.summation import FEWEST_PARTS, num_parts_for
from bertkit.view import console
from bertkit.view.report import TASK_CHARTS, write_report

RULES = resume_rules.FINETUNE
SCORE = "score"  # the label of a regression
LOOKED_AT = 50  # steps, to know how large a micro-batch gets; a millisecond each


@dataclass(frozen=True)
class Split:
    """The examples of a split, and what the model sees of them."""

    source: readers.Source
    survey: Survey

    def describe(self) -> list[str]:
        """Say what was read and how much of it does not fit, and then the warnings, a line each."""
        num_cut, num_windows = self.survey.num_truncated, self.survey.num_features
        num_examples = len(self.source.examples)
        windows = f"; {num_windows:,} windows" if num_windows > num_examples else ""
        cut = f"truncated {num_cut:,} ({num_cut / num_examples:.1%}){windows}"
        warnings = [*self.source.warnings, *self.survey.warnings(self.source.examples, self.source.description)]
        return [f"{readers.describe(self.source)}; {cut}", *(f"warning: {warning}" for warning in warnings)]


def run(settings: FinetuneSettings) -> None:
    """Fine-tune, resume, or say that it is done.

    Raises:
        InputError: settings, files or starting weights do not fit together, or the directory holds another run.
        LockedError: the run is live elsewhere.
        StorageError: a disk is full or fails, or every checkpoint is damaged.
        NumericsError: the gradient stopped being finite.
        StoppedError: a signal asked the run to stop; its checkpoint is saved.
    """
    directory = Path(settings.output_dir)
    identity = resume_rules.identity_of(to_mapping(settings), RULES)
    world = world_from_environment()
    if runs.is_finished(directory, identity, RULES) and runs.is_finished(directory, _known(settings), RULES):
        if world.is_main:
            print(f"done already: the model is in {directory / 'model'}")
        return
    loop.choose_device(settings.device)  # refused before all the files are read
    shapes.check_metrics(settings.task, settings.task.label_names)
    source = resolve_model_dir(settings.model_dir)
    tokenizer = load_tokenizer(source)
    train, batches, dev, dev_features = load_task_data(settings, tokenizer)
    labels = train.source.labels
    shapes.check_metrics(settings.task, labels)
    model, start = _load_model(settings, source, tokenizer, labels)
    _check_fit(settings, model, [train, dev])
    _weigh_classes(settings, batches, labels)
    _check_steps(settings, batches, world.size)
    if world.is_main:
        for split in (train, dev):
            print("\n".join(split.describe()))
        print(f"starting from {settings.model_dir}: {start['summary']}")
    accelerator = loop.make_accelerator(settings.device, world.size)
    chosen = _choose(settings, accelerator)
    order = TrainingOrder(batches, settings.batch.sequences, settings.seed, Cut(**chosen.cut))
    loop.check_layout(order.fewest_parts, chosen.num_parts, world.size)
    identity["data_fingerprint"] = [_fingerprint(split.source.examples) for split in (train, dev)]
    identity["starting_weights"] = start["sha256"]
    facts = {
        "corpus": {"description": train.source.description, "has_pairs": train.survey.has_pairs},
        "tokenizer_sha256": hashlib.sha256(tokenizer.files(0)["vocab.txt"].encode()).hexdigest(),
        "init_from": start,
    }
    with opened(accelerator, settings, identity, facts, RULES) as record_changes:
        _Finetuning(settings, batches, dev, dev_features, labels, model, tokenizer, accelerator, chosen).run(
            record_changes
        )


def _known(settings: FinetuneSettings) -> dict[str, Any]:
    """The files and starting weights as they identify a run; nothing of those that are no longer here to be read."""
    known: dict[str, Any] = {}
    if Path(settings.model_dir).expanduser().exists():
        known["starting_weights"] = huggingface.hashes_of(resolve_model_dir(settings.model_dir))
    if settings.data_dir is not None and Path(settings.data_dir).expanduser().exists():
        known["data_fingerprint"] = [_fingerprint(source.examples) for source in read_splits(settings)]
    return known


def read_splits(settings: FinetuneSettings) -> tuple[readers.Source, readers.Source]:
    """Read the splits to train on and to measure on.

    Raises:
        InputError: one of them is missing, or something in it is wrong.
    """
    task, data_dir = settings.task, settings.data_dir
    train = readers.read_examples(task, data_dir, "train")
    if settings.dev_share is not None:
        train, dev = readers.hold_out(train, settings.dev_share)
    else:
        try:
            readers.find_file(task, data_dir, "dev")
        except InputError as error:
            raise InputError(
                f"{error}; finetune needs a dev split, or dev_share=0.1 to hold out a tenth of train"
            ) from None
        dev = readers.read_examples(task, data_dir, "dev", train.labels or None)
    if settings.max_train_examples is not None:
        train = dataclasses.replace(train, examples=train.examples[: settings.max_train_examples])
    return train, dev


def load_task_data(
    settings: FinetuneSettings, tokenizer: Tokenizer
) -> tuple[Split, FeatureBatches, Split, list[Feature]]:
    """Read the training split, packed at once since it may be large, and the dev split with its features."""
    task = settings.task
    train, dev = (Split(source, Survey(tokenizer.facts)) for source in read_splits(settings))
    first, second = (
        split.survey.passing(shapes.make_features(task, split.source.examples, tokenizer, train.source.labels))
        for split in (train, dev)
    )
    batches = FeatureBatches(first, shapes.HEADS[task.kind], shapes.num_choices_of(task, train.source.examples))
    return train, batches, dev, list(second)


def _fingerprint(examples: Sequence[Any]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for example in signs.beating(examples):
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _load_model(
    settings: FinetuneSettings, source: Path, tokenizer: Tokenizer, labels: tuple[str, ...]
) -> tuple[BertWithHeads, dict[str, Any]]:
    """Load the model with the task's head, a new one where it has none of these labels."""
    head = shapes.HEADS[settings.task.kind]
    named: dict[str, Any] = {"labels": labels} if labels else {}
    if settings.task.is_regression:
        named = {"labels": (SCORE,), "problem_type": "regression"}
    if settings.task.multi_label:
        named["problem_type"] = "multi_label_classification"
    model, report = huggingface.load(source, (head,), head in POOLED_HEADS, settings.seed, **named)
    num_layers = model.config.num_hidden_layers
    settings.frozen_depth(num_layers)
    if settings.reinit_layers > num_layers:
        raise InputError(f"reinit_layers={settings.reinit_layers}: the model has {num_layers} layers; lower it")
    if tokenizer.vocab_size != model.config.vocab_size:
        raise InputError(
            f"model_dir={settings.model_dir}: the tokenizer has {tokenizer.vocab_size} tokens, the model "
            f"{model.config.vocab_size}; they do not belong together"
        )
    reinitialise_top(model, settings.reinit_layers, settings.seed)
    summary = huggingface.summary(report)
    return model, {"model_dir": settings.model_dir, "summary": summary, "sha256": huggingface.hashes_of(source)}


def _check_fit(settings: FinetuneSettings, model: BertWithHeads, splits: list[Split]) -> None:
    config, task = model.config, settings.task
    if task.max_seq_length > config.max_position_embeddings:
        raise InputError(
            f"task.max_seq_length={task.max_seq_length} exceeds the model's max_position_embeddings="
            f"{config.max_position_embeddings}; lower task.max_seq_length"
        )
    if any(split.survey.has_pairs for split in splits) and config.type_vocab_size < 2:
        raise InputError(f"model_dir={settings.model_dir}: type_vocab_size={config.type_vocab_size}, pairs need 2")


def _weigh_classes(settings: FinetuneSettings, batches: FeatureBatches, labels: tuple[str, ...]) -> None:
    weights = settings.class_weights
    if weights is None:
        return
    if weights == "balanced":
        assert batches.labels is not None, "training examples have labels"
        weights = balanced_weights(batches.labels, len(labels))
    if len(weights) != len(labels):
        raise InputError(f"class_weights={list(weights)}: expected {len(labels)}, of {', '.join(labels)}")
    batches.class_weights = np.array(weights)


def balanced_weights(labels: NDArray[Any], num_labels: int) -> tuple[float, ...]:
    """Weigh each label by n / (labels * its count), so that all of them count alike; a label never seen weighs 1."""
    counts = np.bincount(labels[labels != IGNORED], minlength=num_labels).tolist()
    return tuple(sum(counts) / (num_labels * count) if count else 1.0 for count in counts)


def _steps_of(settings: FinetuneSettings, batches: FeatureBatches) -> int:
    return math.ceil(settings.num_epochs * -(-len(batches) // settings.batch.sequences))


def _check_steps(settings: FinetuneSettings, batches: FeatureBatches, num_processes: int) -> None:
    steps = _steps_of(settings, batches)
    if settings.warmup_of(steps) > steps:
        raise InputError(
            f"schedule.warmup_steps={settings.schedule.warmup_steps} exceeds the {steps} steps of the run; lower the "
            "warm-up or train longer"
        )
    rest = len(batches) % settings.batch.sequences or settings.batch.sequences
    if rest < num_processes:
        raise InputError(
            f"the last batch of an epoch has {rest} example(s) for {num_processes} processes; change batch.sequences, or "
            "start fewer processes"
        )


class _Finetuning(TrainingStage[FinetuneSettings]):
    """A fine-tuning run."""

    label = "fine-tuning"

    def __init__(
        self,
        settings: FinetuneSettings,
        batches: FeatureBatches,
        dev: Split,
        dev_features: list[Feature],
        labels: tuple[str, ...],
        model: BertWithHeads,
        tokenizer: Tokenizer,
        accelerator: loop.Accelerator,
        chosen: Chosen,
    ) -> None:
        num_layers = model.config.num_hidden_layers
        # the tops of the encoder train at the full rate times layer_decay, the head at the full rate
        training = TrainingRun(
            accelerator,
            Path(settings.output_dir),
            model,
            tokenizer,
            settings.optimizer,
            saving=settings.checkpoint,
            chosen=chosen,
            freeze=functools.partial(freeze_below, depth=settings.frozen_depth(num_layers)),
            rate_scale_of=lambda name: settings.layer_decay ** (num_layers + 1 - depth_of(name, num_layers)),
        )
        steps = _steps_of(settings, batches)
        super().__init__(
            settings,
            accelerator,
            training,
            steps=steps,
            warmup_steps=settings.warmup_of(steps),
            losses=functools.partial(task_losses, precision=settings.precision),
        )
        self.examples_of_dev, self.features = dev.source.examples, dev_features
        self.labels, self.tokenizer = labels, tokenizer
        self.order = TrainingOrder(batches, settings.batch.sequences, settings.seed, Cut(**training.chosen.cut))
        loop.check_layout(self.order.fewest_parts, training.chosen.num_parts, accelerator.num_processes)

    def batches(self, step: int) -> loop.Numbered:
        """Give this process's micro-batches of a step, counted from 0."""
        return self.order.micro_batches(step, self.accelerator.process_index, self.accelerator.num_processes)

    def examples(self, step: int) -> list[int]:
        """Number the examples of the batch of a step, counted from 0."""
        numbers: list[int] = self.order.items(step).tolist()
        return numbers

    def row_of(self, step: int) -> dict[str, Any]:
        """Say how many epochs are done."""
        return {"epoch": round(step / self.order.steps_per_epoch, 4)}

    def is_due(self, step: int, every_steps: int | str) -> bool:
        """Whether something that is done every so many steps, or every epoch, is done after this one."""
        return super().is_due(step, self.order.steps_per_epoch if every_steps == "epoch" else every_steps)

    def is_over(self, step: int) -> bool:
        """Whether the last step is done, or the score has not improved for too long."""
        patience = self.settings.evaluation.patience
        return step >= self.steps or (patience is not None and self.training.standing.num_worse >= patience)

    def evaluate(self, step: int) -> tuple[dict[str, float], bool]:
        """Measure on the dev split; the weights of the best score are kept."""
        metrics, _, loss = self._evaluate()
        is_best = self.training.is_best(step, metrics[self.settings.task.best_metric])
        standing = self.training.standing
        standing.num_worse = 0 if is_best else standing.num_worse + 1
        return metrics | {"loss": loss}, is_best

    def show(self, step: int, metrics: dict[str, float], progress: Progress) -> None:
        """Print the scores, and draw the report."""
        progress.line(f"  dev: {console.scores_line(metrics)}")
        write_report(self.directory, {}, TASK_CHARTS)

    def _evaluate(self) -> tuple[dict[str, float], list[Any], float]:
        """Give the scores on the dev split, the predictions, and the mean loss, in which all classes weigh alike."""
        losses: list[LossTerm] = []
        task, examples = self.settings.task, self.examples_of_dev
        predictions = answer(
            self.accelerator,
            self.training.model,
            task,
            examples,
            self.features,
            self.labels,
            self.tokenizer,
            precision=self.settings.precision,
            micro_tokens=loop.TOKENS_AT_ONCE[self.accelerator.device.type],
            losses=losses,
        )
        scores = shapes.score(task, examples, predictions, self.labels)
        return scores, predictions, mean_loss(self.accelerator, losses)

    def introduce(self) -> None:
        """Say what is going to happen."""
        settings, config = self.settings, self.packed.config
        size = sum(parameter.numel() for parameter in self.packed.parameters())
        trained = sum(parameter.numel() for parameter in self.training.names)
        how = f"{settings.precision} on {self.accelerator.device.type}, {self.accelerator.num_processes} process(es)"
        print(console.model_line(size, config.num_hidden_layers, config.hidden_size, list(self.packed.heads), how))
        if trained < size:
            print(f"frozen: {settings.freeze}; {trained / 1e6:.1f} M parameters are trained")
        print(
            f"{self.order.steps_per_epoch} steps an epoch, {settings.num_epochs:g} epochs; {settings.batch.sequences} "
            f"examples a step; learning rate {settings.optimizer.peak_learning_rate:g} after {self.warmup_steps:g} steps"
        )
        for line in memory_lines([self._planned()], processes_here(self.accelerator.device.type)):
            print(line)

    def _planned(self) -> Planned:
        """Say what a step is, to know what memory it needs."""
        settings, num_processes, device = self.settings, self.accelerator.num_processes, self.accelerator.device.type
        num_tokens, num_parts = self.order.largest_part(LOOKED_AT)
        length = max(len(feature.input_ids) for feature in self.features)
        shape = StepShape(
            config=self.packed.config,
            heads=tuple(self.packed.heads),
            max_seq_length=length,
            precision=settings.precision,
            device=device,
            kernels=kernels.in_use(),
            optimizer=settings.optimizer.name,
            accumulates=num_parts > num_processes,
            num_processes=num_processes,
            is_strict=self.training.chosen.num_parts is not None,
            frozen_depth=settings.frozen_depth(self.packed.config.num_hidden_layers),
        )
        by_items = settings.batch.micro_sequences != "auto"
        return Planned(
            shape=shape,
            num_tokens=num_tokens,
            evaluated_tokens=loop.TOKENS_AT_ONCE[device],
            setting=("batch.micro_sequences", -(-num_tokens // length))
            if by_items
            else ("batch.micro_tokens", num_tokens),
            tokens_of_setting=length if by_items else 1,
            saves_copies=settings.checkpoint.background,
        )

    def finish(self) -> None:
        """Write the best model, its predictions, metrics and the report; the metrics last, they mark the run as done."""
        best_step = self.training.take_best()
        metrics, predictions, _ = self._evaluate()
        if not self.main:
            return
        settings, examples = self.settings, self.examples_of_dev
        result: dict[str, Any] = {
            **metrics,
            "best_step": best_step,
            "best_epoch": round(best_step / self.order.steps_per_epoch, 4),
            "num_examples": len(examples),
        }
        if shapes.is_degenerate(settings.task, examples, predictions):
            result["is_degenerate"] = True
            print(
                "warning: the model says the same of every example; train longer, or with another seed or learning rate"
            )
        facts = card.finetuning_facts(to_mapping(settings), result)
        with building_dir(self.directory / "model") as partial:
            write_model(self.packed, self.tokenizer, partial, {"README.md": card.model_card(self.packed, facts)})
        for name, content in shapes.files_of(settings.task, examples, predictions).items():
            write_durably(self.directory / name, content)
        write_report(self.directory, {}, TASK_CHARTS)
        rotate(self.directory, self.steps, settings.checkpoint.keep_last, best=None)  # model/ has the best weights now
        write_durably(self.directory / runs.RESULT, to_json(result))
        print(f"dev: {console.scores_line(metrics)} (step {best_step}, the best by {settings.task.best_metric})")
        if self.training.standing.skips.total:
            print(console.skips_line(self.training.standing.skips.total))
        print(f"model:  {self.directory / 'model'}\nreport: {self.directory / 'report.html'}")


def _choose(settings: FinetuneSettings, accelerator: loop.Accelerator) -> Chosen:
    """Choose how a batch is cut, as it is set or to suit the device, and the order in which its parts are added.

    The cut is alike for one process and for two; with reproducibility=strict for any number.
    """
    batch, is_strict = settings.batch, settings.reproducibility == "strict"
    fewest = FEWEST_PARTS if is_strict else accelerator.num_processes
    if batch.micro_sequences != "auto":
        cut = Cut(None, batch.micro_sequences, fewest)
    elif batch.micro_tokens != "auto":
        cut = Cut(batch.micro_tokens, None, fewest)
    else:
        cut = Cut(loop.TOKENS_AT_ONCE[accelerator.device.type], None, max(2, fewest))
    return Chosen(
        cut=dataclasses.asdict(cut),
        num_parts=num_parts_for(cut.fewest_parts(batch.sequences)) if is_strict else None,
        kernels=kernels.choose(settings.kernels),
        is_compiled=compiles(settings.compile, accelerator.device.type),
        settings={
            "batch": dataclasses.asdict(batch),
            "kernels": settings.kernels,
            "compile": settings.compile,
            "reproducibility": settings.reproducibility,
        },
    )
