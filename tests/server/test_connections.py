"""The server that accepts connections, with an application that answers at once: what a client meets at the last moment of a stop."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from serving import SECONDS, Connection, request

pytest.importorskip("uvicorn")
pytest.importorskip("uvloop")

import uvicorn

from bertkit.apps.server.connections import Server
from bertkit.apps.server.workers import Worker


class Application:
    """Answers every request."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(
            service=SimpleNamespace(is_stopping=False, settings=SimpleNamespace(request_seconds=30))
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


class Listener(socket.socket):
    """A socket that lets `late` happen between the last accept and the close."""

    def __init__(self) -> None:
        super().__init__(fileno=socket.create_server(("127.0.0.1", 0)).detach())
        self.late = threading.Event()
        self.port: int = self.getsockname()[1]
        self.has_connected = False

    def close(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
            self.has_connected = True
        super().close()
        self.late.set()


@pytest.fixture
def stopping() -> Iterator[tuple[Listener, Connection]]:
    """A server that is about to stop, and a client that is connected and has not sent a request yet."""
    listener = Listener()
    config = uvicorn.Config(
        Application, factory=True, loop="uvloop", http="h11", ws="none", lifespan="off", log_config=None,
        proxy_headers=False, timeout_graceful_shutdown=5,
    )  # fmt: skip
    server = Server(config, listener, [Worker()], 0, "ready")
    thread = threading.Thread(target=server.run)
    thread.start()
    with Connection(listener.port) as other, Connection(listener.port) as connection:
        assert other.ask(request("/")).status == 200
        server.should_exit = True
        yield listener, connection
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_no_client_comes_in_after_the_last_accept(stopping: tuple[Listener, Connection]) -> None:
    listener, _ = stopping
    assert listener.late.wait(SECONDS)
    assert not listener.has_connected  # it would be reset without an answer


def test_a_client_that_is_slow_to_send_its_request_gets_an_answer(stopping: tuple[Listener, Connection]) -> None:
    listener, connection = stopping
    assert listener.late.wait(SECONDS)
    time.sleep(0.4)
    assert connection.ask(request("/")).status == 200
