"""What the features of a split show of its examples: how many are cut, and which of them a model sees nothing of."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bertkit.data.tokenizer import VocabFacts
from bertkit.tasks.task import Feature

MAX_NAMED = 3  # examples that a warning names


class Coverage:
    """What share of the examples the model sees: counts features on their way; complete when all have passed.

    Attributes:
        num_features: all of them.
        num_truncated: examples of which a part is in no feature.
        has_pairs: whether any has a second segment.
        unknown: numbers of the examples of which a text, the first or the second, is nothing but [UNK].
    """

    def __init__(self, facts: VocabFacts) -> None:
        self._special, self._unknown = {facts.cls, facts.sep}, {facts.unk}
        self.num_features, self.num_truncated, self.has_pairs = 0, 0, False
        self.unknown: list[int] = []

    def passing(self, features: Iterable[Feature]) -> Iterator[Feature]:
        """Give the features on, those of an example together."""
        for example, group in itertools.groupby(features, key=lambda feature: feature.example):
            own = list(group)
            self.num_features += len(own)
            self.num_truncated += any(feature.num_cut for feature in own)
            first: set[int] = set()
            second: set[int] = set()
            for feature in own:
                border = len(feature.input_ids) - sum(feature.token_type_ids)
                first.update(feature.input_ids[:border])
                second.update(feature.input_ids[border:])
            self.has_pairs = self.has_pairs or bool(second)
            if any(pieces - self._special == self._unknown for pieces in (first, second)):
                self.unknown.append(example)
            yield from own

    def warnings(self, examples: Sequence[Any], description: str) -> list[str]:
        """Say in a line that texts are all unknown, where some are."""
        if not self.unknown:
            return []
        ids = ", ".join(examples[number].id for number in self.unknown[:MAX_NAMED])
        return [
            f"{description}: {len(self.unknown):,} examples have a text that is nothing but [UNK] to the tokenizer, the first "
            f"with the id {ids}; check that the model is one for this language"
        ]
