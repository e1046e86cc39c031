"""The command `serve`: models -> a server, in one process or several, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from bertkit.errors import BertkitError, InputError, say
from bertkit.launch.world import end_with_parent
from bertkit.settings.serve import ServeSettings

NEEDED = ("starlette", "uvicorn", "httptools", "uvloop")
BACKLOG = 1024  # connections that the kernel keeps until they are taken
PARTING_SECONDS = 2.0  # at most, after the last answer: by its next request a client learns that the server stops
STOPS = (signal.SIGTERM, signal.SIGINT)
HANDLED = (*STOPS, signal.SIGHUP)
STEADY_SECONDS = 30.0  # a worker that lived so long is started again at once
# oneDNN and torch's way to it each keep the 1,024 programs that were used last, one for each shape: some 300 MB, which a
# server with batches of all sizes comes to have within 40,000 requests. With 128 it stays flat, and is as fast (measured).
PROGRAMS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
LONGEST_PAUSE = 30.0  # before another one is


def run(settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        InputError: packages are missing, the address cannot be had, or a model cannot be loaded.
    """
    for package in NEEDED:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            raise InputError(f"serve needs {package}: pip install 'bertkit[serve]'") from None
    for name, capacity in PROGRAMS.items():
        os.environ.setdefault(name, capacity)  # read when the first one is made
    with _listener(settings) as listener:
        if settings.workers == 1:
            work(settings, listener, 1, lambda: _say_ready(settings, listener))
        else:
            _supervise(settings, listener)


