"""`bertkit <command> [group=option] [key=value] ...`: arguments, signals and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import re
import signal
import socket
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit import COMMANDS, commands
from bertkit.base import errors, plugins
from bertkit.base.errors import InputError, StoppedError, StorageError, in_brief, in_one_line, nearest, refusing, say
from bertkit.base.memory import collect_garbage
from bertkit.base.processors import check_precision, in_command
from bertkit.base.typed_settings import refuse
from bertkit.help import command_help, info, usage
from bertkit.launch import launcher, world
from bertkit.settings.reading.answers import is_answered
from bertkit.settings.reading.hints import option_of, unknown_option
from bertkit.settings.reading.names import command_of, in_words_of
from bertkit.settings.reading.synonyms import command_meant, truth_of
from bertkit.settings.reading.words import OPTIONS as SHORT_OPTIONS
from bertkit.settings.reading.words import to_words, with_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bertkit.base.text_files import JsonObject
    from bertkit.settings.command import CommandSettings

INTERNAL_FAULT = 70  # EX_SOFTWARE


@dataclass
class _Arguments:
    """The parsed command line."""

    command: str = ""
    words: list[str] = field(default_factory=list)  # settings
    help: bool = False
    version: bool = False
    info: bool = False
    multirun: bool = False
    cfg: str | None = None  # "job": print the composed configuration
    config: str | None = None  # the config.yaml of an earlier run
    config_dir: str | None = None


def main() -> None:
    """Run one command and exit with its code."""
    # exit at once: an exception during an import would leave a library half imported
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, lambda *_: os._exit(_report(KeyboardInterrupt())))
    errors.print_warnings_of_python()
    os.environ["PYTHONSAFEPATH"] = "1"  # child processes import nothing from the current directory
    with contextlib.suppress(OSError):  # there is no temporary directory
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())  # otherwise importing torch makes one
    for number in (0, 1, 2):  # reopen closed streams; otherwise a file that the command opens would get their number
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.exit(_fail("standard output is closed; redirect it to a file, a pipe or /dev/null", StorageError.exit_code))
    try:
        code = run(sys.argv[1:])
        if not code:  # otherwise the error has been reported
            say()
    except BrokenPipeError:
        code = world.BROKEN_PIPE_CODE
    except OSError as error:
        code = _report(error, "standard output")
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # Python flushes again at exit
    if launcher.is_launcher or (launcher.is_worker and code):
        os._exit(code)  # without torch's clean-up, which takes a second; after a failure the other workers would wait
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command, or its part in a worker; return the exit code instead of raising an error."""
    launcher.shows_tracebacks = "--debug" in arguments
    try:
        if arguments[:1] == ["--worker"]:
            job = launcher.read_job(*arguments[1:2])
            return _run_stage(job["command"], commands.build_settings(job["command"], job["settings"]), [])
        return _run_command(arguments)
    except BrokenPipeError:
        raise
    except BaseException as error:
        if isinstance(error, SystemExit) and plugins.fault_of(error) is None:  # a second signal, or the server's end
            raise
        if launcher.shows_tracebacks and not isinstance(error, (KeyboardInterrupt, StoppedError)):
            import traceback

            traceback.print_exc()
        return _report(error, "the current directory")


def _run_command(arguments: list[str]) -> int:
    """Run a command, or start workers that run it; or print a help text, or the configuration."""
    world.command_line.set(tuple(arguments))
    parsed = _parse(arguments)
    command, text = parsed.command, _help_text(parsed)
    if text:
        say(*text.split("\n"))
        return 0
    if parsed.multirun:
        collect_garbage()
        return _sweep(parsed)
    with in_words_of(command, [word.partition("=")[0] for word in parsed.words]):
        composed = _compose(parsed, parsed.words)
        if parsed.cfg:
            return _print(composed)
        settings = commands.build_settings(command, composed)
        with _naming(settings):
            read = commands.check_files(command, settings)
            collect_garbage()
            return 0 if commands.delegate(command, settings, read) else _run_stage(command, settings, read)


@contextlib.contextmanager
def _naming(settings: CommandSettings) -> Iterator[None]:
    """Name the command's output in an error of the disk that names no file."""
    try:
        yield
    except OSError as error:
        output = "standard output" if settings.output_file == "-" else settings.output_file
        error.filename = error.filename or settings.directory or output
        raise


