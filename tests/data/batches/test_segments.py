"""Segment pairs beside the original algorithm written down once more, and blocks of full sentences by hand."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.base.errors import InputError
from bertkit.data.batches import segments
from bertkit.data.batches.keyed_random import Stream, bits, uniform
from bertkit.data.batches.segments import Examples, concatenate, document_pairs, examples_of_epoch, full_sentence_blocks
from bertkit.data.data_config import SegmentsConfig

Lengths = list[list[int]]  # of the sentences of each document


def offsets(lengths: Lengths) -> tuple[np.ndarray, np.ndarray]:
    sentences = np.cumsum([0, *(length for document in lengths for length in document)])
    return sentences, np.cumsum([0, *map(len, lengths)])


def pairs_of(lengths: Lengths, max_seq_length: int, short=0.0, seed=0, epoch=0, chosen=None, objective="nsp"):
    sentences, documents = offsets(lengths)
    chosen = np.arange(len(lengths)) if chosen is None else np.array(chosen)
    config = SegmentsConfig("pairs", max_seq_length, short, objective)
    return document_pairs(sentences, documents, chosen, config, seed, epoch)


def as_rows(examples: Examples) -> list[tuple[int, int, int, int, int]]:
    """(A's start, A's length, B's start, B's length, is_random_next) of each pair."""
    assert examples.next_sentence_labels is not None
    starts, lengths = examples.segment_start.reshape(-1, 2), examples.segment_length.reshape(-1, 2)
    assert examples.first_segment.tolist() == list(range(0, 2 * len(examples) + 1, 2))
    columns = (starts[:, 0], lengths[:, 0], starts[:, 1], lengths[:, 1], examples.next_sentence_labels)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def reference_pairs(
    lengths: Lengths, index: int, max_seq_length: int, short: float, seed: int, epoch=0, objective="nsp"
):
    """The originals' algorithm, token by token, with one keyed draw at a time: BERT's, ALBERT's, or neither's label."""
    token, text = 0, []  # text: documents of sentences of tokens, each token its position
    for document in lengths:
        text.append([])
        for length in document:
            text[-1].append(list(range(token, token + length)))
            token += length

    def draw(stream: Stream, *key: int) -> float:
        return float(uniform(seed, stream, epoch, index, *key)[0])

    def randint(first: int, last: int, stream: Stream, *key: int) -> int:
        return first + int(draw(stream, *key) * (last - first + 1))

    def is_front(stream: Stream, turn: int, toss: int) -> bool:
        word = int(bits(int(bits(seed, stream, epoch, index, turn)[0]), toss // 64)[0])
        return bool(word >> (63 - toss % 64) & 1)

    max_num_tokens = max_seq_length - 3
    target = max_num_tokens
    if draw(Stream.TARGET_IS_SHORT) < short:
        target = randint(2, max_num_tokens, Stream.TARGET_LENGTH)
    document = text[index]
    rows, chunk, chunk_tokens, turn, i = [], [], 0, 0, 0
    while i < len(document):
        chunk.append(document[i])
        chunk_tokens += len(document[i])
        if i == len(document) - 1 or chunk_tokens >= target:
            a_end = 1 if len(chunk) == 1 else randint(1, len(chunk) - 1, Stream.SPLIT_POINT, turn)
            a = [t for sentence in chunk[:a_end] for t in sentence]
            b: list[int] = []
            label = 1
            if len(chunk) == 1 or (objective == "nsp" and draw(Stream.IS_RANDOM_NEXT, turn) < 0.5):
                other = index
                if len(text) > 1:
                    others = [n for n in range(len(text)) if n != index]
                    other = others[randint(0, len(text) - 2, Stream.RANDOM_DOCUMENT, turn)]
                first = randint(0, len(text[other]) - 1, Stream.RANDOM_SENTENCE, turn)
                for sentence in text[other][first:]:
                    b += sentence
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - a_end
            else:
                b, label = [t for sentence in chunk[a_end:] for t in sentence], 0
                if objective == "sop" and draw(Stream.IS_SWAPPED, turn) < 0.5:
                    a, b, label = b, a, 1
            tosses: Counter[Stream] = Counter()
            while len(a) + len(b) > max_num_tokens:
                longer, stream = (a, Stream.TRUNCATE_A) if len(a) > len(b) else (b, Stream.TRUNCATE_B)
                longer.pop(0 if is_front(stream, turn, tosses[stream]) else -1)
                tosses[stream] += 1
            assert a
            assert b
            rows.append((a[0], len(a), b[0], len(b), label))
            chunk, chunk_tokens, turn = [], 0, turn + 1
        i += 1
    return rows


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.lists(st.integers(1, 23), min_size=1, max_size=12), min_size=1, max_size=5),
    max_seq_length=st.integers(8, 41),
    short=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**31),
    epoch=st.integers(0, 5),
    objective=st.sampled_from(["nsp", "sop", "none"]),
)
def test_pairs_equal_the_reference(
    lengths: Lengths, max_seq_length: int, short: float, seed: int, epoch: int, objective: str
) -> None:
    drawn = (max_seq_length, short, seed, epoch, objective)
    expected = [row for index in range(len(lengths)) for row in reference_pairs(lengths, index, *drawn)]
    assert as_rows(pairs_of(lengths, max_seq_length, short, seed, epoch, objective=objective)) == expected


@pytest.mark.parametrize("lengths", [[[1]], [[300]], [[300], [1]], [[1] * 50], [[200, 1, 200, 1], [150, 150]]])
def test_odd_documents_equal_the_reference(lengths: Lengths) -> None:
    """One token, one sentence, sentences longer than a pair (more than 64 tokens cut), a single document."""
    for seed, objective in itertools.product(range(2), ("nsp", "sop", "none")):
        settings = (19, 0.5, seed, 0)
        expected = [row for n in range(len(lengths)) for row in reference_pairs(lengths, n, *settings, objective)]
        assert as_rows(pairs_of(lengths, *settings, objective=objective)) == expected


def test_pairs_of_letters_by_hand() -> None:
    """Two documents, ab cd ef and XYZ: every pair that can come from the first, with its label, and no other."""
    letters = "abcdefXYZ"
    seen = Counter()
    for seed in range(400):
        for a, a_length, b, b_length, label in as_rows(pairs_of([[2, 2, 2], [3]], 9, seed=seed, chosen=[0])):
            seen[letters[a : a + a_length], letters[b : b + b_length], label] += 1
    # the target is 6, so the first chunk is ab cd ef; it is split after ab or after cd
    assert set(seen) == {
        ("ab", "cdef", 0), ("abcd", "ef", 0),  # actual next: all that is left of the chunk
        ("ab", "XYZ", 1),  # random next; cd and ef are put back
        ("abc", "XYZ", 1), ("bcd", "XYZ", 1),  # 7 tokens: the longer side loses one, at its front or back; ef is put back
        ("cd", "ef", 0), ("cd", "XYZ", 1),  # what was put back is the next chunk
        ("ef", "XYZ", 1),  # a last sentence alone has no next
    }  # fmt: skip
    first = seen["ab", "cdef", 0] + seen["abcd", "ef", 0]
    assert 160 < first < 240


IN_ORDER = {("ab", "cdef", 0), ("abcd", "ef", 0)}  # the whole document is a chunk, split after ab or after cd
SWAPPED = {("cdef", "ab", 1), ("ef", "abcd", 1)}


@pytest.mark.parametrize(("objective", "possible"), [("sop", IN_ORDER | SWAPPED), ("none", IN_ORDER)])
def test_pairs_in_order_and_swapped_by_hand(objective: str, possible: set[tuple[str, str, int]]) -> None:
    """Ab cd ef and, in another document, xyz, a sentence alone, whose B is then random, with label 1."""
    seen = Counter()
    for seed in range(400):
        rows = as_rows(pairs_of([[2, 2, 2], [3]], 9, seed=seed, objective=objective))
        texts = [("abcdefxyz"[a : a + a_length], "abcdefxyz"[b : b + b_length]) for a, a_length, b, b_length, _ in rows]
        assert len(rows) == 2
        seen[*texts[0], rows[0][4]] += 1
        assert texts[1] in {("xyz", "abc"), ("xyz", "bcd"), ("xyz", "cde"), ("xyz", "def"), ("xyz", "ef")}
        assert rows[1][4] == 1
    assert set(seen) == possible
    expected = 400 / len(possible)
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in seen.values())


@pytest.fixture(scope="module")
def corpus() -> Lengths:
    rng = np.random.default_rng(0)
    return [rng.integers(1, 40, rng.integers(2, 60)).tolist() for _ in range(997)]


@pytest.mark.parametrize("next_sentence", ["nsp", "sop"])
def test_blocks_have_no_next_sentence(next_sentence: str) -> None:
    message = f"segments.next_sentence={next_sentence}: segments=full_sentences has no pairs"
    with pytest.raises(InputError, match=message):
        SegmentsConfig("full_sentences", 64, 0.0, next_sentence)


def test_pairs_do_not_depend_on_chunks_of_documents(corpus: Lengths, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = corpus[:67]
    whole = as_rows(pairs_of(lengths, 64, 0.1, seed=3, epoch=2))
    one_by_one = [row for n in range(67) for row in as_rows(pairs_of(lengths, 64, 0.1, seed=3, epoch=2, chosen=[n]))]
    assert whole == one_by_one
    monkeypatch.setattr(segments, "DOCUMENTS_AT_ONCE", 10)
    parts = list(examples_of_epoch(*offsets(lengths), SegmentsConfig("pairs", 64, 0.1, "nsp"), 3, 2))
    assert len(parts) == 7
    assert as_rows(concatenate(parts)) == whole


# ---- blocks of full sentences


def blocks_of(lengths: Lengths, max_seq_length: int, epoch: int = 0) -> list[list[tuple[int, int]]]:
    examples = concatenate(list(full_sentence_blocks(*offsets(lengths), max_seq_length, 0, epoch)))
    assert examples.next_sentence_labels is None
    segments = list(zip(examples.segment_start.tolist(), examples.segment_length.tolist(), strict=True))
    starts = examples.first_segment.tolist()
    return [segments[first:last] for first, last in itertools.pairwise(starts)]


@pytest.mark.parametrize(("lengths", "blocks"), [
    ([[8]], [[(0, 8)]]),  # capacity 8: a sentence that fills it
    ([[3, 3, 3]], [[(0, 6)], [(6, 3)]]),  # whole sentences
    ([[4, 4, 4]], [[(0, 8)], [(8, 4)]]),
    ([[9]], [[(0, 8)], [(8, 1)]]),  # longer than a block: cut
    ([[2, 19, 3]], [[(0, 2)], [(2, 8)], [(10, 8)], [(18, 6)]]),  # the rest is joined to the next sentence
    ([[1, 1, 1, 1, 1, 1, 1, 1, 1]], [[(0, 8)], [(8, 1)]]),
])  # fmt: skip
def test_blocks_of_one_document_by_hand(lengths: Lengths, blocks: list[list[tuple[int, int]]]) -> None:
    assert blocks_of(lengths, 10) == blocks


@pytest.mark.parametrize(("lengths", "sizes"), [
    ([[4], [3]], [[4, 3]]),  # 4 + separator + 3 = 8
    ([[4], [4]], [[4], [4]]),  # 4 + separator + 4 = 9
    ([[7], [7]], [[7], [7]]),
    ([[2], [2], [2]], [[2, 2, 2]]),  # 2 + 1 + 2 + 1 + 2 = 8
    ([[1], [1], [1], [1], [1]], [[1, 1, 1, 1], [1]]),
])  # fmt: skip
def test_a_separator_between_documents_takes_room(lengths: Lengths, sizes: list[list[int]]) -> None:
    """Documents of one size, so that their order does not matter."""
    got = [[length for _, length in block] for block in blocks_of(lengths, 10)]
    assert got in (sizes, [block[::-1] for block in sizes])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.lists(st.integers(1, 15), min_size=1, max_size=9), min_size=1, max_size=9),
    max_seq_length=st.integers(8, 31),
    epoch=st.integers(0, 3),
)
def test_blocks_hold_every_token_once_and_cut_only_long_sentences(
    lengths: Lengths, max_seq_length: int, epoch: int
) -> None:
    sentences, documents = offsets(lengths)
    blocks = blocks_of(lengths, max_seq_length, epoch)
    tokens = [t for block in blocks for start, length in block for t in range(start, start + length)]
    assert sorted(tokens) == list(range(sentences[-1]))
    capacity = max_seq_length - 2
    edges = set(sentences[documents].tolist())
    for block in blocks:
        assert block
        assert 1 + sum(length + 1 for _, length in block) <= max_seq_length
        for start, length in block:
            assert length >= 1
            inside = [int(d) for d in edges if start < d < start + length]
            assert not inside  # a segment is of one document
            for cut in (start, start + length):
                if cut not in sentences:
                    sentence = int(np.searchsorted(sentences, cut)) - 1
                    assert sentences[sentence + 1] - sentences[sentence] > capacity


def test_blocks_come_in_a_new_order_each_epoch_and_in_parts() -> None:
    lengths = [[3, 2]] * 41
    orders = [tuple(segment[0] for block in blocks_of(lengths, 12, epoch) for segment in block) for epoch in range(3)]
    assert len(set(orders)) == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "DOCUMENTS_AT_ONCE", 4)
        patch.setattr(segments, "BLOCKS_AT_ONCE", 3)
        parts = list(full_sentence_blocks(*offsets(lengths), 12, 0, 1))
        in_parts = blocks_of(lengths, 12, 1)
    assert len(parts) > 5
    assert in_parts == blocks_of(lengths, 12, 1)
