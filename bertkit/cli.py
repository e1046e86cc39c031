"""`bertkit <command> [group=option] [key=value] ...`: arguments, help, signals and exit codes.

What a command does is in `commands.py`, for Python and the command line alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import commands
from bertkit.base.errors import (
    MAX_FINDINGS,
    BertkitError,
    InputError,
    PeerError,
    StoppedError,
    StorageError,
    say,
    shown,
)
from bertkit.launch import launcher, world
from bertkit.settings import hints
from bertkit.settings.help import COMMANDS, command_help, info, usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

SPOKEN = {"--help", "-h", "--version", "--info"}  # options that are answered at once
INTERNAL_FAULT = 70  # EX_SOFTWARE


@dataclass
class _Given:
    """What the command line asks for."""

    options: set[str] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)  # of options that have one
    words: list[str] = field(default_factory=list)  # the command and its overrides

    @property
    def command(self) -> str:
        return self.words[0] if self.words else ""

    @property
    def config_dir(self) -> str | None:
        return self.values.get("--config-dir")

    @property
    def config(self) -> str | None:
        return self.values.get("--config")


def main() -> None:
    """Run one command and exit with its code."""
    os.environ["PYTHONSAFEPATH"] = "1"  # processes that are started import nothing that lies in the current directory
    for number in (0, 1, 2):  # what is closed is nobody's, else a file of the command would take its place
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.exit(_fail("standard output is closed; give it a reader or a file, or > /dev/null", StorageError.exit_code))
    try:
        code = _work(*sys.argv[2:3]) if sys.argv[1:2] == ["--worker"] else run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = world.READER_LEFT_CODE
    except OSError as error:
        code = _report(error)
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to be flushed at the end
    if launcher.is_launcher or (launcher.is_worker and code):
        os._exit(code)  # to take torch apart takes a second, for which the others of a run that failed would wait
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command; give the exit code instead of raising."""
    debug = False
    try:
        given = _parse(arguments)
        debug = launcher.shows_tracebacks = "--debug" in given.options
        answer = _answer(given)
        if answer is not None:
            say(*answer.split("\n"))
            return 0 if SPOKEN & given.options or not arguments else 2
        if "-m" in given.options:
            return _sweep(given)
        composed = commands.composed(given.command, given.words[1:], given.config_dir, given.config)
        if "--cfg" in given.values:
            return _print(composed)
        settings = commands.built(given.command, composed)
        if commands.runs_elsewhere(given.command, settings):
            return 0
        with _loaded(given.command, settings) as page:
            return _ended(given.command, page(settings))
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if debug and not isinstance(error, (KeyboardInterrupt, StoppedError)):
            raise
        return _report(error)


def _work(job_file: str = "") -> int:
    """Do, as one of several processes, what the launcher says; tell it how that ended."""
    try:
        job = launcher.take_job(job_file)
        settings = commands.built(job["command"], job["settings"])
        with _loaded(job["command"], settings) as page:
            return _ended(job["command"], page(settings))
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if launcher.shows_tracebacks and isinstance(error, Exception):
            import traceback

            traceback.print_exc()
        return _report(error)


def _parse(arguments: list[str]) -> _Given:
    """Tell options from words, in which `=~/` is the home directory.

    Raises:
        InputError: an unknown option.
    """
    given, queue = _Given(), list(arguments)
    unknown = None
    while queue:
        argument = queue.pop(0)
        name, has_value, value = argument.partition("=")
        if argument in hints.OPTIONS:
            given.options.add("-m" if argument == "--multirun" else argument)
        elif name in hints.VALUED_OPTIONS:
            given.values[name] = value if has_value else queue.pop(0) if queue else ""
        elif argument.startswith("-"):
            unknown = unknown or (argument, queue[0] if queue and "=" not in queue[0] else "")
        else:
            given.words.append(argument.replace("=~/", f"={Path.home()}/", 1))
    if unknown is not None:
        raise InputError(hints.undashed(given.command, *unknown))
    if given.values.get("--cfg", "job") != "job":
        raise InputError("--cfg: expected 'job'")
    if given.command == "help":
        given.words, given.options = given.words[1:], {*given.options, "--help"}
    return given


def _answer(given: _Given) -> str | None:
    """Give what can be said at once: the version, or a help text; None where there is a command to run.

    Raises:
        InputError: an unknown command.
    """
    if "--version" in given.options:
        from bertkit import __version__

        return f"bertkit {__version__}"
    if "--info" in given.options:
        return info()
    asks_for_help = bool({"--help", "-h"} & given.options)
    if given.command not in COMMANDS:
        if given.command:
            from bertkit.base.typed_settings import nearest

            raise InputError(f"unknown command '{given.command}'{nearest(given.command, COMMANDS)}; see bertkit --help")
        return usage()
    return command_help(given.command, given.words[1:], given.config_dir) if asks_for_help else None


