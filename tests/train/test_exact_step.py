"""A step in real processes: the same bits for 1, 2 and 4 of them, and skipped alike by all when a number is not finite."""

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
from conftest import free_port, output_of

WORKER = Path(__file__).with_name("step_worker.py")
KINDS = ("nan loss", "inf loss", "nan added", "gradient")


def settings_of(world: int, **changed: Any) -> dict[str, Any]:
    plain = {"steps": 6, "optimizer": "adamw", "micro_sequences": 1, "num_parts": None, "faults": {}, "skip_steps": []}
    return {"world": world, "port": free_port(), "sizes": {}, "is_counted": False, **plain, **changed}


def train(python: Path, folder: Path, *runs: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Train each run in its processes; give what each process of each run found."""
    output = folder / "found.json"
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    command = [python, WORKER, json.dumps(runs), output]
    output_of(command, env={**environment, "OMP_NUM_THREADS": "1"}, timeout=1800)
    return json.loads(output.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("lamb", marks=pytest.mark.slow)])
def test_the_same_bits_for_one_two_and_four_processes(python: Path, tmp_path: Path, optimizer: str) -> None:
    """With dropout and clipping; and the order of data-parallel training gives other bits, so the test can tell."""
    strict = [settings_of(world, num_parts=4, optimizer=optimizer) for world in (1, 2, 4)]
    *worlds, (plain,) = train(python, tmp_path, *strict, settings_of(1, optimizer=optimizer))
    actual = [process for world in worlds for process in world]
    assert len(actual) == 7
    assert len({process["hash"] for process in actual}) == 1
    assert all(process["rows"] == actual[0]["rows"] for process in actual)
    assert plain["hash"] != actual[0]["hash"]
    assert [row[1]["mlm"] for row in plain["rows"]] == pytest.approx(
        [row[1]["mlm"] for row in actual[0]["rows"]], abs=1e-5
    )


def test_a_step_sends_its_gradient_once_during_the_backward_pass(python: Path, tmp_path: Path) -> None:
    """Of the last of two micro-batches; after the first step, which finds the order in which gradients are ready."""
    sizes = {"hidden_size": 128, "intermediate_size": 512}
    (processes,) = train(python, tmp_path, settings_of(2, steps=3, micro_sequences=2, sizes=sizes, is_counted=True))
    assert len(processes) == 2
    for process in processes:
        for step in (2, 3):
            sent = [(size, is_at_end) for number, size, is_at_end in process["sent"] if number == step]
            assert sum(size for size, _ in sent) == process["size"] > 1_000_000
            assert [is_at_end for _, is_at_end in sent] == [False, True]


def place_faults(rng: random.Random, world: int, steps: int, count: int) -> dict[str, dict[str, str]]:
    """Choose steps, and for each a kind and the process that it strikes; shards 2 and 5 of 8 have masked tokens."""
    faults: dict[str, dict[str, str]] = {str(rank): {} for rank in range(world)}
    for step in rng.sample(range(1, steps + 1), count):
        faults[str(rng.randrange(world))][str(step)] = rng.choice(KINDS)
    return faults


def check_faults(python: Path, folder: Path, world: int, steps: int, count: int, seed: int, **changed: Any) -> None:
    faults = place_faults(random.Random(seed), world, steps, count)
    struck = sorted(int(step) for kinds in faults.values() for step in kinds)
    settings = {"steps": steps, "micro_sequences": 2, **changed}
    result, expected, (clean, *_) = train(
        python,
        folder,
        settings_of(world, faults=faults, **settings),
        settings_of(world, skip_steps=struck, **settings),
        settings_of(world, **settings),
    )
    assert sorted(step for process in result for step in process["struck"]) == struck
    assert len({process["hash"] for process in [*result, *expected]}) == 1
    for process in result:
        assert process["skipped"] == len(struck) == count
        assert [row[0] for row in process["rows"] if row[4] is not None] == struck
        assert all(math.isfinite(row[3]) for row in process["rows"] if row[4] is None)
        assert [row[4] for row in process["rows"]] == [row[4] for row in result[0]["rows"]]
    assert clean["hash"] != expected[0]["hash"]


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("lamb", marks=pytest.mark.slow)])
def test_exactly_the_struck_steps_are_skipped(python: Path, tmp_path: Path, optimizer: str) -> None:
    check_faults(python, tmp_path, 2, 16, 6, seed=2, optimizer=optimizer)  # of each kind


@pytest.mark.slow
@pytest.mark.parametrize("num_parts", [None, 4])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_fifty_random_faults(python: Path, tmp_path: Path, world: int, optimizer: str, num_parts: int | None) -> None:
    check_faults(python, tmp_path, world, 200, 50, seed=world, optimizer=optimizer, num_parts=num_parts)
    print(f"{world} processes, {optimizer}, parts {num_parts}: 50 of 50 struck steps skipped, and no other")
