"""Google's instances: the same as the original's, draw for draw, and the streaming pairs have their statistics."""

import gzip
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import real_data
from preparing import write_split

from bertkit.data.batches.google_instances import (
    Instance,
    SplitDocuments,
    document_pairs,
    mask_instance,
    shuffled_order,
    training_instances,
    truncate_pair,
)
from bertkit.data.batches.sampling import Sampler
from bertkit.data.corpus.prepared import SplitTokens
from bertkit.data.corpus.tokenizer import Tokenizer, VocabFacts, load_tokenizer
from bertkit.data.corpus.word_rules import WordBorders
from bertkit.data.data_config import CorpusConfig, InstancesConfig, MaskingConfig, SegmentsConfig
from bertkit.data.texts.documents import open_corpus

PIECES, WORDS = MaskingConfig(0.15, 0.8, 0.1), MaskingConfig(0.15, 0.8, 0.1, "whole_word")
VOCAB = VocabFacts(
    1009, 0, 1, 2, 3, 4, WordBorders(np.arange(1009) >= 500, np.zeros(1009, bool))
)  # ids of 500 and more are `##` pieces


class Script(random.Random):
    """Returns draws that are written down in advance, and refuses any other: (method, arguments, result)."""

    def __init__(self, *draws: tuple[Any, ...]) -> None:
        super().__init__(0)
        self.draws = list(draws)

    def _next(self, *asked: Any) -> Any:
        *expected, result = self.draws.pop(0)
        assert list(asked) == expected, f"asked for {asked}, expected {expected}"
        return result

    def random(self) -> float:
        return float(self._next("random"))

    def randint(self, a: int, b: int) -> int:
        return int(self._next("randint", a, b))

    def shuffle(self, x: Any) -> None:
        order = self._next("shuffle", len(x))
        x[:] = [x[index] for index in order]


def settings(max_seq_length: int = 13, short: float = 0.1, dupe_factor: int = 1, most: int = 20) -> InstancesConfig:
    return InstancesConfig("google", max_seq_length, short, dupe_factor, most)


# ---- by hand: which draws are made, in which order, and what they lead to

FIVE = [[11, 12, 13], [21, 22, 23, 24], [31, 32, 33, 34, 35], [41, 42], [51, 52, 53]]
OTHER = [[61, 62, 63, 64], [71, 72, 73], [81, 82]]

