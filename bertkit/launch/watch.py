"""Who listens to the signs of life of a process: the launcher, by a pipe, or a thread that ends the process when they stop."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import linecache
import math
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertkit import signs
from bertkit.errors import InputError, PeerError, say
from bertkit.launch.config import LaunchConfig
from bertkit.launch.world import World, variables_of_slurm, world_from_environment
from bertkit.signs import TICK_SECONDS

PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
STACKS_SIGNAL = signal.SIGUSR2
SUSPENDED_SECONDS = 3.0  # a watcher that was not run for so long knows nothing of the others
SHARES_PER_TIMEOUT = 10
PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None

# what a process does while it waits for others: the functions of torch that block, and whatever has to wait for a device
WAITING_FILES = ("/torch/distributed/", "/torch/autograd/")
WAITING_CALL = re.compile(
    r"\.(wait|recv|send|backward|item|tolist|synchronize|barrier|wait_for_everyone|TCPStore)\(|float\(|reduce"
)


class _Pipe(signs.Silence):
    """The launcher listens."""

    decides_stops = True

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        os.set_blocking(descriptor, False)

    def send(self, kind: str, value: Any) -> bool:
        """Write a line; a beat that finds the pipe full is left out, since there are beats enough in it."""
        if kind == "failed":
            os.set_blocking(self.descriptor, True)
        try:
            os.write(self.descriptor, json.dumps([kind, value]).encode() + b"\n")
        except (BlockingIOError, BrokenPipeError):
            return False
        return True


class _Watch(signs.Silence):
    """A thread of this process listens, and ends it when nothing was heard for too long."""

    def __init__(self, rank: int, timeout_seconds: float, end: Callable[[str], None]) -> None:
        self.rank, self.timeout_seconds, self.end, self.step = rank, timeout_seconds, end, 0
        self.num_beats, self.others_at = 0, -math.inf
        self.heard_at = self.looked_at = time.monotonic()
        threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def send(self, kind: str, value: Any) -> bool:
        """Note the time."""
        self.heard_at = time.monotonic()
        self.num_beats += 1
        self.step = value if kind == "beat" and value is not None else self.step
        return False

    def _watch(self) -> None:
        while True:
            time.sleep(min(TICK_SECONDS, self.timeout_seconds / 10))
            now = time.monotonic()
            if now - self.looked_at > SUSPENDED_SECONDS:
                self.heard_at = now
            self.looked_at = now
            if now - self.heard_at > self.timeout_seconds:
                line, waits, stacks = self._verdict()
                if waits and now - self.others_at < self.timeout_seconds:
                    self.heard_at = self.others_at
                    os.unlink(stacks)
                    continue
                self.end(line)
                return

    def share(self, add: Callable[[int], int]) -> None:
        """Add this process's signs to a count of everybody's from time to time, and note when the others' were more.

        From a thread of its own, since `add` comes back late, or never, where the process that counts is stopped.
        """

        def follow() -> None:
            shared = total = 0
            while True:
                own = self.num_beats
                try:
                    before, total = total, add(own - shared)
                except RuntimeError:  # the process that counts is gone; those that wait for it find out by themselves
                    return
                if total - before > own - shared:
                    self.others_at = time.monotonic()
                shared = own
                time.sleep(self.timeout_seconds / SHARES_PER_TIMEOUT)

        threading.Thread(target=follow, daemon=True, name="share").start()

    def _verdict(self) -> tuple[str, bool, str]:
        with tempfile.NamedTemporaryFile("w+", prefix=f"bertkit-stacks-rank-{self.rank}-", delete=False) as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            place, waits = where(file.read())
        does = f"waits for another process, at {place}" if waits else f"does not go on, at {place}"
        line = (
            f"rank {self.rank} on host {socket.gethostname()} (process {os.getpid()}) {does}; no sign of life for "
            f"{self.timeout_seconds:g} s, after step {self.step}; stacks: {file.name}"
        )
        return line, waits, file.name


class _Imports:
    """Finds no module, but says that one is looked for."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Give a sign of life."""
        signs.beat()


def attach(progress_fd: int, lifeline_fd: int, stacks_fd: int, launcher_pid: int) -> None:
    """Join a process to its launcher.

    Args:
        progress_fd: where signs of life go.
        lifeline_fd: reads nothing until the launcher is gone; then this process and its children end.
        stacks_fd: a file that gets the stacks of all threads on `STACKS_SIGNAL`, also from within native code.
        launcher_pid: to notice a launcher that was gone before.
    """
    pipe = _Pipe(progress_fd)
    signs.listen(pipe)
    faulthandler.register(STACKS_SIGNAL, file=stacks_fd, all_threads=True, chain=False)
    if os.getppid() != launcher_pid:
        os._exit(1)

    def follow() -> None:
        os.read(lifeline_fd, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=follow, daemon=True, name="lifeline").start()
    sys.meta_path.insert(0, _Imports())  # to import torch from a slow file system may take minutes
    pipe.send("attached", None)


def watch(rank: int, timeout_seconds: float, end: Callable[[str], None]) -> None:
    """Watch this process from a thread, where no launcher does; `end` gets the line that says what was found."""
    signs.listen(_Watch(rank, timeout_seconds, end))
    sys.meta_path.insert(0, _Imports())


def end_with_parent() -> None:
    """Let Linux kill this process when the one that started it is gone, even where this one is stopped.

    Called in a new process before it becomes another program, so that there is no moment without it.
    """
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def where(stacks: str) -> tuple[str, bool]:
    """Read off a dump of faulthandler's where the main thread is, and whether that is a place to wait for others.

    The main thread is the last one of a dump; its innermost call comes first.
    """
    main = re.split(r"^(?:Current thread|Thread) .*$", stacks, flags=re.MULTILINE)[-1]
    frames = re.findall(r'^  File "(.+)", line (\d+) in (\S+)', main, flags=re.MULTILINE)
    if not frames:
        return "an unknown place", False
    file, line, function = frames[0]
    code = linecache.getline(file, int(line))
    waits = any(part in file for part in WAITING_FILES) or WAITING_CALL.search(code) is not None
    own = next((frame for frame in frames if frame[0].startswith(PACKAGE)), frames[0])
    place = f"{own[0].removeprefix(PACKAGE)}:{own[1]} in {own[2]}"
    return place if own == frames[0] else f"{place} ({function})", waits


def enter(launch: LaunchConfig) -> World:
    """Take part in a world that somebody else started: check it, complete its variables, and watch this process.

    Raises:
        InputError: another world is asked for, or the variables do not say where its processes meet.
    """
    world = world_from_environment()
    wanted = launch.num_processes * launch.num_hosts
    if wanted not in (1, world.size):
        raise InputError(
            f"launch.num_processes={launch.num_processes} on launch.num_hosts={launch.num_hosts} are {wanted} processes, "
            f"torchrun or srun started {world.size}; leave launch.* out, or start without them"
        )
    if world.size == 1:
        return world
    if "RANK" not in os.environ:
        os.environ |= variables_of_slurm(os.environ)
    missing = [name for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(f"{', '.join(missing)} not set beside RANK and WORLD_SIZE; start as torchrun does")

    for name in ("LOCAL_RANK", "MASTER_PORT"):
        if not re.fullmatch("[0-9]{1,5}", os.environ[name]):
            raise InputError(f"{name}={os.environ[name]}: expected a number; start as torchrun does")

    def end(line: str) -> None:
        say(f"error: {line}", file=sys.stderr)
        os._exit(PeerError.exit_code)

    watch(world.rank, launch.hang_timeout_seconds, end)
    return world
