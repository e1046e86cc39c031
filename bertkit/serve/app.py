"""The paths of the server: requests checked and handed on, answers and errors in JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertkit.config import nearest
from bertkit.errors import InputError, say
from bertkit.lines import parse_json
from bertkit.serve.batching import RefusedError
from bertkit.serve.http import error_body
from bertkit.serve.openapi import MOST_ALTERNATIVES, described, description
from bertkit.serve.service import Service
from bertkit.view import serve_page

CLOSE = (b"connection", b"close")


def make_app(service: Service) -> ASGIApp:
    """Build the application of a service."""
    paths: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]] = {
        "/": ("GET", _page(service)),
        "/models": ("GET", _models(service)),
        "/healthz": ("GET", _health(service)),
        "/metrics": ("GET", _metrics(service)),
        "/openapi.json": ("GET", _openapi(service)),
        "/predict": ("POST", _predict(service)),
        "/embed": ("POST", _embed(service)),
        "/view": ("POST", _view(service)),
        "/search": ("POST", _search(service)),
    }
    routes = [Route(path, endpoint, methods=[method]) for path, (method, endpoint) in paths.items()]
    app = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _http_error(tuple(paths)),
            RefusedError: lambda _, error: _error(error.status, error.code, error.message, error.headers),
            InputError: lambda _, error: _error(400, "bad_input", str(error)),
            ClientDisconnect: lambda *_: Response(status_code=400),  # which nobody reads
        },
    )
    app.router.redirect_slashes = False
    return _counted(app, service, frozenset(paths))


def _counted(app: ASGIApp, service: Service, paths: frozenset[str]) -> ASGIApp:
    """Count every request, and part with clients while the server stops."""

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        started_at, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if service.is_stopping:
                    message["headers"] = [*message.get("headers", ()), CLOSE]
            await send(message)

        try:
            await app(scope, receive, sent)
        except Exception as error:
            say(f"error: {scope['path']}: {type(error).__name__}; this is a fault of bertkit", file=sys.stderr)
            await _error(500, "failed", "a fault of the server; its own log says more")(scope, receive, sent)
        finally:
            path = scope["path"] if scope["path"] in paths else "other"
            service.metrics.request(path, status, time.perf_counter() - started_at)

    return counted


def _error(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(error_body(code, message), status, headers, "application/json")


def _http_error(paths: Sequence[str]) -> Callable[[Request, Any], Response]:
    def answer(request: Request, error: HTTPException) -> Response:
        if error.status_code == 404:
            hint = nearest(request.url.path, paths)
            return _error(
                404, "not_found", f"no path {request.url.path[:100]}{hint or '; there are ' + ', '.join(paths)}"
            )
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            return _error(
                405, "wrong_method", f"{request.method} {request.url.path}: expected {allowed}", error.headers
            )
        return _error(error.status_code, "bad_request", str(error.detail), error.headers)

    return answer


def _json(value: Any) -> Response:
    return Response(json.dumps(value, ensure_ascii=False, allow_nan=False).encode(), media_type="application/json")


def _described(service: Service) -> list[dict[str, Any]]:
    return [described(each) for each in service.ready().values()]


def _page(service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def page(_: Request) -> Response:
        headers = {"content-security-policy": serve_page.policy()}
        return HTMLResponse(serve_page.page(_described(service), service.has_search), headers=headers)

    return page


def _models(service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def models(_: Request) -> Response:
        return _json({"models": _described(service), "has_search": service.has_search})

    return models


def _health(service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def health(_: Request) -> Response:
        service.ready()
        if service.is_stopping:
            raise RefusedError(503, "stopping", "the server stops")
        return _json({"status": "ready"})

    return health


def _metrics(service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def metrics(_: Request) -> Response:
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")

    return metrics


def _openapi(service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def openapi(_: Request) -> Response:
        return _json(description(service.settings, _described(service)))

    return openapi


def _predict(service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def predict(request: Request) -> Response:
        body, size = await _body(service, request, ("inputs", "model", "alternatives"))
        inputs, count = _inputs(service, body), body.get("alternatives", 0)
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_ALTERNATIVES:
            message = (
                f"alternatives={count!r:.40}: expected 0 to {MOST_ALTERNATIVES}, how many answers of each question"
            )
            raise RefusedError(400, "bad_input", message)
        return _json({"predictions": await service.predict(body.get("model"), inputs, size, count)})

    return predict


def _embed(service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def embed(request: Request) -> Response:
        body, size = await _body(service, request, ("inputs", "model"))
        name, vectors = await service.embed(body.get("model"), _inputs(service, body), size)
        numbers = ", ".join(["%.9g"] * vectors.shape[1])  # nine digits are enough for every float32
        rows = ", ".join(f"[{numbers % tuple(row)}]" for row in vectors.tolist())
        return Response(f'{{"model": {json.dumps(name)}, "vectors": [{rows}]}}', media_type="application/json")

    return embed


def _view(service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def view(request: Request) -> Response:
        body, size = await _body(service, request, ("input", "model"))
        if "input" not in body:
            raise RefusedError(400, "bad_input", "no field 'input'; expected one of the inputs of /predict")
        return HTMLResponse(await service.view(body.get("model"), body["input"], size))

    return view


def _search(service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def search(request: Request) -> Response:
        body, size = await _body(service, request, ("question", "order", "top_k"))
        question, order, top_k = body.get("question"), body.get("order"), body.get("top_k", 10)
        if not isinstance(question, str) or not question.strip():
            raise RefusedError(400, "bad_input", "question: expected a text")
        if order not in (None, "search", "bert", "both"):
            raise RefusedError(400, "bad_input", f"order={order!r:.40}: expected search, bert or both")
        if not isinstance(top_k, int) or isinstance(top_k, bool) or not 1 <= top_k <= 100:
            raise RefusedError(400, "bad_input", f"top_k={top_k!r:.40}: expected 1 to 100")
        return _json(await service.search(question, order, top_k, size))

    return search


def _inputs(service: Service, body: Mapping[str, Any]) -> list[Any]:
    inputs, most = body.get("inputs"), service.settings.max_inputs
    if not isinstance(inputs, list) or not inputs:
        what = "no field 'inputs'" if "inputs" not in body else "inputs"
        raise RefusedError(
            400, "bad_input", f'{what}: expected a list of one input or more, such as {{"inputs": ["a text"]}}'
        )
    if len(inputs) > most:
        raise RefusedError(
            413, "too_large", f"inputs: {len(inputs):,} of them; expected at most {most:,}; send several requests"
        )
    return inputs


async def _body(service: Service, request: Request, fields: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Read the object that a request has for its body; give also about how many tokens it is.

    Raises:
        RefusedError: it is another type, too large, no JSON, or has fields that there are not.
    """
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"') or "utf-8"
    packed = request.headers.get("content-encoding", "identity")
    if kind.strip().lower() != "application/json" or charset not in ("utf-8", "utf8") or packed != "identity":
        message = "expected JSON in UTF-8, not compressed; send the header content-type: application/json"
        raise RefusedError(415, "wrong_type", message)
    most = service.settings.max_body_bytes
    too_large = RefusedError(413, "too_large", f"expected a body of at most {most:,} bytes", {"connection": "close"})
    if int(request.headers.get("content-length", 0)) > most:
        raise too_large
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > most:
            raise too_large
    try:
        body = parse_json(data.decode("utf-8"))
    except ValueError as error:  # of UTF-8, too
        what = "not UTF-8" if isinstance(error, UnicodeDecodeError) else f"not JSON ({error})"
        raise RefusedError(
            400, "bad_json", f"the body is {what}; expected an object with {' and '.join(fields)}"
        ) from None
    if not isinstance(body, dict):
        raise RefusedError(
            400, "bad_input", f"the body is {type(body).__name__}; expected an object with {' and '.join(fields)}"
        )
    for name in body:
        if name not in fields:
            hint = nearest(name, fields) or f"; expected {' and '.join(fields)}"
            raise RefusedError(400, "bad_input", f"unknown field {name!r:.40}{hint}")
    if service.settings.log_inputs:
        say(f"{request.url.path} {json.dumps(body, ensure_ascii=False)}", file=sys.stderr)
    return body, len(data) // 4 + 1
