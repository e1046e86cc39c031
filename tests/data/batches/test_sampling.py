"""Sampling: the examples of a step, as a function of the step alone; the examples of an epoch on disk."""

import itertools
import os
import random
import shutil
import socket
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from preparing import write_split

from bertkit.base.batch import Batch
from bertkit.data.batches import sampling, segments
from bertkit.data.batches.google_instances import Instance
from bertkit.data.batches.instances import Instances, InstanceSampler, write_instances
from bertkit.data.batches.sampling import EpochCache, Sampler
from bertkit.data.batches.segments import Examples, concatenate, examples_of_epoch, select
from bertkit.data.corpus.prepared import SplitTokens
from bertkit.data.corpus.tokenizer import VocabFacts
from bertkit.data.corpus.word_rules import WordBorders
from bertkit.data.data_config import MaskingConfig, SegmentsConfig

VOCAB = VocabFacts(60_000, 0, 1, 2, 3, 4, WordBorders(np.zeros(60_000, bool), np.zeros(60_000, bool)))
MASKING = MaskingConfig(0.15, 0.8, 0.1)
Row = tuple[tuple[int, ...], ...]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> SplitTokens:
    """47 documents; every token has an id of its own, so that an example names itself."""
    folder = tmp_path_factory.mktemp("sampling") / "split"
    rng, ids = np.random.default_rng(0), itertools.count(5)
    lengths = (rng.integers(1, 14, rng.integers(3, 30)).tolist() for _ in range(47))
    return write_split(folder, ([[next(ids) for _ in range(n)] for n in document] for document in lengths))


def make_sampler(split: SplitTokens, kind: str = "pairs", seed: int = 0, next_sentence: str = "nsp", **more) -> Sampler:
    segments = SegmentsConfig(kind, 41, 0.1, next_sentence if kind == "pairs" else "none")
    return Sampler(split, VOCAB, segments, MASKING, seed, **more)


def rows(*batches: Batch) -> list[Row]:
    """Every sequence: its masked ids, token types, original ids and label."""
    results = []
    for batch in batches:
        originals = batch.input_ids.copy()
        originals[batch.masked_positions] = batch.masked_labels
        ends = np.cumsum(batch.sequence_lengths)
        pairs = batch.targets.get("next_sentence")
        labels = np.full(len(ends), -1) if pairs is None else pairs.labels
        for end, length, label in zip(ends, batch.sequence_lengths, labels, strict=True):
            here = slice(end - length, end)
            columns = (batch.input_ids[here], batch.token_type_ids[here], originals[here], [label])
            results.append(tuple(tuple(int(x) for x in column) for column in columns))
    return results


def test_the_same_positions_give_the_same_batch(split: SplitTokens) -> None:
    sampler = make_sampler(split)
    first = rows(sampler.take(np.arange(13, 29)))
    sampler.take(np.arange(400, 431))
    assert rows(sampler.take(np.arange(13, 29))) == first == rows(make_sampler(split).take(np.arange(13, 29)))
    assert rows(make_sampler(split, seed=1).take(np.arange(13, 29))) != first


@pytest.mark.parametrize("kind", ["pairs", "full_sentences", "instances"])
@pytest.mark.parametrize("step", [0, 3, 40])
def test_micro_batches_hold_the_same_examples_however_cut(
    split: SplitTokens, instances: Instances, kind: str, step: int
) -> None:
    sampler = InstanceSampler(instances, 0) if kind == "instances" else make_sampler(split, kind)
    whole = Counter(rows(*sampler.micro_batches(step, 12, [(0, 12)])))
    assert whole.total() == 12
    for ranges in ([(0, 6), (6, 12)], [(0, 5), (5, 7), (7, 12)], [(n, n + 1) for n in range(12)], [(6, 12), (0, 6)]):
        assert Counter(rows(*sampler.micro_batches(step, 12, ranges))) == whole


