"""Reading an input and writing the results one chunk at a time, in constant memory."""

import contextlib
import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from bertkit.base.errors import InputError
from bertkit.base.text_files import opened_input
from bertkit.display.console import Progress
from bertkit.tasks.reading.readers import Inputs, open_inputs, read_table
from bertkit.tasks.reading.source import is_frame, iterated, plain_rows
from bertkit.tasks.reading.tables import ShortRows, records
from bertkit.tasks.task import Shape
from bertkit.tasks.task_config import TaskConfig


class Output(Protocol):
    """A file or stream to which results are written."""

    num_written: int  # number of examples
    partial: str | None  # the file with the results so far, which is kept after an error; None for a stream

    def write(self, examples: list[Any], results: Any) -> None:
        """Write the results of a chunk."""


@contextlib.contextmanager
def opened_examples(
    shape: Shape, task: TaskConfig, labels: tuple[str, ...], settings: Any, inputs: Any = None
) -> Iterator[Inputs]:
    """Open the input of a command: `inputs` from Python; or `input=`, a file or `-`; or the texts `text=` and `text_pair=`.

    The `labels` of the model serve to recognize CoNLL. Raises InputError if the input cannot be opened, or is not in its
    format.
    """
    keep_rows, what = getattr(settings, "carry_input", False), "inputs"
    if inputs is None and settings.input is None:
        text = settings.text or "" if settings.text_pair is None else (settings.text, settings.text_pair)
        inputs, what = [text], "text="
    if inputs is not None:
        yield read_rows(shape, task, inputs, keep_rows, what)
        return
    with opened_input(settings.input) as (stream, num_bytes):
        inputs = open_inputs(shape, task, stream, Path(settings.input), settings.format, labels, keep_rows)
        yield dataclasses.replace(inputs, num_bytes=num_bytes, position=stream.tell)


def read_rows(shape: Shape, task: TaskConfig, inputs: Any, keep_rows: bool = False, what: str = "inputs") -> Inputs:
    """Read texts, pairs, lists of words or rows from Python: in a list, array, frame, dataset, column or generator."""
    named, task = _with_columns(inputs, shape, task, what)
    rows = plain_rows(named, what)
    start = list(itertools.islice(rows, 1))
    if not start:
        return Inputs("", iter(()), ShortRows(), shape)
    table = records(what, "jsonl", enumerate(itertools.chain(start, rows), 1), ShortRows())
    return read_table(shape, task, table, keep_rows)


def _with_columns(inputs: Any, shape: Shape, task: TaskConfig, what: str) -> tuple[Any, TaskConfig]:
    """Turn texts, pairs and lists of words into rows; return them with a task that names their columns."""
    if is_frame(inputs):
        return inputs, task
    values = iterated(inputs, what)
    start = list(itertools.islice(values, 1))
    first, inputs = (start or [None])[0], itertools.chain(start, values)
    if not isinstance(first, (str, tuple, list)):
        return inputs, task
    names = ("words",) if shape.is_word_level and not isinstance(first, str) else shape.text_columns
    if not isinstance(first, tuple) and not (shape.needs_pair or shape.has_choices or task.needs_pair):
        names = names[:1]
    expected = f"{'pairs' if len(names) > 1 else 'single texts'} ({', '.join(names)})"
    if shape.has_choices:
        expected = "rows with a context and its endings"
    columns = dataclasses.replace(task.columns, **{"id": None, "text_pair": None, **{name: name for name in names}})
    rows = []
    for number, one in enumerate(inputs, start=1):
        own = one if isinstance(one, tuple) else (one,)
        if type(one) is not type(first) or not names or len(own) != len(names):
            kind = f"a model of kind {shape.kind} takes {expected}"
            raise InputError(f"{what}:{number}: {one!r:.80}: {kind}; give all inputs in the same form")
        rows.append(dict(zip(names, own, strict=True)))
    return rows, dataclasses.replace(task, columns=columns)


def write_results(
    source: Inputs, compute: Callable[[list[Any]], Any], output: Output, what: str, is_silent: bool
) -> bool:
    """Compute and write the results of all examples; return False if standard output was closed early, as `head` does.

    `compute` takes a chunk of examples, and `what` is the name of its results in messages, such as "predictions". Raises
    InputError if an example is wrong; the message names the file with the results before it.
    """
    with Progress(what, source.num_bytes, silent=is_silent, file=sys.stderr) as progress:
        try:
            for examples in source.chunks:
                if not output.num_written and source.position:
                    progress.line(source.description)
                output.write(examples, compute(examples))
                output.num_written += len(examples)
                progress.advance(source.position() if source.num_bytes and source.position else output.num_written)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return False
        except InputError as error:
            if output.partial is None or not output.num_written:
                raise
            kept = f"the {output.num_written:,} {what} before it are in {output.partial}"
            raise InputError(f"{error}; {kept}") from None
    return True
