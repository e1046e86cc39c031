"""The launcher: it starts the processes of a host and watches them.

The launcher imports no torch. It hands the settings that it has checked to `bertkit --worker`, each process in
a session of its own, and hears from each through a pipe. Whatever goes wrong with one of them, all are killed at once:
gloo and NCCL cannot be interrupted in the middle of a collective.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from types import FrameType
from typing import Any

from bertkit import signs
from bertkit.errors import BertkitError, InputError, PeerError
from bertkit.launch import hosts, watch, world
from bertkit.launch.config import LaunchConfig
from bertkit.launch.workers import LAST_WORDS_SECONDS, Worker, Workers

JOB = "BERTKIT_JOB"  # the variable that tells a worker where its settings are
STORE = "BERTKIT_STORE_FD"  # read by train/processes.py


def starts_workers(launch: LaunchConfig) -> bool:
    """Whether this process is to start processes: several are asked for, and nobody has started them yet.

    srun may start the launchers themselves, one on each host.
    """
    if launch.num_processes * launch.num_hosts == 1 or "RANK" in os.environ:
        return False
    return not world.is_slurm_task(os.environ) or os.environ["SLURM_NTASKS"] == str(launch.num_hosts)


is_launcher = False  # whether this process started others: then it speaks for them, whatever srun calls it
shows_tracebacks = False  # whether the user asked for tracebacks, of the processes that are started too


def start(command: str, settings: Any) -> None:
    """Start this host's processes of a command, and watch them to their end.

    Raises:
        BertkitError: of the kind that a process ended with.
        PeerError: a process died, hangs or raised something unforeseen, or another host did.
        BrokenPipeError: nobody reads any longer what a process writes.
        KeyboardInterrupt: stopped before there was anything to save.
    """
    global is_launcher
    is_launcher = True
    job = {
        "command": command,
        "settings": dataclasses.asdict(settings),
        "debug": shows_tracebacks,
        "arguments": sys.argv,
    }
    _Launcher(settings.launch, job, getattr(settings, "output_dir", None)).run()


class _Launcher:
    """The processes of one host, from their start to their end."""

    def __init__(self, launch: LaunchConfig, job: dict[str, Any], output_dir: str | None) -> None:
        self.launch, self.job, self.stop_at = launch, job, 0.0
        self.workers = Workers(output_dir, launch.hang_timeout_seconds)

    def run(self) -> None:
        """Start, watch, and leave nothing behind."""
        launch, shared = self.launch, json.loads(json.dumps(self.job["settings"]))
        for own in ("host_rank", "interface", "address"):
            del shared["launch"][own]
        shared = {"command": self.job["command"], **shared}
        before = {number: signal.signal(number, self._on_signal) for number in world.STOP_SIGNALS}
        try:
            with hosts.joined(
                launch.address, launch.host_rank, launch.num_hosts, launch.hang_timeout_seconds, shared,
                lambda: self.workers.stop_signal is not None,
            ) as others, contextlib.ExitStack() as stack:  # fmt: skip
                try:
                    self._start(others, stack)
                    self._watch(others)
                except BertkitError as error:
                    others.end("failed", [error.exit_code, str(error)])
                    raise
                except BrokenPipeError:
                    others.end("failed", [world.READER_LEFT_CODE, f"{world.READER_LEFT} of host {launch.host_rank}"])
                    raise
                except KeyboardInterrupt:
                    others.end("failed", [world.INTERRUPTED_CODE, world.INTERRUPTED])
                    raise
                others.end("done", None)
        finally:
            self._kill()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Pass the first request to stop on; the second ends everything at once.

        A signal that comes again within a second is the same request: Slurm's and a terminal's own, to all processes, and
        what a script in between passes on.
        """
        now = time.monotonic()
        if number == self.workers.stop_signal and now - self.stop_at < world.SAME_REQUEST_SECONDS:
            return
        if self.workers.stop_signal is not None:
            self._kill()
            os._exit(128 + number)
        self.workers.stop_signal, self.stop_at = number, now
        for worker in self.workers.all:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid, number)

    def _kill(self) -> None:
        for worker in self.workers.all:
            if worker.process.returncode is None:  # else its number may be another's by now
                worker.kill()
        for worker in self.workers.all:
            worker.process.wait()

    def _start(self, others: hosts.Hosts, stack: contextlib.ExitStack) -> None:
        launch, (host, port) = self.launch, others.store
        lifeline, held = os.pipe()  # only the launcher holds the other end
        stack.callback(os.close, lifeline)
        stack.callback(os.close, held)
        own = "127.0.0.1" if launch.num_hosts == 1 else hosts.own_address(host, port)
        interface = launch.interface or hosts.interface_of(own)
        if interface is None:
            raise InputError(f"no network interface with the address {own} found; set launch.interface=")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = str(max(1, cores // launch.num_processes))
        variables = {
            **({} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": threads, world.OWN_THREADS: "1"}),
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # no warnings of addresses without a name
        } | os.environ
        variables |= {
            "WORLD_SIZE": str(launch.num_processes * launch.num_hosts), "LOCAL_WORLD_SIZE": str(launch.num_processes),
            "MASTER_ADDR": host, "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", interface),
        }  # fmt: skip
        for local_rank in range(launch.num_processes):
            rank = launch.host_rank * launch.num_processes + local_rank
            store_fd = others.listener.fileno() if rank == 0 and others.listener is not None else None
            with contextlib.ExitStack() as at_once:
                job = at_once.enter_context(tempfile.TemporaryFile())
                stacks = stack.enter_context(tempfile.TemporaryFile())
                read, write = os.pipe()
                at_once.callback(os.close, write)
                progress = stack.enter_context(open(read, "rb", buffering=0))
                fds = {"progress_fd": write, "lifeline_fd": lifeline, "stacks_fd": stacks.fileno()}
                job.write(json.dumps({**self.job, "attach": {**fds, "launcher_pid": os.getpid()}}).encode())
                job.seek(0)
                of_rank = {
                    "RANK": str(rank), "LOCAL_RANK": str(local_rank), JOB: str(job.fileno()),
                    STORE: "" if store_fd is None else str(store_fd),
                }  # fmt: skip
                process = subprocess.Popen(
                    world.own_command("--worker", self.job["command"]),
                    env=variables | of_rank,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[job.fileno(), *fds.values(), *([] if store_fd is None else [store_fd])],
                    start_new_session=True,
                    preexec_fn=watch.end_with_parent,
                )
            os.set_blocking(read, False)
            self.workers.all.append(Worker(rank, process, progress, stacks))
            if self.workers.stop_signal is not None:  # it came before there was anyone to pass it on to
                raise KeyboardInterrupt
        if others.listener is not None:
            others.listener.close()  # it is rank 0's now

    def _watch(self, others: hosts.Hosts) -> None:
        """Listen until all processes have ended well, or raise why they have not."""
        timeout = self.launch.hang_timeout_seconds
        heard_at = looked_at = time.monotonic()
        failed_at: float | None = None
        with selectors.DefaultSelector() as selector:
            for worker in self.workers.all:
                selector.register(worker.progress, selectors.EVENT_READ, worker)
            for peer in others.peers:
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            while any(worker.code is None for worker in self.workers.all):
                for key, _ in selector.select(signs.TICK_SECONDS):
                    source = key.data
                    is_active = self.workers.hear(source) if isinstance(source, Worker) else others.take(source)
                    if is_active is None or (isinstance(source, hosts.Peer) and source.connection.fileno() < 0):
                        selector.unregister(key.fileobj)
                    elif is_active:
                        heard_at = time.monotonic()
                now = time.monotonic()
                if now - looked_at > watch.SUSPENDED_SECONDS:  # this process stood still, as perhaps all did
                    heard_at = now
                    others.still_here()
                looked_at = now
                others.sign(self.workers.num_signs)
                for worker in self.workers.all:
                    if worker.code is None:
                        worker.code = worker.process.poll()
                        if worker.code is not None:
                            self.workers.hear(worker)  # its last words may have come after the others were heard
                if any(worker.code or worker.failure for worker in self.workers.all) or others.failure is not None:
                    failed_at = now if failed_at is None else failed_at
                    self.workers.judge_failures(others, is_last_word=now - failed_at > LAST_WORDS_SECONDS)
                unreachable = others.silent(timeout)
                if unreachable is not None:
                    raise PeerError(
                        f"{unreachable} cannot be reached: nothing was heard of it for {timeout:g} s; {self.workers.state()}"
                    )
                if now - heard_at > timeout:
                    self.workers.judge_silence(others)


def take_job() -> dict[str, Any]:
    """Read, as a worker, what to do, and join the launcher.

    Raises:
        InputError: no launcher of bertkit started this process.
    """
    given, parent = os.environ.pop(JOB, None), os.getppid()
    try:
        with open(int(given or ""), "rb") as file:
            job: dict[str, Any] = json.loads(file.read())
        attach, sys.argv, is_ours = (
            job.pop("attach"),
            job.pop("arguments"),
            {"command", "settings", "debug"} == set(job),
        )
        if not is_ours or attach["launcher_pid"] != parent:
            raise ValueError
        watch.attach(**attach)
    except (OSError, ValueError, TypeError, LookupError, RecursionError, AttributeError):
        raise InputError("--worker is for the processes that launch.num_processes= starts; leave it out") from None
    return job