def _listener(settings: ServeSettings) -> socket.socket:
    """Take the address."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(
            found, key=lambda each: each[0] != socket.AF_INET
        )  # of both, the one that all clients speak
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"host={host} port={port}: {reason}; choose another address, or stop who has it") from None


def _say_ready(settings: ServeSettings, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    workers = "" if settings.workers == 1 else f", {settings.workers} workers"
    say(f"serving {', '.join(settings.names)} on {where}{workers}; Ctrl-C stops")
    if not settings.is_loopback:
        say(
            f"warning: host={settings.host}: whoever reaches this machine can use the models, without a password and without "
            "encryption; leave host= out for this machine alone, or put a proxy before it"
        )


def work(settings: ServeSettings, listener: socket.socket, number: int, ready: Callable[[], None]) -> None:
    """Serve in this process.

    Args:
        settings: of the command.
        listener: the socket whose connections are taken.
        number: of this worker, from 1.
        ready: is called when the models are loaded.
    """
    import uvloop

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, min(torch.get_num_threads(), cores // settings.workers)))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, listener, number, ready))


async def _serve(settings: ServeSettings, listener: socket.socket, number: int, ready: Callable[[], None]) -> None:
    import uvicorn

    from bertkit.serve.app import make_app
    from bertkit.serve.http import BoundedProtocol
    from bertkit.serve.service import Service

    class Server(uvicorn.Server):  # type: ignore[misc]
        """uvicorn's, which leaves signals to us."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    loop, service, stopped = asyncio.get_running_loop(), Service(settings, number), asyncio.Event()
    door = functools.partial(BoundedProtocol, settings, lambda status: service.metrics.request("other", status, 0.0))
    config = uvicorn.Config(
        make_app(service), http=door, ws="none", lifespan="off", log_config=None, log_level="critical", access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=settings.idle_seconds, backlog=BACKLOG,
        timeout_graceful_shutdown=math.ceil(settings.client_seconds),
    )  # fmt: skip
    server = Server(config)
    for each in STOPS:
        loop.add_signal_handler(each, stopped.set)
    tasks: set[asyncio.Task[Any]] = set()
    loop.add_signal_handler(signal.SIGHUP, lambda: tasks.add(loop.create_task(service.reload())))
    serving = loop.create_task(server.serve(sockets=[listener]))
    loading = loop.create_task(service.load())
    stopping = loop.create_task(stopped.wait())
    try:
        await asyncio.wait([loading, stopping], return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            await loading
            ready()
            await stopping
        service.is_stopping = True  # also of one that was still loading, whose clients have been told so
        await asyncio.sleep(0)  # those who are at the door come in
        for each in server.servers:
            each.close()
        await service.stop()
        until = loop.time() + PARTING_SECONDS
        while server.server_state.connections and loop.time() < until:
            await asyncio.sleep(0.02)
    finally:
        server.should_exit = True
        await serving


def _worker(settings: ServeSettings, listener: socket.socket, number: int, said: Connection) -> None:
    """Be one of several workers; say when it is ready, or why it cannot be."""
    end_with_parent()
    for each in HANDLED:
        signal.signal(each, signal.SIG_DFL if each == signal.SIGTERM else signal.SIG_IGN)  # until it serves
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    try:
        work(settings, listener, number, lambda: _tell(said, None))
    except BertkitError as error:
        _tell(said, str(error))
        sys.exit(error.exit_code)


def _tell(said: Connection, fault: str | None) -> None:
    """Tell the parent, which listens to the first worker of each number alone."""
    try:
        said.send(fault)
    except OSError:
        if fault is not None:
            say(*(f"error: {line}" for line in fault.split("\n")), file=sys.stderr)


class _Workers:
    """Processes that share one socket; one that dies is started again."""

    def __init__(self, settings: ServeSettings, listener: socket.socket) -> None:
        self.settings, self.listener = settings, listener
        self.is_stopping = False
        self.running: dict[int, BaseProcess] = {}
        self.started_at: dict[int, float] = {}
        self.pauses: dict[int, float] = {}

    def start(self, number: int) -> Connection:
        """Start one; give what it says when it is ready."""
        # a fork has imported everything already; this process has no threads, and has computed nothing
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        heard, said = context.Pipe(duplex=False)
        process = context.Process(target=_worker, args=(self.settings, self.listener, number, said), daemon=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)  # until it handles them itself
        process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        said.close()
        self.running[number], self.started_at[number] = process, time.monotonic()
        listens: Connection = heard
        return listens

    def signal(self, number: int) -> None:
        """Hand a signal on."""
        for process in self.running.values():
            if process.pid is not None and process.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def stop(self, *_: object) -> None:
        """Tell all to stop."""
        self.is_stopping = True
        self.signal(signal.SIGTERM)

    def watch(self) -> None:
        """Start those again that die, until all have stopped."""
        due: dict[int, float] = {}
        while self.running or (due and not self.is_stopping):
            wait([process.sentinel for process in self.running.values()], timeout=0.2)
            now = time.monotonic()
            for number, process in list(self.running.items()):
                if process.is_alive():
                    continue
                del self.running[number]
                if not self.is_stopping:
                    is_steady = now - self.started_at[number] > STEADY_SECONDS
                    pause = 0.0 if is_steady else min(2 * self.pauses.get(number, 0.0) or 0.5, LONGEST_PAUSE)
                    self.pauses[number], due[number] = pause, now + pause
                    say(f"warning: worker {number} ended with {process.exitcode}; it is started again")
            for number in [number for number, when in due.items() if when <= now and not self.is_stopping]:
                del due[number]
                self.start(number)


def _supervise(settings: ServeSettings, listener: socket.socket) -> None:
    importlib.import_module("bertkit.serve.app")  # once for all
    workers = _Workers(settings, listener)
    for each in STOPS:
        signal.signal(each, workers.stop)
    signal.signal(signal.SIGHUP, lambda *_: workers.signal(signal.SIGHUP))
    for number in range(1, settings.workers + 1):
        heard = workers.start(number)  # one after another: what is wrong with a model is said once
        try:
            fault = heard.recv()
        except EOFError:
            fault = None if workers.is_stopping else "a worker died while it loaded"
        if fault is not None:
            workers.stop()
            workers.watch()
            raise InputError(*fault.split("\n"))
        if workers.is_stopping:
            break
    if not workers.is_stopping:
        _say_ready(settings, listener)
    workers.watch()
