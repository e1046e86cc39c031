"""uvicorn's server with its own way to accept connections: as many in each worker, and at a stop until none waits.

At a stop, the responses ask clients to close their connections. The server still accepts connections for a moment, in which the
supervisor closes its copy of the listening socket; then it accepts all that wait, and closes the socket: new clients are refused
from then on, and no accepted one is cut off. Last, uvicorn closes idle connections, and answers all requests.
"""

import asyncio
import functools
import socket
import time
from collections.abc import MutableSequence
from dataclasses import dataclass
from typing import Any

import uvicorn

from bertkit.base.errors import say

LEAVE_SECONDS = 0.01  # a worker with more connections than another one leaves a new connection to it for so long
LISTEN_SECONDS = (
    0.3  # at a stop, new connections are accepted for so long; longer than the supervisor needs to close its socket
)
CLOSING_SECONDS = 0.5  # then clients have this time to send a request on an open connection, and to close it
NOT_READY = 2**31 - 1  # number of connections of a worker that does not serve yet, so that no other one waits for it


@dataclass(frozen=True)
class Workers:
    """What the workers and their supervisor share, with a place for each worker."""

    connections: MutableSequence[int]  # open connections
    polls: MutableSequence[int]  # polls of the supervisor since the worker has shown life, ten times a second


class Server(uvicorn.Server):
    """The server in one process, which is the worker at `place`."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, workers: Workers, place: int, ready: str
    ) -> None:
        super().__init__(config)
        self.listener, self.workers, self.place, self.ready = listener, workers, place, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections."""
        await super().startup(sockets=[])
        self.listener.setblocking(False)
        self.workers.connections[self.place] = 0
        asyncio.get_running_loop().add_reader(self.listener, self._on_connection)
        say(self.ready)

    async def on_tick(self, counter: int) -> bool:
        """Show life, and the number of connections."""
        self.workers.connections[self.place] = len(self.server_state.connections)
        self.workers.polls[self.place] = 0
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, as described above."""
        self.config.loaded_app.state.service.is_stopping = True
        await asyncio.sleep(LISTEN_SECONDS)
        asyncio.get_running_loop().remove_reader(self.listener)
        while self._accept():
            pass
        self.listener.close()
        until = time.monotonic() + CLOSING_SECONDS
        while (self.server_state.connections or self.server_state.tasks) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        await super().shutdown()

    def _on_connection(self) -> None:
        connections = self.workers.connections
        if connections[self.place] > min(connections) or not self._accept():
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.listener)
            loop.call_later(LEAVE_SECONDS, self._take_what_was_left)

    def _take_what_was_left(self) -> None:
        self._accept()
        if self.listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self.listener, self._on_connection)

    def _accept(self) -> bool:
        """Accept a connection; return False if none waits, or too many files are open."""
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return False
        self.workers.connections[self.place] += 1
        protocol = functools.partial(
            self.config.http_protocol_class,  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state,
        )  # fmt: skip
        loop, tasks = asyncio.get_running_loop(), self.server_state.tasks
        task: asyncio.Task[Any] = loop.create_task(loop.connect_accepted_socket(protocol, connection))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return True
