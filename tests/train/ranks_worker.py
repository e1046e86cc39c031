"""One of two processes that save together; for `test_ranks.py`: ranks_worker.py DIRECTORY RANK, prints what it found as JSON."""

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from saver import contents

from bertkit.base.errors import BertkitError
from bertkit.train import checkpoint, checkpoint_files, processes
from bertkit.train.checkpoint_files import all_checkpoints
from bertkit.train.processes import Ranks


def error_of(work: Callable[[], object]) -> list[str]:
    try:
        work()
    except BertkitError as error:
        return [type(error).__name__, str(error)]
    return []


def main() -> None:
    directory, rank = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{directory}/meeting", rank=rank, world_size=2)
    ranks = Ranks(rank, 2, torch.distributed.new_group(backend="gloo"))
    run_dir, numbers, results = directory / "run", torch.randn(90_000, generator=torch.Generator().manual_seed(0)), {}

    def save(step: int) -> Path:
        part = contents(step, numbers).share(rank, 2)
        return checkpoint.save(run_dir, part, ranks, keep_last=1, last_good=step - 1)

    ranks.on_first(lambda: run_dir.mkdir())
    results["shared"] = error_of(lambda: ranks.check_shared(run_dir))
    results["saved"] = save(1).name

    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    if rank == 1:  # this process's disk fails, the other's does not
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    results["disk of one"] = error_of(lambda: save(2))
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    ranks.on_first(lambda: None)  # which the first process enters after it has cleaned up
    results["left"] = sorted(path.name for path in checkpoint_files.checkpoints_dir(run_dir).iterdir())

    bad = contents(3, numbers.clone())
    if rank == 1:
        bad.optimizer["pooler.exp_avg_sq"][0] = float("inf")
    results["a number of one"] = error_of(lambda: checkpoint.save(run_dir, bad.share(rank, 2), ranks, keep_last=1))
    results["saved after"] = save(4).name
    results["kept"] = [path.name for path in all_checkpoints(run_dir)]

    processes.SHARED_FILE_SECONDS = 0.2
    elsewhere = run_dir if rank == 0 else directory / "elsewhere"
    results["not shared"] = error_of(lambda: ranks.check_shared(elsewhere))
    print(json.dumps(results))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
