"""`Feature`, a sequence of tokens for the model; how texts become features.

Axes: T tokens of a sequence, C labels.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bertkit.data.corpus.tokenizer import Tokenizer

Logits = NDArray[np.floating]
# sequence: the label's number; a float for a regression; for several labels at once, 0.0 or 1.0 for each label
# spans: (start, end), inclusive positions among the T tokens, (0, 0) for no answer
# choice: the number of the right ending, the same in all features of an example
Label = float | list[float] | tuple[int, int]


@dataclass(frozen=True)
class Feature:
    """One sequence for the model, `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`; an example may have several."""

    example: int  # the index of the example in the list of examples
    input_ids: list[int]  # length T
    token_type_ids: list[int]  # length T
    label: Label | None = None  # of the whole sequence; None if unknown
    token_labels: list[int] | None = None  # tagging: the label's number of each token, -100 for a token without one
    target_ids: list[int] | None = None  # generation: the token ids of the target text
    num_first: int | None = None  # tokens before the second text, which may have the same token type; None without one
    num_cut: int = 0  # pieces (tokens) of the example that were truncated and are in no other feature
    num_target_cut: int = 0  # of these tokens, those of the target

    @property
    def segments(self) -> list[int]:
        """For each of the T tokens 0 in the first text, 1 in the second."""
        num_tokens = len(self.input_ids)
        num_first = num_tokens if self.num_first is None else self.num_first
        return [0] * num_first + [1] * (num_tokens - num_first)

    def without_label(self) -> Self:
        """Return a copy whose label is unknown."""
        return dataclasses.replace(self, label=None, token_labels=None, target_ids=None)

    def of_example(self, example: int) -> Self:
        """Return a copy for another index of its example."""
        return dataclasses.replace(self, example=example)


@dataclass(frozen=True, kw_only=True)
class TaggingFeature(Feature):
    """A window of words."""

    words: list[int]  # for each of the T tokens the number of the word that begins there, or -1


class ContextToken(NamedTuple):
    """The origin of a token: its characters `context[start:end]`, and whether it has the most context in this window."""

    start: int
    end: int
    is_max_context: bool


@dataclass(frozen=True, kw_only=True)
class SpanFeature(Feature):
    """A question and a window of its context."""

    origins: list[ContextToken | None]  # of each of the T tokens; None for the question and for special tokens


@dataclass(frozen=True, kw_only=True)
class MaskFeature(Feature):
    """A text with masks."""

    masks: list[int]  # the positions of the masks to predict


@dataclass(frozen=True, kw_only=True)
class TargetFeature(MaskFeature):
    """A text of which some tokens are to be scored, each at one of `masks`: where it is hidden, or for a causal model before it."""

    targets: list[int]  # the tokens, one for each of `masks`


def pieces(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts as token ids, without [CLS] and [SEP]."""
    return [ids[1:-1] for ids in tokenizer.encode_texts(list(texts))]


def text_feature(
    tokenizer: Tokenizer,
    example: int,
    first: list[int],
    second: list[int] | None,
    label: Label | None,
    max_seq_length: int,
) -> Feature:
    """Build `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]` from token ids, truncated to `max_seq_length`.

    Some tokenizers have other special tokens between the texts of a pair.
    """
    facts, between = tokenizer.facts, [] if second is None else tokenizer.between
    budget = max_seq_length - 2 - len(between)
    num_first, num_second = truncated_lengths(len(first), len(second or ()), budget)
    kept = tokenizer.cut(first, num_first), tokenizer.cut(second or (), num_second)
    head = [facts.cls, *kept[0], *between]
    input_ids, border = [*head, *kept[1], facts.sep], None if second is None else len(head)
    types = [0] * len(input_ids) if second is None else tokenizer.pair_types(num_first, num_second)
    num_cut = len(first) + len(second or ()) - num_first - num_second
    return Feature(example, input_ids, types, label, num_first=border, num_cut=num_cut)


def truncated_lengths(num_first: int, num_second: int, budget: int) -> tuple[int, int]:
    """Return the lengths of two segments after truncation: the longer one is cut to the length of the other, then both.

    Of an odd budget the longer segment keeps one piece more, the second of equally long ones, as in `transformers` 5, by which exported
    models read texts. In Google's run_classifier.py the first segment keeps it.

    Source: tokenizers 0.23, utils/truncation.rs `truncate_encodings`, `LongestFirst`.
    """
    if num_first + num_second <= budget:
        return num_first, num_second
    shorter = min(num_first, num_second, budget // 2)
    longer = budget - shorter
    return (longer, shorter) if num_first > num_second else (shorter, longer)


def softmax(logits: Logits) -> NDArray[np.float64]:
    """exp(x) / sum(exp(x)) over the last axis, in float64."""
    powers = np.exp(logits.astype(np.float64) - np.max(logits, axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
