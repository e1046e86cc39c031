"""Google's training instances, exactly as `create_pretraining_data.py` makes them from a text and a seed.

An instance is one masked sequence `[CLS] A [SEP] B [SEP]`. All random numbers come from one `random.Random(seed)`, in the
order of the original program:

1. Shuffle the documents.
2. `dupe_factor` times, for every document: draw whether its target length is short, and how short. Then, for every chunk of
   sentences: draw where A ends, whether B is random, where B begins, whether the first or the last token is cut off, the
   order of the candidates for masking, and the replacement of each masked token.
3. Shuffle the instances.

The pairs of `segments.py` have the same statistics but can be computed in any order. The instances here can be compared with
the original's one by one.

Source: google-research/bert create_pretraining_data.py (commit eedf571); the functions below are its four jobs.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bertkit.data.corpus.prepared import SplitTokens
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.data.data_config import InstancesConfig, MaskingConfig

Sentence = list[int]
Document = Sequence[Sentence]
MASK_PROB = 0.8  # probability that a chosen token becomes [MASK]
KEEP_PROB = 0.5  # probability that a chosen token without [MASK] stays unchanged
TRIES_FOR_ANOTHER_DOCUMENT = 10


@dataclass(frozen=True)
class Instance:
    """One masked sequence `[CLS] A [SEP] B [SEP]`."""

    input_ids: list[int]  # after masking
    b_start: int  # position of B's first token; token type 1 begins there
    is_random_next: bool  # true: B comes from a random place; false: B follows A
    masked_positions: list[int]  # positions of the tokens to predict, ascending
    masked_labels: list[int]  # original ids at these positions


class SplitDocuments(Sequence[Document]):
    """The documents of a split, read from disk one sentence at a time."""

    def __init__(self, split: SplitTokens) -> None:
        self.split = split

    def __len__(self) -> int:
        return self.split.num_documents

    def __getitem__(self, index: int) -> Document:  # type: ignore[override]  # no slices
        return _SplitDocument(self.split, int(self.split.documents[index]), int(self.split.documents[index + 1]))


class _SplitDocument(Sequence[Sentence]):
    def __init__(self, split: SplitTokens, first: int, end: int) -> None:
        self.split, self.first, self.end = split, first, end

    def __len__(self) -> int:
        return self.end - self.first

    def __getitem__(self, index: int) -> Sentence:  # type: ignore[override]  # no slices
        if index >= len(self):
            raise IndexError(index)
        start, stop = self.split.sentences[self.first + index : self.first + index + 2].tolist()
        tokens: Sentence = self.split.tokens(start, stop - start).tolist()
        return tokens


def training_instances(
    documents: Sequence[Document],
    config: InstancesConfig,
    masking: MaskingConfig,
    vocab: VocabFacts,
    rng: random.Random,
) -> Iterator[Instance]:
    """Draw all instances, before the last shuffle, for which the caller uses `shuffled_order` with the same `rng`.

    No document and no sentence may be empty. `rng` must be new, made from the seed.
    """
    order = shuffled_order(len(documents), rng)
    for _ in range(config.dupe_factor):
        for place in range(len(order)):
            for tokens_a, tokens_b, is_random_next in document_pairs(documents, order, place, config, rng):
                input_ids = [vocab.cls, *tokens_a, vocab.sep, *tokens_b, vocab.sep]
                masked_ids, positions = mask_instance(input_ids, config, masking, vocab, rng)
                labels = [input_ids[position] for position in positions]
                yield Instance(masked_ids, len(tokens_a) + 2, is_random_next, positions, labels)


def shuffled_order(count: int, rng: random.Random) -> array[int]:
    """Shuffle the numbers 0 to `count - 1`; each takes 8 bytes of memory."""
    order = array("q", range(count))
    rng.shuffle(order)
    return order


def document_pairs(
    documents: Sequence[Document], order: Sequence[int], place: int, config: InstancesConfig, rng: random.Random
) -> Iterator[tuple[Sentence, Sentence, bool]]:
    """Cut the document `order[place]` into pairs (A, B, is_random_next).

    Sentences are collected into a chunk until it has the target length or the document ends. The chunk is split at random
    into A and B. With probability 1/2, B is replaced by text from a random place, and the next chunk begins with the unused
    sentences. If the chunk is a single sentence, B is always random, and no number is drawn for this choice. If there is only
    one document, the random text comes from the same document, but still counts as random.
    """
    document = documents[order[place]]
    max_num_tokens = config.max_seq_length - 3  # [CLS] A [SEP] B [SEP]
    target = max_num_tokens
    if rng.random() < config.short_seq_prob:
        target = rng.randint(2, max_num_tokens)
    chunk: list[Sentence] = []
    num_tokens = 0
    index = 0
    while index < len(document):
        chunk.append(document[index])
        num_tokens += len(chunk[-1])
        if index == len(document) - 1 or num_tokens >= target:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            tokens_a = [token for sentence in chunk[:a_end] for token in sentence]
            is_random_next = len(chunk) == 1 or rng.random() < 0.5
            if is_random_next:
                tokens_b = _random_text(documents, order, place, target - len(tokens_a), rng)
                index -= len(chunk) - a_end  # the unused sentences go into the next chunk
            else:
                tokens_b = [token for sentence in chunk[a_end:] for token in sentence]
            truncate_pair(tokens_a, tokens_b, max_num_tokens, rng)
            yield tokens_a, tokens_b, is_random_next
            chunk, num_tokens = [], 0
        index += 1


def _random_text(
    documents: Sequence[Document], order: Sequence[int], place: int, num_tokens: int, rng: random.Random
) -> Sentence:
    """Return at least `num_tokens` tokens from a random sentence of another document on, or fewer if the document ends."""
    for _ in range(TRIES_FOR_ANOTHER_DOCUMENT):
        other = rng.randint(0, len(order) - 1)
        if other != place:
            break
    document = documents[order[other]]
    tokens: Sentence = []
    for index in range(rng.randint(0, len(document) - 1), len(document)):
        tokens += document[index]
        if len(tokens) >= num_tokens:
            break
    return tokens


def truncate_pair(tokens_a: Sentence, tokens_b: Sentence, max_num_tokens: int, rng: random.Random) -> None:
    """Remove tokens, in place, until the pair fits: at random the first or last one of the longer segment (B if equal)."""
    while len(tokens_a) + len(tokens_b) > max_num_tokens:
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def mask_instance(
    input_ids: Sentence, config: InstancesConfig, masking: MaskingConfig, vocab: VocabFacts, rng: random.Random
) -> tuple[Sentence, list[int]]:
    """Mask a sequence; return the masked ids and the positions to predict, ascending.

    The largest number of predictions is a share of the length with `[CLS]` and `[SEP]`, rounded half to even; these two
    tokens are never masked. A whole word that would exceed this number is skipped. Each piece of a word gets its own
    replacement. A `##` piece at the start of B, whose beginning was cut off, belongs to the last word of A.
    """
    candidates: list[list[int]] = []
    by_words = masking.has("by_words")
    for position, token in enumerate(input_ids):
        if token in (vocab.cls, vocab.sep):
            continue
        if by_words and candidates and vocab.borders.continues[token]:
            candidates[-1].append(position)
        else:
            candidates.append([position])
    rng.shuffle(candidates)
    max_predictions = min(config.max_predictions_per_seq, max(1, round(len(input_ids) * masking.probability)))
    masked_ids, positions = list(input_ids), list[int]()
    for candidate in candidates:
        if len(positions) >= max_predictions:
            break
        if len(positions) + len(candidate) > max_predictions:
            continue
        for position in candidate:
            if rng.random() < MASK_PROB:
                masked_ids[position] = vocab.mask
            elif rng.random() >= KEEP_PROB:
                masked_ids[position] = rng.randint(0, vocab.size - 1)
            positions.append(position)
    return masked_ids, sorted(positions)
