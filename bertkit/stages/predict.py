"""Stage: a model and inputs -> predictions: a row for each input example, in their order.

Inputs are read, predicted and written a chunk at a time, so that a file of any length needs the same memory; within a
chunk, batches are of about as many tokens each, the shortest examples first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from bertkit.base.errors import InputError, say
from bertkit.base.text_files import opened_input
from bertkit.predict.answers import answer_here
from bertkit.predict.predictor import open_predictor
from bertkit.predict.task_model import Predictor
from bertkit.run.outputs import beginning_of, check_free, is_stream, opened_output
from bertkit.settings.predict import PredictSettings
from bertkit.tasks.reading.readers import Inputs, open_inputs, take_texts
from bertkit.tasks.reading.writers import Write, row_writer, write_lines
from bertkit.tasks.shapes import make_features
from bertkit.tasks.task import Beside
from bertkit.view.progress import Progress

COPIED = ("id", "text", "words")  # what a prediction has from its input


def run(settings: PredictSettings) -> None:
    """Predict.

    Raises:
        InputError: the model has no head to predict with, or an input is not what it should be; the lines written
            before are whole, and stay under the partial name of an output file.
    """
    to_file = settings.output != "-"
    if to_file:
        check_free(settings.output, settings.input, settings.overwrite)
    predictor = open_predictor(settings)
    with contextlib.ExitStack() as stack:
        inputs, bytes_read, num_bytes = _inputs(settings, predictor, stack)
        predictor = dataclasses.replace(predictor, shape=inputs.shape)
        output = _Output(settings, predictor, stack)
        progress = stack.enter_context(Progress("predicting", num_bytes, silent=not to_file, file=sys.stderr))
        try:
            for examples in inputs.chunks:
                if not output.num_lines and settings.text is None:
                    progress.line(inputs.description)
                features = list(
                    make_features(predictor.task, examples, predictor.tokenizer, predictor.labels, inputs.shape)
                )
                output.write(examples, answer_here(predictor, examples, features), inputs.rows)
                progress.advance(bytes_read() if num_bytes else output.num_lines)
            output.finish()
        except BrokenPipeError:  # who reads has seen enough, such as head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        except InputError as error:
            if output.partial is not None and output.num_lines:
                where = f"the {output.num_lines:,} predictions before it are in {output.partial}"
                raise InputError(f"{error}; {where}") from None
            raise
    if not output.num_lines:
        say(f"warning: input={settings.input} has no examples; there is nothing to predict", file=sys.stderr)
    if inputs.gaps.num_rows:
        say(
            f"warning: {inputs.gaps.num_rows:,} rows had too few cells, the first at {inputs.gaps.first}; they were "
            "taken as empty",
            file=sys.stderr,
        )
    if to_file:
        say(f"{output.num_lines:,} predictions in {settings.output}", file=sys.stderr)


def _inputs(
    settings: PredictSettings, predictor: Predictor, stack: contextlib.ExitStack
) -> tuple[Inputs, Callable[[], int], int | None]:
    """Open the input, or take the text; give also what tells the bytes read, and the size in bytes where it is known."""
    shape, task = predictor.shape, predictor.task
    if settings.input is None:
        pairs = None if settings.text_pair is None else [settings.text_pair]
        return take_texts(shape, task, [settings.text or ""], pairs), lambda: 0, None
    stream, num_bytes = stack.enter_context(opened_input(settings.input))
    name, labels = Path(settings.input), tuple(predictor.labels)
    inputs = open_inputs(shape, task, stream, name, settings.format, labels, keep_rows=settings.carry_input)
    return inputs, stream.tell, num_bytes


class _Output:
    """Where predictions go: rows, and beside a file what the shape's own programs read."""

    def __init__(self, settings: PredictSettings, predictor: Predictor, stack: contextlib.ExitStack) -> None:
        self.shape, self.num_lines = predictor.shape, 0
        self.put: Write = functools.partial(write_lines, sys.stdout)
        self.partial: str | None = None
        self.beside: list[tuple[Beside, TextIO]] = []
        if settings.output == "-":
            return
        path = Path(settings.output)
        places = [
            path.with_suffix(each.name) if each.name.startswith(".") else path.parent / each.name
            for each in self.shape.beside
        ]
        if is_stream(path):  # which has nothing beside it
            places = []
        check_free(settings.output, settings.input, settings.overwrite, places)
        file = stack.enter_context(opened_output(path, is_binary=path.suffix.lower() == ".parquet"))
        self.partial = beginning_of(file)
        self.put = stack.enter_context(row_writer(file, path.suffix, predictor.task.label_separator))
        self.beside = [
            (each, stack.enter_context(opened_output(place)))
            for each, place in zip(self.shape.beside, places, strict=False)
        ]

    def write(self, examples: list[Any], predictions: list[Any], carried: deque[dict[str, Any]]) -> None:
        """Write the predictions of a chunk, after the fields of the input's rows where they are `carried`."""
        rows = [self.shape.row(example, said) for example, said in zip(examples, predictions, strict=True)]
        self.put([_joined(carried.popleft(), row) for row in rows] if carried else rows)
        for each, file in self.beside:
            begin, between, _ = each.frame
            file.write((between if self.num_lines else begin) + each.text(examples, predictions))
        self.num_lines += len(examples)

    def finish(self) -> None:
        """Write the ends of the files that have some."""
        for each, file in self.beside:
            file.write(each.frame[2] if self.num_lines else each.empty)


def _joined(given: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Put the fields of an input's row before its prediction; one of the same name, such as a label, as `input_NAME`."""
    kept = {name: value for name, value in given.items() if name not in row or name not in COPIED}
    return {f"input_{name}" if name in row else name: value for name, value in kept.items()} | row