@pytest.mark.parametrize("kind", ["pairs", "instances"])
def test_the_examples_of_a_step_are_named(split: SplitTokens, instances: Instances, kind: str) -> None:
    """By epoch and number within the epoch, also if a batch continues into the next epoch."""
    sampler = InstanceSampler(instances, 3) if kind == "instances" else make_sampler(split, kind)
    length = sampler.epoch_length
    step = (length - 5) // 12
    names = sampler.examples(step, 12)
    assert len(names) == 12
    assert {epoch for epoch, _ in names} == {0, 1}
    every = [name for step in range(length // 12) for name in sampler.examples(step, 12)]
    assert len(set(every)) == len(every) == length // 12 * 12
    epoch, number = names[0]
    alone = sampler.in_order(number, number + 1)
    taken = sampler.take(np.array([step * 12]))
    assert epoch == 0
    assert rows(alone)[0][2] == rows(taken)[0][2]


def test_sequences_come_shortest_first(split: SplitTokens) -> None:
    lengths = make_sampler(split).take(np.arange(31)).sequence_lengths
    assert len(set(lengths.tolist())) > 3
    assert (np.diff(lengths) >= 0).all()


@pytest.mark.parametrize("kind", ["pairs", "full_sentences"])
def test_an_epoch_visits_every_example_once(split: SplitTokens, kind: str) -> None:
    sampler = make_sampler(split, kind)
    length = sampler.epoch_length
    assert length > 50
    in_order = rows(sampler.in_order(0, length))
    shuffled = rows(*(sampler.take(np.arange(first, min(first + 7, length))) for first in range(0, length, 7)))
    assert Counter(shuffled) == Counter(in_order)
    assert rows(*(sampler.take(np.array([n])) for n in range(length))) != in_order


def test_a_later_epoch_has_other_pairs_masks_and_order(split: SplitTokens) -> None:
    blocks = make_sampler(split, "full_sentences")
    length = blocks.epoch_length
    first, second = (rows(blocks.take(np.arange(length) + epoch * length)) for epoch in (0, 1))
    assert len(first) == len(second) == length
    assert not set(first) & set(second)
    pairs = make_sampler(split)
    length = pairs.epoch_length
    first, second = ({row[2] for row in rows(pairs.take(np.arange(length) + e * length))} for e in (0, 1))
    assert len(first & second) < 0.5 * len(first)


def test_masks_are_drawn_anew_each_epoch_for_the_same_tokens(tmp_path: Path) -> None:
    """One document of one block: every epoch holds the same example."""
    sampler = make_sampler(write_split(tmp_path / "split", [[list(range(5, 35))]]), "full_sentences")
    assert sampler.epoch_length == 1
    epochs = rows(*(sampler.take(np.array([n])) for n in range(5)))
    assert len({row[2] for row in epochs}) == 1
    assert len({row[0] for row in epochs}) == 5


def test_a_far_position_opens_only_the_epochs_it_needs(split: SplitTokens) -> None:
    plain = make_sampler(split)
    opened: list[int] = []

    def open_epoch(epoch: int) -> Examples:
        opened.append(epoch)
        return plain._compute_epoch(epoch)

    sampler = make_sampler(split, open_epoch=open_epoch)
    length = sampler.epoch_length
    batch = sampler.take(np.arange(4) + 5 * length)
    assert opened == [0, 5]
    straddling = sampler.take(np.arange(-3, 5) + 6 * length)
    assert opened == [0, 5, 6]
    assert len(straddling.sequence_lengths) == 8
    one_by_one = rows(*(make_sampler(split).take(np.array([n + 6 * length])) for n in range(-3, 5)))
    assert Counter(rows(straddling)) == Counter(one_by_one)
    assert rows(batch) == rows(plain.take(np.arange(4) + 5 * length))


def test_longer_and_shorter_epochs_keep_the_length_of_the_first(split: SplitTokens) -> None:
    plain = make_sampler(split)
    whole = plain._compute_epoch(0)
    length = len(whole)

    def open_epoch(epoch: int) -> Examples:
        return select(whole, np.arange({0: length - 7, 1: length, 2: length - 17}[epoch]))

    sampler = make_sampler(split, open_epoch=open_epoch)
    assert sampler.epoch_length == length - 7
    for epoch, distinct in ((0, length - 7), (1, length - 7), (2, length - 17)):
        taken = rows(sampler.take(np.arange(length - 7) + epoch * (length - 7)))
        assert len(taken) == length - 7
        assert len(set(taken)) == distinct


# ---- stored instances


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Instances:
    """29 instances; the first token names each."""
    folder = tmp_path_factory.mktemp("stored") / "instances"
    made = [Instance([100 + n, *range(3 + n % 5)], 2, n % 3 == 0, [1], [200 + n]) for n in range(29)]
    assert len(list(write_instances(folder, iter(made), random.Random(0), 60_000))) == 29
    return Instances(folder, 60_000)


def names(batch: Batch) -> list[int]:
    return batch.input_ids[np.cumsum(batch.sequence_lengths) - batch.sequence_lengths].tolist()


def test_every_instance_once_an_epoch_in_another_order(instances: Instances) -> None:
    sampler = InstanceSampler(instances, 3)
    assert sampler.epoch_length == 29
    epochs = [[names(sampler.take(np.array([n + 29 * e])))[0] for n in range(29)] for e in range(3)]
    assert sampler.mean_next_sentence_label(7) == pytest.approx(
        sampler.in_order(0, 7).targets["next_sentence"].labels.mean()
    )
    assert all(sorted(epoch) == list(range(100, 129)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert names(sampler.in_order(0, 29)) not in epochs
    other_seed = InstanceSampler(instances, 4)
    assert [names(other_seed.take(np.array([n])))[0] for n in range(29)] != epochs[0]
    straddling = sampler.take(np.arange(25, 33))
    assert sorted(names(straddling)) == sorted([*epochs[0][25:], *epochs[1][:4]])
    assert (np.diff(straddling.sequence_lengths) >= 0).all()


@pytest.mark.parametrize(("next_sentence", "least", "most"), [("nsp", 0.5, 0.65), ("sop", 0.5, 0.65), ("none", 0, 0)])
def test_pairs_with_and_without_labels(split: SplitTokens, next_sentence: str, least: float, most: float) -> None:
    sampler = make_sampler(split, next_sentence=next_sentence)
    size = sampler.epoch_length
    for batch in (sampler.take(np.arange(size)), sampler.in_order(0, size)):
        types = np.split(batch.token_type_ids, np.cumsum(batch.sequence_lengths)[:-1])
        assert all(set(of_pair.tolist()) == {0, 1} for of_pair in types)
        assert list(batch.loss_counts) == (["mlm"] if next_sentence == "none" else ["mlm", "nsp"])
        assert ("next_sentence" not in batch.targets) == (next_sentence == "none")
        if next_sentence != "none":
            labels = batch.targets["next_sentence"].labels
            assert sampler.mean_next_sentence_label(size) == pytest.approx(labels.mean())
            assert least <= labels.mean() < most


# ---- examples of an epoch on disk


PAIRS, BLOCKS = SegmentsConfig("pairs", 23, 0.1, "nsp"), SegmentsConfig("full_sentences", 23, 0.0, "none")
SWAPPED, IN_ORDER = SegmentsConfig("pairs", 23, 0.1, "sop"), SegmentsConfig("pairs", 23, 0.1, "none")


@pytest.fixture
def short_split(tmp_path: Path) -> SplitTokens:
    rng = np.random.default_rng(0)
    lengths = (rng.integers(1, 14, rng.integers(1, 9)).tolist() for _ in range(31))
    return write_split(tmp_path / "split", ([[7] * length for length in document] for document in lengths), 101)


def same(left: Examples, right: Examples) -> bool:
    names = ("first_segment", "segment_start", "segment_length", "next_sentence_labels")
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in names) and (
        (left.next_sentence_labels is None) == (right.next_sentence_labels is None)
    )


@pytest.mark.parametrize("config", [PAIRS, BLOCKS, SWAPPED, IN_ORDER])
def test_epoch_cache_holds_computed_examples(
    short_split: SplitTokens, tmp_path: Path, config: SegmentsConfig, monkeypatch
) -> None:
    monkeypatch.setattr(segments, "DOCUMENTS_AT_ONCE", 5)  # several groups
    cache = EpochCache(tmp_path / "cache", short_split, config, seed=3)
    for epoch in (0, 1):
        computed = concatenate(list(examples_of_epoch(short_split.sentences, short_split.documents, config, 3, epoch)))
        assert len(computed) > 20
        assert same(cache.open(epoch), computed)
        assert same(cache.open(epoch), computed)
    assert not same(cache.open(0), cache.open(1))


def test_an_epoch_is_written_once(short_split: SplitTokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = EpochCache(tmp_path / "cache", short_split, PAIRS, seed=3).open(0)
    monkeypatch.setattr(EpochCache, "_write", lambda *_: pytest.fail("written again"))
    assert same(EpochCache(tmp_path / "cache", short_split, PAIRS, seed=3).open(0), first)


@pytest.mark.parametrize(
    ("config", "seed"), [(PAIRS, 4), (SegmentsConfig("pairs", 29, 0.1, "nsp"), 3), (BLOCKS, 3), (SWAPPED, 3)]
)
def test_epoch_cache_has_files_for_each_setting(
    short_split: SplitTokens, tmp_path: Path, config: SegmentsConfig, seed: int
) -> None:
    first = EpochCache(tmp_path / "cache", short_split, PAIRS, seed=3).open(0)
    other = EpochCache(tmp_path / "cache", short_split, config, seed=seed).open(0)
    assert not same(first, other)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_epoch_cache_keeps_first_and_last_two_epochs(short_split: SplitTokens, tmp_path: Path) -> None:
    cache = EpochCache(tmp_path / "cache", short_split, PAIRS, seed=3)
    for epoch in range(7):
        cache.open(epoch)
    kept = sorted(path.name[:11] for path in (tmp_path / "cache").iterdir())
    assert kept == ["epoch-00000", "epoch-00005", "epoch-00006"]


def test_epoch_cache_is_shared_by_processes_and_ignores_half_written_files(
    short_split: SplitTokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes second takes the files of the first; half-written files of a dead process are never opened."""
    cache = EpochCache(tmp_path / "cache", short_split, PAIRS, seed=3)
    write = EpochCache._write

    def meanwhile(self: EpochCache, directory: Path, epoch: int) -> None:
        write(self, directory, epoch)
        shutil.copytree(directory, self.directory / f"{self._name(epoch)}-{sampling._hash_columns(directory)}")

    dead = cache.directory / f"{cache._name(0)}.{socket.gethostname()}-{os.getpid()}.partial"
    dead.mkdir(parents=True)
    (dead / "first_piece").write_bytes(b"half")
    monkeypatch.setattr(EpochCache, "_write", meanwhile)
    examples = cache.open(0)
    assert same(
        examples, concatenate(list(examples_of_epoch(short_split.sentences, short_split.documents, PAIRS, 3, 0)))
    )
    assert list((tmp_path / "cache").iterdir()) == cache._find(0) != []