@in_command()
def _run_stage(command: str, settings: CommandSettings, read: list[object]) -> int:
    """Import the stage of a command, and run it; a signal ends the command with the error of `_stop_error`."""
    numbers = world.STOP_SIGNALS if command_of(command).is_training else (signal.SIGINT,)
    if signal.SIGTERM not in numbers:  # it ends such a command at once
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # exit at once: an exception during an import would leave a library half imported
    with world.handle_signals(numbers, lambda *_: os._exit(_report(_stop_error(command, settings)))):
        gc.disable()
        stage = commands.import_stage(command)
        collect_garbage()
    try:
        # training installs its own handlers, which save first
        with world.handle_signals(numbers, signal.default_int_handler), _naming(settings):
            return stage.run(settings, *read) or 0
    except KeyboardInterrupt:
        raise _stop_error(command, settings) from None


def _parse(arguments: list[str]) -> _Arguments:
    """Separate options from the command and its settings, and translate the short form; `--` before a word changes nothing."""
    arguments = with_values(argument for argument in arguments if argument != "--")
    with refusing(argparse.ArgumentError, lambda error: f"{error.argument_name}: {error.message}"):
        parsed, others = _option_parser().parse_known_args(arguments, _Arguments())
    words = _as_words(next((argument for argument in arguments if argument in COMMANDS), ""), others)
    if words[:1] == ["help"]:
        words, parsed.help = words[1:], True
    if words:
        parsed.command, *overrides = words
        if parsed.command not in COMMANDS:
            meant = command_meant(parsed.command)
            hint = f"; {meant}" if meant else nearest(parsed.command, COMMANDS)
            raise InputError(f"unknown command '{parsed.command}'{hint}; see bertkit --help")
        short = {option: vars(parsed)[option.removeprefix("--")] for option in SHORT_OPTIONS}
        given = [(option, value) for option, value in short.items() if value is not None]
        parsed.words = to_words(parsed.command, overrides, given)
    return parsed


