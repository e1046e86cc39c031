"""Many clients at once, while the queue is full, the server stops, a worker dies, a model changes: no answer is wrong or lost."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import small_model
from serving import FORKING, Answer, Connection, Server, ask, request, serving

from bertkit import export_model, load_predictor
from bertkit.data.corpus.tokenizer import Tokenizer

TEXTS = ["kan lon", "min", "rur ten kar lon min", "kan " * 30, "lor, mish", "ten"]
Right = list[dict[str, float]]  # the probabilities of each text
AS_USERS_DO = "from bertkit.__main__ import main; main()"  # each worker is a new interpreter


def make_model(tokenizer: Tokenizer, target: Path, seed: int = 0) -> Right:
    model = small_model(tokenizer.vocab_size, heads=("sequence",), labels=("bad", "good"), seed=seed)
    export_model(model, tokenizer, target)
    return [row["probabilities"] for row in load_predictor(target, device="cpu")(TEXTS)]


def is_right(answer: Answer, place: int, right: Right) -> bool:
    (row,) = answer.json["predictions"]
    return all(abs(row["probabilities"][label] - share) < 2e-6 for label, share in right[place].items())


class Clients:
    """Clients in threads that ask again and again, over connections that stay open, until they are told to stop.

    Attributes:
        statuses: how often each was answered; "lost": a connection that had answered closed without an answer.
        wrong: answers that are none of the right ones.
    """

    def __init__(self, server: Server, number: int, rights: list[Right]) -> None:
        self.server, self.rights = server, rights
        self.statuses: Counter[Any] = Counter()
        self.wrong: list[Any] = []
        self.codes: set[str] = set()
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(each,), daemon=True) for each in range(number)]
        for thread in self.threads:
            thread.start()

    def work(self, number: int) -> None:
        place = number
        while not self.over.is_set():
            try:
                with Connection(self.server.port) as connection:
                    has_answered = False
                    while not self.over.is_set():
                        place = (place + 1) % len(TEXTS)
                        answer = connection.ask(request("/predict", {"inputs": [TEXTS[place]]}))
                        if not answer.status:
                            self.statuses["lost" if has_answered else "closed"] += 1
                            break
                        self.take(answer, place)
                        has_answered = True
                        if answer.headers.get("connection") == "close":
                            break
            except OSError:  # nobody listens
                self.statuses["refused"] += 1
                time.sleep(0.02)
            except Exception as error:  # an answer that is none
                self.wrong.append(error)

    def take(self, answer: Answer, place: int) -> None:
        self.statuses[answer.status] += 1
        if answer.status != 200:
            self.codes.add(answer.code)
            time.sleep(0.005)
            assert int(answer.headers["retry-after"]) >= 1
        elif not any(is_right(answer, place, right) for right in self.rights):
            self.wrong.append((place, answer.body))

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()
        assert self.wrong == []


def test_more_clients_than_the_queue_holds(python: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    right = make_model(tokenizer, tmp_path / "model")
    limits = ["queue_requests=3", "batch_tokens=40", "request_seconds=0.003"]
    with serving(python, f"model_dir={tmp_path / 'model'}", *limits) as server:
        clients = Clients(server, 30, [right])
        until = time.monotonic() + 20
        while clients.codes != {"queue_full", "waited_too_long"} or clients.statuses[200] < 40:
            assert time.monotonic() < until, clients.statuses
            time.sleep(0.02)
        clients.stop()
        assert set(clients.statuses) == {200, 429, 503}
        wait_until(lambda: ask(server.port, "/predict", {"inputs": [TEXTS[0]]}).status == 200)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_who_was_taken_gets_an_answer_when_the_server_stops(
    python: Path, tokenizer: Tokenizer, tmp_path: Path, num_workers: int
) -> None:
    right = make_model(tokenizer, tmp_path / "model")
    arguments = (f"model_dir={tmp_path / 'model'}", "batch_tokens=40", f"workers={num_workers}")
    with serving(python, *arguments, code=AS_USERS_DO) as server:
        wait_until(lambda: len(workers(server)) == num_workers or num_workers == 1)
        clients = Clients(server, 20, [right])
        wait_until(lambda: clients.statuses[200] > 100)
        assert server.stop() == 0
        clients.stop()
        assert clients.statuses["lost"] == clients.statuses["closed"] == 0, clients.statuses
        assert clients.codes <= {"stopping"}
        assert clients.statuses["refused"] > 0
    assert len(server.printed) == num_workers


def test_a_new_model_takes_the_place_of_the_old_one(python: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    old, new = make_model(tokenizer, tmp_path / "model"), make_model(tokenizer, tmp_path / "new", seed=1)
    with serving(python, f"model_dir={tmp_path / 'model'}") as server:
        clients = Clients(server, 8, [old, new])
        wait_until(lambda: clients.statuses[200] > 50)
        (tmp_path / "model").rename(tmp_path / "old")
        (tmp_path / "new").rename(tmp_path / "model")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for(r"^models loaded again in \S+ s$")
        clients.rights, answered = [new], clients.statuses[200]
        wait_until(lambda: clients.statuses[200] > answered + 50)  # an old one may have been on its way
        clients.wrong.clear()
        weights = tmp_path / "model" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        server.process.send_signal(signal.SIGHUP)
        assert "model.safetensors" in server.wait_for(r"^error: (.*); the old models stay$")[1]
        asked = clients.statuses[200]
        wait_until(lambda: clients.statuses[200] > asked + 50)
        clients.stop()
        assert set(clients.statuses) == {200}
        assert b'bertkit_loads_total{result="failed"} 1' in ask(server.port, "/metrics").body
        assert server.stop(signal.SIGINT) == 0


def test_a_worker_dies_and_others_go_on(python: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    right = make_model(tokenizer, tmp_path / "model")
    with serving(python, f"model_dir={tmp_path / 'model'}", "workers=2") as server:
        wait_until(lambda: len(workers(server)) == 2)
        first, _ = workers(server)
        clients = Clients(server, 8, [right])
        wait_until(lambda: clients.statuses[200] > 50)
        with contextlib.ExitStack() as stack:  # each worker has half of the connections
            kept = [stack.enter_context(Connection(server.port)) for _ in range(16)]
            assert {each.ask(request("/healthz")).status for each in kept} == {200}
            os.kill(first, signal.SIGKILL)
            server.wait_for(rf"^worker {first} died; another one takes its place$")
            answered = Counter(each.ask(request("/healthz")).status for each in kept)
        assert 4 <= answered[200] <= 12, answered
        asked = clients.statuses[200]
        wait_until(lambda: clients.statuses[200] > asked + 50)
        wait_until(lambda: len(workers(server)) == 3)
        assert set(clients.statuses) <= {200, "lost", "closed"}
        assert clients.statuses["lost"] + clients.statuses["closed"] < 8  # those of the one that died
        server.process.send_signal(signal.SIGHUP)
        for worker in workers(server)[1:]:
            server.wait_for(rf"^worker {worker}: models loaded again")
        lost = clients.statuses["lost"]
        assert server.stop() == 0
        clients.stop()
        assert clients.statuses["lost"] == lost
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers(server))


def test_metrics_are_sums_over_workers(python: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Also over a worker that died: no counter goes back."""
    make_model(tokenizer, tmp_path / "model")
    with serving(python, f"model_dir={tmp_path / 'model'}", "workers=2", code=AS_USERS_DO) as server:
        wait_until(lambda: len(workers(server)) == 2)

        def figure(name: str) -> float:
            lines = ask(server.port, "/metrics").body.decode().splitlines()
            return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name)))

        predicted = 'bertkit_requests_total{path="/predict",status="200"}'
        with contextlib.ExitStack() as stack:  # each worker has half of the connections
            for each in [stack.enter_context(Connection(server.port)) for _ in range(8)]:
                assert each.ask(request("/predict", {"inputs": TEXTS})).status == 200
            wait_until(lambda: figure(predicted) == 8)  # a request is counted after its answer
            assert {figure(predicted) for _ in range(8)} == {8}
        assert figure("bertkit_batch_sequences_sum") == 8 * len(TEXTS)
        assert figure('bertkit_loads_total{result="done"}') == 2
        assert figure("bertkit_queue_requests") == 0
        assert figure("bertkit_model_load_seconds{") > 0
        os.kill(workers(server)[0], signal.SIGKILL)
        wait_until(lambda: len(workers(server)) == 3)
        assert figure(predicted) == 8
        assert figure('bertkit_loads_total{result="done"}') == 3
        mapped = Path(f"/proc/{workers(server)[1]}/maps").read_text()
        folder = Path(re.search(r"(/\S+)/counter_\d+\.db", mapped)[1])
        assert folder.is_dir()
        assert server.stop() == 0
        assert not folder.exists()


