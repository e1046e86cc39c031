"""Continuation: a causal model writes on after a text, token by token.

A feature is `[CLS] text`, without a [SEP], which would end the text. Of a text that is too long the beginning is left out.
"""

from collections.abc import Sequence

from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.feature import Feature, pieces
from bertkit.tasks.generation import GenerationExample, GenerationPrediction, GenerationTask


class ContinuationTask(GenerationTask):
    """Texts to be continued; pretraining trains this head, not fine-tuning."""

    kind = "continuation"
    head = "next_token"

    def page_inputs(self) -> list[object]:
        """Return examples of texts to be continued."""
        return ["Once upon a time", "It rained all day, so"]

    def faults(self, predictions: Sequence[GenerationPrediction]) -> dict[str, int]:
        """Return nothing: most continuations end at the largest length."""
        return {}

    def truncated(self, num_truncated: int, num_examples: int, num_targets: int = 0) -> str:
        """Return the warning about texts that are too long."""
        longest, written = self.config.max_seq_length, self.search.max_target_length
        return (
            f"{num_truncated:,} of {num_examples:,} texts lost their beginning: of task.max_seq_length={longest} tokens "
            f"task.generation.max_target_length={written} are for what follows; lower it, or shorten the texts"
        )

    def features(self, examples: Sequence[GenerationExample], tokenizer: Tokenizer) -> list[Feature]:
        """Encode texts; `max_seq_length` is that of a text with its continuation."""
        room = self.config.max_seq_length - self.search.max_target_length
        features = []
        for place, ids in enumerate(pieces(tokenizer, [example.source for example in examples])):
            kept = [tokenizer.facts.cls, *ids[max(0, len(ids) - room + 1) :]]
            features.append(Feature(place, kept, [0] * len(kept), num_cut=max(0, len(ids) - room + 1)))
        return features
