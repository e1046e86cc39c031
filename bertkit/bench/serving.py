"""`bertkit serve` beside servers of the same classifier with transformers: many clients ask, each again as soon as it has its answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertkit.bench.workload import make_workload, some_lines
from bertkit.errors import InputError, ParityError
from bertkit.launch.world import PACKAGE, own_command
from bertkit.settings.bench import BenchSettings
from bertkit.view.bench_page import Findings
from bertkit.view.charts import BarChart
from bertkit.view.page import Table
from bertkit.view.progress import Progress

SAME_PROBABILITY = 1e-4  # float32, by other kernels and beside other texts
SECONDS_TO_START = 120.0
NUM_CHECKED = 64  # texts whose answers are compared


@dataclass(frozen=True)
class Server:
    """One that is measured; all have as many threads."""

    name: str
    kind: str  # of `SERVERS`, or bertkit
    has_processes: bool = False  # of one thread each; else one process


SERVERS = (
    Server("FastAPI and a transformers pipeline", "pipeline"),
    Server("the same, one request after another, in processes", "in_turn", True),
    Server("FastAPI and transformers, padded batches", "padded"),
    Server("the same, in processes", "padded", True),
    Server("bertkit serve", "bertkit"),
    Server("bertkit serve, in workers", "bertkit", True),
)
FIRST, PADDED = SERVERS[0].name, SERVERS[2].name  # that all others are compared with


@dataclass
class Load:
    """What clients found out about a server in a round, or in several."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)  # in seconds
    rates: list[float] = field(default_factory=list)  # requests a second, of each round

    def quantile(self, share: float) -> float:
        """Give the latency that a share of the requests stays within."""
        return sorted(self.latencies)[min(int(share * len(self.latencies)), len(self.latencies) - 1)]


def compare_serving(settings: BenchSettings) -> Findings:
    """Load all servers in turn."""
    with tempfile.TemporaryDirectory(prefix="bertkit-bench-") as scratch, contextlib.ExitStack() as stack:
        model_dir, texts = _given(settings, Path(scratch))
        ports = {
            server.name: stack.enter_context(_running(server, model_dir, settings.num_threads)) for server in SERVERS
        }
        check_answers({each: asyncio.run(ask_all(port, texts[:NUM_CHECKED])) for each, port in ports.items()})
        found = {each: Load() for each in ports}
        progress = stack.enter_context(Progress("measuring", (settings.rounds + 1) * len(ports)))
        for number in range(settings.rounds + 1):
            for done, each in enumerate(ports if number % 2 else reversed(ports), 1):
                load = asyncio.run(drive(ports[each], texts, settings.num_clients, settings.round_seconds))
                if number:  # the first round warms up
                    found[each].latencies += load.latencies
                    found[each].rates.append(len(load.latencies) / load.seconds)
                progress.advance(number * len(ports) + done)
    return _findings(found)


def _given(settings: BenchSettings, scratch: Path) -> tuple[str, Sequence[str]]:
    """Give the model and the texts; what the user does not give is made, which takes a while."""
    if settings.model_dir is not None and settings.text is not None:
        return settings.model_dir, some_lines(settings.text, settings.num_texts)
    workload = make_workload(settings, "serve", scratch)
    return str(workload.model_dir), workload.texts


def _findings(found: dict[str, Load]) -> Findings:
    rows, results, bars = [], [], []
    for each, load in found.items():
        rate = statistics.median(load.rates)
        ratios = {
            other: [ours / theirs for ours, theirs in zip(load.rates, found[other].rates, strict=True)]
            for other in found
        }
        to = {other: statistics.median(values) for other, values in ratios.items()}
        half, most = load.quantile(0.5), load.quantile(0.99)
        rows.append((each, f"{rate:.1f}", f"{half * 1000:.0f} ms", f"{most * 1000:.0f} ms",
                     f"{to[FIRST]:.2f}", f"{to[PADDED]:.2f}"))  # fmt: skip
        results.append({"name": each, "rate": rate, "p50_seconds": half, "p99_seconds": most, "ratios": ratios,
                        "num_requests": len(load.latencies)})  # fmt: skip
        bars.append((each, to[FIRST], min(ratios[FIRST]), max(ratios[FIRST])))
    head = ("", "requests/s", "p50", "p99", "to the first", "to padded batches")
    chart = BarChart(
        "Requests a second beside the first row: median of the rounds, from the lowest to the highest", bars
    )
    return Findings("requests/s", results, [Table("", head, rows)], [chart])


@contextlib.contextmanager
def _running(server: Server, model_dir: str, num_threads: int) -> Iterator[int]:
    """Run a server; give its port once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes, threads = (num_threads, 1) if server.has_processes else (1, num_threads)
    sizes = (str(port), str(processes), str(threads))
    command = [sys.executable, "-P", "-m", "bertkit.bench.serving_hugging_face", server.kind, model_dir, *sizes]
    if server.kind == "bertkit":
        command = own_command("serve", f"model_dir={model_dir}", f"port={port}", "device=cpu", f"workers={processes}")
    limits = {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
    environment = os.environ | limits | {"TOKENIZERS_PARALLELISM": "true", "PYTHONPATH": str(PACKAGE.parents[1])}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            asyncio.run(_until_it_answers(port, process))
            yield port
        finally:
            process.terminate()


async def _until_it_answers(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + SECONDS_TO_START
    while True:
        with contextlib.suppress(OSError, EOFError, ValueError):
            await ask_all(port, ["a text"])
            return
        if process.poll() is not None or time.monotonic() > until:
            raise InputError("bench: a server did not start; pip install fastapi, and 'bertkit[serve]'")
        await asyncio.sleep(0.2)


def check_answers(answers: dict[str, list[dict[str, float]]]) -> None:
    """Refuse to compare servers that say different things."""
    for each, rows in answers.items():
        for ours, theirs in zip(rows, answers[FIRST], strict=True):
            worst = max(abs(ours[label] - theirs[label]) for label in theirs)
            if not worst <= SAME_PROBABILITY:
                raise ParityError(
                    f"bench: {each} and {FIRST} differ by {worst:.1e}, expected at most {SAME_PROBABILITY:.0e}"
                )


def request_of(text: str) -> bytes:
    """Write a request for one text."""
    body = json.dumps({"inputs": [text]}).encode()
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read an answer: its status and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    return int(head[9:12]), await reader.readexactly(length)


async def ask_all(port: int, texts: Sequence[str]) -> list[dict[str, float]]:
    """Ask for each text in turn; give its probabilities."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for text in texts:
        writer.write(request_of(text))
        status, body = await answer_of(reader)
        if status != 200:
            raise ValueError(body)
        found.append(json.loads(body)["predictions"][0]["probabilities"])
    writer.close()
    return found


async def drive(port: int, texts: Sequence[str], num_clients: int, seconds: float) -> Load:
    """Let clients ask for some time, each from another place of the texts, over connections that stay open."""
    requests = [request_of(text) for text in texts]
    load, started_at = Load(), time.perf_counter()

    async def client(first: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        number = first * len(requests) // num_clients
        while (asked_at := time.perf_counter()) < started_at + seconds:
            writer.write(requests[number % len(requests)])
            status, body = await answer_of(reader)
            if status != 200:
                raise ParityError(f"bench: status {status}: {body.decode(errors='replace')[:200]}")
            load.latencies.append(time.perf_counter() - asked_at)
            number += 1
        writer.close()

    await asyncio.gather(*map(client, range(num_clients)))
    load.seconds = time.perf_counter() - started_at
    return load
