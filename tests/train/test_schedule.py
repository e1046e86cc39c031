"""Learning-rate schedules, written by hand."""

import math
from typing import Any

import pytest
import torch
import transformers

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import build, conf_dir
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose
from bertkit.train.schedule import inverse, last_stable_step, learning_rate, polynomial
from bertkit.train.train_config import ScheduleConfig

ROOT = math.sqrt
TABLES = [
    # option, steps, warm-up, the multiplier of every step
    ("linear", 8, 4, [0, 0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.25]),
    ("linear", 4, 0, [1, 0.75, 0.5, 0.25]),
    ("linear", 4, 4, [0, 0.25, 0.5, 0.75]),
    ("linear", 1, 0, [1]),
    ("linear", 5, 1, [0, 1, 0.75, 0.5, 0.25]),
    ("google", 8, 4, [0, 0.25, 0.5, 0.75, 0.5, 0.375, 0.25, 0.125]),  # jumps from 3/4, on its way to 1, to 1 - 4/8
    ("google", 5, 1, [0, 0.8, 0.6, 0.4, 0.2]),
    ("google", 4, 0, [1, 0.75, 0.5, 0.25]),
    ("google", 4, 4, [0, 0.25, 0.5, 0.75]),
    ("polynomial", 8, 4, [0, 0.25, 0.5, 0.75, ROOT(4 / 8), ROOT(3 / 8), ROOT(2 / 8), ROOT(1 / 8)]),
    ("polynomial", 4, 0, [1, ROOT(3 / 4), ROOT(2 / 4), ROOT(1 / 4)]),
    ("constant", 5, 2, [0, 0.5, 1, 1, 1]),
    ("constant", 3, 0, [1, 1, 1]),
    ("noam", 8, 4, [1 / 4, 2 / 4, 3 / 4, 1, ROOT(4 / 5), ROOT(4 / 6), ROOT(4 / 7), ROOT(4 / 8)]),
    ("noam", 4, 0, [1, ROOT(1 / 2), ROOT(1 / 3), 1 / 2]),
    ("noam", 3, 1, [1, ROOT(1 / 2), ROOT(1 / 3)]),
    ("cosine", 6, 2, [0, 0.5, 1, (1 + ROOT(1 / 2)) / 2, 0.5, (1 - ROOT(1 / 2)) / 2]),
    ("cosine", 3, 0, [1, 0.75, 0.25]),
    ("wsd", 20, 2, [0, 0.5, *[1] * 17, 1 - ROOT(1 / 2)]),
    ("wsd", 20, 19, [*(n / 19 for n in range(19)), 1]),
    ("wsd", 4, 0, [1, 1, 1, 1]),  # a tenth of 4 steps is none
]


def option(name: str, *more: str) -> ScheduleConfig:
    arguments = ["data_dir=x", "output_dir=y", f"schedule={name}", *more]
    return build(PretrainSettings, compose("pretrain", arguments)).schedule


@pytest.mark.parametrize(("name", "steps", "warmup_steps", "expected"), TABLES)
def test_learning_rates_are_as_by_hand(name: str, steps: int, warmup_steps: int, expected: list[float]) -> None:
    shape = option(name)
    values = list(map(learning_rate(1.0, shape, steps, warmup_steps), range(steps)))
    assert values == pytest.approx(expected, abs=1e-15)
    if shape.decay == "polynomial":
        assert values == [
            polynomial(step, steps, warmup_steps, power=shape.power, decay_from=shape.decay_from)
            for step in range(steps)
        ]


def test_every_option_has_a_table() -> None:
    assert {name for name, *_ in TABLES} == {path.stem for path in (conf_dir() / "schedule").glob("*.yaml")}


def test_google_schedule_has_published_values() -> None:
    """1,000,000 steps, warm-up 10,000: the last step of the warm-up, the jump, and the last step."""
    shape = option("google", "steps=1000000")
    warmup = shape.warmup_of(1_000_000)
    assert warmup == 10_000
    values = [
        polynomial(step, 10**6, warmup, power=shape.power, decay_from=shape.decay_from)
        for step in (9_999, 10_000, 999_999)
    ]
    assert values == pytest.approx([0.9999, 0.99, 1e-6], rel=1e-12)


def test_a_warm_up_as_a_share_of_the_steps() -> None:
    """NVIDIA's first phase: 0.2843 of 7,038 steps are 2,000.9, so step 2,000 is the last one of the warm-up."""
    shape = option("polynomial", "schedule.warmup_share=0.2843")
    warmup = shape.warmup_of(7038)
    assert warmup == pytest.approx(2000.9034, abs=1e-9)
    values = [
        polynomial(step, 7038, warmup, power=shape.power, decay_from=shape.decay_from) for step in (2000, 2001, 7037)
    ]
    assert values == pytest.approx([2000 / 2000.9034, ROOT(5037 / 7038), ROOT(1 / 7038)], abs=1e-12)


