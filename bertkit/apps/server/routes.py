"""The HTTP paths of the server, a function each, and their table."""

import base64
import json
from collections.abc import Awaitable, Callable

import numpy as np
from fastapi import Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from pydantic import BaseModel

from bertkit.apps.server import bodies
from bertkit.apps.server.service import Service
from bertkit.base.errors import InputError
from bertkit.display.page import hash_of, policy, render, serve_policy

Vectors = NDArray[np.float32]
DOCS, POLICY = "/docs", "content-security-policy"


def service_of(request: Request) -> Service:
    """Return the service of the application."""
    service: Service = request.app.state.service
    return service


async def _num_tokens(request: Request) -> int:
    """Estimate the number of tokens in a request."""
    return len(await request.body()) // 4 + 1


def _models(request: Request) -> dict[str, object]:
    service = service_of(request)
    models, orders = list(map(bodies.describe_model, service.models.values())), service.orders
    return {"models": models, "has_search": bool(orders), "orders": orders}


async def page(request: Request) -> Response:
    """A web page for trying the models."""
    served = {**_models(request), "has_token": request.app.state.has_token}
    return HTMLResponse(render("serve.html", name="bertkit", served=served), headers={POLICY: serve_policy()})


async def docs() -> Response:
    """FastAPI's page for trying the paths, Swagger UI; its scripts and styles come from the package fastapi-offline."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json", title="bertkit serve", swagger_favicon_url="data:,",
        swagger_js_url=f"{DOCS[1:]}/swagger-ui-bundle.js", swagger_css_url=f"{DOCS[1:]}/swagger-ui.css",
    )  # fmt: skip
    script = bytes(page.body).decode().rpartition("<script>")[2].partition("</script>")[0]
    page.headers[POLICY] = policy(f"'self' {hash_of(script)}", "'self' 'unsafe-inline'")
    return page


async def models(request: Request) -> Response:
    """The models, with examples of their inputs."""
    return JSONResponse(_models(request))


async def health() -> Response:
    """200: the server is ready."""
    return JSONResponse({"status": "ready"})


async def metrics(request: Request) -> Response:
    """Metrics in the Prometheus text format."""
    text = generate_latest(service_of(request).metrics.shown)
    return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})


async def predict(body: bodies.PredictBody, request: Request) -> Response:
    """The row that `predict` writes, for each input."""
    return JSONResponse({"predictions": await service_of(request).predict(body, await _num_tokens(request))})


async def embed(body: bodies.EmbedBody, request: Request) -> Response:
    """A vector for each text, as text-embeddings-inference sends them."""
    embedded = await service_of(request).embed(body, await _num_tokens(request))
    return Response(f"[{', '.join(_numbers(embedded.vectors))}]", media_type="application/json")


async def openai_embed(body: bodies.OpenAIBody, request: Request) -> Response:
    """A vector for each text, as OpenAI sends them."""
    of_ours = bodies.EmbedBody(inputs=[*body.input], model=body.model)
    try:
        embedded = await service_of(request).embed(of_ours, await _num_tokens(request))
    except InputError as error:
        raise InputError(*(str(line).replace("inputs[", "input[", 1) for line in error.args)) from None
    written = ENCODINGS[body.encoding_format](embedded.vectors)
    data = (f'{{"object": "embedding", "index": {place}, "embedding": {one}}}' for place, one in enumerate(written))
    usage = {"prompt_tokens": embedded.num_tokens, "total_tokens": embedded.num_tokens}
    rest = json.dumps({"object": "list", "model": embedded.model, "usage": usage})
    return Response(f'{rest[:-1]}, "data": [{", ".join(data)}]}}', media_type="application/json")


def _numbers(vectors: Vectors) -> list[str]:
    """Write each vector as JSON; nine digits represent a float32 exactly."""
    form = f"[{', '.join(['%.9g'] * vectors.shape[1])}]"
    return [form % tuple(vector) for vector in vectors.tolist()]


def _base64(vectors: Vectors) -> list[str]:
    return [f'"{base64.b64encode(vector).decode()}"' for vector in vectors.astype("<f4")]


ENCODINGS = {"float": _numbers, "base64": _base64}


async def openai_models(request: Request) -> Response:
    """The models, as OpenAI lists them."""
    described = list(map(bodies.describe_for_openai, service_of(request).models.values()))
    return JSONResponse({"object": "list", "data": described})


async def openai_model(name: str, request: Request) -> Response:
    """A model, as OpenAI describes it."""
    return JSONResponse(bodies.describe_for_openai(service_of(request).model(name)))


async def info(request: Request) -> Response:
    """The first model and the limits, as text-embeddings-inference describes them."""
    service = service_of(request)
    return JSONResponse(bodies.describe_server(service.model(None), service.settings, service.batch_tokens))


async def view(body: bodies.ViewBody, request: Request) -> Response:
    """A page with a model's attention and the attributions of its prediction."""
    return HTMLResponse(await service_of(request).view(body, await _num_tokens(request)))


async def search(body: bodies.SearchBody, request: Request) -> Response:
    """Passages of the library, and the answers in them."""
    return JSONResponse(await service_of(request).search(body, await _num_tokens(request)))


# matched in this order, so the most frequent path comes first
PATHS: tuple[tuple[str, str, Callable[..., Awaitable[Response]], type[BaseModel] | None], ...] = (
    ("POST", "/predict", predict, bodies.Predictions),
    ("POST", "/embed", embed, bodies.Vectors),
    ("POST", "/v1/embeddings", openai_embed, bodies.OpenAIVectors),
    ("POST", "/search", search, bodies.Passages),
    ("POST", "/view", view, None),
    ("GET", "/", page, None),
    ("POST", "/", embed, bodies.Vectors),  # where clients of text-embeddings-inference send texts if they know no path
    ("GET", DOCS, docs, None),
    ("GET", "/models", models, None),
    ("GET", "/v1/models", openai_models, bodies.OpenAIModels),
    ("GET", "/v1/models/{name:path}", openai_model, bodies.OpenAIModel),
    ("GET", "/info", info, None),
    ("GET", "/health", health, None),
    ("GET", "/healthz", health, None),
    ("GET", "/metrics", metrics, None),
)
