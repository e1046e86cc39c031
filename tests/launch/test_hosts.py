"""Several hosts: how their launchers meet, and runs on two network namespaces with a link between them.

The runs, which need root: pytest -m slow -s tests/launch/test_hosts.py
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import ENDLESS, HANG_SECONDS, await_end, await_steps, start, workers_of

from bertkit.base.errors import InputError
from bertkit.base.files import sha256_file
from bertkit.launch import elastic

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("no_launcher")


def test_the_interface_to_an_address() -> None:
    assert elastic.interface_to("127.0.0.1", 9) in ("lo", "lo0")
    with pytest.raises(InputError, match="give host 0's address"):
        elastic.interface_to("no-such-host.invalid", 9)


def on_loopback(python: Path, data: Path, output: Path, ranks: dict[int, str]) -> list[tuple[int, str]]:
    """Run one command per host on this machine, each with its own setting; return the exit codes and errors."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"launch.address=127.0.0.1:{probe.getsockname()[1]}"
    hosts = [
        start(
            data,
            output,
            "launch.num_hosts=2",
            f"launch.host_rank={rank}",
            address,
            own,
            "launch.hang_timeout_seconds=20",
            "steps=5",
            "schedule.warmup_steps=0",
            python=python,
        )
        for rank, own in ranks.items()
    ]
    errors = [host.communicate(timeout=90)[1] for host in hosts]
    return [(host.returncode, error) for host, error in zip(hosts, errors, strict=True)]


def test_hosts_with_other_settings(prepared_dir: Path, tmp_path: Path, python: Path) -> None:
    for code, errors in on_loopback(python, prepared_dir, tmp_path / "run", {0: "seed=1", 1: "seed=2"}):
        assert (code, errors.count("\n")) == (2, 1), errors
        assert ": seed=2, but 1 in process 0" in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_host_that_does_not_come(rank: int, prepared_dir: Path, tmp_path: Path, python: Path) -> None:
    ((code, errors),) = on_loopback(python, prepared_dir, tmp_path / "run", {rank: "seed=1"})
    assert (code, errors.count("\n")) == (6, 1), errors


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


def test_a_host_without_the_shared_folder_says_what_it_waits_for(tmp_path: Path) -> None:
    here = {"HOST_RANK": "1", "NUM_HOSTS": "2", "CORPUS": "text", "RUN_DIR": str(tmp_path), "WAIT_MINUTES": "0"}
    done = subprocess.run(
        ["bash", "recipes/multi_host/run.sh"],
        cwd=ROOT, env={**os.environ, **here}, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert f"host 1 waits for {tmp_path}/data/manifest.json" in done.stdout
    assert done.returncode == 2
    assert "RUN_DIR= must be a folder that all hosts share" in done.stderr


SHORT_RUN = ["steps=6", "evaluation.every_steps=3", "checkpoint.every_steps=3"]


@pytest.mark.slow
def test_two_hosts_train_to_the_weights_of_one(two_hosts: tuple[str, str], prepared_dir: Path, tmp_path: Path) -> None:
    both = on_two_hosts(two_hosts, prepared_dir, tmp_path / "two", *SHORT_RUN)
    one = start(prepared_dir, tmp_path / "one", "launch.num_processes=2", *SHORT_RUN)
    for process in (*both, one):
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    hashes = {sha256_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two")}
    assert len(hashes) == 1


# what happens on one of the hosts; the exit code of each; the most seconds; what that host says, and what the other one
LOST = "another process of the run died or hangs"
HOST_FAULTS = {
    "link cut": (6, HANG_SECONDS + 10.0, LOST, LOST),
    "host lost": (6, 10.0, "", LOST),
    "SIGKILL": (6, 10.0, "(process {pid}) was killed by SIGKILL", LOST),
    "SIGSTOP": (6, HANG_SECONDS + 10.0, "(process {pid}) did not respond", LOST),
    "SIGTERM": (75, 10.0, "", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", HOST_FAULTS)
def test_what_happens_on_one_host_ends_both(
    fault: str, two_hosts: tuple[str, str], prepared_dir: Path, tmp_path: Path
) -> None:
    code, most_seconds, *words = HOST_FAULTS[fault]
    seconds = f"launch.hang_timeout_seconds={HANG_SECONDS}"
    for trial in range(5):
        both = on_two_hosts(two_hosts, prepared_dir, tmp_path / f"{trial}", seconds, *ENDLESS)
        await_steps(both, tmp_path / f"{trial}", 2)
        here, (pid,) = both[trial % 2], workers_of(both[trial % 2]).values()
        pids = [worker for process in both for worker in workers_of(process).values()]
        if fault == "link cut":
            subprocess.run(["ip", "-n", two_hosts[trial % 2], "link", "set", "veth0", "down"], check=True)
        elif fault == "host lost":
            here.kill()
        else:
            os.kill(here.pid if fault == "SIGTERM" else pid, getattr(signal, fault))
        began = time.monotonic()
        for process in both:
            _, errors = process.communicate(timeout=60)
            took = time.monotonic() - began
            print(f"\n{fault} {trial}: exit code {process.returncode} after {took:.1f} s: {errors.strip()}")
            if fault == "host lost" and process is here:
                continue
            assert process.returncode == code
            assert took < most_seconds
            expected = words[process is not here]
            assert errors.count("\n") == bool(expected)
            assert expected.format(pid=pid) in errors
        await_end(pids)
        if fault == "link cut":
            subprocess.run(["ip", "-n", two_hosts[trial % 2], "link", "set", "veth0", "up"], check=True)
