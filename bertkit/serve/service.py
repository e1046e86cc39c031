"""The models of a worker, the lines before them, and how they start, change and stop; all of it called by the event loop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.config import nearest
from bertkit.errors import BertkitError, say
from bertkit.run.searching import Searcher, read_glossary
from bertkit.serve.batching import Job, Line, RefusedError
from bertkit.serve.metrics import Metrics
from bertkit.serve.models import Served, for_another_thread, open_models
from bertkit.settings.serve import ServeSettings
from bertkit.train import processes, shares

MOST_VIEWS = 8  # that wait: each takes seconds


class Service:
    """What a worker serves.

    Args:
        settings: of the command.
        worker: its number, from 1.
    """

    def __init__(self, settings: ServeSettings, worker: int) -> None:
        self.settings, self.worker = settings, worker
        self.is_stopping = False
        self._models: dict[str, Served] | None = None
        self._searcher: Any = None
        self._is_loading = False
        device = processes.choose_device(settings.device)
        batch_tokens = settings.batch_tokens or shares.TOKENS_AT_ONCE[device.type]
        seconds = settings.request_seconds
        # what takes seconds has threads of its own, so that predictions share the processor with it, and do not wait for it
        self._line = Line(self._answer, settings.queue_requests, batch_tokens, seconds)
        self._searches = Line(self._answer_searches, settings.queue_requests, 1, seconds)
        self._views = Line(self._answer_views, MOST_VIEWS, 1, seconds)
        self._lines = (self._line, self._searches, self._views)
        self.metrics = Metrics(worker, settings.workers, lambda: sum(map(len, self._lines)))

    @property
    def has_search(self) -> bool:
        """Whether there is a library to search."""
        return self._searcher is not None

    def ready(self) -> dict[str, Served]:
        """Give the models by their names.

        Raises:
            RefusedError: they are being loaded.
        """
        if self._models is None:
            raise RefusedError(
                503, "loading", "the models are being loaded; try again in a moment", {"retry-after": "2"}
            )
        return self._models

    async def load(self) -> None:
        """Load the models, and let them take the place of those that are there.

        Raises:
            BertkitError: one cannot be loaded; those that are there stay.
        """
        try:
            models, searcher = await asyncio.to_thread(self._open)
        except Exception:
            self.metrics.num_loads["failed"] += 1
            raise
        self._models, self._searcher = models, searcher
        self.metrics.num_loads["done"] += 1
        self.metrics.load_seconds = {name: each.load_seconds for name, each in models.items()}

    async def reload(self) -> None:
        """Load the models anew, beside those that answer meanwhile."""
        if self._is_loading or self._models is None or self.is_stopping:
            return
        self._is_loading, started_at = True, time.perf_counter()
        who = "" if self.settings.workers == 1 else f"worker {self.worker}: "
        try:
            await self.load()
            say(f"{who}models loaded anew in {time.perf_counter() - started_at:.1f} s")
        except (BertkitError, OSError) as error:
            say(f"error: {who}{error}; the models that were there stay", file=sys.stderr)
        finally:
            self._is_loading = False

    async def stop(self) -> None:
        """Take no more requests, and wait until all that were taken have their answers."""
        self.is_stopping = True
        while any(line.num_open for line in self._lines):
            await asyncio.sleep(0.02)
        for line in self._lines:
            await line.close()

    async def predict(self, name: str | None, inputs: Sequence[Any], size: int, num_alternatives: int = 0) -> Any:
        """Give the rows of inputs; of questions with so many answers each."""
        model = self._model(name, "predict")
        if num_alternatives and model.kind != "spans":
            message = f"alternatives={num_alternatives}: has no effect on a model of kind {model.kind}; leave it out"
            raise RefusedError(400, "bad_input", message)
        return await self._ask(self._line, ("predict", model, num_alternatives), inputs, size)

    async def embed(self, name: str | None, texts: Sequence[Any], size: int) -> tuple[str, Any]:
        """Give the name of the model, and the vectors of texts, (n, D)."""
        model = self._model(name, "embed")
        return model.name, await self._ask(self._line, ("embed", model), texts, size)

    async def view(self, name: str | None, given: Any, size: int) -> Any:
        """Give the page of a look into a model at an input."""
        return await self._ask(self._views, ("view", self._model(name, "view")), given, size)

    async def search(self, question: str, order: str | None, top_k: int, size: int) -> Any:
        """Give passages, and the answers in them."""
        self.ready()
        if self._searcher is None:
            raise RefusedError(404, "no_search", "no library to search; start the server with index=library.db")
        given = (question, order, top_k)
        return await self._ask(self._searches, ("search", self._searcher), given, size)

    async def _ask(self, line: Line, kind: tuple[Any, ...], given: Any, size: int) -> Any:
        if self.is_stopping:
            raise RefusedError(
                503, "stopping", "the server stops; ask another one, or again when it is back", {"retry-after": "5"}
            )
        return await line.ask(kind, given, size)

    def _model(self, name: Any, what: str) -> Served:
        models = self.ready()
        if name is None:
            fitting = [each for each in models.values() if what != "predict" or each.can_predict]
            if not fitting:
                raise RefusedError(
                    400, "no_head", "no model here has a head to predict with; POST /embed gives vectors"
                )
            return fitting[0]
        if not isinstance(name, str) or name not in models:
            hint = nearest(str(name), models) or f"; there are {', '.join(models)}"
            raise RefusedError(404, "no_model", f"no model {name!r:.80}{hint}")
        if what == "predict" and not models[name].can_predict:
            raise RefusedError(
                400, "no_head", f"model {name!r} has no head to predict with; POST /embed gives its vectors"
            )
        return models[name]

    def _open(self) -> tuple[dict[str, Served], Any]:
        models = open_models(self.settings)
        return models, None if self.settings.index is None else _open_searcher(
            self.settings, self.settings.index, models
        )

    def _answer(self, jobs: Sequence[Job]) -> None:
        """Answer requests of one kind; called by the thread of the line."""
        what, of, *further = jobs[0].kind
        work = of.predict if what == "predict" else of.embed
        answers, counts = work([job.given for job in jobs], self.settings.max_tokens, *further)
        for job, answer in zip(jobs, answers, strict=True):
            job.answer = answer
        if counts.num_sequences:
            self.metrics.batch(counts.num_sequences, counts.num_tokens)

    def _answer_views(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.answer = job.kind[1].view(job.given, self.settings)

    def _answer_searches(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.answer = job.kind[1].search(*job.given)


def _open_searcher(settings: ServeSettings, index: str, models: dict[str, Served]) -> Searcher:
    """Open the library, with the first model that answers questions as its reader."""
    reader = next((for_another_thread(each.predictor) for each in models.values() if each.kind == "spans"), None)
    glossary = None if settings.glossary is None else read_glossary(Path(settings.glossary))
    return Searcher(index, reader, settings.both, settings.candidates, glossary)
