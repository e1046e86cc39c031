"""Whether a command starts processes of its own, and what such a process is handed; imports no torch until it starts them.

A worker is `bertkit --worker FILE`: the file holds the settings that the launcher has checked. Why a worker ends goes into
torch's error file, which the launcher reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.launch import world
from bertkit.launch.launch_config import LaunchConfig

is_launcher = False  # whether this process started others: then it speaks for them, whatever srun calls it
is_worker = False  # whether a launcher of bertkit started this process, and speaks for it
shows_tracebacks = False  # whether the user asked for tracebacks, also from the processes that are started


def starts_workers(launch: LaunchConfig) -> bool:
    """Whether this process is to start processes: several are asked for, and nobody has started them yet.

    srun may start the launchers themselves, one on each host.
    """
    if launch.num_processes * launch.num_hosts == 1 or "RANK" in os.environ:
        return False
    return not world.is_slurm_task(os.environ) or os.environ["SLURM_NTASKS"] == str(launch.num_hosts)


def start(command: str, settings: Any) -> None:
    """Start this host's processes of a command, and watch them to their end.

    Raises:
        BertkitError: of the kind that a process ended with.
        PeerError: a process died, hangs or raised an unexpected error, or another host did.
        BrokenPipeError: the reader of a process's output closed the pipe.
        KeyboardInterrupt: stopped before there was anything to save.
    """
    global is_launcher
    is_launcher = True
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # we say in one line what torch says with its stack
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())  # else torch makes a folder on import
    from bertkit.launch import elastic

    job = {
        "command": command, "settings": dataclasses.asdict(settings), "debug": shows_tracebacks, "arguments": sys.argv,
        "launcher": os.getpid(),
    }  # fmt: skip
    elastic.run(settings.launch, job, getattr(settings, "output_dir", None))


def take_job(file: str) -> dict[str, Any]:
    """Read, as a worker, what to do; from now on this process ends with its launcher.

    Raises:
        InputError: no launcher of bertkit started this process.
    """
    global is_worker, shows_tracebacks
    try:
        job: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
        arguments, launcher, shows_tracebacks = job["arguments"], job["launcher"], job["debug"]
        world.end_with_parent()
        if set(job) != {"command", "settings", "debug", "arguments", "launcher"} or launcher != os.getppid():
            raise ValueError
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        raise InputError("--worker is for the processes that launch.num_processes= starts; leave it out") from None
    sys.argv, is_worker = arguments, True
    return job


def tell(message: str) -> bool:
    """Write why this process ends into torch's error file, where it has one; give whether the launcher tells the user."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with contextlib.suppress(OSError):
            partial = Path(f"{path}.partial")
            partial.write_text(
                json.dumps({"message": {"message": message, "extraInfo": {"timestamp": int(time.time())}}})
            )
            partial.replace(path)
    return is_worker
