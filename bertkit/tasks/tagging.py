"""Tagging: words -> windows of pieces -> logits -> one tag for each word, always.

    words          Johanson   lives in   Ulaanbaatar
    pieces   [CLS] Johan ##son lives in Ulaan ##ba ##atar [SEP]
    labels   -100  B-PER -100  O     O  B-LOC -100 -100   -100

Axes: T tokens of a window, C labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import InputError
from bertkit.tasks.task import Feature, TaggingExample

IGNORED = -100  # the label of a token that is not scored
NO_WORD = -1


def make_features(
    examples: Sequence[TaggingExample],
    tokenizer: Tokenizer,
    labels: Sequence[str],
    max_seq_length: int,
    *,
    label_all_pieces: bool = False,
    window_overlap: int | None = None,
) -> list[Feature]:
    """Cut words into pieces, and sentences or documents that are too long into windows of whole words.

    Nothing is lost: a word that has no piece of its own, such as a control character, becomes [UNK]. Of a word longer
    than a whole window its first pieces are kept, as many as a window holds. An example without words gives one feature
    without any.

    Args:
        examples: with tags, or without for features without labels.
        tokenizer: each word is cut for itself.
        labels: the tags in the order of their numbers.
        max_seq_length: tokens of a window, [CLS] and [SEP] among them.
        label_all_pieces: label every piece of a word, not just its first; the further pieces of B-X get I-X where
            there is such a label, and those of another tag the tag itself.
        window_overlap: pieces that neighbouring windows share, rounded down to whole words; None for half a window.

    Returns:
        The features of an example stand together; `where` has for each of the T tokens the number of the word that it
        begins, -1 for none.

    Raises:
        InputError: no room for a word, an overlap that is not smaller than a window, or a tag that is no label.
    """
    room = max_seq_length - 2
    overlap = room // 2 if window_overlap is None else window_overlap
    if room < 1:
        raise InputError(f"max_seq_length={max_seq_length}: no room for a word between [CLS] and [SEP]; set 3 or more")
    if not 0 <= overlap < room:
        raise InputError(f"window_overlap={overlap}: expected 0 to {room - 1} (max_seq_length={max_seq_length} less 3)")
    facts = tokenizer.facts
    vocabulary = list(dict.fromkeys(word for example in examples for word in example.words))
    encodings = tokenizer.encode_sentences(vocabulary)
    pieces_of = {word: encoding.ids or [facts.unk] for word, encoding in zip(vocabulary, encodings, strict=True)}
    numbers = {label: number for number, label in enumerate(labels)}
    features = []
    for place, example in enumerate(examples):
        whole = [pieces_of[word] for word in example.words]
        pieces = [each[:room] for each in whole]
        own = None if example.tags is None else [_label_pair(tag, numbers, example.id) for tag in example.tags]
        for first, last in _windows([len(each) for each in pieces], room, overlap):
            ids, where, targets = [facts.cls], [NO_WORD], [IGNORED]
            for word in range(first, last):
                further = len(pieces[word]) - 1
                ids += pieces[word]
                where += [word] + [NO_WORD] * further
                if own is not None:
                    here, rest = own[word]
                    targets += [here] + [rest if label_all_pieces else IGNORED] * further
            ids, where, targets = [*ids, facts.sep], [*where, NO_WORD], [*targets, IGNORED]
            num_cut = sum(len(each) - room for each in whole[first:last] if len(each) > room)
            features.append(Feature(place, ids, [0] * len(ids), None if own is None else targets, where, num_cut))
    return features


def _label_pair(tag: str, numbers: dict[str, int], example_id: str) -> tuple[int, int]:
    """Give the numbers of a tag and of what the further pieces of its word have."""
    if tag not in numbers:
        raise InputError(f"example {example_id}: tag {tag!r} is no label; expected one of {', '.join(numbers)}")
    rest = f"I-{tag[2:]}" if tag.startswith("B-") else tag
    return numbers[tag], numbers.get(rest, numbers[tag])


def _windows(lengths: list[int], room: int, overlap: int) -> list[tuple[int, int]]:
    """Cut words into windows, (first, last) of each, `last` excluded.

    Args:
        lengths: pieces of each word, none more than `room`.
        room: pieces that a window holds.
        overlap: pieces that neighbours share at most.
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


def tags_of(
    examples: Sequence[TaggingExample],
    features: Sequence[Feature],
    logits: Sequence[NDArray[np.floating]],
    labels: Sequence[str],
) -> list[list[str]]:
    """Give every word of every example its tag.

    A word that stands in several windows is tagged where it has most context: where the smaller of the numbers of
    pieces on its two sides is greatest, in the earlier window of two equal ones.

    Args:
        examples: those that the features were made of.
        features: all of them, those of an example in their order.
        logits: (T, C) for each feature.
        labels: C names.

    Source: google-research/bert run_squad.py `_check_is_max_context` has the idea for spans.
    """
    tags: list[list[str]] = [[""] * len(example.words) for example in examples]
    contexts = [np.full(len(example.words), -1) for example in examples]
    for feature, scores in zip(features, logits, strict=True):
        best = scores.argmax(-1)  # (T,)
        last = len(feature.input_ids) - 2  # of the pieces between [CLS] and [SEP], which begin at 1
        for position, word in enumerate(feature.where):
            if word == NO_WORD:
                continue
            context = min(position - 1, last - position)
            if context > contexts[feature.example][word]:
                contexts[feature.example][word] = context
                tags[feature.example][word] = labels[best[position]]
    for example, found in zip(examples, contexts, strict=True):
        assert (found >= 0).all(), f"example {example.id}: words without a window"
    return tags
