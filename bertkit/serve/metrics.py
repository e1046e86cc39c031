"""What a worker has done, in Prometheus' text format.

Source: Prometheus documentation, Exposition formats, text format 0.0.4.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 32768, 131072)


class Histogram:
    """How often values were up to each of some bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str = "") -> Iterable[str]:
        """Write it as Prometheus reads it: each bound counts all below it."""
        so_far, comma = 0, "," if labels else ""
        for bound, count in zip((*map("{:g}".format, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            yield f'{name}_bucket{{{labels}{comma}le="{bound}"}} {so_far}'
        own = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{own} {self.total:.9g}"
        yield f"{name}_count{own} {so_far}"


class Metrics:
    """The figures of one worker.

    Args:
        worker: its number.
        num_workers: among how many; one of them answers, whichever took the connection.
        queue: gives how many requests wait.
    """

    def __init__(self, worker: int, num_workers: int, queue: Callable[[], int]) -> None:
        self.worker, self.num_workers, self.queue = worker, num_workers, queue
        self.requests: dict[tuple[str, int], int] = {}
        self.seconds: dict[str, Histogram] = {}
        self.sequences, self.tokens = Histogram(SEQUENCES), Histogram(TOKENS)
        self.load_seconds: dict[str, float] = {}
        self.num_loads = {"done": 0, "failed": 0}

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.requests[path, status] = self.requests.get((path, status), 0) + 1
        if path not in self.seconds:
            self.seconds[path] = Histogram(SECONDS)
        self.seconds[path].observe(seconds)

    def batch(self, num_sequences: int, num_tokens: int) -> None:
        """Count a batch that was computed."""
        self.sequences.observe(num_sequences)
        self.tokens.observe(num_tokens)

    def text(self) -> str:
        """Write all of them."""
        of = "" if self.num_workers == 1 else f", of worker {self.worker} of {self.num_workers} alone"
        lines: list[str] = []

        def family(name: str, kind: str, what: str, rows: Iterable[str]) -> None:
            lines.extend((f"# HELP {name} {what}{of}.", f"# TYPE {name} {kind}", *rows))

        counted = sorted(self.requests.items())
        family("bertkit_requests_total", "counter", "Requests answered, by path and status",
               (f'bertkit_requests_total{{path="{path}",status="{status}"}} {n}' for (path, status), n in counted))  # fmt: skip
        name = "bertkit_request_seconds"
        family(name, "histogram", "From the headers of a request to the end of its answer",
               (line for path, found in sorted(self.seconds.items()) for line in found.lines(name, f'path="{path}"')))  # fmt: skip
        family("bertkit_queue_requests", "gauge", "Requests that wait for the model",
               [f"bertkit_queue_requests {self.queue()}"])  # fmt: skip
        family("bertkit_batch_sequences", "histogram", "Sequences that were computed together",
               self.sequences.lines("bertkit_batch_sequences"))  # fmt: skip
        family("bertkit_batch_tokens", "histogram", "Tokens that were computed together",
               self.tokens.lines("bertkit_batch_tokens"))  # fmt: skip
        loads = sorted(self.load_seconds.items())
        family("bertkit_model_load_seconds", "gauge", "How long a model took to load",
               (f'bertkit_model_load_seconds{{model="{_escaped(model)}"}} {seconds:.6g}' for model, seconds in loads))  # fmt: skip
        family("bertkit_loads_total", "counter", "How often all models were loaded, or could not be",
               (f'bertkit_loads_total{{result="{result}"}} {count}' for result, count in self.num_loads.items()))  # fmt: skip
        return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
