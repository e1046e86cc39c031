"""Stage: turn texts into vectors with an encoder, one vector per text, in the same order."""

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from bertkit.base import plugins
from bertkit.base.errors import InputError, counted, say, warn
from bertkit.inference.chunks import opened_examples, write_results
from bertkit.inference.embedding import Embedder, open_embedder, texts_of
from bertkit.inference.task_model import task_of_texts
from bertkit.run.outputs import check_outputs, opened_output, partial_output
from bertkit.settings.embed import EmbedSettings
from bertkit.tasks.reading.readers import Inputs
from bertkit.tasks.reading.writers import VectorFormat, Vectors
from bertkit.tasks.trainable import task_of


def values(settings: EmbedSettings, inputs: object = None) -> Vectors:
    """Embed texts from Python, or else those of `settings`; return a vector for each text, in the same order."""
    embed = open_embedder(settings)
    with _opened_texts(settings, inputs) as source:
        chunks = list(_embedded(embed, source))
    _warn(settings, source, embed, sum(len(chunk.texts) for chunk in chunks), sum(chunk.num_cut for chunk in chunks))
    return np.concatenate([np.empty((0, embed.dimension), np.float32), *(chunk.vectors for chunk in chunks)])


def run(settings: EmbedSettings, inputs: object = None) -> None:
    """Embed texts from Python, or else those of `settings`; an error keeps the vectors before it in the partial output."""
    to_file = settings.output != "-"
    check_outputs(settings.output, settings.input, settings.overwrite)
    embed = open_embedder(settings)
    compute = functools.partial(_embedded, embed)
    with (
        _opened_texts(settings, inputs) as source,
        _opened_output(settings, embed.dimension) as output,
    ):
        if not write_results(source, compute, output, "vectors", not to_file):
            return
    _warn(settings, source, embed, output.num_written, output.num_cut)
    if to_file:
        say(
            f"{counted(output.num_written, 'vector')} of {embed.dimension:,} numbers in {settings.output}",
            file=sys.stderr,
        )


@dataclass(frozen=True)
class _Embedded:
    """The texts of a chunk, their vectors, and how many texts were cut."""

    texts: list[str]
    vectors: Vectors
    num_cut: int


def _embedded(embed: Embedder, source: Inputs) -> Iterator[_Embedded]:
    """Embed the texts of a source, one chunk after another."""
    for texts in source.chunks:
        yield _Embedded(texts, *embed.embed(texts))


@contextlib.contextmanager
def _opened_texts(settings: EmbedSettings, inputs: object) -> Iterator[Inputs]:
    """Open the texts from Python, which are one chunk, or else those of `settings`."""
    task = task_of(task_of_texts(settings.text_column))
    if inputs is not None:
        yield Inputs("", iter([texts_of(inputs, settings.text_column)]), task.short_rows(), task)
        return
    with opened_examples(task, settings) as source:
        texts = ([one.text for one in examples] for examples in source.chunks)
        yield dataclasses.replace(source, chunks=texts, has_ids=False)


def _warn(settings: EmbedSettings, source: Inputs, embed: Embedder, num_texts: int, num_cut: int) -> None:
    """Print warnings about the rows, an empty input, and texts that were cut."""
    warn(*source.warnings)
    if not num_texts:
        warn(f"input={settings.input} has no texts; there is nothing to embed")
    if num_cut:
        warn(embed.cut_warning(num_cut, num_texts))


@dataclass
class _VectorOutput:
    """Where the texts and their vectors are written."""

    writer: VectorFormat
    partial: str | None = None
    num_written: int = 0
    num_cut: int = 0

    def write(self, results: _Embedded) -> None:
        """Write the vectors of a chunk."""
        self.writer.put(results.texts, results.vectors)
        self.num_written += len(results.texts)
        self.num_cut += results.num_cut


@contextlib.contextmanager
def _opened_output(settings: EmbedSettings, dimension: int) -> Iterator[_VectorOutput]:
    """Open the output in the format of its ending."""
    if settings.output == "-":
        yield _VectorOutput(VectorFormat(sys.stdout, dimension))
        return
    output_format = cast(type[VectorFormat], plugins.get("vector_format", settings.ending))
    with opened_output(settings.output, is_binary=output_format.is_binary) as file:
        if output_format.is_binary and not file.seekable():
            raise InputError(
                f"output={settings.output} is not a seekable file, as {settings.ending} requires; use .jsonl"
            )
        output = _VectorOutput(output_format(file, dimension), partial_output(file))
        try:
            with output.writer:
                yield output
        finally:  # also after an error
            if output_format.is_binary:  # without vectors, leave no partial file
                file.seek(0, os.SEEK_END if output.num_written else os.SEEK_SET)
