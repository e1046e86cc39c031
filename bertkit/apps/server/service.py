"""The models of a worker process, their queues, and the Prometheus metrics; all of it runs in the event loop."""

import asyncio
import os
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.multiprocess import MultiProcessCollector

from bertkit.apps.retrieval.encoders import encoder_of
from bertkit.apps.retrieval.library import Library
from bertkit.apps.retrieval.ranking import Searcher, SearchResult, read_glossary
from bertkit.apps.server.bodies import EmbedBody, PredictBody, SearchBody, ViewBody
from bertkit.apps.server.models import Embedded, RequestResults, ResultT, ServedModel, open_models, with_own_tokenizer
from bertkit.apps.server.queues import Queue, RefusedError
from bertkit.base.errors import BertkitError, nearest, say
from bertkit.inference.predictor import open_translator
from bertkit.settings.serve import ServeSettings
from bertkit.tasks.task import Row
from bertkit.train import micro_batches, processes

MAX_VIEWS = 8  # waiting requests for /view, which take seconds each
# upper bounds of the histograms' buckets
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 32768, 131072)

disable_created_metrics()  # type: ignore[no-untyped-call]  # the `_created` time of every counter


class Metrics:
    """The metrics of the server; the workers of a server share files, so GET /metrics shows their sums."""

    def __init__(self, num_workers: int) -> None:
        self.shown = own = CollectorRegistry()
        if num_workers > 1:
            self.shown = CollectorRegistry()
            MultiProcessCollector(self.shown)  # type: ignore[no-untyped-call]
        self.requests = Counter(
            "bertkit_requests", "Requests answered, by path and status", ("path", "status"), registry=own
        )
        self.seconds = Histogram(
            "bertkit_request_seconds", "Time of a request", ("path",), registry=own, buckets=SECONDS
        )
        self.waiting = Gauge("bertkit_queue_requests", "Requests waiting", registry=own, multiprocess_mode="livesum")
        self.sequences = Histogram("bertkit_batch_sequences", "Sequences of a batch", registry=own, buckets=SEQUENCES)
        self.tokens = Histogram("bertkit_batch_tokens", "Tokens of a batch", registry=own, buckets=TOKENS)
        self.load_seconds = Gauge(
            "bertkit_model_load_seconds", "Loading time", ("model",), registry=own, multiprocess_mode="livemax"
        )
        self.loads = Counter("bertkit_loads", "Loads of all models", ("result",), registry=own)
        self.loads.labels("failed")  # 0 until the first failure

    def record(self, batch: RequestResults[ResultT]) -> list[ResultT | Exception]:
        """Count the work of a batch; return its results."""
        if batch.num_sequences:
            self.sequences.observe(batch.num_sequences)
            self.tokens.observe(batch.num_tokens)
        return batch.results


@dataclass(frozen=True)
class _Predict:
    """Predictions of a model."""

    metrics: Metrics
    model: ServedModel
    max_tokens: int
    num_alternatives: int

    def compute(self, inputs: list[Sequence[object]]) -> list[list[Row] | Exception]:
        return self.metrics.record(self.model.predict_requests(inputs, self.max_tokens, self.num_alternatives))


@dataclass(frozen=True)
class _Embed:
    """Vectors of a model."""

    metrics: Metrics
    model: ServedModel
    max_tokens: int
    normalize: bool | None

    def compute(self, inputs: list[Sequence[object]]) -> list[Embedded | Exception]:
        return self.metrics.record(self.model.embed_requests(inputs, self.max_tokens, self.normalize))


@dataclass(frozen=True, eq=False)
class _View:
    """A model's page about an input; computed alone."""

    model: ServedModel
    settings: ServeSettings

    def compute(self, inputs: list[object]) -> list[str]:
        return [self.model.view(value, self.settings) for value in inputs]


@dataclass(frozen=True)
class _Search:
    """Passages for a question."""

    searcher: Searcher

    def compute(self, inputs: list[SearchBody]) -> list[SearchResult]:
        return [self.searcher.search(body.question, body.order, body.top_k, body.where) for body in inputs]


