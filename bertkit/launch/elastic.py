"""Starts, watches and stops the processes of one host, with torch's elastic multiprocessing and its error files.

The processes of all hosts connect to a TCPStore in the launcher of host 0. It listens on one address: 127.0.0.1 for one host,
otherwise `launch.address`. It has no password, so anyone who can reach the port can join the run.

If a process dies or hangs, the run ends with exit code 6 (`PeerError`). This file does not detect a process that hangs: the
processes that wait for it fail after `launch.hang_timeout_seconds`, the timeout of their process group.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from bertkit.base import errors
from bertkit.base.errors import INTERRUPTED_CODE, BertkitError, InputError, PeerError, StoppedError, refusing
from bertkit.base.processors import num_processors
from bertkit.launch import world
from bertkit.launch.launch_config import LaunchConfig

REPORT_SECONDS = 2.0  # after the first failure, the other processes have this time to report their errors
KILL_SECONDS = 5  # how long to wait for a killed process, which may hang in a driver
POLL_SECONDS = 0.05
OTHER_HOST_SECONDS = 5.0  # after a failure of another host, processes here have this time to end by themselves
FAILED = "bertkit/failed"  # a key in the store
ERRORS = {
    kind.exit_code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BertkitError)
}


class Workers(SubprocessContext):
    """The processes of this host."""

    def __init__(self, command: Sequence[str], environments: dict[int, dict[str, str]], folder: str) -> None:
        arguments = dict.fromkeys(environments, tuple(command[1:]))
        super().__init__("worker", command[0], arguments, environments, DefaultLogsSpecs(folder))
        self.killed: list[int] = []  # local ranks that were killed after another process had failed
        self.stop_signal: int | None = None  # the first signal that asked the run to stop
        self._stop_at = 0.0

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The started processes."""
        return [handler.proc for handler in self.subprocess_handlers.values()]

    def start(self) -> None:
        """Start the processes, without replacing our signal handlers as torch's own `start` does."""
        self._start()  # type: ignore[no-untyped-call]

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Forward the first signal to all processes; a second signal ends everything.

        The same signal within a second does not count as a second one: Slurm and terminals send it to all processes, and a
        script may forward it once more.
        """
        now = time.monotonic()
        if self.stop_signal is None:
            self.stop_signal, self._stop_at = number, now
            for process in self.processes:
                process.send_signal(number)
        elif number != self.stop_signal or now - self._stop_at >= world.SAME_REQUEST_SECONDS:
            raise SystemExit(128 + number)  # `run` kills the processes

    def close(self, death_sig: signal.Signals | None = None, timeout: float = REPORT_SECONDS) -> None:
        """Kill all processes after `timeout` seconds, or at once if an exit code shows the cause of the failure."""
        is_explained = any(_is_cause(process.poll() or 0) for process in self.processes)
        until = time.monotonic() + (0 if is_explained else timeout)
        while any(process.poll() is None for process in self.processes) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        self.killed += [rank for rank, process in enumerate(self.processes) if process.poll() is None]
        super().close(signal.SIGKILL, KILL_SECONDS)


def _is_cause(code: int) -> bool:
    """Return whether an exit code means that this process caused the failure: it is no consequence, and no stop request."""
    if code < 0:  # NCCL aborts (SIGABRT) when a peer is lost
        return -code not in (signal.SIGABRT, *world.STOP_SIGNALS)
    return code not in (0, *ERRORS, INTERRUPTED_CODE, world.BROKEN_PIPE_CODE)


def run(launch: LaunchConfig, job: dict[str, Any], output_dir: str | None) -> None:
    """Start the processes of this host, wait for them, and clean up; raises the errors of `launcher.start`."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # bertkit prints one line itself
    with tempfile.TemporaryDirectory(prefix="bertkit-") as folder, contextlib.ExitStack() as stack:
        Path(folder, "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = world.child_command("--worker", f"{folder}/job.json")
        environments: dict[int, dict[str, str]] = {rank: {} for rank in range(launch.num_processes)}
        workers = Workers(command, environments, folder)
        stack.enter_context(world.handle_signals(world.STOP_SIGNALS, workers.on_signal))
        store, address = _open_store(launch)  # the variable keeps the store open
        for rank, variables in _variables(launch, address).items():
            environments[rank].update(variables)
        stack.callback(workers.close, timeout=0)
        workers.start()
        if workers.stop_signal is not None:  # the signal arrived before there were processes to forward it to
            raise KeyboardInterrupt
        other_hosts = _OtherHosts(launch, address)
        stack.callback(other_hosts.ended.set)
        result = None
        while result is None and not other_hosts.failed.is_set():
            result = workers.wait(1.0, POLL_SECONDS)
        if result is None:  # another host failed, but no process here: they may all be paused (SIGSTOP)
            workers.close(timeout=OTHER_HOST_SECONDS)
            result = workers.wait(0)
        if result is None or result.is_failed():
            other_hosts.report_failure()
            raise _Diagnosis(launch, workers, output_dir).error({} if result is None else result.failures)
        del store


def _open_store(launch: LaunchConfig) -> tuple[TCPStore | None, tuple[str, int]]:
    """Open the store if this is host 0; return it, or None, and its address."""
    host, _, number = (launch.address or "127.0.0.1:0").rpartition(":")
    is_port = re.fullmatch("[0-9]{1,5}", number) and (1 if launch.address else 0) <= int(number) <= 65535
    if not (host and is_port):
        raise InputError(f"launch.address={launch.address}: expected HOST:PORT of host 0, such as 10.0.0.1:29500")
    if launch.host_rank > 0:
        return None, (host, int(number))
    advice = "give an address of host 0 itself, and a free port on which it can listen"
    with refusing(OSError, lambda error: f"launch.address={launch.address}: {error.strerror or error}; {advice}"):
        listener = socket.create_server((host, int(number)), backlog=128)
    address = host, int(listener.getsockname()[1])
    return TCPStore(*address, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()), address


class _OtherHosts:
    """Detects failures of the launchers on other hosts; without other hosts it does nothing."""

    def __init__(self, launch: LaunchConfig, address: tuple[str, int]) -> None:
        self.failed, self.ended, self._address = threading.Event(), threading.Event(), address
        self._timeout = datetime.timedelta(seconds=launch.hang_timeout_seconds)
        self._store: TCPStore | None = None
        if launch.num_hosts > 1:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        with contextlib.suppress(RuntimeError):  # host 0 cannot be reached, or no longer
            self._store = TCPStore(*self._address, is_master=False, wait_for_workers=False, timeout=self._timeout)
            while not self._store.check([FAILED]):
                if self.ended.wait(1.0):
                    return
        self.failed.set()

    def report_failure(self) -> None:
        """Report the failure of this host to the other hosts; if host 0 fails, they detect it themselves."""
        with contextlib.suppress(RuntimeError):
            if self._store is not None and not self.failed.is_set():
                self._store.set(FAILED, "")


def interface_to(host: str, port: int) -> str:
    """Return the name of the network interface that connects to a host; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        where = f"launch.address={host}:{port}"
        with refusing(OSError, lambda error: f"{where}: {error.strerror or error}; give host 0's address"):
            probe.connect((host, port))
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == own for each in addresses):
            return str(name)
    raise InputError(f"no network interface with the address {own} found; set GLOO_SOCKET_IFNAME in the environment")


def _variables(launch: LaunchConfig, address: tuple[str, int]) -> dict[int, dict[str, str]]:
    """Return torchrun's environment variables for each process of this host."""
    own = os.environ.get("GLOO_SOCKET_IFNAME") if launch.num_hosts > 1 else None
    interface = own or interface_to(*address)
    common = {
        "WORLD_SIZE": str(launch.num_processes * launch.num_hosts), "LOCAL_WORLD_SIZE": str(launch.num_processes),
        "MASTER_ADDR": address[0], "MASTER_PORT": str(address[1]), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", interface),
    }  # fmt: skip
    if "OMP_NUM_THREADS" not in os.environ:
        common |= {"OMP_NUM_THREADS": str(max(1, num_processors() // launch.num_processes)), world.OWN_THREADS: "1"}
    first = launch.host_rank * launch.num_processes
    return {
        rank: {**common, "RANK": str(first + rank), "LOCAL_RANK": str(rank)} for rank in range(launch.num_processes)
    }


class _Diagnosis:
    """Finds the failure that caused the others."""

    def __init__(self, launch: LaunchConfig, workers: Workers, output_dir: str | None) -> None:
        self.launch, self.workers = launch, workers
        self.step = world.newest_checkpoint(output_dir)
        how = "starts again" if self.step is None else f"resumes from checkpoint {self.step}"
        self.next_start = f"all processes were ended, and the same command {how}"

    def error(self, failures: dict[int, ProcessFailure]) -> BaseException:
        """Return the error with which this host ends.

        In this order: a signal from outside; an unexpected error; a `BertkitError`, which several processes may have raised; a
        lost connection, which is usually a consequence.
        """
        own = [failure for rank, failure in sorted(failures.items()) if rank not in self.workers.killed]
        codes = {failure.exitcode for failure in own}
        if self.workers.stop_signal is not None and -self.workers.stop_signal in codes:  # stopped before it could save
            return KeyboardInterrupt() if self.step is None else StoppedError(world.stopped_line(self.step))
        for code, kind in ((INTERRUPTED_CODE, KeyboardInterrupt), (world.BROKEN_PIPE_CODE, BrokenPipeError)):
            if code in codes:
                return kind()
        for failure in own:
            if failure.exitcode < 0 and failure.exitcode != -signal.SIGABRT:
                name = self._name(failure.local_rank)
                return PeerError(f"{name} was killed by {failure.signal_name()}; {self.next_start}")
        for failure in own:
            if _is_cause(failure.exitcode):
                return PeerError(f"{self._name(failure.local_rank)} failed: {_message(failure)}; {self.next_start}")
        for failure in own:
            is_known = failure.exitcode in ERRORS and isinstance(failure.message, dict)
            if is_known and failure.exitcode != PeerError.exit_code:
                return ERRORS[failure.exitcode](*_message(failure).split("\n"))
        # processes that were killed and left no error file were hanging; the other processes waited for them
        silent = [rank for rank in self.workers.killed if not os.path.exists(self.workers.error_files[rank])]
        reasons = [f"{self._name(rank)} did not respond" for rank in silent]
        reasons += [f"{self._name(failure.local_rank)}: {_message(failure)}" for failure in own[:1]]
        return PeerError("; ".join([*reasons, self.next_start]))

    def _name(self, local_rank: int) -> str:
        rank = self.launch.host_rank * self.launch.num_processes + local_rank
        pid = self.workers.processes[local_rank].pid
        return f"rank {rank} on host {socket.gethostname()} (process {pid})"


def _message(failure: ProcessFailure) -> str:
    """Read the message in a process's error file."""
    if isinstance(failure.message, dict):
        return str(failure.message["message"])
    return f"it ended with exit code {failure.exitcode} and no message"
