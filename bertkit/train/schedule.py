"""The learning rate as a function of the step, counted from 0."""

from bertkit.base import plugins
from bertkit.train.train_config import ScheduleConfig


def learning_rate(step: int, peak: float, config: ScheduleConfig, steps: int, warmup_steps: float) -> float:
    """Return the learning rate of a step: the peak times `polynomial`, `inverse` or a plug-in.

    A plug-in is `schedule(step, steps, warmup_steps)`, and returns the factor.
    """
    if config.decay == "inverse":
        return peak * inverse(step, warmup_steps, config.power)
    if config.decay == "polynomial":
        return peak * polynomial(step, steps, warmup_steps, config.power, config.decay_from)
    return peak * float(plugins.bind("schedule", config.decay, config.options)(step, steps, warmup_steps))


def polynomial(step: int, steps: int, warmup_steps: float, power: float, decay_from: str) -> float:
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


def inverse(step: int, warmup_steps: float, power: float) -> float:
    """Return a multiplier that rises linearly during warm-up, then falls as a power of the step. With s = step + 1:

        s / warmup_steps              while s < warmup_steps
        (warmup_steps / s) ^ power    from then on

    Source: Vaswani et al. 2017, equation 3, with power 0.5; its peak is hidden_size^-0.5 warmup_steps^-0.5.
    """
    number, top = step + 1, max(warmup_steps, 1)
    return number / top if number < top else float((top / number) ** power)
