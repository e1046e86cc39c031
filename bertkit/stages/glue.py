"""Stage: any model and GLUE's files -> a model of every task and seed, a table, and the archive for the server.

1. Read the files of every task; nothing is trained before.
2. Fine-tune each task with each seed, a run directory each; MNLI is measured on mismatched text too.
3. Sum up: the mean over the seeds, without runs that learned nothing, and the average over the tasks.
4. Answer the test files with the best seed's model, and write the archive when all of them are there.

Whatever stands in a run directory was finished, and is not done again.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError, NumericsError, say
from bertkit.base.files import to_json, write_durably
from bertkit.interop.load import hashes_of, load_packed, load_tokenizer, resolve_model_dir
from bertkit.launch import world
from bertkit.predict.answers import answer
from bertkit.predict.task_model import Predictor
from bertkit.run.directory import read_manifest, read_scores
from bertkit.run.task_data import read_splits
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.glue import GlueSettings
from bertkit.stages import finetune
from bertkit.tasks.reading import readers
from bertkit.tasks.reading.source import Source
from bertkit.tasks.scoring import submission
from bertkit.tasks.scoring.metrics import METRICS
from bertkit.tasks.shapes import make_features, shape_of
from bertkit.train import micro_batches, processes
from bertkit.view.suite import suite_table

MISMATCHED = "eval_mismatched.json"  # in a run of MNLI
SUMMARY, TABLE, ARCHIVE = "glue.json", "glue.md", "submission.zip"
LEFT_OUT = ("wnli",)  # of the average: Devlin et al. 2019, 4.1, since no model beats the majority
SAME = "the same answer to every example"
Launched = Callable[[str, Any], bool]  # command and settings -> whether processes of their own ran it


@dataclass(frozen=True)
class Run:
    """One task with one seed."""

    seed: int
    directory: Path
    metrics: dict[str, float]  # on the dev set
    fault: str | None  # why it does not count, if it does not

    @property
    def score(self) -> float:
        """The mean of the metrics: the one number of a task."""
        return statistics.fmean(self.metrics.values())


def run(settings: GlueSettings, launched: Launched) -> None:
    """Run the suite, resume it, or check an archive.

    Args:
        settings: of the suite.
        launched: runs a command in processes of its own, where its settings ask for several.

    Raises:
        InputError: settings or files are wrong, a run directory holds another run, or an archive is not valid.
        StoppedError: a signal asked a run to stop; its checkpoint is saved.
    """
    if settings.check is not None:
        counts = submission.check_archive(Path(settings.check), _test_indices(settings))
        say(f"{settings.check}: valid; {len(counts)} files, {sum(counts.values()):,} predictions")
        return
    if world.world_from_environment().size > 1 or any(each.launch.num_hosts > 1 for each in settings.runs):
        raise InputError(
            "glue runs on one host, each of its runs in processes of its own: set launch.num_processes=, and start it "
            "without torchrun or srun; or run finetune on each task"
        )
    assert settings.model_dir is not None
    assert settings.output_dir is not None
    directory = Path(settings.output_dir)
    _check_files(settings.runs)
    start = hashes_of(resolve_model_dir(settings.model_dir))
    results: dict[str, list[Run]] = {}
    for each in settings.runs:
        name = each.task.name
        for seed in () if name == "ax" else settings.seeds:
            say(f"-- {name}, seed {seed}")
            own = dataclasses.replace(each, seed=seed, output_dir=str(directory / name / f"seed-{seed}"))
            results.setdefault(name, []).append(_finetuned(own, start, launched))
    summary = {"model_dir": settings.model_dir, "seeds": list(settings.seeds)} | summarise(results, directory)
    missing = _submit(settings, results, directory)
    summary |= {"submission": None if missing else ARCHIVE, "missing": missing}
    write_durably(directory / SUMMARY, to_json(summary))
    table = suite_table(summary, LEFT_OUT, ARCHIVE)
    write_durably(directory / TABLE, table)
    say("", *table.split("\n"), f"table:  {directory / TABLE}")
    if not missing:
        say(f"submission: {directory / ARCHIVE}")


def _check_files(tasks: Sequence[FinetuneSettings]) -> None:
    """Read every split of every task, so that no fault of a file ends the suite after hours of training.

    Raises:
        InputError: some are missing or wrong; all of these tasks are named, and those that would run.
    """
    faults: dict[str, str] = {}
    for each in tasks:
        try:
            if each.task.name != "ax":
                read_splits(each)
            for split in ("dev_mismatched", "test", "test_mismatched"):
                if _has(each, split):
                    readers.read_examples(each.task, each.data_dir, split)
        except InputError as error:
            faults[each.task.name] = str(error)
    if faults:
        left_out = {*faults, "ax"} if "mnli" in faults else set(faults)
        fit = [each.task.name for each in tasks if each.task.name not in left_out]
        way = f"; or set tasks=[{','.join(fit)}], which would run" if fit else ""
        named = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
        raise InputError(f"{len(faults)} of {len(tasks)} tasks cannot run: {named}{way}")


def _finetuned(settings: FinetuneSettings, start: Mapping[str, str], launched: Launched) -> Run:
    """Fine-tune one task with one seed, unless it is done, and give its scores."""
    run_dir = Path(settings.output_dir)
    is_begun = (run_dir / "manifest.json").is_file()
    if is_begun and read_manifest(run_dir).identity.get("starting_weights") != start:
        raise InputError(f"{run_dir} holds a run of another model; choose another output_dir")
    try:
        if not launched("finetune", settings):
            finetune.run(settings)
    except NumericsError as error:
        say(f"warning: {settings.task.name}, seed {settings.seed}: {error}")
        return Run(settings.seed, run_dir, {}, str(error))
    names = [key for name in settings.task.metrics for key in METRICS[name]]
    result = read_scores(run_dir, names)
    metrics = {key: result[key] for key in names}
    if settings.task.name == "mnli" and _has(settings, "dev_mismatched"):
        if not (run_dir / MISMATCHED).is_file():
            source, predictions = _answers(settings, run_dir, "dev_mismatched")
            scores = shape_of(settings.task).score(settings.task, source.examples, predictions, source.labels)
            write_durably(run_dir / MISMATCHED, to_json(scores | {"num_examples": len(source.examples)}))
        mismatched = read_scores(run_dir, names, MISMATCHED)
        metrics |= {f"{key}_mismatched": mismatched[key] for key in metrics}
    return Run(settings.seed, run_dir, metrics, SAME if result.get("is_degenerate") else None)


def _has(settings: FinetuneSettings, split: str) -> bool:
    """Whether there is such a split: a file of `data_dir`, or without it one on the hub."""
    try:
        path = readers.find_file(settings.task, settings.data_dir, split)
    except InputError:
        return False
    return path is not None or getattr(settings.task.hub, split) is not None


def _answers(settings: FinetuneSettings, run_dir: Path, split: str) -> tuple[Source, list[Any]]:
    """Answer a split with the model of a run."""
    task, source = settings.task, readers.read_examples(settings.task, settings.data_dir, split)
    (model, _), tokenizer = load_packed(run_dir / "model"), load_tokenizer(run_dir / "model")
    accelerator = processes.make_accelerator(settings.device, 1)
    predictor = Predictor(
        accelerator.prepare_model(model, evaluation_mode=True),
        shape_of(task),
        tokenizer,
        task,
        source.labels,
        settings.precision,
        micro_batches.AUTO_MICRO_TOKENS[accelerator.device.type],
    )
    features = list(make_features(task, source.examples, tokenizer, source.labels))
    return source, answer(accelerator, predictor, source.examples, features)


def best_of(task_runs: Sequence[Run]) -> Run | None:
    """Choose the run whose model answers the test: the best score of those that count, the first of equal ones.

    Where none counts it is the best of those that ended.
    """
    ended = [run for run in task_runs if run.metrics]
    return max([run for run in ended if run.fault is None] or ended, key=lambda run: run.score, default=None)


def summarise(results: Mapping[str, Sequence[Run]], directory: Path) -> dict[str, Any]:
    """Sum up the runs: for each task the mean and the sample standard deviation over its seeds, then over the tasks.

    A task's score is the mean of its metrics, MNLI's that of matched and mismatched; the average is over the tasks'
    scores, without `LEFT_OUT` and without tasks of which no run counts.
    """
    summary: dict[str, Any] = {}
    for name, task_runs in results.items():
        counted = [run for run in task_runs if run.fault is None]
        best = best_of(task_runs)
        columns = {key: [run.metrics[key] for run in counted] for key in (counted[0].metrics if counted else ())}
        summary[name] = {
            "score": _spread([run.score for run in counted]) if counted else None,
            "metrics": {key: _spread(values) for key, values in columns.items()},
            "num_seeds": len(counted),
            "best_seed": None if best is None else best.seed,
            "runs": [
                {"seed": run.seed, "directory": str(run.directory.relative_to(directory))} | run.metrics | {"fault": run.fault}
                for run in task_runs
            ],
        }  # fmt: skip
    behind = [name for name, each in summary.items() if each["score"] and name not in LEFT_OUT]
    average = statistics.fmean(summary[name]["score"]["mean"] for name in behind) if behind else None
    left_out = [name for name in summary if name not in behind]
    return {"tasks": summary, "average": {"score": average, "tasks": behind, "left_out": left_out}}


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": statistics.fmean(values), "deviation": statistics.stdev(values) if len(values) > 1 else None}


def _submit(settings: GlueSettings, results: Mapping[str, Sequence[Run]], directory: Path) -> list[str]:
    """Answer the test files that are there, and write the archive if they all are; give the names of what is missing."""
    tables: dict[str, str] = {}
    for sheet, of_task in _sheets(settings):
        best = best_of(results.get("mnli" if sheet.task == "ax" else sheet.task, ()))
        if best is None:
            continue
        path = best.directory / sheet.name
        if not path.is_file():
            say(f"-- {sheet.name}: the answers of seed {best.seed}")
            _, predictions = _answers(of_task, best.directory, sheet.split)
            write_durably(path, submission.table(of_task.task, predictions))
        tables[sheet.name] = path.read_text(encoding="utf-8")
    missing = [sheet.name for sheet in submission.SHEETS if sheet.name not in tables]
    if missing:
        (directory / ARCHIVE).unlink(missing_ok=True)  # of an earlier start, with other tasks
    else:
        submission.write_archive(directory / ARCHIVE, tables, _test_indices(settings))
    return missing


def _sheets(settings: GlueSettings) -> list[tuple[submission.Sheet, FinetuneSettings]]:
    """The sheets of the archive whose test files are there, with the settings of their tasks."""
    pairs = [(sheet, each) for sheet in submission.SHEETS for each in settings.runs if each.task.name == sheet.task]
    return [(sheet, each) for sheet, each in pairs if _has(each, sheet.split)]


def _test_indices(settings: GlueSettings) -> dict[str, list[str]]:
    """Read the indices of the test files, by the name of the sheet; none without `data_dir` to check against."""
    if settings.check is not None and settings.data_dir is None:
        return {}
    indices = {}
    for sheet, each in _sheets(settings):
        source = readers.read_examples(each.task, each.data_dir, sheet.split)
        indices[sheet.name] = [example.id for example in source.examples]
    return indices
