"""The figures of a worker, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 32768, 131072)

disable_created_metrics()  # type: ignore[no-untyped-call]  # the time of a figure's first count


class Metrics:
    """The figures of one worker.

    Args:
        num_workers: of the server; the one that took the connection answers.
        queue: gives the number of waiting requests.
    """

    def __init__(self, num_workers: int, queue: Callable[[], int]) -> None:
        of = "" if num_workers == 1 else f", for one of {num_workers} workers"
        self.registry = own = CollectorRegistry()
        self.requests = Counter(
            "bertkit_requests", f"Requests answered, by path and status{of}", ("path", "status"), registry=own
        )
        self.seconds = Histogram(
            "bertkit_request_seconds", f"Time of a request{of}", ("path",), registry=own, buckets=SECONDS
        )
        Gauge("bertkit_queue_requests", f"Requests waiting{of}", registry=own).set_function(queue)
        self.sequences = Histogram(
            "bertkit_batch_sequences", f"Sequences of a batch{of}", registry=own, buckets=SEQUENCES
        )
        self.tokens = Histogram("bertkit_batch_tokens", f"Tokens of a batch{of}", registry=own, buckets=TOKENS)
        self.load_seconds = Gauge("bertkit_model_load_seconds", f"Loading time{of}", ("model",), registry=own)
        self.loads = Counter("bertkit_loads", f"Loads of all models{of}", ("result",), registry=own)
        self.loads.labels("failed")  # shown before the first failure
