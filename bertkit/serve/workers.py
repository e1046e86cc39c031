"""Worker processes with one listening socket: they are started, replaced when they die or hang, and stopped together."""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

from bertkit.base.errors import BertkitError, InputError, say
from bertkit.launch.world import end_with_parent, handle_signals
from bertkit.serve.connections import NOT_READY, Workers

POLL_SECONDS = 0.1
DEAD_SECONDS = 20  # a worker without a tick for so long is killed and replaced
RETRY_SECONDS = 5  # until a worker that failed to load its models is replaced


def supervise(
    num_workers: int, serve: Callable[[Workers, int], None], listener: socket.socket, stop_seconds: float
) -> None:
    """Call `serve` in worker processes until a signal; raises the error of a worker if none could start."""
    spawn: Any = multiprocessing.get_context("spawn")
    workers = Workers(spawn.RawArray("i", [NOT_READY] * num_workers), spawn.RawArray("L", num_workers))
    errors, processes, stops = spawn.SimpleQueue(), dict[int, Any](), list[int]()

    def start(place: int) -> None:
        workers.connections[place] = NOT_READY
        processes[place] = spawn.Process(target=_work, args=(serve, workers, place, errors))
        processes[place].start()

    def reload(*_: object) -> None:
        for place, process in processes.items():
            if workers.connections[place] != NOT_READY:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGHUP)

    with (
        handle_signals((signal.SIGTERM, signal.SIGINT), lambda number, _: stops.append(number)),
        handle_signals((signal.SIGHUP,), reload),
    ):
        for place in range(num_workers):
            start(place)
        before, look_at = list(workers.ticks), time.monotonic() + DEAD_SECONDS
        while not stops and errors.empty():
            connection.wait([process.sentinel for process in processes.values()], POLL_SECONDS)
            if time.monotonic() > look_at:
                for place, process in processes.items():
                    if workers.connections[place] != NOT_READY and workers.ticks[place] == before[place]:
                        process.kill()
                before, look_at = list(workers.ticks), time.monotonic() + DEAD_SECONDS
            for place, process in processes.items():
                if not process.is_alive() and errors.empty():
                    say(f"worker {process.pid} died; another one takes its place", file=sys.stderr)
                    start(place)
        listener.close()  # before the workers close theirs, so that the last one accepts all that wait
        for process in processes.values():
            process.terminate()
        until = time.monotonic() + stop_seconds
        for process in processes.values():
            process.join(max(0, until - time.monotonic()))
            process.kill()
    if not errors.empty():
        raise errors.get()


def _work(serve: Callable[[Workers, int], None], workers: Workers, place: int, errors: Any) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the supervisor ends this one
    try:
        serve(workers, place)
    except (Exception, SystemExit) as error:  # uvicorn exits after an error in the application's startup
        fault: BertkitError = InputError(f"a worker could not start: {type(error).__name__}: {error}")
        fault = error if isinstance(error, BertkitError) else fault
        if any(workers.ticks):
            say(f"error: {fault}", file=sys.stderr)  # the other workers continue; this one is replaced
            time.sleep(RETRY_SECONDS)
            sys.exit(1)
        errors.put(fault)
