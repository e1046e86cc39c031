"""`bertkit serve`, compared with servers for the same classifier with FastAPI and transformers: requests per second, and their latency.

    python recipes/how_fast/serving.py --model-dir runs/sst2/model --text sentences.txt --num-threads 2 --round-seconds 20

Many clients send requests, each as soon as it has the previous response. All servers have the same number of threads.
The other servers are in `servers.py`.
"""

import argparse
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from common import (
    BERTKIT,
    MODEL,
    PRECISION,
    TEXTS,
    Options,
    new_model,
    parsed,
    prepared_text,
    some_lines,
    texts_of_mixed_lengths,
)
from rounds import Ready, check_same, report

from bertkit.base.memory import memory_here
from bertkit.display.page import Table
from bertkit.interop.load import load_tokenizer

SECONDS_TO_START = 120.0
NUM_CHECKED = 64  # texts with compared predictions
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}  # tolerance for a probability with other kernels and in other batches
SERVERS = {  # kind, and whether there is one process per thread
    "FastAPI and a transformers pipeline": ("pipeline", False),
    "the same, one request after another, in processes": ("in_turn", True),
    "FastAPI and transformers, padded batches": ("padded", False),
    "the same, in processes": ("padded", True),
    "FastAPI and transformers, sorted batches": ("sorted", False),
    "sorted batches, in processes": ("sorted", True),
    "bertkit serve": ("bertkit", False),
    "bertkit serve, in workers": ("bertkit", True),
}
FIRST, _, PADDED = tuple(SERVERS)[:3]  # ratios are relative to the first and the third
CLIENTS: Options = {
    "--model-dir": {"help": "a classifier; default: a new one"},
    "--text": {"type": Path, "help": "a file with a text per line"},
    "--num-clients": {"type": int, "default": 64},
    "--round-seconds": {"type": float, "default": 10.0},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Send requests to all servers in turn; the first round is a warm-up."""
    args = parsed(__doc__, arguments, MODEL, PRECISION, TEXTS, CLIENTS)
    latencies: dict[str, list[float]] = {name: [] for name in SERVERS}
    rates: dict[str, list[float]] = {name: [] for name in SERVERS}
    busy = dict.fromkeys(SERVERS, 0.0)  # processor time
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model_dir, texts = given(args, Path(folder))
        servers = {name: stack.enter_context(running(name, model_dir, args)) for name in SERVERS}
        answers = [asyncio.run(ask(server.port, texts[:NUM_CHECKED])) for server in servers.values()]
        check_same(SERVERS, answers, [TOLERANCE[args.precision]] * len(answers))
        for number in range(args.rounds + 1):
            for name in SERVERS if number % 2 else reversed(SERVERS):
                before = servers[name].processor_seconds()
                seconds, found = asyncio.run(drive(servers[name].port, texts, args.num_clients, args.round_seconds))
                print(f"round {number}, {name}: {len(found) / seconds:.1f} requests/s", flush=True)
                if number:
                    busy[name] += servers[name].processor_seconds() - before
                    latencies[name] += found
                    rates[name].append(len(found) / seconds)
    results: list[dict[str, Any]] = [
        {
            "name": name,
            "rate": statistics.median(rates[name]),
            "p50_seconds": quantile(latencies[name], 0.5),
            "p99_seconds": quantile(latencies[name], 0.99),
            "processor_seconds": busy[name] / len(latencies[name]),
            "ratio": ratio(rates[name], rates[FIRST]),
            "ratio_to_padded": ratio(rates[name], rates[PADDED]),
            "num_requests": len(latencies[name]),
        }
        for name in SERVERS
    ]
    rows = [
        (name, f"{rate:.1f}", *(f"{1000 * seconds:.1f} ms" for seconds in times), f"{first:.2f}", f"{padded:.2f}")
        for name, rate, *times, first, padded, _ in (each.values() for each in results)
    ]
    head = ("", "requests/s", "p50", "p99", "processor time", "ratio", "to padded batches")
    report(args, "requests/s", results, [Table("", head, rows)])


def given(args: argparse.Namespace, folder: Path) -> tuple[str, list[str]]:
    """Return the model and the texts; create them if the user gives none."""
    if args.model_dir is not None and args.text is not None:
        return args.model_dir, some_lines(args.text, args.num_texts)
    dataset = prepared_text(args.data_dir, folder)
    if args.model_dir is None:
        new_model(args, dataset.tokenizer, folder / "model", ("sequence",), labels=("follows", "random"))
    texts = texts_of_mixed_lengths(dataset, args.num_texts, args.max_seq_length)
    return args.model_dir or str(folder / "model"), texts if args.text is None else some_lines(
        args.text, args.num_texts
    )


def quantile(latencies: Sequence[float], share: float) -> float:
    """Return a quantile of the latencies."""
    return sorted(latencies)[min(int(share * len(latencies)), len(latencies) - 1)]


def ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    """Return the median ratio of the rates of two servers in the same rounds."""
    return statistics.median(ours / theirs for ours, theirs in zip(rates, others, strict=True))


@dataclass(frozen=True)
class Running:
    """A server that responds."""

    port: int
    process: psutil.Process

    def processor_seconds(self) -> float:
        """Return the processor time of its processes so far."""
        times = [each.cpu_times() for each in (self.process, *self.process.children(recursive=True))]
        return float(sum(time.user + time.system for time in times))


@contextlib.contextmanager
def running(name: str, model_dir: str, args: argparse.Namespace) -> Iterator[Running]:
    """Run a server; yield it as soon as it responds."""
    kind, has_processes = SERVERS[name]
    num_threads, device, precision = args.num_threads, args.device, args.precision
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes, threads = (num_threads, 1) if has_processes else (1, num_threads)
    command = [sys.executable, str(Path(__file__).with_name("servers.py")), kind, model_dir, f"{port}", f"{processes}"]
    command += [device, precision]
    if kind == "bertkit":
        given = {"model_dir": model_dir, "port": port, "workers": processes, "device": device, "precision": precision}
        command = [*BERTKIT, "serve", *(f"{name}={value}" for name, value in given.items())]
    limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")}
    environment = os.environ | limits | {"TOKENIZERS_PARALLELISM": "true"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + SECONDS_TO_START
            while True:
                with contextlib.suppress(OSError, EOFError, ValueError):
                    asyncio.run(ask(port, ["a text"]))
                    break
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"error: {name} did not start; pip install '.[serve]' in the directory of bertkit")
                time.sleep(0.2)
            yield Running(port, psutil.Process(process.pid))
        finally:
            process.terminate()


def ready(args: argparse.Namespace, model_dir: Path, texts: list[str], name: str, precision: str) -> Ready:
    """Start a server, which ends with this process; a round is `--round-seconds` of requests, in tokens."""
    args = argparse.Namespace(**{**vars(args), "precision": precision})
    num_tokens = sum(map(len, load_tokenizer(model_dir)(texts)["input_ids"])) / len(texts)
    latencies, before = list[float](), memory_here(args.device).free
    server = running(name, str(model_dir), args)
    port = server.__enter__().port

    def work(number: int, server: object = server) -> float:  # without a reference the server would be stopped
        _, found = asyncio.run(drive(port, texts, args.num_clients, args.round_seconds))
        latencies.extend(found)
        return len(found) * num_tokens

    def notes() -> list[str]:
        return [f"p50 {1000 * quantile(latencies, 0.5):.0f} ms, p99 {1000 * quantile(latencies, 0.99):.0f} ms"]

    def megabytes() -> float:
        if args.device == "cuda":
            return (before - memory_here("cuda").free) / 1e6
        return float(sum(each.memory_info().rss for each in psutil.Process().children(recursive=True))) / 1e6

    return Ready(lambda: asyncio.run(ask(port, texts[:NUM_CHECKED])), work, megabytes, notes)


def request_of(text: str) -> bytes:
    """Return the bytes of a request for one text."""
    body = json.dumps({"inputs": [text]}).encode()
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    """Read the body of an answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]))
    if head[9:12] != b"200":
        raise ValueError(f"{head!r} {body[:200]!r}")
    return body


async def ask(port: int, texts: Sequence[str]) -> list[list[float]]:
    """Ask for each text in turn; give its probabilities in the order of the labels' names."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = []
    for text in texts:
        writer.write(request_of(text))
        probabilities = json.loads(await answer_of(reader))["predictions"][0]["probabilities"]
        found.append([share for _, share in sorted(probabilities.items())])
    writer.close()
    return found


async def drive(port: int, texts: Sequence[str], num_clients: int, seconds: float) -> tuple[float, list[float]]:
    """Let clients ask over connections that stay open; give the seconds that it took, and the latency of each request."""
    requests = [request_of(text) for text in texts]
    latencies, started_at = [], time.perf_counter()

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (asked_at := time.perf_counter()) < started_at + seconds:
            writer.write(requests[number % len(requests)])
            await answer_of(reader)
            latencies.append(time.perf_counter() - asked_at)
            number += 1
        writer.close()

    await asyncio.gather(*(client(number * len(requests) // num_clients) for number in range(num_clients)))
    return time.perf_counter() - started_at, latencies


if __name__ == "__main__":
    main()
