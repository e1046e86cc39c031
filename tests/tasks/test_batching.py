"""Which features make up a step, and how a step is cut: the same for any number of processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.base.batch import Batch
from bertkit.tasks.batching import Cut, FeatureBatches, TrainingOrder
from bertkit.tasks.feature import Feature


def features(lengths: list[int], label: object = 0, per_example: int = 1) -> list[Feature]:
    """Feature n has the tokens 100 n, 100 n + 1, ..."""
    return [
        Feature(n // per_example, [100 * n + t for t in range(length)], [t % 2 for t in range(length)], label)
        for n, length in enumerate(lengths)
    ]


@pytest.mark.parametrize(("lengths", "micro_tokens", "micro_items", "min_parts", "expected"), [
    ([2, 2, 2, 2], 100, None, 1, [4]),
    ([2, 2, 2, 2], 100, None, 2, [2, 2]),
    ([1, 1, 1, 9], 100, None, 2, [3, 1]),
    ([2, 2, 2, 2], 4, None, 1, [2, 2]),
    ([2, 3, 5, 7], 7, None, 1, [2, 1, 1]),
    ([9, 9], 3, None, 1, [1, 1]),  # none fits, so each stands alone
    ([3], 100, None, 2, [1]),
    ([2, 2, 2, 2, 2], None, 2, 1, [2, 2, 1]),
])  # fmt: skip
def test_cut_divides_sequences_as_by_hand(
    lengths: list[int], micro_tokens: int | None, micro_items: int | None, min_parts: int, expected: list[int]
) -> None:
    parts = Cut(micro_tokens, micro_items, min_parts).parts(np.array(lengths))
    assert [len(part) for part in parts] == expected


@pytest.mark.parametrize(("cut", "num_items", "expected"), [
    (Cut(100, None, 1), 8, 1),
    (Cut(100, None, 4), 8, 4),
    (Cut(100, None, 4), 3, 3),
    (Cut(None, 2, 1), 7, 4),
    (Cut(None, 4, 3), 7, 3),
])  # fmt: skip
def test_fewest_parts_is_a_lower_bound(cut: Cut, num_items: int, expected: int) -> None:
    assert cut.fewest_parts(num_items) == expected
    assert len(cut.parts(np.ones(num_items, np.int64))) == expected
    assert len(cut.parts(np.arange(num_items) + 19)) >= expected


def test_the_fewest_micro_batches_are_those_of_the_last_batch() -> None:
    order = TrainingOrder(FeatureBatches(features([2] * 11), "sequence"), 8, 0, Cut(None, 2, 1))
    assert [len(order.micro_batches(step, 0, 1)) for step in range(order.steps_per_epoch)] == [4, 2]
    assert order.fewest_parts == 2


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(50, 200), st.integers(1, 5))
def test_every_cut_is_whole_and_within_its_budget(lengths: list[int], micro_tokens: int, min_parts: int) -> None:
    parts = Cut(micro_tokens, None, min_parts).parts(np.array(sorted(lengths)))
    assert [item for part in parts for item in part] == list(range(len(lengths)))
    assert all(len(part) and sum(sorted(lengths)[part.start : part.stop]) <= micro_tokens for part in parts)
    assert len(parts) >= min(min_parts, len(lengths))


def test_a_sequence_without_words_has_no_labels() -> None:
    made = [Feature(0, [1, 2], [0, 0], None), Feature(1, [1, 7, 2], [0, 0, 0], token_labels=[-100, 3, -100])]
    batches = FeatureBatches(iter(made), "token")
    assert batches.labels is not None
    assert batches.labels.tolist() == [-100, -100, -100, 3, -100]
    assert FeatureBatches(made[:1], "token").labels is None


def test_features_are_packed() -> None:
    batches = FeatureBatches(features([2, 3, 1], label=1), "sequence")
    batch = batches.take(np.array([2, 0]))
    assert batch.input_ids.tolist() == [200, 0, 1]
    assert batch.token_type_ids.tolist() == [0, 0, 1]
    assert batch.sequence_lengths.tolist() == [1, 2]
    labels = batch.targets["sequence"].labels
    assert (labels.tolist(), labels.dtype) == ([1, 1], np.int64)
    assert (batch.num_tokens, batch.loss_counts) == (3, {"sequence": 2})


def batch_of(head: str, labels: list[object], weights: list[float] | None = None, num_choices: int = 1) -> Batch:
    field = "token_labels" if head == "token" else "label"
    made = [Feature(n, [1, 2, 3], [0, 0, 0], **{field: label}) for n, label in enumerate(labels)]
    batches = FeatureBatches(made, head, num_choices)
    batches.class_weights = None if weights is None else np.array(weights)
    return batches.take(np.arange(len(batches)))


@pytest.mark.parametrize(("head", "labels", "weights", "num_choices", "shape", "count"), [
    ("sequence", [0, 1, 1], None, 1, (3,), 3),
    ("sequence", [0, 1, 1], [5.0, 0.5], 1, (3,), 6),
    ("sequence", [0.5, 2.0, 1.0], None, 1, (3,), 3),
    ("sequence", [[0.0, 1.0], [1.0, 1.0]], None, 1, (2, 2), 4),
    ("token", [[-100, 0, -100], [-100, 1, 1]], None, 1, (6,), 3),
    ("token", [[-100, 0, -100], [-100, 1, 1]], [2.0, 0.25], 1, (6,), 2.5),
    ("span", [(0, 0), (1, 2)], None, 1, (2, 2), 2),
    ("choice", [1, 1, 0, 0], None, 2, (2,), 2),
])  # fmt: skip
def test_labels_and_what_the_loss_is_divided_by(
    head: str, labels: list[object], weights: list[float] | None, num_choices: int, shape: tuple[int, ...], count: float
) -> None:
    batch = batch_of(head, labels, weights, num_choices)
    assert batch.targets[head].labels.shape == shape
    assert batch.loss_counts == {head: count}


def test_an_epoch_visits_every_feature_once_and_each_in_another_order() -> None:
    order = TrainingOrder(FeatureBatches(features([3] * 23), "sequence"), 5, seed=1, cut=Cut(100, None, 2))
    assert order.steps_per_epoch == 5
    epochs = [[order.items(step).tolist() for step in range(e * 5, e * 5 + 5)] for e in range(3)]
    for epoch in epochs:
        assert [len(items) for items in epoch] == [5, 5, 5, 5, 3]
        assert sorted(item for items in epoch for item in items) == list(range(23))
    assert epochs[0] != epochs[1] != epochs[2]
    other = TrainingOrder(order.batches, 5, seed=2, cut=order.cut)
    assert other.items(0).tolist() != epochs[0][0]


@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_processes_share_the_same_micro_batches(num_processes: int) -> None:
    lengths = [3 + (7 * n) % 11 for n in range(23)]
    order = TrainingOrder(FeatureBatches(features(lengths), "sequence"), 5, seed=1, cut=Cut(30, None, 3))
    for step in range(8):
        shares = [order.micro_batches(step, process, num_processes) for process in range(num_processes)]
        assert all(shares)
        actual = [(number, batch.input_ids.tolist()) for share in shares for number, batch in share]
        alone = [(number, batch.input_ids.tolist()) for number, batch in order.micro_batches(step, 0, 1)]
        assert actual == alone
        assert [number for number, _ in actual] == list(range(len(actual)))
        sizes = [size for _, batch in order.micro_batches(step, 0, 1) for size in batch.sequence_lengths]
        assert sizes == sorted(sizes)


def test_the_endings_of_an_example_stay_together() -> None:
    batches = FeatureBatches(features([3, 4, 5, 6, 7, 8], label=1, per_example=2), "choice", num_choices=2)
    assert (len(batches), batches.lengths.tolist()) == (3, [7, 11, 15])
    order = TrainingOrder(batches, 3, seed=0, cut=Cut(15, None, 1))
    parts = [batch.sequence_lengths.tolist() for _, batch in order.micro_batches(0, 0, 1)]
    assert parts == [[3, 4], [5, 6], [7, 8]]


def test_in_turn_gives_everything_once_whatever_the_number_of_processes() -> None:
    batches = FeatureBatches(features([5, 1, 4, 2, 3], label=None), "sequence")
    for num_processes in (1, 2, 7):
        results = {}
        for process in range(num_processes):
            for items, batch in batches.batches_of(6, process, num_processes):
                assert not batch.targets
                assert batch.num_tokens <= 6
                results |= dict(zip(items.tolist(), batch.sequence_lengths.tolist(), strict=True))
        assert results == {0: 5, 1: 1, 2: 4, 3: 2, 4: 3}


def test_the_largest_micro_batch_of_the_first_steps() -> None:
    lengths = [2, 3, 5, 7, 11, 13, 17]
    order = TrainingOrder(FeatureBatches(features(lengths), "sequence"), 3, 0, Cut(20, None, 2))
    parts = [[batch.num_tokens for _, batch in order.micro_batches(step, 0, 1)] for step in range(3)]
    assert order.largest_part(9) == max(map(max, parts))
    assert order.largest_part(1) == max(parts[0])
    assert len({max(part) for part in parts}) > 1
