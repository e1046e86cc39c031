"""uvicorn's server with its own way to accept connections: as many in each worker, and at a stop until none waits.

At a stop, the kernel first drops requests for new connections: one that arrives after the last accept, and before the socket is
closed, would be established and then reset. The server accepts the connections that are under way, and closes the socket; from
then on new clients are refused. It waits until clients have closed their connections. Last, uvicorn closes idle connections, and
answers all requests.
"""

import asyncio
import contextlib
import ctypes
import functools
import socket
import struct
from collections.abc import Sequence
from typing import Any

import uvicorn

from bertkit.base.errors import say

LEAVE_SECONDS = 0.01  # a worker with more connections than another one leaves a new connection to it for so long
LISTEN_SECONDS = 0.3  # at a stop, connections are accepted for so long; the supervisor closes its copy earlier
CLOSING_POLLS = 20  # then clients have this time, in polls, to send a request on an open connection, and to close it
POLL_SECONDS = (
    0.05  # polls are counted, not time: a process that was held up reads what has arrived before it closes connections
)
NOT_READY = 2**31 - 1  # connections of a worker that does not serve yet, so that no other one waits for it
SO_ATTACH_FILTER = 26  # of Linux; Python does not name it
# A program of Linux's packet filter (linux/filter.h): drop packets with TCP's flag SYN, which ask for a connection, and keep others.
DROP_SYN = (
    (0x30, 0, 0, 13),  # load the byte with the flags
    (0x45, 0, 1, 0x02),  # without SYN, skip one line
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # keep
)


class Worker(ctypes.Structure):
    """What a worker shares with the others and with the supervisor, which counts `polls` since the worker showed life."""

    _fields_ = (("connections", ctypes.c_int), ("polls", ctypes.c_int))


class Server(uvicorn.Server):
    """The server in one process, which is the worker at `place`; says `ready` when it serves."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, workers: Sequence[Worker], place: int, ready: str
    ) -> None:
        super().__init__(config)
        self.listener, self.workers, self.worker, self.ready = listener, workers, workers[place], ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections."""
        await super().startup(sockets=[])
        self.listener.setblocking(False)
        self.worker.connections = 0
        self._listen()
        say(self.ready)

    async def on_tick(self, counter: int) -> bool:
        """Show life, and the number of connections."""
        self.worker.connections, self.worker.polls = len(self.server_state.connections), 0
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, as described above."""
        self.config.loaded_app.state.service.is_stopping = True
        _drop_new_clients(self.listener)
        await asyncio.sleep(LISTEN_SECONDS)
        asyncio.get_running_loop().remove_reader(self.listener)
        while self._accept():
            pass
        self.listener.close()
        for _ in range(CLOSING_POLLS):
            if not (self.server_state.connections or self.server_state.tasks):
                break
            await asyncio.sleep(POLL_SECONDS)
        await super().shutdown()

    def _listen(self) -> None:
        if self.listener.fileno() >= 0:  # it is not closed yet
            self._accept()
            asyncio.get_running_loop().add_reader(self.listener, self._on_connection)

    def _on_connection(self) -> None:
        if self.worker.connections > min(each.connections for each in self.workers) or not self._accept():
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.listener)
            loop.call_later(LEAVE_SECONDS, self._listen)

    def _accept(self) -> bool:
        """Accept a connection; return False if none waits, or too many files are open."""
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return False
        self.worker.connections += 1
        protocol: Any = self.config.http_protocol_class
        make = functools.partial(protocol, self.config, self.server_state, self.lifespan.state)
        task = asyncio.ensure_future(asyncio.get_running_loop().connect_accepted_socket(make, connection))
        self.server_state.tasks.add(task)  # type: ignore[arg-type]
        task.add_done_callback(self.server_state.tasks.discard)
        return True


def _drop_new_clients(listener: socket.socket) -> None:
    """Let the kernel drop requests for new connections."""
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in DROP_SYN))
    with contextlib.suppress(OSError):  # other systems have no such filter
        filter_program = struct.pack("HP", len(DROP_SYN), ctypes.addressof(program))
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_program)
