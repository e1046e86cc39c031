"""Stage: fine-tune a model on all of GLUE with several seeds; write a table of scores and the archive for the server.

1. Read the files of every task, to find errors before training.
2. Fine-tune with each seed, on each task alone or on all together; each task has its own directory. Evaluate MNLI on mismatched text too.
3. Compute the mean score over the seeds, without runs that learned nothing, and the average over the tasks.
4. Predict the test files with the model of the best seed; write the archive if no file is missing.

Results that are already in a run directory are not computed again.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bertkit.base.errors import NumericsError, say
from bertkit.base.files import to_json, write_durably
from bertkit.display.report import glue_table
from bertkit.inference.predictor import predict_split
from bertkit.jobs.checks import check_suite, has_split, indices_of, sheets_of
from bertkit.jobs.together import finetune_together
from bertkit.launch import launcher
from bertkit.run.finished import is_finetuned, read_metrics
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.glue import GlueSettings
from bertkit.stages import finetune
from bertkit.tasks.scoring import benchmark
from bertkit.tasks.scoring.benchmark import LEFT_OUT, SeedRun, best_of, summarise

MISMATCHED = "eval_mismatched.json"  # in the run directories of MNLI
SUMMARY, TABLE, ARCHIVE = "glue.json", "glue.md", "submission.zip"


def run(settings: GlueSettings) -> None:
    """Run or resume the suite, or check an archive."""
    if settings.check is not None:
        indices = {} if settings.data_dir is None else indices_of(settings.runs)
        counts = benchmark.check_archive(Path(settings.check), indices)
        say(f"{settings.check}: valid; {len(counts)} files, {sum(counts.values()):,} predictions")
        return
    assert settings.model_dir is not None
    assert settings.output_dir is not None
    directory = Path(settings.output_dir)
    if not settings.together:
        launcher.check_on_one_host("glue", [task.launch for task in settings.runs])
    check_suite(settings.runs)
    finetune_all = _finetune_together if settings.together else _finetune_alone
    results: dict[str, list[SeedRun]] = {}
    for tuned, error in finetune_all(settings, directory):
        results.setdefault(tuned.task.name, []).append(_scores(tuned) if error is None else _failed(tuned, error))
    if not results:  # in the other processes
        return
    summary = {"model_dir": settings.model_dir, "seeds": list(settings.seeds)} | summarise(results, directory)
    missing = _submit(settings, results, directory)
    summary |= {"submission": None if missing else ARCHIVE, "missing": missing}
    write_durably(directory / SUMMARY, to_json(summary))
    table = glue_table(summary, LEFT_OUT, ARCHIVE)
    write_durably(directory / TABLE, table)
    say("", *table.split("\n"), f"table:  {directory / TABLE}")
    if not missing:
        say(f"submission: {directory / ARCHIVE}")


Tuned = Iterator[tuple[FinetuneSettings, NumericsError | None]]


def _finetune_alone(settings: GlueSettings, directory: Path) -> Tuned:
    """Fine-tune on each task with each seed, unless this is done already; yield the settings of each run, and its error."""
    for task, seed in itertools.product(settings.trained, settings.seeds):
        say(f"-- {task.task.name}, seed {seed}")
        seeded = _seeded(task, seed, directory)
        try:
            if not (
                is_finetuned(seeded) or launcher.run_in_workers("finetune", seeded, seeded.launch, seeded.output_dir)
            ):
                finetune.run(seeded)
        except NumericsError as error:
            yield seeded, error
        else:
            yield seeded, None


def _finetune_together(settings: GlueSettings, directory: Path) -> Tuned:
    """Fine-tune on all tasks together with each seed, unless this is done already; on process 0 yield the same."""
    for seed in settings.seeds:
        seeded = [_seeded(task, seed, directory) for task in settings.trained]
        yield from finetune_together(seeded, directory / "together" / f"seed-{seed}")


def _seeded(settings: FinetuneSettings, seed: int, directory: Path) -> FinetuneSettings:
    return dataclasses.replace(settings, seed=seed, output_dir=str(directory / settings.task.name / f"seed-{seed}"))


def _failed(settings: FinetuneSettings, error: NumericsError) -> SeedRun:
    say(f"warning: {settings.task.name}, seed {settings.seed}: {error}")
    return SeedRun(settings.seed, Path(settings.output_dir), {}, str(error))


def _scores(settings: FinetuneSettings) -> SeedRun:
    """Return the scores of a finished run, after a prediction of MNLI's mismatched text."""
    run_dir = Path(settings.output_dir)
    result = read_metrics(run_dir, settings.task.metrics)
    metrics = result.values
    if settings.task.name == "mnli" and has_split(settings, "dev_mismatched"):
        if not (run_dir / MISMATCHED).is_file():
            predicted = predict_split(run_dir / "model", settings, "dev_mismatched")
            source = predicted.source
            scores = source.task.score(source.examples, predicted.predictions)
            write_durably(run_dir / MISMATCHED, to_json(scores | {"num_examples": len(source.examples)}))
        mismatched = read_metrics(run_dir, settings.task.metrics, MISMATCHED)
        metrics = metrics | {f"{key}_mismatched": value for key, value in mismatched.values.items()}
    fault = "the same answer to every example" if result.is_degenerate else None
    return SeedRun(settings.seed, run_dir, metrics, fault)


def _submit(settings: GlueSettings, results: Mapping[str, Sequence[SeedRun]], directory: Path) -> list[str]:
    """Predict the test files, and write the archive unless some are missing; return the names of the missing ones."""
    tables: dict[str, str] = {}
    for sheet, task_settings in sheets_of(settings.runs):
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
        benchmark.write_archive(directory / ARCHIVE, tables, indices_of(settings.runs))
    return missing
