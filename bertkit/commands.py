"""The registry of commands, and the commands as Python functions.

A new command needs one line in `_ALL` and four files: its defaults in `conf/NAME.yaml`, its settings in `settings/NAME.py`, its
stage in `stages/NAME.py`, and a test of the stage. In Python, settings are nested or dotted:

    bertkit.pretrain(data_dir="data", model="tiny", output_dir="runs/tiny", optimizer={"peak_learning_rate": 1e-3})
    bertkit.pretrain(data_dir="data", model="tiny", output_dir="runs/tiny", **{"optimizer.peak_learning_rate": 1e-3})

A command raises the errors of `bertkit.base.errors`. The stages import torch, after all keys and types have been checked.
"""

import contextlib
import dataclasses
import functools
import html
import importlib
import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertkit.base import hub_ids
from bertkit.base.errors import InputError, say
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


@dataclasses.dataclass(frozen=True)
class Run:
    """The result of a command; it can be passed as a setting that takes a model or a dataset.

    Attributes:
        directory: the `output_dir`; None for an evaluation.
        model_dir: the directory of the model; None if the command makes no model.
        scores: the final metrics.
    """

    directory: Path | None
    model_dir: Path | None
    scores: dict[str, Any]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`: a mapping for each logged step."""
        path = self._file("metrics.jsonl")
        return [] if path is None else [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    @property
    def report(self) -> Path | None:
        """The page with the curves and scores."""
        return self._file("report.html")

    def _file(self, name: str) -> Path | None:
        path = None if self.directory is None else self.directory / name
        return path if path is not None and path.is_file() else None

    def __fspath__(self) -> str:
        """Return the path of the model, or, without a model, of the directory.

        Raises:
            InputError: this is the result of an evaluation, which has neither.
        """
        place = self.model_dir or self.directory
        if place is None:
            raise InputError("an evaluation has no directory; pass the run that it evaluated")
        return str(place)

    def _repr_html_(self) -> str:
        """Show the report in a notebook."""
        if self.report is None:
            return f"<pre>{html.escape(repr(self))}</pre>"
        page = html.escape(self.report.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'


def prepare(**settings: Any) -> Run:
    """Make a tokenizer and a prepared dataset from text; takes the settings of `bertkit prepare`.

    >>> data = bertkit.prepare(corpus={"path": "books.txt"}, tokenizer={"vocab_size": 300}, output_dir="books")

    Returns:
        A run whose `directory` holds the dataset.
    """
    return _call("prepare", settings)


def pretrain(**settings: Any) -> Run:
    """Pretrain a BERT, from scratch or from a checkpoint; takes the settings of `bertkit pretrain`.

    >>> run = bertkit.pretrain(data_dir=data, model="tiny", steps=4, schedule={"warmup_steps": 1}, output_dir="tiny")
    >>> run.scores["mlm_loss"] > 0, run.metrics[0]["step"], run.report.name
    (True, 1, 'report.html')

    Returns:
        A run with a `model_dir` that `transformers` loads too.
    """
    return _call("pretrain", settings)


def finetune(*, train: Any = None, dev: Any = None, **settings: Any) -> Run:
    """Fine-tune a model on a task; takes the settings of `bertkit finetune`.

    >>> rows = [{"text": "a good day", "label": "good"}, {"text": "a bad day", "label": "bad"}]
    >>> stars = bertkit.finetune(task="sequence", train=rows * 8, dev=rows, model_dir=run, num_epochs=1, output_dir="stars")
    >>> 0 <= stars.scores["accuracy"] <= 1
    True

    Args:
        train: training rows: mappings, a `datasets.Dataset`, a pandas frame, or a file; None to read them from `data_dir`.
        dev: rows for evaluation; None to read them from `data_dir`, or with `dev_share`.
        **settings: settings of the command.

    Returns:
        A run with the model that has the best score in the task's metric.
    """
    with _write_splits(train=train, dev=dev) as files:
        return _call("finetune", {**files, **settings})


def evaluate(*, data: Any = None, **settings: Any) -> Run:
    """Evaluate a model; takes the settings of `bertkit evaluate`.

    >>> bertkit.evaluate(model_dir=stars, data=rows).scores["num_examples"]
    2

    Args:
        data: labelled rows, as for `finetune`; None to read them from `data_dir`.
        **settings: settings of the command.

    Returns:
        A run that has only `scores`.
    """
    with _write_splits(data=data) as files:
        return _call("evaluate", {**files, **settings})


def export(**settings: Any) -> Run:
    """Write a model for `transformers`, and verify that it loads there; takes the settings of `bertkit export`.

    >>> bertkit.export(model_dir=stars, head="task", output_dir="stars-export").model_dir.name
    'stars-export'

    Returns:
        A run whose `model_dir` is the exported directory.
    """
    return _call("export", settings)


def _call(command: str, settings: Mapping[str, Any]) -> Run:
    """Run a command with settings from Python, in the same way as from the command line."""
    from bertkit.settings.compose import to_overrides

    overrides = to_overrides(settings)
    checked = build_settings(command, compose_settings(command, overrides))
    check_files(checked)
    if command == "evaluate" and launcher.starts_workers(checked.launch):
        raise InputError(
            "launch.num_processes: bertkit.evaluate runs in this process; leave it out, or use the command line"
        )
    before, sys.argv = sys.argv, ["bertkit", command, *overrides]  # a run saves it in its manifest
    try:
        result = None if delegate(command, checked) else import_stage(command)(checked)
    finally:
        sys.argv = before
    if command == "evaluate":
        return Run(None, None, result or {})
    directory = Path(checked.output_dir).absolute()
    if not COMMANDS[command].is_training:
        return Run(directory, directory if command == "export" else None, {})
    scores = json.loads((directory / "eval.json").read_text(encoding="utf-8"))
    return Run(directory, directory / "model", scores)


@contextlib.contextmanager
def _write_splits(**splits: Any) -> Iterator[dict[str, str]]:
    """Write the rows of each split to a temporary file; yield the settings with the names of these files."""
    from bertkit.tasks.reading.source import plain_rows

    with tempfile.TemporaryDirectory(prefix="bertkit-") as folder:
        settings = {}
        for split, rows in splits.items():
            if rows is None:
                continue
            path = Path(folder) / f"{split}.jsonl"
            if isinstance(rows, (str, os.PathLike)):
                path = Path(rows).expanduser().absolute()
                if not path.is_file():
                    raise InputError(f"{split}={rows}: no such file; pass a file, or rows")
            else:
                path.write_text("".join(f"{json.dumps(row)}\n" for row in plain_rows(rows, split)), encoding="utf-8")
                settings["task.format"] = "auto"
            settings["task.files." + ("dev" if split == "data" else split)] = str(path)
        yield settings


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
