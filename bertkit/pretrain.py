"""Stage: prepared dataset -> checkpoints, and at the end a model that `transformers` loads.

1. Check that data, model and settings belong together; nothing is written before.
2. Open the run directory: a new one, or the same run's, to resume from its newest valid checkpoint.
3. Train; log, evaluate and save on the way.
4. Write the final model, its metrics and the report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit import heartbeat, resume_rules
from bertkit import run_dir as runs
from bertkit.config import to_mapping
from bertkit.data import prepared
from bertkit.data.config import InstancesConfig
from bertkit.data.instances import has_instances
from bertkit.data.prepared import PreparedDataset
from bertkit.errors import InputError, StoppedError
from bertkit.evaluate import as_stored, check_fit, check_vocabulary, evaluate_split
from bertkit.files import building_dir, read_json, sha256_file, to_json, write_durably
from bertkit.interop import card, huggingface
from bertkit.interop.load import resolve_model_dir, write_model
from bertkit.launch import world_from_environment
from bertkit.memory_here import Planned, memory_lines, processes_here
from bertkit.memory_plan import StepShape
from bertkit.model import kernels
from bertkit.model.bert import init_weights
from bertkit.model.config import PRETRAINING_HEADS, BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.objective import pretraining_losses
from bertkit.phases import Phase, make_phases, micro_sequences_of, segments_of
from bertkit.progress import Progress
from bertkit.settings import PretrainSettings
from bertkit.train import checkpoint, loop
from bertkit.train.log import MetricsLog
from bertkit.train.optimizer import MOMENTS
from bertkit.train.schedule import polynomial
from bertkit.train.step_report import NO_SKIPS, Skips
from bertkit.train.summation import num_parts_for
from bertkit.training_run import TrainingRun, metrics_row
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

    with loop.leaving_together(accelerator), contextlib.ExitStack() as stack:

        def open_run() -> list[resume_rules.Change]:
            opened = runs.opened(directory, to_mapping(settings), identity, facts, RULES, settings.resume.allow)
            return stack.enter_context(opened)

        state = {
            "micro_sequences": micro_sequences,
            "num_parts": num_parts,
            "kernels": kernels.choose(settings.kernels),
        }
        changes = loop.on_main_process(accelerator, open_run)
        pretraining = _Pretraining(settings, dataset, model, moments, accelerator, directory, state)

        def record() -> list[str]:
            return runs.record(directory, changes, pretraining.first_step, to_mapping(settings), identity)

        for line in loop.on_main_process(accelerator, record):
            if accelerator.is_main_process:
                print(f"warning: {line}")
        pretraining.run()


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


class _Pretraining:
    """One run: what it holds, and its steps in order."""

    def __init__(
        self,
        settings: PretrainSettings,
        dataset: PreparedDataset,
        model: BertWithHeads,
        starting_moments: dict[str, Tensor],
        accelerator: loop.Accelerator,
        directory: Path,
        state: dict[str, Any],
    ) -> None:
        self.settings, self.dataset, self.accelerator = settings, dataset, accelerator
        self.directory, self.main = directory, accelerator.is_main_process
        self.training = TrainingRun(
            accelerator,
            directory,
            model,
            dataset.tokenizer,
            settings.optimizer,
            saving=settings.checkpoint,
            state={**state, "skips": dataclasses.asdict(NO_SKIPS)},
            state_depends_on={
                "batch": dataclasses.asdict(settings.batch),
                "kernels": settings.kernels,
                "reproducibility": settings.reproducibility,
                "lengths": [segments.max_seq_length for segments in segments_of(settings)],
            },
            starting_moments=starting_moments,
        )
        self.packed, self.model, self.first_step = model, self.training.model, self.training.first_step
        if self.first_step > settings.steps:
            raise InputError(f"steps={settings.steps}: the run in {directory} has done {self.first_step}; ask for more")
        self.state = self.training.state
        self.phases = make_phases(settings, dataset, directory / "cache", self.state["micro_sequences"])
        for phase in self.phases:  # those of a run that is resumed, with perhaps other processes than it began with
            loop.check_layout(len(phase.shards), self.state["num_parts"], accelerator.num_processes)

    def run(self) -> None:
        """Train to the last step and finish."""
        settings, main = self.settings, self.main
        self._introduce()
        log = MetricsLog(self.directory / "metrics.jsonl", self.first_step) if main else None
        progress = Progress("pretraining", settings.steps, done=self.first_step, silent=not main)
        tokens, seconds = 0, 0.0
        with runs.stop_on_signal() as stop_requested, progress, self.training:
            for report in self._steps(stop_requested):
                heartbeat.beat(report.step)
                step, phase = report.step, self._phase_of(report.step - 1)
                tokens, seconds = tokens + report.num_tokens, seconds + report.seconds
                is_last = step == settings.steps
                metrics: dict[str, float] = {}
                if self._is_due(step, settings.evaluation.every_steps):
                    metrics = self._evaluate(phase)
                if log is not None:
                    for skipped in report.found:
                        self._log(log, progress, skipped, None, {})
                    is_skipped = report.is_read and report.fault is not None
                    if metrics or self._is_logged(step) or report.is_left_out or is_skipped:
                        self._log(log, progress, report, tokens / seconds, metrics)
                        tokens, seconds = 0, 0.0
                report.check_skips(settings.numerics.max_skips_in_a_row)
                if "mlm_loss" in metrics and main:
                    baselines = self._baselines(phase)
                    progress.line(f"  health: {console.health_line(metrics, baselines)}")
                    write_report(self.directory, baselines)
                if report.stop_requested or self._is_due(step, settings.checkpoint.every_steps):
                    self.state["skips"] = dataclasses.asdict(report.skips)
                    self._rate(step, phase, metrics)
                    self.training.save(step, is_required=report.stop_requested and not is_last)
                progress.advance(step)
                if report.stop_requested and not is_last:
                    raise StoppedError(
                        f"stopped at step {step} of {settings.steps}; its checkpoint is saved, and the same command resumes"
                    )
                if step == phase.last_step and not is_last and main:
                    progress.line(self._phase_line(step))
        if log is not None:
            log.close()
        self._finish()

    def _steps(self, stop_requested: Callable[[], bool]) -> Iterator[loop.StepReport]:
        settings, accelerator = self.settings, self.accelerator

        def share_of(phase: Phase) -> range:
            return loop.shards_of_process(len(phase.shards), accelerator.process_index, accelerator.num_processes)

        def batches(step: int) -> loop.Numbered:
            phase = self._phase_of(step)
            return phase.micro_batches(step, share_of(phase))

        return loop.train(
            accelerator,
            self.model,
            self.training.optimizer,
            functools.partial(pretraining_losses, precision=settings.precision),
            batches,
            first_step=self.first_step,
            steps=settings.steps,
            peak_learning_rate=settings.optimizer.peak_learning_rate,
            schedule=functools.partial(
                polynomial,
                steps=settings.steps,
                warmup_steps=settings.schedule.warmup_of(settings.steps),
                power=settings.schedule.power,
                decay_from=settings.schedule.decay_from,
            ),
            max_grad_norm=settings.optimizer.max_grad_norm,
            seed=settings.seed,
            num_parts=self.state["num_parts"],
            skip_steps=settings.data.skip_steps,
            skips=Skips(**self.state["skips"]),
            is_read=lambda step: (
                self._is_logged(step)
                or self._is_due(step, settings.evaluation.every_steps)
                or self._is_due(step, settings.checkpoint.every_steps)
            ),
            stop_requested=stop_requested,
        )

    def _is_due(self, step: int, every_steps: int) -> bool:
        return step == self.settings.steps or step % every_steps == 0

    def _is_logged(self, step: int) -> bool:
        return step == 1 or self._is_due(step, self.settings.log.every_steps)

    def _log(
        self,
        log: MetricsLog,
        progress: Progress,
        report: loop.StepReport,
        tokens_per_second: float | None,
        metrics: dict[str, float],
    ) -> None:
        """Write the row of a step and print its line; the row of a skipped one names the examples of its batch."""
        row = metrics_row(report, tokens_per_second, metrics)
        if report.fault is not None:
            row["examples"] = self._phase_of(report.step - 1).examples(report.step - 1)
        log.write(row)
        progress.line(console.step_line(row, self.settings.steps, progress.time_left()))

    def _phase_of(self, step: int) -> Phase:
        """Give the phase of a step, counted from 0; beyond the end it is the last one."""
        return next((phase for phase in self.phases if step < phase.last_step), self.phases[-1])

    def _introduce(self) -> None:
        if not self.main:
            return
        settings, config = self.settings, self.packed.config
        size = sum(parameter.numel() for parameter in self.packed.parameters())
        how = f"{settings.precision} on {self.accelerator.device.type}, {self.accelerator.num_processes} process(es)"
        print(console.model_line(size, config.num_hidden_layers, config.hidden_size, list(self.packed.heads), how))
        print(self._phase_line(self.first_step))
        for line in memory_lines(self._planned(), processes_here(self.accelerator.device.type)):
            print(line)
        if self.phases[0].held_out is None:
            fixed = isinstance(settings.segments, InstancesConfig)
            hint = "fixed instances hold all of them" if fixed else "prepare with a larger held_out_prob"
            print(f"warning: no held-out documents, so no evaluation; {hint}")
        if self.dataset.tokenizer.rules == "google":
            print("tokenized by Google's rules; the tokenizer of the exported model follows Hugging Face's")
        if self.first_step:
            print(f"resumed from step {self.first_step} of {settings.steps}", flush=True)

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
                is_strict=self.state["num_parts"] is not None,
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

    def _evaluate(self, phase: Phase) -> dict[str, float]:
        if phase.held_out is None:
            return {}
        limit, precision = self.settings.evaluation.max_sequences, self.settings.precision
        results = evaluate_split(self.accelerator, self.model, phase.held_out, limit, EVALUATION_SEQUENCES, precision)
        return {name: value for name, (value, _) in results.items()}

    def _rate(self, step: int, phase: Phase, metrics: dict[str, float]) -> None:
        """See whether the checkpoint that is saved now is the best one, by its evaluated loss if it has one."""
        best = self.training.state["best"]
        if best is not None and (best["step"] <= phase.first_step or not self.settings.checkpoint.keep_best):
            self.training.state["best"] = None  # losses over sequences of another length are no measure for these
        losses = [value for name, value in metrics.items() if name.endswith("_loss")]
        if losses and self.settings.checkpoint.keep_best:
            self.training.is_best(step, -sum(losses))

    def _baselines(self, phase: Phase) -> dict[str, float]:
        """Give what a model reaches that only counts: words, and which label of next sentence prediction is commoner."""
        baselines = {"unigram entropy": self.dataset.manifest["statistics"]["unigram_entropy"]}
        if phase.held_out is not None and "next_sentence" in self.packed.heads:
            share = phase.held_out.random_next_share(self.settings.evaluation.max_sequences)
            baselines["guessing"] = max(share, 1 - share)
        return baselines

    def _finish(self) -> None:
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
        if self.state["skips"]["total"]:
            print(console.skips_line(self.state["skips"]["total"]))
        print(f"model:  {self.directory / 'model'}\nreport: {self.directory / 'report.html'}")