class Service:
    """The models of a worker and their queues; raises BertkitError if a model cannot be loaded."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings, self.is_stopping, self._is_loading = settings, False, False
        self.connections: Collection[object] = ()  # those of this worker
        device = processes.choose_device(settings.device)
        models, searcher = self._open()
        self.batch_tokens = settings.batch_tokens or micro_batches.AUTO_MICRO_TOKENS[device.type]
        max_waiting, seconds = settings.queue_requests, settings.request_seconds
        # slow requests have their own threads, so predictions do not wait for them
        self.metrics = Metrics(settings.workers)
        waiting = self.metrics.waiting
        self._predictions = Queue(max_waiting, self.batch_tokens, seconds, waiting)
        self._searches = Queue(max_waiting, 1, seconds, waiting)
        self._views = Queue(MAX_VIEWS, 1, seconds, waiting)
        self._queues = (self._predictions, self._searches, self._views)
        self._replace_models(models, searcher)

    @property
    def orders(self) -> list[str]:
        """The orders of passages that a search may ask for, the best one last; none without a library."""
        return [] if self._searcher is None else self._searcher.orders

    async def reload(self) -> None:
        """Load the models again, while the old models serve; if one cannot be loaded, all old models stay."""
        if self._is_loading or self.is_stopping:
            return
        self._is_loading, started_at = True, time.perf_counter()
        worker = "" if self.settings.workers == 1 else f"worker {os.getpid()}: "
        try:
            self._replace_models(*await asyncio.to_thread(self._open))
            say(f"{worker}models loaded again in {time.perf_counter() - started_at:.1f} s")
        except (BertkitError, OSError) as error:
            self.metrics.loads.labels("failed").inc()
            say(f"error: {worker}{error}; the old models stay", file=sys.stderr)
        finally:
            self._is_loading = False

    def refuse_all(self) -> None:
        """Answer all requests that wait or are computed with an error."""
        for queue in self._queues:
            queue.refuse_all(
                RefusedError(503, "took_too_long", "a text takes the tokenizer too long; the server starts again")
            )

    async def close(self) -> None:
        """Compute all waiting requests, then end the threads."""
        for queue in self._queues:
            await queue.close()

    def model(self, name: str | None, needs_head: bool = False) -> ServedModel:
        """Return the model of a name, or the first one; raises RefusedError if there is none, or it has no head."""
        models = self.models
        if name is not None and name not in models:
            hint = nearest(name, models) or f"; there are {', '.join(models)}"
            raise RefusedError(404, "no_model", f"no model {name!r:.80}{hint}")
        candidates = models.values() if name is None else [models[name]]
        model = next((model for model in candidates if model.kind != "embedding" or not needs_head), None)
        if model is None:
            message = "no prediction head" + ("" if name is None else f" in model {name!r}")
            raise RefusedError(400, "no_head", f"{message}; POST /embed gives vectors")
        return model

    async def predict(self, body: PredictBody, size: int) -> list[Row]:
        """Return a row for each input; for questions, with the alternatives."""
        model, number = self.model(body.model, needs_head=True), body.alternatives
        if number and model.predictor.task.head != "span":
            message = f"alternatives={number}: has no effect on a model of kind {model.kind}; leave it out"
            raise RefusedError(400, "bad_input", message)
        self._check_count(body.inputs)
        call = _Predict(self.metrics, model, self.settings.max_tokens, number)
        return await self._predictions.submit(call, body.inputs, size)

    async def embed(self, body: EmbedBody, size: int) -> Embedded:
        """Return the vectors of texts."""
        model = self.model(body.model)
        self._check_count(body.inputs)
        call = _Embed(self.metrics, model, self.settings.max_tokens, body.normalize)
        return await self._predictions.submit(call, body.inputs, size)

    async def view(self, body: ViewBody, size: int) -> str:
        """Return the HTML page that explains an input."""
        return await self._views.submit(_View(self.model(body.model), self.settings), body.input, size)

    async def search(self, body: SearchBody, size: int) -> SearchResult:
        """Return passages, and the answers in them."""
        if self._searcher is None:
            raise RefusedError(404, "no_search", "no library to search; start the server with index=library.db")
        return await self._searches.submit(_Search(self._searcher), body, size)

    def _check_count(self, inputs: Sequence[object]) -> None:
        if len(inputs) > self.settings.max_inputs:
            message = f"inputs: {len(inputs):,} inputs; expected at most {self.settings.max_inputs:,}"
            raise RefusedError(413, "too_large", f"{message}; send several requests")

    def _open(self) -> tuple[dict[str, ServedModel], Searcher | None]:
        """Load the models; open the library, with the first question answering model as its reader."""
        settings, models = self.settings, open_models(self.settings)
        if settings.index is None:
            return models, None
        readers = (model.predictor for model in models.values() if model.predictor.task.head == "span")
        reader = next(map(with_own_tokenizer, readers), None)
        glossary = read_glossary(settings.glossary)
        library = Library(settings.index)
        more = (glossary, open_translator(settings), encoder_of(library, settings.encoder, settings.device))
        return models, Searcher(library, reader, settings.both, settings.candidates, *more)

    def _replace_models(self, models: dict[str, ServedModel], searcher: Searcher | None) -> None:
        self.models, self._searcher = models, searcher
        self.metrics.loads.labels("done").inc()
        for name, model in models.items():
            self.metrics.load_seconds.labels(name).set(model.load_seconds)
