"""The commands as Python functions, with settings that are nested or dotted:

    bertkit.pretrain(data_dir="data", model="tiny", output_dir="runs/tiny", optimizer={"peak_learning_rate": 1e-3})
    bertkit.pretrain(..., optimizer={"name": "lamb", "peak_learning_rate": 1e-3})  # an option of a group, and its settings
    bertkit.pretrain(..., **{"optimizer.peak_learning_rate": 1e-3})

Settings that take a task's files or an input also take rows: mappings, a data frame, a dataset, texts.
"""

import contextlib
import dataclasses
import errno
import functools
import hashlib
import html
import inspect
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_type_hints

from bertkit.base.errors import InputError, listed, nearest
from bertkit.base.files import folder_for, write_durably
from bertkit.base.hub_ids import path_of
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import read_conf, refuse
from bertkit.commands import build_settings, check_files, compose_settings, delegate, import_stage
from bertkit.launch import launcher, world
from bertkit.settings.command import WORDS, Command, CommandSettings
from bertkit.settings.reading.assignments import Assignment
from bertkit.settings.reading.names import command_of, fields_of, in_words_of, names_of_rows, settings_of

ONE_RUN = threading.Lock()  # a training run uses the random state of its process; a second one waits
DOCSTRINGS = Path(__file__).parent / "settings" / "docstrings"  # those of the stub; tests/signatures.py writes both
RUNS = Path("runs")  # where a run has its place that has no `output_dir`
# the types of settings; values of other types are rows
SETTABLE = (str, int, float, bool, os.PathLike, list, tuple, Mapping, type(None))
SINGLE = (str, os.PathLike)  # one of several
COLUMNS = ("text_column", "text_pair_column", "label_column")  # of a task


class Page(str):
    """An HTML page, which a notebook shows; elsewhere only its size is shown."""

    def __repr__(self) -> str:
        return f"Page({len(self):,} characters of HTML)"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self)}" style="width: 100%; height: 40em; border: 0"></iframe>'


@dataclasses.dataclass(frozen=True)
class Run:
    """The result of a command; it can be passed as a setting that takes a model or a dataset."""

    directory: Path | None  # the `output_dir`; None if the command has none
    model_dir: Path | None  # the directory of the model; None if the command makes no model
    scores: JsonObject  # the final metrics
    output: Path | None = None  # the file that the command wrote; None if it has a directory or returns its results

    def __repr__(self) -> str:
        parts = [] if self._place is None else [repr(str(self._place))]
        parts += [f"{name}={value:.6g}" for name, value in self.scores.items() if isinstance(value, float)]
        return f"Run({', '.join(parts)})"

    @property
    def _place(self) -> Path | None:
        return self.model_dir or self.directory or self.output

    @property
    def metrics(self) -> list[JsonObject]:
        """The rows of `metrics.jsonl`: a mapping for each logged step."""
        if self.directory is None or not (path := self.directory / "metrics.jsonl").is_file():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    @property
    def report(self) -> Path | None:
        """The page with the curves and scores."""
        page = self.output if self.directory is None else self.directory / "report.html"
        return page if page is not None and page.suffix == ".html" and page.is_file() else None

    def __fspath__(self) -> str:
        """Return the path of the model, or, without a model, of the directory or the file.

        Raises InputError if this is the result of an evaluation, which has neither.
        """
        if self._place is None:
            raise InputError("an evaluation has no directory; pass the run that it evaluated")
        return str(self._place)

    def _repr_html_(self) -> str:
        """Show the report in a notebook."""
        if self.report is None:
            return f"<pre>{html.escape(repr(self))}</pre>"
        return Page(self.report.read_text(encoding="utf-8"))._repr_html_()


