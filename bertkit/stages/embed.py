"""Stage: turn texts into vectors with an encoder, one vector per text, in the same order."""

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError, in_json, say
from bertkit.inference.chunks import opened_examples, write_results
from bertkit.inference.embedding import Embedder, open_embedder, texts_of
from bertkit.inference.task_model import task_of_texts
from bertkit.run.outputs import check_outputs, opened_output, partial_output
from bertkit.settings.embed import EmbedSettings
from bertkit.tasks.reading.readers import SET_ENCODING
from bertkit.tasks.sequence import SequenceExample
from bertkit.tasks.trainable import task_of

Vectors = NDArray[np.float32]  # (n, D)
Write = Callable[[Sequence[str], Vectors], object]


def values(settings: EmbedSettings, inputs: object = None) -> Vectors:
    """Embed texts from Python, or else those of `settings`; return a vector for each text, in the same order."""
    embed = open_embedder(settings)
    if inputs is None:
        task = task_of_texts(settings.text_column)
        with _own_names(), opened_examples(task_of(task), settings) as source:
            texts = [example.text for examples in source.chunks for example in examples]
    else:
        texts = texts_of(inputs, settings.text_column)
    vectors, num_cut = embed.embed(texts)
    _warn(settings, embed, len(texts), num_cut)
    return vectors


def run(settings: EmbedSettings, inputs: object = None) -> None:
    """Embed texts from Python, or else those of `settings`; an error keeps the vectors before it in the partial output."""
    to_file = settings.output != "-"
    if to_file:
        check_outputs(settings.output, settings.input, settings.overwrite)
    embed = open_embedder(settings)
    task, num_cut = task_of_texts(settings.text_column), 0
    inputs = None if inputs is None else texts_of(inputs, settings.text_column)

    def vectors_of(examples: list[SequenceExample[str]]) -> Vectors:
        nonlocal num_cut
        vectors, num_more = embed.embed([example.text for example in examples])
        num_cut += num_more
        return vectors

    with (
        _own_names(),
        opened_examples(task_of(task), settings, inputs) as source,
        _opened_output(settings.output, embed.dimension) as output,
    ):
        if not write_results(source, vectors_of, output, "vectors", not to_file):
            return
    _warn(settings, embed, output.num_written, num_cut)
    if to_file:
        say(f"{output.num_written:,} vectors of {embed.dimension:,} numbers in {settings.output}", file=sys.stderr)


@contextlib.contextmanager
def _own_names() -> Iterator[None]:
    """Replace the names of tasks' settings in messages about the input by those of `embed`."""
    try:
        yield
    except InputError as error:
        message = str(error).replace("task.columns.text", "text_column").replace("task.format", "format")
        raise InputError(message.replace(SET_ENCODING, "")) from None


def _warn(settings: EmbedSettings, embed: Embedder, num_texts: int, num_cut: int) -> None:
    """Print warnings about an empty input, and texts that were cut."""
    if not num_texts:
        say(f"warning: input={settings.input} has no texts; there is nothing to embed", file=sys.stderr)
    if num_cut:
        say(f"warning: {embed.cut_warning(num_cut, num_texts)}", file=sys.stderr)


@dataclass
class _Output:
    """Where the texts and their vectors are written."""

    put: Write
    partial: str | None = None
    num_written: int = 0

    def write(self, examples: list[SequenceExample[str]], answers: Vectors) -> None:
        """Write the vectors of a chunk."""
        self.put([example.text for example in examples], answers)


@contextlib.contextmanager
def _opened_output(name: str, dimension: int) -> Iterator[_Output]:
    """Open an output in the format of its ending."""
    if name == "-":
        yield _Output(functools.partial(_write_lines, sys.stdout))
        return
    path = Path(name)
    with opened_output(path, is_binary=path.suffix != ".jsonl") as file:
        if path.suffix == ".jsonl":
            yield _Output(functools.partial(_write_lines, file), partial_output(file))
            return
        if not file.seekable():
            raise InputError(f"output={name} is not a seekable file, as {path.suffix} requires; use .jsonl")
        write, finish = (_begin_npy if path.suffix == ".npy" else _begin_parquet)(file, dimension)
        output = _Output(write, partial_output(file))
        try:
            yield output
        finally:  # also after an error
            finish()
            file.seek(0, os.SEEK_END if output.num_written else os.SEEK_SET)  # without vectors, leave no partial file


def _write_lines(file: IO[str], texts: Sequence[str], vectors: Vectors) -> None:
    """Write JSON lines; nine digits are enough for every float32."""
    numbers = ", ".join(["%.9g"] * vectors.shape[1])
    for text, vector in zip(texts, vectors.tolist(), strict=True):
        file.write(
            f'{{"text": {in_json(json.dumps(text, ensure_ascii=False))}, "embedding": [{numbers % tuple(vector)}]}}\n'
        )
    file.flush()


def _begin_npy(file: IO[bytes], dimension: int) -> tuple[Write, Callable[[], object]]:
    """Begin a file in numpy's format 1.0; at the end, the header is overwritten with the number of rows."""
    num_rows = 0

    def write_header() -> None:
        file.seek(0)
        header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, dimension)}
        np.lib.format.write_array_header_1_0(file, header)

    def write(_: Sequence[str], vectors: Vectors) -> None:
        nonlocal num_rows
        file.write(vectors.astype("<f4").tobytes())
        num_rows += len(vectors)

    write_header()
    return write, write_header


def _begin_parquet(file: IO[bytes], dimension: int) -> tuple[Write, Callable[[], object]]:
    """Begin a parquet file; every chunk becomes a row group."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    schema = pa.schema([("text", pa.string()), ("embedding", pa.list_(pa.float32(), dimension))])
    writer = ParquetWriter(file, schema)

    def write(texts: Sequence[str], vectors: Vectors) -> None:
        rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dimension)
        writer.write_table(pa.table([pa.array(texts, pa.string()), rows], schema=schema))

    return write, writer.close