@pytest.mark.parametrize(("steps_setting", "share", "steps", "expected"), [
    ("auto", "auto", 1000, 10),
    ("auto", "auto", 99, 0),
    (7, "auto", 1000, 7),
    (0, "auto", 5, 0),
    ("auto", 0.25, 10, 2.5),
])  # fmt: skip
def test_warm_up_is_converted_to_steps(
    steps_setting: int | str, share: float | str, steps: int, expected: float
) -> None:
    assert ScheduleConfig(1.0, "warmup_end", steps_setting, share).warmup_of(steps) == expected


@pytest.mark.parametrize(("setting", "message"), [
    ((2.0, "warmup_end", "auto", "auto", "cosine"), r"schedule\.power=2\.0: has no effect with schedule\.decay=cosine"),
    ((1.0, "start", "auto", "auto", "wsd"), r"schedule\.decay_from=start: has no effect with schedule\.decay=wsd"),
    ((1.0, "start", 3, 0.5), r"schedule\.warmup_steps and schedule\.warmup_share are both set; set one of them"),
    ((0.0, "start", "auto", "auto"), r"schedule\.decay_from=start: has no effect with schedule\.power=0"),
])  # fmt: skip
def test_impossible_settings_are_refused(setting: tuple[float, str, int | str, float | str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ScheduleConfig(*setting)


def test_noam_is_equation_3_of_the_paper() -> None:
    """The rate is d_model^-0.5 min(step^-0.5, step warmup^-1.5), steps counted from 1; the peak is d_model^-0.5 warmup^-0.5."""
    shape = option("noam")
    for size, warmup in ((512, 4000), (1024, 4000), (37, 11)):
        peak = size**-0.5 * warmup**-0.5
        rate = learning_rate(peak, shape, 7, warmup)
        for number in (1, 2, warmup // 2, warmup - 1, warmup, warmup + 1, 3 * warmup, 300_000):
            expected = size**-0.5 * min(number**-0.5, number * warmup**-1.5)
            assert rate(number - 1) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(("name", "theirs", "more"), [
    ("linear", "get_linear_schedule_with_warmup", {}),
    ("cosine", "get_cosine_schedule_with_warmup", {}),
    ("wsd", "get_wsd_schedule", {"num_decay_steps": 8, "decay_type": "1-sqrt"}),
])  # fmt: skip
def test_schedules_are_those_of_transformers(name: str, theirs: str, more: dict[str, Any]) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    schedule = getattr(transformers, theirs)(optimizer, num_warmup_steps=5, num_training_steps=41, **more)
    (expected,) = schedule.lr_lambdas
    shape = option(name, *(["schedule.options.decay_share=0.2"] if more else []))
    assert list(map(learning_rate(1.0, shape, 41, 5), range(41))) == pytest.approx(
        list(map(expected, range(41))), abs=1e-15
    )


@pytest.mark.parametrize(("name", "steps", "warmup_steps", "expected"), [
    ("wsd", 1000, 10, 901),  # the decay begins at step 900, with a rate that is still the peak
    ("wsd", 20, 19, None),  # no stable part
    *((name, 1_000_000, 10_000, None) for name in ("linear", "google", "polynomial", "cosine", "constant", "noam")),
])  # fmt: skip
def test_the_last_step_that_a_longer_run_shares(name: str, steps: int, warmup_steps: int, expected: int | None) -> None:
    shape = option(name)
    assert last_stable_step(shape, steps, warmup_steps) == expected
    if expected is not None:
        one, longer = (learning_rate(1.0, shape, length, warmup_steps) for length in (steps, 3 * steps))
        assert [one(step) for step in range(expected)] == [longer(step) for step in range(expected)]


def test_a_power_of_the_users_own() -> None:
    shape = option("polynomial", "schedule.power=2", "schedule.decay_from=warmup_end")
    values = [polynomial(step, 5, 1, power=shape.power, decay_from=shape.decay_from) for step in range(5)]
    assert values == [0, 1, 9 / 16, 4 / 16, 1 / 16]
    values = [inverse(step, 5, 2, power=1.0) for step in range(5)]
    assert values == pytest.approx([1 / 2, 1, 2 / 3, 2 / 4, 2 / 5], abs=1e-15)
    shape = option("noam", "schedule.warmup_steps=2", "schedule.power=1")
    assert list(map(learning_rate(1.0, shape, 3, shape.warmup_of(3)), range(5))) == values
