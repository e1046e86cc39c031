"""The work as bertkit does it: each function loads what one kind of work needs."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertkit.bench.workload import Batches, Ready, System, Workload, embedding
from bertkit.bench.writing import Pairs, writing
from bertkit.interop.load import load_packed
from bertkit.kernels import fast
from bertkit.kernels.fast import FastWays
from bertkit.launch.world import own_command
from bertkit.lines import read_json
from bertkit.model.heads import BertWithHeads
from bertkit.run.answers import answer_here, logits_here
from bertkit.run.compiled import compile_layers, missing_for
from bertkit.run.embedding import load_embedder
from bertkit.run.objective import pretraining_losses, task_losses
from bertkit.run.task_model import open_task_model
from bertkit.tasks.config import GenerationConfig
from bertkit.tasks.generation import GenerationExample
from bertkit.tasks.sequence import SequenceExample
from bertkit.tasks.shapes import make_features
from bertkit.train import loop, processes, shares
from bertkit.train.config import OptimizerConfig
from bertkit.train.loop import Course, Learner
from bertkit.train.optimizer import AdamW, parameter_groups


def fast_ways(device: str) -> list[str]:
    """Name the fast ways that bertkit takes on a device."""
    at_work = fast.ON_CPU if device == "cpu" else fast.ON_CUDA
    return [name for name in fast.choose("auto").names if name in at_work]


def _take_fast_ways(model: BertWithHeads, system: System) -> None:
    model.use(FastWays.of(set(fast.choose("auto").names) - set(system.without)))


def train(workload: Workload, system: System) -> Ready:
    """Pretrain or fine-tune, by the loop of both commands."""
    source: Batches | Pairs = Pairs(workload) if workload.what == "translate" else Batches(workload)
    accelerator = processes.make_accelerator(workload.device, 1)
    losses: Callable[..., Any] = pretraining_losses if workload.what == "pretrain" else task_losses
    loaded, _ = load_packed(workload.model_dir)
    _take_fast_ways(loaded, system)
    is_plain = set(system.without) >= set(fast_ways(workload.device))
    if workload.device == "cuda" and not is_plain and missing_for("cuda") is None:
        compile_layers(loaded.bert.encoder)
    model = accelerator.prepare(loaded.train())
    config = OptimizerConfig("adamw", 1e-4, 0.9, 0.999, 1e-6, 0.01, False, 1.0)
    optimizer = AdamW(parameter_groups(loaded, config.weight_decay), config)

    def first_losses() -> list[float]:
        model.eval()
        found = [losses(model, source.of_step(0), precision) for precision in ("fp32", system.precision)]
        model.train()
        return [float(sum(term.sum.detach() / term.count for term in terms.values())) for terms in found]

    def work(number: int) -> int:
        given = [source.micro_batches(step) for step in workload.steps_of(number)]
        learner = Learner(accelerator, model, optimizer, functools.partial(losses, precision=system.precision))
        course = Course(lambda step: given[step], lambda step: 1e-4, 0, len(given), max_grad_norm=1.0, seed=0)
        reports = loop.train(learner, course, is_read=lambda step: False)
        return sum(report.num_tokens for report in reports)

    return Ready(first_losses, work)


def predict(workload: Workload, system: System) -> Ready:
    """Turn texts into probabilities, as the command answers them."""
    opened = open_task_model(str(workload.model_dir), None, {"max_seq_length": workload.max_seq_length})
    _take_fast_ways(opened.model, system)
    model = opened.model.to(workload.device)
    predictor = opened.predictor(system.precision, shares.TOKENS_AT_ONCE[workload.device], model)

    def answer() -> tuple[list[dict[str, float]], int]:
        examples = [SequenceExample(str(number), text, None, None) for number, text in enumerate(workload.texts)]
        features = list(make_features(opened.task, examples, opened.tokenizer, ()))
        predictions = answer_here(predictor, examples, features)
        return [each.probabilities for each in predictions], sum(len(each.input_ids) for each in features)

    return Ready(lambda: answer()[0], lambda number: answer()[1])


def generate(workload: Workload, system: System) -> Ready:
    """Write texts of texts, as the command `predict` writes them."""
    search = GenerationConfig(workload.max_target_length, system.num_beams, 1.0, 0.0, 1, False, 1.0, None, None)
    changes = {"max_seq_length": workload.max_seq_length, "generation": dataclasses.asdict(search)}
    opened = open_task_model(str(workload.model_dir), None, changes)
    _take_fast_ways(opened.model, system)
    model = opened.model.to(workload.device)
    predictor = opened.predictor(system.precision, shares.TOKENS_AT_ONCE[workload.device], model)

    def write(texts: list[str]) -> list[list[int]]:
        examples = [GenerationExample(str(number), text, None) for number, text in enumerate(texts)]
        features = list(make_features(opened.task, examples, opened.tokenizer, ()))
        found = logits_here(
            predictor, examples, features
        )  # `answer_here` gives the texts alone; their tokens count too
        opened.shape.predictions(opened.task, examples, features, found, (), opened.tokenizer)
        return [texts[0][0] for texts in found]

    return writing(workload, system, write)


def embed(workload: Workload, system: System) -> Ready:
    """Turn texts into vectors, as the command does it."""
    named: Any = {"max_seq_length": workload.max_seq_length, "device": workload.device, "precision": system.precision}
    embedder = load_embedder(workload.model_dir, "mean", True, **named)
    _take_fast_ways(embedder.model, system)
    return embedding(workload, system, lambda texts: embedder.embed(texts)[0])


def prepare(workload: Workload, system: System) -> Ready:
    """Turn text into shards of token ids, by the command; its start-up is part of the time."""
    command = own_command("prepare", f"corpus.path={workload.text_file}")
    command += [f"tokenizer.path={workload.data_dir / 'tokenizer'}", f"num_workers={workload.num_threads}"]

    def work(number: int = 0) -> int:
        with tempfile.TemporaryDirectory() as target:
            subprocess.run([*command, f"output_dir={target}/prepared"], check=True, capture_output=True)
            splits = read_json(Path(target) / "prepared" / "manifest.json")["splits"]
            return sum(int(split["tokens"]) for split in splits.values())

    return Ready(work, work)


def batches(workload: Workload, system: System) -> Ready:
    """Turn prepared text into the packed batches of an epoch: pairs, their order, masks, assembly."""
    first_epoch, size = Batches(workload).sampler, workload.batch_sequences

    def work(number: int = 0) -> int:
        # another seed has other pairs and another order, none of them drawn before
        sampler = dataclasses.replace(first_epoch, seed=number)
        steps = range(sampler.epoch_length // size)
        return sum(sampler.micro_batches(step, size, [(0, size)])[0].num_tokens for step in steps)

    return Ready(work, work)