BY_HAND = {
    "a chunk of three; B follows; the last two sentences make another": (
        [FIVE, OTHER],
        [
            ("random", 0.1),  # not below 0.1: the full target of 10
            ("randint", 1, 2, 2),
            ("random", 0.5),  # not below 0.5: B follows
            ("random", 0.49),  # 7 + 5 tokens: A is longer, its front
            ("random", 0.5),  # 6 + 5: A again, its back
            ("randint", 1, 1, 1),
            ("random", 0.9),
        ],
        [([12, 13, 21, 22, 23], [31, 32, 33, 34, 35], False), ([41, 42], [51, 52, 53], False)],
    ),
    "B is random: two sentences are put back, the first document is drawn twice": (
        [FIVE[:3], OTHER],
        [
            ("random", 0.9),
            ("randint", 1, 2, 1),
            ("random", 0.49),
            ("randint", 0, 1, 0),
            ("randint", 0, 1, 1),
            ("randint", 0, 2, 0),  # 4 + 3 tokens make the 7 that are wanted
            ("randint", 1, 1, 1),  # the two sentences again, as a chunk of their own
            ("random", 0.7),
        ],
        [([11, 12, 13], [61, 62, 63, 64, 71, 72, 73], True), ([21, 22, 23, 24], [31, 32, 33, 34, 35], False)],
    ),
    "a single sentence has no split and no coin; ten draws of itself": (
        [[[11, 12]], OTHER],
        [("random", 0.9), *[("randint", 0, 1, 0)] * 10, ("randint", 0, 0, 0)],
        [([11, 12], [11, 12], True)],
    ),
    "a short target, once for the document": (
        [FIVE[:2], OTHER],
        [("random", 0.05), *(("randint", *draw) for draw in ((2, 10, 3), (0, 1, 1), (0, 2, 2), (0, 1, 1), (0, 2, 1)))],
        [([11, 12, 13], [81, 82], True), ([21, 22, 23, 24], [71, 72, 73], True)],
    ),
    "a sentence as long as the pair: B is wanted no tokens and still has one sentence": (
        [[list(range(100, 112))], OTHER],
        [("random", 0.9), ("randint", 0, 1, 1), ("randint", 0, 2, 2), *[("random", 0.9)] * 4],
        [(list(range(100, 108)), [81, 82], True)],
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_pairs_are_as_by_hand(name: str) -> None:
    documents, draws, expected = BY_HAND[name]
    rng = Script(*draws)
    assert list(document_pairs(documents, [0, 1], 0, settings(), rng)) == expected
    assert rng.draws == []


def test_a_pair_is_cut_by_hand() -> None:
    a, b = [1, 2, 3, 4], [5, 6, 7, 8]
    truncate_pair(a, b, 5, Script(*[("random", draw) for draw in (0.4, 0.6, 0.6)]))
    assert (a, b) == ([1, 2, 3], [6, 7])  # of B the front, as they are equal; of A the back; of B the back


# [CLS] 11 ##501 12 [SEP] ##502 13 [SEP]: B begins inside a word
IDS = [2, 11, 501, 12, 3, 502, 13, 3]
MASKS = {
    "pieces": (
        PIECES, 20, IDS,
        [("shuffle", 5, [3, 0, 1, 2, 4]), ("random", 0.79)],
        [2, 11, 501, 12, 3, 4, 13, 3], [5],
    ),
    "the piece after [SEP] belongs to the word before it; a word too long is skipped": (
        WORDS, 20, IDS,
        [("shuffle", 3, [0, 1, 2]), ("random", 0.8), ("random", 0.5), ("randint", 0, 1008, 999)],
        [2, 11, 501, 12, 3, 502, 999, 3], [6],
    ),
    "it stays: no token is drawn": (
        PIECES, 20, IDS,
        [("shuffle", 5, [0, 1, 2, 3, 4]), ("random", 0.8), ("random", 0.49)],
        IDS, [1],
    ),
    "8.4 tokens of 56 are rounded to 8; no more than the limit": (
        PIECES, 3, [2, *range(10, 64), 3],
        [("shuffle", 54, [53, 0, 7, *range(1, 7), *range(8, 53)]), *[("random", 0.1)] * 3],
        [2, 4, *range(11, 17), 4, *range(18, 63), 4, 3], [1, 8, 54],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_as_by_hand(name: str) -> None:
    masking, most, ids, draws, masked, positions = MASKS[name]
    rng = Script(*draws)
    assert mask_instance(ids, settings(64, most=most), masking, VOCAB, rng) == (masked, positions)
    assert rng.draws == []


# ---- beside the original


@pytest.fixture(scope="session")
def uncased() -> Tokenizer:
    return load_tokenizer(real_data("vocab", "bert-base-uncased", "vocab.txt"), rules="google")


@pytest.fixture(scope="session")
def split_of(uncased: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SplitTokens]:
    made: dict[str, SplitTokens] = {}

    def split_of(name: str) -> SplitTokens:
        if name not in made:
            path = str(real_data(*name.split("/")))
            text = CorpusConfig("files", path, "text", "text", "lines", "utf-8", None, "train")
            documents = ([*filter(None, uncased.encode_document(d))] for d in open_corpus(text, join_files=True))
            folder = tmp_path_factory.mktemp("google") / "split"
            made[name] = write_split(folder, filter(None, documents), 1 << 27, uncased.vocab_size)
        return made[name]

    return split_of


def as_line(instance: Instance, vocab: list[str]) -> str:
    row = {
        "tokens": [vocab[token] for token in instance.input_ids],
        "segment_ids": [int(n >= instance.b_start) for n in range(len(instance.input_ids))],
        "is_random_next": instance.is_random_next,
        "masked_lm_positions": instance.masked_positions,
        "masked_lm_labels": [vocab[token] for token in instance.masked_labels],
    }
    return json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n"


def index() -> list[dict[str, Any]]:
    path = Path(__file__).resolve().parents[4] / "shared" / "data" / "google_instances" / "index.json"
    return json.loads(path.read_text()) if path.exists() else []


def name_of(row: dict[str, Any]) -> str:
    words = "words" if row["whole_word"] else "pieces"
    return f"{Path(row['input']).stem}-{row['seed']}-{words}-{row['dupe_factor']}-{row['max_seq_length']}"


def test_all_28_reference_sets_are_compared() -> None:
    real_data("google_instances")
    assert len(index()) == 28
    assert len({name_of(row) for row in index()}) == 28


@pytest.mark.parametrize("row", index(), ids=name_of)
def test_instances_equal_the_reference(
    row: dict[str, Any], uncased: Tokenizer, split_of: Callable[[str], SplitTokens]
) -> None:
    rng = random.Random(row["seed"])
    config = settings(row["max_seq_length"], 0.1, row["dupe_factor"], row["max_predictions_per_seq"])
    masking = WORDS if row["whole_word"] else PIECES
    documents = SplitDocuments(split_of(row["input"]))
    drawn = list(training_instances(documents, config, masking, uncased.facts, rng))
    lines = [as_line(drawn[number], uncased.vocab) for number in shuffled_order(len(drawn), rng)]
    if row["file"] is not None:
        with gzip.open(real_data("google_instances", row["file"]), "rt", encoding="utf-8") as file:
            for ours, theirs in zip(lines, file, strict=True):
                assert ours == theirs
    assert len(lines) == row["instances"]
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == row["sha256"]


# ---- the streaming pairs beside them


def statistics(lengths: np.ndarray, a_share: np.ndarray, is_random: np.ndarray, masked: np.ndarray) -> dict[str, float]:
    """Shares and quantiles, each in parts of one."""
    full = 128
    return {
        "random next": is_random.mean(),
        "full length": (lengths == full).mean(),
        "shorter than half": (lengths < full // 2).mean(),
        **{f"length, {q} %": np.percentile(lengths, q) / full for q in (5, 10, 25, 50)},
        "mean length": lengths.mean() / full,
        **{f"share of A, {q} %": np.percentile(a_share, q) for q in (10, 25, 50, 75, 90)},
        "mean share of A": a_share.mean(),
        "A of a random pair": a_share[is_random == 1].mean(),
        "A of an actual pair": a_share[is_random == 0].mean(),
        "predictions": masked.mean() / 19,
    }


def kinds(input_ids: np.ndarray, positions: np.ndarray, labels: np.ndarray, mask: int) -> tuple[float, float]:
    """The share of [MASK] and of unchanged tokens among the predictions."""
    result = input_ids[positions]
    return float((result == mask).mean()), float((result == labels).mean())


@pytest.fixture(scope="module")
def short_documents(uncased: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> SplitTokens:
    """A book cut into many documents: the target length is drawn once for each of them."""
    lines = real_data("text", "books_en", "part_03.txt").read_text(encoding="utf-8").splitlines()
    ids = [sentence for sentence in uncased.encode_document([line for line in lines if line]) if sentence]
    documents = (ids[first : first + 17] for first in range(0, len(ids), 17))
    return write_split(tmp_path_factory.mktemp("google") / "split", documents, 1 << 27, uncased.vocab_size)


TOLERANCE = 0.015  # of shares, and of numbers by ratio; the largest difference measured is 0.009


@pytest.mark.parametrize("short", [0.1, *(pytest.param(short, marks=pytest.mark.slow) for short in (0.0, 1.0))])
def test_streaming_pairs_have_the_statistics_of_googles(
    uncased: Tokenizer, short_documents: SplitTokens, short: float
) -> None:
    split, passes, facts = short_documents, 3, uncased.facts
    documents = SplitDocuments(split)
    theirs = list(training_instances(documents, settings(128, short, passes), PIECES, facts, random.Random(12345)))
    lengths = np.array([len(instance.input_ids) for instance in theirs])
    google = statistics(
        lengths,
        np.array([instance.b_start - 2 for instance in theirs]) / (lengths - 3),
        np.array([instance.is_random_next for instance in theirs]),
        np.array([len(instance.masked_labels) for instance in theirs]),
    )
    flat = np.concatenate([instance.input_ids for instance in theirs])
    starts = np.cumsum(lengths) - lengths
    positions = np.concatenate([np.add(i.masked_positions, start) for i, start in zip(theirs, starts, strict=True)])
    google_kinds = kinds(flat, positions, np.concatenate([i.masked_labels for i in theirs]), facts.mask)

    epochs, ours_kinds = [], []
    for epoch in range(passes):
        sampler = Sampler(split, facts, SegmentsConfig("pairs", 128, short, "nsp"), PIECES, seed=epoch)
        batch = sampler.in_order(0, sampler.epoch_length)
        first = np.cumsum(batch.sequence_lengths) - batch.sequence_lengths
        num_b = np.add.reduceat(batch.token_type_ids, first) - 1
        share = (batch.sequence_lengths - 3 - num_b) / (batch.sequence_lengths - 3)
        sequence = np.repeat(np.arange(len(first)), batch.sequence_lengths)
        masked = np.bincount(sequence[batch.masked_positions], minlength=len(first))
        epochs.append((batch.sequence_lengths, share, batch.targets["next_sentence"].labels, masked))
        ours_kinds.append(kinds(batch.input_ids, batch.masked_positions, batch.masked_labels, facts.mask))
    columns = [np.concatenate(column) for column in zip(*epochs, strict=True)]
    ours = statistics(*columns)

    assert min(len(lengths), len(columns[0])) > 7_000
    assert len(columns[0]) / len(lengths) == pytest.approx(1, abs=TOLERANCE)
    assert {name: (google[name], ours[name]) for name in google if abs(google[name] - ours[name]) > TOLERANCE} == {}
    assert google_kinds == pytest.approx((0.8, 0.1), abs=0.01)
    assert np.mean(ours_kinds, axis=0) == pytest.approx((0.8, 0.1), abs=0.01)
