"""The rank of this process, the environment of torchrun and Slurm, signals, child processes. Does not import torch."""

import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

import bertkit
from bertkit.base.errors import InputError, say
from bertkit.base.typed_settings import at, refuse, to_mapping
from bertkit.launch.launch_config import LaunchConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PACKAGE = Path(bertkit.__file__)
# code of a child process, which imports the same bertkit; run with -P, so that the current directory is not in sys.path
SAME_BERTKIT = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("bertkit", sys.argv.pop(1))
sys.modules["bertkit"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["bertkit"])
sys.path.append(sys.argv.pop(1))
from bertkit.__main__ import main
main()
"""
# how the user started the command: the words of the command line, or the settings from Python in the same form
command_line: ContextVar[tuple[str, ...]] = ContextVar("command_line", default=())
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
LOST = "another process of the run died or hangs"
BROKEN_PIPE_CODE = 141  # 128 + SIGPIPE, as a shell reports it
SAME_REQUEST_SECONDS = 1.0
OWN_THREADS = "BERTKIT_THREADS"  # this variable is set if the launcher, not the user, chose the number of threads
SPECIAL_STEPS = 0xFFFF0000  # Slurm steps that srun did not start (batch, extern, interactive) have this number or more
LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|timed? ?out|NCCL|gloo", re.IGNORECASE
)
PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_NUMBER = re.compile("[0-9]{1,9}")
# change no number of a run; DYNAMO_* has no effect without a backend
HARMLESS = re.compile(
    "DYNAMO_(MODE|USE_.*)|CPU_AFFINITY|DEBUG_.*|LOG_LEVEL|ENABLE_RICH|BYPASS_DEVICE_MAP|INIT_.*|CONFIG_.*"
)


def child_command(*arguments: str) -> list[str]:
    """Return the command line of a child process that runs bertkit and imports nothing from the current directory."""
    return [sys.executable, "-P", "-c", SAME_BERTKIT, str(PACKAGE), str(PACKAGE.parents[1]), *arguments]


@dataclass(frozen=True)
class World:
    """The rank of this process, and the number of processes in the run."""

    rank: int
    size: int

    @property
    def is_main(self) -> bool:
        """Whether this is process 0, which writes files and prints."""
        return self.rank == 0


def say_once(*lines: object, file: TextIO | None = None) -> None:
    """Print lines in process 0, and nothing in the others."""
    if world_from_environment().is_main:
        say(*lines, file=file)


@contextlib.contextmanager
def handle_signals(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], object] | signal.Handlers
) -> Iterator[None]:
    """Handle signals inside a `with` block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def end_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, even if this process is paused (SIGSTOP)."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def enter(launch: LaunchConfig) -> World:
    """Check the environment variables that torchrun or srun has set against the settings, and add missing ones; return the world."""
    world = world_from_environment()
    size = launch.num_processes * launch.num_hosts
    if size not in (1, world.size):
        raise InputError(
            f"launch.num_processes={launch.num_processes} on launch.num_hosts={launch.num_hosts} are {size} processes, "
            f"but torchrun or srun started {world.size}; leave launch.* out, or start without torchrun or srun"
        )
    if world.size == 1:
        return world
    if "RANK" not in os.environ:
        os.environ |= variables_of_slurm(os.environ)
    missing = [name for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(
            f"{', '.join(missing)} not set although RANK and WORLD_SIZE are; start with torchrun, or set them as it does"
        )
    for name in ("LOCAL_RANK", "MASTER_PORT"):
        if not re.fullmatch("[0-9]{1,5}", os.environ[name]):
            raise InputError(f"{name}={os.environ[name]}: expected a number; start with torchrun")
    return world


def check_accelerate(variables: Mapping[str, str], settings: "DataclassInstance") -> None:
    """Refuse variables of `accelerate launch` that ask for something else than the settings, or for what a command lacks."""
    values, use_cpu = to_mapping(settings), variables.get("ACCELERATE_USE_CPU", "").lower()
    micro, size = at(values, "batch.micro_sequences"), world_from_environment().size
    parts = f"{at(values, 'batch.sequences') / (micro * size):g}" if isinstance(micro, int) else "1"
    known = {  # the setting, the value that says the same, and what the setting says
        "MIXED_PRECISION": ("precision", values.get("precision"), f"precision={values.get('precision')}"),
        "GRADIENT_ACCUMULATION_STEPS": (
            "batch",
            parts,
            f"batch.micro_sequences={micro} makes {parts} of the global batch",
        ),
        "USE_CPU": ("device", "no" if values.get("device") == "cuda" else use_cpu, f"device={values.get('device')}"),
    }
    problems = []
    for variable, value in sorted(variables.items()):
        name = variable.removeprefix("ACCELERATE_")
        setting, same, said = known.get(name, ("", "no", ""))
        if name != variable and not HARMLESS.fullmatch(name) and value.lower() not in ("", "0", "no", "false", same):
            differs = f"{said}; set both alike, or" if setting in values else "this command has no setting for it;"
            problems.append(f"{variable}={value}, but {differs} leave it out of accelerate launch")
    refuse(problems)


def world_from_environment() -> World:
    """Read the rank and size from the variables of torchrun, accelerate or srun; without them, the size is 1."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    elif is_slurm_task(os.environ):
        rank, size = os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"]
    else:
        return World(0, 1)
    if not (_NUMBER.fullmatch(rank) and _NUMBER.fullmatch(size) and int(rank) < int(size)):
        raise InputError(
            f"rank {rank} of {size} processes in the environment is not valid; start the process with torchrun or srun"
        )
    return World(int(rank), int(size))


def is_first_of_host() -> bool:
    """Return whether this is the first process on its host, from the variables of torchrun, accelerate or srun."""
    return os.environ.get("SLURM_LOCALID" if is_slurm_task(os.environ) else "LOCAL_RANK") == "0"


def is_slurm_task(variables: Mapping[str, str]) -> bool:
    """Return whether srun started this process; a batch script has the same variables, with the job's number, but another step number."""
    if not {"SLURM_PROCID", "SLURM_NTASKS"} <= set(variables):
        return False
    step = variables.get("SLURM_STEP_ID", variables.get("SLURM_STEPID", ""))
    is_by_srun = re.fullmatch("[0-9]{1,10}", step) is not None and int(step) < SPECIAL_STEPS
    return is_by_srun or variables["SLURM_PROCID"] != "0" or "SLURM_JOB_ID" not in variables


def first_host(nodelist: str) -> str:
    """Return the first host of a node list in Slurm's notation, such as gpu003 for `gpu[003-007,012],login`."""
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", re.split(r",(?![^[]*\])", nodelist)[0])


def tasks_of_host(tasks_per_host: str, host: int) -> int:
    """Return the number of tasks on a host, counted from 0, from Slurm's notation: for `2(x3),1`, host 3 has 1 task."""
    for count, times in re.findall(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", tasks_per_host):
        host -= int(times or 1)
        if host < 0:
            return int(count)
    raise InputError(f"SLURM_TASKS_PER_NODE={tasks_per_host}: no entry for this host; start this process with srun")


def is_lost_peer(error: BaseException) -> bool:
    """Return whether an error means that the connection to another process was lost."""
    kind = type(error)
    is_from_torch = kind.__module__.startswith("torch.distributed") or kind.__name__.startswith("Dist")
    return is_from_torch or (kind is RuntimeError and LOST_PEER.search(str(error)) is not None)


def variables_of_slurm(slurm: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables for a task of srun; the tasks connect to the first host, at a port computed from the job id."""

    def number(name: str) -> int:
        if not _NUMBER.fullmatch(slurm.get(name, "0")):
            raise InputError(f"{name}={slurm[name]}: expected a number; start this process with srun")
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
    """Return the step of the newest checkpoint in a run directory, from the names of the checkpoints."""
    paths = () if output_dir is None else Path(output_dir, "checkpoints").glob("step-*")
    return max((int(path.name[5:]) for path in paths if re.fullmatch("[0-9]{1,18}", path.name[5:])), default=None)


def stopped_line(step: int) -> str:
    """Return the message of a run that was stopped and can resume."""
    return f"stopped; checkpoint {step} is saved, and the same command resumes"
