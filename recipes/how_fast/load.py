"""`bertkit serve` under load for minutes: a mixture of requests, while workers are killed, models loaded again, and the server stopped at the end.

    python recipes/how_fast/load.py --model-dir runs/sst2/model --text sentences.txt --num-clients 64 --minutes 60 --num-requests 100000

Each client sends its next request as soon as it has the previous response, or later, so that `--num-requests` fill the time. Two more
clients send theirs in small parts, and leave every second time without reading. All requests are sent alone before, and every response
must have the same numbers. Every eighth of the time the newest worker is killed, or in the first half the models are loaded again. The
oldest worker lives through all of it; its memory is reported.
"""

import asyncio
import contextlib
import json
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from common import BERTKIT, MODEL, PRECISION, TEXTS, Options, parsed
from numpy.typing import NDArray
from rounds import report
from serving import CLIENTS, SECONDS_TO_START, TOLERANCE, given, quantile

from bertkit.base.text_files import JsonValue
from bertkit.display.page import Table

PATHS = {"/predict": ("inputs", 6), "/embed": ("inputs", 3), "/v1/embeddings": ("input", 1)}  # field, and frequency
NUM_REQUESTS = 400  # different ones
NUM_TEXTS = (1, 1, 1, 4)  # in a request
NUM_SLOW = 2  # clients
PART_BYTES, PART_SECONDS = 16, 0.02  # what a slow client sends at once, and how long it then waits
EVENTS = ("reload", "kill", "reload", "kill", "kill", "kill", "kill")
STOP_SECONDS = 60.0
MOST_GROWTH = 1.1  # of the memory, from the third quarter of the time to the last; reloads are over by then
MINUTES: Options = {
    "--minutes": {"type": float, "default": 60.0},
    "--num-requests": {"type": int, "help": "in all that time; without it, as many as have responses"},
    "--workers": {"type": int, "default": 2, "help": "processes of the server, two or more"},
}


@dataclass
class Load:
    """A server under load, and what its clients have seen."""

    port: int
    requests: list[bytes]
    tolerance: float
    pause: float  # seconds between two requests of a client, if the response is there by then
    expected: list[NDArray[np.float64]] = field(default_factory=list)  # the numbers in the response to each request
    counts: Counter[str] = field(default_factory=Counter)  # of statuses, and of what went wrong
    latencies: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)  # of the oldest worker, each second
    is_over: bool = False

    async def ask_alone(self) -> None:
        """Send each request alone, and keep the numbers of its response."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for request in self.requests:
            writer.write(request)
            self.expected.append(numbers_of(await response_of(reader)))
        writer.close()

    async def client(self, place: int, is_slow: bool = False) -> None:
        """Send requests until the load is over; connect again when the server has closed the connection."""
        rng, send = random.Random(place), self.send_slowly if is_slow else self.send
        due = time.monotonic() + self.pause * rng.random()
        while not self.is_over:
            with contextlib.suppress(ConnectionRefusedError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    while not (self.is_over or reader.at_eof()) and await send(
                        reader, writer, rng.randrange(len(self.requests))
                    ):
                        due = max(due + self.pause, time.monotonic())
                        await asyncio.sleep(due - time.monotonic())
                except (OSError, asyncio.IncompleteReadError):
                    self.counts["lost, of slow clients" if is_slow else "lost"] += 1
                writer.close()
            await asyncio.sleep(0.01)

    async def send(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        """Send a request, and check the numbers of its response; return whether the connection stays open."""
        asked_at = time.perf_counter()
        writer.write(self.requests[number])
        response = await response_of(reader)
        self.latencies.append(time.perf_counter() - asked_at)
        self.counts[f"status {response.status}"] += 1
        if response.status == 200:
            found, expected = numbers_of(response), self.expected[number]
            is_right = found.shape == expected.shape and np.allclose(found, expected, rtol=0, atol=self.tolerance)
            self.counts["wrong"] += not is_right
        return response.is_open

    async def send_slowly(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        """Send a request in small parts; with an odd number leave then, without reading the response."""
        request = self.requests[number]
        for start in range(0, len(request), PART_BYTES):
            writer.write(request[start : start + PART_BYTES])
            await asyncio.sleep(PART_SECONDS)
        if number % 2:
            self.counts["left by slow clients"] += 1
            return False
        return (await response_of(reader)).is_open

    async def disturb(self, server: psutil.Process, seconds: float) -> None:
        """Kill the newest worker, and in the first half of the time by turns load the models again."""
        for event in EVENTS:
            await asyncio.sleep(seconds / (len(EVENTS) + 1))
            if event == "reload":
                server.send_signal(signal.SIGHUP)
            else:
                workers_of(server)[-1].kill()

    async def watch(self, worker: psutil.Process) -> None:
        """Note the memory of a worker each second."""
        while True:
            self.megabytes.append(worker.memory_info().rss / 1e6)
            await asyncio.sleep(1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the load, report what was seen, and fail if a response was wrong, lost without reason, or memory has grown."""
    args = parsed(__doc__, arguments, MODEL, PRECISION, TEXTS, CLIENTS, MINUTES)
    with tempfile.TemporaryDirectory() as folder:
        model_dir, texts = given(args, Path(folder))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [*BERTKIT, "serve", f"model_dir={model_dir}", f"port={port}", f"workers={args.workers}"]
        command += [f"device={args.device}", f"precision={args.precision}"]
        seconds = 60 * args.minutes
        pause = args.num_clients * seconds / args.num_requests if args.num_requests else 0.0
        load = Load(port, requests_of(texts), TOLERANCE[args.precision], pause)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                code = asyncio.run(run(load, psutil.Process(process.pid), args.num_clients, seconds))
            finally:
                process.terminate()
    quarter = len(load.megabytes) // 4
    megabytes = [round(statistics.median(load.megabytes[n * quarter : (n + 1) * quarter])) for n in range(4)]
    counts = dict(sorted(load.counts.items()))
    result = {
        "name": f"bertkit serve workers={args.workers}",
        "rate": len(load.latencies) / seconds,
        "p50_seconds": quantile(load.latencies, 0.5),
        "p99_seconds": quantile(load.latencies, 0.99),
        "counts": counts,
        "megabytes": megabytes,
        "exit_code": code,
    }
    rows = [(name, f"{count:,}") for name, count in counts.items()]
    rows += [("p50, p99", f"{1000 * result['p50_seconds']:.0f} ms, {1000 * result['p99_seconds']:.0f} ms")]
    rows += [("MB of the oldest worker, in each quarter of the time", ", ".join(map(str, megabytes)))]
    rows += [("kills, reloads, exit code", f"{EVENTS.count('kill')}, {EVENTS.count('reload')}, {code}")]
    report(args, "requests/s", [result], [Table("", ("", ""), rows)])
    most_lost = args.num_clients * EVENTS.count("kill")
    if load.counts["wrong"] or load.counts["lost"] > most_lost or code or megabytes[3] > MOST_GROWTH * megabytes[2]:
        raise SystemExit(
            "error: a wrong response, more lost than a kill explains, a fault at the stop, or growing memory"
        )


