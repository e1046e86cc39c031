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
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertkit.apps.server.bodies import error_json
from bertkit.apps.server.workers import Worker
from bertkit.base.errors import say
from bertkit.data.library_calls import running_seconds

LEAVE_SECONDS = 0.01  # a worker with more connections than another one leaves a new connection to it for so long
LISTEN_SECONDS = 0.3  # at a stop, connections are accepted for so long; the supervisor closes its copy earlier
LEAST_SECONDS = 1.0  # of a text in the tokenizer before its worker ends: another one takes longer to start
ENDLESS_CODE = 70  # the exit code of a worker that ended itself
CLOSING_POLLS = 20  # then clients have this time, in polls, to send a request on an open connection, and to close it
POLL_SECONDS = (
    0.05  # polls are counted, not time: a process that was held up reads what has arrived before it closes connections
)
SO_ATTACH_FILTER = 26  # of Linux; Python does not name it
# A program of Linux's packet filter (linux/filter.h): drop packets with TCP's flag SYN, which ask for a connection, and keep others.
DROP_SYN = (
    (0x30, 0, 0, 13),  # load the byte with the flags
    (0x45, 0, 1, 0x02),  # without SYN, skip one line
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # keep
)


class Protocol(H11Protocol):
    """HTTP/1.1; what is not HTTP gets an error in JSON, too."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and close the connection."""
        body = error_json(400, "bad_request", msg).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """The server in one process, which is the worker at `place`; says `ready` when it serves."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, workers: Sequence[Worker], place: int, ready: str
    ) -> None:
        super().__init__(config)
        self.listener, self.workers, self.worker, self.ready = listener, workers, workers[place], ready
        self._is_ending = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then accept connections."""
        await super().startup(sockets=[])
        self.listener.setblocking(False)
        self.worker.connections = 0
        self.config.loaded_app.state.service.connections = self.server_state.connections
        self._watching = asyncio.ensure_future(self._watch())
        self._listen()
        say(self.ready)

    async def on_tick(self, counter: int) -> bool:
        """Show life, and the number of connections."""
        self.worker.connections, self.worker.polls = len(self.server_state.connections), 0
        return await super().on_tick(counter)

    async def _watch(self) -> None:
        """When a library computes without an end, answer all requests with an error, and end this process."""
        limit = max(LEAST_SECONDS, self.config.loaded_app.state.service.settings.request_seconds)
        while running_seconds() <= limit:
            await asyncio.sleep(POLL_SECONDS)
        say("error: a text takes the tokenizer longer than request_seconds; this worker ends", file=sys.stderr)
        self._is_ending = True  # new clients wait for the next worker
        if self.listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.listener)
        self.config.loaded_app.state.service.refuse_all()
        await asyncio.sleep(LISTEN_SECONDS)
        os._exit(ENDLESS_CODE)

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
        if self.listener.fileno() >= 0 and not self._is_ending:  # it is not closed yet
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
