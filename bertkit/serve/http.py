"""What a client may do: how much it may send, how long it may take, how many connections there may be.

httptools parses without limits, and uvicorn waits for slow clients without end; both are bounded here. Whoever goes beyond
gets one answer in JSON where that is possible, and is disconnected; nobody else notices.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from bertkit.settings.serve import ServeSettings

LINGER_SECONDS = 2.0  # that what a refused client still sends is read away, so that it gets to read why
LINGER_BYTES = 1 << 24
# Some clients offer HTTP/2 in their first request, and go on without; httptools would not read its body.
_OFFER = re.compile(rb"\nupgrade:", re.IGNORECASE)
WIRE = 8  # times its size that a body may take, in chunks of a few bytes each


def error_body(code: str, message: str) -> bytes:
    """Write an error as every answer has it."""
    return json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False).encode()


class BoundedProtocol(HttpToolsProtocol):  # type: ignore[misc]
    """uvicorn's protocol of one connection, with limits.

    Args:
        settings: the limits.
        refused: is called with the status of each refusal that no application sees.
        named: what uvicorn gives.
    """

    def __init__(self, settings: ServeSettings, refused: Callable[[int], None], **named: Any) -> None:
        super().__init__(**named)
        self._limits, self._refused = settings, refused
        self._clock: asyncio.TimerHandle | None = None
        self._num_headers = self._num_header_bytes = self._num_bytes = 0  # of the request that is read
        self._num_unparsed = 0  # bytes of a header that has not ended, of which the parser says nothing
        self._in_headers = self._in_message = False
        self._fault: tuple[int, str, str] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take a connection, unless there are too many."""
        super().connection_made(_Lingering(transport, self))
        if len(self.connections) > self._limits.max_connections:
            self._refuse(
                503, "too_many_connections", f"{self._limits.max_connections} connections are open; try again later"
            )
            return
        self._start_clock(self._limits.client_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._stop_clock()
        self.pipeline.clear()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse what comes, within the limits."""
        if self.transport.is_closing() or self.parser is None:
            return
        self._unset_keepalive_if_required()
        was_in_headers = self._in_headers
        self._num_bytes += len(data)
        if b"pgrade" in data or b"PGRADE" in data:
            data = _OFFER.sub(b"\nx-offer:", data)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            fault = self._fault or (
                400,
                "bad_request",
                "not HTTP/1.1; send a request line, headers, an empty line and the body",
            )
            self._refuse(*fault)
            return
        self._num_unparsed += len(data) if was_in_headers and self._in_headers else 0
        if self._num_unparsed > self._limits.max_header_bytes:
            self._refuse(*self._too_long())
        elif self._num_bytes > WIRE * self._limits.max_body_bytes + self._limits.max_header_bytes and self._in_message:
            self._refuse(413, "too_large", f"expected a body of at most {self._limits.max_body_bytes:,} bytes")
        elif self._clock is None and not self._in_message and (self.cycle is None or self.cycle.response_complete):
            self._start_clock(self._limits.client_seconds)  # empty lines before a request

    def eof_received(self) -> bool:
        """Answer a client that has sent all and listens still; else close."""
        if self.cycle is None or self.cycle.response_complete or self._in_message:
            return False
        self.cycle.keep_alive = False
        return True

    def on_message_begin(self) -> None:
        """Count anew."""
        super().on_message_begin()
        self._num_headers = self._num_header_bytes = self._num_bytes = self._num_unparsed = 0
        self._in_headers = self._in_message = True
        self._start_clock(self._limits.client_seconds)

    def on_url(self, url: bytes) -> None:
        """Take a part of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer."""
        self._num_headers += 1
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the clock: from now on the client waits."""
        self._in_message = False
        self._stop_clock()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Give a client that does not read its answer some time."""
        super().pause_writing()
        self._start_clock(self._limits.client_seconds)

    def resume_writing(self) -> None:
        """Go on."""
        self._stop_clock()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, at last also one whose client has not read the answer."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(self._limits.client_seconds, self.transport.abort)

    def _count(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > self._limits.max_header_bytes or self._num_headers > self._limits.max_headers:
            self._fault = self._too_long()
            raise ValueError("headers")

    def _too_long(self) -> tuple[int, str, str]:
        limits = self._limits
        return 431, "headers_too_large", (
            f"expected at most {limits.max_header_bytes:,} bytes and {limits.max_headers} headers before the body"
        )  # fmt: skip

    def _start_clock(self, seconds: float) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(seconds, self._too_slow)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _too_slow(self) -> None:
        """End a request that does not come, or an answer that nobody reads."""
        self._clock = None
        if self.flow.read_paused:  # by us
            self._start_clock(self._limits.client_seconds)
        elif self._in_message and not self.flow.write_paused:
            seconds = self._limits.client_seconds
            self._refuse(408, "too_slow", f"the request was not there after {seconds:g} s; send it faster, or in parts")
        else:
            self.transport.abort()

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Say why, unless an answer has begun, and disconnect."""
        self._stop_clock()
        self._unset_keepalive_if_required()
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering:
            cycle.disconnected = True
            cycle.message_event.set()
        if is_answering and not self._in_message:  # the one before this one, which may still be answered
            self.transport.abort()
            return
        if not (is_answering and cycle.response_started):
            body = error_body(code, message)
            head = [STATUS_LINE[status], b"content-type: application/json\r\n", b"connection: close\r\n"]
            self.transport.write(b"".join([*head, b"content-length: %d\r\n\r\n" % len(body), body]))
        self._refused(status)
        self._in_message = True  # whatever comes
        self.transport.close()


class _Lingering:
    """A transport that, closed while its client still sends, reads that away for a while.

    A connection that is closed with unread bytes is reset, and the client may not get to read the answer.
    """

    def __init__(self, transport: asyncio.Transport, protocol: BoundedProtocol) -> None:
        self._transport, self._protocol, self._is_closing = transport, protocol, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more is answered."""
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        """Close, at once or after what is still sent."""
        if self.is_closing():
            return
        self._is_closing = True
        if not self._protocol._in_message or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.set_protocol(_Drain(self._transport, self._protocol))
        self._transport.write_eof()
        self._transport.resume_reading()


class _Drain(asyncio.Protocol):
    """Reads what nobody wants."""

    def __init__(self, transport: asyncio.Transport, protocol: BoundedProtocol) -> None:
        self._transport, self._protocol, self._left = transport, protocol, LINGER_BYTES
        self._end = protocol.loop.call_later(LINGER_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Count, and forget."""
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the protocol whose connection it was."""
        self._end.cancel()
        self._protocol.connection_lost(exc)
