"""Stage: predict with a model; the output has one line per input example, in the same order.

The input is read in chunks. Within a chunk, examples are batched by length, with about the same number of tokens per batch.
"""

import contextlib
import functools
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from bertkit.base import plugins
from bertkit.base.errors import counted, is_missing, say, warn
from bertkit.inference.chunks import opened_examples, write_results
from bertkit.inference.forward import predict_local, with_features
from bertkit.inference.predictor import Remarks, open_predictor
from bertkit.inference.task_model import Predictor
from bertkit.run.outputs import check_outputs, has_content, is_stream, opened_output, partial_output
from bertkit.settings.predict import PredictSettings
from bertkit.tasks.reading.cells import Cells, id_text
from bertkit.tasks.reading.readers import Inputs
from bertkit.tasks.reading.writers import PredictionFormat, flat
from bertkit.tasks.task import AnyTask, Example, ExtraFile, Row


def values(settings: PredictSettings, inputs: object = None) -> list[Row]:
    """Predict texts, pairs or rows from Python, or else those of `settings`; return a mapping for each, in the same order."""
    predictor = open_predictor(settings, settings.top_k)
    with opened_examples(predictor.task, settings, inputs, settings.carry_input) as source:
        rows, remarks = list[Row](), Remarks()
        for chunk in _predicted(predictor, source):
            rows += chunk.rows
            remarks.add(source.task, chunk.predictions, chunk.rows)
    _warn(settings, source, remarks)
    return rows


def run(settings: PredictSettings, inputs: object = None) -> None:
    """Predict rows from Python, or else those of `settings`; an error keeps the predictions before it in the partial output."""
    to_file = settings.output != "-"
    # without `overwrite`, an existing output is not replaced, but compared
    check_outputs(settings.output, settings.input, settings.overwrite or has_content(Path(settings.output)))
    predictor = open_predictor(settings, settings.top_k)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(opened_examples(predictor.task, settings, inputs, settings.carry_input))
        output = _PredictionOutput(settings, source.task, stack)
        compute = functools.partial(_predicted, predictor)
        if not write_results(source, compute, output, "predictions", not to_file):
            return
        output.finish()
    _warn(settings, source, output.remarks)
    if to_file:
        say(f"{counted(output.num_written, 'prediction')} in {settings.output}", file=sys.stderr)


@dataclass(frozen=True)
class _Predicted:
    """The examples of a chunk, their predictions, and their rows; with carry_input, each row has the fields of its input row."""

    examples: list[Example]
    predictions: list[object]
    rows: list[Row]


def _predicted(predictor: Predictor, source: Inputs) -> Iterator[_Predicted]:
    """Predict the examples of a source, one chunk after another."""
    task = source.task
    for examples, features in with_features(predictor, task, source.chunks):
        predictions = predict_local(predictor, task, examples, features)
        rows = task.rows(examples, features, predictions)
        yield _Predicted(examples, predictions, _with_fields(source.rows, rows, task.copied))


def _warn(settings: PredictSettings, source: Inputs, remarks: Remarks) -> None:
    """Print warnings about an empty input, its rows, and its predictions."""
    if not remarks.num_examples:
        warn(f"input={settings.input} has no examples; there is nothing to predict")
    warn(*source.warnings, *remarks.warnings(source.task))


class _PredictionOutput:
    """Where predictions are written: lines or rows, and for some tasks further files beside the output."""

    def __init__(self, settings: PredictSettings, task: AnyTask, stack: contextlib.ExitStack) -> None:
        self.num_written, self.partial, self.remarks = 0, None, Remarks()
        self.task = task
        self.beside: list[tuple[ExtraFile[Example, object], TextIO]] = []
        output_format = cast(type[PredictionFormat], plugins.get("prediction_format", settings.ending))
        if settings.output == "-":
            self.writer = output_format(sys.stdout, task.config.label_separator)
            return
        path = Path(settings.output)
        beside = () if is_stream(path) else task.extra_files()
        places = [path.with_suffix(b.name) if b.name.startswith(".") else path.parent / b.name for b in beside]
        check_outputs(settings.output, settings.input, settings.overwrite or has_content(path), places)
        opened = functools.partial(opened_output, may_replace=settings.overwrite)
        file = stack.enter_context(opened(path, is_binary=output_format.is_binary))
        self.partial = partial_output(file)
        self.writer = stack.enter_context(output_format(file, task.config.label_separator))
        self.beside = [(kind, stack.enter_context(opened(place))) for kind, place in zip(beside, places, strict=True)]

    def write(self, results: _Predicted) -> None:
        """Write the predictions of a chunk."""
        self.writer.put(results.rows)
        for kind, file in self.beside:
            begin, between, _ = kind.frame
            file.write((between if self.num_written else begin) + kind.text(results.examples, results.predictions))
        self.num_written += len(results.examples)
        self.remarks.add(self.task, results.predictions, results.rows)

    def finish(self) -> None:
        """Write the ends of the files beside the output."""
        for kind, file in self.beside:
            file.write(kind.frame[2] if self.num_written else kind.empty)


def _with_fields(carried: deque[Cells], rows: list[Row], copied: Sequence[str]) -> list[Row]:
    """Join predictions and their input rows; without carry_input there are none."""
    return [_joined(carried.popleft(), row, copied) for row in rows] if carried else rows


def _joined(fields: Cells, row: Row, copied: Sequence[str]) -> Row:
    """Join an input row and its prediction; an input field with the same name, such as a label, becomes `input_NAME`.

    The fields in `copied` are the input's own, and stay as they are in the input, unless the task has read another column.
    """
    kept = {name: fields[name] for name in copied if name in fields and _is_copy(fields[name], row[name])}
    taken = {*row, *flat(row)}
    joined = Row()
    for name, value in fields.items():
        own = name
        while (own in taken and name not in kept) or (own != name and own in fields):
            own = f"input_{own}"
        joined[own] = value
    return joined | row | kept


def _is_copy(given: object, own: Any) -> bool:
    """Whether a field of a prediction, a text or words, is that of its input, which may be written in another way."""
    if is_missing(given):
        return not own  # of an id a row has the number instead
    if isinstance(own, str):
        return id_text(given) == own
    if isinstance(given, str):
        return all(word in given for word in own)
    return isinstance(given, (list, tuple)) and [*given] == [*own]
