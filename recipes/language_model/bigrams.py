"""A bigram model of a prepared dataset, to compare a language model with: python recipes/language_model/bigrams.py DATA_DIR

It predicts a token from the token before, by counts in the train split, and measures the perplexity on the same held-out blocks as
`bertkit evaluate`. A count of zero gets a share of the unigram's probability (Witten and Bell 1991).
"""

import sys
from pathlib import Path

import numpy as np

from bertkit.data.batches.sampling import Sampler
from bertkit.data.corpus.prepared import open_prepared
from bertkit.data.data_config import SegmentsConfig


def main(data_dir: str, max_sequences: int = 1024, max_seq_length: int = 128) -> None:
    """Print the perplexity of unigrams and of bigrams on held-out text."""
    dataset = open_prepared(Path(data_dir))
    blocks = SegmentsConfig("full_sentences", max_seq_length, short_seq_prob=0.1, next_sentence="none")
    size = dataset.tokenizer.vocab_size

    def pairs(split: str, most: int | None) -> tuple[np.ndarray, np.ndarray]:
        sampler = Sampler(dataset.splits[split], dataset.tokenizer.facts, blocks, None, 0)
        batch = sampler.in_order(0, min(most or sampler.epoch_length, sampler.epoch_length))
        return batch.input_ids[batch.masked_positions], batch.masked_labels

    before, after = pairs("train", None)
    unigram = (np.bincount(after, minlength=size) + 1) / (len(after) + size)
    bigrams, counts = np.unique(before * size + after, return_counts=True)
    num_before = np.bincount(before, minlength=size)
    num_kinds = np.bincount(bigrams // size, minlength=size)  # of different tokens after each token
    before, after = pairs("held_out", max_sequences)
    place = np.minimum(np.searchsorted(bigrams, before * size + after), len(bigrams) - 1)
    count = np.where(bigrams[place] == before * size + after, counts[place], 0)
    kinds, total = np.maximum(num_kinds[before], 1), num_before[before]
    for name, probability in (
        ("unigrams", unigram[after]),
        ("bigrams", (count + kinds * unigram[after]) / (total + kinds)),
    ):
        print(f"{name}: perplexity {np.exp(-np.log(probability).mean()):,.1f} on {len(after):,} held-out tokens")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
