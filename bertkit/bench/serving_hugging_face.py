"""Two servers of a classifier as people write them with transformers, that `bertkit serve` is measured beside.

`python -m bertkit.bench.serving_hugging_face pipeline|padded MODEL_DIR PORT NUM_THREADS`; both answer what bertkit answers:
POST /predict {"inputs": [text]} -> {"predictions": [{"label", "probabilities"}]}.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import torch

MOST_TOGETHER = 64  # texts of a padded batch
MAX_TOKENS = 128  # of a text, as bertkit takes for a classifier that says nothing of it


def pipeline_server(model_dir: str) -> Any:
    """FastAPI and a pipeline, a text at a time."""
    import fastapi
    import transformers

    classify = transformers.pipeline("text-classification", model=model_dir, top_k=None, device="cpu")
    app = fastapi.FastAPI()

    # not `def`, whose calls FastAPI would run in 40 threads at once: measured, that answers fewer
    async def predict(body: dict[str, list[str]]) -> dict[str, Any]:
        found = classify(body["inputs"], truncation=True, max_length=MAX_TOKENS)
        return {"predictions": [_row({each["label"]: each["score"] for each in scores}) for scores in found]}

    app.add_api_route("/predict", predict, methods=["POST"])
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


if __name__ == "__main__":
    import uvicorn

    kind, model_dir, port, num_threads = sys.argv[1:]
    torch.set_num_threads(int(num_threads))
    app = {"pipeline": pipeline_server, "padded": padded_server}[kind](model_dir)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
