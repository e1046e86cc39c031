"""Which of the processes of a run this one is; and the launcher, which starts the processes of a host and watches them.

The launcher imports no torch. It hands the settings that it has checked to `python -m bertkit --worker`, each process in
a session of its own, and hears from each through a pipe. Whatever goes wrong with one of them, all are killed at once:
gloo and NCCL cannot be interrupted in the middle of a collective.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NoReturn

from bertkit import errors, signs
from bertkit.errors import BertkitError, InputError, PeerError, StoppedError
from bertkit.launch import hosts

if TYPE_CHECKING:
    from bertkit.settings.schemas import LaunchConfig

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
INTERRUPTED = "interrupted before there was anything to save"
INTERRUPTED_CODE = 130
READER_LEFT = "the reader of the output left"
READER_LEFT_CODE = 141  # as a shell says of a command whose reader left, such as head
LAST_WORDS_SECONDS = 2.0  # for the others, after the first failure: their words may tell more of the cause
SAME_REQUEST_SECONDS = 1.0
STACKS_SECONDS = 1.5  # for the stacks of a process to come
JOB = "BERTKIT_JOB"  # the variable that tells a worker where its settings are
STORE = "BERTKIT_STORE_FD"  # read by train/rendezvous.py
OWN_THREADS = "BERTKIT_THREADS"  # says that the launcher chose the number of threads, not the user
NO_STEP = 0xFFFF0000  # Slurm numbers the steps that no srun made (batch, extern, interactive) from the top
LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|timed? ?out|NCCL|gloo", re.IGNORECASE
)
PASSED_ON = {
    kind.exit_code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BertkitError)
}


@dataclass(frozen=True)
class World:
    """This process among all of a run."""

    rank: int
    size: int

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0


def world_from_environment() -> World:
    """Read the variables of torchrun and accelerate, or of srun; a process by itself is a world of one.

    Raises:
        InputError: they are not those of a process of a run.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    elif _is_slurm_task(os.environ):
        rank, size = os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"]
    else:
        return World(0, 1)
    if not (rank.isdigit() and size.isdigit() and int(rank) < int(size)):
        raise InputError(f"this process is rank {rank} of {size} by its environment; start it as torchrun or srun does")
    return World(int(rank), int(size))


def is_first_of_host() -> bool:
    """Whether this process of a run is the first one on its host, by the variables of torchrun, accelerate or srun."""
    return os.environ.get("SLURM_LOCALID" if _is_slurm_task(os.environ) else "LOCAL_RANK") == "0"


def _is_slurm_task(variables: Mapping[str, str]) -> bool:
    """Whether srun started this process; a batch script has the same variables, but is a step that no srun made."""
    if not {"SLURM_PROCID", "SLURM_NTASKS"} <= set(variables):
        return False
    step = variables.get("SLURM_STEP_ID", variables.get("SLURM_STEPID", ""))
    return (step.isdigit() and int(step) < NO_STEP) or variables["SLURM_PROCID"] != "0"


def first_host(nodelist: str) -> str:
    """Give the first host of Slurm's short form: `gpu[003-007,012],login` -> gpu003."""
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", re.split(r",(?![^[]*\])", nodelist)[0])


def tasks_of_host(tasks_per_host: str, host: int) -> int:
    """Give the tasks on one host of Slurm's short form: `2(x3),1`, host 3 -> 1."""
    counts = [
        int(count)
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks_per_host)
        for _ in range(int(times or 1))
    ]
    return counts[host]


