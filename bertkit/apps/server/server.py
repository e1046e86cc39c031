"""The command `serve`: a server for models, in one process or several, until a signal stops it."""

import functools
import importlib.util
import math
import os
import re
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from bertkit.apps.server.workers import Worker, supervise
from bertkit.base.errors import InputError, install_extra, refusing, say
from bertkit.base.files import check_regular
from bertkit.base.processors import num_processors
from bertkit.base.text_files import read_lines
from bertkit.base.typed_settings import refuse
from bertkit.settings.serve import ServeSettings

# oneDNN and torch each cache 1,024 kernels, one for each batch size: 300 MB after 40,000 requests. With 128 kernels, memory
# does not grow and the speed is the same (measured).
KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
IDLE_SECONDS = 75  # until an idle connection is closed; common proxies close theirs first, after 60
STOP_SECONDS = 10  # a stop waits for unfinished requests for request_seconds and these seconds
TOKEN = "BERTKIT_TOKEN"  # the variable for a token without a file


def run(settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    for package in ("fastapi", "fastapi_offline", "prometheus_client", "uvicorn", "uvloop"):
        refuse(importlib.util.find_spec(package) is None and f"serve needs {package}: {install_extra('serve')}")
    for name, capacity in KERNEL_CACHES.items():
        os.environ.setdefault(name, capacity)
    token = _read_token(settings.token)
    with _listener(settings, token is not None) as listener:
        serve = functools.partial(_serve, settings, token, listener)
        supervise(settings.workers, serve, listener, settings.request_seconds + STOP_SECONDS)


def _read_token(path: str | None) -> bytes | None:
    """Read the token that clients must send, from a file or from the environment; None without both."""
    where, text = f"the variable {TOKEN}", os.environ.get(TOKEN)
    if path is not None:
        file = Path(path).expanduser()
        check_regular(file, "token")
        remedy = f"token= names a file that holds the token; or set ${TOKEN}"
        refuse(not file.exists() and f"token={path}: no such file; {remedy}")
        where, text = f"token={path}", "".join(line for _, line in read_lines(file)).strip()
    if text is not None and not re.fullmatch("[A-Za-z0-9._~+/=-]+", text):  # RFC 6750, 2.1
        raise InputError(f"{where}: expected letters, digits and -._~+/=, such as `openssl rand -hex 32` prints")
    return None if text is None else text.encode()


def _listener(settings: ServeSettings, has_token: bool) -> socket.socket:
    """Bind the address; clients that connect now wait until the models are loaded."""
    host, port = settings.host, settings.port
    advice = "set another port= or host=, or stop the program that uses this one"
    with refusing(
        (OSError, OverflowError, UnicodeError),
        lambda error: f"host={host} port={port}: {getattr(error, 'strerror', None) or error}; {advice}",
    ):
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(addresses, key=lambda one: one[0] != socket.AF_INET)  # IPv4 first
        listener = socket.create_server(address[:2], family=family)
    if not settings.is_loopback:
        missing = "encryption" if has_token else "password and no encryption"
        say(
            f"warning: host={host}: other machines can reach the server, which has no {missing}; leave host= out to serve "
            "this machine alone, or use a proxy with TLS"
        )
    return listener


def _serve(
    settings: ServeSettings, token: bytes | None, listener: socket.socket, workers: Sequence[Worker], place: int
) -> None:
    """Load the models, and serve them in this process, until a signal."""
    import torch
    import uvicorn

    from bertkit.apps.server.app import make_app
    from bertkit.apps.server.connections import Protocol, Server
    from bertkit.apps.server.service import Service

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # before the models are loaded
    torch.set_num_threads(max(1, min(torch.get_num_threads(), num_processors() // settings.workers)))
    host, port = listener.getsockname()[:2]
    worker = "" if settings.workers == 1 else f", worker {os.getpid()}"
    address = f"[{host}]" if ":" in host else host
    access = "" if token is None else ", with a token"
    ready = f"serving {', '.join(settings.names)} on http://{address}:{port}{access}{worker}; Ctrl-C stops"
    config = uvicorn.Config(
        lambda: make_app(Service(settings), token), factory=True, loop="uvloop", http=Protocol, ws="none", lifespan="on",
        log_config=None, log_level="critical", access_log=False, server_header=False, proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.request_seconds) + STOP_SECONDS,
    )  # fmt: skip
    Server(config, listener, workers, place, ready).run()
