"""What `bench` measures: each contestant does one kind of work, in a process of its own.

A contestant is asked for a round and says how many tokens it got through; it can also say its first result without
dropout, so that the work is known to be the same.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

BERTKIT, HUGGING_FACE = "bertkit", "Hugging Face"
HELD = "held"  # asks for the memory that a contestant holds
WINDOW = 50  # batches that are sorted by length together; transformers' LengthGroupedSampler, mega_batch_mult


@dataclass(frozen=True)
class Job:
    """The work of a bench, the same for all contestants.

    Attributes:
        what: "pretrain", "finetune", "predict", "prepare" or "batches".
        data_dir: a prepared dataset.
        model_dir: where all models start; a Hugging Face directory.
        texts: of predict.
        files: of prepare.
        is_full: sequences of exactly `max_seq_length` tokens, cut from the text wherever they end.
    """

    what: str
    data_dir: Path
    model_dir: Path
    device: str
    max_seq_length: int
    batch_sequences: int
    steps_per_round: int
    num_threads: int
    texts: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    is_full: bool = False


@dataclass(frozen=True)
class Contestant:
    """One way to do the work.

    Attributes:
        name: in the table.
        system: `BERTKIT` or `HUGGING_FACE`.
        precision: "fp32" or "bf16".
        padding: Hugging Face's: "max", or "grouped" by length within `WINDOW` batches, as its sampler does it.
        is_compiled: Hugging Face's model, by `torch.compile`; bertkit's layers are compiled on CUDA.
        kernels: bertkit's; None for those that it would choose.
    """

    name: str
    system: str
    precision: str = "fp32"
    padding: str = "max"
    is_compiled: bool = False
    kernels: tuple[str, ...] | None = None


class Work(Protocol):
    """A contestant that is ready."""

    def first_result(self) -> Any:
        """What can be compared: the losses of the first batch without dropout, in float32 and in its precision; the answers;
        or a number of tokens.
        """

    def round(self, number: int) -> int:
        """Do the work of a round; give the number of tokens, or of bytes."""


def serve(connection: Connection, job: Job, contestant: Contestant) -> None:
    """Do what is asked over a connection: None for the first result, `HELD` for the memory it holds, a number for a round.

    It ends when the connection closes.
    """
    os.environ["RAYON_NUM_THREADS"] = str(job.num_threads)  # of the tokenizers library
    import torch

    from bertkit.run.memory import memory_here

    torch.set_num_threads(job.num_threads)
    work = _make(job, contestant)
    with connection:
        while True:
            try:
                asked = connection.recv()
            except EOFError:
                return
            if asked is None:
                connection.send(work.first_result())
                continue
            if asked == HELD:
                here = memory_here(job.device)
                connection.send(0 if here is None else here.held)
                continue
            started_at = time.perf_counter()
            amount = work.round(asked)
            if job.device == "cuda":
                torch.cuda.synchronize()
            connection.send((amount, time.perf_counter() - started_at, _peak_megabytes(job.device)))


def _peak_megabytes(device: str) -> float:
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 1e6
    # a contestant that starts a command is no more than its clock
    kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss or _peak_kilobytes_here()
    return kilobytes * 1024 / 1e6


def _peak_kilobytes_here() -> int:
    """The peak of this process alone; `ru_maxrss` starts from that of the process that started it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def _make(job: Job, contestant: Contestant) -> Work:
    works: dict[tuple[str, str], Callable[[Job, Contestant], Work]] = {
        ("pretrain", BERTKIT): _Training,
        ("pretrain", HUGGING_FACE): _TrainingBeside,
        ("finetune", BERTKIT): _Training,
        ("finetune", HUGGING_FACE): _TrainingBeside,
        ("predict", BERTKIT): _Predicting,
        ("predict", HUGGING_FACE): _PredictingBeside,
        ("prepare", BERTKIT): _Preparing,
        ("prepare", HUGGING_FACE): _PreparingBeside,
        ("batches", BERTKIT): _Batching,
        ("batches", HUGGING_FACE): _BatchingBeside,
    }
    return works[job.what, contestant.system](job, contestant)


