"""Continuation: a causal model writes on after a text, token by token.

A feature is `[CLS] text`, without a [SEP], which would end the text. Of a text that is too long the beginning is left out.
"""

import dataclasses
from collections.abc import Sequence

from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks import generation
from bertkit.tasks.generation import GenerationExample
from bertkit.tasks.sequence import pieces
from bertkit.tasks.task import Feature
from bertkit.tasks.task_config import TaskConfig


def make_features(
    task: TaskConfig, examples: Sequence[GenerationExample], tokenizer: Tokenizer, _: Sequence[str] = ()
) -> list[Feature]:
    """Encode texts; `max_seq_length` is that of a text with its continuation."""
    assert task.generation is not None, "checked by TaskConfig"
    room = task.max_seq_length - task.generation.max_target_length
    features = []
    for place, ids in enumerate(pieces(tokenizer, [example.source for example in examples])):
        kept = [tokenizer.facts.cls, *ids[max(0, len(ids) - room + 1) :]]
        features.append(Feature(place, kept, [0] * len(kept), None, num_cut=max(0, len(ids) - room + 1)))
    return features


# not in task_config.SHAPES: pretraining trains this head, not fine-tuning
SHAPE = dataclasses.replace(generation.SHAPE, head="next_token", features=make_features)