def test_a_text_that_takes_the_tokenizer_too_long_ends_its_worker_alone(
    python: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """The pattern takes 0.2 s for each word of the long text, and fails on the short one."""
    make_model(tokenizer, tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    pattern = {"type": "Split", "pattern": {"Regex": "(q(a+)+)+$"}, "behavior": "Isolated", "invert": False}
    content = json.loads(file.read_text()) | {"pre_tokenizer": pattern}
    (tmp_path / "model" / "vocab.txt").unlink()
    settings = tmp_path / "model" / "tokenizer_config.json"  # not BERT's class, which would build its own tokenizer
    settings.write_text(settings.read_text().replace("BertTokenizer", "PreTrainedTokenizerFast"))
    file.write_text(json.dumps(content))
    with serving(python, f"model_dir={tmp_path / 'model'}", "request_seconds=2") as server:
        right = ask(server.port, "/predict", {"inputs": [TEXTS[0]]})
        failed = ask(server.port, "/predict", {"inputs": ["q" + "a" * 40 + "b"]})
        assert (failed.status, failed.code) == (500, "failed")
        began = time.monotonic()
        endless = ask(server.port, "/predict", {"inputs": [("q" + "a" * 22 + "b ") * 1000]})
        assert (endless.status, endless.code) == (503, "took_too_long")
        assert time.monotonic() - began < 10
        assert (
            ask(server.port, "/predict", {"inputs": [TEXTS[0]]}).body == right.body
        )  # waits until the models are loaded
        server.wait_for(r"^worker \d+ died; another one takes its place$")
        assert server.stop() == 0


@pytest.mark.slow
def test_workers_whose_model_or_server_is_gone(python: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    right = make_model(tokenizer, tmp_path / "model")
    with serving(python, f"model_dir={tmp_path / 'model'}", "workers=2") as server:
        wait_until(lambda: len(workers(server)) == 2)
        weights = tmp_path / "model" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        os.kill(workers(server)[0], signal.SIGKILL)
        server.wait_for(r"^error: .*model.safetensors")  # it is tried again, and the other one goes on
        assert is_right(ask(server.port, "/predict", {"inputs": [TEXTS[0]]}), 0, right)
        server.process.kill()
        wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers(server)))


def test_workers_say_once_what_is_wrong(python: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import subprocess

    command = [python, "-c", FORKING, "serve", f"model_dir={tmp_path}", "port=0", "workers=2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("error: ") == done.stderr.count("\n") == 1


def workers(server: Server) -> list[int]:
    return [int(match[1]) for line in server.printed if (match := re.search(r"^serving .*, worker (\d+);", line))]


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
def test_memory_stays_flat_over_100_000_requests(tokenizer: Tokenizer, tmp_path: Path) -> None:
    make_model(tokenizer, tmp_path / "model")
    bodies = [json.dumps({"inputs": [text]}).encode() for text in TEXTS]
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    requests = [head % len(body) + body for body in bodies]

    async def drive(port: int, number: int) -> None:
        async def client(own: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for n in range(own):
                writer.write(requests[n % len(requests)])
                answer = await reader.readuntil(b"\r\n\r\n")
                assert answer[9:12] == b"200"
                await reader.readexactly(int(answer.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]))
            writer.close()

        await asyncio.gather(*(client(number // 50) for _ in range(50)))

    with serving(Path(sys.executable), f"model_dir={tmp_path / 'model'}") as server:
        megabytes = []
        for number in (10_000, 10_000, 40_000, 40_000):
            asyncio.run(drive(server.port, number))
            (worker,) = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
            status = Path(f"/proc/{worker}/status").read_text()
            megabytes.append(int(status.split("VmRSS:")[1].split()[0]) / 1000)
        print(megabytes)
        assert megabytes[-1] < megabytes[0] + 10, megabytes
