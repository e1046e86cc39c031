"""Documents of token ids -> training examples: segment pairs, or blocks of full sentences.

A segment is a range of tokens in one document; no tokens are copied here. The pairs of a document depend only on (seed, epoch,
document), and are computed for many documents at once.

Two arrays describe the text of a split: `sentences` has the index of the first token of each sentence, and `documents` the
index of the first sentence of each document. A last entry holds the number of tokens, or of sentences.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertkit.data.batches.keyed_random import Stream, below, bits, num_heads, permute, uniform
from bertkit.data.data_config import SegmentsConfig

Ints = NDArray[np.int64]
Offsets = NDArray[np.int64]
Bits = NDArray[np.uint64]
DOCUMENTS_AT_ONCE = 1 << 15
BLOCKS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Examples:
    """Training examples, each a few segments of the text."""

    first_segment: Ints  # index of each example's first segment, and the number of segments, (examples + 1,)
    segment_start: Ints  # index of the first token of each segment, (segments,)
    segment_length: Ints  # number of tokens in each segment, (segments,)
    # 0: B follows A; 1: B is random or, with sop, A and B are swapped; (examples,). None for blocks
    next_sentence_labels: Ints | None = None

    def __len__(self) -> int:
        return len(self.first_segment) - 1


def examples_of_epoch(
    sentences: Offsets, documents: Offsets, config: SegmentsConfig, seed: int, epoch: int
) -> Iterator[Examples]:
    """Cut a split into the examples of one epoch; each group that is yielded has the examples of many documents."""
    if config.kind == "full_sentences":
        yield from full_sentence_blocks(sentences, documents, config.max_seq_length, seed, epoch)
        return
    for first in range(0, len(documents) - 1, DOCUMENTS_AT_ONCE):
        chosen = np.arange(first, min(first + DOCUMENTS_AT_ONCE, len(documents) - 1))
        yield document_pairs(sentences, documents, chosen, config, seed, epoch)


def document_pairs(
    sentences: Offsets, documents: Offsets, chosen: Ints, config: SegmentsConfig, seed: int, epoch: int
) -> Examples:
    """Cut the chosen documents into segment pairs (A, B), in the order of the documents.

    A document is cut into chunks of whole sentences, just long enough for the target length. A chunk is split at random
    into A and B. If the chunk is a single sentence, B is text from another random document. For other chunks, nsp replaces B
    by random text with probability 1/2, and the next chunk begins with the unused sentences; sop swaps A and B with
    probability 1/2. If a pair is too long, tokens are removed from its longer segment, each at random from the front or the
    back.

    Source: google-research/bert and, for sop, google-research/albert create_pretraining_data.py,
    `create_instances_from_document` (Lan et al. 2020, section 3.1). The originals draw up to ten times to get another
    document; here the same document is never drawn. If there is only one document, the random text comes from this document,
    but still counts as random.
    """
    max_tokens = config.max_seq_length - 3  # [CLS] A [SEP] B [SEP]
    drawn = {stream: bits(seed, stream, epoch) for stream in Stream}
    is_short = uniform(chosen, after=drawn[Stream.TARGET_IS_SHORT]) < config.short_seq_prob
    short_target = 2 + below(max_tokens - 1, chosen, after=drawn[Stream.TARGET_LENGTH])
    target = np.where(is_short, short_target, max_tokens)
    document, position, end = chosen, documents[chosen], documents[chosen + 1]
    chunks = []
    for turn in itertools.count():  # one chunk of every document that is not finished
        active = position < end
        document, position, end, target = document[active], position[active], end[active], target[active]
        if not len(document):
            break
        chunk_end = np.minimum(np.searchsorted(sentences, sentences[position] + target), end)
        num_sentences = chunk_end - position
        split = 1 + below(np.maximum(num_sentences - 1, 1), document, turn, after=drawn[Stream.SPLIT_POINT])
        a_end = np.where(num_sentences > 1, position + split, chunk_end)
        a_start, a_length = sentences[position], sentences[a_end] - sentences[position]

        is_random, is_swapped = _random_and_swapped(num_sentences, document, turn, config, drawn)
        num_tokens = np.maximum(target - a_length, 1)
        random_first, random_end = _random_text(sentences, documents, document, turn, num_tokens, drawn)
        b_first = np.where(is_random, random_first, a_end)
        b_end = np.where(is_random, random_end, chunk_end)
        b_start, b_length = sentences[b_first], sentences[b_end] - sentences[b_first]

        if config.next_sentence == "sop":
            a_start, b_start = np.where(is_swapped, (b_start, a_start), (a_start, b_start))
            a_length, b_length = np.where(is_swapped, (b_length, a_length), (a_length, b_length))
        cut_a, cut_b = _tokens_to_cut(a_length, b_length, max_tokens)
        a_start = a_start + num_heads(cut_a, document, turn, after=drawn[Stream.TRUNCATE_A])
        b_start = b_start + num_heads(cut_b, document, turn, after=drawn[Stream.TRUNCATE_B])
        chunks.append((document, a_start, a_length - cut_a, b_start, b_length - cut_b, is_random | is_swapped))
        position = np.where(is_random, a_end, chunk_end)

    columns = [np.concatenate(column).astype(np.int64) for column in zip(*chunks, strict=True)]
    order = np.argsort(columns[0], kind="stable")  # keeps the order of the pairs of a document
    a_start, a_length, b_start, b_length, next_sentence_labels = (column[order] for column in columns[1:])
    return Examples(
        first_segment=np.arange(0, 2 * len(order) + 1, 2),
        segment_start=np.stack([a_start, b_start], axis=1).reshape(-1),
        segment_length=np.stack([a_length, b_length], axis=1).reshape(-1),
        next_sentence_labels=next_sentence_labels,
    )


def _random_and_swapped(
    num_sentences: Ints, document: Ints, turn: int, config: SegmentsConfig, drawn: dict[Stream, Bits]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Choose the chunks whose B is random, and the chunks whose A and B are swapped, each as a mask."""
    is_alone = num_sentences == 1
    if config.next_sentence == "nsp":
        return is_alone | (uniform(document, turn, after=drawn[Stream.IS_RANDOM_NEXT]) < 0.5), np.zeros_like(is_alone)
    if config.next_sentence == "sop":
        return is_alone, ~is_alone & (uniform(document, turn, after=drawn[Stream.IS_SWAPPED]) < 0.5)
    return is_alone, np.zeros_like(is_alone)


