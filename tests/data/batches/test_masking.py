"""Masking: the exact count, 80/10/10, whole words, n-grams of them, and independence of the batch."""

from collections import Counter

import numpy as np
import pytest

from bertkit.base.errors import InputError
from bertkit.data.batches.keyed_random import Stream, bits, uniform
from bertkit.data.batches.masking import mask_tokens
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.data.corpus.word_rules import WordBorders
from bertkit.data.data_config import MaskingConfig

PAD, UNK, CLS, SEP, MASK, FIRST_WORD, FIRST_PIECE, SIZE = 0, 1, 2, 3, 4, 5, 401, 503
VOCAB = VocabFacts(SIZE, PAD, UNK, CLS, SEP, MASK, WordBorders(np.arange(SIZE) >= FIRST_PIECE, np.zeros(SIZE, bool)))
PIECES, WORDS = MaskingConfig(0.15, 0.8, 0.1), MaskingConfig(0.15, 0.8, 0.1, "whole_word")
NGRAMS = MaskingConfig(0.15, 0.8, 0.1, "ngram", {"max_ngram": 3})


def test_what_a_masking_says_of_itself() -> None:
    said = {kind: MaskingConfig(0.15, 0.8, 0.1, kind) for kind in ("bert", "whole_word", "ngram", "a plug-in's")}
    assert [kind for kind, masking in said.items() if masking.has("by_words")] == ["whole_word", "ngram"]
    assert [kind for kind, masking in said.items() if masking.has("in_instances")] == ["bert", "whole_word"]


