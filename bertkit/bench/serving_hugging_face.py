"""Servers of a classifier as people write them with transformers, that `bertkit serve` is measured beside.

`python -m bertkit.bench.serving_hugging_face KIND MODEL_DIR PORT NUM_PROCESSES NUM_THREADS`, KIND one of `SERVERS`; all answer
what bertkit answers: POST /predict {"inputs": [text]} -> {"predictions": [{"label", "probabilities"}]}.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

MOST_TOGETHER = 64  # texts of a padded batch
MAX_TOKENS = 128  # of a text, as bertkit takes for a classifier that says nothing of it


def pipeline_server(model_dir: str, in_turn: bool = False) -> Any:
    """FastAPI and a pipeline: in FastAPI's forty threads, as its guide has functions that block; or one request after another."""
    import fastapi
    import transformers

    classify = transformers.pipeline("text-classification", model=model_dir, top_k=None, device="cpu")
    app = fastapi.FastAPI()

    def predict(body: dict[str, list[str]]) -> dict[str, Any]:
        found = classify(body["inputs"], truncation=True, max_length=MAX_TOKENS)
        return {"predictions": [_row({each["label"]: each["score"] for each in scores}) for scores in found]}

    async def predict_in_turn(body: dict[str, list[str]]) -> dict[str, Any]:
        return predict(body)

    app.add_api_route("/predict", predict_in_turn if in_turn else predict, methods=["POST"])
    return app


def padded_server(model_dir: str) -> Any:
    """FastAPI, and a thread that puts the texts that wait into one batch, padded to the longest of them."""
    import fastapi
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(model_dir).eval()
    app, waiting = fastapi.FastAPI(), asyncio.Queue[tuple[str, asyncio.Future[Any]]]()

    @torch.inference_mode()
    def answer(texts: list[str]) -> list[Any]:
        batch = tokenizer(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        shares: list[list[float]] = model(**batch).logits.softmax(-1).tolist()
        labels = model.config.id2label
        return [_row({labels[number]: share for number, share in enumerate(row)}) for row in shares]

    async def work() -> None:
        while True:
            taken = [await waiting.get()]
            while not waiting.empty() and len(taken) < MOST_TOGETHER:
                taken.append(waiting.get_nowait())
            rows = await asyncio.to_thread(answer, [text for text, _ in taken])
            for (_, future), row in zip(taken, rows, strict=True):
                future.set_result(row)

    working: list[asyncio.Task[None]] = []

    async def predict(body: dict[str, list[str]]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        if not working:
            working.append(loop.create_task(work()))
        futures = [loop.create_future() for _ in body["inputs"]]
        for text, future in zip(body["inputs"], futures, strict=True):
            waiting.put_nowait((text, future))
        return {"predictions": await asyncio.gather(*futures)}

    app.add_api_route("/predict", predict, methods=["POST"])
    return app


def _row(probabilities: dict[str, float]) -> dict[str, Any]:
    return {"label": max(probabilities, key=lambda label: probabilities[label]), "probabilities": probabilities}


SERVERS: dict[str, Callable[[str], Any]] = {
    "pipeline": pipeline_server,
    "in_turn": functools.partial(pipeline_server, in_turn=True),
    "padded": padded_server,
}


def app() -> Any:
    """Build the server that the environment names, in one of its processes."""
    kind, model_dir, num_threads = os.environ["BERTKIT_BENCH_SERVER"].split("\n")
    torch.set_num_threads(int(num_threads))
    return SERVERS[kind](model_dir)


if __name__ == "__main__":
    import uvicorn

    kind, model_dir, port, num_processes, num_threads = sys.argv[1:]
    os.environ["BERTKIT_BENCH_SERVER"] = "\n".join((kind, model_dir, num_threads))
    place = "bertkit.bench.serving_hugging_face:app"
    uvicorn.run(place, factory=True, host="127.0.0.1", port=int(port), workers=int(num_processes), log_level="warning")