def is_lost_peer(error: Exception) -> bool:
    """Whether an error says that another process went away, rather than what is wrong here."""
    kind = type(error)
    of_torch = kind.__module__.startswith("torch.distributed") or kind.__name__.startswith("Dist")
    return of_torch or (kind is RuntimeError and LOST_PEER.search(str(error)) is not None)


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
        os.environ |= _variables_of_slurm(os.environ)
    missing = [name for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(f"{', '.join(missing)} not set beside RANK and WORLD_SIZE; start as torchrun does")

    def end(line: str) -> None:
        print(f"error: {line}", file=sys.stderr, flush=True)
        os._exit(PeerError.exit_code)

    signs.watch(world.rank, launch.hang_timeout_seconds, end)
    return world


def _variables_of_slurm(slurm: Mapping[str, str]) -> dict[str, str]:
    """Give torchrun's variables for a task of srun; the tasks meet at the first host, at a port of the job's own."""
    nodes = next(
        (slurm[name] for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST") if name in slurm), ""
    )
    job = sum(int(slurm.get(name, 0)) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    found = {"RANK": slurm["SLURM_PROCID"], "WORLD_SIZE": slurm["SLURM_NTASKS"]}
    # with --gpus-per-task each task sees devices of its own, numbered from 0
    found["LOCAL_RANK"] = "0" if "SLURM_GPUS_PER_TASK" in slurm else slurm.get("SLURM_LOCALID", "0")
    per_host = slurm.get("SLURM_STEP_TASKS_PER_NODE", slurm.get("SLURM_TASKS_PER_NODE", ""))
    if per_host:
        found["LOCAL_WORLD_SIZE"] = str(tasks_of_host(per_host, int(slurm.get("SLURM_NODEID", 0))))
    if nodes:
        found["MASTER_ADDR"] = first_host(nodes)
    found["MASTER_PORT"] = str(20000 + job % 10000)  # below the ports that Linux gives out by itself
    return found | {name: slurm[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in slurm}


def starts_workers(launch: LaunchConfig) -> bool:
    """Whether this process is to start processes: several are asked for, and nobody has started them yet.

    srun may start the launchers themselves, one on each host.
    """
    if launch.num_processes * launch.num_hosts == 1 or "RANK" in os.environ:
        return False
    return not _is_slurm_task(os.environ) or os.environ["SLURM_NTASKS"] == str(launch.num_hosts)


def newest_checkpoint(output_dir: str | None) -> int | None:
    """Give the step of the newest checkpoint in a run's directory, by its name alone: no file of it is read."""
    names = [] if output_dir is None else [path.name for path in Path(output_dir, "checkpoints").glob("step-*")]
    steps = [int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdigit()]
    return max(steps, default=None)


def stopped_line(step: int) -> str:
    """Say that a run can go on."""
    return f"stopped; checkpoint {step} is saved, and the same command resumes"


is_launcher = False  # whether this process started others: then it speaks for them, whatever srun calls it
shows_tracebacks = False  # whether the user asked for tracebacks, of the processes that are started too


@dataclass
class _Worker:
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


def start(command: str, settings: Any) -> None:
    """Start this host's processes of a command, and watch them to their end.

    Args:
        command: the stage that they run.
        settings: its settings, with a group `launch`.

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
        self.launch, self.job, self.output_dir = launch, job, output_dir
        self.workers: list[_Worker] = []
        self.stop_signal: int | None = None
        self.stop_at = 0.0
        self.saved_step: int | None = None
        self.num_signs = 0

    def run(self) -> None:
        """Start, watch, and leave nothing behind."""
        launch, shared = self.launch, json.loads(json.dumps(self.job["settings"]))
        for own in ("host_rank", "interface", "address"):
            del shared["launch"][own]
        shared = {"command": self.job["command"], **shared}
        before = {number: signal.signal(number, self._on_signal) for number in STOP_SIGNALS}
        try:
            with hosts.joined(
                launch.address, launch.host_rank, launch.num_hosts, launch.hang_timeout_seconds, shared,
                lambda: self.stop_signal is not None,
            ) as others, contextlib.ExitStack() as stack:  # fmt: skip
                try:
                    self._start(others, stack)
                    self._watch(others)
                except BertkitError as error:
                    others.end("failed", [error.exit_code, str(error)])
                    raise
                except BrokenPipeError:
                    others.end("failed", [READER_LEFT_CODE, f"{READER_LEFT} of host {launch.host_rank}"])
                    raise
                except KeyboardInterrupt:
                    others.end("failed", [INTERRUPTED_CODE, INTERRUPTED])
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
        if number == self.stop_signal and now - self.stop_at < SAME_REQUEST_SECONDS:
            return
        if self.stop_signal is not None:
            self._kill()
            os._exit(128 + number)
        self.stop_signal, self.stop_at = number, now
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid, number)

    def _kill(self) -> None:
        for worker in self.workers:
            if worker.process.returncode is None:  # else its number may be another's by now
                worker.kill()
        for worker in self.workers:
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
            **({} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": threads, OWN_THREADS: "1"}),
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
                    [sys.executable, "-m", "bertkit", "--worker", self.job["command"]],
                    env=variables | of_rank,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[job.fileno(), *fds.values(), *([] if store_fd is None else [store_fd])],
                    start_new_session=True,
                    preexec_fn=signs.end_with_parent,
                )
            os.set_blocking(read, False)
            self.workers.append(_Worker(rank, process, progress, stacks))
            if self.stop_signal is not None:  # it came before there was anyone to pass it on to
                raise KeyboardInterrupt
        if others.listener is not None:
            others.listener.close()  # it is rank 0's now

    def _watch(self, others: hosts.Hosts) -> None:
        """Listen until all processes have ended well, or raise why they have not."""
        timeout = self.launch.hang_timeout_seconds
        heard_at = looked_at = time.monotonic()
        failed_at: float | None = None
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                selector.register(worker.progress, selectors.EVENT_READ, worker)
            for peer in others.peers:
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            while any(worker.code is None for worker in self.workers):
                for key, _ in selector.select(signs.TICK_SECONDS):
                    source = key.data
                    is_active = self._hear(source) if isinstance(source, _Worker) else others.take(source)
                    if is_active is None or (isinstance(source, hosts.Peer) and source.connection.fileno() < 0):
                        selector.unregister(key.fileobj)
                    elif is_active:
                        heard_at = time.monotonic()
                now = time.monotonic()
                if now - looked_at > signs.SUSPENDED_SECONDS:  # this process stood still, as perhaps all did
                    heard_at = now
                    others.still_here()
                looked_at = now
                others.sign(self.num_signs)
                for worker in self.workers:
                    if worker.code is None:
                        worker.code = worker.process.poll()
                        if worker.code is not None:
                            self._hear(worker)  # its last words may have come after the others were heard
                if any(worker.code or worker.failure for worker in self.workers) or others.failure is not None:
                    failed_at = now if failed_at is None else failed_at
                    self._judge_failures(others, is_last_word=now - failed_at > LAST_WORDS_SECONDS)
                unreachable = others.silent(timeout)
                if unreachable is not None:
                    raise PeerError(
                        f"{unreachable} cannot be reached: nothing was heard of it for {timeout:g} s; {self._state()}"
                    )
                if now - heard_at > timeout:
                    self._judge_silence(others)

    def _hear(self, worker: _Worker) -> bool | None:
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

    def _state(self) -> str:
        step = max(worker.step for worker in self.workers)
        how = "starts again" if self.saved_step is None else f"resumes from checkpoint {self.saved_step}"
        return f"last step {step}; all processes were ended, and the same command {how}"

    def _judge_failures(self, others: hosts.Hosts, is_last_word: bool) -> None:
        """Raise the failure that explains the others, as soon as it is known which one that is.

        A signal from outside explains everything, and so does an error that nobody foresaw; of errors that bertkit names
        the others may have the same; a lost connection explains nothing while there may be another reason for it.
        """
        for worker in self.workers:
            if self.stop_signal is not None and (
                worker.code == -self.stop_signal or worker.failure == (INTERRUPTED_CODE, INTERRUPTED)
            ):
                self._stopped_early()
            if worker.failure == (READER_LEFT_CODE, READER_LEFT):
                raise BrokenPipeError
            comes_to_all = worker.code in [-number for number in STOP_SIGNALS]  # and perhaps to this process next
            if worker.code is not None and worker.code < 0 and worker.code != -signal.SIGABRT:
                if comes_to_all and not is_last_word:
                    return
                name = signal.Signals(-worker.code).name
                raise PeerError(f"{worker} was killed by {name}; {self._state()}")
            if (
                worker.failure is not None
                and worker.failure[0] not in PASSED_ON
                and not LOST_PEER.search(worker.failure[1])
            ):
                raise PeerError(f"{worker} failed: {worker.failure[1]}; {self._state()}")
        has_ended = all(worker.code is not None for worker in self.workers)
        if not has_ended and not is_last_word:
            return
        failed = [worker for worker in self.workers if worker.failure is not None]
        for worker in failed:
            assert worker.failure is not None
            code, message = worker.failure
            if code in PASSED_ON:
                raise PASSED_ON[code](message)
        if others.failure is not None:
            code, message = others.failure
            if code == INTERRUPTED_CODE:
                self._stopped_early()
            raise PASSED_ON.get(code, PeerError)(message)
        if others.peers and not is_last_word:
            return
        for worker in failed:
            assert worker.failure is not None
            raise PeerError(f"{worker} failed: {worker.failure[1]}; {self._state()}")
        for worker in self.workers:
            if worker.code:
                how = (
                    f"was killed by {signal.Signals(-worker.code).name}"
                    if worker.code < 0
                    else f"ended with exit code {worker.code}"
                )
                raise PeerError(f"{worker} {how} and said nothing; {self._state()}")

    def _stopped_early(self) -> NoReturn:
        step = self.saved_step or newest_checkpoint(self.output_dir)
        if step is None:
            raise KeyboardInterrupt
        raise StoppedError(stopped_line(step))

    def _judge_silence(self, others: hosts.Hosts) -> NoReturn:
        """Name the processes that do not wait for others; where all of them wait, the other host is asked for."""
        for worker in self.workers:
            if worker.code is None and worker.is_attached:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.process.pid, signs.STACKS_SIGNAL)
        time.sleep(STACKS_SECONDS)
        stacks = {worker.rank: _content(worker.stacks) for worker in self.workers}
        guilty = []
        for worker in self.workers:
            if worker.is_stopped():
                guilty.append(f"{worker} is stopped (SIGSTOP?)")
            elif worker.code is None and not worker.is_attached:
                guilty.append(f"{worker} did not start")
            elif worker.code is None and not stacks[worker.rank]:
                guilty.append(f"{worker} does not answer")
            elif worker.code is None:
                place, waits = signs.where(stacks[worker.rank])
                if not waits:
                    guilty.append(f"{worker} does not go on, at {place}")
        timeout = f"no sign of life for {self.launch.hang_timeout_seconds:g} s"
        where = self._write_stacks(stacks)
        if guilty:
            raise PeerError(f"{'; '.join(guilty)}: {timeout}; stacks: {where}; {self._state()}")
        if others.peers:
            self._ask(others)
            behind = ", ".join(map(str, others.peers))
            raise PeerError(f"all processes here wait for {behind}: {timeout}; stacks: {where}; {self._state()}")
        raise PeerError(f"all processes wait for one another: {timeout}; stacks: {where}; {self._state()}")

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
            (directory / f"stacks-rank-{rank}.txt").write_text(text, encoding="utf-8")
        return str(directory / "stacks-rank-*.txt")


def _content(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode("utf-8", "replace")


def take_job() -> dict[str, Any]:
    """Read, as a worker, what to do, and join the launcher."""
    with open(int(os.environ.pop(JOB)), "rb") as file:
        job: dict[str, Any] = json.loads(file.read())
    signs.attach(**job.pop("attach"))
    sys.argv = job.pop("arguments")
    return job
