"""The commands as Python functions, with settings that are nested or dotted:

    bertkit.pretrain(data_dir="data", model="tiny", output_dir="runs/tiny", optimizer={"peak_learning_rate": 1e-3})
    bertkit.pretrain(..., optimizer={"name": "lamb", "peak_learning_rate": 1e-3})  # an option of a group, and its settings
    bertkit.pretrain(..., **{"optimizer.peak_learning_rate": 1e-3})

Settings that take a task's files or an input also take rows: mappings, a data frame, a dataset, texts.
"""

import __future__

import ast
import contextlib
import dataclasses
import errno
import functools
import hashlib
import html
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.base.files import folder_for, write_durably
from bertkit.base.hub_ids import path_of
from bertkit.base.typed_settings import nearest, refuse
from bertkit.commands import COMMANDS, build_settings, check_files, compose_settings, delegate, import_stage
from bertkit.launch import launcher

# the settings for which Python gives rows: mappings, a data frame, ...; some of these commands return theirs
ROWS = {"finetune": ("train", "dev"), "evaluate": ("data",)} | dict.fromkeys(
    ("predict", "embed", "view", "search"), ("input",)
)
RETURNED = ("predict", "embed", "search")


@dataclasses.dataclass(frozen=True)
class Run:
    """The result of a command; it can be passed as a setting that takes a model or a dataset."""

    directory: Path | None  # the `output_dir`; None if the command has none
    model_dir: Path | None  # the directory of the model; None if the command makes no model
    scores: dict[str, Any]  # the final metrics
    output: Path | None = None  # the file that the command wrote; None if it has a directory or returns its results

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`: a mapping for each logged step."""
        path = None if self.directory is None else self.directory / "metrics.jsonl"
        lines = [] if path is None or not path.is_file() else path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def report(self) -> Path | None:
        """The page with the curves and scores."""
        page = self.output if self.directory is None else self.directory / "report.html"
        return page if page is not None and page.suffix == ".html" and page.is_file() else None

    def __fspath__(self) -> str:
        """Return the path of the model, or, without a model, of the directory or the file.

        Raises InputError if this is the result of an evaluation, which has neither.
        """
        place = self.model_dir or self.directory or self.output
        if place is None:
            raise InputError("an evaluation has no directory; pass the run that it evaluated")
        return str(place)

    def _repr_html_(self) -> str:
        """Show the report in a notebook."""
        if self.report is None:
            return f"<pre>{html.escape(repr(self))}</pre>"
        page = html.escape(self.report.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'


@functools.cache
def function_of(command: str) -> Callable[..., Any]:
    """Return a command as a Python function. The stub `__init__.pyi` has its parameters and its help, made from the settings."""
    tree = ast.parse(Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8"))
    stub = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == command)
    stub.decorator_list, names = [], dict[str, Any](__name__="bertkit")
    exec(compile(ast.Module([stub], []), "__init__.pyi", "exec", __future__.annotations.compiler_flag), names)
    parameters = inspect.signature(names[command]).parameters

    def call(*misplaced: Any, **settings: Any) -> Any:
        if misplaced:
            is_place = isinstance(misplaced[0], (str, os.PathLike))
            name = next(iter(parameters)) if is_place or command not in ROWS else ROWS[command][0]
            raise InputError(f"{command}({type(misplaced[0]).__name__}): settings have names; write {name}=")
        hints = {name: nearest(name, ROWS.get(command, ())) for name in settings if name not in parameters}
        refuse([f"unknown key '{name}'{hint}" for name, hint in hints.items() if hint])
        try:
            return _call(command, settings)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise InputError(f"{error.filename!s:.80}: {error.strerror}") from None

    return functools.update_wrapper(call, names[command], updated=())


def _call(command: str, settings: dict[str, Any]) -> Any:
    """Run a command with settings from Python, in the same way as from the command line."""
    from bertkit.settings.names import VERBATIM, schema_of
    from bertkit.settings.words import to_overrides

    with contextlib.ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bertkit-")))
        is_run = command == "finetune" and isinstance(settings.get("output_dir"), (str, os.PathLike))
        folder = path_of(settings["output_dir"], "output_dir") / "rows" if is_run else temporary
        inputs, files = _take_rows(command, settings, folder)
        for path, text in files.items():
            stack.enter_context(_kept(path, text))
        answers = temporary / "answers.jsonl"
        is_silent = settings.get("output") is None and command in (*RETURNED, "verify")
        if is_silent and command in RETURNED:
            settings["output"] = "-" if settings.get("question") is None else answers
        if command == "compare":
            runs = settings.get("runs", ())
            settings["runs"] = [
                getattr(run, "directory", run) for run in (runs if isinstance(runs, (list, tuple)) else [runs])
            ]
        fields = [field.name for field in dataclasses.fields(schema_of(command)) if field.metadata == VERBATIM]
        texts = [f"{name}={text}" for name in fields if (text := settings.pop(name, None)) is not None]
        overrides = to_overrides(settings) + texts
        checked = build_settings(command, compose_settings(command, overrides))
        if command == "evaluate" and launcher.starts_workers(checked.launch):
            raise InputError("launch.num_processes: leave it out; bertkit.evaluate runs in this process")
        check_files(checked)
        stack.callback(setattr, sys, "argv", sys.argv)
        sys.argv = ["bertkit", command, *overrides]  # a run saves it in its manifest
        with answers.open("a", encoding="utf-8") as said, contextlib.redirect_stdout(said if is_silent else sys.stdout):
            result = None if delegate(command, checked) else import_stage(command)(checked, *inputs)
        if is_silent and command in RETURNED:
            with answers.open(encoding="utf-8") as lines:
                if command != "embed":
                    return [json.loads(line) for line in lines]
                import numpy as np

                return np.array([np.array(json.loads(line)["embedding"], np.float32) for line in lines])
    place, output = getattr(checked, "output_dir", None), getattr(checked, "output", None)
    directory = None if place is None else Path(place).absolute()
    model_dir = {"pretrain": "model", "finetune": "model", "export": "."}.get(command)
    if COMMANDS[command].is_training and directory is not None:
        results = directory / ("glue.json" if command == "glue" else "eval.json")
        result = json.loads(results.read_text(encoding="utf-8"))
    written = None if output in (None, "-") else Path(output).absolute()
    return Run(directory, directory / model_dir if directory and model_dir else None, result or {}, written)


def _take_rows(command: str, settings: dict[str, Any], folder: Path) -> tuple[list[Any], dict[Path, str]]:
    """Take the rows out of the settings; return those for the stage, and the content of the files that it reads instead.

    A file is named after its content, so the same rows are the same run.
    """
    from bertkit.tasks.reading.source import plain_rows

    inputs, files = list[Any](), dict[Path, str]()
    for name in ROWS.get(command, ()):
        is_input, rows = name == "input", settings.pop(name, None)
        setting = name if is_input else f"task.files.{'dev' if name == 'data' else name}"
        is_file = isinstance(rows, (str, os.PathLike))
        if is_file and is_input:
            settings[name] = rows
        elif is_file:
            settings[setting] = path_of(rows, name).absolute()
            refuse(not settings[setting].is_file() and f"{name}={rows}: no such file; pass a file, or rows")
        elif rows is not None and is_input and command != "search":
            inputs, settings[setting] = [rows], "-"
        elif rows is not None:
            text = "".join(f"{json.dumps(row)}\n" for row in plain_rows(rows, name, "question" if is_input else None))
            refuse(not text and f"{name}: no rows; pass at least one")
            path = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
            files[path], settings[setting] = text, path.absolute()
            settings |= {} if is_input else {"task.format": "auto"}
            data_dir = settings.get("data_dir")
            if not is_input and (data_dir is None or data_dir is folder):  # then the run's settings name no place
                settings |= {setting: path.name, "data_dir": folder}
    return inputs, files


@contextlib.contextmanager
def _kept(path: Path, text: str) -> Iterator[None]:
    """Write a file that is missing; after an error in the input, remove it again, and name the rows as the user does."""
    is_new = not path.exists()
    with folder_for(path.parent):
        if is_new:
            own = path.with_name(f"{path.name}.{os.getpid()}")  # several processes may write the same rows
            write_durably(own, text)
            own.replace(path)
        try:
            yield
        except InputError as error:
            if is_new:
                path.unlink(missing_ok=True)
            raise InputError(*(line.replace(str(path), path.name.split("-")[0]) for line in error.args)) from None