def make_batch(lengths: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sequences `[CLS] A [SEP] B [SEP]` of the given lengths, one third of their tokens `##` pieces, and their keys."""
    rng = np.random.default_rng(seed)
    sequences = []
    for length in lengths:
        ids = np.where(rng.random(length) < 0.33, rng.integers(FIRST_PIECE, SIZE, length), 0)
        ids = np.where(ids == 0, rng.integers(FIRST_WORD, FIRST_PIECE, length), ids)
        ids[0], ids[-1] = CLS, SEP
        if length > 4:
            ids[length // 2] = SEP
        sequences.append(ids)
    return np.concatenate(sequences), np.array(lengths), bits(seed, np.arange(len(lengths)))


def cut(values: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    return np.split(values, np.cumsum(lengths)[:-1])


@pytest.mark.parametrize(
    ("length", "count"),
    [(3, 1), (5, 1), (9, 1), (10, 2), (11, 2), (16, 2), (17, 3), (30, 4), (50, 8), (64, 10), (70, 10), (128, 19), (512, 77)],
)  # fmt: skip
def test_number_of_masked_positions_is_as_by_hand(length: int, count: int) -> None:
    """15 % of the length, [CLS] and [SEP] counted; 10 x 0.15 = 1.5 -> 2, 30 x 0.15 = 4.5 -> 4, 70 x 0.15 = 10.5 -> 10."""
    _, positions, _ = mask_tokens(*make_batch([length]), PIECES, VOCAB)
    assert len(positions) == count


@pytest.mark.parametrize("policy", [PIECES, WORDS, NGRAMS])
def test_count_of_every_sequence_and_specials(policy: MaskingConfig) -> None:
    ids, lengths, keys = make_batch([*range(3, 132), 511, 512])
    masked, positions, labels = mask_tokens(ids, lengths, keys, policy, VOCAB)
    assert (np.diff(positions) > 0).all()
    assert (labels == ids[positions]).all()
    assert not np.isin(labels, (CLS, SEP)).any()
    untouched = np.setdiff1d(np.arange(len(ids)), positions)
    assert (masked[untouched] == ids[untouched]).all()
    chosen = np.zeros(len(ids), bool)
    chosen[positions] = True
    for length, mine in zip(lengths, cut(chosen, lengths), strict=True):
        quota = max(1, round(int(length) * 0.15))
        assert mine.sum() <= quota if policy.kind != "bert" else mine.sum() == quota


@pytest.mark.parametrize("policy", [PIECES, NGRAMS])
def test_masked_positions_are_80_10_10(policy: MaskingConfig) -> None:
    ids, lengths, keys = make_batch([128] * 7_001)
    masked, positions, labels = mask_tokens(ids, lengths, keys, policy, VOCAB)
    assert len(positions) >= 100_000
    new = masked[positions]
    is_mask, is_kept = new == MASK, new == labels
    drawn = new[~is_mask & ~is_kept]
    assert abs(is_mask.mean() - (0.8 + 0.1 / SIZE)) < 0.01
    assert abs(is_kept.mean() - (0.1 + 0.1 / SIZE)) < 0.01
    assert abs(len(drawn) / len(new) - 0.1) < 0.01
    # random tokens come from the whole vocabulary alike, special tokens among them
    counts = np.bincount(drawn, minlength=SIZE)
    others = np.delete(counts, MASK)  # a drawn [MASK] counts as masked above
    assert others.min() > 0
    expected = len(drawn) / (SIZE - 1)
    assert ((others - expected) ** 2 / expected).sum() < SIZE + 6 * np.sqrt(2 * SIZE)


@pytest.mark.parametrize(("mask_prob", "random_prob", "share"), [(1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.5, 0.0, 0.5)])
def test_shares_of_masked_and_random_tokens_follow_policy(mask_prob: float, random_prob: float, share: float) -> None:
    ids, lengths, keys = make_batch([128] * 401)
    policy = MaskingConfig(0.15, mask_prob, random_prob)
    masked, positions, labels = mask_tokens(ids, lengths, keys, policy, VOCAB)
    assert abs((masked[positions] == MASK).mean() - share) < 0.02
    assert np.isin(masked[positions][masked[positions] != labels], MASK).all()


def test_every_position_is_masked_equally_often() -> None:
    ids, lengths, keys = make_batch([41] * 10_007)
    _, positions, _ = mask_tokens(ids, lengths, keys, PIECES, VOCAB)
    counts = np.bincount(positions % 41, minlength=41)
    assert counts[[0, 20, 40]].tolist() == [0, 0, 0]
    inside = np.delete(counts, [0, 20, 40])
    assert abs(inside / inside.mean() - 1).max() < 0.12


@pytest.mark.parametrize("policy", [PIECES, WORDS, NGRAMS])
def test_masks_do_not_depend_on_other_sequences_of_batch(policy: MaskingConfig) -> None:
    ids, lengths, keys = make_batch([23, 5, 61, 41, 3, 128])
    masked, positions, _ = mask_tokens(ids, lengths, keys, policy, VOCAB)
    together = cut(masked, lengths)
    starts = np.cumsum(lengths) - lengths
    for n, sequence in enumerate(cut(ids, lengths)):
        alone, places, _ = mask_tokens(sequence, lengths[n : n + 1], keys[n : n + 1], policy, VOCAB)
        inside = positions[(positions >= starts[n]) & (positions < starts[n] + lengths[n])]
        assert (alone == together[n]).all()
        assert places.tolist() == (inside - starts[n]).tolist()
    order = [4, 2, 0, 5, 1, 3]
    shuffled = np.concatenate([cut(ids, lengths)[n] for n in order])
    again, _, _ = mask_tokens(shuffled, lengths[order], keys[order], policy, VOCAB)
    assert (again == np.concatenate([together[n] for n in order])).all()


def words_of(ids: np.ndarray) -> list[list[int]]:
    """The places of each word: a piece and the ## pieces after it, within its segment."""
    words: list[list[int]] = []
    for place, token in enumerate(ids):
        if token in (CLS, SEP):
            words.append([])
        elif token >= FIRST_PIECE and words[-1]:
            words[-1].append(place)
        else:
            words.append([place])
    return [word for word in words if word]


@pytest.mark.parametrize(("tokens", "possible"), [
    ([10, 410, 411, 412, 413], [[]]),  # one word of five pieces, quota 1: nothing fits
    ([10, 410, 411, 20], [[4]]),  # only the second word fits
    ([10, 20], [[1], [2]]),
    ([410, 10, 411], [[1]]),  # a piece right after [CLS] starts a word of its own
    ([10, SEP, 410, 20, 411], [[1], [3]]),  # a piece right after [SEP] does not belong to the word before it
])  # fmt: skip
def test_whole_words_by_hand(tokens: list[int], possible: list[list[int]]) -> None:
    ids = np.array([CLS, *tokens, SEP])
    seen = []
    for key in range(40):
        _, positions, _ = mask_tokens(ids, np.array([len(ids)]), bits(np.array([key])), WORDS, VOCAB)
        seen.append(positions.tolist())
    assert sorted(map(list, {tuple(places) for places in seen})) == possible


def reference_spans(ids: np.ndarray, key: np.uint64, probability: float, max_ngram: int) -> list[list[list[int]]]:
    """The rule once more, with a draw at a time: the n-grams of one sequence in the order in which they are taken."""
    words, room = words_of(ids), max(1, round(len(ids) * probability))

    def draw(stream: Stream, word: int) -> float:
        return float(uniform(np.array([key]), stream, word)[0])

    taken: set[int] = set()
    spans = []
    for first in sorted(range(len(words)), key=lambda word: draw(Stream.MASK_CHOICE, word)):
        possible: list[list[list[int]]] = []
        for n in range(1, max_ngram + 1):
            ngram = words[first : first + n]
            places = [place for word in ngram for place in word]
            is_one_text = places == list(range(places[0], places[0] + len(places)))
            if len(ngram) == n and is_one_text and not taken.intersection(places):
                possible.append(ngram)
        left = draw(Stream.NGRAM_LENGTH, first) * sum(1 / len(ngram) for ngram in possible)
        for ngram in possible:
            left -= 1 / len(ngram)
            if left < 0:
                while ngram and sum(map(len, ngram)) > room:
                    ngram = ngram[:-1]
                break
        else:
            continue
        if ngram:
            spans.append(ngram)
            taken.update(place for word in ngram for place in word)
            room -= sum(map(len, ngram))
    return spans


@pytest.mark.parametrize("max_ngram", [1, 2, 3, 5])
@pytest.mark.parametrize("probability", [0.05, 0.15, 0.6])
def test_ngrams_equal_the_reference(max_ngram: int, probability: float) -> None:
    """Whole words one by one are n-grams of 1."""
    ids, lengths, keys = make_batch([3, 4, 5, 7, 11, 23, 47, 128, 131, 40, 41, 2], seed=max_ngram)
    policy = MaskingConfig(probability, 0.8, 0.1, "ngram", {"max_ngram": max_ngram})
    _, positions, _ = mask_tokens(ids, lengths, keys, policy, VOCAB)
    if max_ngram == 1:
        words = MaskingConfig(probability, 0.8, 0.1, "whole_word")
        assert (mask_tokens(ids, lengths, keys, words, VOCAB)[1] == positions).all()
    expected, start = [], 0
    for sequence, key in zip(cut(ids, lengths), keys, strict=True):
        spans = reference_spans(sequence, key, probability, max_ngram)
        expected += sorted(start + place for ngram in spans for word in ngram for place in word)
        start += len(sequence)
    assert positions.tolist() == expected
    assert len(positions) > 20


def test_ngrams_are_as_long_as_the_source_says() -> None:
    """p(n) is proportional to 1/n: 6/11, 3/11 and 2/11, seen where few tokens of a long text are chosen."""
    length, counts = 2_503, Counter[int]()
    ids = np.full(length * 151, FIRST_WORD)
    ids[::length], ids[length - 1 :: length] = CLS, SEP
    policy = MaskingConfig(0.02, 0.8, 0.1, "ngram", {"max_ngram": 3})
    _, positions, _ = mask_tokens(ids, np.full(151, length), bits(7, np.arange(151)), policy, VOCAB)
    assert len(positions) == 151 * 50
    for run in np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1):
        counts[len(run)] += 1
    shares = [counts[n] / counts.total() for n in (1, 2, 3)]
    # neighbours make one run, a quota ends an n-gram
    assert np.abs(np.array(shares) - [6 / 11, 3 / 11, 2 / 11]).max() < 0.02
    assert counts.total() > 3_500


@pytest.mark.parametrize(("policy", "message"), [
    ((0.15, 0.9, 0.2), "sum to at most 1"),
])  # fmt: skip
def test_impossible_masking_policies_are_refused(policy: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MaskingConfig(*policy)
