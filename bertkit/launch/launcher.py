"""Starts the worker processes of a command; in a worker, reads its job. torch is imported only to start workers.

A worker is the process `bertkit --worker FILE`; the file has the settings, which the launcher has checked. If a worker fails, it
writes the reason to torch's error file, and the launcher reads it.
"""

import contextlib
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.base.errors import InputError, refusing
from bertkit.launch import world
from bertkit.launch.launch_config import LaunchConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

is_launcher = False  # whether this process started workers; it prints their errors, whatever its rank under srun
is_worker = False  # whether a bertkit launcher started this process; the launcher prints its errors
shows_tracebacks = False  # whether the user set --debug; the workers get it too


def starts_workers(launch: LaunchConfig) -> bool:
    """Return whether this process must start workers: several processes are set, and no other launcher has started them.

    srun may start one bertkit launcher on each host.
    """
    if launch.num_processes * launch.num_hosts == 1 or "RANK" in os.environ:
        return False
    return not world.is_slurm_task(os.environ) or os.environ["SLURM_NTASKS"] == str(launch.num_hosts)


def check_on_one_host(command: str, launches: Sequence[LaunchConfig]) -> None:
    """Raise InputError if another launcher started this process, or workers on several hosts are set."""
    if world.world_from_environment().size > 1 or any(launch.num_hosts > 1 for launch in launches):
        raise InputError(
            f"{command} starts its own processes, on one host: set launch.num_processes=, without torchrun, srun and "
            "launch.num_hosts="
        )


def run_in_workers(command: str, settings: "DataclassInstance", launch: LaunchConfig, place: str | None) -> bool:
    """Start this host's workers for a command that writes to `place`, and wait for them, if several processes are set.

    Returns whether it did.

    Raises:
        BertkitError: the error of a worker.
        PeerError: a worker died, hangs or raised an unexpected error, or another host did.
        BrokenPipeError: the reader of a worker's output closed the pipe.
        KeyboardInterrupt: a signal stopped the workers before they saved anything.
    """
    global is_launcher
    if not starts_workers(launch):
        return False
    is_launcher = True
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # bertkit prints one line; torch would print a stack trace
    # otherwise torch makes a folder when imported
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())
    from bertkit.launch import elastic

    job = {
        "command": command, "settings": dataclasses.asdict(settings), "debug": shows_tracebacks,
        "arguments": list(world.command_line.get()), "launcher": os.getpid(),
    }  # fmt: skip
    elastic.run(launch, job, place)
    return True


def read_job(file: str = "") -> dict[str, Any]:
    """Read the job of this worker, which a launcher must have started; from now on the process ends when its launcher ends."""
    global is_worker, shows_tracebacks
    wrong = "--worker is only for processes that launch.num_processes= starts; leave it out"
    with refusing((OSError, ValueError, TypeError, LookupError, RecursionError), lambda _: wrong):
        job: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
        arguments, launcher, shows_tracebacks = job["arguments"], job["launcher"], job["debug"]
        world.end_with_parent()
        if set(job) != {"command", "settings", "debug", "arguments", "launcher"} or launcher != os.getppid():
            raise ValueError
    world.command_line.set(tuple(arguments))
    is_worker = True
    return job


def report_error(message: str) -> bool:
    """Write an error to torch's error file, if this process has one; return whether the launcher will print it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with contextlib.suppress(OSError):
            partial = Path(f"{path}.partial")
            partial.write_text(
                json.dumps({"message": {"message": message, "extraInfo": {"timestamp": int(time.time())}}})
            )
            partial.replace(path)
    return is_worker