async def run(load: Load, server: psutil.Process, num_clients: int, seconds: float) -> int:
    """Put the load on the server, then stop it under way; return its exit code."""
    await until_ready(load.port)
    await load.ask_alone()
    clients = [asyncio.create_task(load.client(number)) for number in range(num_clients)]
    clients += [asyncio.create_task(load.client(-1 - number, is_slow=True)) for number in range(NUM_SLOW)]
    watching = asyncio.create_task(load.watch(workers_of(server)[0]))
    disturbing = asyncio.create_task(load.disturb(server, seconds))
    await asyncio.sleep(seconds)
    await disturbing
    watching.cancel()
    server.terminate()  # while the clients are asking
    code = int(await asyncio.to_thread(server.wait, STOP_SECONDS))
    load.is_over = True
    await asyncio.gather(*clients)
    return code


async def until_ready(port: int) -> None:
    """Wait until the server responds."""
    until = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < until:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await response_of(reader)
            writer.close()
            return
        await asyncio.sleep(0.2)
    raise SystemExit("error: the server did not start; pip install '.[serve]' in the directory of bertkit")


def workers_of(server: psutil.Process) -> list[psutil.Process]:
    """Return the worker processes of a server, the oldest first."""
    own = [child for child in server.children() if any("spawn_main" in word for word in child.cmdline())]
    return sorted(own, key=psutil.Process.create_time)


def requests_of(texts: Sequence[str]) -> list[bytes]:
    """Return a mixture of requests: several paths, one text or a few."""
    rng, requests = random.Random(0), []
    weights = [weight for _, weight in PATHS.values()]
    for path in rng.choices(list(PATHS), weights, k=NUM_REQUESTS):
        body = json.dumps({PATHS[path][0]: rng.choices(texts, k=rng.choice(NUM_TEXTS))}).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        requests.append(head.encode() + body)
    return requests


@dataclass(frozen=True)
class Response:
    """The response to a request."""

    status: int
    is_open: bool  # whether the server keeps the connection
    body: bytes


async def response_of(reader: asyncio.StreamReader) -> Response:
    """Read a response."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    return Response(int(head[9:12]), b"connection: close" not in head, await reader.readexactly(length))


def numbers_of(response: Response) -> NDArray[np.float64]:
    """Return all numbers with a fraction in a response, in their order."""
    return np.array(list(_numbers(json.loads(response.body))))


def _numbers(value: JsonValue) -> Iterator[float]:
    match value:
        case float():
            yield value
        case list() | dict():
            for inner in value.values() if isinstance(value, dict) else value:
                yield from _numbers(inner)


if __name__ == "__main__":
    main()
