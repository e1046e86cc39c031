"""Several hosts: how their launchers meet, and runs on two network namespaces with a link between them.

The runs, which need root: pytest -m slow -s tests/launch/test_hosts.py
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import ENDLESS, HANG_SECONDS, await_end, await_steps, start, workers_of

from bertkit.errors import InputError, PeerError
from bertkit.files import sha256_file
from bertkit.launch import hosts

pytestmark = pytest.mark.usefixtures("no_launcher")


def meet(rank: int, num_hosts: int, port: int, seconds: float = 5, **shared: object) -> object:
    """The store's port as this host learns it, or the error."""
    try:
        with hosts.joined(f"127.0.0.1:{port}", rank, num_hosts, seconds, shared, lambda: False) as others:
            return others.store[1], sorted(peer.rank or 0 for peer in others.peers)
    except (InputError, PeerError) as error:
        return f"{type(error).__name__}: {error}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def all_meet(*of_hosts: tuple[int, dict[str, object]], num_hosts: int) -> list[object]:
    port, results = free_port(), [None] * len(of_hosts)

    def one(place: int, rank: int, shared: dict[str, object]) -> None:
        results[place] = meet(rank, num_hosts, port, **shared)  # type: ignore[call-overload, arg-type]

    threads = [threading.Thread(target=one, args=(n, rank, shared)) for n, (rank, shared) in enumerate(of_hosts)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    for thread in threads:
        thread.join(20)
    return results


def test_hosts_meet_in_any_order() -> None:
    results = all_meet((2, {"seed": 1}), (0, {"seed": 1}), (1, {"seed": 1}), num_hosts=3)
    stores = {result[0] for result in results}  # type: ignore[index]
    assert len(stores) == 1
    assert [result[1] for result in results] == [[0], [1, 2], [0]]  # type: ignore[index]


def test_hosts_that_do_not_belong_together() -> None:
    other = all_meet((0, {"seed": 1}), (1, {"seed": 2}), num_hosts=2)
    expected = "InputError: host 1 (127.0.0.1) has other settings than host 0 (seed: 2 there, 1 here)"
    assert other == [expected, expected]
    twice = all_meet((0, {}), (1, {}), (1, {}), num_hosts=3)
    assert set(twice) == {"InputError: two hosts have launch.host_rank=1; give each its own, from 0 to 2"}


def test_a_host_that_does_not_come() -> None:
    port = free_port()
    assert meet(0, 3, port, 0.3) == f"PeerError: host 0: no word from host 1, 2 at 127.0.0.1:{port} within 0.3 s"
    alone = meet(1, 2, port, 0.3)
    assert str(alone).startswith(
        f"PeerError: host 1: host 0 at 127.0.0.1:{port} could not be reached (Connection refused)"
    )


def test_the_interface_of_an_address() -> None:
    assert hosts.interface_of("127.0.0.1") in ("lo", "lo0")
    assert hosts.interface_of("192.0.2.1") is None
    assert hosts.own_address("127.0.0.1", 9) == "127.0.0.1"


# ---- two hosts: network namespaces with a link between them


@pytest.fixture
def two_hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces, 10.77.0.1 and 10.77.0.2, with a link."""

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the ip command")
    names = (f"bk{os.getpid()}a", f"bk{os.getpid()}b")
    try:
        ip("netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr!r}")
    try:
        ip("netns", "add", names[1])
        ip("-n", names[0], "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "veth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def on_two_hosts(names: tuple[str, str], data: Path, output: Path, *more: object) -> list[subprocess.Popen[str]]:
    """Start the documented command of recipes/multi_host on each."""
    return [
        start(
            data, output, "launch.num_hosts=2", f"launch.host_rank={rank}", "launch.address=10.77.0.1:29500", *more,
            prefix=("ip", "netns", "exec", name),
        )
        for rank, name in enumerate(names)
    ]  # fmt: skip


SHORT_RUN = ["steps=6", "evaluation.every_steps=3", "checkpoint.every_steps=3"]


@pytest.mark.slow
def test_two_hosts_train_to_the_weights_of_one(two_hosts: tuple[str, str], prepared_dir: Path, tmp_path: Path) -> None:
    both = on_two_hosts(two_hosts, prepared_dir, tmp_path / "two", *SHORT_RUN)
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    one = start(prepared_dir, tmp_path / "one", "launch.num_processes=2", *SHORT_RUN)
    _, errors = one.communicate(timeout=120)
    assert (one.returncode, errors) == (0, "")
    hashes = {sha256_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two")}
    assert len(hashes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(3))
def test_a_cut_link_ends_both_hosts(two_hosts: tuple[str, str], prepared_dir: Path, tmp_path: Path, trial: int) -> None:
    output, seconds = tmp_path / "run", f"launch.hang_timeout_seconds={HANG_SECONDS}"
    both = on_two_hosts(two_hosts, prepared_dir, output, seconds, *ENDLESS)
    await_steps(both, output, 2)
    pids = [pid for process in both for pid in workers_of(process).values()]
    subprocess.run(["ip", "-n", two_hosts[trial % 2], "link", "set", "veth0", "down"], check=True)
    began = time.monotonic()
    for process, other in zip(both, ("host 1 (10.77.0.2)", "host 0 (10.77.0.1)"), strict=True):
        _, errors = process.communicate(timeout=60)
        took = time.monotonic() - began
        print(f"\ntrial {trial}: exit code {process.returncode} after {took:.1f} s: {errors.strip()}")
        assert process.returncode == 6
        assert took < HANG_SECONDS + 5
        assert errors.count("\n") == 1
        assert other in errors
    await_end(pids)


@pytest.mark.slow
def test_what_happens_on_one_host_is_said_on_both(
    two_hosts: tuple[str, str], prepared_dir: Path, tmp_path: Path
) -> None:
    seconds = f"launch.hang_timeout_seconds={HANG_SECONDS}"
    for fault, words, code in (
        (signal.SIGKILL, "was killed by SIGKILL", 6),
        (signal.SIGSTOP, "is stopped (SIGSTOP?)", 6),
        (signal.SIGTERM, "", 75),
    ):
        output = tmp_path / fault.name
        both = on_two_hosts(two_hosts, prepared_dir, output, seconds, *ENDLESS)
        await_steps(both, output, 2)
        (victim,) = workers_of(both[1]).values()
        os.kill(victim, fault)
        for process in both:
            _, errors = process.communicate(timeout=60)
            print(f"\n{fault.name}: exit code {process.returncode}: {errors.strip()}")
            assert process.returncode == code
            assert words in errors
            if words:
                assert f"rank 1 on host {socket.gethostname()} (process {victim})" in errors
