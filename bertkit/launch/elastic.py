"""Start, watch and end the processes of one host with torch's elastic multiprocessing, which keeps an error file for each.

The processes of all hosts meet in a TCPStore, which host 0's launcher holds. It listens on one address only: 127.0.0.1 for one
host, otherwise `launch.address`. It has no password, so anyone who can reach the port can join the run.

This file decides that a run ends with exit code 6. A process that hangs is not detected here: the processes that wait for it
fail after `launch.hang_timeout_seconds`, the timeout of their process group.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from bertkit.base import errors
from bertkit.base.errors import BertkitError, InputError, PeerError, StoppedError
from bertkit.launch import world
from bertkit.launch.launch_config import LaunchConfig

LAST_WORDS_SECONDS = 2.0  # after the first failure, time for the other processes to report what they know
KILL_SECONDS = 5  # to wait for a killed process; one inside a driver may stay
POLL_SECONDS = 0.05
OTHERS_SECONDS = 5.0  # after another host has failed, time for this host's processes to end by themselves
FAILED = "bertkit/failed"  # a key of the store
SIOCGIFADDR = 0x8915  # linux/sockios.h
KINDS = {
    kind.exit_code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BertkitError)
}


class Workers(SubprocessContext):
    """The processes of this host.

    Attributes:
        killed: local ranks that had to be killed after another one failed.
        stop_signal: the first signal that asked the run to stop.
    """

    def __init__(self, command: Sequence[str], environments: dict[int, dict[str, str]], folder: str) -> None:
        arguments = dict.fromkeys(environments, tuple(command[1:]))
        super().__init__("worker", command[0], arguments, environments, DefaultLogsSpecs(folder))
        self.killed: list[int] = []
        self.stop_signal: int | None = None
        self._stop_at = 0.0

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The started processes."""
        return [handler.proc for handler in self.subprocess_handlers.values()]

    def start(self) -> None:
        """Start the processes; torch's own `start` would replace our signal handlers."""
        self._start()  # type: ignore[no-untyped-call]

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Forward the first signal; end everything at the second.

        The same signal within a second is one request: Slurm and terminals send it to all processes, and a script in between may
        forward it too.
        """
        now = time.monotonic()
        if self.stop_signal is None:
            self.stop_signal, self._stop_at = number, now
            for process in self.processes:
                process.send_signal(number)
        elif number != self.stop_signal or now - self._stop_at >= world.SAME_REQUEST_SECONDS:
            raise SystemExit(128 + number)  # `run` kills the processes

    def close(self, death_sig: signal.Signals | None = None, timeout: float = LAST_WORDS_SECONDS) -> None:
        """Kill all processes after `timeout` seconds; at once if the exit code of one explains the failure."""
        explained = any(_explains(process.poll() or 0) for process in self.processes)
        until = time.monotonic() + (0 if explained else timeout)
        while any(process.poll() is None for process in self.processes) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        self.killed += [rank for rank, process in enumerate(self.processes) if process.poll() is None]
        super().close(signal.SIGKILL, KILL_SECONDS)


def _explains(code: int) -> bool:
    """Whether the exit code of a process is the cause of a failure, rather than its consequence or a request to stop."""
    if code < 0:  # NCCL aborts (SIGABRT) when a peer is lost
        return -code not in (signal.SIGABRT, *world.STOP_SIGNALS)
    return code not in (0, *KINDS, world.INTERRUPTED_CODE, world.READER_LEFT_CODE)


def run(launch: LaunchConfig, job: dict[str, Any], output_dir: str | None) -> None:
    """Start this host's processes, wait for them, and clean up; raises what `launcher.start` documents."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # bertkit prints one line itself
    with tempfile.TemporaryDirectory(prefix="bertkit-") as folder, contextlib.ExitStack() as stack:
        Path(folder, "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = world.own_command("--worker", f"{folder}/job.json")
        environments: dict[int, dict[str, str]] = {rank: {} for rank in range(launch.num_processes)}
        workers = Workers(command, environments, folder)
        stack.enter_context(world.handling(world.STOP_SIGNALS, workers.on_signal))
        store, address = _meeting_place(launch)  # open while the workers run
        for rank, variables in _variables(launch, address).items():
            environments[rank].update(variables)
        stack.callback(workers.close, timeout=0)
        workers.start()
        if workers.stop_signal is not None:  # the signal arrived before there were processes to forward it to
            raise KeyboardInterrupt
        others = stack.enter_context(_Others(launch, address))
        result = None
        while result is None and not others.failed.is_set():
            result = workers.wait(1.0, POLL_SECONDS)
        if (
            result is None
        ):  # another host failed, and no process here noticed: perhaps all of them are stopped (SIGSTOP)
            workers.close(timeout=OTHERS_SECONDS)
            result = workers.wait(0)
        if result is None or result.is_failed():
            others.tell()
            raise _Verdict(launch, workers, output_dir).error({} if result is None else result.failures)
        del store


def _meeting_place(launch: LaunchConfig) -> tuple[TCPStore | None, tuple[str, int]]:
    """Open the store on host 0; give it and its address.

    Raises:
        InputError: the address is malformed, or host 0 cannot listen there.
    """
    host, _, number = (launch.address or "127.0.0.1:0").rpartition(":")
    if not host or not number.isdigit() or int(number) > 65535 or (launch.address and int(number) == 0):
        raise InputError(f"launch.address={launch.address}: expected HOST:PORT of host 0, such as 10.0.0.1:29500")
    if launch.host_rank > 0:
        return None, (host, int(number))
    try:
        listener = socket.create_server((host, int(number)), backlog=128)
    except OSError as error:
        raise InputError(
            f"launch.address={launch.address}: {error.strerror or error}; host 0 listens there: give one of its own addresses and "
            "a free port"
        ) from None
    address = host, int(listener.getsockname()[1])
    return TCPStore(*address, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()), address


class _Others:
    """Watches the launchers of the other hosts: one has failed, or host 0 is gone. With one host it does nothing."""

    def __init__(self, launch: LaunchConfig, address: tuple[str, int]) -> None:
        self.failed, self._ended, self._address = threading.Event(), threading.Event(), address
        self._timeout = datetime.timedelta(seconds=launch.hang_timeout_seconds)
        self._store: TCPStore | None = None
        if launch.num_hosts > 1:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        with contextlib.suppress(RuntimeError):  # host 0 never appeared, or is gone
            self._store = TCPStore(*self._address, is_master=False, wait_for_workers=False, timeout=self._timeout)
            while not self._store.check([FAILED]):
                if self._ended.wait(1.0):
                    return
        self.failed.set()

    def tell(self) -> None:
        """Report this host's failure to the other hosts; if host 0 is down, they detect that themselves."""
        with contextlib.suppress(RuntimeError):
            if self._store is not None and not self.failed.is_set():
                self._store.set(FAILED, "")

    def __enter__(self) -> _Others:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()


def interface_to(host: str, port: int) -> str:
    """Find the network interface towards a host; no packet is sent.

    Raises:
        InputError: the name is unknown, or there is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise InputError(
                f"launch.address={host}:{port}: {error.strerror or error}; give host 0's address"
            ) from None
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    raise InputError(f"no network interface with the address {own} found; set GLOO_SOCKET_IFNAME in the environment")


def _variables(launch: LaunchConfig, address: tuple[str, int]) -> dict[int, dict[str, str]]:
    """Give torchrun's variables for each process of this host."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = os.environ.get("GLOO_SOCKET_IFNAME") if launch.num_hosts > 1 else None
    interface = own or interface_to(*address)
    common = {
        "WORLD_SIZE": str(launch.num_processes * launch.num_hosts), "LOCAL_WORLD_SIZE": str(launch.num_processes),
        "MASTER_ADDR": address[0], "MASTER_PORT": str(address[1]), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", interface),
    }  # fmt: skip
    if "OMP_NUM_THREADS" not in os.environ:
        common |= {"OMP_NUM_THREADS": str(max(1, cores // launch.num_processes)), world.OWN_THREADS: "1"}
    first = launch.host_rank * launch.num_processes
    return {
        rank: {**common, "RANK": str(first + rank), "LOCAL_RANK": str(rank)} for rank in range(launch.num_processes)
    }


class _Verdict:
    """Which of several failures is the cause of the others."""

    def __init__(self, launch: LaunchConfig, workers: Workers, output_dir: str | None) -> None:
        self.launch, self.workers = launch, workers
        self.step = world.newest_checkpoint(output_dir)
        how = "starts again" if self.step is None else f"resumes from checkpoint {self.step}"
        self.outlook = f"all processes were ended, and the same command {how}"

    def error(self, failures: dict[int, ProcessFailure]) -> BaseException:
        """Give the error that this host ends with.

        A signal from outside and an unexpected error are always causes. An error that bertkit names may be common to several
        processes. A lost connection is a cause only if there is no other one.
        """
        own = [failure for rank, failure in sorted(failures.items()) if rank not in self.workers.killed]
        codes = {failure.exitcode for failure in own}
        if self.workers.stop_signal is not None and -self.workers.stop_signal in codes:  # stopped before it could save
            return KeyboardInterrupt() if self.step is None else StoppedError(world.stopped_line(self.step))
        for code, kind in ((world.INTERRUPTED_CODE, KeyboardInterrupt), (world.READER_LEFT_CODE, BrokenPipeError)):
            if code in codes:
                return kind()
        for failure in own:
            if failure.exitcode < 0 and failure.exitcode != -signal.SIGABRT:
                name = self._name(failure.local_rank)
                return PeerError(f"{name} was killed by {failure.signal_name()}; {self.outlook}")
        for failure in own:
            if _explains(failure.exitcode):
                return PeerError(f"{self._name(failure.local_rank)} failed: {_message(failure)}; {self.outlook}")
        for failure in own:
            is_known = failure.exitcode in KINDS and isinstance(failure.message, dict)
            if is_known and failure.exitcode != PeerError.exit_code:
                return KINDS[failure.exitcode](*_message(failure).split("\n"))
        # the others waited for the processes that had to be killed and left no error file
        silent = [rank for rank in self.workers.killed if not os.path.exists(self.workers.error_files[rank])]
        reasons = [f"{self._name(rank)} did not answer" for rank in silent]
        reasons += [f"{self._name(failure.local_rank)}: {_message(failure)}" for failure in own[:1]]
        return PeerError("; ".join([*reasons, self.outlook]))

    def _name(self, local_rank: int) -> str:
        rank = self.launch.host_rank * self.launch.num_processes + local_rank
        pid = self.workers.processes[local_rank].pid
        return f"rank {rank} on host {socket.gethostname()} (process {pid})"


def _message(failure: ProcessFailure) -> str:
    """Read the message in a process's error file."""
    if isinstance(failure.message, dict):
        return str(failure.message["message"])
    return f"it ended with exit code {failure.exitcode} and no message"
