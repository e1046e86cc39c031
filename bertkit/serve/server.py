"""The command `serve`: a server for models, in one process or several, until a signal stops it."""

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

from bertkit.base.errors import BertkitError, InputError, install_extra, say
from bertkit.launch.world import end_with_parent, handle_signals
from bertkit.settings.serve import ServeSettings

if TYPE_CHECKING:
    import uvicorn

# oneDNN and torch each cache 1,024 kernels, one for each batch size: 300 MB after 40,000 requests. With 128 kernels, memory
# does not grow and the speed is the same (measured).
KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
IDLE_SECONDS = 75  # until an idle connection is closed; common proxies close theirs first, after 60
MAX_CONNECTIONS = 1000  # per worker; the usual limit of open files is 1,024
STOP_SECONDS = 10  # a stop waits for unfinished requests for request_seconds and these seconds
DEAD_SECONDS = 20  # a worker that does not respond for so long is killed and restarted; importing torch takes less
RETRY_SECONDS = 5  # until a worker that failed to load its models is restarted
FAILED_EXIT_CODE = 3  # inside the server only: uvicorn does not restart a worker with this exit code


def run(settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn
        import uvloop  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError(f"serve needs {error.name}: {install_extra('serve')}") from None
    for name, capacity in KERNEL_CACHES.items():
        os.environ.setdefault(name, capacity)
    with _listener(settings) as listener:
        host, port = listener.getsockname()[:2]
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        if settings.workers > 1:
            _supervise(settings, where, listener)
            return
        server = uvicorn.Server(_config(settings, functools.partial(_app, settings, where)))
        with handle_signals((signal.SIGTERM, signal.SIGINT), lambda *_: sys.exit(0)):  # uvicorn raises the signal again
            server.run([listener])


def _listener(settings: ServeSettings) -> socket.socket:
    """Bind the address; clients that connect now wait until the models are loaded."""
    host, port = settings.host, settings.port
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(addresses, key=lambda one: one[0] != socket.AF_INET)  # IPv4 first
        listener = socket.create_server(address[:2], family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"host={host} port={port}: {reason}; choose another address, or stop its user") from None
    if not settings.is_loopback:
        say(
            f"warning: host={host}: other machines can reach the server, which has no password and no encryption; leave "
            "host= out to serve this machine alone, or use a proxy"
        )
    return listener


def _config(settings: ServeSettings, app: Any) -> uvicorn.Config:
    import uvicorn

    return uvicorn.Config(
        app, factory=True, loop="uvloop", http="h11", ws="none", lifespan="on", workers=settings.workers,
        log_config=None, log_level="critical", access_log=False, server_header=False, proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=IDLE_SECONDS, timeout_worker_healthcheck=DEAD_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.request_seconds) + STOP_SECONDS,
    )  # fmt: skip


def _app(settings: ServeSettings, where: str) -> Any:
    """Load the models in the process that serves them."""
    import torch

    from bertkit.serve.app import make_app
    from bertkit.serve.service import Service

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # before the models are loaded
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, min(torch.get_num_threads(), cores // settings.workers)))
    worker = "" if settings.workers == 1 else f", worker {os.getpid()}"
    ready = f"serving {', '.join(settings.names)} on {where}{worker}; Ctrl-C stops"
    return make_app(Service(settings), lambda: say(ready))


def _app_of_worker(settings: ServeSettings, where: str, faults: Any, has_served: Any) -> Any:
    """Load the models in a worker process; the supervisor reports the first error, once for all workers."""
    end_with_parent()
    try:
        app = _app(settings, where)
    except Exception as error:
        fault: BertkitError = InputError(f"a worker could not start: {type(error).__name__}: {error}")
        fault = error if isinstance(error, BertkitError) else fault
        if not has_served.is_set():
            faults.put(fault)
            sys.exit(FAILED_EXIT_CODE)
        say(f"error: {fault}", file=sys.stderr)  # the other workers continue; this one is restarted
        time.sleep(RETRY_SECONDS)
        sys.exit(1)
    has_served.set()
    return app


def _supervise(settings: ServeSettings, where: str, listener: socket.socket) -> None:
    """Serve in worker processes that share one socket; uvicorn restarts a worker that dies."""
    from uvicorn.supervisors import Multiprocess

    spawn = multiprocessing.get_context("spawn")
    faults, has_served = spawn.SimpleQueue(), spawn.Event()
    config = _config(settings, functools.partial(_app_of_worker, settings, where, faults, has_served))
    log = logging.getLogger("uvicorn.error")  # in the supervisor: shows that a worker died
    log.setLevel(logging.INFO)
    log.addFilter(lambda record: record.getMessage().endswith("died"))
    log.addHandler(logging.StreamHandler())
    supervisor = Multiprocess(config, [listener])

    def reload(*_: object) -> None:
        for process in supervisor.processes:
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGHUP)

    signal.signal(signal.SIGHUP, reload)  # uvicorn's handler would start new workers instead
    supervisor.run()
    if not faults.empty():
        raise faults.get()
