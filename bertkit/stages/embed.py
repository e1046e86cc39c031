"""Stage: an encoder and texts -> a vector for each text, in their order.

Texts are read, embedded and written a chunk at a time, so that an input of any length needs the same memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError, in_json, say
from bertkit.base.text_files import opened_input
from bertkit.predict.embedding import load_embedder
from bertkit.predict.task_model import task_of_texts
from bertkit.run.outputs import beginning_of, check_free, opened_output
from bertkit.settings.embed import EmbedSettings
from bertkit.tasks.reading.readers import open_inputs
from bertkit.tasks.shapes import shape_of
from bertkit.view.progress import Progress

Vectors = NDArray[np.float32]  # (n, D)
Write = Callable[[Sequence[str], Vectors], object]


def run(settings: EmbedSettings) -> None:
    """Embed.

    Raises:
        InputError: the model, the input or the output cannot be used; the vectors that were written before stay under the
            partial name of an output file, which can be read.
    """
    to_file = settings.output != "-"
    if to_file:
        check_free(settings.output, settings.input, settings.overwrite)
    embed = load_embedder(
        settings.model_dir, settings.pooling, settings.normalize, max_seq_length=settings.max_seq_length,
        device=settings.device, precision=settings.precision, batch_tokens=settings.batch_tokens,
    )  # fmt: skip
    num_texts = num_cut = 0
    partial: str | None = None
    with opened_input(settings.input) as (stream, num_bytes), contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress("embedding", num_bytes, silent=not to_file, file=sys.stderr))
        try:
            task = task_of_texts(settings.column)
            inputs = open_inputs(shape_of(task), task, stream, Path(settings.input), settings.format, ())
            write, partial = stack.enter_context(_output(settings.output, embed.dimension))
            for examples in inputs.chunks:
                if not num_texts:
                    progress.line(inputs.description)
                texts = [example.text for example in examples]
                vectors, more = embed.embed(texts)
                write(texts, vectors)
                num_texts, num_cut = num_texts + len(texts), num_cut + more
                progress.advance(stream.tell() if num_bytes else num_texts)
        except BrokenPipeError:  # who reads has seen enough, such as head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        except InputError as error:
            # the reader's settings are those of a task; here they have names of their own
            message = str(error).replace("task.columns.text", "column").replace("task.format", "format")
            if partial is not None and num_texts:
                message += f"; the {num_texts:,} vectors before it are in {partial}"
            raise InputError(message) from None
    if not num_texts:
        say(f"warning: input={settings.input} has no texts; there is nothing to embed", file=sys.stderr)
    if num_cut:
        say(f"warning: {embed.cut(num_cut, num_texts)}", file=sys.stderr)
    if to_file:
        say(f"{num_texts:,} vectors of {embed.dimension:,} numbers in {settings.output}", file=sys.stderr)


@contextlib.contextmanager
def _output(name: str, dimension: int) -> Iterator[tuple[Write, str | None]]:
    """Give what writes texts and vectors, in the format of the name's ending, and where they are until all is well."""
    if name == "-":
        yield lambda texts, vectors: _write_lines(sys.stdout, texts, vectors), None
        return
    path = Path(name)
    with opened_output(path, is_binary=path.suffix != ".jsonl") as file:
        if path.suffix == ".jsonl":
            yield lambda texts, vectors: _write_lines(file, texts, vectors), beginning_of(file)
            return
        if not file.seekable():
            raise InputError(f"output={name} is no file, and {path.suffix} goes into files alone; take .jsonl")
        begin = _begin_npy if path.suffix == ".npy" else _begin_parquet
        write, finish = begin(file, dimension)
        num_texts = 0

        def counted(texts: Sequence[str], vectors: Vectors) -> None:
            nonlocal num_texts
            write(texts, vectors)
            num_texts += len(texts)

        try:
            yield counted, beginning_of(file)
        finally:  # also of what there is when something fails
            finish()
            file.seek(0, os.SEEK_END if num_texts else os.SEEK_SET)  # at 0, nothing is kept of a failure


def _write_lines(file: IO[str], texts: Iterable[str], vectors: Vectors) -> None:
    """Write JSON lines; nine digits are enough for every float32."""
    numbers = ", ".join(["%.9g"] * vectors.shape[1])
    for text, vector in zip(texts, vectors.tolist(), strict=True):
        file.write(
            f'{{"text": {in_json(json.dumps(text, ensure_ascii=False))}, "embedding": [{numbers % tuple(vector)}]}}\n'
        )
    file.flush()


def _begin_npy(file: IO[bytes], dimension: int) -> tuple[Write, Callable[[], object]]:
    """Begin a file of numpy's format 1.0, whose header is written again when the number of rows is known."""
    num_rows = 0

    def header() -> bytes:
        fields = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({num_rows}, {dimension}), }}"
        return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + f"{fields:<117}\n".encode()  # 128 bytes in all

    def write(_: Sequence[str], vectors: Vectors) -> None:
        nonlocal num_rows
        file.write(vectors.astype("<f4").tobytes())
        num_rows += len(vectors)

    def finish() -> None:
        file.seek(0)
        file.write(header())

    file.write(header())
    return write, finish


def _begin_parquet(file: IO[bytes], dimension: int) -> tuple[Write, Callable[[], object]]:
    """Begin a parquet file, of a row group for each chunk."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    schema = pa.schema([("text", pa.string()), ("embedding", pa.list_(pa.float32(), dimension))])
    writer = ParquetWriter(file, schema)

    def write(texts: Sequence[str], vectors: Vectors) -> None:
        rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dimension)
        writer.write_table(pa.table([pa.array(texts, pa.string()), rows], schema=schema))

    return write, writer.close
