"""Fill-mask: predict the most probable tokens for each [MASK] in a text, with the masked LM head.

A text within `max_seq_length` is one sequence. In a longer text every mask has its own sequence, with about as many pieces
on its left as on its right.

Source: Devlin et al. 2019, section 3.1, task 1.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertkit.base.batch import PretrainBatch
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks import sequence
from bertkit.tasks.sequence import SequenceExample, pieces
from bertkit.tasks.task import Feature
from bertkit.tasks.task_config import TaskConfig


def make_features(
    task: TaskConfig, examples: Sequence[SequenceExample], tokenizer: Tokenizer, _: Sequence[str] = ()
) -> list[Feature]:
    """Encode texts; a text without a mask has no feature.

    The features of an example are consecutive; `origins` holds the positions of the masks to predict.
    """
    facts, room = tokenizer.facts, task.max_seq_length - 2
    features = []
    for place, ids in enumerate(pieces(tokenizer, [example.text for example in examples])):
        masks = [number for number, piece in enumerate(ids) if piece == facts.mask]
        for own in [masks] if len(ids) <= room and masks else [[mask] for mask in masks]:
            first = 0 if len(ids) <= room else min(max(own[0] - room // 2, 0), len(ids) - room)
            kept = [facts.cls, *ids[first : first + room], facts.sep]
            features.append(Feature(place, kept, [0] * len(kept), None, [mask - first + 1 for mask in own]))
    return features


def pack(features: Sequence[Feature]) -> PretrainBatch:
    """Pack features into one batch; the labels are unknown and set to zero."""
    lengths = np.array([len(feature.input_ids) for feature in features], np.int64)
    starts = np.cumsum(lengths) - lengths
    positions = [int(start) + mask for start, own in zip(starts, features, strict=True) for mask in own.origins]
    input_ids = np.array([piece for feature in features for piece in feature.input_ids], np.int64)
    return PretrainBatch(
        input_ids=input_ids,
        token_type_ids=np.zeros_like(input_ids),
        sequence_lengths=lengths,
        masked_positions=np.array(positions, np.int64),
        masked_labels=np.zeros(len(positions), np.int64),
        next_sentence_labels=None,
    )


def predictions(
    examples: Sequence[SequenceExample], features: Sequence[Feature], best: Sequence[Any], tokenizer: Tokenizer
) -> list[list[list[dict[str, Any]]]]:
    """Return the best tokens of each mask of each example, with probabilities; `best` has their ids for each feature."""
    masks: list[list[list[dict[str, Any]]]] = [[] for _ in examples]
    for feature, of_masks in zip(features, best, strict=True):
        for columns in of_masks:
            masks[feature.example].append(
                [{"token": tokenizer.vocab[token], "probability": share} for token, share in zip(*columns, strict=True)]
            )
    return masks


# not in task_config.SHAPES: pretraining trains this head, not fine-tuning
SHAPE = dataclasses.replace(
    sequence.SHAPE,
    head="masked_lm",
    text_columns=("text",),
    has_labels=False,
    features=make_features,
    pack=pack,
    predictions=lambda _, examples, features, best, __, tokenizer: predictions(examples, features, best, tokenizer),
    row=lambda example, masks: {"id": example.id, "text": example.text, "masks": masks},
)
