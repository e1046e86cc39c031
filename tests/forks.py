"""A Python that starts at once: a fork of a process that has imported torch and bertkit already.

Starting an interpreter and importing torch takes some seconds, what a test does in it a fraction of one. `forks()` gives
the path of a program that is called as `python -m MODULE ...`, `python FILE ...` or `python -c CODE`, with the caller's
directory, environment and open files. What runs is a process of its own: signals reach it, and it dies with its caller, and all that it started with it.
It sees the caller's parent as its own, and the program as `sys.executable`, so that what it starts in turn is a fork, too.
In truth its parent is another process: tests that look at ids, or at how a process starts, take `sys.executable`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
KILL = signal.SIGUSR2  # handed on as SIGKILL, which nobody can hand on; the program ends once the fork is gone


@contextlib.contextmanager
def forks(folder: Path) -> Iterator[Path]:
    """Start the process that is forked, unless another user of the folder has; yield the program that asks it for a fork.

    It ends when all users have closed the pipe `users`; who started it waits for that.
    """
    import subprocess

    from filelock import FileLock

    door, program, users = folder / "door", folder / "python", folder / "users"
    with contextlib.ExitStack() as stack:
        with FileLock(folder / "lock"):
            try:
                user = os.open(users, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # nobody has started it yet, or it has ended
                for left in (door, users):
                    left.unlink(missing_ok=True)
                os.mkfifo(users)
                program.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} call {door} "$@"\n')
                program.chmod(0o755)
                with open(os.open(users, os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
                    user = os.open(users, os.O_WRONLY)
                    command = [sys.executable, __file__, "serve", str(door)]
                    server = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=subprocess.PIPE))
                assert server.stdout is not None
                assert server.stdout.readline() == b"ready\n"
        stack.callback(os.close, user)
        yield program


def call(door: str, arguments: list[str]) -> None:
    """Run a fork with these arguments, forward signals to it, and exit with its code."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        numbers = [number for number in numbers if number != link.fileno() and is_open(number)]
        link.connect(door)
        message = json.dumps([arguments, os.getcwd(), dict(os.environ), numbers, os.getppid()])
        socket.send_fds(link, [message.encode()], numbers)
        signal.pthread_sigmask(signal.SIG_BLOCK, [*FORWARDED, KILL])
        pid = int(link.recv(64))
        for number in FORWARDED:
            signal.signal(number, lambda number, _: os.kill(pid, number))
        signal.signal(KILL, lambda *_: os.killpg(pid, signal.SIGKILL))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [*FORWARDED, KILL])
        code = int(link.recv(64))
    if code < 0:
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def serve(door: str) -> None:
    """Import everything, then answer every request with a fork, until the input ends."""
    import atexit
    import gc
    import importlib
    import multiprocessing
    import pkgutil
    import weakref

    import accelerate  # noqa: F401
    import cheaper  # noqa: F401  # before anything of bertkit
    import dear
    import seqeval.metrics  # noqa: F401  # seconds, with scikit-learn, whenever a task is scored
    import sklearn.feature_extraction.text
    import sklearn.linear_model  # noqa: F401
    import torch._dynamo.utils
    import torch.distributed.run
    import transformers.models.auto.tokenization_auto
    import transformers.models.bert.modeling_bert  # noqa: F401

    import bertkit.cli
    import bertkit.interop.hugging_face.built_in
    import bertkit.stages
    from bertkit.base.errors import InputError
    from bertkit.settings.reading.compose import compose

    for module in pkgutil.iter_modules(bertkit.stages.__path__, "bertkit.stages."):
        importlib.import_module(module.name)
    for command in {*bertkit.COMMANDS} - {"glue"}:  # whose many runs take more time than they save
        with contextlib.suppress(InputError):  # without a task
            compose(command, [])
    program = os.path.join(os.path.dirname(door), "python")
    multiprocessing.set_executable(program)
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch would take its libraries apart in every fork, which takes longer than the fork
    atexit.unregister(torch._dynamo.utils.dump_compile_times)
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(door)
        listener.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        Forks(listener, program, dear.note).run()


class Forks:
    """Answers each request with a fork; sends its process id, and its exit code at the end.

    Attributes:
        note: what is told the test and the processor seconds of each fork.
        watched: what to do when a descriptor is ready: the input, the listener, links to callers, and the ends of forks.
    """

    def __init__(self, listener: socket.socket, program: str, note: Callable[[str, float], None]) -> None:
        self.listener, self.program, self.note = listener, program, note
        self.watched: dict[int, Callable[[], object]] = {listener.fileno(): self.accept, 0: lambda: self.watched.pop(0)}

    def run(self) -> None:
        """Answer until the input has ended, and all forks have."""
        while len(self.watched) > 1:
            for number in select.select([*self.watched], [], [])[0]:
                self.watched.get(number, int)()

    def accept(self) -> None:
        link, _ = self.listener.accept()
        self.watched[link.fileno()] = lambda: self.begin(link)

    def begin(self, link: socket.socket) -> None:
        del self.watched[link.fileno()]
        message, files, _, _ = socket.recv_fds(link, 1 << 20, 250)
        if not message:  # the caller is gone
            return link.close()
        arguments, folder, environment, numbers, parent = json.loads(message)
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            keep_open(dict(zip(numbers, files, strict=True)))
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            os.getppid, sys.executable = lambda: parent, self.program
            sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
            os._exit(exit_code_of(arguments))  # without taking apart all that was imported
        for file in files:
            os.close(file)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # with all that it starts
        end = os.pidfd_open(pid)
        self.watched[link.fileno()] = lambda: self.kill(link, pid)
        test = environment.get("PYTEST_CURRENT_TEST", "forks")
        self.watched[end] = lambda: self.finish(link, pid, end, test)
        with contextlib.suppress(BrokenPipeError):
            link.send(str(pid).encode())

    def kill(self, link: socket.socket, pid: int) -> None:
        """End a fork whose caller is gone."""
        del self.watched[link.fileno()]
        os.killpg(pid, signal.SIGKILL)

    def finish(self, link: socket.socket, pid: int, end: int, test: str) -> None:
        del self.watched[end]
        self.watched.pop(link.fileno(), None)
        os.close(end)
        _, status, used = os.wait4(pid, 0)
        self.note(test, used.ru_utime + used.ru_stime)
        with contextlib.suppress(BrokenPipeError):
            link.send(str(os.waitstatus_to_exitcode(status)).encode())
        link.close()


def keep_open(files: dict[int, int]) -> None:
    """Give every file the same descriptor as in the caller, and close all others."""
    opened = [int(number) for number in os.listdir("/proc/self/fd")]
    above = max([*opened, *files]) + 1
    copies = {number: os.dup2(file, above + place) for place, (number, file) in enumerate(files.items())}
    for number in opened:
        with contextlib.suppress(OSError):
            os.close(number)
    for number, copy in copies.items():
        os.dup2(copy, number)
        os.close(copy)


def exit_code_of(arguments: list[str]) -> int:
    """Run the work, and return the exit code that the interpreter would have."""
    import atexit
    import threading
    import traceback

    code: object = 0
    try:
        work(arguments)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if not isinstance(code, int):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
            stream.flush()
    return code if isinstance(code, int) else 1


def work(arguments: list[str]) -> None:
    import runpy

    import bertkit.cli

    while arguments[0] in ("-P", "-B"):  # whatever lies in the current directory, all is imported
        arguments = arguments[1:]
    if arguments[:2] == ["-m", "bertkit"]:
        sys.argv = ["bertkit", *arguments[2:]]
        bertkit.cli.main()
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        call(sys.argv[2], sys.argv[3:])
