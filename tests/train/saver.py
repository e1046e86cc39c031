"""A process that saves one checkpoint after another and says so, until it is killed; for `test_durability.py`.

    python saver.py RUN_DIR NUM_NUMBERS KEEP_LAST

It stays alive and forks a saver for each line on its input, so that torch is imported once. A saver does what a run does
when it starts: it takes the newest valid checkpoint, checks that it is of one piece, and goes on from there. It writes
"resumed STEP PID", then "saved STEP PID" for each checkpoint that is safe, and after its end "ended PID STATUS".
"""

import os
import sys
from pathlib import Path

import torch
from torch import Tensor

from bertkit.base.errors import StorageError
from bertkit.base.files import remove_leftovers
from bertkit.base.tensor_files import read_tensors
from bertkit.train import checkpoint, checkpoint_files
from bertkit.train.checkpoint import Checkpoint

NAMES = ("embeddings", "layer", "pooler")


def contents(step: int, numbers: Tensor) -> Checkpoint:
    """Weights and two moments of each, which are parts of `numbers`; every tensor ends in the step."""
    tensors = numbers.chunk(3 * len(NAMES))
    for tensor in tensors:
        tensor[-1] = step
    moments = [f"{name}.{moment}" for name in NAMES for moment in ("exp_avg", "exp_avg_sq")]
    return Checkpoint(
        step=step, model=dict(zip(NAMES, tensors, strict=False)),
        optimizer=dict(zip(moments, tensors[len(NAMES) :], strict=True)), state={"num_updates": step},
        files={"config.json": '{"x": 1}\n', "vocab.txt": "a\nb\n"},
    )  # fmt: skip


def resume(run_dir: Path) -> int:
    """Return the step of the newest valid checkpoint, 0 if there is none; a damaged or mixed one ends the process."""
    remove_leftovers(checkpoint_files.checkpoints_dir(run_dir), checkpoint_files.NAMES)
    newest, faults = checkpoint_files.newest_valid(run_dir)
    assert faults == [], faults
    if newest is None:
        return 0
    step = checkpoint_files.read_state(newest)["step"]
    tensors = [read_tensors(newest / checkpoint.WEIGHTS), checkpoint.read_moments(newest)]
    assert {float(tensor[-1]) for group in tensors for tensor in group.values()} == {step}
    return int(step)


def main() -> None:
    run_dir, num_numbers, keep_last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    numbers = torch.randn(num_numbers, generator=torch.Generator().manual_seed(0))
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            step = resume(run_dir)
            print("resumed", step, os.getpid(), flush=True)
            while True:
                step += 1
                try:
                    checkpoint.save(run_dir, contents(step, numbers).share(0, 1), keep_last=keep_last)
                except StorageError:
                    os._exit(StorageError.exit_code)  # the power is cut
                print("saved", step, os.getpid(), flush=True)
        status = os.waitpid(pid, 0)[1]
        print("ended", pid, status, flush=True)


if __name__ == "__main__":
    main()
