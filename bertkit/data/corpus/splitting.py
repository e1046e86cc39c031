"""Encoded documents -> the splits of a prepared dataset; the hash of a document's text chooses its split.

The documents are encoded by this command, or come from the shards of other commands (shard=i/n).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import differences
from bertkit.data.corpus.encoded_documents import FOLDER, encoded_files, load_documents
from bertkit.data.corpus.manifest import SPLITS, read_shard_manifest
from bertkit.data.corpus.prepared import SplitWriter, token_dtype
from bertkit.data.corpus.statistics import CorpusStatistics
from bertkit.data.corpus.tokenizer import VocabFacts

ONLY_OF_A_SHARD = ("shard", "part_bytes")  # settings that a whole dataset does not depend on


@dataclass(frozen=True)
class PreparedShard:
    """The output of `prepare shard=i/n`."""

    directory: Path
    manifest: dict[str, Any]

    @property
    def place(self) -> tuple[int, int]:
        """The number of the shard, from 1, and the number of shards."""
        number, _, count = self.manifest["identity"]["shard"].partition("/")
        return int(number), int(count)

    def files(self) -> list[Path]:
        """The files of encoded documents."""
        return encoded_files(self.directory / FOLDER)


def open_shards(directories: Iterable[Path]) -> list[PreparedShard]:
    """Open all shards of a dataset, in the order of the text.

    Raises:
        InputError: a shard is damaged, missing, listed twice, or belongs to another dataset.
    """
    opened = (PreparedShard(directory, read_shard_manifest(directory)) for directory in directories)
    shards = sorted(opened, key=lambda shard: shard.place[0])
    first = shards[0]
    for other in shards:
        changed = _differences(first, other)
        if changed:
            listed = "; ".join(f"{key}: {old!r} in {first.directory}, {new!r} here" for key, old, new in changed)
            raise InputError(f"merge: {other.directory} is a shard of another dataset ({listed}); prepare it again")
    numbers = [shard.place[0] for shard in shards]
    count = first.place[1]
    wrong = [f"{number}/{count}" for number in range(1, count + 1) if numbers.count(number) != 1]
    if wrong:
        raise InputError(f"merge: shard {', '.join(wrong)} missing or given twice; expected each of {count} once")
    return shards


def _differences(first: PreparedShard, other: PreparedShard) -> list[tuple[str, Any, Any]]:
    """List what differs although two shards of one dataset share it."""
    here, there = first.manifest["identity"], other.manifest["identity"]
    changed = list(differences(here, {**there, "shard": here["shard"]}))
    if first.place[1] != other.place[1]:
        changed = [("shard", here["shard"], there["shard"])]
    sizes = [[size for _, size, _ in shard.manifest["source_files"]] for shard in (first, other)]
    if sizes[0] != sizes[1]:
        changed.append(("the sizes of the text files", sum(sizes[0]), sum(sizes[1])))
    return changed


def write_splits(
    paths: Iterable[Path], vocab: VocabFacts, held_out_prob: float, shard_tokens: int, directory: Path
) -> tuple[CorpusStatistics, dict[str, Any]]:
    """Write both splits from files of encoded documents; return the statistics of the text and the counts of each split."""
    writers = {name: SplitWriter(directory / name, token_dtype(vocab.size), shard_tokens) for name in SPLITS}
    statistics = CorpusStatistics(np.zeros(vocab.size, np.int64), vocab.unk)
    threshold = int(held_out_prob * 2**32)
    for path in paths:
        documents = load_documents(path)
        statistics.add(documents)
        is_held_out = np.ascontiguousarray(documents.digests[:, :4]).view("<u4")[:, 0] < threshold
        for name, is_chosen in (("train", ~is_held_out), ("held_out", is_held_out)):
            of_sentences = np.repeat(is_chosen, documents.document_sentences)
            of_tokens = np.repeat(of_sentences, documents.sentence_lengths)
            writers[name].write(
                documents.tokens[of_tokens],
                documents.sentence_lengths[of_sentences],
                documents.document_sentences[is_chosen & (documents.document_sentences > 0)],
            )
    return statistics, {name: writer.close() for name, writer in writers.items()}
