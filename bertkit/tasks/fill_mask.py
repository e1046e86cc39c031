"""Masked LM as a task: a text with [MASK] -> sequences that hold its masks -> the most probable tokens at each.

A text that fits is one sequence. Of a longer one every mask has a sequence of its own, with about as many pieces on its
left as on its right, so that none is lost.

Source: Devlin et al. 2019, section 3.1, task 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.batch import PretrainBatch
from bertkit.data.tokenizer import Tokenizer
from bertkit.tasks.task import SequenceExample


@dataclass(frozen=True)
class MaskedSequence:
    """One sequence that the model sees.

    Attributes:
        example: the place of its example in the list.
        input_ids: with [CLS] and [SEP].
        positions: of the masks that are predicted here, among `input_ids`.
    """

    example: int
    input_ids: list[int]
    positions: list[int]


def make_sequences(
    examples: Sequence[SequenceExample], tokenizer: Tokenizer, max_seq_length: int
) -> list[MaskedSequence]:
    """Encode texts; a text without a mask gives no sequence, the masks of the others come in their order."""
    facts, room = tokenizer.facts, max_seq_length - 2
    found = []
    encoded = tokenizer([example.text for example in examples])["input_ids"] if examples else []
    for place, ids in enumerate(encoded):
        pieces = ids[1:-1]
        masks = [number for number, piece in enumerate(pieces) if piece == facts.mask]
        for wanted in [masks] if len(pieces) <= room and masks else [[mask] for mask in masks]:
            first = 0 if len(pieces) <= room else min(max(wanted[0] - room // 2, 0), len(pieces) - room)
            sequence = [facts.cls, *pieces[first : first + room], facts.sep]
            found.append(MaskedSequence(place, sequence, [mask - first + 1 for mask in wanted]))
    return found


def pack(sequences: Sequence[MaskedSequence]) -> PretrainBatch:
    """Put sequences into one batch; its labels are unknown, and zeros."""
    lengths = np.array([len(sequence.input_ids) for sequence in sequences], np.int64)
    starts = np.cumsum(lengths) - lengths
    positions = [
        int(start) + place for start, sequence in zip(starts, sequences, strict=True) for place in sequence.positions
    ]
    input_ids = np.array([piece for sequence in sequences for piece in sequence.input_ids], np.int64)
    return PretrainBatch(
        input_ids=input_ids,
        token_type_ids=np.zeros_like(input_ids),
        sequence_lengths=lengths,
        masked_positions=np.array(positions, np.int64),
        masked_labels=np.zeros(len(positions), np.int64),
        next_sentence_labels=None,
    )
