"""The processes of a host as their launcher knows them: what they say, and which of them is to blame when something is wrong.

Here it is decided that a run on this host ends with exit code 6; that another host is lost, in `hosts.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

from bertkit import errors, signs
from bertkit.errors import BertkitError, PeerError, StoppedError
from bertkit.files import write_durably
from bertkit.launch import hosts, watch, world

LAST_WORDS_SECONDS = 2.0  # for the others, after the first failure: their words may tell more of the cause
STACKS_SECONDS = 1.5  # for the stacks of a process to come
PASSED_ON = {
    kind.exit_code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BertkitError)
}


@dataclass
class Worker:
    """A process of this host, as the launcher knows it."""

    rank: int
    process: subprocess.Popen[bytes]
    progress: IO[bytes]
    stacks: IO[bytes]
    step: int = 0
    is_attached: bool = False
    failure: tuple[int, str] | None = None
    code: int | None = None
    unread: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        return f"rank {self.rank} on host {socket.gethostname()} (process {self.process.pid})"

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, by what Linux says."""
        try:
            status = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] in ("T", "t")

    def kill(self) -> None:
        """End it with everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@dataclass
class Workers:
    """All processes of this host."""

    output_dir: str | None  # of the run, for its checkpoints and for stacks; None for a command without one
    timeout_seconds: float  # of silence
    all: list[Worker] = field(default_factory=list)  # those that were started
    stop_signal: int | None = None  # the first request to stop, if there was one
    saved_step: int | None = None  # of the newest checkpoint that they saved
    num_signs: int = 0  # of life, of all of them

    def hear(self, worker: Worker) -> bool | None:
        """Take in what a process says; whether it said something, None at the end."""
        data = worker.progress.read(1 << 16)
        if data is None:
            return False
        if not data:
            return None
        *lines, worker.unread = (worker.unread + data).split(b"\n")
        for line in lines:
            kind, value = json.loads(line)
            if kind == "beat" and value is not None:
                worker.step = value
            elif kind == "saved":
                self.saved_step = value
            elif kind == "attached":
                worker.is_attached = True
            elif kind == "failed":
                worker.failure = (value[0], value[1])
        self.num_signs += len(lines)
        return True

    def state(self) -> str:
        """Say how far the run came, and what the same command will do."""
        step = max(worker.step for worker in self.all)
        how = "starts again" if self.saved_step is None else f"resumes from checkpoint {self.saved_step}"
        return f"last step {step}; all processes were ended, and the same command {how}"

    def judge_failures(self, others: hosts.Hosts, is_last_word: bool) -> None:
        """Raise the failure that explains the others, as soon as it is known which one that is.

        A signal from outside explains everything, and so does an error that nobody foresaw; of errors that bertkit names
        the others may have the same; a lost connection explains nothing while there may be another reason for it.
        """
        for worker in self.all:
            if self.stop_signal is not None and (
                worker.code == -self.stop_signal or worker.failure == (world.INTERRUPTED_CODE, world.INTERRUPTED)
            ):
                self._stopped_early()
            if worker.failure == (world.READER_LEFT_CODE, world.READER_LEFT):
                raise BrokenPipeError
            comes_to_all = worker.code in [-number for number in world.STOP_SIGNALS]  # and perhaps to this process next
            if worker.code is not None and worker.code < 0 and worker.code != -signal.SIGABRT:
                if comes_to_all and not is_last_word:
                    return
                name = signal.Signals(-worker.code).name
                raise PeerError(f"{worker} was killed by {name}; {self.state()}")
            if (
                worker.failure is not None
                and worker.failure[0] not in PASSED_ON
                and not world.LOST_PEER.search(worker.failure[1])
            ):
                raise PeerError(f"{worker} failed: {worker.failure[1]}; {self.state()}")
        has_ended = all(worker.code is not None for worker in self.all)
        if not has_ended and not is_last_word:
            return
        failures = [(worker, *worker.failure) for worker in self.all if worker.failure is not None]
        for _, code, message in failures:
            if code in PASSED_ON:
                raise PASSED_ON[code](*message.split("\n"))
        if others.failure is not None:
            code, message = others.failure
            if code == world.INTERRUPTED_CODE:
                self._stopped_early()
            raise PASSED_ON.get(code, PeerError)(*message.split("\n"))
        if others.peers and not is_last_word:
            return
        for worker, _, message in failures:
            raise PeerError(f"{worker} failed: {message}; {self.state()}")
        for worker in self.all:
            if worker.code:
                how = (
                    f"was killed by {signal.Signals(-worker.code).name}"
                    if worker.code < 0
                    else f"ended with exit code {worker.code}"
                )
                raise PeerError(f"{worker} {how} and said nothing; {self.state()}")

    def _stopped_early(self) -> NoReturn:
        step = self.saved_step or world.newest_checkpoint(self.output_dir)
        if step is None:
            raise KeyboardInterrupt
        raise StoppedError(world.stopped_line(step))

    def judge_silence(self, others: hosts.Hosts) -> NoReturn:
        """Name the processes that do not wait for others; where all of them wait, the other host is asked for."""
        for worker in self.all:
            if worker.code is None and worker.is_attached:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.process.pid, watch.STACKS_SIGNAL)
        time.sleep(STACKS_SECONDS)
        stacks = {worker.rank: _content(worker.stacks) for worker in self.all}
        guilty = []
        for worker in self.all:
            if worker.is_stopped():
                guilty.append(f"{worker} is stopped (SIGSTOP?)")
            elif worker.code is None and not worker.is_attached:
                guilty.append(f"{worker} did not start")
            elif worker.code is None and not stacks[worker.rank]:
                guilty.append(f"{worker} does not answer")
            elif worker.code is None:
                place, waits = watch.where(stacks[worker.rank])
                if not waits:
                    guilty.append(f"{worker} does not go on, at {place}")
        timeout = f"no sign of life for {self.timeout_seconds:g} s"
        where = self._write_stacks(stacks)
        if guilty:
            raise PeerError(f"{'; '.join(guilty)}: {timeout}; stacks: {where}; {self.state()}")
        if others.peers:
            self._ask(others)
            behind = ", ".join(map(str, others.peers))
            raise PeerError(f"all processes here wait for {behind}: {timeout}; stacks: {where}; {self.state()}")
        raise PeerError(f"all processes wait for one another: {timeout}; stacks: {where}; {self.state()}")

    def _ask(self, others: hosts.Hosts) -> None:
        """Give the other hosts, which noticed the silence at the same time, a moment to name the process that causes it."""
        until = time.monotonic() + LAST_WORDS_SECONDS
        while time.monotonic() < until and others.failure is None:
            for peer in others.peers:
                if not peer.is_done:
                    others.take(peer)
            time.sleep(signs.TICK_SECONDS)
        if others.failure is not None:
            code, message = others.failure
            raise PASSED_ON.get(code, PeerError)(message)

    def _write_stacks(self, stacks: Mapping[int, str]) -> str:
        """Keep the stacks in the run's directory, or where there is none, in a temporary one."""
        directory = Path(self.output_dir) if self.output_dir is not None else None
        if directory is None or not (directory / "manifest.json").is_file():  # no run's, or not yet
            directory = Path(tempfile.mkdtemp(prefix="bertkit-stacks-"))
        for rank, text in stacks.items():
            write_durably(directory / f"stacks-rank-{rank}.txt", text)
        return str(directory / "stacks-rank-*.txt")


def _content(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode("utf-8", "replace")
