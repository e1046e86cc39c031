"""Training runs at the level of the loop, with faults put into chosen steps; started by the tests.

`python step_worker.py RUNS OUTPUT`: for each of the runs, a JSON list of settings, its processes are forked, so that all
of them together import torch once; what they found is a JSON list of lists.
"""

import hashlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import small_model
from torch import Tensor, nn

from bertkit.base.batch import Batch, Target
from bertkit.objectives.losses import batch_losses
from bertkit.train import loop, micro_batches
from bertkit.train.accelerator import ending_together, make_accelerator
from bertkit.train.loop import Course, Learner
from bertkit.train.losses import LossTerm
from bertkit.train.optimizer import Optimizer, make_optimizer, parameter_groups
from bertkit.train.train_config import OptimizerConfig

LENGTHS = (5, 7, 7, 3, 11, 2, 13, 5)
MASKED = (1, 0, 3, 1, 5, 1, 2, 0)  # uneven, so that a mean of means is wrong


def part(step: int, first: int, last: int) -> Batch:
    """Sequences `first` to `last` of the global batch of a step."""
    rng = np.random.default_rng(step)
    ids, types = rng.integers(131, size=sum(LENGTHS)), rng.integers(2, size=sum(LENGTHS))
    starts = np.cumsum(LENGTHS) - LENGTHS
    positions = [np.sort(rng.permutation(LENGTHS[n])[: MASKED[n]]) + starts[n] for n in range(8)]
    labels = [rng.integers(131, size=count) for count in MASKED]
    nsp = rng.integers(2, size=8)
    begin, end = starts[first], starts[last - 1] + LENGTHS[last - 1]
    masks = Target(np.concatenate(labels[first:last]), np.concatenate(positions[first:last]) - begin)
    targets = {"masked_lm": masks, "next_sentence": Target(nsp[first:last])}
    return Batch(ids[begin:end], types[begin:end], np.array(LENGTHS[first:last]), targets)


def state_hash(model: nn.Module, optimizer: Optimizer) -> str:
    """SHA-256 over weights, moments and the number of updates, in the order of their names."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {**model.state_dict(), **optimizer.tensors(names)}
    digest = hashlib.sha256(str(optimizer.num_updates).encode())
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].detach().numpy().tobytes())
    return digest.hexdigest()


class Faults:
    """Puts faults into this process's part of a step: the step, counted from 1, and the kind of fault."""

    def __init__(self, model: nn.Module, kinds: dict[str, str]) -> None:
        self.kinds, self.step, self.is_struck = kinds, 0, False
        parameter = model.get_parameter("bert.encoder.layers.1.attention.query.weight")
        parameter.register_hook(self._into_a_gradient)

    def _kind(self) -> str | None:
        return self.kinds.get(str(self.step + 1))

    def _into_a_gradient(self, gradient: Tensor) -> Tensor:
        if self._kind() != "gradient":
            return gradient
        self.is_struck = True
        broken = gradient.clone()
        broken[3, 5] = float("nan")
        return broken

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, LossTerm]:
        terms = batch_losses(model, batch)
        wrong = {
            "nan loss": lambda total: total * float("nan"),  # and with it the gradient
            "inf loss": lambda total: total * float("inf"),
            "nan added": lambda total: total + float("nan"),  # the gradient is finite
        }.get(self._kind() or "")
        if wrong is not None and terms["mlm"].count:
            self.is_struck = True
            terms["mlm"] = LossTerm(wrong(terms["mlm"].sum), terms["mlm"].count, terms["mlm"].correct)
        return terms


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Train as the settings say; give the hash of the state, and what every step reported."""
    torch.set_num_threads(1)
    accelerator = make_accelerator("cpu", settings["world"])
    rank = accelerator.process_index
    model = small_model(dropout=0.2, **settings["sizes"]).train()
    faults = Faults(model, settings["faults"].get(str(rank), {}))
    prepared = accelerator.prepare_model(model)
    sent = list[tuple[int, int, bool]]()  # step, bytes, whether the backward pass is at its end
    are_embeddings_done = [False]
    if settings["is_counted"]:
        model.register_forward_pre_hook(lambda *_: are_embeddings_done.__setitem__(0, False))
        model.bert.embeddings.position.weight.register_hook(lambda _: are_embeddings_done.__setitem__(0, True))

        def count(state: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
            sent.append((faults.step + 1, bucket.buffer().nbytes, are_embeddings_done[0]))
            return allreduce_hook(None, bucket)

        prepared.register_comm_hook(None, count)
    config = OptimizerConfig(settings["optimizer"], 1e-3, 0.9, 0.999, 1e-6, 0.01, settings["optimizer"] == "lamb", 0.5)
    optimizer = make_optimizer(parameter_groups(model, 0.01), config)

    def batches(step: int) -> list[tuple[int, Batch]]:
        faults.step = step
        shards = micro_batches.micro_batch_ranges(8, settings["micro_sequences"])
        mine = micro_batches.local_micro_batches(len(shards), rank, settings["world"])
        return [(number, part(step, *shards[number])) for number in mine]

    rows, struck = [], []
    with ending_together(accelerator):
        course = Course(
            batches=batches, learning_rate=lambda step: 1e-3 / (1 + step), first_step=0, steps=settings["steps"],
            max_grad_norm=0.5, seed=3, skip_steps=settings["skip_steps"],
        )  # fmt: skip
        learner = Learner(accelerator, prepared, optimizer, faults.losses, num_parts=settings["num_parts"])
        for report in loop.train(learner, course):
            rows.append([report.step, report.losses, report.accuracies, report.grad_norm, report.skip_reason])
            if faults.is_struck:
                struck.append(report.step)
                faults.is_struck = False
        size = sum(parameter.nbytes for parameter in model.parameters())
        result = {"hash": state_hash(model, optimizer), "rows": rows, "struck": struck, "skipped": report.skips.total}
        return {**result, "sent": sent, "size": size}


def fork(settings: dict[str, Any], rank: int, output: Path) -> int:
    """Start a process of a run; it writes what it found to `output`."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            if settings["world"] > 1:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(settings["world"])}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(settings["port"])}
            output.write_text(json.dumps(run(settings)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return process


def main() -> None:
    results = []
    output = Path(sys.argv[2])
    for settings in json.loads(sys.argv[1]):
        parts = [output.with_name(f"{rank}.json") for rank in range(settings["world"])]
        processes = [fork(settings, rank, part) for rank, part in enumerate(parts)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        assert codes == [0] * len(processes), codes
        results.append([json.loads(part.read_text()) for part in parts])
    output.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
