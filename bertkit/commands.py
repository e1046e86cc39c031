"""The commands as functions: settings are composed and checked, then a command's page runs, here or in several processes.

Python calls `prepare`, `pretrain`, `finetune`, `evaluate`, `export`; the command line calls what they are made of. Settings are
those of the command, nested or by dotted names, over the defaults in `conf/`:

    bertkit.pretrain(data_dir="data", model="tiny", output_dir="runs/tiny", optimizer={"peak_learning_rate": 1e-3})
    bertkit.pretrain(data_dir="data", model="tiny", output_dir="runs/tiny", **{"optimizer.peak_learning_rate": 1e-3})

Errors are those of `bertkit.base.errors`. torch is imported by the pages, after every key and type has been checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import importlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertkit.base import hub_ids
from bertkit.base.errors import InputError
from bertkit.launch import launcher, world

TRAINING = ("pretrain", "finetune")
PARALLEL = (*TRAINING, "evaluate")


@dataclasses.dataclass(frozen=True)
class Run:
    """What a command made. Wherever a setting asks for a model or data, a run may be given.

    Attributes:
        directory: its `output_dir`; None of an evaluation.
        model_dir: where its model is; None where it made none.
        scores: the final metrics.
    """

    directory: Path | None
    model_dir: Path | None
    scores: dict[str, Any]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of `metrics.jsonl`: a mapping for each logged step."""
        path = None if self.directory is None else self.directory / "metrics.jsonl"
        if path is None or not path.is_file():
            return []
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    @property
    def report(self) -> Path | None:
        """The page with the curves and scores."""
        path = None if self.directory is None else self.directory / "report.html"
        return path if path is not None and path.is_file() else None

    def __fspath__(self) -> str:
        """Stand for the model, or for the directory where there is no model.

        Raises:
            InputError: an evaluation has neither.
        """
        place = self.model_dir or self.directory
        if place is None:
            raise InputError("an evaluation leaves no directory; give the run that it measured")
        return str(place)

    def _repr_html_(self) -> str:
        """Show the report in a notebook."""
        if self.report is None:
            return f"<pre>{html.escape(repr(self))}</pre>"
        page = html.escape(self.report.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0"></iframe>'


def prepare(**settings: Any) -> Run:
    """Turn text into a tokenizer and a prepared dataset; the settings are those of `bertkit prepare`.

    >>> data = bertkit.prepare(corpus={"path": "books.txt"}, tokenizer={"vocab_size": 300}, output_dir="books")

    Returns:
        A run whose `directory` holds the dataset.
    """
    return _call("prepare", settings)


def pretrain(**settings: Any) -> Run:
    """Pretrain a BERT, or go on with one; the settings are those of `bertkit pretrain`.

    >>> run = bertkit.pretrain(data_dir=data, model="tiny", steps=4, schedule={"warmup_steps": 1}, output_dir="tiny")
    >>> run.scores["mlm_loss"] > 0, run.metrics[0]["step"], run.report.name
    (True, 1, 'report.html')

    Returns:
        A run whose `model_dir` `transformers` loads too.
    """
    return _call("pretrain", settings)


def finetune(*, train: Any = None, dev: Any = None, **settings: Any) -> Run:
    """Fine-tune a model on a task; the settings are those of `bertkit finetune`.

    >>> rows = [{"text": "a good day", "label": "good"}, {"text": "a bad day", "label": "bad"}]
    >>> stars = bertkit.finetune(task="sequence", train=rows * 8, dev=rows, model_dir=run, num_epochs=1, output_dir="stars")
    >>> 0 <= stars.scores["accuracy"] <= 1
    True

    Args:
        train: rows to learn from: mappings, a `datasets.Dataset`, a pandas frame, or a file; None for those of `data_dir`.
        dev: rows to measure on; None for those of `data_dir`, or of `dev_share`.
        **settings: of the command.

    Returns:
        A run with the best model by the task's metric.
    """
    with _splits(train=train, dev=dev) as files:
        return _call("finetune", {**files, **settings})


def evaluate(*, data: Any = None, **settings: Any) -> Run:
    """Measure a model; the settings are those of `bertkit evaluate`.

    >>> bertkit.evaluate(model_dir=stars, data=rows).scores["num_examples"]
    2

    Args:
        data: labelled rows, as for `finetune`; None for those of `data_dir`.
        **settings: of the command.

    Returns:
        A run with `scores` alone.
    """
    with _splits(data=data) as files:
        return _call("evaluate", {**files, **settings})


def export(**settings: Any) -> Run:
    """Write a model for `transformers`, compared with it first; the settings are those of `bertkit export`.

    >>> bertkit.export(model_dir=stars, head="task", output_dir="stars-export").model_dir.name
    'stars-export'

    Returns:
        A run whose `model_dir` is the written directory.
    """
    return _call("export", settings)


def _call(command: str, settings: Mapping[str, Any]) -> Run:
    """Run a command with settings from Python, as the command line runs it; give what it made."""
    from bertkit.settings.compose import spelled

    overrides = spelled(settings)
    checked = built(command, composed(command, overrides))
    if command == "evaluate" and launcher.starts_workers(checked.launch):
        raise InputError(
            "launch.num_processes: evaluate answers in this process; leave it out, or use the command line"
        )
    before, sys.argv = sys.argv, ["bertkit", command, *overrides]  # which the run writes down
    try:
        found = None if runs_elsewhere(command, checked) else page_of(command)(checked)
    finally:
        sys.argv = before
    if command == "evaluate":
        return Run(None, None, found or {})
    directory = Path(checked.output_dir).absolute()
    if command not in TRAINING:
        return Run(directory, directory if command == "export" else None, {})
    scores = json.loads((directory / "eval.json").read_text(encoding="utf-8"))
    return Run(directory, directory / "model", scores)


@contextlib.contextmanager
def _splits(**splits: Any) -> Iterator[dict[str, str]]:
    """Write splits that are given as rows into files, as long as they are needed; give the settings that name them."""
    from bertkit.tasks.reading.rows import as_json_lines

    with tempfile.TemporaryDirectory(prefix="bertkit-") as folder:
        named = {}
        for split, rows in splits.items():
            if rows is None:
                continue
            path = Path(folder) / f"{split}.jsonl"
            if isinstance(rows, (str, os.PathLike)):
                path = Path(rows).expanduser().absolute()
                if not path.is_file():
                    raise InputError(f"{split}={rows}: no such file; give a file, or rows")
            else:
                path.write_text("".join(f"{line}\n" for line in as_json_lines(rows, split)), encoding="utf-8")
                named["task.format"] = "auto"
            named["task.files." + ("dev" if split == "data" else split)] = str(path)
        yield named


def composed(
    command: str, overrides: list[str], config_dir: str | None = None, config: str | None = None
) -> dict[str, Any]:
    """Compose the configuration of a command, a plain mapping; over the settings of a file where one is given.

    Raises:
        InputError: unknown keys and options, malformed overrides.
    """
    from bertkit.settings.compose import compose

    if config is not None:
        from bertkit.settings.replay import replayed

        return replayed(command, config, overrides, config_dir)
    return compose(command, overrides, config_dir)


def built(command: str, mapping: dict[str, Any]) -> Any:
    """Check a configuration, or what the launcher hands on; give the settings of the command.

    Raises:
        InputError: all that is wrong with it, a line each.
    """
    from bertkit.base.typed_settings import build

    settings: Any = build(schema_of(command), mapping)
    given = getattr(settings, "model_dir", None) or ()
    for model_dir in (given,) if isinstance(given, str) else given:
        hub_ids.check_model(model_dir, "model_dir")
    return settings


def schema_of(command: str) -> Any:
    """Give the dataclass of a command's settings."""
    return getattr(importlib.import_module(f"bertkit.settings.{command}"), f"{command.capitalize()}Settings")


def runs_elsewhere(command: str, settings: Any) -> bool:
    """Run a command in processes of its own, to their end; or say that another process is enough; or enter a world."""
    if command not in PARALLEL:
        return not world.world_from_environment().is_main
    if _launched(command, settings):
        return True
    world.enter(settings.launch)
    return False


def page_of(command: str) -> Callable[[Any], Any]:
    """Import what does the work of a command: a function of its settings, which gives what was found or None."""
    _quieten_libraries()
    place = f"bertkit.{command}.run" if command == "serve" else f"bertkit.stages.{command}"
    page = importlib.import_module(place)
    return functools.partial(page.run, launch=_launched) if command == "glue" else page.run


def _launched(command: str, settings: Any) -> bool:
    """Run a command in processes of its own where its settings ask for several; False where they do not."""
    if not launcher.starts_workers(settings.launch):
        return False
    launcher.start(command, settings)
    return True


def _quieten_libraries() -> None:
    """Keep third-party notices off the terminal; bertkit's own lines say what matters."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.filterwarnings("ignore", module=r"(torch|accelerate|datasets|transformers|huggingface_hub)\b.*")
