"""Worker processes with one listening socket: they are started, replaced when they die or hang, and stopped together."""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from bertkit.base.errors import BertkitError, InputError, say
from bertkit.launch.world import end_with_parent, handle_signals
from bertkit.serve.connections import NOT_READY, Workers

POLL_SECONDS = 0.1
DEAD_POLLS = 200  # a worker that has served, and shows no life for so many polls, is killed and replaced
LOADING = -(10**9)  # polls until then: a worker that loads its models is not watched
RETRY_SECONDS = 5  # until a worker that failed to load its models is replaced


def supervise(num_workers: int, serve: Callable[[Workers, int], None], listener: socket.socket, seconds: float) -> None:
    """Call `serve` in worker processes until a signal, which gives them some seconds; raises their error if none can start."""
    spawn: Any = multiprocessing.get_context("spawn")
    workers = Workers(spawn.RawArray("i", num_workers), spawn.RawArray("i", num_workers))
    errors, processes, stops = spawn.SimpleQueue(), dict[int, Any](), list[int]()

    def start(place: int) -> None:
        workers.connections[place], workers.polls[place] = NOT_READY, LOADING
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
        while not stops and errors.empty():
            time.sleep(POLL_SECONDS)
            for place, process in processes.items():
                workers.polls[place] += 1
                if workers.polls[place] > DEAD_POLLS:
                    process.kill()
                if not process.is_alive() and errors.empty():
                    say(f"worker {process.pid} died; another one takes its place", file=sys.stderr)
                    start(place)
        listener.close()  # first, so that the last worker to close its copy has accepted all clients
        for process in processes.values():
            process.terminate()
        until = time.monotonic() + seconds
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
        if min(workers.connections) == NOT_READY:
            errors.put(fault)
            return
        say(f"error: {fault}", file=sys.stderr)  # another worker serves; this one is replaced
        time.sleep(RETRY_SECONDS)
