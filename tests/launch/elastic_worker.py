"""`bertkit` in several processes of one host, which write down every micro-batch that they train on; for the tests.

`python elastic_worker.py WORLD PORT BATCHES pretrain ...` forks the processes once bertkit is imported, each of which runs
the command as torchrun would have it run, and appends "step micro-batch hash" lines to BATCHES. It ends with the highest of
their exit codes; killed, the whole process group goes.
"""

import dataclasses
import hashlib
import os
import sys
from typing import Any

import numpy as np

from bertkit.cli import main
from bertkit.train import loop

real_step = loop.optimizer_step


def hash_of(batch: Any) -> str:
    arrays = (np.asarray(value) for value in dataclasses.astuple(batch) if value is not None)
    return hashlib.sha256(b"".join(repr(array.shape).encode() + array.tobytes() for array in arrays)).hexdigest()[:16]


def command(rank: int, world: int, port: str, batches: str, arguments: list[str]) -> None:
    if world > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    lines = open(batches, "a", encoding="utf-8")  # noqa: SIM115  the process ends with it

    def step_with_its_batches_written_down(
        learner: Any, course: Any, step: int, micro_batches: Any, **named: Any
    ) -> Any:
        lines.writelines(f"{step} {number} {hash_of(batch)}\n" for number, batch in micro_batches)
        lines.flush()
        return real_step(learner, course, step, micro_batches, **named)

    loop.optimizer_step = step_with_its_batches_written_down
    sys.argv = ["bertkit", *arguments]
    main()


def fork(rank: int, world: int, *more: Any) -> int:
    process = os.fork()
    if process == 0:
        code: Any = 1
        try:
            command(rank, world, *more)
        except SystemExit as end:
            code = end.code or 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return process


if __name__ == "__main__":
    world = int(sys.argv[1])
    processes = [fork(rank, world, *sys.argv[2:4], sys.argv[4:]) for rank in range(world)]
    os._exit(max(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes))
