"""What the user's files say before torch is imported: a wrong file is refused at once, and settings follow from a right one."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from bertkit.base.errors import InputError, listed
from bertkit.base.hub_ids import DEFAULT_MODEL, check_directory, models_at_hand
from bertkit.base.text_files import opened_input, unpacked
from bertkit.base.typed_settings import build
from bertkit.run.directory import check_free, has_results
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.inputs import InputSettings
from bertkit.settings.reading.assignments import Assignment, keys_of
from bertkit.settings.reading.compose import compose_assigned
from bertkit.settings.reading.overrides import read_words
from bertkit.tasks.reading import readers
from bertkit.tasks.reading.kinds import Inferred, infer_task
from bertkit.tasks.reading.training_data import TrainingData, read_training_data
from bertkit.tasks.scoring.benchmark import SHEETS, ResultSheet
from bertkit.tasks.task_config import TaskConfig
from bertkit.tasks.trainable import task_of


def read_local_splits(settings: FinetuneSettings) -> TrainingData | None:
    """Read the local files of a task, and return the examples for the stage; raises InputError if they, or the metrics, are wrong.

    Returns None for a dataset of the hub. The starting model must be there, unless the run is finished.
    """
    task = task_of(settings.task)
    task.check_trainable()
    task.check_metrics()
    if settings.calibrate:
        task.decisions((), ())
    check_free(Path(settings.output_dir))
    if settings.model_dir is not None and not has_results(Path(settings.output_dir)):
        check_directory(settings.model_dir, "model_dir")
    if readers.find_file(settings.task, settings.data_dir, "train") is None:
        return None
    return read_training_data(settings)


def infer_settings(assignments: Sequence[Assignment], config_dir: str | None) -> list[Inferred]:
    """Infer what is not set beside a training file: its task, the held-out share without a dev file, and the model."""
    keys = keys_of(assignments)
    if "task.files.train" not in keys:
        return []
    has_task, has_dev = "task" in keys, bool(keys & {"task.files.dev", "dev_share"})
    own = [one for one in assignments if re.fullmatch(r"data_dir|task(\.(columns|files))?(\.\w+)?", one.key)]
    own += read_words("finetune", [*([] if has_task else ["task=sequence"]), "output_dir=."])
    composed = compose_assigned("finetune", own, config_dir)
    task, data_dir = build(TaskConfig, composed["task"], "task"), composed["data_dir"]
    inferred = list[Inferred]()
    if not has_task:
        words, reason = infer_task(task, data_dir)
        inferred.append(Inferred(words, f"{' '.join(words)}, because {reason}"))
    with contextlib.suppress(InputError):
        has_dev = has_dev or (data_dir is not None and readers.find_file(task, data_dir, "dev") is not None)
    if not has_dev:
        inferred.append(Inferred(["dev_share=0.1"], "dev_share=0.1: a tenth of the rows is held out"))
    at_hand = models_at_hand() if not keys & {"model_dir", "decoder"} and task.kind != "generation" else []
    if DEFAULT_MODEL in at_hand:
        default = f"model_dir={DEFAULT_MODEL}"
        inferred.append(Inferred([default], f"{default}, the default (at hand: {listed(at_hand, ', ')})"))
    return inferred


def check_input(settings: InputSettings) -> None:
    """Open an input that is a file; raises InputError if it cannot be read. A pipe can be opened only once."""
    if settings.input in (None, "-"):
        return
    path = Path(str(settings.input))
    if path.is_file() or path.is_dir() or not path.exists():
        with opened_input(str(path)) as (file, _):
            unpacked(file, path)


def check_suite(tasks: Sequence[FinetuneSettings]) -> None:
    """Read every split of every task of GLUE, to refuse wrong files now, not after hours of training."""
    faults: dict[str, str] = {}
    for settings in tasks:
        try:
            if settings.task.name != "ax":
                read_training_data(settings)
            for split in ("dev_mismatched", "test", "test_mismatched"):
                if has_split(settings, split):
                    readers.read_examples(settings.task, settings.data_dir, split)
        except InputError as error:
            faults[settings.task.name] = str(error)
    if faults:
        left_out = {*faults, "ax"} if "mnli" in faults else set(faults)
        runnable = [settings.task.name for settings in tasks if settings.task.name not in left_out]
        remedy = f"; or set tasks=[{','.join(runnable)}], which would run" if runnable else ""
        listed = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
        raise InputError(f"{len(faults)} of {len(tasks)} tasks cannot run: {listed}{remedy}")


def has_split(settings: FinetuneSettings, split: str) -> bool:
    """Return whether a task has the file of a split, in its folder or on the hub."""
    return readers.has_split(settings.task, settings.data_dir, split)


def sheets_of(tasks: Sequence[FinetuneSettings]) -> list[tuple[ResultSheet, FinetuneSettings]]:
    """Pair each file of GLUE's archive (a sheet) with the settings of its task, if the test file exists."""
    pairs = [(sheet, task) for sheet in SHEETS for task in tasks if task.task.name == sheet.task]
    return [(sheet, task) for sheet, task in pairs if has_split(task, sheet.split)]


def indices_of(tasks: Sequence[FinetuneSettings]) -> dict[str, list[str]]:
    """Read the example ids of each test file, by the name of its sheet."""
    return {
        sheet.name: [example.id for example in readers.read_examples(task.task, task.data_dir, sheet.split).examples]
        for sheet, task in sheets_of(tasks)
    }
