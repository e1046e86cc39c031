"""The learning rate as a function of the step, counted from 0."""

import bisect
import math
from collections.abc import Callable
from typing import Literal

from bertkit.base import plugins
from bertkit.base.intervals import NotNegative, Share
from bertkit.train.train_config import ScheduleConfig


def learning_rate(peak: float, config: ScheduleConfig, steps: int, warmup_steps: float) -> Callable[[int], float]:
    """Return the learning rate as a function of the step: the peak times what the schedule returns for (step, steps, warmup_steps)."""
    schedule = plugins.bind("schedule", config.decay, vars(config), config.options)
    if not plugins.is_plugin("schedule", config.decay):
        return lambda step: peak * schedule(step, steps, warmup_steps)
    return lambda step: peak * plugins.number("schedule", config.decay, schedule(step, steps, warmup_steps))


def last_stable_step(config: ScheduleConfig, steps: int, warmup_steps: float) -> int | None:
    """Return the last step of the stable part, from which a longer run may go on as if it had been long from the start.

    The rates of the stable part follow the warm-up and do not depend on the length of the run. Returns None for a schedule whose
    decay follows the warm-up, such as linear decay, and for one that never decays, whose runs can go on from any step.
    """
    rates, longer = (learning_rate(1.0, config, length, warmup_steps) for length in (steps, 2 * steps))
    first = math.ceil(warmup_steps)
    last = bisect.bisect_left(range(first, steps), True, key=lambda step: rates(step) != longer(step)) + first
    return last if first + 1 < last < steps else None


@plugins.option("schedule", "polynomial")
def polynomial(
    step: int,
    steps: int,
    warmup_steps: float,
    *,
    power: NotNegative = 1.0,
    decay_from: Literal["warmup_end", "start"] = "warmup_end",
) -> float:
    """Return a multiplier that rises linearly from 0 during warm-up, then falls to 0 at `steps` with polynomial decay.

        step / warmup_steps                             while step < warmup_steps
        ((steps - step) / (steps - first)) ^ power      from then on

    With warm-up, step 0 has multiplier 0, as in BERT. Power 1 gives linear decay, power 0 a constant.

    `warmup_steps` need not be whole. With `decay_from` "warmup_end", `first` is `warmup_steps` and the multiplier is continuous;
    with "start", `first` is 0 and the multiplier jumps at the end of the warm-up from 1 down to (1 - warmup_steps / steps) ^ power.

    Source: transformers `get_linear_schedule_with_warmup` (power 1, from the end of the warm-up); google-research/bert
    optimization.py, lines 32-54 (power 1, from the start); NVIDIA/DeepLearningExamples PyTorch/LanguageModeling/BERT
    schedulers.py, `PolyWarmUpScheduler` (power 0.5, from the start), which counts steps from 1: its multiplier at an
    update is our multiplier at the next update.
    """
    if step < warmup_steps:
        return step / warmup_steps
    first = warmup_steps if decay_from == "warmup_end" else 0
    return float(((steps - step) / (steps - first)) ** power)


@plugins.option("schedule", "inverse")
def inverse(step: int, steps: int, warmup_steps: float, *, power: NotNegative = 0.5) -> float:
    """Return a multiplier that rises linearly during warm-up, then falls as a power of the step. With s = step + 1:

        s / warmup_steps              while s < warmup_steps
        (warmup_steps / s) ^ power    from then on

    Source: Vaswani et al. 2017, equation 3, with power 0.5; its peak is hidden_size^-0.5 warmup_steps^-0.5.
    """
    number, top = step + 1, max(warmup_steps, 1)
    return number / top if number < top else float((top / number) ** power)


@plugins.option("schedule", "cosine")
def cosine(step: int, steps: int, warmup_steps: float) -> float:
    """Return a multiplier that rises linearly from 0 during warm-up, then falls to 0 at `steps` along half a period of a cosine.

        step / warmup_steps                                                     while step < warmup_steps
        (1 + cos(pi (step - warmup_steps) / (steps - warmup_steps))) / 2        from then on

    Source: Loshchilov and Hutter 2017, equation 5, without restarts; transformers `get_cosine_schedule_with_warmup`.
    """
    if step < warmup_steps:
        return step / warmup_steps
    return (1 + math.cos(math.pi * (step - warmup_steps) / (steps - warmup_steps))) / 2


@plugins.option("schedule", "wsd")
def wsd(step: int, steps: int, warmup_steps: float, *, decay_share: Share = 0.1) -> float:
    """Return a multiplier with three parts: a linear warm-up from 0, a stable part at 1, and a decay to 0 at `steps`.

        step / warmup_steps                             while step < warmup_steps
        1                                               while step < first
        1 - sqrt((step - first) / (steps - first))      from then on; first = steps - decay_share steps, rounded

    If warm-up and decay leave no stable part, the decay begins after the warm-up.

    Source: Hu et al. 2024 (MiniCPM), 4: warm-up, stable, decay; Hägele et al. 2024, 3: the decay 1 - sqrt, over 10 to 20 % of the
    steps; Warner et al. 2024 (ModernBERT), 3.1, has this decay.
    """
    if step < warmup_steps:
        return step / warmup_steps
    first = max(steps - round(decay_share * steps), warmup_steps)
    return 1.0 if step < first else 1 - math.sqrt((step - first) / (steps - first))
