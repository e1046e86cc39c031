"""Encoded documents become the splits of a prepared dataset: each goes where the hash of its text sends it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.encoded_documents import load_documents
from bertkit.data.prepared import SPLITS, SplitWriter, token_dtype
from bertkit.data.statistics import CorpusStatistics
from bertkit.data.tokenizer import VocabFacts


def write_splits(
    paths: Iterable[Path], vocab: VocabFacts, held_out_prob: float, shard_tokens: int, directory: Path
) -> tuple[CorpusStatistics, dict[str, Any]]:
    """Write both splits from files of encoded documents; give the statistics of the text and the counts of each split."""
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
            writers[name].write_documents(
                documents.tokens[of_tokens],
                documents.sentence_lengths[of_sentences],
                documents.document_sentences[is_chosen & (documents.document_sentences > 0)],
            )
    return statistics, {name: writer.close() for name, writer in writers.items()}
