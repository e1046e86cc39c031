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

from bertkit.bench.workload import make_workload
from bertkit.errors import InputError, ParityError
from bertkit.launch.world import own_command
from bertkit.settings.bench import BenchSettings
from bertkit.view.bench_page import Findings
from bertkit.view.charts import BarChart
from bertkit.view.page import Table
from bertkit.view.progress import Progress

SAME_PROBABILITY = 1e-4  # float32, by other kernels and beside other texts
SYSTEMS = {
    "pipeline": "FastAPI and a transformers pipeline",
    "padded": "FastAPI and transformers, padded batches",
    "bertkit": "bertkit serve",
}
SECONDS_TO_START = 120.0


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
        workload = make_workload(settings, "serve", Path(scratch))
        model_dir, texts = str(workload.model_dir), workload.texts
        ports = {each: stack.enter_context(_server(each, model_dir, settings.num_threads)) for each in SYSTEMS}
        answers = {each: asyncio.run(ask_all(port, texts)) for each, port in ports.items()}
        check_answers(answers)
        found = {each: Load() for each in SYSTEMS}
        progress = stack.enter_context(Progress("measuring", (settings.rounds + 1) * len(SYSTEMS)))
        for number in range(settings.rounds + 1):
            for done, each in enumerate(SYSTEMS if number % 2 else reversed(SYSTEMS), 1):
                load = asyncio.run(drive(ports[each], texts, settings.num_clients, settings.round_seconds))
                if number:  # the first round warms up
                    found[each].latencies += load.latencies
                    found[each].rates.append(len(load.latencies) / load.seconds)
                progress.advance(number * len(SYSTEMS) + done)
    return _findings(found)


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
        rows.append((SYSTEMS[each], f"{rate:.1f}", f"{half * 1000:.0f} ms", f"{most * 1000:.0f} ms",
                     f"{to['pipeline']:.2f}", f"{to['padded']:.2f}"))  # fmt: skip
        results.append({"name": SYSTEMS[each], "rate": rate, "p50_seconds": half, "p99_seconds": most, "ratios": ratios,
                        "num_requests": len(load.latencies)})  # fmt: skip
        bars.append((SYSTEMS[each], to["pipeline"], min(ratios["pipeline"]), max(ratios["pipeline"])))
    head = ("", "requests/s", "p50", "p99", "to the pipeline", "to padded batches")
    chart = BarChart(
        "Requests a second beside the first row: median of the rounds, from the lowest to the highest", bars
    )
    return Findings("requests/s", results, [Table("", head, rows)], [chart])


@contextlib.contextmanager
def _server(kind: str, model_dir: str, num_threads: int) -> Iterator[int]:
    """Run a server; give its port once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bertkit.bench.serving_hugging_face", kind, model_dir, str(port), str(num_threads)]
    if kind == "bertkit":
        command = own_command("serve", f"model_dir={model_dir}", f"port={port}", "device=cpu")
    threads = {"OMP_NUM_THREADS": str(num_threads), "RAYON_NUM_THREADS": str(num_threads)}
    environment = os.environ | threads | {"TOKENIZERS_PARALLELISM": "true"}
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
        for ours, theirs in zip(rows, answers["pipeline"], strict=True):
            worst = max(abs(ours[label] - theirs[label]) for label in theirs)
            if not worst <= SAME_PROBABILITY:
                raise ParityError(
                    f"bench: {SYSTEMS[each]} and {SYSTEMS['pipeline']} differ by {worst:.1e}, expected at most {SAME_PROBABILITY:.0e}"
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
