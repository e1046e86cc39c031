"""The registry of commands, and the commands as Python functions.

A new command needs one line in `_ALL` and four files: its defaults in `conf/NAME.yaml`, its settings in `settings/NAME.py`, its
stage in `stages/NAME.py`, and a test of the stage. In Python, settings are nested or dotted:

    bertkit.pretrain(data_dir="data", model="tiny", output_dir="runs/tiny", optimizer={"peak_learning_rate": 1e-3})
    bertkit.pretrain(..., optimizer={"name": "lamb", "peak_learning_rate": 1e-3})  # an option of a group, and its settings
    bertkit.pretrain(..., **{"optimizer.peak_learning_rate": 1e-3})

A command raises the errors of `bertkit.base.errors`. The stages import torch, after all keys and types have been checked.
"""

import __future__

import ast
import contextlib
import dataclasses
import functools
import hashlib
import html
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bertkit.base import hub_ids
from bertkit.base.errors import InputError, say
from bertkit.base.files import folder_for, write_durably
from bertkit.base.typed_settings import nearest, refuse
from bertkit.launch import launcher, world


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes:
        name: the name that the user types.
        needs: its input, for `bertkit --help`.
        gives: its output, for `bertkit --help`.
        is_training: whether it saves checkpoints; then a signal stops it after a step, and it can resume.
    """

    name: str
    needs: str
    gives: str
    is_training: bool = False


_ALL = (
    Command("prepare", "text", "tokenizer and prepared dataset"),
    Command("pretrain", "prepared dataset", "BERT, by masked LM and next sentence prediction", is_training=True),
    Command("finetune", "any model and a task's files", "a model for the task, and its scores", is_training=True),
    Command(
        "glue", "any model and GLUE's files", "a model for each task and seed, a table, a submission", is_training=True
    ),
    Command("predict", "model and inputs", "predictions, one line each"),
    Command("embed", "encoder and texts", "one vector for each text"),
    Command("evaluate", "model and a task's labelled split, or a prepared dataset", "metrics"),
    Command(
        "compare", "several runs", "scores, curves and settings side by side; for two runs, where they diverge and why"
    ),
    Command("view", "any model and an input", "attention and attributions, as a page, numbers or a picture"),
    Command("serve", "models", "a JSON API and a web page"),
    Command("index", "text", "a library of passages for full-text search"),
    Command("search", "a library, a question-answering model and questions", "passages with answers, and metrics"),
    Command("export", "checkpoint", "a directory that transformers loads, verified against transformers"),
    Command("verify", "any model", "a certificate of parity with the Hugging Face implementation"),
)
COMMANDS = {command.name: command for command in _ALL}
# the settings for which Python gives rows: mappings, a data frame, ...; some of these commands return theirs
ROWS = {"finetune": ("train", "dev"), "evaluate": ("data",)} | dict.fromkeys(
    ("predict", "embed", "view", "search"), ("input",)
)
RETURNED = ("predict", "embed", "search")


@dataclasses.dataclass(frozen=True)
class Run:
    """The result of a command; it can be passed as a setting that takes a model or a dataset.

    Attributes:
        directory: the `output_dir`; None if the command has none.
        model_dir: the directory of the model; None if the command makes no model.
        scores: the final metrics.
        output: the file that the command wrote; None if it has a directory or returns its results.
    """

    directory: Path | None
    model_dir: Path | None
    scores: dict[str, Any]
    output: Path | None = None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`: a mapping for each logged step."""
        path = self._file("metrics.jsonl")
        return [] if path is None else [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    @property
    def report(self) -> Path | None:
        """The page with the curves and scores."""
        return self.output if self.output and self.output.suffix == ".html" else self._file("report.html")

    def _file(self, name: str) -> Path | None:
        path = None if self.directory is None else self.directory / name
        return path if path is not None and path.is_file() else None

    def __fspath__(self) -> str:
        """Return the path of the model, or, without a model, of the directory or the file.

        Raises:
            InputError: this is the result of an evaluation, which has neither.
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
        return _call(command, settings)

    if importlib.util.find_spec(f"bertkit.{command}"):  # bertkit.predict is also the folder of this name
        call.__dict__ = vars(importlib.import_module(f"bertkit.{command}"))
    return functools.update_wrapper(call, names[command], updated=())


def _call(command: str, settings: dict[str, Any]) -> Any:
    """Run a command with settings from Python, in the same way as from the command line."""
    from bertkit.settings.compose import to_overrides
    from bertkit.settings.names import VERBATIM, schema_of

    with contextlib.ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bertkit-")))
        is_run = command == "finetune" and settings.get("output_dir") is not None
        folder = Path(settings["output_dir"], "rows") if is_run else temporary
        inputs, files = _take_rows(command, settings, folder)
        answers = temporary / "answers.jsonl"
        is_silent = settings.get("output") is None and command in (*RETURNED, "verify")
        if is_silent and command in RETURNED:
            settings["output"] = answers if settings.get("question") else "-"
        if command == "compare":
            settings["runs"] = [getattr(run, "directory", run) for run in settings.get("runs", ())]
        fields = [field.name for field in dataclasses.fields(schema_of(command)) if field.metadata == VERBATIM]
        texts = [f"{name}={text}" for name in fields if (text := settings.pop(name, None)) is not None]
        overrides = to_overrides(settings) + texts
        checked = build_settings(command, compose_settings(command, overrides))
        if command == "evaluate" and launcher.starts_workers(checked.launch):
            raise InputError("launch.num_processes: leave it out; bertkit.evaluate runs in this process")
        for path, text in files.items():
            stack.enter_context(_kept(path, text))
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
            settings[setting] = Path(rows).expanduser().absolute()
            refuse(not settings[setting].is_file() and f"{name}={rows}: no such file; pass a file, or rows")
        elif rows is not None and is_input and command != "search":
            inputs, settings[setting] = [rows], "-"
        elif rows is not None:
            text = "".join(f"{json.dumps(row)}\n" for row in plain_rows(rows, name, "question" if is_input else None))
            refuse(not text and f"{name}: no rows; pass at least one")
            path = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
            files[path], settings[setting] = text, path.absolute()
            settings |= {} if is_input else {"task.format": "auto"}
            if not is_input and settings.get("data_dir") in (None, folder):  # then the run's settings name no place
                settings |= {setting: path.name, "data_dir": folder}
    return inputs, files


@contextlib.contextmanager
def _kept(path: Path, text: str) -> Iterator[None]:
    """Write a file that is missing; after an error in the input, remove it again."""
    if path.exists():
        yield
        return
    with folder_for(path.parent):
        own = path.with_name(f"{path.name}.{os.getpid()}")  # several processes may write the same rows
        write_durably(own, text)
        own.replace(path)
        try:
            yield
        except InputError:
            path.unlink(missing_ok=True)
            raise


def compose_settings(
    command: str, overrides: list[str], config_dir: str | None = None, config: str | None = None
) -> dict[str, Any]:
    """Return the configuration of a command, as a plain mapping; with `config`, start from the settings in that file.

    Raises:
        InputError: a key or an option is unknown, or an override is malformed.
    """
    from bertkit.settings.compose import compose, compose_from_run

    if config is not None:
        return compose_from_run(command, config, overrides, config_dir)
    inferred = _infer(overrides, config_dir) if command == "finetune" else []
    return compose(command, [*inferred, *overrides], config_dir)


def _infer(overrides: list[str], config_dir: str | None) -> list[str]:
    """Infer the task of a training file without `task=`, and the held-out share without a dev file; print both in one line."""
    keys = {text.partition("=")[0] for text in overrides}
    if "task.files.train" not in keys or "data_dir" in keys:
        return []
    inferred, reasons = list[str](), list[str]()
    if "task" not in keys:
        from bertkit.base.typed_settings import build
        from bertkit.settings.compose import compose
        from bertkit.tasks.reading.kinds import infer_task
        from bertkit.tasks.task_config import TaskConfig

        own = [text for text in overrides if re.match(r"plugins=|task\.((columns|files)\.)?\w+=", text)]
        task = build(TaskConfig, compose("finetune", ["task=sequence", "output_dir=.", *own], config_dir)["task"])
        inferred, reason = infer_task(task)
        reasons.append(f"{' '.join(inferred)}, because {reason}")
    if not keys & {"task.files.dev", "dev_share"}:
        inferred.append("dev_share=0.1")
        reasons.append("dev_share=0.1: 10 % of the rows are held out")
    if reasons and world.world_from_environment().is_main:
        say("; ".join(reasons), file=sys.stderr)
    return inferred


def build_settings(command: str, mapping: dict[str, Any]) -> Any:
    """Check a configuration, and return the settings of the command.

    Raises:
        InputError: with one line for each error.
    """
    from bertkit.base.typed_settings import build
    from bertkit.settings.names import schema_of

    settings: Any = build(schema_of(command), mapping)
    model_dirs = getattr(settings, "model_dir", None) or ()
    for model_dir in (model_dirs,) if isinstance(model_dirs, str) else model_dirs:
        hub_ids.check_model(model_dir, "model_dir")
    return settings


def check_files(settings: Any) -> None:
    """Read a task's local files, and open an input, before torch is imported; raises InputError if they are wrong."""
    from bertkit.base.text_files import opened_input, unpacked
    from bertkit.tasks.reading import readers
    from bertkit.tasks.task import check_metrics

    if hasattr(settings, "dev_share"):
        check_metrics(settings.task, settings.task.label_names)
        if readers.find_file(settings.task, settings.data_dir, "train") is not None:
            readers.read_splits(settings)
    source = getattr(settings, "input", None) or "-"
    if source != "-" and (Path(source).is_file() or Path(source).is_dir() or not Path(source).exists()):  # not a pipe
        with opened_input(source) as (file, _):
            unpacked(file, Path(source))


def delegate(command: str, settings: Any) -> bool:
    """Return True if other processes run the command: workers, which this call starts and waits for, or rank 0 alone."""
    for each in settings.runs if command == "glue" else (settings,):
        if hasattr(each, "launch"):
            world.check_accelerate(os.environ, each)
    if not hasattr(settings, "launch"):
        return not world.world_from_environment().is_main
    if _run_in_workers(command, settings):
        return True
    world.enter(settings.launch)
    return False


def import_stage(command: str) -> Callable[[Any], Any]:
    """Import the stage of a command; return its function, which takes the settings."""
    _quieten_libraries()
    stage = importlib.import_module("bertkit.serve.server" if command == "serve" else f"bertkit.stages.{command}")
    return functools.partial(stage.run, launch=_run_in_workers) if command == "glue" else stage.run


def _run_in_workers(command: str, settings: Any) -> bool:
    """Run a command in workers if several processes are set; return whether it did."""
    if not launcher.starts_workers(settings.launch):
        return False
    launcher.start(command, settings)
    return True


def _quieten_libraries() -> None:
    """Switch off progress bars and notices of third-party libraries."""
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.filterwarnings("ignore", module=r"(torch|accelerate|datasets|transformers|huggingface_hub)\b.*")
