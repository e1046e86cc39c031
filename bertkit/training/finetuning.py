"""Fine-tuning from Python."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

from bertkit.base.errors import InputError, is_silent
from bertkit.base.hub_ids import path_of
from bertkit.base.typed_settings import build
from bertkit.commands import compose_settings
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.functions import take_rows
from bertkit.interop.hugging_face.directory import packed, write_model
from bertkit.interop.load import load_tokenizer
from bertkit.interop.padded import PaddedBert
from bertkit.jobs.finetuning import FinetuningJob
from bertkit.jobs.finetuning_plan import make_job
from bertkit.model.heads import BertWithHeads
from bertkit.objectives.objective import Objective, checked, name_of, options_of
from bertkit.run.start import sha256_of
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.names import command_of, in_words_of
from bertkit.settings.reading.values import read_values
from bertkit.tasks.reading.training_data import read_training_data
from bertkit.training.from_python import OF_FIT, FromPython, refuse_set_elsewhere, with_course_of


class Finetuning(FromPython, FinetuningJob):
    """Fine-tuning of a model on the examples of a task.

    The attribute `model` is what is trained: the encoder of `model`, with the head of the task.

    Args:
        model: the model to start from: a directory, as for `bertkit finetune`, or a model from `new_model` or `load_model`, which stays as it is.
        task: an option of `bertkit finetune task=`, such as "sequence" or "tagging"; None infers it from the rows.
        train: the training rows, or a file with them.
        dev: the rows to be measured on; None takes a tenth of the training rows.
        objective: what is learned; None for the loss of the task.
        settings: other settings of `bertkit finetune`, such as batch={"sequences": 8}.

    Raises:
        InputError: a setting, a row or the model is wrong.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | BertWithHeads | PaddedBert,
        task: str | None = None,
        *,
        train: object,
        dev: object = None,
        objective: Objective | None = None,
        **settings: object,
    ) -> None:
        # with the rows and a model from Python, as long as the job is there
        self.files = tempfile.TemporaryDirectory(prefix="bertkit-")
        model_dir = _directory_of(model, Path(self.files.name, "start"))
        given: dict[str, object] = {"model_dir": model_dir, "train": train, "dev": dev, **settings}
        given |= {} if task is None else {"task": task}
        token = is_silent.set(True)
        try:
            with in_words_of("finetune", given), contextlib.ExitStack() as stack:
                given["output_dir"] = Path(self.files.name)
                take_rows(command_of("finetune"), given, stack)
                chosen = build(FinetuneSettings, compose_settings("finetune", read_values("finetune", given)))
                read = read_training_data(chosen)
                refuse_set_elsewhere(OF_FIT, {*chosen.explicit_keys} - {"output_dir"} | {*settings})
                own = objective or Objective()
                made = make_job(chosen, lambda: read, checked(own, name_of(own)))
        finally:
            is_silent.reset(token)
        settings_ = dataclasses.replace(made.settings, objective=name_of(own), objective_options=options_of(own))
        start = dataclasses.replace(made.start, made_sha256=sha256_of(made.start.model))
        super().__init__(settings_, start, made.objective, made.data, made.units)

    def _kept(self, place: str | None, directory: Path) -> str | None:
        """Return the place that a file of this job has in the directory of a run; other files stay where they are."""
        if place is None or Path(place).parent != Path(self.files.name):
            return place
        return str(directory / Path(place).name)

    def keep_in(self, directory: Path) -> None:
        """Copy the rows, and a model from Python, into the directory of a run."""
        shutil.copytree(self.files.name, directory, dirs_exist_ok=True)

    def with_course(self, steps: int, chosen: PretrainSettings, directory: Path | None) -> Self:
        """Return this job with the steps, the optimizer and the schedule of a `fit`; its rows are in the directory."""
        made = copy.copy(self)
        made.settings = with_course_of(self.settings, chosen, directory)
        made.settings, made.steps = dataclasses.replace(made.settings, num_epochs=steps / self.steps_per_epoch), steps
        if directory is not None:
            made.settings = dataclasses.replace(
                made.settings,
                data_dir=self._kept(self.settings.data_dir, directory),
                model_dir=self._kept(self.settings.model_dir, directory),
            )
        return made


def _directory_of(model: str | os.PathLike[str] | BertWithHeads | PaddedBert, new: Path) -> Path:
    """Return the directory of a model; one from Python is written to `new`, with its tokenizer."""
    if not isinstance(model, (BertWithHeads, PaddedBert)):
        return Path(path_of(model, "model"))
    inner = packed(model)
    tokenizer = inner.tokenizer if inner.source is None else load_tokenizer(inner.source)
    if not isinstance(tokenizer, Tokenizer):
        raise InputError("model: has no tokenizer; pass a model from new_model or load_model, or a directory")
    new.mkdir()
    write_model(inner, tokenizer, new)
    return new
