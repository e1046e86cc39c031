"""Words with tags: their windows of tokens, and the tags from the logits of the windows.

    words          Johanson   lives in   Ulaanbaatar
    pieces   [CLS] Johan ##son lives in Ulaan ##ba ##atar [SEP]
    labels   -100  B-PER -100  O     O  B-LOC -100 -100   -100

Axes: T tokens of a window, C labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.base.batch import IGNORED
from bertkit.base.errors import InputError, named
from bertkit.data.corpus.tokenizer import Tokenizer, VocabFacts
from bertkit.tasks.feature import Logits, TaggingFeature
from bertkit.tasks.task_config import TaskConfig

NO_WORD = -1


@dataclass(frozen=True)
class TaggingExample:
    """A sentence or document: its words, and a tag for each word."""

    id: str  # from the file, or the number of the sentence
    words: tuple[str, ...]  # no word is empty, but one may be white space
    tags: tuple[str, ...] | None  # one for each word; None if unknown


@dataclass(frozen=True)
class TaggingPrediction:
    """The prediction for an example."""

    tags: list[str]  # one for each word
    scores: list[float]  # the probability of each tag


def pieces_of(examples: Sequence[TaggingExample], tokenizer: Tokenizer) -> list[list[list[int]]]:
    """Encode the words of each example, as inside a running text."""
    vocabulary = list(dict.fromkeys(word for example in examples for word in example.words))
    encoded = dict(zip(vocabulary, tokenizer.encode_words(vocabulary), strict=True))
    return [[encoded[word] for word in example.words] for example in examples]


def make_features(
    config: TaskConfig,
    examples: Sequence[TaggingExample],
    pieces_of_words: Sequence[Sequence[list[int]]],
    facts: VocabFacts,
    labels: Sequence[str],
) -> list[TaggingFeature]:
    """Join the pieces of words, and cut long sentences or documents into windows of whole words.

    The first piece of a word has its label, the other pieces have none (Devlin et al. 2019, section 5.3). A word without
    pieces, such as a control character, becomes [UNK]; a word longer than a window is truncated. An example without words has
    one feature. Raises InputError if a tag is not a label.
    """
    room = config.max_seq_length - 2
    assert config.tagging is not None, "checked by TaskConfig"
    overlap = config.tagging.window_overlap
    overlap = room // 2 if overlap is None else overlap
    numbers = {label: number for number, label in enumerate(labels)}
    features = []
    for place, (example, encoded) in enumerate(zip(examples, pieces_of_words, strict=True)):
        whole = [ids or [facts.unk] for ids in encoded]
        pieces = [ids[:room] for ids in whole]
        unknown = next((tag for tag in example.tags or () if tag not in numbers), None)
        if unknown is not None:
            raise InputError(f"example {example.id}: unknown tag {unknown!r:.80}; expected one of {named(numbers)}")
        own = [IGNORED] * len(whole) if example.tags is None else [numbers[tag] for tag in example.tags]
        for first, last in _windows([*map(len, pieces)], room, overlap):
            ids, words, targets = [facts.cls], [NO_WORD], [IGNORED]
            for word in range(first, last):
                further = len(pieces[word]) - 1
                ids += pieces[word]
                words += [word] + [NO_WORD] * further
                targets += [own[word]] + [IGNORED] * further
            features.append(
                TaggingFeature(
                    place,
                    [*ids, facts.sep],
                    [0] * (len(ids) + 1),
                    token_labels=None if example.tags is None else [*targets, IGNORED],
                    num_cut=sum(max(0, len(ids) - room) for ids in whole[first:last]),
                    words=[*words, NO_WORD],
                )
            )
    return features


def _windows(lengths: list[int], room: int, overlap: int) -> list[tuple[int, int]]:
    """Divide words into windows: (number of the first word, number after the last word).

    `lengths` are the numbers of pieces of the words. A window has at most `room` pieces, and shares at most `overlap` pieces
    with the next window.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    windows, first = [], 0
    while True:
        last = int(np.searchsorted(offsets, offsets[first] + room, side="right")) - 1
        windows.append((first, last))
        if last == len(lengths):
            return windows
        begin = int(np.searchsorted(offsets, offsets[last] - overlap, side="left"))
        first = max(first + 1, begin)


def logits_of_words(
    examples: Sequence[TaggingExample], features: Sequence[TaggingFeature], logits: Sequence[Logits]
) -> list[Logits]:
    """Collect the logits of each example, (words, C), from the logits of its features, (T, C).

    The logits of a word that is in several windows come from the window with the most context: count the pieces on its left
    and on its right, and take the window where the smaller number is largest. Of equal windows the first counts.

    Source: google-research/bert run_squad.py `_check_is_max_context`, which does this for spans.
    """
    num_labels = logits[0].shape[-1] if len(logits) else 0
    of_words = [np.zeros((len(example.words), num_labels), np.float32) for example in examples]
    contexts = [np.full(len(example.words), -1) for example in examples]
    for feature, scores in zip(features, logits, strict=True):
        last = len(feature.input_ids) - 2  # the position of the last piece before [SEP]; the first piece is at 1
        for position, word in enumerate(feature.words):
            if word == NO_WORD:
                continue
            context = min(position - 1, last - position)
            if context > contexts[feature.example][word]:
                contexts[feature.example][word] = context
                of_words[feature.example][word] = scores[position]
    for example, own in zip(examples, contexts, strict=True):
        assert (own >= 0).all(), f"example {example.id}: words without a window"
    return of_words


def tags_of(
    examples: Sequence[TaggingExample],
    features: Sequence[TaggingFeature],
    logits: Sequence[Logits],
    labels: Sequence[str],
) -> list[TaggingPrediction]:
    """Predict the most probable tag of each word from the logits of the features, (T, C) each."""
    predictions = []
    for rows in logits_of_words(examples, features, logits):
        powers = np.exp(rows.astype(np.float64) - rows.max(-1, keepdims=True, initial=-np.inf))  # (words, C)
        scores = powers.max(-1, initial=0) / powers.sum(-1)
        tags = [labels[best] for best in rows.argmax(-1)] if len(rows) else []
        predictions.append(TaggingPrediction(tags, scores.tolist()))
    return predictions
