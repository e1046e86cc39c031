"""The processors of this machine: how many this process may use, which instructions they lack, and whether others use them."""

import contextlib
import ctypes
import functools
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from bertkit.base.errors import InputError, say
from bertkit.base.memory import cgroups, system_text

CPUINFO, TASKS = Path("/proc/cpuinfo"), Path("/proc/self/task")
LIMIT, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"  # oneDNN reads it at its first product
LIMITS = {LIMIT, "DNNL_MAX_CPU_ISA"}  # set by the user, they are kept
WAITS = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}  # set by the user, they hold
PROBE_SECONDS = 10  # a product takes a hundredth of a second, but a fork of a process with threads may hang
WATCH_SECONDS = 0.5
SHARED = 0.15  # of the time; with a machine of its own a process waits for 0.01 to 0.08, beside a busy process for 0.5
SOFT = 1  # omp.h's omp_pause_soft
_is_command: ContextVar[bool] = ContextVar("_is_command", default=False)


def num_processors() -> int:
    """Return how many processors this process may use, by its affinity and the quota of its container."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([own, *(math.ceil(quota) for group in cgroups() if (quota := _quota(group)) is not None)])


def _quota(group: Path) -> float | None:
    """Return how many processors a control group may use; None without a limit."""
    with contextlib.suppress(ValueError):  # no such file, or "max 100000"
        limit, period = map(int, system_text(group / "cpu.max").split())
        return limit / period
    return None


@functools.cache
def check_precision(precision: str, device: str) -> None:
    """Keep products in bfloat16 from ending this process: a hypervisor may promise AMX, and not have it.

    To be called before the first product; what it sets is inherited by child processes. Raises InputError if it is too late.
    """
    is_free = precision == "bf16" and device != "cuda" and not LIMITS & os.environ.keys()
    if not is_free or not _promises_amx() or not _ends_by_product():
        return
    os.environ[LIMIT] = WITHOUT_AMX
    if _ends_by_product():
        del os.environ[LIMIT]
        raise InputError(
            "precision=bf16: this machine promises the instruction amx_bf16 and does not have it, and this process has multiplied "
            f"before; start Python anew with {LIMIT}={WITHOUT_AMX} in the environment, or set precision=fp32"
        )
    if os.environ.get("LOCAL_RANK", "0") == "0":
        say(
            "warning: this machine promises the instruction amx_bf16 and does not have it; bf16 works without it "
            f"({LIMIT}={WITHOUT_AMX}), but slower: fp32 may be faster",
            file=sys.stderr,
        )


def _promises_amx() -> bool:
    return "amx_bf16" in system_text(CPUINFO)


def _ends_by_product() -> bool:
    """Whether a product in bfloat16 ends a process by SIGILL: try it in a fork."""
    import torch  # noqa: F401

    process = os.fork()
    if process == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in (signal.SIGILL, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(PROBE_SECONDS)
        try:
            _multiply()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGILL


def _multiply() -> None:
    import torch

    torch.set_num_threads(1)  # a fork has no other threads
    ones = torch.ones(1, 1, 64, 64, dtype=torch.bfloat16)
    torch.nn.functional.scaled_dot_product_attention(ones, ones, ones @ ones)


@contextlib.contextmanager
def in_command() -> Iterator[None]:
    """Share the processors, too, whenever threads are fitted to them: for commands, whose process is their own."""
    before = _is_command.set(True)
    try:
        yield
    finally:
        _is_command.reset(before)


def fit_threads() -> None:
    """Fit torch's threads to the quota of a container, unless the user has set `OMP_NUM_THREADS`; in a command, share processors."""
    here = num_processors()
    if _num_threads() > here and "OMP_NUM_THREADS" not in os.environ:
        say(f"threads: {here}, by the quota of this container; OMP_NUM_THREADS sets another number", file=sys.stderr)
        sys.modules["torch"].set_num_threads(here)
    if _is_command.get():
        share_processors()


def share_processors() -> None:
    """Let torch's threads sleep while other processes use the processors, unless the user has set how they wait.

    It starts a thread, and changes how OpenMP behaves in the whole process.
    """
    num_threads = _num_threads()
    if num_threads > 1 and not WAITS & os.environ.keys():
        _watch(num_threads)


def _num_threads() -> int:
    """Return how many threads torch has; 1 if it is not imported, since then this process computes nothing."""
    return int(sys.modules["torch"].get_num_threads()) if "torch" in sys.modules else 1


@functools.cache
def _watch(num_threads: int) -> None:
    """Start a thread that keeps the waits of GNU OpenMP's threads short while others use the processors.

    These threads wait for one another thousands of times in a training step, and spin meanwhile, for some milliseconds before
    they sleep. On a machine of its own this is fastest. On a shared one they spin while the thread for which they wait has no
    processor. If a process has more OpenMP threads than processors, GNU OpenMP spins for about a microsecond only (libgomp's
    manual, GOMP_SPINCOUNT). So this thread makes such threads, which sleep, and ends them when the others are gone.
    """
    openmp = ctypes.CDLL(None)
    is_gnu = hasattr(openmp, "GOMP_parallel") and not hasattr(openmp, "__kmpc_fork_call")  # not LLVM's or Intel's
    if is_gnu and TASKS.is_dir():
        num_sleeping = max(2, num_processors() - num_threads + 2)
        threading.Thread(target=_keep_waits_short, args=(openmp, num_sleeping), daemon=True).start()


def _keep_waits_short(openmp: ctypes.CDLL, num_sleeping: int) -> None:
    is_shared, before = False, _delays()
    while True:
        time.sleep(WATCH_SECONDS)
        now = _delays()
        seconds = sum(delay - before.get(task, 0.0) for task, delay in now.items())
        before = now
        if (seconds > SHARED * WATCH_SECONDS) == is_shared:
            continue
        is_shared = not is_shared
        if is_shared:
            openmp.GOMP_parallel(openmp.free, None, num_sleeping, 0)  # each calls free(NULL), which does nothing
        else:
            openmp.omp_pause_resource(SOFT, openmp.omp_get_initial_device())


def _delays() -> dict[str, float]:
    """Return for how many seconds each thread of this process has waited for a processor (Linux's sched-stats, 4)."""
    delays = dict[str, float]()
    for file in TASKS.glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has ended
            delays[file.parent.name] = int(file.read_text(encoding="ascii").split()[1]) / 1e9
    return delays
