"""Stage: fine-tune a model on all of GLUE with several seeds; write a table of scores and the archive for the server.

1. Read the files of every task, to find errors before training.
2. Fine-tune on each task with each seed, each run in its own directory; evaluate MNLI on mismatched text too.
3. Compute the mean score over the seeds, without runs that learned nothing, and the average over the tasks.
4. Predict the test files with the model of the best seed; write the archive if no file is missing.

Results that are already in a run directory are not computed again.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertkit.base.errors import InputError, NumericsError, say
from bertkit.base.files import to_json, write_durably
from bertkit.display.report import glue_table
from bertkit.inference.predictor import predict_split
from bertkit.launch import launcher
from bertkit.run.finished import is_finetuned, read_metrics
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.glue import GlueSettings
from bertkit.stages import finetune
from bertkit.tasks.reading import readers
from bertkit.tasks.reading.training_data import read_training_data
from bertkit.tasks.scoring import benchmark
from bertkit.tasks.scoring.benchmark import LEFT_OUT, SeedRun, best_of, summarise

MISMATCHED = "eval_mismatched.json"  # in the run directories of MNLI
SUMMARY, TABLE, ARCHIVE = "glue.json", "glue.md", "submission.zip"


def run(settings: GlueSettings) -> None:
    """Run or resume the suite, or check an archive."""
    if settings.check is not None:
        counts = benchmark.check_archive(Path(settings.check), _test_indices(settings))
        say(f"{settings.check}: valid; {len(counts)} files, {sum(counts.values()):,} predictions")
        return
    launcher.check_on_one_host("glue", [task.launch for task in settings.runs])
    assert settings.model_dir is not None
    assert settings.output_dir is not None
    directory = Path(settings.output_dir)
    _check_files(settings.runs)
    results: dict[str, list[SeedRun]] = {}
    for task in settings.runs:
        name = task.task.name
        for seed in () if name == "ax" else settings.seeds:
            say(f"-- {name}, seed {seed}")
            seeded = dataclasses.replace(task, seed=seed, output_dir=str(directory / name / f"seed-{seed}"))
            results.setdefault(name, []).append(_finetune(seeded))
    summary = {"model_dir": settings.model_dir, "seeds": list(settings.seeds)} | summarise(results, directory)
    missing = _submit(settings, results, directory)
    summary |= {"submission": None if missing else ARCHIVE, "missing": missing}
    write_durably(directory / SUMMARY, to_json(summary))
    table = glue_table(summary, LEFT_OUT, ARCHIVE)
    write_durably(directory / TABLE, table)
    say("", *table.split("\n"), f"table:  {directory / TABLE}")
    if not missing:
        say(f"submission: {directory / ARCHIVE}")


def _check_files(tasks: Sequence[FinetuneSettings]) -> None:
    """Read every split of every task, to refuse wrong files now, not after hours of training."""
    faults: dict[str, str] = {}
    for settings in tasks:
        try:
            if settings.task.name != "ax":
                read_training_data(settings)
            for split in ("dev_mismatched", "test", "test_mismatched"):
                if _has_split(settings, split):
                    readers.read_examples(settings.task, settings.data_dir, split)
        except InputError as error:
            faults[settings.task.name] = str(error)
    if faults:
        left_out = {*faults, "ax"} if "mnli" in faults else set(faults)
        runnable = [settings.task.name for settings in tasks if settings.task.name not in left_out]
        remedy = f"; or set tasks=[{','.join(runnable)}], which would run" if runnable else ""
        listed = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
        raise InputError(f"{len(faults)} of {len(tasks)} tasks cannot run: {listed}{remedy}")


def _finetune(settings: FinetuneSettings) -> SeedRun:
    """Fine-tune on one task with one seed, unless this is done already; return the scores."""
    run_dir = Path(settings.output_dir)
    try:
        if not (
            is_finetuned(settings)
            or launcher.run_in_workers("finetune", settings, settings.launch, settings.output_dir)
        ):
            finetune.run(settings)
    except NumericsError as error:
        say(f"warning: {settings.task.name}, seed {settings.seed}: {error}")
        return SeedRun(settings.seed, run_dir, {}, str(error))
    result = read_metrics(run_dir, settings.task.metrics)
    metrics = result.values
    if settings.task.name == "mnli" and _has_split(settings, "dev_mismatched"):
        if not (run_dir / MISMATCHED).is_file():
            predicted = predict_split(run_dir / "model", settings, "dev_mismatched")
            source = predicted.source
            scores = source.task.score(source.examples, predicted.predictions)
            write_durably(run_dir / MISMATCHED, to_json(scores | {"num_examples": len(source.examples)}))
        mismatched = read_metrics(run_dir, settings.task.metrics, MISMATCHED)
        metrics = metrics | {f"{key}_mismatched": value for key, value in mismatched.values.items()}
    fault = "the same answer to every example" if result.is_degenerate else None
    return SeedRun(settings.seed, run_dir, metrics, fault)


def _has_split(settings: FinetuneSettings, split: str) -> bool:
    return readers.has_split(settings.task, settings.data_dir, split)


def _submit(settings: GlueSettings, results: Mapping[str, Sequence[SeedRun]], directory: Path) -> list[str]:
    """Predict the test files, and write the archive unless some are missing; return the names of the missing ones."""
    tables: dict[str, str] = {}
    for sheet, task_settings in _sheets(settings):
        best = best_of(results.get("mnli" if sheet.task == "ax" else sheet.task, ()))
        if best is None:
            continue
        path = best.directory / sheet.name
        if not path.is_file():
            say(f"-- {sheet.name}: the predictions of seed {best.seed}")
            predicted = predict_split(best.directory / "model", task_settings, sheet.split)
            write_durably(path, benchmark.table(task_settings.task, predicted.predictions))
        tables[sheet.name] = path.read_text(encoding="utf-8")
    missing = [sheet.name for sheet in benchmark.SHEETS if sheet.name not in tables]
    if missing:
        (directory / ARCHIVE).unlink(missing_ok=True)  # from an earlier start with other tasks
    else:
        benchmark.write_archive(directory / ARCHIVE, tables, _test_indices(settings))
    return missing


def _sheets(settings: GlueSettings) -> list[tuple[benchmark.Sheet, FinetuneSettings]]:
    """Pair each file of the archive (a sheet) with the settings of its task, if the test file exists."""
    pairs = [(sheet, task) for sheet in benchmark.SHEETS for task in settings.runs if task.task.name == sheet.task]
    return [(sheet, task) for sheet, task in pairs if _has_split(task, sheet.split)]


def _test_indices(settings: GlueSettings) -> dict[str, list[str]]:
    """Read the example ids of each test file, by the name of its sheet; none if an archive is checked without `data_dir`."""
    if settings.check is not None and settings.data_dir is None:
        return {}
    return {
        sheet.name: [example.id for example in readers.read_examples(task.task, task.data_dir, sheet.split).examples]
        for sheet, task in _sheets(settings)
    }
