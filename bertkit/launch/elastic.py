"""The processes of a host: torch's elastic multiprocessing starts and ends them, and keeps a file of errors for each.

The processes of all hosts meet in a TCPStore, which host 0's launcher holds. It listens on one address alone: 127.0.0.1 for
one host, else `launch.address`. There is no password: whoever reaches the port could take part.

Here it is decided that a run ends with exit code 6. A process that hangs is not looked for: those that wait for it give up
after `launch.hang_timeout_seconds`, the timeout of their process group.
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

LAST_WORDS_SECONDS = 2.0  # for the others, after the first failure: they may know more of the cause
KILL_SECONDS = 5  # until a killed process is gone; one that a driver holds may stay
POLL_SECONDS = 0.05
OTHERS_SECONDS = 5.0  # for the processes of this host to end by themselves, when another host has failed
FAILED = "bertkit/failed"  # in the store
SIOCGIFADDR = 0x8915  # linux/sockios.h
KINDS = {
    kind.exit_code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BertkitError)
}


class Workers(SubprocessContext):
    """The processes of this host.

    Attributes:
        killed: local ranks of those that had to be killed, after another one failed.
        stop_signal: the first request to stop.
    """

    def __init__(self, command: Sequence[str], environments: dict[int, dict[str, str]], folder: str) -> None:
        arguments = dict.fromkeys(environments, tuple(command[1:]))
        super().__init__("worker", command[0], arguments, environments, DefaultLogsSpecs(folder))
        self.killed: list[int] = []
        self.stop_signal: int | None = None
        self._stop_at = 0.0

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Those that were started."""
        return [handler.proc for handler in self.subprocess_handlers.values()]

    def start(self) -> None:
        """Start them; torch's own way would take the signals over, which are handled here."""
        self._start()  # type: ignore[no-untyped-call]

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Pass the first request to stop on; the second ends everything at once.

        A signal that comes again within a second is the same request: Slurm's and a terminal's own, to all processes, and
        what a script in between passes on.
        """
        now = time.monotonic()
        if self.stop_signal is None:
            self.stop_signal, self._stop_at = number, now
            for process in self.processes:
                process.send_signal(number)
        elif number != self.stop_signal or now - self._stop_at >= world.SAME_REQUEST_SECONDS:
            raise SystemExit(128 + number)  # kills them on its way

    def close(self, death_sig: signal.Signals | None = None, timeout: float = LAST_WORDS_SECONDS) -> None:
        """End all of them: they have `timeout` seconds to end by themselves, unless one explains it all; then they are killed."""
        explained = any(_explains(process.poll() or 0) for process in self.processes)
        until = time.monotonic() + (0 if explained else timeout)
        while any(process.poll() is None for process in self.processes) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        self.killed += [rank for rank, process in enumerate(self.processes) if process.poll() is None]
        super().close(signal.SIGKILL, KILL_SECONDS)


def _explains(code: int) -> bool:
    """Whether the exit code of one process explains what becomes of the others; they may get the same signal to stop."""
    if code < 0:  # NCCL leaves a lost peer by SIGABRT
        return -code not in (signal.SIGABRT, *world.STOP_SIGNALS)
    return code not in (0, *KINDS, world.INTERRUPTED_CODE, world.READER_LEFT_CODE)


def run(launch: LaunchConfig, job: dict[str, Any], output_dir: str | None) -> None:
    """Start this host's processes, watch them to their end, and leave nothing behind; the errors are those of `start`."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # one line says what happened: ours
    with tempfile.TemporaryDirectory(prefix="bertkit-") as folder, contextlib.ExitStack() as stack:
        Path(folder, "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = world.own_command("--worker", f"{folder}/job.json")
        environments: dict[int, dict[str, str]] = {rank: {} for rank in range(launch.num_processes)}
        workers = Workers(command, environments, folder)
        for number in world.STOP_SIGNALS:
            stack.callback(signal.signal, number, signal.signal(number, workers.on_signal))
        store, address = _meeting_place(launch)  # open until the workers have ended
        for rank, variables in _variables(launch, address).items():
            environments[rank].update(variables)
        stack.callback(workers.close, timeout=0)
        workers.start()
        if workers.stop_signal is not None:  # it came before there was anyone to pass it on to
            raise KeyboardInterrupt
        others = stack.enter_context(_Others(launch, address))
        result = None
        while result is None and not others.failed.is_set():
            result = workers.wait(1.0, POLL_SECONDS)
        if result is None:  # no process of this host noticed it: perhaps all of them are stopped
            workers.close(timeout=OTHERS_SECONDS)
            result = workers.wait(0)
        if result is None or result.is_failed():
            others.tell()
            raise _Verdict(launch, workers, output_dir).error({} if result is None else result.failures)
        del store


def _meeting_place(launch: LaunchConfig) -> tuple[TCPStore | None, tuple[str, int]]:
    """Open the store on host 0; give it with the address where every process finds it.

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
            f"launch.address={launch.address}: {error.strerror or error}; host 0 listens there: give an address of its own and a "
            "free port"
        ) from None
    address = host, int(listener.getsockname()[1])
    return TCPStore(*address, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()), address


class _Others:
    """The launchers of the other hosts: whether one of them failed, or host 0's is gone; nothing for one host."""

    def __init__(self, launch: LaunchConfig, address: tuple[str, int]) -> None:
        self.failed, self._ended, self._address = threading.Event(), threading.Event(), address
        self._timeout = datetime.timedelta(seconds=launch.hang_timeout_seconds)
        self._store: TCPStore | None = None
        if launch.num_hosts > 1:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        with contextlib.suppress(RuntimeError):  # host 0 did not come, or is gone
            self._store = TCPStore(*self._address, is_master=False, wait_for_workers=False, timeout=self._timeout)
            while not self._store.check([FAILED]):
                if self._ended.wait(1.0):
                    return
        self.failed.set()

    def tell(self) -> None:
        """Tell them that this host failed; where host 0 is gone, they know."""
        with contextlib.suppress(RuntimeError):
            if self._store is not None and not self.failed.is_set():
                self._store.set(FAILED, "")

    def __enter__(self) -> _Others:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()


def interface_to(host: str, port: int) -> str:
    """Give the network interface on the way to a host; no packet is sent.

    Raises:
        InputError: the name is unknown, or there is no way.
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
    chosen = os.environ.get("GLOO_SOCKET_IFNAME") if launch.num_hosts > 1 else None
    interface = chosen or interface_to(*address)
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
    """Which of several failures explains the others."""

    def __init__(self, launch: LaunchConfig, workers: Workers, output_dir: str | None) -> None:
        self.launch, self.workers, self.output_dir = launch, workers, output_dir

    def error(self, failures: dict[int, ProcessFailure]) -> BaseException:
        """Give the error that this host ends with.

        A signal from outside explains everything, and so does an unexpected error; of errors that bertkit names the others
        may have the same; a lost connection explains nothing while there may be another reason for it.
        """
        found = [failure for rank, failure in sorted(failures.items()) if rank not in self.workers.killed]
        codes = {failure.exitcode for failure in found}
        if self.workers.stop_signal is not None and -self.workers.stop_signal in codes:
            return self._stopped_early()
        for code, kind in ((world.INTERRUPTED_CODE, KeyboardInterrupt), (world.READER_LEFT_CODE, BrokenPipeError)):
            if code in codes:
                return kind()
        for failure in found:
            if failure.exitcode < 0 and failure.exitcode != -signal.SIGABRT:
                return PeerError(f"{self._who(failure)} was killed by {failure.signal_name()}; {self._state()}")
        for failure in found:
            if _explains(failure.exitcode):
                return PeerError(f"{self._who(failure)} failed: {_said(failure)}; {self._state()}")
        for failure in found:
            is_known = failure.exitcode in KINDS and isinstance(failure.message, dict)
            if is_known and failure.exitcode != PeerError.exit_code:
                return KINDS[failure.exitcode](*_said(failure).split("\n"))
        return self._lost(found)

    def _lost(self, found: list[ProcessFailure]) -> BaseException:
        """Name those that had to be killed and had said nothing: the others waited for them."""
        silent = [rank for rank in self.workers.killed if not os.path.exists(self.workers.error_files[rank])]
        said = [f"{self._name(rank)} did not answer" for rank in silent]
        said += [f"{self._who(failure)}: {_said(failure)}" for failure in found[:1]]
        return PeerError("; ".join([*said, self._state()]))

    def _who(self, failure: ProcessFailure) -> str:
        return self._name(failure.local_rank)

    def _name(self, local_rank: int) -> str:
        rank = self.launch.host_rank * self.launch.num_processes + local_rank
        pid = self.workers.processes[local_rank].pid
        return f"rank {rank} on host {socket.gethostname()} (process {pid})"

    def _state(self) -> str:
        """Say what the same command will do."""
        step = world.newest_checkpoint(self.output_dir)
        how = "starts again" if step is None else f"resumes from checkpoint {step}"
        return f"all processes were ended, and the same command {how}"

    def _stopped_early(self) -> BaseException:
        """A process that was stopped before it could save."""
        step = world.newest_checkpoint(self.output_dir)
        return KeyboardInterrupt() if step is None else StoppedError(world.stopped_line(step))


def _said(failure: ProcessFailure) -> str:
    """Give what a process wrote into its error file."""
    if isinstance(failure.message, dict):
        return str(failure.message["message"])
    return f"it ended with exit code {failure.exitcode} and said nothing"
