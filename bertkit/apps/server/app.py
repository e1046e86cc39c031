"""The FastAPI application: what holds for requests to all paths, their limits, the token, and errors, in JSON."""

import asyncio
import base64
import contextlib
import hmac
import json
import signal
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertkit.apps.server import bodies
from bertkit.apps.server.queues import RefusedError
from bertkit.apps.server.routes import DOCS, PATHS, service_of
from bertkit.apps.server.service import Service
from bertkit.base.errors import InputError, listed, say
from bertkit.base.text_files import parse_json

MAX_CONNECTIONS = 1000  # per worker; the usual limit of open files is 1,024
MAX_UNREAD_BYTES = 100_000_000  # of a refused request: without them read, a client that sends them finds a closed connection, and no response
CLOSE = (b"connection", b"close")
NOSNIFF = (b"x-content-type-options", b"nosniff")


class JsonRequest(Request):
    """A request whose body must be JSON in UTF-8, neither too large nor too deeply nested."""

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the body in parts."""
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "wrong_type", "expected JSON; send the header content-type: application/json")
        most, num_bytes = service_of(self).settings.max_body_bytes, 0
        too_large = RefusedError(413, "too_large", f"expected a body of at most {most:,} bytes")
        if int(self.headers.get("content-length", 0)) > most:
            raise too_large
        async for part in super().stream():
            num_bytes += len(part)
            if num_bytes > most:
                raise too_large
            yield part

    async def json(self) -> object:
        """Return the parsed body."""
        try:
            value = parse_json((await self.body()).decode("utf-8-sig"))
        except ValueError as error:  # UnicodeDecodeError is one too
            expected = "UTF-8" if isinstance(error, UnicodeDecodeError) else f"JSON ({error})"
            raise RefusedError(400, "bad_json", f"the body is not {expected}") from None
        if service_of(self).settings.log_inputs:
            say(f"{self.url.path} {json.dumps(value, ensure_ascii=False)}", file=sys.stderr)
        return value


class JsonRoute(APIRoute):
    """A route whose requests are `JsonRequest`s."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that handles a request."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(JsonRequest(request.scope, request.receive))

        return handle


class _Body:
    """Receives the body of a request, and knows how much of it has been read."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._num_bytes, self._is_read = receive, 0, False

    async def receive(self) -> Message:
        """Receive a part of the body."""
        message = await self._receive()
        self._num_bytes += len(message.get("body", b""))
        self._is_read = not message.get("more_body", False)
        return message

    async def discard(self) -> None:
        """Read the rest, unless it is too long."""
        while not self._is_read and self._num_bytes < MAX_UNREAD_BYTES:
            await self.receive()


class RequestMiddleware:
    """Counts requests, refuses other hosts and clients, answers unexpected errors, closes connections while the server stops."""

    def __init__(self, app: ASGIApp, service: Service, token: bytes | None) -> None:
        self.app, self.service, self.token = app, service, token
        self.paths = frozenset(("/openapi.json", *(path for _, path, *_ in PATHS)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started_at, status, body = time.perf_counter(), 500, _Body(receive)
        num_announced = int(Headers(scope=scope).get("content-length", 0))

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status >= 400 and num_announced < MAX_UNREAD_BYTES:
                    await body.discard()
                message["headers"] = [*message.get("headers", ()), NOSNIFF, *[CLOSE] * self.service.is_stopping]
            await send(message)

        is_head = scope["method"] == "HEAD"  # uvicorn leaves the body out
        asked = {**scope, "method": "GET"} if is_head else scope
        try:
            await (self._refusal(scope) or self.app)(asked, body.receive, send_and_record)
        except Exception as error:
            say(f"error: {scope['path']}: {type(error).__name__}; this is a bug in bertkit", file=sys.stderr)
            response = _error_response(500, "failed", "the server failed; its log has the error")
            await response(scope, body.receive, send_and_record)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.service.metrics.requests.labels(path, str(status)).inc()
            self.service.metrics.seconds.labels(path).observe(time.perf_counter() - started_at)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the response to a request for another host, or without the token."""
        if len(self.service.connections) > MAX_CONNECTIONS:
            return _error_response(503, "too_many", "too many connections; try again later", {"retry-after": "1"})
        headers = Headers(scope=scope)
        hosts, given = headers.getlist("host"), headers.get("authorization", "").encode("latin-1")
        if len(hosts) != 1 or not self.service.settings.accepts(hosts[0]):
            wrong = f"Host: {', '.join(hosts)[:100]}: not a name of this server; see hosts="
            return _error_response(400, "bad_host", wrong)
        if self.token is None or scope["path"] in ("/health", "/healthz") or _is_token(given, self.token):
            return None
        expected = "expected the header Authorization: Bearer TOKEN, or in a browser the token as the password"
        code = "wrong_token" if given else "no_token"
        return _error_response(401, code, expected, {"www-authenticate": 'Basic realm="bertkit", Bearer'})


def _is_token(authorization: bytes, token: bytes) -> bool:
    """Whether a header has the token: as a bearer token, or as a password, which a browser asks its user for."""
    scheme, _, given = authorization.partition(b" ")
    if scheme.lower() == b"basic":
        with contextlib.suppress(ValueError):
            return hmac.compare_digest(base64.b64decode(given).partition(b":")[2], token)
    return scheme.lower() == b"bearer" and hmac.compare_digest(given, token)


def _error_response(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(bodies.error_json(status, code, message), status, headers, "application/json")


async def _handle_error(request: Request, error: Exception) -> Response:
    """Respond to a request that bertkit or FastAPI refuses: for wrong inputs or fields, an unknown path or method."""
    match error:
        case RefusedError():
            return _error_response(error.status_code, error.code, error.detail, error.headers)
        case InputError():
            return _error_response(400, "bad_input", listed(error.args))
        case RequestValidationError():
            return _error_response(400, "bad_input", listed(list(map(bodies.wrong_field, error.errors()))))
        case StarletteHTTPException():
            status = HTTPStatus(error.status_code)
            message = f"{request.method} {request.url.path[:100]}: {error.detail}; GET /openapi.json lists all paths"
            return _error_response(status, status.name.lower(), message, error.headers)
    raise error


def make_app(service: Service, token: bytes | None) -> FastAPI:
    """Build the FastAPI application of a service; with a token, it answers only clients that send it."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        loop.add_signal_handler(signal.SIGHUP, lambda: tasks.add(loop.create_task(service.reload())))
        yield
        await service.close()

    app = FastAPI(
        title="bertkit serve", summary=f"Models: {', '.join(service.models)}", version="1", lifespan=lifespan,
        docs_url=None, redoc_url=None,  # these pages load scripts from other hosts; `routes` has its own /docs
        telemetry={"tracing": False, "metrics": False, "logs": False},  # nothing is sent anywhere
        redirect_slashes=False, responses={"default": {"model": bodies.Problem, "description": "an error"}},
    )  # fmt: skip
    app.state.service, app.state.has_token = service, token is not None
    app.router.route_class = JsonRoute
    for method, path, endpoint, model in PATHS:
        kind = JSONResponse if model else Response  # a page has no schema; errors are always JSON
        app.add_api_route(path, endpoint, methods=[method], response_model=model, response_class=kind)
    app.mount(DOCS, StaticFiles(packages=[("fastapi_offline", "static")]))
    for kind_of_error in (StarletteHTTPException, RequestValidationError, InputError):
        app.add_exception_handler(kind_of_error, _handle_error)
    app.add_middleware(RequestMiddleware, service=service, token=token)
    return app