def _option_parser() -> argparse.ArgumentParser:
    """Return a parser for the options that are no settings."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for names in (["--help", "-h"], ["--multirun", "-m"], ["--version"], ["--info"], ["--debug"]):
        parser.add_argument(*names, action="store_true")
    parser.add_argument("--cfg", choices=["job"])
    for name in ("--config", "--config-dir", *SHORT_OPTIONS):
        parser.add_argument(name)
    return parser


def _as_words(command: str, arguments: list[str]) -> list[str]:
    """Replace `--NAME VALUE` by `NAME=VALUE`, also for names of other tools, and `=~` by the home directory.

    `--lr 3e-4` and `--overwrite` are such options. Raises InputError for those that mean no setting of the command.
    """
    words, unknown, queue = list[str](), list[str](), list(arguments)
    while queue:
        argument = queue.pop(0)
        name, has_value, value = argument.partition("=")
        if not argument.startswith("-") or argument == "-":
            words.append(re.sub("=~(?=/|$)", lambda _: f"={os.path.expanduser('~')}", argument, count=1))
            continue
        is_value_next = bool(queue) and not queue[0].startswith("--") and "=" not in queue[0]
        key, setting = option_of(command, name, value if has_value else queue[0] if is_value_next else "")
        is_flag = "=" in setting  # such as --fp16, before a word that is perhaps not its value
        if not setting and not is_answered(key):
            unknown.append(unknown_option(command, argument, queue[0] if is_value_next else ""))
            continue
        if not has_value:
            takes_next = is_value_next and (not is_flag or truth_of(queue[0]) is not None)
            value = queue.pop(0) if takes_next else "true"
        words.append(f"{key}={value}")
    refuse(unknown)
    return words


def _help_text(parsed: _Arguments) -> str:
    """Return the version or a help text; "" if a command is to be run."""
    if parsed.version:
        from bertkit import __version__

        return f"bertkit {__version__}"
    if parsed.info:
        return info()
    if not parsed.command:
        return usage()
    return command_help(parsed.command, parsed.words, parsed.config_dir) if parsed.help else ""


def _compose(parsed: _Arguments, words: list[str]) -> JsonObject:
    from bertkit.settings.reading.overrides import read_words  # imports Hydra, which help does without

    assignments = read_words(parsed.command, words)
    return commands.compose_settings(parsed.command, assignments, parsed.config_dir, parsed.config)


def _print(composed: JsonObject) -> int:
    """Print a composed configuration, without the entries that are not settings."""
    import yaml

    entries = {key: value for key, value in composed.items() if key != "explicit_keys"}
    if not entries.get("task_changes"):
        entries.pop("task_changes", None)
    say(*yaml.safe_dump(entries, sort_keys=False).splitlines())
    return 0


def _stop_error(command: str, settings: CommandSettings) -> BaseException:
    """Return the error for a command that a signal stopped; it names the newest checkpoint, if there is one."""
    if command_of(command).is_training and settings.directory is not None:
        step = world.newest_checkpoint(settings.directory)
        if step is not None:
            return StoppedError(world.stopped_line(step))
        if any(Path(settings.directory).glob("*/seed-*/manifest.json")):
            return StoppedError("stopped; the finished runs are kept, and the same command resumes")
    return KeyboardInterrupt()


def _sweep(parsed: _Arguments) -> int:
    """Run every combination of the swept values, each in its own process and directory; with --cfg, only print them."""
    from bertkit.launch.sweep import SweptRun, run_each
    from bertkit.settings.reading.overrides import combinations

    files = {"--config-dir": parsed.config_dir, "--config": parsed.config}
    options = [f"{name}={path}" for name, path in files.items() if path is not None]
    options += ["--debug"] if launcher.shows_tracebacks else []
    runs = []
    for swept in combinations(parsed.command, parsed.words, parsed.config_dir):
        composed = _compose(parsed, swept.words)
        if parsed.cfg:
            say(f"# {swept.name}")
            _print(composed)
            continue
        settings = commands.build_settings(parsed.command, composed)  # check all runs before the first one starts
        if settings.bf16_device is not None:
            check_precision("bf16", settings.bf16_device)  # what it sets, the runs inherit
        directory = None if settings.directory is None else Path(settings.directory)
        runs.append(SweptRun(swept.name, [parsed.command, *options, *swept.words], directory))
    return run_each(runs) if runs else 0


def _report(error: BaseException, place: str = "") -> int:
    """Print an error in one line; return the exit code. `place` is for an error that names none."""
    if isinstance(error, KeyboardInterrupt):
        return _fail(errors.INTERRUPTED, errors.INTERRUPTED_CODE)
    if isinstance(error, StoppedError):
        if not launcher.report_error(str(error)) and _is_main():
            say(error)
        return error.exit_code
    known = error if isinstance(error, errors.BertkitError) else _known(error, place)
    if known is not None:
        return _fail(str(known), known.exit_code)
    message = _message(error)
    if not launcher.report_error(message):
        # every process prints this error, since other processes only know that the connection was lost
        whose = " or in ".join(["bertkit", *plugins.used()])
        say(f"error: {message}; this is a bug in {whose}, --debug shows where", file=sys.stderr)
    return INTERNAL_FAULT


def _known(error: BaseException, place: str) -> errors.BertkitError | None:
    """Return an exception of another library, or of a plug-in, as an error with a message for the user; None for a bug."""
    from bertkit.base.files import is_disk_error  # imported here: a signal may arrive during the imports above
    from bertkit.base.memory import OUT_OF_MEMORY, is_out_of_memory

    if is_out_of_memory(error):
        return InputError(f"{OUT_OF_MEMORY} ({in_one_line(error)})")
    if world.is_lost_peer(error) and world.world_from_environment().size > 1:
        return errors.PeerError(f"{world.LOST} ({_message(error)})")
    if is_disk_error(error):
        return StorageError(_reason(error, place))
    fault = plugins.fault_of(error)
    if fault is None and isinstance(error, OSError):
        return InputError(_reason(error, place))
    return fault


def _reason(error: OSError, place: str) -> str:
    return ": ".join(filter(None, (str(error.filename or place), error.strerror or str(error))))


def _message(error: BaseException) -> str:
    return in_brief(f"{type(error).__name__}: {' '.join(str(error).split())}")


def _fail(message: str, code: int) -> int:
    """Print an error once on each host, because hosts may have different errors, for example about their files."""
    is_main = _is_main()
    if not launcher.report_error(message) and (is_main or world.is_first_of_host()):
        where = "" if is_main else f" (on {socket.gethostname()})"
        lines = message.split("\n")
        if len(lines) > errors.MAX_FINDINGS:
            rest = len(lines) - errors.MAX_FINDINGS + 1
            lines[errors.MAX_FINDINGS - 1 :] = [f"and {rest:,} more"]
        with contextlib.suppress(OSError):  # standard error is closed
            say(*(f"error{where}: {line}" for line in lines), file=sys.stderr)
    return code


def _is_main() -> bool:
    with contextlib.suppress(InputError):
        return launcher.is_launcher or world.world_from_environment().is_main
    return True  # the environment variables are malformed, so every process reports it
