"""The command `serve`: models -> a server, in one process or several, until it is told to stop."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from bertkit.base.errors import BertkitError, InputError, say
from bertkit.launch.world import end_with_parent
from bertkit.settings.serve import ServeSettings

if TYPE_CHECKING:
    import uvicorn

# oneDNN and torch's way to it each keep the 1,024 programs that were used last, one for each shape: some 300 MB, which a
# server with batches of all sizes comes to have within 40,000 requests. With 128 it stays flat, and is as fast (measured).
PROGRAMS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
IDLE_SECONDS = (
    75  # that a connection stays open without a request: more than the 60 of common proxies, which close first
)
MOST_CONNECTIONS = 1000  # of each worker: less than the 1,024 files that a process may mostly open
STOP_SECONDS = 10  # more than a request may wait: then a stop waits no longer for clients that never finish theirs
DEAD_SECONDS = 20  # a worker that is silent for so long is killed and started again; it imports torch in less
RETRY_SECONDS = 5  # before a worker is started again whose models could not be loaded
FAILED = 3  # the exit code of a worker that uvicorn does not start again


def run(settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        InputError: packages are missing, the address cannot be had, or a model cannot be loaded.
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn
        import uvloop  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError(f"serve needs {error.name}: pip install 'bertkit[serve]'") from None
    for name, capacity in PROGRAMS.items():
        os.environ.setdefault(name, capacity)  # read when the first one is made
    with _listener(settings) as listener:
        host, port = listener.getsockname()[:2]
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        if settings.workers > 1:
            _supervise(settings, where, listener)
            return
        server = uvicorn.Server(_config(settings, functools.partial(_app, settings, where)))
        # uvicorn passes a signal on when it has stopped
        before = {each: signal.signal(each, lambda *_: sys.exit(0)) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            server.run([listener])
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def _listener(settings: ServeSettings) -> socket.socket:
    """Take the address; whoever asks before the models are loaded waits."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # of both, the one that all clients speak
        family, *_, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        listener = socket.create_server(address[:2], family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"host={host} port={port}: {reason}; choose another address, or stop who has it") from None
    if not settings.is_loopback:
        say(
            f"warning: host={host}: whoever reaches this machine can use the models, without a password and without "
            "encryption; leave host= out for this machine alone, or put a proxy before it"
        )
    return listener


def _config(settings: ServeSettings, app: Any) -> uvicorn.Config:
    import uvicorn

    return uvicorn.Config(
        app, factory=True, loop="uvloop", http="h11", ws="none", lifespan="on", workers=settings.workers,
        log_config=None, log_level="critical", access_log=False, server_header=False, proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS, timeout_keep_alive=IDLE_SECONDS, timeout_worker_healthcheck=DEAD_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.request_seconds) + STOP_SECONDS,
    )  # fmt: skip


def _app(settings: ServeSettings, where: str) -> Any:
    """Load the models in the process that serves them."""
    import torch

    from bertkit.serve.app import make_app
    from bertkit.serve.service import Service

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there are models to load anew
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, min(torch.get_num_threads(), cores // settings.workers)))
    worker = "" if settings.workers == 1 else f", worker {os.getpid()}"
    return make_app(
        Service(settings), lambda: say(f"serving {', '.join(settings.names)} on {where}{worker}; Ctrl-C stops")
    )


def _app_of_worker(settings: ServeSettings, where: str, faults: Any, has_served: Any) -> Any:
    """Load the models in a worker; what is wrong with them is said once, by the process that started it."""
    end_with_parent()
    try:
        app = _app(settings, where)
    except Exception as error:
        what = f"a worker could not start: {type(error).__name__}: {error}"
        fault = error if isinstance(error, BertkitError) else InputError(what)
        if not has_served.is_set():
            faults.put(fault)
            sys.exit(FAILED)
        say(f"error: {fault}", file=sys.stderr)  # the other workers go on, and this one is tried again
        time.sleep(RETRY_SECONDS)
        sys.exit(1)
    has_served.set()
    return app


def _supervise(settings: ServeSettings, where: str, listener: socket.socket) -> None:
    """Serve in processes that share one socket; uvicorn starts one that dies again."""
    from uvicorn.supervisors import Multiprocess

    spawn = multiprocessing.get_context("spawn")
    faults, has_served = spawn.SimpleQueue(), spawn.Event()
    config = _config(settings, functools.partial(_app_of_worker, settings, where, faults, has_served))
    log = logging.getLogger("uvicorn.error")  # of the supervisor alone: a worker sets its own
    log.setLevel(logging.INFO)
    log.addFilter(lambda record: record.getMessage().endswith("died"))
    log.addHandler(logging.StreamHandler())
    supervisor = Multiprocess(config, [listener])

    def reload(*_: object) -> None:
        for process in supervisor.processes:
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGHUP)

    signal.signal(signal.SIGHUP, reload)  # each worker loads its models anew; uvicorn would start new workers
    supervisor.run()
    if not faults.empty():
        raise faults.get()
