"""Stage: prepared dataset -> checkpoints, and at the end a model that `transformers` loads.

1. Check that data, model and settings belong together; nothing is written before.
2. Open the run directory: a new one, or the same run's, to resume from its newest valid checkpoint.
3. Train; log, evaluate and save on the way.
4. Write the final model, its metrics and the report.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit.config import to_mapping
from bertkit.data import prepared
from bertkit.data.config import InstancesConfig
from bertkit.data.instances import has_instances
from bertkit.data.prepared import PreparedDataset
from bertkit.errors import InputError
from bertkit.files import building_dir, read_json, sha256_file, to_json, write_durably
from bertkit.interop.exports import card
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.interop.load import resolve_model_dir, write_model
from bertkit.launch.launcher import world_from_environment
from bertkit.model import kernels
from bertkit.model.bert import init_weights
from bertkit.model.config import PRETRAINING_HEADS, BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.progress import Progress
from bertkit.run import directory as runs
from bertkit.run import rules as resume_rules
from bertkit.run.length_phases import Phase, make_phases, micro_sequences_of, segments_of
from bertkit.run.memory import Planned, memory_lines, processes_here
from bertkit.run.memory_plan import StepShape
from bertkit.run.objective import pretraining_losses
from bertkit.run.state import Chosen, TrainingRun, compiles
from bertkit.run.trainer import TrainingStage, opened
from bertkit.settings.schemas import PretrainSettings
from bertkit.stages.evaluate import as_stored, check_fit, check_vocabulary, evaluate_split
from bertkit.train import checkpoint, loop
from bertkit.train.optimizer import MOMENTS
from bertkit.train.summation import num_parts_for
from bertkit.view import console
from bertkit.view.report import write_report

RULES = resume_rules.PRETRAIN
EVALUATION_SEQUENCES = 32


def run(settings: PretrainSettings) -> None:
    """Pretrain, resume, or say that it is done.

    Raises:
        InputError: settings, data or starting weights do not fit together, or the directory holds another run.
        LockedError: the run is live elsewhere.
        StorageError: a disk is full or fails, or every checkpoint is damaged.
        NumericsError: the gradient stopped being finite.
        StoppedError: a signal asked the run to stop; its checkpoint is saved.
    """
    directory = Path(settings.output_dir)
    identity = resume_rules.identity_of(to_mapping(settings), RULES)
    if isinstance(settings.segments, InstancesConfig):  # the data's fingerprint says how they were cut and masked
        identity |= {"segments": {"kind": "google"}, "masking": None}
    if not Path(settings.data_dir).exists() and _is_done(directory, identity):
        return  # a finished run needs its data no more
    dataset = prepared.open_prepared(Path(settings.data_dir))
    if isinstance(settings.segments, InstancesConfig):
        segments, masking = as_stored(settings, dataset)
        settings = dataclasses.replace(settings, segments=segments, masking=masking)
    elif has_instances(dataset):
        raise InputError(
            f"data_dir={dataset.directory} holds fixed instances, segments={settings.segments.kind} is to cut text; add "
            "segments=google, or prepare the text without it"
        )
    identity["data_fingerprint"] = dataset.fingerprint
    if _is_done(directory, identity | _known_start(settings)):
        return
    _check_data(dataset)
    world = world_from_environment()
    model, start = _build_model(settings, dataset)
    moments = _starting_moments(settings, model)
    accelerator = loop.make_accelerator(settings.device, world.size)
    micro_sequences = micro_sequences_of(settings, accelerator.device.type, world.size)
    num_shards = min(len(loop.micro_shards(settings.batch.sequences, size)) for size in micro_sequences)
    num_parts = num_parts_for(num_shards) if settings.reproducibility == "strict" else None
    loop.check_layout(num_shards, num_parts, world.size)  # before anything is written
    identity["starting_weights"] = None if start is None else start["sha256"]
    facts = {
        "data_fingerprint": dataset.fingerprint,
        "corpus": dataset.manifest["corpus"],
        "tokenizer_sha256": sha256_file(dataset.directory / "tokenizer" / "vocab.txt"),
        "init_from": start,
    }
    chosen = Chosen(
        cut=micro_sequences,
        num_parts=num_parts,
        kernels=kernels.choose(settings.kernels),
        is_compiled=compiles(settings.compile, accelerator.device.type),
        settings={
            "batch": dataclasses.asdict(settings.batch),
            "kernels": settings.kernels,
            "compile": settings.compile,
            "reproducibility": settings.reproducibility,
            "lengths": [segments.max_seq_length for segments in segments_of(settings)],
        },
    )
    with opened(accelerator, settings, identity, facts, RULES) as record_changes:
        _Pretraining(settings, dataset, model, moments, accelerator, chosen).run(record_changes)


def _is_done(directory: Path, identity: dict[str, Any]) -> bool:
    """Whether the run is finished, and if so, say it."""
    finished = runs.is_finished(directory, identity, RULES)
    if finished and world_from_environment().is_main:
        print(f"done already: the model is in {directory / 'model'}")
    return finished


def _known_start(settings: PretrainSettings) -> dict[str, Any]:
    """The starting weights as they identify a run; nothing where they are no longer here to be read."""
    if settings.init_from is None:
        return {"starting_weights": None}
    if not Path(settings.init_from).expanduser().exists():
        return {}
    return {"starting_weights": _hashes_of_start(settings, resolve_model_dir(settings.init_from, "init_from"))}


def _hashes_of_start(settings: PretrainSettings, source: Path) -> dict[str, str]:
    hashes = huggingface.hashes_of(source)
    if settings.init_moments:
        hashes |= {path.name: sha256_file(path) for path in checkpoint.moment_files(source)}
    return hashes


def _check_data(dataset: PreparedDataset) -> None:
    damaged = prepared.damaged_files(dataset.directory, dataset.manifest)
    if damaged:
        raise InputError(
            f"{dataset.directory}: {', '.join(damaged)} changed since prepare wrote them; remove "
            "it and run bertkit prepare again"
        )
    if not dataset.splits["train"].num_documents:
        raise InputError(f"data_dir={dataset.directory}: no documents to train on; prepare more text")
    prepared.check_ids(dataset.splits["train"], dataset.tokenizer.vocab_size)


def _build_model(settings: PretrainSettings, dataset: PreparedDataset) -> tuple[BertWithHeads, dict[str, Any] | None]:
    """Make the model anew, or from `init_from`; give it with what is known of the weights it starts from."""
    pairs = settings.segments.has_pairs
    heads = PRETRAINING_HEADS if pairs else ("masked_lm",)
    if settings.init_from is not None:
        source = resolve_model_dir(settings.init_from, "init_from")
        model, report = huggingface.load(source, heads, with_pooler=pairs, seed=settings.seed)
        for segments, setting in zip(segments_of(settings), ("segments", "final_phase"), strict=False):
            check_fit(model.config, dataset, segments, f"{setting}.max_seq_length")
        check_vocabulary(source, dataset)
        summary = huggingface.summary(report)
        if world_from_environment().is_main:
            print(f"starting from {settings.init_from}, whose shape replaces model=: {summary}")
        facts = {"model_dir": settings.init_from, "summary": summary, "sha256": _hashes_of_start(settings, source)}
        return model, {**facts, "shape": dataclasses.asdict(model.config)}
    vocab = dataset.tokenizer.facts
    config = BertConfig(**dataclasses.asdict(settings.model), vocab_size=vocab.size, pad_token_id=vocab.pad)
    check_fit(config, dataset, settings.segments)
    model = BertWithHeads(config, heads, with_pooler=pairs)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(settings.seed))
    return model, None


def _starting_moments(settings: PretrainSettings, model: BertWithHeads) -> dict[str, Tensor]:
    """Read the optimizer's moments of `init_from`; with `init_moments` false there are none.

    Raises:
        InputError: `init_from` has no moments, or they are those of other parameters.
    """
    if settings.init_from is None or not settings.init_moments:
        return {}
    source = resolve_model_dir(settings.init_from, "init_from")
    if not checkpoint.moment_files(source):
        raise InputError(
            f"init_from={settings.init_from} has no optimizer state; take a bertkit run or one of its checkpoints, or "
            "set init_moments=false"
        )
    made_by = runs.run_of(source)
    if made_by is not None:
        name = read_json(made_by / "manifest.json")["identity"]["optimizer"]["name"]
        if name != settings.optimizer.name:
            raise InputError(
                f"init_from={settings.init_from} was trained with optimizer={name}, whose moments mean something else to "
                f"{settings.optimizer.name}; take optimizer={name}, or set init_moments=false"
            )
    moments = checkpoint.read_moments(source)
    wanted = {f"{name}.{moment}": p.shape for name, p in model.named_parameters() for moment in MOMENTS}
    others = sorted(wanted.items() ^ {name: tensor.shape for name, tensor in moments.items()}.items())
    if others:
        raise InputError(
            f"{source} holds moments of other parameters than this run's (such as {others[0][0]}); train the same heads, "
            "or set init_moments=false"
        )
    return moments


class _Pretraining(TrainingStage[PretrainSettings]):
    """A pretraining run."""

    label = "pretraining"

    def __init__(
        self,
        settings: PretrainSettings,
        dataset: PreparedDataset,
        model: BertWithHeads,
        starting_moments: dict[str, Tensor],
        accelerator: loop.Accelerator,
        chosen: Chosen,
    ) -> None:
        directory = Path(settings.output_dir)
        training = TrainingRun(
            accelerator,
            directory,
            model,
            dataset.tokenizer,
            settings.optimizer,
            saving=settings.checkpoint,
            chosen=chosen,
            starting_moments=starting_moments,
        )
        if training.first_step > settings.steps:
            raise InputError(
                f"steps={settings.steps}: the run in {directory} has done {training.first_step}; ask for more"
            )
        super().__init__(
            settings,
            accelerator,
            training,
            steps=settings.steps,
            warmup_steps=settings.schedule.warmup_of(settings.steps),
            losses=functools.partial(pretraining_losses, precision=settings.precision),
        )
        self.dataset = dataset
        self.phases = make_phases(settings, dataset, directory / "cache", training.chosen.cut)
        for phase in self.phases:  # those of a run that is resumed, with perhaps other processes than it began with
            loop.check_layout(len(phase.shards), training.chosen.num_parts, accelerator.num_processes)

    def batches(self, step: int) -> loop.Numbered:
        """Give this process's micro-batches of a step, counted from 0."""
        phase, accelerator = self._phase_of(step), self.accelerator
        share = loop.shards_of_process(len(phase.shards), accelerator.process_index, accelerator.num_processes)
        return phase.micro_batches(step, share)

    def examples(self, step: int) -> list[tuple[int, int]]:
        """Name the examples of the batch of a step, counted from 0."""
        return self._phase_of(step).examples(step)

    def _phase_of(self, step: int) -> Phase:
        """Give the phase of a step, counted from 0; beyond the end it is the last one."""
        return next((phase for phase in self.phases if step < phase.last_step), self.phases[-1])

    def introduce(self) -> None:
        """Say what is going to happen."""
        settings, config = self.settings, self.packed.config
        size = sum(parameter.numel() for parameter in self.packed.parameters())
        how = f"{settings.precision} on {self.accelerator.device.type}, {self.accelerator.num_processes} process(es)"
        print(console.model_line(size, config.num_hidden_layers, config.hidden_size, list(self.packed.heads), how))
        print(self._phase_line(self.training.first_step))
        for line in memory_lines(self._planned(), processes_here(self.accelerator.device.type)):
            print(line)
        if self.phases[0].held_out is None:
            fixed = isinstance(settings.segments, InstancesConfig)
            hint = "fixed instances hold all of them" if fixed else "prepare with a larger held_out_prob"
            print(f"warning: no held-out documents, so no evaluation; {hint}")
        if self.dataset.tokenizer.rules == "google":
            print("tokenized by Google's rules; the tokenizer of the exported model follows Hugging Face's")

    def _planned(self) -> list[Planned]:
        """Say what each phase's steps are, to know what memory they need."""
        settings, num_processes = self.settings, self.accelerator.num_processes
        parts = []
        for phase in self.phases:
            size, length = phase.shards[0][1], phase.max_seq_length
            shape = StepShape(
                config=self.packed.config,
                heads=tuple(self.packed.heads),
                max_seq_length=length,
                precision=settings.precision,
                device=self.accelerator.device.type,
                kernels=kernels.in_use(),
                optimizer=settings.optimizer.name,
                accumulates=len(phase.shards) > num_processes,
                num_processes=num_processes,
                is_strict=self.training.chosen.num_parts is not None,
            )
            by_tokens = settings.batch.micro_tokens != "auto"
            evaluated = min(EVALUATION_SEQUENCES, settings.evaluation.max_sequences) if phase.held_out else 0
            parts.append(
                Planned(
                    shape=shape,
                    num_tokens=size * length,
                    evaluated_tokens=evaluated * length,
                    setting=("batch.micro_tokens", size * length) if by_tokens else ("batch.micro_sequences", size),
                    tokens_of_setting=1 if by_tokens else length,
                    saves_copies=settings.checkpoint.background,
                )
            )
        return parts

    def _phase_line(self, step: int) -> str:
        phase, settings = self._phase_of(step), self.settings
        return console.phase_line(
            phase.first_step,
            phase.last_step,
            settings.steps,
            phase.max_seq_length,
            settings.batch.sequences,
            phase.sampler.epoch_length,
            len(phase.shards),
        )

    def evaluate(self, step: int) -> tuple[dict[str, float], bool]:
        """Measure the losses over held-out text; checkpoints come when they are due, whatever the losses."""
        return self._evaluate(self._phase_of(step - 1)), False

    def _evaluate(self, phase: Phase) -> dict[str, float]:
        if phase.held_out is None:
            return {}
        limit, precision = self.settings.evaluation.max_sequences, self.settings.precision
        model = self.training.model
        results = evaluate_split(self.accelerator, model, phase.held_out, limit, EVALUATION_SEQUENCES, precision)
        return {name: value for name, (value, _) in results.items()}

    def show(self, step: int, metrics: dict[str, float], progress: Progress) -> None:
        """Print what the losses say of the run's health, and draw its report."""
        if "mlm_loss" in metrics:
            baselines = self._baselines(self._phase_of(step - 1))
            progress.line(f"  health: {console.health_line(metrics, baselines)}")
            write_report(self.directory, baselines)

    def before_save(self, step: int, metrics: dict[str, float]) -> None:
        """See whether the checkpoint is the best one, by its evaluated loss if it has one."""
        phase, best = self._phase_of(step - 1), self.training.standing.best
        if best is not None and (best["step"] <= phase.first_step or not self.settings.checkpoint.keep_best):
            self.training.standing.best = None  # losses over sequences of another length are no measure for these
        losses = [value for name, value in metrics.items() if name.endswith("_loss")]
        if losses and self.settings.checkpoint.keep_best:
            self.training.is_best(step, -sum(losses))

    def after_step(self, step: int, progress: Progress) -> None:
        """Announce the next phase."""
        if self.main and step == self._phase_of(step - 1).last_step:
            progress.line(self._phase_line(step))

    def _baselines(self, phase: Phase) -> dict[str, float]:
        """Give what a model reaches that only counts: words, and which label of next sentence prediction is commoner."""
        baselines = {"unigram entropy": self.dataset.manifest["statistics"]["unigram_entropy"]}
        if phase.held_out is not None and "next_sentence" in self.packed.heads:
            share = phase.held_out.random_next_share(self.settings.evaluation.max_sequences)
            baselines["guessing"] = max(share, 1 - share)
        return baselines

    def finish(self) -> None:
        """Write the model, the metrics and the report; the metrics last, they mark the run as done."""
        metrics = self._evaluate(self.phases[-1])
        if not self.main:
            return
        baselines = self._baselines(self.phases[-1])
        result = {**metrics, "unigram_entropy": baselines["unigram entropy"], "steps": self.settings.steps}
        text = self.dataset.manifest["corpus"]["description"]
        facts = card.pretraining_facts(to_mapping(self.settings), text, result, self.settings.init_from)
        readme = card.model_card(self.packed, facts)
        with building_dir(self.directory / "model") as partial:
            write_model(self.packed, self.dataset.tokenizer, partial, {"README.md": readme})
        write_report(self.directory, baselines)
        write_durably(self.directory / runs.RESULT, to_json(result))
        if "mlm_loss" in metrics:
            print(console.health_line(metrics, baselines))
        if self.training.standing.skips.total:
            print(console.skips_line(self.training.standing.skips.total))
        print(f"model:  {self.directory / 'model'}\nreport: {self.directory / 'report.html'}")
