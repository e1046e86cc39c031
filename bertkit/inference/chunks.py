"""Reading an input and writing the results one chunk at a time, in constant memory."""

import contextlib
import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from bertkit.base.errors import InputError, is_missing, not_text
from bertkit.base.text_files import opened_input
from bertkit.display.console import Progress
from bertkit.tasks.reading.readers import Inputs, open_inputs, read_table
from bertkit.tasks.reading.rows import is_frame, iterated, plain_rows
from bertkit.tasks.reading.tables import records
from bertkit.tasks.task import AnyTask

INPUTS = "inputs"  # from Python, in messages


class SourceSettings(Protocol):
    """The settings that say what a command reads."""

    @property
    def input(self) -> str | None:
        """A file, or - for standard input; None for `texts`."""

    @property
    def format(self) -> str | None:
        """The format of the file; None to detect it."""

    @property
    def texts(self) -> Sequence[str | tuple[str, str]]:
        """The text or the pair of `text=`."""


class Output(Protocol):
    """A file or stream to which results are written."""

    num_written: int  # number of examples
    partial: str | None  # the file with the results so far, which is kept after an error; None for a stream

    def write(self, results: Any) -> None:
        """Write the results of a chunk."""


@contextlib.contextmanager
def opened_examples(
    task: AnyTask, settings: SourceSettings, inputs: object = None, keep_rows: bool = False
) -> Iterator[Inputs]:
    """Open the input of a command: `inputs` from Python; or `input=`, a file or `-`; or the texts `text=` and `text_pair=`.

    Raises InputError if the input cannot be opened, or is not in its format.
    """
    if inputs is not None:
        yield read_rows(task, inputs, keep_rows)
    elif settings.input is None:
        yield read_rows(task, settings.texts, keep_rows, "text={one!r:.80}")
    else:
        with opened_input(settings.input) as (stream, num_bytes):
            source = open_inputs(task, stream, Path(settings.input), settings.format, keep_rows)
            yield dataclasses.replace(source, num_bytes=num_bytes, position=stream.tell)


def read_rows(
    task: AnyTask, inputs: object, keep_rows: bool = False, place: str = f"{INPUTS}: row {{number}}: {{one!r:.80}}"
) -> Inputs:
    """Read texts, pairs, lists of words or rows from Python: in a list, array, frame, dataset, column or generator.

    A tuple of texts is one pair, not several inputs. Messages name a text or pair of the wrong form by `place`, a format.
    """
    if isinstance(inputs, tuple) and inputs and all(isinstance(one, str) or is_missing(one) for one in inputs):
        inputs = [inputs]
    if not is_frame(inputs):
        values = ("" if is_missing(value) else value for value in iterated(inputs, INPUTS))  # as in a file
        start = list(itertools.islice(values, 1))
        inputs = itertools.chain(start, values)
        if start and isinstance(start[0], (str, tuple, list)):
            names = task.columns_filled_by(start[0])
            kind = f"this model takes {_expected(names)}; give all inputs in this form"
            inputs = list(
                _rows(inputs, type(start[0]), names, f"{place}: {kind}")
            )  # a wrong one is refused before any work
            named = {"id": None, "text_pair": None, **{name: name for name in names}}
            task = task.changed(columns=dataclasses.replace(task.config.columns, **named))
    rows = plain_rows(inputs, INPUTS)
    first = list(itertools.islice(rows, 1))
    if not first:
        return Inputs("", iter(()), task.short_rows(), task)
    table = records(INPUTS, "jsonl", enumerate(itertools.chain(first, rows), 1), task.short_rows(), counts=" row ")
    return read_table(task, table, keep_rows)


def _rows(inputs: Iterable[object], form: type, names: Sequence[str], wrong: str) -> Iterator[dict[str, object]]:
    """Turn texts, pairs or lists of words, whichever the first input is, into rows with these columns."""
    for number, one in enumerate(inputs, start=1):
        if names and not isinstance(one, (str, tuple, list)):
            raise InputError(f"{INPUTS}: row {number}: {not_text(names[0], one)}")
        own = one if isinstance(one, tuple) else (one,)
        if type(one) is not form or not names or len(own) != len(names):
            raise InputError(wrong.format(number=number, one=one))
        yield dict(zip(names, own, strict=True))


def _expected(names: Sequence[str]) -> str:
    """Describe inputs that fill these columns."""
    if not names:
        return "rows with a context and its endings"
    return f"{'pairs' if len(names) > 1 else 'single texts'} ({', '.join(names)})"


def write_results(
    source: Inputs, compute: Callable[[Inputs], Iterable[Any]], output: Output, what: str, is_silent: bool
) -> bool:
    """Compute and write the results of all examples; return False if standard output was closed early, as `head` does.

    `compute` yields the results of each chunk of a source, and `what` is their name in messages, such as "predictions". Raises
    InputError if an example is wrong; the message names the file with the results before it.
    """
    with Progress(what, source.num_bytes, silent=is_silent, file=sys.stderr) as progress:
        try:
            for results in compute(dataclasses.replace(source, chunks=_shown(source, progress))):
                output.write(results)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return False
        except InputError as error:
            if output.partial is None or not output.num_written:
                raise
            kept = f"the {output.num_written:,} {what} before it are in {output.partial}"
            raise InputError(f"{error}; {kept}") from None
    return True


def _shown(source: Inputs, progress: Progress) -> Iterator[list[Any]]:
    """Yield the chunks of a source; before the first one say how it is read, and after each one show the progress."""
    num_done = 0
    for examples in source.chunks:
        if not num_done and source.position:
            progress.line(source.description)
        yield examples
        num_done += len(examples)
        progress.advance(source.position() if source.num_bytes and source.position else num_done)
