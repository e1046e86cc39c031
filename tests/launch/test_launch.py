"""Many processes: started, watched, stopped and killed; every process, signal and link here is a real one.

The ten repetitions of every fault, with their times: pytest -m slow -s tests/launch/test_launch.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bertkit import signs
from bertkit.cli import compose, run
from bertkit.config import build
from bertkit.errors import InputError, PeerError
from bertkit.files import sha256_file
from bertkit.launch import hosts
from bertkit.launch import launcher as launch
from bertkit.settings.schemas import SCHEMAS, LaunchConfig
from bertkit.train.checkpoint import all_checkpoints, fault_of
from bertkit.train.log import read_metrics

SMALL = [
    "device=cpu",
    "model=tiny",
    "model.hidden_size=32",
    "model.intermediate_size=64",
    "model.max_position_embeddings=48",
    "segments.max_seq_length=40",
    "batch.sequences=12",
    "batch.micro_sequences=3",
    "log.every_steps=1",
]
ENDLESS = ["steps=100000", "evaluation.every_steps=100000", "checkpoint.every_steps=100000"]
OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
HANG_SECONDS = 10

# put into every process from outside, by a sitecustomize.py on PYTHONPATH: on SIGWINCH it fails, on SIGVTALRM it hangs
FAULTS = """\
import signal


def fail(*_):
    raise RuntimeError("made to fail")


def hang_here(*_):
    while True:
        pass


signal.signal(signal.SIGWINCH, fail)
signal.signal(signal.SIGVTALRM, hang_here)
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher started these tests."""
    for name in list(os.environ):
        if name in OF_A_LAUNCHER or name.startswith("SLURM_"):
            monkeypatch.delenv(name)


def start(
    data: Path, output: Path, *more: object, prefix: tuple[str, ...] = (), **variables: str
) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, "-m", "bertkit", "pretrain", f"data_dir={data}", f"output_dir={output}", *SMALL]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        [*command, *map(str, more)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def await_steps(processes: list[subprocess.Popen[str]], output: Path, steps: int) -> None:
    """Wait until so many steps are logged."""
    until = time.monotonic() + 120
    while (read_metrics(output / "metrics.jsonl") or [{"step": 0}])[-1]["step"] < steps:
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)


def workers_of(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """The launcher's processes by rank."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    found = {}
    for pid in map(int, children):
        variables = dict(
            each.partition("=")[::2] for each in Path(f"/proc/{pid}/environ").read_text().split("\0") if each
        )
        if "RANK" in variables:  # not so until it is a Python of its own
            found[int(variables["RANK"])] = pid
    return found


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def await_end(pids: list[int]) -> float:
    """Give how long it took until these processes were gone; at most 5 seconds."""
    began = time.monotonic()
    while alive(pids):
        assert time.monotonic() - began < 5, alive(pids)
        time.sleep(0.01)
    return time.monotonic() - began


