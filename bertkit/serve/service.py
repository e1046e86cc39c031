"""The models of a worker, the lines before them, and how they start, change and stop; all of it called by the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.base.errors import BertkitError, say
from bertkit.base.typed_settings import nearest
from bertkit.search.ranking import Searcher, read_glossary
from bertkit.serve.batching import Line, RefusedError
from bertkit.serve.metrics import Metrics
from bertkit.serve.models import Served, for_another_thread, open_models
from bertkit.settings.serve import ServeSettings
from bertkit.train import micro_batches, processes

MOST_VIEWS = 8  # that wait: each takes seconds


class Service:
    """What a worker serves.

    Args:
        settings: of the command.

    Raises:
        BertkitError: a model cannot be loaded.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self.settings, self.is_stopping, self._is_loading = settings, False, False
        device = processes.choose_device(settings.device)
        opened = self._open()
        batch_tokens = settings.batch_tokens or micro_batches.AUTO_MICRO_TOKENS[device.type]
        seconds = settings.request_seconds
        # what takes seconds has threads of its own, so that predictions share the processor with it, and do not wait for it
        self._line = Line(self._answer, settings.queue_requests, batch_tokens, seconds)
        self._searches = Line(lambda searcher, asked: [searcher.search(*asked[0])], settings.queue_requests, 1, seconds)
        self._views = Line(lambda model, asked: [model.view(asked[0], settings)], MOST_VIEWS, 1, seconds)
        self._lines = (self._line, self._searches, self._views)
        self.metrics = Metrics(settings.workers, lambda: sum(map(len, self._lines)))
        self._use(*opened)

    @property
    def has_search(self) -> bool:
        """Whether there is a library to search."""
        return self._searcher is not None

    async def reload(self) -> None:
        """Load the models anew, beside those that answer meanwhile; if one cannot be loaded, all old ones stay."""
        if self._is_loading or self.is_stopping:
            return
        self._is_loading, started_at = True, time.perf_counter()
        who = "" if self.settings.workers == 1 else f"worker {os.getpid()}: "
        try:
            self._use(*await asyncio.to_thread(self._open))
            say(f"{who}models loaded anew in {time.perf_counter() - started_at:.1f} s")
        except (BertkitError, OSError) as error:
            self.metrics.loads.labels("failed").inc()
            say(f"error: {who}{error}; the models that were there stay", file=sys.stderr)
        finally:
            self._is_loading = False

    async def close(self) -> None:
        """End the threads, after all that waits."""
        for line in self._lines:
            await line.close()

    async def predict(self, name: str | None, inputs: Sequence[Any], size: int, num_alternatives: int = 0) -> Any:
        """Give the rows of inputs; of questions with so many answers each."""
        model = self._model(name, "predict")
        if num_alternatives and model.kind != "spans":
            message = f"alternatives={num_alternatives}: has no effect on a model of kind {model.kind}; leave it out"
            raise RefusedError(400, "bad_input", message)
        return await self._line.ask(("predict", model, num_alternatives), self._few(inputs), size)

    async def embed(self, name: str | None, texts: Sequence[Any], size: int) -> tuple[str, Any]:
        """Give the name of the model, and the vectors of texts, (n, D)."""
        model = self._model(name, "embed")
        return model.name, await self._line.ask(("embed", model), self._few(texts), size)

    async def view(self, name: str | None, given: Any, size: int) -> Any:
        """Give the page of a look into a model at an input."""
        return await self._views.ask(self._model(name, "view"), given, size)

    async def search(self, question: str, order: str | None, top_k: int, size: int) -> Any:
        """Give passages, and the answers in them."""
        if self._searcher is None:
            raise RefusedError(404, "no_search", "no library to search; start the server with index=library.db")
        return await self._searches.ask(self._searcher, (question, order, top_k), size)

    def _model(self, name: str | None, what: str) -> Served:
        models = self.models
        if name is None:
            fitting = [each for each in models.values() if what != "predict" or each.can_predict]
            if not fitting:
                raise RefusedError(
                    400, "no_head", "no model here has a head to predict with; POST /embed gives vectors"
                )
            return fitting[0]
        if name not in models:
            hint = nearest(name, models) or f"; there are {', '.join(models)}"
            raise RefusedError(404, "no_model", f"no model {name!r:.80}{hint}")
        if what == "predict" and not models[name].can_predict:
            raise RefusedError(
                400, "no_head", f"model {name!r} has no head to predict with; POST /embed gives its vectors"
            )
        return models[name]

    def _few(self, inputs: Sequence[Any]) -> Sequence[Any]:
        if len(inputs) > self.settings.max_inputs:
            what = f"inputs: {len(inputs):,} of them; expected at most {self.settings.max_inputs:,}"
            raise RefusedError(413, "too_large", f"{what}; send several requests")
        return inputs

    def _open(self) -> tuple[dict[str, Served], Searcher | None]:
        models, index = open_models(self.settings), self.settings.index
        return models, None if index is None else _open_searcher(self.settings, index, models)

    def _use(self, models: dict[str, Served], searcher: Searcher | None) -> None:
        self.models, self._searcher = models, searcher
        self.metrics.loads.labels("done").inc()
        for name, model in models.items():
            self.metrics.load_seconds.labels(name).set(model.load_seconds)

    def _answer(self, kind: tuple[Any, ...], asked: list[Any]) -> list[Any]:
        """Answer requests of one kind; called by the thread of the line."""
        what, of, *further = kind
        answers, counts = (of.predict if what == "predict" else of.embed)(asked, self.settings.max_tokens, *further)
        if counts.num_sequences:
            self.metrics.sequences.observe(counts.num_sequences)
            self.metrics.tokens.observe(counts.num_tokens)
        return list(answers)


def _open_searcher(settings: ServeSettings, index: str, models: dict[str, Served]) -> Searcher:
    """Open the library, with the first model that answers questions as its reader."""
    reader = next((for_another_thread(each.predictor) for each in models.values() if each.kind == "spans"), None)
    glossary = None if settings.glossary is None else read_glossary(Path(settings.glossary))
    return Searcher(index, reader, settings.both, settings.candidates, glossary)
