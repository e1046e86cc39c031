"""The paths of the server: JSON requests, and answers or errors in JSON."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertkit.base.errors import InputError, say, shown
from bertkit.base.text_files import parse_json
from bertkit.serve import bodies
from bertkit.serve.queues import RefusedError
from bertkit.serve.service import Service
from bertkit.view.page import render, serve_policy

CLOSING_SECONDS = 0.5  # between a signal and the stop, so that idle clients learn of it from an answer
CLOSE = (b"connection", b"close")


class JsonRequest(Request):
    """A request whose body is JSON in UTF-8, neither too large nor too deep."""

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Give the body in parts.

        Raises:
            RefusedError: it has another type, or is too large.
        """
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RefusedError(415, "wrong_type", "expected JSON; send the header content-type: application/json")
        most, num_bytes = _service(self).settings.max_body_bytes, 0
        too_large = RefusedError(413, "too_large", f"expected a body of at most {most:,} bytes")
        if int(self.headers.get("content-length", 0)) > most:
            raise too_large
        async for part in super().stream():
            num_bytes += len(part)
            if num_bytes > most:
                raise too_large
            yield part

    async def json(self) -> Any:
        """Give the body.

        Raises:
            RefusedError: it is not JSON.
        """
        try:
            value = parse_json((await self.body()).decode("utf-8"))
        except ValueError as error:  # also of UTF-8
            expected = "UTF-8" if isinstance(error, UnicodeDecodeError) else f"JSON ({error})"
            raise RefusedError(400, "bad_json", f"the body is not {expected}") from None
        if _service(self).settings.log_inputs:
            say(f"{self.url.path} {json.dumps(value, ensure_ascii=False)}", file=sys.stderr)
        return value


class JsonRoute(APIRoute):
    """A path that reads `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Give the function that answers a request."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(JsonRequest(request.scope, request.receive))

        return handle


class Counted:
    """Counts requests, answers unexpected errors, and closes connections while the server stops."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        self.paths = frozenset(("/openapi.json", *(path for _, path, *_ in PATHS)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started_at, status = time.perf_counter(), 500

        async def noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.service.is_stopping:
                    message["headers"] = [*message.get("headers", ()), CLOSE]
            await send(message)

        try:
            await self.app(scope, receive, noting_status)
        except Exception as error:
            say(f"error: {scope['path']}: {type(error).__name__}; this is a bug in bertkit", file=sys.stderr)
            await _problem(500, "failed", "the server failed; its log has the error")(scope, receive, noting_status)
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.service.metrics.requests.labels(path, str(status)).inc()
            self.service.metrics.seconds.labels(path).observe(time.perf_counter() - started_at)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _size(request: Request) -> int:
    """Estimate the number of tokens of a request."""
    return len(await request.body()) // 4 + 1


def _models(request: Request) -> dict[str, Any]:
    service = _service(request)
    return {"models": list(map(bodies.described, service.models.values())), "has_search": service.has_search}


async def page(request: Request) -> Response:
    """A page to try the models."""
    content = render("serve.html", name="bertkit", served=_models(request))
    return HTMLResponse(content, headers={"content-security-policy": serve_policy()})


async def models(request: Request) -> Response:
    """The models, with examples of their inputs."""
    return JSONResponse(_models(request))


async def health() -> Response:
    """200: the server is ready."""
    return JSONResponse({"status": "ready"})


async def metrics(request: Request) -> Response:
    """Metrics in the Prometheus text format."""
    text = generate_latest(_service(request).metrics.registry)
    return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})


async def predict(body: bodies.PredictBody, request: Request) -> Response:
    """The row that `predict` writes, for each input."""
    rows = await _service(request).predict(body.model, body.inputs, await _size(request), body.alternatives)
    return JSONResponse({"predictions": rows})


async def embed(body: bodies.EmbedBody, request: Request) -> Response:
    """A vector for each text."""
    name, vectors = await _service(request).embed(body.model, body.inputs, await _size(request))
    numbers = ", ".join(["%.9g"] * vectors.shape[1])  # nine digits are exact for float32
    rows = ", ".join(f"[{numbers % tuple(row)}]" for row in vectors.tolist())
    return Response(f'{{"model": {json.dumps(name)}, "vectors": [{rows}]}}', media_type="application/json")


async def view(body: bodies.ViewBody, request: Request) -> Response:
    """A page with a model's attention and the attributions of its prediction."""
    return HTMLResponse(await _service(request).view(body.model, body.input, await _size(request)))


async def search(body: bodies.SearchBody, request: Request) -> Response:
    """Passages of the library, and the answers in them."""
    answer = await _service(request).search(body.question, body.order, body.top_k, await _size(request))
    return JSONResponse(answer)


# tried in this order, so the most frequent path comes first
PATHS: tuple[tuple[str, str, Callable[..., Any], type[BaseModel] | None], ...] = (
    ("POST", "/predict", predict, bodies.Predictions),
    ("POST", "/embed", embed, bodies.Vectors),
    ("POST", "/search", search, bodies.Passages),
    ("POST", "/view", view, None),
    ("GET", "/", page, None),
    ("GET", "/models", models, None),
    ("GET", "/healthz", health, None),
    ("GET", "/metrics", metrics, None),
)


def _problem(status: int, code: str, message: str, headers: Any = None) -> Response:
    return JSONResponse({"error": {"code": code, "message": shown(message)}}, status, headers)


async def _refused(request: Request, error: Any) -> Response:
    """Answer a request that bertkit refuses, or FastAPI: an unknown path, another method."""
    if isinstance(error, RefusedError):
        return _problem(error.status_code, error.code, error.detail, error.headers)
    message = f"{request.method} {request.url.path[:100]}: {error.detail}; GET /openapi.json lists all paths"
    return _problem(error.status_code, HTTPStatus(error.status_code).name.lower(), message, error.headers)


async def _wrong(_: Request, error: Any) -> Response:
    """Answer a request with wrong inputs or fields."""
    if isinstance(error, InputError):
        return _problem(400, "bad_input", str(error))
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"][1:])) or "the body"
    return _problem(400, "bad_input", f"{where[:100]}: {first['msg']}")


def make_app(service: Service, ready: Callable[[], None]) -> FastAPI:
    """Build the application of a service; `ready` is called when it accepts requests."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        handlers: dict[signal.Signals, Any] = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}

        def stop(number: signal.Signals) -> None:
            service.is_stopping = True
            loop.call_later(CLOSING_SECONDS, handlers[number], number, None)  # uvicorn's own way to stop

        for number in handlers:
            loop.add_signal_handler(number, stop, number)
        loop.add_signal_handler(signal.SIGHUP, lambda: tasks.add(loop.create_task(service.reload())))
        ready()
        yield
        await service.close()

    app = FastAPI(
        title="bertkit serve", summary=f"Models: {', '.join(service.models)}", version="1", lifespan=lifespan,
        docs_url=None, redoc_url=None,  # these pages load scripts from other hosts
        telemetry={"tracing": False, "metrics": False, "logs": False},  # nothing is sent anywhere
        redirect_slashes=False, responses={"default": {"model": bodies.Problem, "description": "an error"}},
    )  # fmt: skip
    app.state.service = service
    app.router.route_class = JsonRoute
    for method, path, endpoint, model in PATHS:
        kind = JSONResponse if model else Response  # a page has no schema; its errors are JSON too
        app.add_api_route(path, endpoint, methods=[method], response_model=model, response_class=kind)
    app.add_exception_handler(StarletteHTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _wrong)
    app.add_exception_handler(InputError, _wrong)
    app.add_middleware(Counted, service=service)
    return app
