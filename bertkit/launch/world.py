"""The rank of this process in a run, and facts on which all processes agree. Imports no torch."""

import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import bertkit
from bertkit.base.errors import InputError
from bertkit.launch.launch_config import LaunchConfig

PACKAGE = Path(bertkit.__file__)
# run with -P, which keeps the current directory out of sys.path; the child imports the same bertkit as this process
SAME_BERTKIT = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("bertkit", sys.argv.pop(1))
sys.modules["bertkit"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["bertkit"])
sys.path.append(sys.argv.pop(1))
from bertkit.cli import main
main()
"""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
INTERRUPTED = "interrupted before there was anything to save"
INTERRUPTED_CODE = 130
LOST = "another process of the run died or hangs"
READER_LEFT_CODE = 141  # 128 + SIGPIPE, as from a shell
SAME_REQUEST_SECONDS = 1.0
OWN_THREADS = "BERTKIT_THREADS"  # set if the launcher, not the user, chose the number of threads
NO_STEP = 0xFFFF0000  # Slurm gives steps without srun (batch, extern, interactive) the highest numbers
LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|timed? ?out|NCCL|gloo", re.IGNORECASE
)
PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_NUMBER = re.compile("[0-9]{1,9}")


def own_command(*arguments: str) -> list[str]:
    """Give the command line for a child process, which imports nothing from the current directory."""
    return [sys.executable, "-P", "-c", SAME_BERTKIT, str(PACKAGE), str(PACKAGE.parents[1]), *arguments]


@dataclass(frozen=True)
class World:
    """The rank of this process, and the number of processes in the run."""

    rank: int
    size: int

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and prints."""
        return self.rank == 0


@contextlib.contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle signals inside a `with` block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def end_with_parent() -> None:
    """Let Linux kill this process when its parent ends, even if this process is stopped (SIGSTOP)."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def enter(launch: LaunchConfig) -> World:
    """Join the processes that torchrun or srun started: check the environment, and complete its variables.

    Raises:
        InputError: the settings ask for another number of processes, or variables are missing.
    """
    world = world_from_environment()
    size = launch.num_processes * launch.num_hosts
    if size not in (1, world.size):
        raise InputError(
            f"launch.num_processes={launch.num_processes} on launch.num_hosts={launch.num_hosts} are {size} processes, "
            f"torchrun or srun started {world.size}; leave launch.* out, or start without torchrun or srun"
        )
    if world.size == 1:
        return world
    if "RANK" not in os.environ:
        os.environ |= variables_of_slurm(os.environ)
    missing = [name for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(f"{', '.join(missing)} not set beside RANK and WORLD_SIZE; start as torchrun does")
    for name in ("LOCAL_RANK", "MASTER_PORT"):
        if not re.fullmatch("[0-9]{1,5}", os.environ[name]):
            raise InputError(f"{name}={os.environ[name]}: expected a number; start as torchrun does")
    return world


def world_from_environment() -> World:
    """Read the rank and size from the variables of torchrun, accelerate or srun; without them, a world of one.

    Raises:
        InputError: the variables are malformed.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    elif is_slurm_task(os.environ):
        rank, size = os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"]
    else:
        return World(0, 1)
    if not (_NUMBER.fullmatch(rank) and _NUMBER.fullmatch(size) and int(rank) < int(size)):
        raise InputError(
            f"rank {rank} of {size} processes in the environment: not a rank of a run; start it as torchrun or srun does"
        )
    return World(int(rank), int(size))


def is_first_of_host() -> bool:
    """Whether this process is the first one on its host, by the variables of torchrun, accelerate or srun."""
    return os.environ.get("SLURM_LOCALID" if is_slurm_task(os.environ) else "LOCAL_RANK") == "0"


def is_slurm_task(variables: Mapping[str, str]) -> bool:
    """Whether srun started this process; a batch script has the same variables, but another step number."""
    if not {"SLURM_PROCID", "SLURM_NTASKS"} <= set(variables):
        return False
    step = variables.get("SLURM_STEP_ID", variables.get("SLURM_STEPID", ""))
    return (re.fullmatch("[0-9]{1,10}", step) is not None and int(step) < NO_STEP) or variables["SLURM_PROCID"] != "0"


def first_host(nodelist: str) -> str:
    """Give the first host in Slurm's notation: `gpu[003-007,012],login` -> gpu003."""
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", re.split(r",(?![^[]*\])", nodelist)[0])


def tasks_of_host(tasks_per_host: str, host: int) -> int:
    """Give the number of tasks on one host from Slurm's notation: `2(x3),1`, host 3 -> 1."""
    for count, times in re.findall(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", tasks_per_host):
        host -= int(times or 1)
        if host < 0:
            return int(count)
    raise InputError(f"SLURM_TASKS_PER_NODE={tasks_per_host}: no entry for this host; start this process as srun does")


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error means that another process was lost."""
    kind = type(error)
    of_torch = kind.__module__.startswith("torch.distributed") or kind.__name__.startswith("Dist")
    return of_torch or (kind is RuntimeError and LOST_PEER.search(str(error)) is not None)


def variables_of_slurm(slurm: Mapping[str, str]) -> dict[str, str]:
    """Give torchrun's variables for a task of srun; the tasks meet on the first host, at a port derived from the job."""

    def number(name: str) -> int:
        if not _NUMBER.fullmatch(slurm.get(name, "0")):
            raise InputError(f"{name}={slurm[name]}: expected a number; start this process as srun does")
        return int(slurm.get(name, 0))

    job = number("SLURM_JOB_ID") + number("SLURM_STEP_ID")
    variables = {"RANK": slurm["SLURM_PROCID"], "WORLD_SIZE": slurm["SLURM_NTASKS"]}
    # with --gpus-per-task each task sees only its own devices, numbered from 0
    variables["LOCAL_RANK"] = "0" if "SLURM_GPUS_PER_TASK" in slurm else str(number("SLURM_LOCALID"))
    per_host = slurm.get("SLURM_STEP_TASKS_PER_NODE", slurm.get("SLURM_TASKS_PER_NODE"))
    if per_host:
        variables["LOCAL_WORLD_SIZE"] = str(tasks_of_host(per_host, number("SLURM_NODEID")))
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if slurm.get(name):
            variables.setdefault("MASTER_ADDR", first_host(slurm[name]))
    variables["MASTER_PORT"] = str(20000 + job % 10000)  # below Linux's ephemeral ports
    return variables | {name: slurm[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in slurm}


def newest_checkpoint(output_dir: str | None) -> int | None:
    """Give the step of the newest checkpoint in a run's directory, judged by its name; no file is read."""
    names = [] if output_dir is None else [path.name for path in Path(output_dir, "checkpoints").glob("step-*")]
    steps = [int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdigit()]
    return max(steps, default=None)


def stopped_line(step: int) -> str:
    """Say that a run can resume."""
    return f"stopped; checkpoint {step} is saved, and the same command resumes"
