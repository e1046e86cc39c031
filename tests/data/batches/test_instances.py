"""Stored instances: what is written is what is read, in the shuffled order, as batches and as lines."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from bertkit.data.batches import instances as module
from bertkit.data.batches.google_instances import Instance
from bertkit.data.batches.instances import Instances, json_rows, write_instances

MADE = [
    Instance([2, 9, 4, 3, 11, 3], 4, False, [2], [10]),
    Instance([2, 5, 3, 4, 4, 8, 3], 3, True, [3, 4, 5], [6, 7, 8]),
    Instance([2, 70_000, 3, 4, 3], 3, True, [1, 3], [70_001, 12]),
]


@pytest.mark.parametrize("at_once", [1, 2, 4096])
def test_stored_instances_are_as_by_hand(tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INSTANCES_AT_ONCE", at_once)
    order = [0, 1, 2]
    random.Random(1).shuffle(order)
    assert order == [1, 2, 0]
    assert list(write_instances(tmp_path / "stored", iter(MADE), random.Random(1), 100_000)) == [6, 13, 18]
    stored = Instances(tmp_path / "stored", 100_000)
    assert len(stored) == 3
    batch = stored.batch(np.array([0, 2, 1]))  # instances 1, 0 and 2 of those made
    assert batch.input_ids.tolist() == [2, 5, 3, 4, 4, 8, 3, 2, 9, 4, 3, 11, 3, 2, 70_000, 3, 4, 3]
    assert batch.token_type_ids.tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1]
    assert batch.sequence_lengths.tolist() == [7, 6, 5]
    assert batch.masked_positions.tolist() == [3, 4, 5, 9, 14, 16]
    assert batch.masked_labels.tolist() == [6, 7, 8, 10, 70_001, 12]
    assert batch.targets["next_sentence"].labels.tolist() == [1, 0, 1]
    assert {column.dtype for column in vars(batch).values() if isinstance(column, np.ndarray)} == {np.dtype("i8")}
    assert batch.loss_counts == {"mlm": 6, "nsp": 3}

    rows = [json.loads(line) for line in json_rows(stored, [f"w{n}" for n in range(100_000)])]
    assert [row["is_random_next"] for row in rows] == [True, True, False]
    assert rows[1] == {
        "tokens": ["w2", "w70000", "w3", "w4", "w3"],
        "segment_ids": [0, 0, 0, 1, 1],
        "is_random_next": True,
        "masked_lm_positions": [1, 3],
        "masked_lm_labels": ["w70001", "w12"],
    }
    assert len(list((tmp_path / "stored").iterdir())) == 7


def test_a_small_vocabulary_takes_two_bytes_a_token(tmp_path: Path) -> None:
    for size, num_bytes in ((65_536, 2), (65_537, 4)):
        list(write_instances(tmp_path / str(size), iter(MADE[:2]), random.Random(0), size))
        assert (tmp_path / str(size) / "tokens.bin").stat().st_size == 13 * num_bytes
