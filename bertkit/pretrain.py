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
from accelerate import Accelerator
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
from bertkit.interop.load import load_packed, resolve_model_dir, write_model
from bertkit.launch import world_from_environment
from bertkit.model.bert import init_weights
from bertkit.model.config import HEADS, BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.objective import pretraining_losses
from bertkit.progress import Progress
from bertkit.settings import PretrainSettings
from bertkit.train import checkpoint, loop
from bertkit.train.log import MetricsLog
from bertkit.train.optimizer import AdamW, parameter_groups
from bertkit.train.schedule import SCHEDULES
from bertkit.view.report import write_report

TOKENS_AT_ONCE = {"cpu": 2048, "cuda": 65536}  # of one forward pass, where the micro-batch is chosen automatically
FREE_SETTINGS = ("output_dir", "log", "checkpoint", "evaluation", "device")  # may differ when a run is resumed
EVALUATION_SEQUENCES = 32


def run(settings: PretrainSettings) -> None:
    """Pretrain, resume, or say that it is done.

    Raises:
        InputError: settings, data or starting weights do not fit together, or the directory holds another run.
        LockedError: the run is live elsewhere.
        NumericsError: the gradient stopped being finite.
        StoppedError: a signal asked the run to stop; its checkpoint is saved.
    """
    dataset = _open_data(settings)
    model, origin = _build_model(settings, dataset)
    accelerator = loop.make_accelerator(settings.device, world_from_environment().size)
    directory = Path(settings.output_dir)
    identity = {key: value for key, value in to_mapping(settings).items() if key not in FREE_SETTINGS}
    identity["data_fingerprint"] = dataset.fingerprint

    with contextlib.ExitStack() as stack:

        def open_run() -> bool:
            if runs.check(directory, identity):
                print(f"done already: the model is in {directory / 'model'}")
                return False
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(directory))
            runs.write_identity(directory, to_mapping(settings), identity, _manifest(settings, dataset, origin))
            return True

        if loop.on_main_process(accelerator, open_run):
            _Pretraining(settings, dataset, model, accelerator, directory).run()


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


def _build_model(settings: PretrainSettings, dataset: PreparedDataset) -> tuple[BertWithHeads, str | None]:
    """Make the model anew, or from `init_from`; give it with a line on where its weights come from."""
    pairs = settings.segments.kind == "pairs"
    heads = HEADS if pairs else ("masked_lm",)
    max_seq_length = settings.segments.max_seq_length
    if settings.init_from is not None:
        model, report = load_packed(settings.init_from, heads, with_pooler=pairs, seed=settings.seed)
        check_fit(model.config.vocab_size, model.config.max_position_embeddings, dataset, max_seq_length)
        return model, huggingface.summary(report)
    facts = dataset.tokenizer.facts
    config = BertConfig(**dataclasses.asdict(settings.model), vocab_size=facts.size, pad_token_id=facts.pad)
    model = BertWithHeads(config, heads, with_pooler=pairs)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(settings.seed))
    return model, None


def _manifest(settings: PretrainSettings, dataset: PreparedDataset, origin: str | None) -> dict[str, Any]:
    start: dict[str, Any] | None = None
    if settings.init_from is not None:
        weights = resolve_model_dir(settings.init_from)
        files = {path.name: sha256_file(path) for path in sorted(weights.glob("*.safetensors"))}
        start = {"model_dir": str(settings.init_from), "summary": origin, "sha256": files}
    return {
        "data_fingerprint": dataset.fingerprint,
        "corpus": dataset.manifest["corpus"],
        "tokenizer_sha256": sha256_file(dataset.directory / "tokenizer" / "vocab.txt"),
        "init_from": start,
    }


