"""Worker processes with one listening socket: they are started, replaced when they die or hang, and stopped together.

One worker is a process of its own, too: only a process can be ended while a library computes in it.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import SimpleQueue

from bertkit.base.errors import BertkitError, InputError, say
from bertkit.launch.world import end_with_parent, handle_signals


class Worker(ctypes.Structure):
    """What a worker shares with the others and with the supervisor, which counts `polls` since the worker showed life."""

    _fields_ = (("connections", ctypes.c_int), ("polls", ctypes.c_int))


Serve = Callable[[Sequence[Worker], int], None]  # serves as the worker at a place
NOT_READY = 2**31 - 1  # connections of a worker that does not serve yet, so that no other one waits for it
POLL_SECONDS = 0.1
DEAD_POLLS = 200  # a worker that has served, and shows no life for so many polls, is killed and replaced
LOADING = -(10**9)  # polls until then: a worker that loads its models is not watched
METRICS = "PROMETHEUS_MULTIPROC_DIR"  # of prometheus_client: where workers add up their metrics
RETRY_SECONDS = 5  # until a worker that failed to load its models is replaced


def supervise(num_workers: int, serve: Serve, listener: socket.socket, seconds: float) -> None:
    """Call `serve` in worker processes until a signal, which gives them some seconds; raises their error if none can start."""
    spawn = multiprocessing.get_context("spawn")
    workers, errors = spawn.RawArray(Worker, num_workers), spawn.SimpleQueue()
    processes, signals, has_served = dict[int, SpawnProcess](), set[int](), False

    def start(place: int) -> None:
        workers[place].connections, workers[place].polls = NOT_READY, LOADING
        processes[place] = spawn.Process(target=_work, args=(serve, workers, place, errors))
        processes[place].start()

    with (
        _sharing_metrics() if num_workers > 1 else contextlib.nullcontext(),
        handle_signals((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), lambda number, _: signals.add(number)),
    ):
        for place in range(num_workers):
            start(place)
        while errors.empty() and signals <= {signal.SIGHUP}:
            time.sleep(POLL_SECONDS)
            reload = signals & {signal.SIGHUP}
            signals -= reload
            has_served = has_served or min(worker.connections for worker in workers) < NOT_READY
            for place, process in processes.items():
                workers[place].polls += 1
                if workers[place].polls > DEAD_POLLS:
                    process.kill()
                if not process.is_alive() and errors.empty():
                    if not has_served:
                        errors.put(InputError(f"a worker died while it loaded the models (code {process.exitcode})"))
                        break
                    say(f"worker {process.pid} died; another one takes its place", file=sys.stderr)
                    _forget_metrics(process)
                    start(place)
                elif reload and process.pid and workers[place].connections != NOT_READY:
                    os.kill(process.pid, signal.SIGHUP)
        listener.close()  # first, so that the last worker to close its copy has accepted all clients
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join(seconds)
            process.kill()
    if not errors.empty():
        raise errors.get()


@contextlib.contextmanager
def _sharing_metrics() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="bertkit-") as folder:
        os.environ[METRICS] = folder
        yield
        del os.environ[METRICS]


def _forget_metrics(process: SpawnProcess) -> None:
    if METRICS in os.environ:
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(process.pid)  # type: ignore[no-untyped-call]


def _work(serve: Serve, workers: Sequence[Worker], place: int, errors: SimpleQueue[BertkitError]) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the supervisor ends this one
    try:
        serve(workers, place)
    except Exception as error:
        fault = InputError(f"a worker could not start: {type(error).__name__}: {error}")
        if min(worker.connections for worker in workers) == NOT_READY:
            errors.put(error if isinstance(error, BertkitError) else fault)
            return
        say(f"error: {fault}", file=sys.stderr)  # another worker serves; this one is replaced
        time.sleep(RETRY_SECONDS)
