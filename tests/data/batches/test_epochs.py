"""The examples of an epoch on disk are those computed in memory."""

import os
import socket
from pathlib import Path

import numpy as np
import pytest
from preparing import write_split

from bertkit.data.batches import segments
from bertkit.data.batches.sampling import EpochCache
from bertkit.data.batches.segments import Examples, concatenate, examples_of_epoch
from bertkit.data.corpus.prepared import Split
from bertkit.data.data_config import SegmentsConfig

PAIRS, BLOCKS = SegmentsConfig("pairs", 23, 0.1, "nsp"), SegmentsConfig("full_sentences", 23, 0.0, "none")
SWAPPED, IN_ORDER = SegmentsConfig("pairs", 23, 0.1, "sop"), SegmentsConfig("pairs", 23, 0.1, "none")


@pytest.fixture
def split(tmp_path: Path) -> Split:
    rng = np.random.default_rng(0)
    lengths = (rng.integers(1, 14, rng.integers(1, 9)).tolist() for _ in range(31))
    return write_split(tmp_path / "split", ([[7] * length for length in document] for document in lengths), 101)


def same(left: Examples, right: Examples) -> bool:
    names = ("first_segment", "segment_start", "segment_length", "is_random_next")
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in names) and (
        (left.is_random_next is None) == (right.is_random_next is None)
    )


@pytest.mark.parametrize("config", [PAIRS, BLOCKS, SWAPPED, IN_ORDER])
def test_on_disk_as_in_memory(split: Split, tmp_path: Path, config: SegmentsConfig, monkeypatch) -> None:
    monkeypatch.setattr(segments, "DOCUMENTS_AT_ONCE", 5)  # several groups
    cache = EpochCache(tmp_path / "cache", split, config, seed=3)
    for epoch in (0, 1):
        computed = concatenate(list(examples_of_epoch(split.sentences, split.documents, config, 3, epoch)))
        assert len(computed) > 20
        assert same(cache.open(epoch), computed)
        assert same(cache.open(epoch), computed)
    assert not same(cache.open(0), cache.open(1))


def test_an_epoch_is_written_once(split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = EpochCache(tmp_path / "cache", split, PAIRS, seed=3).open(0)
    monkeypatch.setattr(EpochCache, "_write", lambda *_: pytest.fail("written again"))
    assert same(EpochCache(tmp_path / "cache", split, PAIRS, seed=3).open(0), first)


@pytest.mark.parametrize(
    ("config", "seed"), [(PAIRS, 4), (SegmentsConfig("pairs", 29, 0.1, "nsp"), 3), (BLOCKS, 3), (SWAPPED, 3)]
)
def test_other_settings_have_files_of_their_own(
    split: Split, tmp_path: Path, config: SegmentsConfig, seed: int
) -> None:
    first = EpochCache(tmp_path / "cache", split, PAIRS, seed=3).open(0)
    other = EpochCache(tmp_path / "cache", split, config, seed=seed).open(0)
    assert not same(first, other)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_two_epochs_and_the_first_stay_on_disk(split: Split, tmp_path: Path) -> None:
    cache = EpochCache(tmp_path / "cache", split, PAIRS, seed=3)
    for epoch in range(7):
        cache.open(epoch)
    kept = sorted(path.name[:11] for path in (tmp_path / "cache").iterdir())
    assert kept == ["epoch-00000", "epoch-00005", "epoch-00006"]


def test_a_faster_process_and_a_dead_one(split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes second takes the files of the first; half-written files of a dead process are never opened."""
    cache = EpochCache(tmp_path / "cache", split, PAIRS, seed=3)
    write = EpochCache._write

    def meanwhile(self: EpochCache, directory: Path, epoch: int) -> None:
        write(self, directory, epoch)
        self._path(epoch).mkdir()
        write(self, self._path(epoch), epoch)

    dead = cache._path(0).with_name(f"{cache._path(0).name}.{socket.gethostname()}-{os.getpid()}.partial")
    dead.mkdir(parents=True)
    (dead / "first_piece").write_bytes(b"half")
    monkeypatch.setattr(EpochCache, "_write", meanwhile)
    examples = cache.open(0)
    assert same(examples, concatenate(list(examples_of_epoch(split.sentences, split.documents, PAIRS, 3, 0))))
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [cache._path(0).name]
