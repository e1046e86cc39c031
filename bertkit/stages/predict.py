"""Stage: a model and inputs -> a line for every input example, in their order.

Within a chunk of the input, batches have about as many tokens each, the shortest examples first.
"""

import contextlib
import dataclasses
import functools
import sys
from collections import deque
from pathlib import Path
from typing import Any, TextIO

from bertkit.base.errors import say
from bertkit.predict.answers import answer_here
from bertkit.predict.chunks import opened_examples, write_answers
from bertkit.predict.predictor import open_predictor
from bertkit.predict.task_model import Predictor
from bertkit.run.outputs import check_outputs, is_stream, opened_output, partial_output
from bertkit.settings.predict import PredictSettings
from bertkit.tasks.reading.writers import Write, row_writer, write_lines
from bertkit.tasks.task import Beside

COPIED = ("id", "text", "words")  # fields of a prediction that come from its input


def run(settings: PredictSettings) -> None:
    """Predict.

    Raises:
        InputError: the model has no prediction head, or an input is wrong; the lines before it are whole, and stay in
            the partial output file.
    """
    to_file = settings.output != "-"
    if to_file:
        check_outputs(settings.output, settings.input, settings.overwrite)
    predictor = open_predictor(settings, settings.top_k)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(
            opened_examples(predictor.shape, predictor.task, predictor.labels, settings, settings.carry_input)
        )
        predictor = dataclasses.replace(predictor, shape=source.inputs.shape)
        output = _Output(settings, predictor, source.inputs.rows, stack)

        def predictions_of(examples: list[Any]) -> list[Any]:
            return answer_here(predictor, examples, predictor.features(examples))

        if not write_answers(source, predictions_of, output, "predictions", not to_file):
            return
        output.finish()
    if not output.num_written:
        say(f"warning: input={settings.input} has no examples; there is nothing to predict", file=sys.stderr)
    gaps = source.inputs.gaps
    if gaps.num_rows:
        cells = f"{gaps.num_rows:,} rows had too few cells, the first at {gaps.first}"
        say(f"warning: {cells}; the missing cells were taken as empty", file=sys.stderr)
    if to_file:
        say(f"{output.num_written:,} predictions in {settings.output}", file=sys.stderr)


class _Output:
    """The output of predictions: lines or rows, and beside a file the shape's other files."""

    def __init__(
        self,
        settings: PredictSettings,
        predictor: Predictor,
        carried: deque[dict[str, Any]],
        stack: contextlib.ExitStack,
    ) -> None:
        self.shape, self.carried, self.num_written = predictor.shape, carried, 0
        self.put: Write = functools.partial(write_lines, sys.stdout)
        self.partial: str | None = None
        self.beside: list[tuple[Beside, TextIO]] = []
        if settings.output == "-":
            return
        path = Path(settings.output)
        beside = () if is_stream(path) else self.shape.beside
        places = [path.with_suffix(b.name) if b.name.startswith(".") else path.parent / b.name for b in beside]
        check_outputs(settings.output, settings.input, settings.overwrite, places)
        file = stack.enter_context(opened_output(path, is_binary=path.suffix.lower() == ".parquet"))
        self.partial = partial_output(file)
        self.put = stack.enter_context(row_writer(file, path.suffix, predictor.task.label_separator))
        self.beside = [
            (kind, stack.enter_context(opened_output(place))) for kind, place in zip(beside, places, strict=True)
        ]

    def write(self, examples: list[Any], answers: Any) -> None:
        """Write the predictions of a chunk, after the fields of their input rows if these are carried."""
        rows = [self.shape.row(example, answer) for example, answer in zip(examples, answers, strict=True)]
        self.put([_joined(self.carried.popleft(), row) for row in rows] if self.carried else rows)
        for kind, file in self.beside:
            begin, between, _ = kind.frame
            file.write((between if self.num_written else begin) + kind.text(examples, answers))

    def finish(self) -> None:
        """End the files beside the output."""
        for kind, file in self.beside:
            file.write(kind.frame[2] if self.num_written else kind.empty)


def _joined(fields: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Put an input row's fields before its prediction; a field of the same name, such as a label, becomes `input_NAME`."""
    kept = {name: value for name, value in fields.items() if name not in row or name not in COPIED}
    return {f"input_{name}" if name in row else name: value for name, value in kept.items()} | row
