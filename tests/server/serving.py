"""Servers in processes of their own, and clients over plain sockets."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SECONDS = 60.0  # that nothing here takes
# a server whose workers are forks, which have torch imported already, instead of new interpreters
FORKING = """
import multiprocessing
forking = multiprocessing.get_context("fork")
multiprocessing.get_context = lambda method: forking
from bertkit.__main__ import main
main()
"""


@dataclass
class Server:
    """A running `bertkit serve`, and its output so far."""

    process: subprocess.Popen[str]
    port: int = 0
    printed: list[str] = field(default_factory=list)

    def wait_for(self, pattern: str) -> re.Match[str]:
        until = time.monotonic() + SECONDS
        while True:
            for line in list(self.printed):
                if match := re.search(pattern, line):
                    return match
            assert time.monotonic() < until, f"{pattern} never printed: {self.printed}"
            assert self.process.poll() is None or any(re.search(pattern, line) for line in self.printed), self.printed
            time.sleep(0.01)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)


@contextlib.contextmanager
def serving(python: Path, *arguments: str, folder: Path | None = None, code: str = FORKING) -> Iterator[Server]:
    """Start a server on a free port, and wait until it is ready."""
    for package in ("fastapi", "fastapi_offline", "prometheus_client", "uvicorn", "uvloop"):
        pytest.importorskip(package)
    command = [str(python), "-c", code, "serve", "port=0", "device=cpu", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder) as process:
        server = Server(process)
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: [server.printed.append(line) for line in process.stdout or ()])
        reader.start()
        try:
            server.port = int(server.wait_for(r"^serving .* on http://\S+:(\d+)")[1])
            yield server
        finally:
            if process.poll() is None:
                process.terminate()
            reader.join(SECONDS)


@dataclass
class Answer:
    status: int  # 0: the connection was closed without one
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a JSON error, whose message is one line without a traceback."""
        (error,) = self.json.values()
        assert set(self.json) == {"error"}
        assert set(error) == {"code", "message", "type", "param"}
        assert error["type"] == ("server_error" if self.status >= 500 else "invalid_request_error")
        assert error["message"]
        assert "\n" not in error["message"]
        assert "Traceback" not in error["message"]
        assert self.headers["content-type"] == "application/json"
        return str(error["code"])


class Connection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the answer is there already, or the connection is closed
            self.socket.sendall(data)

    def answer(self) -> Answer:
        """Read one answer; without one the connection is closed."""
        try:
            first = self.file.readline()
            if not first:
                return Answer(0, {}, b"")
            lines = iter(lambda: self.file.readline().decode().rstrip("\r\n"), "")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            length = int(headers.get("content-length", -1))
            return Answer(int(first.split()[1]), headers, self.file.read(length))
        except ConnectionError:
            return Answer(0, {}, b"")

    def ask(self, data: bytes) -> Answer:
        self.send(data)
        return self.answer()

    def is_closed(self) -> bool:
        """Whether the server closes the connection."""
        try:
            return self.file.read(1) == b""
        except ConnectionError:
            return True


def request(path: str, body: Any = None, method: str | None = None, **headers: str | None) -> bytes:
    """Write a request; a body that is no bytes is written as JSON. Headers of None are left out."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields: dict[str, str | None] = {"host": "localhost"}
    if body is not None:
        fields |= {"content-type": "application/json", "content-length": str(len(data))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join([*lines, "", ""]).encode() + data


def ask(port: int, path: str, body: Any = None, **headers: str | None) -> Answer:
    with Connection(port) as connection:
        return connection.ask(request(path, body, **headers))


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))
