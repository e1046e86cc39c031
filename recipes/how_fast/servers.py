"""Typical servers for a classifier, with FastAPI and transformers: `servers.py KIND MODEL_DIR PORT NUM_PROCESSES DEVICE PRECISION`.

They answer as `bertkit serve` does: POST /predict {"inputs": [text]} -> {"predictions": [{"label", "probabilities"}]}.
"""

import asyncio
import os
import sys
from typing import Any

import fastapi
import torch
import transformers
import uvicorn

MOST_TOGETHER = 64  # waiting texts that a server takes together
SORTED_TOGETHER = 8  # texts per batch of a server that sorts them by length
BATCH_SIZES = {"padded": MOST_TOGETHER, "sorted": SORTED_TOGETHER}
MAX_TOKENS = 128  # tokens per text: bertkit's default for a classifier without a maximum length


def pipeline_server(model_dir: str, settings: dict[str, Any], device: str, is_in_turn: bool) -> fastapi.FastAPI:
    """Serve a pipeline: in FastAPI's forty threads, as its guide advises for blocking functions, or one request after another."""
    classify = transformers.pipeline("text-classification", model=model_dir, top_k=None, device=device, **settings)
    app = fastapi.FastAPI()

    def predict(body: dict[str, list[str]]) -> dict[str, Any]:
        found = classify(body["inputs"], truncation=True, max_length=MAX_TOKENS)
        return {"predictions": [answer({each["label"]: each["score"] for each in scores}) for scores in found]}

    async def predict_in_turn(body: dict[str, list[str]]) -> dict[str, Any]:
        return predict(body)

    app.add_api_route("/predict", predict_in_turn if is_in_turn else predict, methods=["POST"])
    return app


def padded_server(model_dir: str, settings: dict[str, Any], device: str, batch_size: int) -> fastapi.FastAPI:
    """Serve with a thread that takes the waiting texts together, sorts them by length, and pads each batch to its longest."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(model_dir, **settings).to(device).eval()
    app, waiting = fastapi.FastAPI(), asyncio.Queue[tuple[str, asyncio.Future[Any]]]()
    working: list[asyncio.Task[None]] = []

    @torch.inference_mode()
    def answers(texts: list[str]) -> list[Any]:
        by_length, found = sorted(range(len(texts)), key=lambda place: len(texts[place])), dict[int, Any]()
        for start in range(0, len(texts), batch_size):
            places = by_length[start : start + batch_size]
            chosen = [texts[place] for place in places]
            batch = tokenizer(chosen, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
            rows = model(**batch.to(device)).logits.float().softmax(-1).tolist()
            found |= zip(places, rows, strict=True)
        labels = model.config.id2label
        return [answer({labels[number]: share for number, share in enumerate(found[n])}) for n in range(len(texts))]

    async def work() -> None:
        while True:
            taken = [await waiting.get()]
            while not waiting.empty() and len(taken) < MOST_TOGETHER:
                taken.append(waiting.get_nowait())
            rows = await asyncio.to_thread(answers, [text for text, _ in taken])
            for (_, future), row in zip(taken, rows, strict=True):
                future.set_result(row)

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


def answer(probabilities: dict[str, float]) -> dict[str, Any]:
    """Return the response for one prediction."""
    return {"label": max(probabilities, key=lambda label: probabilities[label]), "probabilities": probabilities}


def app() -> fastapi.FastAPI:
    """Create the application that the environment variables name, in one of the server processes."""
    kind, model_dir, device, precision = os.environ["HOW_FAST_SERVER"].split("\n")
    settings = {"dtype": torch.bfloat16 if precision == "bf16" else torch.float32}
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if kind in BATCH_SIZES:
        return padded_server(model_dir, settings, device, BATCH_SIZES[kind])
    return pipeline_server(model_dir, settings, device, kind == "in_turn")


if __name__ == "__main__":
    kind, model_dir, port, num_processes, *settings = sys.argv[1:]
    os.environ["HOW_FAST_SERVER"] = "\n".join((kind, model_dir, *settings))
    uvicorn.run(
        "servers:app", factory=True, host="127.0.0.1", port=int(port), workers=int(num_processes), log_level="warning"
    )