def _named(command: Command, places: Sequence[object], settings: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments without names under the names of their settings."""
    first = next(iter(command.positions), "")
    if fields_of(command.name).get(first) == WORDS:
        places = [places] if len(places) > 1 or isinstance(next(iter(places), []), SINGLE) else places
    if len(places) > len(command.positions):
        taken = (
            f"takes {listed(command.positions, ', ')} without names" if first else "takes no arguments without names"
        )
        raise InputError(f"{command.name}({type(places[-1]).__name__}): it {taken}; write the others as name=value")
    named = dict(zip(command.positions, places, strict=False))
    if not isinstance(named.get("model_dir", ""), SINGLE):
        raise InputError(
            f"{command.name}({type(named['model_dir']).__name__}): expected model_dir; write {next(iter(command.rows))}="
        )
    refuse([f"{command.name}: {name} is given twice; leave one out" for name in named if name in settings])
    return named


@functools.cache
def function_of(name: str) -> Callable[..., object]:
    """Return a command as a Python function; its parameters are the fields of the settings, its help is that of the stub."""
    command = command_of(name)
    signature = signature_of(command)

    def call(*places: object, **settings: object) -> object:
        settings |= _named(command, places, settings)
        unknown = sorted(settings.keys() - signature.parameters.keys())
        misspelt = {key: nearest(key, command.rows) for key in unknown if "." not in key}
        are_rows = {key: names_of_rows(name) for key in unknown if not isinstance(settings[key], SETTABLE)}
        hints = {key: misspelt.get(key) or are_rows.get(key) for key in unknown}
        refuse([f"unknown key '{key}'{hint}" for key, hint in hints.items() if hint])
        try:
            return _call(command, settings)
        except InputError as error:  # its message says all: without the frames of bertkit
            raise error.with_traceback(None) from None
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise InputError(f"{error.filename!s:.80}: {error.strerror}") from None

    call.__name__ = call.__qualname__ = name
    call.__module__ = "bertkit"
    call.__doc__ = (DOCSTRINGS / f"{name}.txt").read_text(encoding="utf-8")
    call.__signature__ = signature  # type: ignore[attr-defined]  # what `inspect.signature` looks for
    return call


def signature_of(command: Command) -> inspect.Signature:
    """Return the keyword parameters of a command: its rows, and the fields of its settings with their defaults in `conf/`."""
    defaults = read_conf(command.name)
    if command.makes_run:
        defaults["output_dir"] = None  # named after its settings
    of_runs = {} if command.of_runs is None else _hints(command.of_runs)
    if command.returns == "page":
        defaults["output"] = None  # the page is returned
    known = {**of_runs, **_hints(command.name), **dict.fromkeys(command.rows, object)}
    required = [name for name in known if defaults.get(name) == "???" and name not in command.rows]
    follows = [name for name, value in defaults.items() if "${" in str(value)]  # another setting
    usual = defaults | dict.fromkeys(required, inspect.Parameter.empty) | dict.fromkeys(follows, ...)
    kinds = dict.fromkeys(command.positions, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature(
        [
            inspect.Parameter(
                name, kinds.get(name, inspect.Parameter.KEYWORD_ONLY), default=usual.get(name), annotation=known[name]
            )
            for name in dict.fromkeys([*command.positions, *required, *command.rows, *known])
        ]
    )


def _hints(command: str) -> dict[str, object]:
    """Return the types of the settings that users set, and of the columns of a task."""
    settings = command_of(command).settings
    hints = {"experiment": str | None, **get_type_hints(settings)}
    columns = dict.fromkeys(COLUMNS, str | int | None) if "task" in hints else {}
    return {**{name: hint for name, hint in hints.items() if name in settings_of(command)}, **columns}


def _call(command: Command, settings: dict[str, object]) -> object:
    """Run a command with settings from Python, after the checks of the command line."""
    from bertkit.settings.reading.values import read_values

    with in_words_of(command.name, settings), contextlib.ExitStack() as stack:
        is_unnamed = command.makes_run and settings.get("output_dir") is None
        if is_unnamed:
            settings.pop("output_dir", None)
        inputs = take_rows(command, settings, stack)
        is_shown = command.returns == "page" and settings.get("output") is None
        if is_shown:
            settings["output"] = (
                f"{stack.enter_context(tempfile.TemporaryDirectory(prefix='bertkit-'))}/{command.name}.html"
            )
        elif command.returns == "values" and settings.get("output") is None:
            settings["output"] = "-"
        assignments = read_values(command.name, settings)
        assignments += [_own_place(command, assignments)] if is_unnamed else []
        checked = build_settings(command.name, compose_settings(command.name, assignments))
        launch = checked.worker_launch
        if command.returns == "scores" and launch is not None and launcher.starts_workers(launch):
            raise InputError(f"launch.num_processes: leave it out; bertkit.{command.name} runs in this process")
        words = (command.name, *(one.text for one in assignments))
        stack.callback(world.command_line.reset, world.command_line.set(words))
        if command.is_training:
            stack.enter_context(ONE_RUN)
        inputs += check_files(command.name, checked)
        if delegate(command.name, checked, inputs):
            return _run_of(command, checked)
        stage = import_stage(command.name)
        if command.returns == "scores":
            return _run_of(command, checked, stage.scores(checked))
        if command.returns == "values" and checked.output_file == "-":
            return stage.values(checked, *inputs)
        stage.run(checked, *inputs)
        return (
            Page(Path(str(checked.output_file)).read_text(encoding="utf-8")) if is_shown else _run_of(command, checked)
        )


def take_rows(command: Command, settings: dict[str, object], stack: contextlib.ExitStack) -> list[object]:
    """Take the rows out of the settings, and return those of an input; all others become files, which a run keeps."""
    inputs, data_dir = list[object](), None
    if not command.makes_run:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bertkit-")))
    elif "output_dir" in settings:
        folder = path_of(settings["output_dir"], "output_dir") / "rows"
    else:
        folder, data_dir = Path(RUNS, "rows").absolute(), RUNS  # which has the rows of other runs, too
    for name, setting in command.rows.items():
        if setting.startswith(f"{name}.") and isinstance(settings.get(name), (str, Mapping)):
            continue  # an option of the group, or its settings
        rows = settings.pop(name, None)
        if rows is None:
            continue
        if name == "corpus":
            settings |= _texts_as_file(rows, name, folder)
        elif setting != "input":
            place = settings.get("data_dir", data_dir)
            settings |= stack.enter_context(_as_file(rows, name, setting, folder, place))
        elif _is_path(rows):
            settings[setting] = rows
        else:
            inputs, settings[setting] = [[rows] if isinstance(rows, str) else rows], "-"
    return inputs


def _own_place(command: Command, assignments: Sequence[Assignment]) -> Assignment:
    """Return the directory of a run that has none: named after its settings, so that the same call is the same run."""
    texts = sorted(one.text for one in assignments if one.key != "overwrite")
    place = f"{RUNS}/{command.name}-{hashlib.sha256(repr(texts).encode()).hexdigest()[:8]}"
    return Assignment("output_dir", place, f"output_dir={place}")


def _run_of(command: Command, settings: CommandSettings, scores: JsonObject | None = None) -> Run:
    """Return the result of a command, with its scores: those of this process, or of the file that it wrote."""
    directory, written = _absolute(settings.directory), _absolute(settings.output_file)
    if directory is None:
        return Run(None, None, scores or {}, written)
    if command.scores_file is not None:
        scores = json.loads((directory / command.scores_file).read_text(encoding="utf-8"))
    return Run(directory, None if command.model is None else directory / command.model, scores or {}, written)


def _absolute(place: str | None) -> Path | None:
    return None if place in (None, "-") else Path(str(place)).absolute()


def _is_path(rows: object) -> bool:
    """Whether an input is a path, and not a text of several words or rows."""
    match rows:
        case str():
            return " " not in rows or os.path.exists(rows)
        case os.PathLike():
            return True
    return False


def _texts_as_file(texts: object, name: str, folder: Path) -> dict[str, str | os.PathLike[str]]:
    """Write texts one after another to a file that is named after its content; return the settings for it."""
    from bertkit.tasks.reading.rows import plain_rows

    written, digest = folder / name, hashlib.sha256()
    with written.open("w", encoding="utf-8") as file:
        for number, row in enumerate(plain_rows(texts, name, "text")):
            is_path = (
                number == 0
                and row.keys() == {"text"}
                and len(str(row["text"])) < 4096
                and os.path.exists(str(row["text"]))
            )
            refuse(
                is_path and f"{name}: the first text is the name of a file; for files write {name}={{'path': [...]}}"
            )
            line = f"{json.dumps(row)}\n"
            digest.update(line.encode())
            file.write(line)
    refuse(written.stat().st_size == 0 and f"{name}: no texts; pass at least one")
    path = written.rename(folder / f"{name}-{digest.hexdigest()[:16]}.jsonl")
    return {f"{name}.source": "texts", f"{name}.format": "jsonl", f"{name}.path": path}


@contextlib.contextmanager
def _as_file(
    rows: object, name: str, setting: str, folder: Path, data_dir: object
) -> Iterator[dict[str, str | os.PathLike[str]]]:
    """Write rows to a file that is named after its content, so the same rows are the same run; yield the settings for it.

    Messages about the file name the rows as the user does. After an error in the input a new file is removed again. Rows that
    are in a file already stay there.
    """
    if isinstance(rows, (str, os.PathLike)):
        path = path_of(rows, name).absolute()
        refuse(not path.is_file() and f"{name}={rows}: no such file; pass a file, or rows")
        yield {setting: path}
        return
    from bertkit.tasks.reading.rows import names_by_file, plain_rows

    text = "".join(f"{json.dumps(row)}\n" for row in plain_rows(rows, name))
    refuse(not text and f"{name}: no rows; pass at least one")
    path = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    settings: dict[str, str | os.PathLike[str]] = {setting: path.absolute(), "task.format": "auto"}
    if data_dir is None or data_dir is folder:  # then the run's settings name no place
        settings |= {setting: path.name, "data_dir": folder}
    is_new = not path.exists()
    with folder_for(path.parent):
        if is_new:
            own = path.with_name(f"{path.name}.{os.getpid()}")  # several processes may write the same rows
            write_durably(own, text)
            own.replace(path)
        before = names_by_file.set({**names_by_file.get(), path.name: name})
        try:
            yield settings
        except InputError:
            if is_new:
                path.unlink(missing_ok=True)
            raise
        finally:
            names_by_file.reset(before)
