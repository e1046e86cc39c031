"""Every layout of a step has the same examples with the same masks: random (seed, step, layout) tuples, no training.

The long form, 10,000 tuples: `pytest -m slow tests/launch/test_layouts.py -s`.
"""

import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bertkit.base.batch import Batch
from bertkit.data.batches.sampling import Sampler
from bertkit.data.corpus.prepared import open_prepared
from bertkit.data.data_config import MaskingConfig, SegmentsConfig
from bertkit.jobs.phases import LengthPhases, Phase
from bertkit.tasks.batching import Cut, FeatureBatches, TrainingOrder
from bertkit.tasks.feature import Feature
from bertkit.train import micro_batches

WORLDS = (1, 2, 3, 4, 6, 12)
BATCH = 12
SEEDS = 5


def sequences(batch: Batch) -> list[bytes]:
    """Every sequence of a batch with its data: masked ids, masked positions, token types, label."""
    ends = np.cumsum(batch.sequence_lengths)
    columns = [batch.input_ids, batch.token_type_ids]
    if "masked_lm" in batch.targets:
        labels = np.full(len(batch.input_ids), -1)
        labels[batch.masked_positions] = batch.masked_labels
        columns.append(labels)
        whole = batch.targets["next_sentence"].labels
    else:
        whole = next(iter(batch.targets.values())).labels.astype(np.int64)
    table = np.stack(columns)
    return [
        table[:, end - length : end].tobytes() + label.tobytes()
        for end, length, label in zip(ends, batch.sequence_lengths, whole, strict=True)
    ]


def pretraining_phases(prepared_dir: Path, micro_sequences: int) -> list[LengthPhases]:
    """A phase for each seed; the samplers are shared by all layouts, so that epochs are drawn once."""
    ranges = micro_batches.micro_batch_ranges(BATCH, micro_sequences)
    return [LengthPhases([Phase(0, 10**6, 40, sampler, None, ranges)]) for sampler in samplers(prepared_dir)]


_samplers: dict[Path, list[Sampler]] = {}


def samplers(prepared_dir: Path) -> list[Sampler]:
    if prepared_dir not in _samplers:
        dataset = open_prepared(prepared_dir)
        segments, masking = SegmentsConfig("pairs", 40, 0.1, "nsp"), MaskingConfig(0.15, 0.8, 0.1)
        _samplers[prepared_dir] = [
            Sampler(dataset.splits["train"], dataset.tokenizer.facts, segments, masking, seed) for seed in range(SEEDS)
        ]
    return _samplers[prepared_dir]


def pretraining_layout(prepared_dir: Path, seed: int, step: int, world: int, micro: int) -> Counter[bytes]:
    phases = pretraining_phases(prepared_dir, micro)[seed]
    results: Counter[bytes] = Counter()
    numbers = []
    for process in range(world):
        for number, batch in phases.micro_batches(step, process, world):
            numbers.append(number)
            results.update(sequences(batch))
    assert numbers == list(range(len(phases.all[0].micro_batches)))
    return results


def task_layout(batches: FeatureBatches, seed: int, step: int, world: int, micro: int) -> Counter[bytes]:
    order = TrainingOrder(batches, BATCH, seed, Cut(None, micro, world))
    results: Counter[bytes] = Counter()
    for process in range(world):
        for _, batch in order.micro_batches(step, process, world):
            results.update(sequences(batch))
    return results


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_same_examples_and_masks_for_every_layout(prepared_dir: Path, count: int) -> None:
    """Half of the tuples pretrain, half fine-tune; the batch is 12, cut into at least one micro-batch a process."""
    rng, differences = random.Random(0), 0
    features = [Feature(n, list(range(n, n + 3 + n % 17)), [0] * (3 + n % 17), n % 3) for n in range(1013)]
    batches = FeatureBatches(features, "sequence")
    tuples = []
    for number in range(count):
        world = rng.choice(WORLDS)
        tuples.append((number % 2, rng.randrange(SEEDS), rng.randrange(200), world, rng.randint(1, BATCH // world)))
    started_at = time.process_time()  # of this process alone, however busy the machine
    references: dict[tuple[int, int, int], Counter[bytes]] = {}
    for is_task, seed, step, world, micro in sorted(tuples, key=lambda item: (item[0], item[2])):
        if is_task:
            actual, whole = task_layout(batches, seed, step, world, micro), (batches, seed, step, 1, BATCH)
        else:
            actual, whole = (
                pretraining_layout(prepared_dir, seed, step, world, micro),
                (prepared_dir, seed, step, 1, BATCH),
            )
        key = (is_task, seed, step)
        if key not in references:
            references[key] = task_layout(*whole) if is_task else pretraining_layout(*whole)  # type: ignore[arg-type]
        differences += actual != references[key]
        assert actual.total() in (BATCH, 1013 % BATCH)
    seconds = time.process_time() - started_at
    print(f"{count} tuples, {len({item[3:] for item in tuples})} layouts: {differences} differences in {seconds:.1f} s")
    assert differences == 0
    assert seconds < 60
    assert len(references) > min(count, 1500) // 3
    # the steps themselves differ, but for an epoch with fewer pairs than the first, whose last batch may repeat an earlier one
    assert len({frozenset(whole) for whole in references.values()}) > 0.99 * len(references)
