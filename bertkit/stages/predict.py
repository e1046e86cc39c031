"""Stage: a model and inputs -> predictions: a JSON line for each input example, in their order.

Inputs are read, predicted and written a chunk at a time, so that a file of any length needs the same memory; within a
chunk, batches are of about as many tokens each, the shortest examples first.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from bertkit.errors import InputError
from bertkit.files import PARTIAL, writing
from bertkit.lines import opened_input
from bertkit.run.directory import FILES_OF_A_RUN, run_of
from bertkit.run.predictor import open_predictor
from bertkit.run.task_model import answer_here
from bertkit.settings.predict import PredictSettings
from bertkit.tasks.files.readers import open_inputs
from bertkit.tasks.shapes import make_features
from bertkit.tasks.task import Beside, Shape
from bertkit.view.progress import Progress


def run(settings: PredictSettings) -> None:
    """Predict.

    Raises:
        InputError: the model has no head to predict with, or an input is not what it should be; the lines written
            before are whole, and stay under the partial name of an output file.
    """
    predictor = open_predictor(settings)
    task, shape, labels = predictor.task, predictor.shape, tuple(predictor.labels)
    with opened_input(settings.input) as (stream, num_bytes), contextlib.ExitStack() as stack:
        output = _Output(settings, shape, stack)
        to_file = settings.output != "-"
        progress = stack.enter_context(Progress("predicting", num_bytes, silent=not to_file, file=sys.stderr))
        try:
            inputs = open_inputs(shape, task, stream, Path(settings.input), settings.format, labels)
            for examples in inputs.chunks:
                if not output.num_lines:
                    progress.line(inputs.description)
                features = list(make_features(task, examples, predictor.tokenizer, labels, shape))
                output.write(examples, answer_here(predictor, examples, features))
                progress.advance(stream.tell() if num_bytes else output.num_lines)
            output.finish()
        except BrokenPipeError:  # who reads has seen enough, such as head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        except InputError as error:
            if to_file and output.num_lines:
                raise InputError(
                    f"{error}; the {output.num_lines:,} predictions before it are in {settings.output}{PARTIAL}"
                ) from None
            raise
    if not output.num_lines:
        print(f"warning: input={settings.input} has no examples; there is nothing to predict", file=sys.stderr)
    if inputs.gaps.num_rows:
        print(
            f"warning: {inputs.gaps.num_rows:,} rows had too few cells, the first at {inputs.gaps.first}; they were "
            "taken as empty",
            file=sys.stderr,
        )
    if to_file:
        print(f"{output.num_lines:,} predictions in {settings.output}", file=sys.stderr)


class _Output:
    """Where predictions go: JSON lines, and beside a file what the shape's own programs read."""

    def __init__(self, settings: PredictSettings, shape: Shape, stack: contextlib.ExitStack) -> None:
        self.shape, self.num_lines = shape, 0
        self.lines: TextIO = sys.stdout
        self.beside: list[tuple[Beside, TextIO]] = []
        if settings.output == "-":
            return
        path = Path(settings.output)
        if path.is_dir():
            raise InputError(f"output={settings.output} is a folder; give a file in it")
        places = [
            path.with_suffix(each.name) if each.name.startswith(".") else path.parent / each.name
            for each in shape.beside
        ]
        _check_free(settings, path, places)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lines = stack.enter_context(writing(path))
        self.beside = [
            (each, stack.enter_context(writing(place))) for each, place in zip(shape.beside, places, strict=True)
        ]

    def write(self, examples: list[Any], predictions: list[Any]) -> None:
        """Write the predictions of a chunk, and let readers see them."""
        for example, prediction in zip(examples, predictions, strict=True):
            self.lines.write(json.dumps(self.shape.row(example, prediction), ensure_ascii=False) + "\n")
        self.lines.flush()
        for each, file in self.beside:
            begin, between, _ = each.frame
            file.write((between if self.num_lines else begin) + each.text(examples, predictions))
        self.num_lines += len(examples)

    def finish(self) -> None:
        """Write the ends of the files that have some."""
        for each, file in self.beside:
            file.write(each.frame[2] if self.num_lines else each.empty)


def _check_free(settings: PredictSettings, path: Path, beside: list[Path]) -> None:
    """Refuse to overwrite the input, what a run wrote of itself, or what was written beside another output.

    Raises:
        InputError: naming the first such file.
    """
    in_run = run_of(path.parent) == path.parent.resolve()
    for target in (path, *beside):
        if settings.input != "-" and target.resolve() == Path(settings.input).resolve():
            raise InputError(f"output={path}: {target} would be written, which is the input; choose another name")
        if in_run and target.name in FILES_OF_A_RUN:
            raise InputError(f"output={path}: {target} is written too, and belongs to the run; choose another folder")
        if target.exists() and not path.exists():
            raise InputError(
                f"output={path}: {target} is written beside it, and is there of something else; choose another folder, or "
                "remove it"
            )
