"""Learning-rate schedules, written by hand."""

from __future__ import annotations

import pytest

from bertkit.errors import InputError
from bertkit.train.config import ScheduleConfig
from bertkit.train.schedule import SCHEDULES

TABLES = [
    # name, steps, warm-up, the multiplier of every step
    ("linear", 8, 4, [0, 0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.25]),
    ("linear", 4, 0, [1, 0.75, 0.5, 0.25]),
    ("linear", 4, 4, [0, 0.25, 0.5, 0.75]),
    ("linear", 1, 0, [1]),
    ("linear", 5, 1, [0, 1, 0.75, 0.5, 0.25]),
    ("constant", 5, 2, [0, 0.5, 1, 1, 1]),
    ("constant", 3, 0, [1, 1, 1]),
]


@pytest.mark.parametrize(("name", "steps", "warmup_steps", "expected"), TABLES)
def test_multipliers(name: str, steps: int, warmup_steps: int, expected: list[float]) -> None:
    assert [SCHEDULES[name](step, steps, warmup_steps) for step in range(steps)] == expected


def test_every_schedule_has_a_table_and_linear_ends_at_zero() -> None:
    assert set(SCHEDULES) == {name for name, *_ in TABLES}
    assert SCHEDULES["linear"](8, 8, 4) == 0


@pytest.mark.parametrize(
    ("setting", "steps", "expected"), [("auto", 1000, 10), ("auto", 99, 0), (7, 1000, 7), (0, 5, 0)]
)
def test_warm_up_steps(setting: int | str, steps: int, expected: int) -> None:
    assert ScheduleConfig("linear", setting).num_warmup_steps(steps) == expected


def test_a_negative_warm_up_is_refused() -> None:
    with pytest.raises(InputError, match=r"schedule\.warmup_steps=-1: expected auto or 0 or more"):
        ScheduleConfig("linear", -1)
