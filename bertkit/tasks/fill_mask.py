"""Fill-mask: predict the most probable tokens for each [MASK] in a text, with the masked LM head.

A text within `max_seq_length` is one sequence. In a longer text every mask has its own sequence, with about as many pieces
on its left as on its right.

Source: Devlin et al. 2019, section 3.1, task 1.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from bertkit.base.batch import Batch, Target
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.feature import MaskFeature, pieces
from bertkit.tasks.label_kinds import OneLabel
from bertkit.tasks.reading.reading import Reading
from bertkit.tasks.sequence import SequenceExample
from bertkit.tasks.task import AnyLogitsTask, Row, Runner, Task

Masks = list[list[Row]]  # of an example: for each mask its best tokens, with their probabilities


class FillMaskTask(Task[SequenceExample[str], MaskFeature, Masks]):
    """Texts with masks; pretraining trains this head, not fine-tuning."""

    kind = "fill_mask"
    head = "masked_lm"
    unit = OneLabel.unit
    formats = OneLabel.formats
    text_columns = ("text",)
    plain = OneLabel.plain
    copied = ("id", "text")

    def read(self, reading: Reading) -> Iterator[SequenceExample[str]]:
        """Read a text from each row."""
        return OneLabel(self.config).read(reading)

    def features(self, examples: Sequence[SequenceExample[str]], tokenizer: Tokenizer) -> list[MaskFeature]:
        """Encode texts; a text without a mask has no feature."""
        facts, room = tokenizer.facts, self.config.max_seq_length - 2
        features = []
        for place, ids in enumerate(pieces(tokenizer, [example.text for example in examples])):
            masks = [number for number, piece in enumerate(ids) if piece == facts.mask]
            for own in [masks] if len(ids) <= room and masks else [[mask] for mask in masks]:
                first = 0 if len(ids) <= room else min(max(own[0] - room // 2, 0), len(ids) - room)
                kept = [facts.cls, *ids[first : first + room], facts.sep]
                places = [mask - first + 1 for mask in own]
                features.append(MaskFeature(place, kept, [0] * len(kept), masks=places))
        return features

    def predict(
        self, model: Runner, examples: Sequence[SequenceExample[str]], features: Sequence[MaskFeature]
    ) -> list[Masks]:
        """Return the best tokens of each mask of each example."""
        masks: list[Masks] = [[] for _ in examples]
        for feature, of_masks in zip(features, model.best_tokens(features), strict=True):
            for best in of_masks:
                pairs = zip(model.tokenizer.texts_of(best.ids), best.probabilities, strict=True)
                masks[feature.example].append([{"token": token, "probability": p} for token, p in pairs])
        return masks

    def page_inputs(self) -> list[object]:
        """Return examples of texts with masks."""
        return ["Paris is the [MASK] of France.", "It [MASK] all day, so we stayed at [MASK]."]

    def with_logits(self) -> AnyLogitsTask:
        """Raise InputError: there are no logits for a whole input."""
        raise InputError("logits: a masked LM predicts tokens at [MASK] only; use load_model for its logits")

    def faults(self, predictions: Sequence[Masks]) -> dict[str, int]:
        """Return how many texts have no mask."""
        fault = "without a mask: this model predicts the words that masks stand for; write [MASK], or the mask token of the model's tokenizer"
        return {fault: sum(not masks for masks in predictions)}

    def row(self, example: SequenceExample[str], prediction: Masks) -> Row:
        """Return the id, the text and its masks."""
        return {"id": example.id, "text": example.text, "masks": prediction}


def pack(features: Sequence[MaskFeature]) -> Batch:
    """Pack features into one batch; the labels are unknown and set to zero."""
    lengths = np.array([len(feature.input_ids) for feature in features], np.int64)
    starts = np.cumsum(lengths) - lengths
    positions = [int(start) + mask for start, own in zip(starts, features, strict=True) for mask in own.masks]
    input_ids = np.array([piece for feature in features for piece in feature.input_ids], np.int64)
    masks = Target(np.zeros(len(positions), np.int64), np.array(positions, np.int64))
    return Batch(input_ids, np.zeros_like(input_ids), lengths, {"masked_lm": masks})
