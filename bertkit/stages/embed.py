"""Stage: turn texts into vectors with an encoder, one vector per text, in the same order."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError, counted, in_json, say
from bertkit.inference.chunks import opened_examples, write_results
from bertkit.inference.embedding import Embedder, open_embedder, texts_of
from bertkit.inference.task_model import task_of_texts
from bertkit.run.outputs import check_outputs, opened_output, partial_output
from bertkit.settings.embed import EmbedSettings
from bertkit.tasks.reading.readers import SET_ENCODING
from bertkit.tasks.sequence import SequenceExample
from bertkit.tasks.trainable import task_of

Vectors = NDArray[np.float32]  # (n, D)


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
    say(*(f"warning: {line}" for line in source.warnings), file=sys.stderr)
    _warn(settings, embed, output.num_written, num_cut)
    if to_file:
        say(
            f"{counted(output.num_written, 'vector')} of {embed.dimension:,} numbers in {settings.output}",
            file=sys.stderr,
        )


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


class _JsonLines:
    """JSON lines."""

    def __init__(self, file: TextIO, dimension: int) -> None:
        self.file = file
        self.vector = ", ".join(["%.9g"] * dimension)  # nine digits are enough for every float32

    def put(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Write the vectors of some texts."""
        for text, vector in zip(texts, vectors.tolist(), strict=True):
            own = in_json(json.dumps(text, ensure_ascii=False))
            self.file.write(f'{{"text": {own}, "embedding": [{self.vector % tuple(vector)}]}}\n')
        self.file.flush()

    def finish(self) -> None:
        """Leave the file as it is."""


class _Npy:
    """A file in numpy's format 1.0; at the end, the header is overwritten with the number of rows."""

    def __init__(self, file: BinaryIO, dimension: int) -> None:
        self.file, self.dimension, self.num_rows = file, dimension, 0
        self.finish()

    def put(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Write the vectors of some texts."""
        self.file.write(vectors.astype("<f4").tobytes())
        self.num_rows += len(vectors)

    def finish(self) -> None:
        """Write the header."""
        self.file.seek(0)
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.num_rows, self.dimension)}
        np.lib.format.write_array_header_1_0(self.file, header)


class _Parquet:
    """A parquet file; every chunk becomes a row group."""

    def __init__(self, file: BinaryIO, dimension: int) -> None:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter

        self.dimension = dimension
        self.schema = pa.schema([("text", pa.string()), ("embedding", pa.list_(pa.float32(), dimension))])
        self.writer = ParquetWriter(file, self.schema)

    def put(self, texts: Sequence[str], vectors: Vectors) -> None:
        """Write the vectors of some texts."""
        import pyarrow as pa

        rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.dimension)
        self.writer.write_table(pa.table([pa.array(texts, pa.string()), rows], schema=self.schema))

    def finish(self) -> None:
        """Write the end."""
        self.writer.close()


@dataclass
class _VectorOutput:
    """Where the texts and their vectors are written."""

    writer: _JsonLines | _Npy | _Parquet
    partial: str | None = None
    num_written: int = 0

    def write(self, examples: list[SequenceExample[str]], answers: Vectors) -> None:
        """Write the vectors of a chunk."""
        self.writer.put([example.text for example in examples], answers)


@contextlib.contextmanager
def _opened_output(name: str, dimension: int) -> Iterator[_VectorOutput]:
    """Open an output in the format of its ending."""
    if name == "-":
        yield _VectorOutput(_JsonLines(sys.stdout, dimension))
        return
    path = Path(name)
    with opened_output(path, is_binary=path.suffix != ".jsonl") as file:
        if path.suffix != ".jsonl" and not file.seekable():
            raise InputError(f"output={name} is not a seekable file, as {path.suffix} requires; use .jsonl")
        writer = {".jsonl": _JsonLines, ".npy": _Npy, ".parquet": _Parquet}[path.suffix](file, dimension)
        output = _VectorOutput(writer, partial_output(file))
        try:
            yield output
        finally:  # also after an error
            writer.finish()
            if path.suffix != ".jsonl":  # without vectors, leave no partial file
                file.seek(0, os.SEEK_END if output.num_written else os.SEEK_SET)
