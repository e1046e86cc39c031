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
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit import run_dir as runs
from bertkit.config import to_mapping
from bertkit.data import prepared
from bertkit.data.epochs import EpochCache
from bertkit.data.prepared import PreparedDataset
from bertkit.data.sampling import Sampler
from bertkit.errors import InputError, NumericsError, StoppedError
from bertkit.evaluate import check_fit, evaluate_split, held_out_sampler
from bertkit.files import building_dir, locked, sha256_file, to_json, write_durably
from bertkit.interop import card, huggingface
from bertkit.interop.load import resolve_model_dir, text_files, write_model
from bertkit.launch import world_from_environment
from bertkit.model.bert import init_weights
from bertkit.model.config import HEADS, BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.objective import pretraining_losses
from bertkit.progress import Progress
from bertkit.settings import PretrainSettings
from bertkit.train import checkpoint, loop
from bertkit.train.log import MetricsLog
from bertkit.train.optimizer import OPTIMIZERS, parameter_groups
from bertkit.train.schedule import polynomial
from bertkit.view.report import write_report

TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 65536}  # of one forward pass, where the micro-batch is chosen automatically
# may differ when a run is resumed; of the data and the starting weights the content counts, not the place
FREE_SETTINGS = ("output_dir", "data_dir", "data", "init_from", "log", "checkpoint", "evaluation", "device")
EVALUATION_SEQUENCES = 32


def run(settings: PretrainSettings) -> None:
    """Pretrain, resume, or say that it is done.

    Raises:
        InputError: settings, data or starting weights do not fit together, or the directory holds another run.
        LockedError: the run is live elsewhere.
        NumericsError: the gradient stopped being finite.
        StoppedError: a signal asked the run to stop; its checkpoint is saved.
    """
    directory = Path(settings.output_dir)
    identity = {key: value for key, value in to_mapping(settings).items() if key not in FREE_SETTINGS}
    world = world_from_environment()
    if runs.is_finished(directory, identity):
        if world.is_main:
            print(f"done already: the model is in {directory / 'model'}")
        return
    dataset = _open_data(settings)
    model, start = _build_model(settings, dataset)
    accelerator = loop.make_accelerator(settings.device, world.size)
    micro_sequences = _micro_sequences(settings, accelerator.device.type, world.size)
    shards = loop.micro_shards(settings.batch.sequences, micro_sequences)
    loop.shards_of_process(len(shards), world.rank, world.size)  # refuses a layout before anything is written
    identity["data_fingerprint"] = dataset.fingerprint
    identity["starting_weights"] = None if start is None else start["sha256"]
    facts = {
        "data_fingerprint": dataset.fingerprint,
        "corpus": dataset.manifest["corpus"],
        "tokenizer_sha256": sha256_file(dataset.directory / "tokenizer" / "vocab.txt"),
        "init_from": start,
    }

    with loop.leaving_together(accelerator), contextlib.ExitStack() as stack:

        def open_run() -> None:
            runs.check(directory, identity)
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(directory))
            runs.check(directory, identity)  # once more: another start may have come first
            runs.write_identity(directory, to_mapping(settings), identity, facts)

        loop.on_main_process(accelerator, open_run)
        _Pretraining(settings, dataset, model, accelerator, directory, micro_sequences).run()


def _open_data(settings: PretrainSettings) -> PreparedDataset:
    dataset = prepared.open_prepared(Path(settings.data_dir))
    damaged = prepared.damaged_files(dataset.directory, dataset.manifest)
    if damaged:
        raise InputError(
            f"{dataset.directory}: {', '.join(damaged)} changed since prepare wrote them; remove "
            "it and run bertkit prepare again"
        )
    if not dataset.splits["train"].num_documents:
        raise InputError(f"data_dir={dataset.directory}: no documents to train on; prepare more text")
    prepared.check_ids(dataset.splits["train"], dataset.tokenizer.vocab_size)
    return dataset


