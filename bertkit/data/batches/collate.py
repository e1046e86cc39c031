"""Examples -> one packed batch, with special tokens, token type ids and masks."""

import numpy as np
from numpy.typing import NDArray

from bertkit.base.batch import Batch, Target
from bertkit.data.batches.masking import mask_tokens
from bertkit.data.batches.segments import Examples
from bertkit.data.corpus.prepared import SplitTokens
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.data.data_config import MaskingConfig


def pack_examples(split: SplitTokens, examples: Examples, vocab: VocabFacts) -> tuple[NDArray[np.int64], ...]:
    """Write every example as `[CLS] segment [SEP] segment [SEP] ...`, and concatenate the examples.

    The results are input_ids (S,); token_type_ids (S,), 1 for the second segment of a pair; and sequence_lengths (B,).
    """
    num_segments = np.diff(examples.first_segment)  # (B,)
    example = np.repeat(np.arange(len(examples)), num_segments)  # (segments,)
    lengths = np.bincount(example, weights=examples.segment_length + 1, minlength=len(examples))
    sequence_lengths = 1 + lengths.astype(np.int64)
    input_ids = np.empty(sequence_lengths.sum(), np.int64)
    token_type_ids = np.zeros(len(input_ids), np.int64)
    is_pair = examples.next_sentence_labels is not None
    end = 0
    for index, (start, length) in enumerate(zip(examples.segment_start, examples.segment_length, strict=True)):
        is_first = index == examples.first_segment[example[index]]
        if is_first:
            input_ids[end] = vocab.cls
            end += 1
        input_ids[end : end + length] = split.tokens(start, length)
        input_ids[end + length] = vocab.sep
        if is_pair and not is_first:
            token_type_ids[end : end + length + 1] = 1
        end += length + 1
    return input_ids, token_type_ids, sequence_lengths


def collate(
    split: SplitTokens, examples: Examples, keys: NDArray[np.uint64], masking: MaskingConfig | None, vocab: VocabFacts
) -> Batch:
    """Pack and mask examples; `keys` (B,) are the random keys of their masks. Without `masking`, next tokens are predicted."""
    input_ids, token_type_ids, sequence_lengths = pack_examples(split, examples, vocab)
    if masking is None:
        positions = np.delete(np.arange(len(input_ids)), np.cumsum(sequence_lengths) - 1)
        labels = input_ids[positions + 1]
    else:
        input_ids, positions, labels = mask_tokens(input_ids, sequence_lengths, keys, masking, vocab)
    targets = {"next_token" if masking is None else "masked_lm": Target(labels, positions)}
    if examples.next_sentence_labels is not None:
        targets["next_sentence"] = Target(examples.next_sentence_labels)
    return Batch(input_ids, token_type_ids, sequence_lengths, targets)