class _Pretraining:
    """One run: what it holds, and its steps in order."""

    def __init__(
        self,
        settings: PretrainSettings,
        dataset: PreparedDataset,
        model: BertWithHeads,
        accelerator: Accelerator,
        directory: Path,
    ) -> None:
        self.settings, self.dataset, self.accelerator = settings, dataset, accelerator
        self.directory, self.main = directory, accelerator.is_main_process
        self.packed = model
        self.unigram_entropy: float = dataset.manifest["statistics"]["unigram_entropy"]
        self.first_step = 0
        self.state: dict[str, Any] = {
            "micro_sequences": self._micro_sequences(),
            "num_threads": torch.get_num_threads(),
        }
        moments, num_updates = self._resume()
        torch.set_num_threads(self.state["num_threads"])
        self.model = accelerator.prepare_model(model.train())
        self.optimizer = AdamW(parameter_groups(model, settings.optimizer.weight_decay), settings.optimizer)
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
                if log is not None and (row or step % settings.log.every_steps == 0 or step == 1):
                    row = _metrics_row(report, tokens / seconds, row)
                    log.write(row)
                    progress.line(self._line(row, progress))
                    tokens, seconds = 0, 0.0
                if "eval_mlm_loss" in row and main:
                    progress.line(f"  health: {self._health(row)}")
                    write_report(self.directory, self.unigram_entropy)
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
        warmup_steps = settings.schedule.num_warmup_steps(settings.steps)

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
                SCHEDULES[settings.schedule.name], steps=settings.steps, warmup_steps=warmup_steps
            ),
            max_grad_norm=settings.optimizer.max_grad_norm,
            seed=settings.seed,
            skip_steps=settings.data.skip_steps,
            stop_requested=stop_requested,
        )

    def _micro_sequences(self) -> int:
        """How many sequences one forward pass takes: what is set, or a divisor of the batch that suits the device.

        Chosen without looking at the number of processes, so that every layout computes the same micro-shards.
        """
        batch = self.settings.batch
        longest = self.settings.segments.max_seq_length
        if batch.micro_sequences != "auto":
            return min(batch.micro_sequences, batch.sequences)
        room = batch.micro_tokens if batch.micro_tokens != "auto" else TOKENS_AT_ONCE[self.accelerator.device.type]
        limit = max(1, min(room // longest, batch.sequences // 2 if batch.micro_tokens == "auto" else batch.sequences))
        return max(size for size in range(1, limit + 1) if batch.sequences % size == 0)

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

    def _nsp_chance(self) -> float:
        """The next sentence accuracy of always guessing the commoner label, over what is evaluated."""
        assert self.held_out is not None
        share = self.held_out.random_next_share(self.settings.evaluation.max_sequences)
        return max(share, 1 - share)

    def _save(self, step: int) -> None:
        if self.main:
            tensors = huggingface.tensors_of(self.packed)
            if not checkpoint.all_finite(tensors):
                raise NumericsError(f"step {step}: a weight is not finite; the last checkpoint is good")
            files = huggingface.text_files(
                self.packed, self.dataset.tokenizer.files(self.packed.config.max_position_embeddings)
            )
            contents = checkpoint.Checkpoint(
                step=step,
                model=tensors,
                optimizer=self.optimizer.tensors(self.names),
                state={**self.state, "num_updates": self.optimizer.num_updates, "torch": torch.__version__},
                files=files,
            )
            checkpoint.save(self.directory, contents, self.settings.checkpoint.keep_last)
        self.accelerator.wait_for_everyone()

    def _finish(self) -> None:
        """Write the model, the metrics and the report; the metrics last, they mark the run as done."""
        metrics = {name.removeprefix("eval_"): value for name, value in self._evaluate().items()}
        if not self.main:
            return
        statistics = self.dataset.manifest["statistics"]
        result = {
            **metrics,
            "perplexity": math.exp(metrics["mlm_loss"]) if metrics else None,
            "unigram_entropy": statistics["unigram_entropy"],
            "steps": self.settings.steps,
        }
        readme = card.pretraining_card(
            self.packed, to_mapping(self.settings), self.dataset.manifest["corpus"]["description"], result
        )
        with building_dir(self.directory / "model") as partial:
            write_model(self.packed, self.dataset.tokenizer, partial, {"README.md": readme})
        write_durably(self.directory / runs.RESULT, to_json(result))
        write_report(self.directory, self.unigram_entropy)
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
