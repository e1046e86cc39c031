"""Checks of the user's files before torch is imported, so that a wrong file is refused at once."""

from pathlib import Path

from bertkit.base.hub_ids import check_directory
from bertkit.base.text_files import opened_input, unpacked
from bertkit.run.directory import check_free, has_results
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.inputs import InputSettings
from bertkit.tasks.reading import readers
from bertkit.tasks.reading.training_data import TrainingData, read_training_data
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


def check_input(settings: InputSettings) -> None:
    """Open an input that is a file; raises InputError if it cannot be read. A pipe can be opened only once."""
    if settings.input in (None, "-"):
        return
    path = Path(str(settings.input))
    if path.is_file() or path.is_dir() or not path.exists():
        with opened_input(str(path)) as (file, _):
            unpacked(file, path)
