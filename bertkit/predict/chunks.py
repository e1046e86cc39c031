"""Stream predictions for an input: read, compute and write one chunk at a time, in constant memory."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bertkit.base.errors import InputError
from bertkit.base.text_files import opened_input
from bertkit.tasks.reading.readers import Inputs, open_inputs, read_texts
from bertkit.tasks.task import Shape
from bertkit.tasks.task_config import TaskConfig
from bertkit.view.console import Progress


@dataclass(frozen=True)
class OpenInput:
    """An open input."""

    inputs: Inputs
    num_bytes: int | None = None  # its size; None for a pipe, or a text
    position: Callable[[], int] | None = None  # gives the number of bytes read; None for a text


class Output(Protocol):
    """A place for answers."""

    num_written: int  # examples
    partial: str | None  # the file that keeps the answers after an error; None for a stream

    def write(self, examples: list[Any], answers: Any) -> None:
        """Write the answers of a chunk."""


@contextlib.contextmanager
def opened_examples(
    shape: Shape, task: TaskConfig, labels: tuple[str, ...], settings: Any, keep_rows: bool = False
) -> Iterator[OpenInput]:
    """Open `input=`, a file or `-`, or take `text=` and `text_pair=`.

    Args:
        shape: of the examples.
        task: how they are written.
        labels: of the model, to recognize CoNLL.
        settings: of the command: `input` and `format`; where `input` is None, `text` and `text_pair`.
        keep_rows: also keep the fields of the rows.

    Raises:
        InputError: the input cannot be opened, or is not in its format.
    """
    if settings.input is None:
        pairs = None if settings.text_pair is None else [settings.text_pair]
        yield OpenInput(read_texts(shape, task, [settings.text or ""], pairs))
        return
    with opened_input(settings.input) as (stream, num_bytes):
        inputs = open_inputs(shape, task, stream, Path(settings.input), settings.format, labels, keep_rows)
        yield OpenInput(inputs, num_bytes, stream.tell)


def write_answers(
    source: OpenInput, answer: Callable[[list[Any]], Any], output: Output, what: str, is_silent: bool
) -> bool:
    """Answer all examples; give False if the reader of standard output closed the pipe, as `head` does.

    Args:
        source: the examples.
        answer: a chunk of examples -> their answers.
        output: where the answers go.
        what: the plural of an answer in messages, such as "predictions".
        is_silent: whether no progress is shown.

    Raises:
        InputError: an example is wrong; names the file with the answers before it.
    """
    with Progress(what, source.num_bytes, silent=is_silent, file=sys.stderr) as progress:
        try:
            for examples in source.inputs.chunks:
                if not output.num_written and source.position:
                    progress.line(source.inputs.description)
                output.write(examples, answer(examples))
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
