"""Minimal pairs: of two texts that differ in little, the model should find the first one, which is acceptable, more probable.

A masked LM scores a text by its pseudo-log-likelihood: the sum of the log-probabilities of its pieces, each from a copy of the
text in which it is hidden, and with it the pieces on its right in the same word. A piece whose word goes on would otherwise be
nearly certain. A causal model sums the log-probabilities of all pieces from left to right. No [SEP] is scored.

    [CLS] the [MASK] [MASK] left [SEP]    sou      the two pieces of "souvenir"
    [CLS] the  sou   [MASK] left [SEP]    ##venir

Nothing is trained. Equal scores count as half, so that a model which knows nothing has 50 %.

Source: Salazar et al. 2020; Kauf and Ivanova 2023 (PLL-word-l2r); Warstadt et al. 2020 (BLiMP).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.feature import Feature, TargetFeature
from bertkit.tasks.reading.cells import Cells
from bertkit.tasks.reading.labels import spelled
from bertkit.tasks.reading.near_duplicates import Content
from bertkit.tasks.reading.reading import Reading, optional_value, required_text
from bertkit.tasks.scoring import metrics
from bertkit.tasks.scoring.review import Review
from bertkit.tasks.task import TABLES, AnyLogitsTask, Row, Runner
from bertkit.tasks.trainable import TaskMetrics, TrainableTask


@dataclass(frozen=True)
class PairExample:
    """Two texts, of which the first is acceptable."""

    id: str  # from the file, or the number of the row
    good: str
    bad: str
    paradigm: str  # what the pair tests; accuracies are counted by paradigm


@dataclass(frozen=True)
class PairPrediction:
    """The scores of both texts, log-probabilities in nats."""

    good: float
    bad: float

    @property
    def right(self) -> float:
        """1 if the first text is more probable, 0.5 if both are equally probable, else 0."""
        return (float(self.good > self.bad) + float(self.good >= self.bad)) / 2


@dataclass(frozen=True, kw_only=True)
class WordsFeature(Feature):
    """A text, as it is: two consecutive features are a pair."""

    word_ids: list[int | None]  # for each of the T tokens the number of its word; None for special tokens


@plugins.option("task", "minimal_pairs")
class MinimalPairsTask(TrainableTask[PairExample, WordsFeature, PairPrediction]):
    """Pairs of texts, scored by a masked LM."""

    kind = "minimal_pairs"
    head = "masked_lm"
    unit = "pair"
    formats = TABLES
    reads_several_files = True

    def for_heads(self, heads: Collection[str]) -> MinimalPairsTask:
        """Return the task for a masked LM or for a causal model."""
        return CausalPairsTask(self.config) if CausalPairsTask.head in heads else self

    def read(self, reading: Reading) -> Iterator[PairExample]:
        """Read a pair from each row; without a column of paradigms the file is one."""
        columns = self.config.columns
        good, bad = reading.find(columns.text, "text"), reading.find(columns.text_pair, "text_pair")
        field, ids = reading.find_optional(columns.label, "label"), reading.ids()
        usual = Path(reading.table.name).name

        def example(row: Cells, where: str, line: int) -> PairExample:
            texts = required_text(row, good, where), required_text(row, bad, where)
            reading.note_empty(where, *texts)
            named = optional_value(row, field)
            paradigm = usual if named in (None, "") else spelled(str(named))
            return PairExample(ids.take(optional_value(row, ids.field), where, line), *texts, paradigm)

        return reading.each(example)

    def features(self, examples: Sequence[PairExample], tokenizer: Tokenizer) -> list[WordsFeature]:
        """Encode both texts of each pair; a text that is too long is cut."""
        facts, room = tokenizer.facts, self.config.max_seq_length - 2
        texts = [text for example in examples for text in (example.good, example.bad)]
        return [
            WordsFeature(
                place // 2,
                [facts.cls, *tokenizer.cut(pieces.ids, room), facts.sep],
                [0] * (min(len(pieces.ids), room) + 2),
                num_cut=max(0, len(pieces.ids) - room),
                word_ids=[None, *tokenizer.cut(pieces.word_ids, room), None],
            )
            for place, pieces in enumerate(tokenizer.encode_with_offsets(texts))
        ]

    def copies(self, feature: WordsFeature, mask: int) -> list[TargetFeature]:
        """Return a copy of a text for each of its pieces, in which it and the pieces on its right in the same word are hidden."""
        ids, words, copies = feature.input_ids, feature.word_ids, []
        for place in range(1, len(ids) - 1):
            end = next(after for after in range(place + 1, len(ids)) if words[after] != words[place])
            hidden = [*ids[:place], *[mask] * (end - place), *ids[end:]]
            copies.append(TargetFeature(0, hidden, feature.token_type_ids, masks=[place], targets=[ids[place]]))
        return copies

    def predict(
        self, model: Runner, examples: Sequence[PairExample], features: Sequence[WordsFeature]
    ) -> list[PairPrediction]:
        """Score both texts of each pair; a text that occurs again is scored once, so that equal texts have equal scores."""
        texts = {tuple(feature.input_ids): feature for feature in features}
        copies = {text: self.copies(feature, model.tokenizer.facts.mask) for text, feature in texts.items()}
        values = iter(model.log_probabilities([copy for own in copies.values() for copy in own]))
        scores = {text: math.fsum(value for _ in own for value in next(values)) for text, own in copies.items()}
        of_features = iter([scores[tuple(feature.input_ids)] for feature in features])
        return [PairPrediction(next(of_features), next(of_features)) for _ in examples]

    def row(self, example: PairExample, prediction: PairPrediction) -> Row:
        """Return the id, the paradigm, both scores, and whether the first text is more probable."""
        about = {"id": example.id, "paradigm": example.paradigm}
        return {**about, "scores": [prediction.good, prediction.bad], "right": prediction.right}

    def with_logits(self) -> AnyLogitsTask:
        """Raise InputError: there are no logits for a whole input."""
        raise InputError(f"task={self.config.name}: it has scores of texts and no logits; use predict or evaluate")

    def check_trainable(self) -> None:
        """Raise InputError: pretraining trains the head."""
        name = self.config.name
        raise InputError(
            f"task={name}: there is nothing to train; measure a pretrained model: bertkit evaluate task={name}"
        )

    def content(self, example: PairExample) -> Content:
        """Return both texts."""
        return example.good, example.bad

    def labels_of(self, example: PairExample) -> Sequence[str]:
        """Return the paradigm, by which pairs are counted."""
        return [example.paradigm]

    def classes_of(self, example: PairExample) -> Sequence[str]:
        """Return none: a file with a single paradigm is complete."""
        return ()

    def reference(self, example: PairExample) -> float:
        """Return 1: the first text should be more probable."""
        return 1.0

    def fitting_metrics(self) -> TaskMetrics:
        """Return the only metric."""
        return TaskMetrics("the more probable of two texts", ("group_accuracy",))

    def compared(
        self, examples: Sequence[PairExample], predictions: Sequence[PairPrediction]
    ) -> tuple[metrics.Inputs, metrics.Inputs]:
        """Return which pairs are right; the groups are the paradigms."""
        return [p.right for p in predictions], [example.paradigm for example in examples]

    def is_degenerate(self, examples: Sequence[PairExample], predictions: Sequence[PairPrediction]) -> bool:
        """Check whether both texts of every pair are equally probable."""
        return all(prediction.good == prediction.bad for prediction in predictions)

    def review(self, examples: Sequence[PairExample], predictions: Sequence[PairPrediction]) -> Review:
        """Return the accuracy and the number of pairs of each paradigm."""
        right = defaultdict[str, list[float]](list)
        for example, prediction in zip(examples, predictions, strict=True):
            right[example.paradigm].append(prediction.right)
        return {
            "by_paradigm": {
                paradigm: {"accuracy": sum(own) / len(own), "num_pairs": len(own)}
                for paradigm, own in sorted(right.items())
            }
        }


class CausalPairsTask(MinimalPairsTask):
    """Pairs of texts, scored by a causal model."""

    head = "next_token"

    def copies(self, feature: WordsFeature, mask: int) -> list[TargetFeature]:
        """Return the text once: each piece is predicted at the place before it."""
        ids = feature.input_ids
        masks = list(range(len(ids) - 2))
        return [TargetFeature(0, ids[:-1], feature.token_type_ids[:-1], masks=masks, targets=ids[1:-1])]