def _print(composed: dict[str, Any]) -> int:
    """Print a configuration, without what is said about it."""
    import yaml

    composed.pop("given", None)
    if not composed.get("task_changes"):
        composed.pop("task_changes", None)
    say(*yaml.safe_dump(composed, sort_keys=False).splitlines())
    return 0


@contextlib.contextmanager
def _loaded(command: str, settings: Any) -> Iterator[Callable[[Any], Any]]:
    """Import a command's page; a signal meanwhile ends the command with what can still be said of its work."""
    # torch makes a folder for compiled code as soon as it is imported: not until it compiles
    with contextlib.suppress(OSError):
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())
    numbers = world.STOP_SIGNALS if command in (*commands.TRAINING, "glue") else (signal.SIGINT,)
    # raised inside an import, an interrupt leaves a library half loaded
    with _handling(numbers, lambda *_: os._exit(_report(_stop_of(command, settings)))):
        page = commands.page_of(command)
    try:
        with _handling(numbers, signal.default_int_handler):  # between steps, training saves first
            yield page
    except KeyboardInterrupt:
        raise _stop_of(command, settings) from None


def _ended(command: str, found: Any) -> int:
    """Print what a command found, unless its page did; give the exit code."""
    if command == "evaluate" and found is not None:
        say(*json.dumps(found, indent=2).split("\n"))
    return 1 if command == "verify" and not found["within_tolerance"] else 0


@contextlib.contextmanager
def _handling(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _stop_of(command: str, settings: Any) -> BaseException:
    """Give the end of a command that was stopped while it loaded or finished: a checkpoint is saved, or nothing was."""
    step = world.newest_checkpoint(settings.output_dir) if command in commands.TRAINING else None
    if step is not None:
        return StoppedError(world.stopped_line(step))
    if command == "glue" and any(Path(settings.output_dir).glob("*/seed-*/manifest.json")):
        return StoppedError("stopped; the runs that are there are kept, and the same command goes on")
    return KeyboardInterrupt()


def _sweep(given: _Given) -> int:
    """Run every combination of several values, each in a process and a directory of its own; or print them."""
    from bertkit.launch.sweep import SweptRun, run_each
    from bertkit.settings.compose import combinations

    runs, options = [], ["--debug"] if launcher.shows_tracebacks else []
    options += [word for pair in given.values.items() if pair[0] in ("--config-dir", "--config") for word in pair]
    for name, overrides in combinations(given.command, given.words[1:], given.config_dir):
        composed = commands.composed(given.command, overrides, given.config_dir, given.config)
        if "--cfg" in given.values:
            say(f"# {name}")
            _print(composed)
            continue
        settings = commands.built(given.command, composed)  # refused before the first one runs
        output_dir = getattr(settings, "output_dir", None)
        directory = None if output_dir is None else Path(output_dir)
        runs.append(SweptRun(name, [given.command, *options, *overrides], directory))
    return run_each(runs) if runs else 0


def _report(error: BaseException) -> int:
    """Say in a line what went wrong; give the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return _fail(world.INTERRUPTED, world.INTERRUPTED_CODE)
    if isinstance(error, StoppedError):
        if not launcher.tell(str(error)) and _is_main():
            say(error)
        return error.exit_code
    from bertkit.base.files import DISK_ERRORS  # not before: a stop may come while it is being imported

    if isinstance(error, BertkitError):
        return _fail(str(error), error.exit_code)
    if isinstance(error, OSError):
        code = StorageError.exit_code if error.errno in DISK_ERRORS else InputError.exit_code
        where = f"{error.filename}: " if error.filename else ""
        return _fail(shown(f"{where}{error.strerror or error}"), code)
    message = shown(f"{type(error).__name__}: {' '.join(str(error).split())}")
    if world.is_lost_peer(error) and world.world_from_environment().size > 1:
        return _fail(f"{world.LOST} ({message})", PeerError.exit_code)
    if launcher.tell(message):
        return INTERNAL_FAULT
    # said by every process that it happens to: the others only know that this one was lost
    say(f"error: {message}; this is a fault of bertkit, --debug shows where", file=sys.stderr)
    return INTERNAL_FAULT


def _fail(message: str, code: int) -> int:
    """Say it once on each host of torchrun and srun: what one lacks, such as a file, the others may have."""
    is_main = _is_main()
    if not launcher.tell(message) and (is_main or world.is_first_of_host()):
        where = "" if is_main else f" (on {socket.gethostname()})"
        lines = message.split("\n")
        more = [f"and {len(lines) - MAX_FINDINGS:,} more"] if len(lines) > MAX_FINDINGS else []
        with contextlib.suppress(OSError):  # nobody can be told
            say(*(f"error{where}: {line}" for line in [*lines[:MAX_FINDINGS], *more]), file=sys.stderr)
    return code


def _is_main() -> bool:
    try:
        return launcher.is_launcher or world.world_from_environment().is_main
    except InputError:
        return True  # the variables themselves are at fault, so every process says it
