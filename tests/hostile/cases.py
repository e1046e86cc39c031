"""What a hostile case is, and what every answer to one must be: see `check`."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

MEMORY_BYTES = 2_000_000_000  # of data of a process, beside what torch maps
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

Content = bytes | str | Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """A hostile command and its expected end."""

    name: str
    arguments: Sequence[str]  # {here} is the case's own folder, the current directory; {shared} what the session made
    words: str = ""  # a regular expression that its line of error has
    code: int = 2
    files: Mapping[str, Content] = field(default_factory=dict)  # to write before; a function makes what is no file
    stdin: bytes | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    kept: Sequence[str] = ()  # names that the command may leave in the folder
    seconds: float = 20.0
    more: Callable[[Path, subprocess.CompletedProcess[str]], None] | None = None  # what else must hold afterwards


def each(quick: Sequence[Case], slow: Sequence[Case] = ()) -> pytest.MarkDecorator:
    params = [pytest.param(case, id=case.name, marks=[]) for case in quick]
    params += [pytest.param(case, id=case.name, marks=[pytest.mark.slow]) for case in slow]
    return pytest.mark.parametrize("case", params)


def check(case: Case, python: Path, folder: Path, shared: Path) -> None:
    """Run a case as a process; exit code, one line, nothing left behind, no traceback, time and memory are looked at.

    Args:
        case: to run.
        python: a Python that starts at once (`conftest.python`).
        folder: an empty one, for the case alone.
        shared: where models and data are that several cases use; they must not change.
    """
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
    before = listing(folder)
    arguments = [text.replace("{here}", str(folder)).replace("{shared}", str(shared)) for text in case.arguments]
    environment = {**os.environ, "TMPDIR": str(folder / ".tmp"), **case.environment}
    (folder / ".tmp").mkdir()
    began = time.monotonic()
    limited = f'ulimit -d {MEMORY_BYTES // 1024}; exec "$@"'
    with subprocess.Popen(
        ["bash", "-c", limited, "bash", str(python), "-m", "bertkit", *arguments], cwd=folder, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="surrogateescape",
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            typed = None if case.stdin is None else case.stdin.decode("utf-8", "surrogateescape")
            out, err = process.communicate(typed or "", timeout=case.seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"{case.name}: still running after {case.seconds:g} s") from None
    done = subprocess.CompletedProcess(arguments, process.returncode, out, err)
    output = f"{case.name}: exit {done.returncode} after {time.monotonic() - began:.1f} s\n{out[-2000:]}\n{err[-4000:]}"
    assert done.returncode == case.code, output
    assert "Traceback" not in out + err, output
    assert not CONTROL.search(out + err), output
    if case.code not in (0, 1):
        errors = [line for line in err.splitlines() if not re.match(r"warning: |\S+ read as \w+: ", line)]
        assert len(errors) == 1, output
        assert errors[0].startswith("error: "), output
        assert re.search(case.words, errors[0]), output
    elif case.words:
        assert re.search(case.words, out + err), output
    left = set(os.listdir(folder / ".tmp"))
    assert not left, f"{output}\nleft in the temporary folder: {sorted(left)}"
    after = listing(folder)
    gone = {name for name in before if after.get(name) != before[name]}
    new = after.keys() - before.keys()
    new -= {name for name in new for kept in case.kept if name == kept or name.startswith(f"{kept}/")}
    assert not gone, f"{output}\nchanged or gone: {sorted(gone)}"
    assert not new, f"{output}\nleft behind: {sorted(new)}"
    if case.more is not None:
        case.more(folder, done)


def listing(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return every name below a folder, with its state, to detect changes; links are not followed."""
    results: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name == ".tmp" or name.startswith(".tmp/"):
            continue
        state = path.lstat()
        is_file = path.is_file() and not path.is_symlink()
        target = os.readlink(path) if path.is_symlink() else None
        results[name] = (state.st_mode, state.st_ino, state.st_size if is_file else None, target)
    return results