def listening(pids: list[int]) -> set[str]:
    """The addresses where these processes listen, as /proc has them (hexadecimal, by byte)."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pids[0]}/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and parts[9] in inodes:
                found.add(parts[1].split(":")[0])
    return found


# ---- which process this is


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "3"}, (1, 3)),
        ({"RANK": "1"}, (0, 1)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "5", "SLURM_STEP_ID": "0"}, (2, 5)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "5", "SLURM_STEPID": "3"}, (0, 5)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "5"}, (0, 1)),  # a batch script
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "5", "SLURM_STEP_ID": "4294967291"},
            (0, 1),
        ),  # a batch script, later Slurm
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "5", "SLURM_STEP_ID": "4294967290"}, (0, 1)),  # an interactive step
        ({"RANK": "1", "WORLD_SIZE": "3", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, (1, 3)),
    ],
)
def test_which_process_this_is(
    variables: dict[str, str], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    world = launch.world_from_environment()
    assert (world.rank, world.size) == expected


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[003-007,012],login", "gpu003"),
        ("gpu[12]", "gpu12"),
        ("a-[1,3]-x", "a-1-x"),
        ("rack[1-2]n[01-16],b", "rack1n01"),
    ],
)
def test_the_first_host_of_slurms_short_form(nodelist: str, first: str) -> None:
    assert launch.first_host(nodelist) == first


@pytest.mark.parametrize(
    ("tasks", "counts"), [("1", [1]), ("4(x2)", [4, 4]), ("2(x3),1", [2, 2, 2, 1]), ("3,10(x2)", [3, 10, 10])]
)
def test_the_tasks_of_each_host_of_slurms_short_form(tasks: str, counts: list[int]) -> None:
    assert [launch.tasks_of_host(tasks, host) for host in range(len(counts))] == counts


def settings(**changes: object) -> LaunchConfig:
    return dataclasses.replace(LaunchConfig(1, 1, 0, None, None, 300), **changes)  # type: ignore[arg-type]


SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("variables", "config", "starts"),
    [
        ({}, settings(), False),
        ({}, settings(num_processes=2), True),
        ({}, settings(num_hosts=2, address="a:1"), True),
        ({"RANK": "0", "WORLD_SIZE": "2"}, settings(num_processes=2), False),
        (SRUN, settings(), False),
        (SRUN, settings(num_processes=2), False),
        (SRUN, settings(num_processes=4, num_hosts=2, address="a:1"), True),  # srun starts a launcher on each host
    ],
)
def test_who_starts_processes(
    variables: dict[str, str], config: LaunchConfig, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch.starts_workers(config) is starts


@pytest.mark.parametrize(("more", "device"), [({}, "1"), ({"SLURM_GPUS_PER_TASK": "1"}, "0")])
def test_srun_s_variables_become_those_of_torchrun(more: dict[str, str], device: str) -> None:
    slurm = {**SRUN, **more, "SLURM_LOCALID": "1", "SLURM_JOB_ID": "12345", "SLURM_STEP_NODELIST": "gpu[03-04]"}
    code = (
        "import os; from bertkit.launch import launcher as launch; from bertkit.settings.schemas import LaunchConfig\n"
        f"print(launch.enter(LaunchConfig(1, 1, 0, None, None, 300)), *[os.environ[name] for name in {OF_A_LAUNCHER}])"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **slurm}, capture_output=True, text=True)
    assert done.stdout.split(" ", 2)[2].split() == ["1", "2", device, "gpu03", "22345"], done.stderr
    assert done.stdout.startswith("World(rank=1, size=2) ")


@pytest.mark.parametrize(
    ("variables", "arguments", "line"),
    [
        ({}, ["launch.num_processes=0"], "launch.num_processes=0: expected at least 1"),
        ({}, ["launch.num_hosts=2"], "missing value: set launch.address=HOST:PORT of host 0"),
        ({}, ["launch.address=a:1"], "launch.address=a:1: has no effect with one host; set launch.num_hosts="),
        ({}, ["launch.host_rank=1"], "launch.host_rank=1: expected 0 to 0, with launch.num_hosts=1"),
        ({}, ["launch.hang_timeout_seconds=0"], "launch.hang_timeout_seconds=0.0: expected a positive number"),
        ({}, ["launch.num_hosts=2", "launch.address=a"], "launch.address=a: expected HOST:PORT of host 0"),
        (
            {},
            ["launch.num_hosts=2", "launch.address=192.0.2.1:7"],
            "launch.address=192.0.2.1:7: Cannot assign requested",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "3"},
            ["launch.num_processes=2"],
            "launch.num_processes=2 on launch.num_hosts=1 are 2 processes, torchrun or srun started 3",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "3"},
            [],
            "LOCAL_RANK, MASTER_ADDR, MASTER_PORT not set beside RANK and WORLD_SIZE",
        ),
        ({"RANK": "x", "WORLD_SIZE": "3"}, [], "this process is rank x of 3 by its environment"),
        ({"RANK": "3", "WORLD_SIZE": "3"}, [], "this process is rank 3 of 3 by its environment"),
    ],
)
def test_refusals(
    variables: dict[str, str],
    arguments: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run(["pretrain", "data_dir=x", f"output_dir={tmp_path / 'run'}", *arguments]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"},
            f"error (on {socket.gethostname()}): unknown key 'stepz'",
        ),
        ({**SRUN, "SLURM_LOCALID": "0"}, f"error (on {socket.gethostname()}): unknown key 'stepz'"),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, "error: unknown key 'stepz'"),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, ""),
    ],
)
def test_one_process_of_each_host_says_what_is_wrong(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "is_launcher", False)  # as in a new process
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run(["pretrain", "data_dir=x", "output_dir=y", "stepz=1"]) == 2
    assert capsys.readouterr().err.partition(";")[0] == said


def test_the_settings_survive_the_way_to_a_worker() -> None:
    given = {
        "pretrain": ["data_dir=x", "output_dir=y", "optimizer=lamb", "data.skip_steps=[3]", "segments=google"],
        "finetune": ["task=squad2", "model_dir=x", "output_dir=y"],
        "evaluate": ["task=conll2003", "model_dir=x"],
    }
    for command, arguments in given.items():
        built = build(SCHEMAS[command], compose(command, arguments))
        assert build(SCHEMAS[command], json.loads(json.dumps(dataclasses.asdict(built)))) == built


# ---- where a process is


def test_a_place_to_wait_is_told_from_a_place_to_work() -> None:
    """By the stacks of real threads; the main thread comes last in a dump."""

    def stacks(work: Callable[[threading.Event], None]) -> str:
        event, begun = threading.Event(), threading.Event()

        def body() -> None:
            begun.set()
            work(event)

        thread = threading.Thread(target=body)
        thread.start()
        begun.wait()
        time.sleep(0.05)
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file)
            event.set()
            thread.join()
            file.seek(0)
            return file.read().split("\n\n")[0]  # the thread that began last comes first

    def work(event: threading.Event) -> None:
        while not event.is_set():
            sum(range(1000))

    place, waits = signs.where(stacks(work))
    assert place.endswith(" in work")
    assert "test_launch.py" in place
    assert not waits
    frame = '  File "{}", line {} in {}\n'
    collective = frame.format("/x/site-packages/torch/distributed/distributed_c10d.py", 3, "all_reduce")
    loop = frame.format(f"{signs.PACKAGE}train/loop.py", 7, "optimizer_step")
    other = "Thread 0x2 (most recent call first):\n" + loop
    expected = ("train/loop.py:7 in optimizer_step (all_reduce)", True)
    assert signs.where(other + "\nCurrent thread 0x1 (most recent call first):\n" + collective + loop) == expected
    expected = ("train/loop.py:7 in optimizer_step", False)
    assert signs.where("Thread 0x1 (most recent call first):\n" + collective + "\n" + other) == expected
    assert signs.where("") == ("an unknown place", False)


# ---- several hosts: the launchers' connection


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


# ---- one host


def test_a_run_of_two_processes_stops_and_is_left_alone(prepared_dir: Path, tmp_path: Path) -> None:
    """It listens on 127.0.0.1 alone; a second command in its directory ends with 3; SIGUSR1 saves and ends with 75."""
    output, two = tmp_path / "run", ["launch.num_processes=2", *ENDLESS]
    process = start(prepared_dir, output, *two)
    await_steps([process], output, 2)
    pids = list(workers_of(process).values())
    assert listening([process.pid, *pids]) == {"0100007F"}
    second = start(prepared_dir, output, *ENDLESS)
    said, errors = second.communicate(timeout=120)
    assert second.returncode == 3
    assert errors.count("\n") == 1
    assert "is in use by process" in errors
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.2)  # Slurm's own, and what a script passes on, are one request
    process.send_signal(signal.SIGUSR1)
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (75, "")
    newest = all_checkpoints(output)[0]
    assert said.count(f"stopped at step {int(newest.name[5:])} of 100000; its checkpoint is saved") == 1
    assert fault_of(newest) is None
    await_end(pids)


def test_a_process_that_hangs_is_named(prepared_dir: Path, tmp_path: Path) -> None:
    output, two = tmp_path / "run", ["launch.num_processes=2", "launch.hang_timeout_seconds=5", *ENDLESS]
    process = start(prepared_dir, output, *two)
    await_steps([process], output, 2)
    seconds, line = inflict("SIGSTOP", process)
    assert seconds < 5 + 5
    assert f"is stopped (SIGSTOP?): no sign of life for 5 s; stacks: {output}/stacks-rank-*.txt; last step" in line
    stacks = [(output / f"stacks-rank-{rank}.txt").read_text() for rank in (0, 1)]
    place, waits = signs.where(stacks[0])
    assert waits, place
    assert stacks[1] == ""


def test_a_reader_that_leaves_ends_a_run_as_it_ends_one_process(prepared_dir: Path, tmp_path: Path) -> None:
    """As `| head -n 1` does."""
    for more in (["launch.num_processes=2"], []):
        process = start(prepared_dir, tmp_path / f"run-{len(more)}", *ENDLESS, *more)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == ""
        process.stderr.close()


def inflict(fault: str, process: subprocess.Popen[str]) -> tuple[float, str]:
    """Do something to rank 1 of a run; give the seconds until all of it was gone, and its line."""
    pids = workers_of(process)
    began = time.monotonic()
    os.kill(pids[1], getattr(signal, fault))
    said, errors = process.communicate(timeout=60)
    await_end(list(pids.values()))
    assert process.returncode == 6, (said, errors)
    assert errors.count("\n") == 1
    assert errors.startswith(f"error: rank 1 on host {socket.gethostname()} (process {pids[1]}) ")
    return time.monotonic() - began, errors


def test_a_process_that_dies_is_named(prepared_dir: Path, tmp_path: Path) -> None:
    process = start(prepared_dir, tmp_path / "run", "launch.num_processes=2", *ENDLESS)
    await_steps([process], tmp_path / "run", 2)
    seconds, line = inflict("SIGKILL", process)
    assert seconds < 5
    assert "was killed by SIGKILL; last step" in line


def test_a_killed_launcher_takes_its_processes_along(prepared_dir: Path, tmp_path: Path) -> None:
    process = start(prepared_dir, tmp_path / "run", "launch.num_processes=2", *ENDLESS)
    until = time.monotonic() + 60
    while len(pids := list(workers_of(process).values())) < 2:
        assert time.monotonic() < until
    os.kill(pids[0], signal.SIGSTOP)  # one that cannot notice anything, and has not begun to watch
    process.kill()
    process.communicate(timeout=30)  # a process that is left holds the pipes open
    await_end(pids)


# ---- the repetitions


def repeated(
    data: Path, folder: Path, harm: Callable[[subprocess.Popen[str]], None], *more: object
) -> list[tuple[int, float, str]]:
    """Start ten runs, harm each after a few steps: exit code, seconds until everything was gone, and the line."""
    (folder / "sitecustomize.py").write_text(FAULTS)
    results = []
    for trial in range(10):
        output = folder / f"run-{trial}"
        process = start(
            data, output, "launch.num_processes=2", f"launch.hang_timeout_seconds={HANG_SECONDS}", *ENDLESS, *more,
            PYTHONPATH=os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
        )  # fmt: skip
        await_steps([process], output, 2 + trial % 3)
        pids = list(workers_of(process).values())
        before = set(os.listdir("/dev/shm"))
        began = time.monotonic()
        harm(process)
        _, errors = process.communicate(timeout=90)
        await_end(pids)
        assert set(os.listdir("/dev/shm")) <= before
        results.append((process.returncode, time.monotonic() - began, errors))
    return results


def send(number: int, rank: int | None = None) -> Callable[[subprocess.Popen[str]], None]:
    """Send a signal to a rank, or to the launcher."""

    def harm(process: subprocess.Popen[str]) -> None:
        os.kill(process.pid if rank is None else workers_of(process)[rank], number)

    return harm


FAULT_CASES = {
    "killed": (send(signal.SIGKILL, 1), 6, 5.0, "was killed by SIGKILL; last step"),
    "raising": (send(signal.SIGWINCH, 1), 6, 5.0, "failed: RuntimeError: made to fail; last step"),
    "stopped": (send(signal.SIGSTOP, 1), 6, HANG_SECONDS + 5.0, "is stopped (SIGSTOP?)"),
    "looping": (send(signal.SIGVTALRM, 1), 6, HANG_SECONDS + 5.0, "does not go on, at"),
    "launcher killed": (send(signal.SIGKILL), -signal.SIGKILL, 5.0, ""),
    "SIGTERM": (send(signal.SIGTERM), 75, 10.0, ""),
    "SIGINT": (send(signal.SIGINT), 75, 10.0, ""),
    "SIGUSR1": (send(signal.SIGUSR1), 75, 10.0, ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULT_CASES)
def test_ten_times(name: str, prepared_dir: Path, tmp_path: Path) -> None:
    harm, code, seconds, line = FAULT_CASES[name]
    results = repeated(prepared_dir, tmp_path, harm)
    times = sorted(took for _, took, _ in results)
    print(f"\n{name}: exit codes {[each[0] for each in results]}; gone after {times[0]:.1f} to {times[-1]:.1f} s")
    for returncode, took, errors in results:
        assert returncode == code, errors
        assert took < seconds, errors
        assert line in errors
        assert errors.count("\n") == (1 if line else 0)
        if line:
            assert errors.startswith("error: rank 1 on host ")
    if code == 75:
        for trial in range(10):
            (newest,) = all_checkpoints(tmp_path / f"run-{trial}")
            assert fault_of(newest) is None


@pytest.mark.slow
def test_ten_times_two_commands_in_one_directory(prepared_dir: Path, tmp_path: Path) -> None:
    for trial in range(10):
        output = tmp_path / f"run-{trial}"
        both = [start(prepared_dir, output, "launch.num_processes=2", *ENDLESS) for _ in range(2)]
        until = time.monotonic() + 120
        while all(process.poll() is None for process in both):
            assert time.monotonic() < until
            time.sleep(0.05)
        (loser,) = [process for process in both if process.poll() is not None]
        (winner,) = [process for process in both if process is not loser]
        _, errors = loser.communicate()
        assert (loser.returncode, errors.count("\n")) == (3, 1), errors
        await_steps([winner], output, 1)
        winner.send_signal(signal.SIGTERM)
        winner.communicate(timeout=60)
        assert winner.returncode == 75


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