def _build_model(settings: PretrainSettings, dataset: PreparedDataset) -> tuple[BertWithHeads, dict[str, Any] | None]:
    """Make the model anew, or from `init_from`; give it with what is known of the weights it starts from."""
    pairs = settings.segments.kind == "pairs"
    heads = HEADS if pairs else ("masked_lm",)
    if settings.init_from is not None:
        source = resolve_model_dir(settings.init_from, "init_from")
        model, report = huggingface.load(source, heads, with_pooler=pairs, seed=settings.seed)
        check_fit(model.config, dataset, settings.segments)
        summary = huggingface.summary(report)
        if world_from_environment().is_main:
            print(f"starting from {settings.init_from}, whose shape replaces model=: {summary}")
        facts = {"model_dir": settings.init_from, "summary": summary, "sha256": huggingface.hashes_of(source)}
        return model, {**facts, "shape": dataclasses.asdict(model.config)}
    vocab = dataset.tokenizer.facts
    config = BertConfig(**dataclasses.asdict(settings.model), vocab_size=vocab.size, pad_token_id=vocab.pad)
    model = BertWithHeads(config, heads, with_pooler=pairs)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(settings.seed))
    return model, None


def _micro_sequences(settings: PretrainSettings, device: str, num_processes: int) -> int:
    """How many sequences one forward pass takes: what is set, or what suits the device.

    Left to itself, a global batch is cut into two or more parts of equal size, the same ones for one process and for
    two, and into at least one for each process.
    """
    batch, longest = settings.batch, settings.segments.max_seq_length
    if batch.micro_sequences != "auto":
        return min(batch.micro_sequences, batch.sequences)
    if batch.micro_tokens != "auto":
        return min(max(1, batch.micro_tokens // longest), batch.sequences)
    most = max(1, min(TOKENS_AT_ONCE[device] // longest, batch.sequences // max(2, num_processes)))
    num_shards = math.ceil(batch.sequences / most)
    return math.ceil(batch.sequences / num_shards)


class _Pretraining:
    """One run: what it holds, and its steps in order."""

    def __init__(
        self,
        settings: PretrainSettings,
        dataset: PreparedDataset,
        model: BertWithHeads,
        accelerator: loop.Accelerator,
        directory: Path,
        micro_sequences: int,
    ) -> None:
        self.settings, self.dataset, self.accelerator = settings, dataset, accelerator
        self.directory, self.main = directory, accelerator.is_main_process
        self.packed = model
        self.unigram_entropy: float = dataset.manifest["statistics"]["unigram_entropy"]
        self.first_step = 0
        self.state: dict[str, Any] = {"micro_sequences": micro_sequences, "num_threads": torch.get_num_threads()}
        moments, num_updates = self._resume()
        torch.set_num_threads(self.state["num_threads"])
        self.model = accelerator.prepare_model(model.train())
        groups = parameter_groups(model, settings.optimizer.weight_decay)
        self.optimizer = OPTIMIZERS[settings.optimizer.name](groups, settings.optimizer)
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        self.optimizer.restore(moments, self.names, num_updates)
        cache = EpochCache(directory / "cache", dataset.splits["train"], settings.segments, settings.seed)
        self.sampler = Sampler(
            dataset.splits["train"], dataset.tokenizer.facts, settings.segments, settings.masking, settings.seed, cache.open
        )  # fmt: skip
        held_out = dataset.splits["held_out"]
        self.held_out = held_out_sampler(held_out, self.sampler) if held_out.num_documents else None

    def run(self) -> None:
        """Train to the last step and finish."""
        settings, main = self.settings, self.main
        shards = loop.micro_shards(settings.batch.sequences, self.state["micro_sequences"])
        mine = loop.shards_of_process(len(shards), self.accelerator.process_index, self.accelerator.num_processes)
        self._introduce(len(shards))
        log = MetricsLog(self.directory / "metrics.jsonl", self.first_step) if main else None
        progress = Progress("pretraining", settings.steps, done=self.first_step, silent=not main)
        tokens, seconds = 0, 0.0
        with runs.stop_on_signal() as stop_requested, progress:
            for report in self._steps(shards, mine, stop_requested):
                step = report.step
                tokens, seconds = tokens + report.num_tokens, seconds + report.seconds
                is_last = step == settings.steps
                row: dict[str, Any] = {}
                if is_last or step % settings.evaluation.every_steps == 0:
                    row = self._evaluate()
                is_logged = step == 1 or is_last or step % settings.log.every_steps == 0 or not report.losses
                if log is not None and (row or is_logged):
                    row = _metrics_row(report, tokens / seconds, row)
                    log.write(row)
                    progress.line(self._line(row, progress))
                    tokens, seconds = 0, 0.0
                if "eval_mlm_loss" in row and main:
                    progress.line(f"  health: {self._health(row)}")
                    self._write_report()
                if is_last or report.stop_requested or step % settings.checkpoint.every_steps == 0:
                    self._save(step)
                progress.advance(step)
                if report.stop_requested and not is_last:
                    raise StoppedError(
                        f"stopped at step {step} of {settings.steps}; its checkpoint is saved, and the same command resumes"
                    )
        if log is not None:
            log.close()
        self._finish()

    def _steps(
        self, shards: list[tuple[int, int]], mine: range, stop_requested: Callable[[], bool]
    ) -> Iterator[loop.StepReport]:
        settings = self.settings

        def batches(step: int) -> loop.Numbered:
            ranges = [shards[number] for number in mine]
            return list(zip(mine, self.sampler.micro_batches(step, settings.batch.sequences, ranges), strict=True))

        return loop.train(
            self.accelerator,
            self.model,
            self.optimizer,
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
            skip_steps=settings.data.skip_steps,
            stop_requested=stop_requested,
        )

    def _resume(self) -> tuple[dict[str, Tensor], int]:
        """Load the newest valid checkpoint into the model; give the optimizer's moments and number of updates."""
        newest, faults = checkpoint.newest_valid(self.directory)
        if self.main:
            for fault in faults:
                print(f"warning: {fault}")
        if newest is None:
            return {}, 0
        weights, _ = huggingface.load(newest)
        self.packed.load_state_dict(weights.state_dict())
        moments, state = checkpoint.load_training_state(newest)
        self.first_step, num_updates = state.pop("step"), state.pop("num_updates")
        self.state = state
        return moments, num_updates

    def _introduce(self, num_shards: int) -> None:
        if not self.main:
            return
        settings, config = self.settings, self.packed.config
        size = sum(parameter.numel() for parameter in self.packed.parameters())
        print(
            f"BERT with {size / 1e6:.1f} M parameters ({config.num_hidden_layers} layers of {config.hidden_size}), heads: "
            f"{', '.join(self.packed.heads)}; {settings.precision} on {self.accelerator.device.type}, "
            f"{self.accelerator.num_processes} process(es)"
        )
        total = settings.steps * settings.batch.sequences
        print(
            f"{self.sampler.epoch_length:,} examples an epoch, {total / self.sampler.epoch_length:.1f} epochs; "
            f"{settings.batch.sequences} sequences a step in {num_shards} micro-batches"
        )
        if self.held_out is None:
            print("warning: no held-out documents, so no evaluation; prepare with a larger held_out_prob")
        if self.first_step:
            print(f"resumed from step {self.first_step} of {settings.steps}", flush=True)

    def _evaluate(self) -> dict[str, float]:
        if self.held_out is None:
            return {}
        limit, precision = self.settings.evaluation.max_sequences, self.settings.precision
        results = evaluate_split(self.accelerator, self.model, self.held_out, limit, EVALUATION_SEQUENCES, precision)
        return {f"eval_{name}": value for name, (value, _) in results.items()}

    def _line(self, row: dict[str, Any], progress: Progress) -> str:
        parts = [f"step {row['step']}/{self.settings.steps}"]
        parts += [f"loss {row['loss']:.4f}", f"mlm {row['mlm_loss']:.4f}"] if "loss" in row else ["left out"]
        if "nsp_accuracy" in row:
            parts.append(f"nsp acc {row['nsp_accuracy']:.2f}")
        parts += [f"lr {row['learning_rate']:.2e}", f"{row['tokens_per_second']:,.0f} tokens/s"]
        return "  ".join([*parts, f"{progress.time_left()} left"])

    def _health(self, row: dict[str, Any]) -> str:
        """Whether the run learns more than word counts and more than chance, in words."""
        entropy = self.dataset.manifest["statistics"]["unigram_entropy"]
        loss = row["eval_mlm_loss"]
        verdict = "below it: learning from context" if loss < entropy else "not below it yet"
        text = f"held-out MLM loss {loss:.3f}, unigram entropy {entropy:.3f} ({verdict})"
        text += f", MLM accuracy {row['eval_mlm_accuracy']:.3f}"
        if "eval_nsp_accuracy" in row:
            text += f"; NSP accuracy {row['eval_nsp_accuracy']:.3f}, guessing {self._nsp_chance():.3f}"
        return text

    def _write_report(self) -> None:
        baselines = {"unigram entropy": self.unigram_entropy}
        if self.held_out is not None and "next_sentence" in self.packed.heads:
            baselines["guessing"] = self._nsp_chance()
        write_report(self.directory, baselines)

    def _nsp_chance(self) -> float:
        """The next sentence accuracy of always guessing the commoner label, over what is evaluated."""
        assert self.held_out is not None
        share = self.held_out.random_next_share(self.settings.evaluation.max_sequences)
        return max(share, 1 - share)

    def _save(self, step: int) -> None:
        def save() -> None:
            tensors = huggingface.tensors_of(self.packed)
            if not checkpoint.all_finite(tensors):
                raise NumericsError(f"step {step}: a weight is not finite; nothing was saved")
            contents = checkpoint.Checkpoint(
                step=step,
                model=tensors,
                optimizer=self.optimizer.tensors(self.names),
                state={**self.state, "num_updates": self.optimizer.num_updates, "torch": torch.__version__},
                files=text_files(self.packed, self.dataset.tokenizer),
            )
            checkpoint.save(self.directory, contents, self.settings.checkpoint.keep_last)

        loop.on_main_process(self.accelerator, save)

    def _finish(self) -> None:
        """Write the model, the metrics and the report; the metrics last, they mark the run as done."""
        metrics = {name.removeprefix("eval_"): value for name, value in self._evaluate().items()}
        if not self.main:
            return
        statistics = self.dataset.manifest["statistics"]
        result = {
            **metrics,
            "unigram_entropy": statistics["unigram_entropy"],
            "steps": self.settings.steps,
        }
        readme = card.pretraining_card(
            self.packed, to_mapping(self.settings), self.dataset.manifest["corpus"]["description"], result
        )
        with building_dir(self.directory / "model") as partial:
            write_model(self.packed, self.dataset.tokenizer, partial, {"README.md": readme})
        self._write_report()
        write_durably(self.directory / runs.RESULT, to_json(result))
        if metrics:
            print(self._health({f"eval_{name}": value for name, value in metrics.items()}))
        print(f"model:  {self.directory / 'model'}\nreport: {self.directory / 'report.html'}")


def _metrics_row(report: loop.StepReport, tokens_per_second: float, more: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"step": report.step}
    if report.losses:
        row["loss"] = sum(report.losses.values())
    row |= {f"{name}_loss": value for name, value in report.losses.items()}
    row |= {f"{name}_accuracy": value for name, value in report.accuracies.items()}
    return row | {
        "learning_rate": report.learning_rate,
        "grad_norm": report.grad_norm,
        "tokens_per_second": round(tokens_per_second, 1),
        **more,
    }