class _Batches:
    """The batches of every step: pairs of the prepared text, masked; or with their labels as classes and their own words."""

    def __init__(self, job: Job) -> None:
        from bertkit.data.config import MaskingConfig, SegmentsConfig
        from bertkit.data.prepared import open_prepared
        from bertkit.data.sampling import Sampler

        dataset = open_prepared(job.data_dir)
        # pairs of all lengths to fine-tune on, half of them on average; long ones, a tenth shortened, to pretrain
        shape = SegmentsConfig("pairs", job.max_seq_length, 1.0 if job.what == "finetune" else 0.1)
        masking = MaskingConfig(0.15, False, 0.8, 0.1)
        self.sampler = Sampler(dataset.splits["train"], dataset.tokenizer.facts, shape, masking, seed=0)
        self.job, self.dataset = job, dataset

    def of_step(self, step: int) -> Any:
        """Give the batch of a step, packed."""
        from bertkit.batch import TaskBatch

        if self.job.is_full:
            return self._full(step)
        size = self.job.batch_sequences
        (batch,) = self.sampler.micro_batches(step, size, [(0, size)])
        if self.job.what == "pretrain":
            return batch
        ids = batch.input_ids.copy()
        ids[batch.masked_positions] = batch.masked_labels
        return TaskBatch(
            "sequence", ids, batch.token_type_ids, batch.sequence_lengths, batch.next_sentence_labels, 1, None
        )

    def _full(self, step: int) -> Any:
        """Cut sequences of one length; the text is read in a circle, and three of twenty tokens are masked."""
        from bertkit.batch import PretrainBatch

        size, length = self.job.batch_sequences, self.job.max_seq_length
        text, special = self.dataset.splits["train"], self.dataset.tokenizer.facts
        ids = np.resize(text.tokens(0, min(text.num_tokens, size * length)).astype(np.int64), size * length)
        masked = np.flatnonzero(np.arange(size * length) % 20 < 3)
        labels = ids[masked].copy()
        ids[masked] = special.mask
        types = np.tile(np.arange(length) >= length // 2, size).astype(np.int64)
        follows = (np.arange(size) + step) % 2
        return PretrainBatch(ids, types, np.full(size, length), masked, labels, follows)

    def of_round(self, number: int) -> list[Any]:
        """Give the batches of a round."""
        first = number * self.job.steps_per_round
        return [self.of_step(step) for step in range(first, first + self.job.steps_per_round)]


class _Training:
    """Training by bertkit's loop."""

    def __init__(self, job: Job, contestant: Contestant) -> None:
        from bertkit.interop.load import load_packed
        from bertkit.model import kernels
        from bertkit.model.compiled import compile_layers, missing_for
        from bertkit.run.objective import pretraining_losses, task_losses
        from bertkit.train import loop
        from bertkit.train.config import OptimizerConfig
        from bertkit.train.optimizer import AdamW, parameter_groups

        kernels.use(kernels.choose("auto") if contestant.kernels is None else contestant.kernels)
        self.batches = _Batches(job)
        self.loop, self.accelerator = loop, loop.make_accelerator(job.device, 1)
        model, _ = load_packed(job.model_dir)
        if job.device == "cuda" and contestant.kernels != () and missing_for("cuda") is None:
            compile_layers(model.bert.encoder)
        self.model = self.accelerator.prepare(model.train())
        config = OptimizerConfig("adamw", 1e-4, 0.9, 0.999, 1e-6, 0.01, False, 1.0)
        self.optimizer = AdamW(parameter_groups(model, config.weight_decay), config)
        self.losses = pretraining_losses if job.what == "pretrain" else task_losses
        self.precision = contestant.precision

    def first_result(self) -> tuple[float, float]:
        self.model.eval()
        losses = []
        for precision in ("fp32", self.precision):
            terms = self.losses(self.model, self.batches.of_step(0), precision)
            losses.append(float(sum(term.sum.detach() / term.count for term in terms.values())))
        self.model.train()
        return losses[0], losses[1]

    def round(self, number: int) -> int:
        batches = self.batches.of_round(number)
        losses = functools.partial(self.losses, precision=self.precision)
        reports = self.loop.train(
            self.accelerator, self.model, self.optimizer, losses, lambda step: [(0, batches[step])],
            first_step=0, steps=len(batches), peak_learning_rate=1e-4, schedule=lambda step: 1.0, max_grad_norm=1.0, seed=0,
            is_read=lambda step: False,
        )  # fmt: skip
        return sum(report.num_tokens for report in reports)


class _TrainingBeside:
    """The same batches through transformers."""

    def __init__(self, job: Job, contestant: Contestant) -> None:
        import torch

        from bertkit.bench import hugging_face as baseline

        self.job, self.padding, self.baseline = job, contestant.padding, baseline
        self.batches = _Batches(job)
        architecture = "BertForPreTraining" if job.what == "pretrain" else "BertForSequenceClassification"
        self.training = baseline.TrainingBaseline(
            job.model_dir, architecture, contestant.precision, torch.device(job.device), contestant.is_compiled
        )

    def first_result(self) -> tuple[float, float]:
        self.training.model.eval()
        inputs = self._inputs(self.batches.of_step(0))
        losses = [float(self.training.loss(inputs, precision)) for precision in ("fp32", self.training.precision)]
        self.training.model.train()
        return losses[0], losses[1]

    def _inputs(self, batch: Any) -> Any:
        width = self.job.max_seq_length if self.padding == "max" else None
        return self.baseline.padded(batch, width, self.training.device)

    @functools.cached_property
    def _window(self) -> Any:
        return self.baseline.grouped([self._inputs(self.batches.of_step(step)) for step in range(WINDOW)])

    def round(self, number: int) -> int:
        count = self.job.steps_per_round
        if self.padding == "grouped":  # batches of all lengths in every round
            inputs = [self._window[(number + place * WINDOW // count) % WINDOW] for place in range(count)]
        else:
            steps = range(number * count, (number + 1) * count)
            inputs = [self._inputs(self.batches.of_step(step)) for step in steps]
        for each in inputs:
            self.training.step(each)
        return sum(int(each["attention_mask"].sum()) for each in inputs)


class _Predicting:
    """Texts to probabilities, as `bertkit predict` answers them."""

    def __init__(self, job: Job, contestant: Contestant) -> None:
        from bertkit.model import kernels
        from bertkit.run.task_model import open_task_model
        from bertkit.train.loop import TOKENS_AT_ONCE

        kernels.use(kernels.choose("auto") if contestant.kernels is None else contestant.kernels)
        self.texts, self.precision, self.micro_tokens = job.texts, contestant.precision, TOKENS_AT_ONCE[job.device]
        self.opened = open_task_model(str(job.model_dir), None, {"max_seq_length": job.max_seq_length})
        self.model = self.opened.model.to(job.device)

    def first_result(self) -> list[dict[str, float]]:
        from bertkit.run.answers import answer_here
        from bertkit.tasks import shapes
        from bertkit.tasks.task import SequenceExample

        opened = self.opened
        examples = [SequenceExample(str(number), text, None, None) for number, text in enumerate(self.texts)]
        features = list(shapes.make_features(opened.task, examples, opened.tokenizer, ()))
        self.num_tokens = sum(len(feature.input_ids) for feature in features)
        predictions = answer_here(
            self.model, opened.task, examples, features, opened.labels,
            opened.tokenizer,
            precision=self.precision, micro_tokens=self.micro_tokens,
        )  # fmt: skip
        return [prediction.probabilities for prediction in predictions]

    def round(self, number: int) -> int:
        self.first_result()
        return self.num_tokens


class _PredictingBeside:
    """The same through transformers' pipeline."""

    def __init__(self, job: Job, contestant: Contestant) -> None:
        from bertkit.bench import hugging_face as baseline
        from bertkit.data.tokenizer import load_tokenizer

        best = contestant.padding == "grouped"
        self.answers = baseline.classify(
            job.model_dir, job.texts, job.max_seq_length, 32 if best else 1, contestant.precision, best, job.device
        )
        ids = load_tokenizer(job.model_dir)(list(job.texts))["input_ids"]
        self.num_tokens = sum(min(len(each), job.max_seq_length) for each in ids)

    def first_result(self) -> Any:
        return next(self.answers)

    def round(self, number: int) -> int:
        next(self.answers)
        return self.num_tokens


class _Preparing:
    """Text to token shards by the command; its start-up is part of the time."""

    def __init__(self, job: Job, contestant: Contestant) -> None:
        self.job = job

    def _prepare(self) -> int:
        """Give the number of tokens."""
        from bertkit.files import read_json

        with tempfile.TemporaryDirectory() as target:
            paths = ",".join(map(str, self.job.files))
            command = [sys.executable, "-m", "bertkit", "prepare", f"corpus.path=[{paths}]"]
            command += [f"tokenizer.path={self.job.data_dir / 'tokenizer'}", f"output_dir={target}/prepared"]
            subprocess.run([*command, f"num_workers={self.job.num_threads}"], check=True, capture_output=True)
            splits = read_json(Path(target) / "prepared" / "manifest.json")["splits"]
            return sum(int(split["tokens"]) for split in splits.values())

    def first_result(self) -> int:
        return self._prepare()

    def round(self, number: int) -> int:
        self._prepare()
        return sum(path.stat().st_size for path in self.job.files)


class _PreparingBeside:
    """Text to tokens as transformers' example script does it."""

    def __init__(self, job: Job, contestant: Contestant) -> None:
        self.job = job

    def _prepare(self) -> int:
        from bertkit.bench import hugging_face as baseline

        job = self.job
        with tempfile.TemporaryDirectory() as cache:
            return baseline.prepare_as_examples(
                job.files, job.data_dir / "tokenizer", job.max_seq_length, Path(cache), job.num_threads
            )

    def first_result(self) -> int:
        return self._prepare()

    def round(self, number: int) -> int:
        self._prepare()
        return sum(path.stat().st_size for path in self.job.files)


class _Batching:
    """Prepared text to the packed batches of an epoch: pairs, their order, masks, assembly."""

    def __init__(self, job: Job, contestant: Contestant) -> None:
        self.job, self.sampler = job, _Batches(job).sampler

    def first_result(self) -> int:
        return self.round(0)

    def round(self, number: int) -> int:
        # another seed has other pairs and another order, none of them drawn before
        sampler, size = dataclasses.replace(self.sampler, seed=number), self.job.batch_sequences
        steps = range(sampler.epoch_length // size)
        return sum(sampler.micro_batches(step, size, [(0, size)])[0].num_tokens for step in steps)


class _BatchingBeside:
    """Ready pairs, the same, to masked and padded batches by transformers' collator."""

    def __init__(self, job: Job, contestant: Contestant) -> None:
        from bertkit.bench import hugging_face as baseline

        sampler, size = _Batches(job).sampler, job.batch_sequences
        pairs = sampler.take(np.arange(sampler.epoch_length // size * size))
        self.epochs = baseline.collate(pairs, job.data_dir / "tokenizer", size)

    def first_result(self) -> int:
        return next(self.epochs)

    def round(self, number: int) -> int:
        return next(self.epochs)