def _random_text(
    sentences: Offsets, documents: Offsets, document: Ints, turn: int, num_tokens: Ints, drawn: dict[Stream, Bits]
) -> tuple[Ints, Ints]:
    """For each document, return sentences (first, end) of another one: from a random sentence on, `num_tokens` tokens."""
    num_documents = len(documents) - 1
    other = below(max(num_documents - 1, 1), document, turn, after=drawn[Stream.RANDOM_DOCUMENT])
    other += (other >= document) & (num_documents > 1)
    num_sentences = documents[other + 1] - documents[other]
    first = documents[other] + below(num_sentences, document, turn, after=drawn[Stream.RANDOM_SENTENCE])
    return first, np.minimum(np.searchsorted(sentences, sentences[first] + num_tokens), documents[other + 1])


def _tokens_to_cut(a_length: Ints, b_length: Ints, max_tokens: int) -> tuple[Ints, Ints]:
    """Return how many tokens to remove from A and B: one at a time from the longer segment (B if equal) until both fit."""
    excess = np.maximum(a_length + b_length - max_tokens, 0)
    to_equal = np.minimum(excess, np.abs(a_length - b_length))
    rest = excess - to_equal
    cut_a = np.where(a_length > b_length, to_equal, 0) + rest // 2
    return cut_a, excess - cut_a


def full_sentence_blocks(
    sentences: Offsets, documents: Offsets, max_seq_length: int, seed: int, epoch: int
) -> Iterator[Examples]:
    """Fill blocks with whole sentences; a block may continue in the next document, after a [SEP].

    Each epoch has a new order of documents. A sentence is cut only if it is longer than a block.

    Source: Liu et al. 2019 (RoBERTa), section 4.2, FULL-SENTENCES.
    """
    num_documents = len(documents) - 1
    capacity = max_seq_length - 2  # [CLS] ... [SEP]
    blocks: list[list[tuple[int, int]]] = []
    block: list[tuple[int, int]] = []
    room = capacity
    for first in range(0, num_documents, DOCUMENTS_AT_ONCE):
        in_order = np.arange(first, min(first + DOCUMENTS_AT_ONCE, num_documents))
        for document in permute(in_order, num_documents, seed, Stream.DOCUMENT_ORDER, epoch):
            token, end = int(sentences[documents[document]]), int(sentences[documents[document + 1]])
            while token < end:
                stop = min(int(sentences[np.searchsorted(sentences, token + room, side="right") - 1]), end)
                if stop <= token and not block:
                    stop = min(token + room, end)  # this sentence is longer than a block
                if stop > token:
                    block.append((token, stop - token))
                    room -= stop - token
                    token = stop
                if token == end:
                    room -= 1  # for the [SEP] before the next document
                if token < end or room < 1:
                    blocks.append(block)
                    block, room = [], capacity
        while len(blocks) >= BLOCKS_AT_ONCE:
            yield _as_examples(blocks[:BLOCKS_AT_ONCE])
            blocks = blocks[BLOCKS_AT_ONCE:]
    if block:
        blocks.append(block)
    if blocks:
        yield _as_examples(blocks)


def _as_examples(blocks: list[list[tuple[int, int]]]) -> Examples:
    segments = np.array([segment for block in blocks for segment in block], np.int64).reshape(-1, 2)
    first_segment = np.concatenate([[0], np.cumsum([len(block) for block in blocks])])
    return Examples(first_segment.astype(np.int64), segments[:, 0], segments[:, 1])


def select(examples: Examples, chosen: Ints) -> Examples:
    """Return the examples with these indices."""
    counts = examples.first_segment[chosen + 1] - examples.first_segment[chosen]
    first_segment = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    within = np.arange(first_segment[-1]) - np.repeat(first_segment[:-1], counts)
    segments = np.repeat(examples.first_segment[chosen], counts) + within
    return Examples(
        first_segment,
        segment_start=np.asarray(examples.segment_start[segments]),
        segment_length=np.asarray(examples.segment_length[segments]),
        next_sentence_labels=None if examples.next_sentence_labels is None else examples.next_sentence_labels[chosen],
    )


def concatenate(groups: list[Examples]) -> Examples:
    """Concatenate groups of examples."""
    offsets = np.cumsum([0, *(len(group.segment_start) for group in groups)])
    firsts = [group.first_segment[:-1] + offset for group, offset in zip(groups, offsets, strict=False)]
    labels = [group.next_sentence_labels for group in groups if group.next_sentence_labels is not None]
    return Examples(
        first_segment=np.concatenate([*firsts, offsets[-1:]]).astype(np.int64),
        segment_start=np.concatenate([np.zeros(0, np.int64), *(group.segment_start for group in groups)]),
        segment_length=np.concatenate([np.zeros(0, np.int64), *(group.segment_length for group in groups)]),
        next_sentence_labels=np.concatenate(labels) if labels else None,
    )
