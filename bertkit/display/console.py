"""The lines that a training run prints, and the progress of long work: a bar on a terminal or in a notebook, otherwise lines."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Self, TextIO

from tqdm.auto import tqdm

from bertkit.base.errors import counted, is_silent, say, shown
from bertkit.base.text_files import JsonObject
from bertkit.display.page import metric_name


def model_line(num_parameters: int, num_layers: int, hidden_size: int, heads: Sequence[str], how: str) -> str:
    """Describe the model and its training."""
    return (
        f"BERT with {num_parameters / 1e6:.1f} M parameters ({num_layers} layers of {hidden_size}), heads: "
        f"{', '.join(heads) or 'none'}; {how}"
    )


def phase_line(
    steps: range, max_seq_length: int | None, batch_size: int, epoch_length: int, num_micro_batches: int
) -> str:
    """Describe a phase of a run: its steps, counted from 0, its length (None if it is the only phase), epochs and micro-batches."""
    where = f"steps {steps.start + 1} to {steps.stop}, sequences of up to {max_seq_length} tokens: "
    return (
        f"{where if max_seq_length else ''}{epoch_length:,} examples an epoch, "
        f"{counted(float(f'{len(steps) * batch_size / epoch_length:.2g}'), 'epoch')}; {counted(batch_size, 'sequence')} a step in "
        f"{counted(num_micro_batches, 'micro-batch')}"
    )


def step_line(row: JsonObject, steps: int, time_left: str) -> str:
    """Format the values of a logged step."""
    parts = [f"step {row['step']}/{steps}"]
    if "skipped" in row:
        parts.append(f"skipped: {row['skipped']} (its {len(row['examples'])} examples are in metrics.jsonl)")
    else:
        parts.append(f"loss {row['loss']:.4f}" if "loss" in row else "left out")
    if objective := objective_of(row):
        parts.append(f"{objective} {row[f'{objective}_loss']:.4f}")
    if "nsp_accuracy" in row:
        parts.append(f"nsp acc {row['nsp_accuracy']:.2f}")
    known = (f"{objective}_loss", "nsp_loss")
    others = [name for name in row if name.endswith("_loss") and not name.startswith("eval_") and name not in known]
    if objective or len(others) > 1:
        parts += [f"{name.removesuffix('_loss')} {row[name]:.4f}" for name in others]
    parts.append(f"lr {row['learning_rate']:.2e}")
    if "tokens_per_second" in row:
        parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
    return "  ".join([*parts, *([f"{time_left} left"] if time_left else [])])


def scores_line(
    metrics: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]],
    best_metric: str,
    intervals: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Format a task's metrics: `best_metric` with its 95 % interval and the same metric of baselines, and then the others."""
    others = ", ".join(
        f"{label} {scores[best_metric]:.4f}" for label, scores in baselines.items() if best_metric in scores
    )
    ends = " [{:.4f}, {:.4f}]".format(*intervals[best_metric]) if intervals and best_metric in intervals else ""
    first = f"{metric_name(best_metric)} {metrics[best_metric]:.4f}{ends}{others and f' ({others})'}"
    return ", ".join(
        [first, *(f"{metric_name(name)} {value:.4f}" for name, value in metrics.items() if name != best_metric)]
    )


def objective_of(row: Mapping[str, object]) -> str | None:
    """Return "mlm" or "lm", whichever loss a row of pretraining has; None if it has neither."""
    return next((name for name in ("mlm", "lm") if f"{name}_loss" in row), None)


CONTROLS = ("accuracy_by_counting", "loss_by_counting", "loss_shuffled", "gain_on_counting", "gain_on_shuffled")


def has_controls(metrics: Mapping[str, object]) -> bool:
    """Whether held-out losses have their controls; the rows of earlier versions have none."""
    name = objective_of(metrics)
    return all(f"{name}_{key}" in metrics for key in ("accuracy", *CONTROLS))


def has_learned(metrics: Mapping[str, float]) -> bool:
    """Whether the held-out loss is below those of both controls, counting tokens and shuffled words, beyond their intervals."""
    name = objective_of(metrics)
    return min(metrics[f"{name}_gain_on_counting"], metrics[f"{name}_gain_on_shuffled"]) > 0


def losses_line(metrics: Mapping[str, float]) -> str | None:
    """Say what an objective has measured on held-out text; None if there is none."""
    parts = [f"{name.replace('_', ' ')} {value:.4f}" for name, value in metrics.items()]
    return f"held-out text: {', '.join(parts)}" if parts else None


def health_line(metrics: Mapping[str, float], baselines: Mapping[str, float]) -> str:
    """Say whether the model has learned: its held-out loss beside its controls, next sentence accuracy beside guessing."""
    name = objective_of(metrics)
    what, short = ("masked LM", "MLM") if name == "mlm" else ("next token prediction", "LM")
    loss, counting = metrics[f"{name}_loss"], metrics[f"{name}_loss_by_counting"]
    verdict = "has learned" if has_learned(metrics) else "has not learned"
    text = f"{what} {verdict} from context: held-out {short} loss {loss:.3f}, {counting:.3f} by counting tokens"
    if {f"{name}_loss_at_mask", f"{name}_loss_at_mask_by_counting"} <= {*metrics}:
        alone, counted = metrics[f"{name}_loss_at_mask"], metrics[f"{name}_loss_at_mask_by_counting"]
        text += f" (at [MASK] alone {alone:.3f}, {counted:.3f})"
    text += f", {metrics[f'{name}_loss_shuffled']:.3f} with shuffled words"
    if loss < counting and not has_learned(metrics):
        text += ", which may be chance"
    accuracy, counted = metrics[f"{name}_accuracy"], metrics[f"{name}_accuracy_by_counting"]
    text += f"; {short} accuracy {accuracy:.3f}, {counted:.3f} by counting"
    if name == "lm":
        text += f"; perplexity {math.exp(loss):,.1f}, {math.exp(counting):,.1f} by counting"
    if "nsp_accuracy" in metrics and "guessing" in baselines:
        accuracy, guessing = metrics["nsp_accuracy"], baselines["guessing"]
        verdict = "has learned" if accuracy > baselines["chance"] else "has not learned"
        text += f"; next sentence prediction {verdict}: NSP accuracy {accuracy:.3f}, guessing {guessing:.3f}"
    return text


SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """Show the progress of long work and, if the total is known, the time left.

    On a terminal and in a notebook this is a bar; `line` prints above it. Elsewhere `advance` prints a line every
    `SECONDS_BETWEEN_LINES`, unless the caller prints its own ones (`has_lines`), perhaps whenever `is_overdue`. With `silent`,
    it shows nothing.
    """

    def __init__(
        self,
        label: str,
        total: float | None,
        *,
        done: float = 0,
        silent: bool = False,
        has_lines: bool = False,
        file: TextIO | None = None,
    ) -> None:
        self.file = file or sys.stdout
        self.label, self.total, self.done, self.silent = label, total, done, silent or has_lines
        self.started_at = self.last_line_at = time.monotonic()
        self.done_at_start = done
        self.bar = None
        is_notebook = type(self.file).__module__.startswith("ipykernel")
        if total and (is_notebook or self.file.isatty()) and not silent and not is_silent.get():
            bar_format = "{desc} {percentage:3.0f}% |{bar}| {elapsed} elapsed, {remaining} left"
            self.bar = tqdm(
                total=total, initial=done, desc=label, file=self.file, leave=False, dynamic_ncols=True,
                bar_format=bar_format,
            )  # fmt: skip

    def advance(self, to: float) -> None:
        """Set how much work is done, in the unit of the total."""
        step, self.done = to - self.done, to
        if self.bar is not None:
            self.bar.update(step)
        elif not self.silent and self.is_overdue:
            self.last_line_at = time.monotonic()
            done = f"{100 * self.done / self.total:.0f} %, {self.time_left()} left" if self.total else "running"
            say(f"{self.label}: {done}", file=self.file)

    @property
    def is_overdue(self) -> bool:
        """Whether there is no bar, and the last line was printed long ago."""
        return self.bar is None and time.monotonic() - self.last_line_at > SECONDS_BETWEEN_LINES

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self.last_line_at = time.monotonic()
        if self.bar is not None:
            self.bar.write(shown(text), file=self.file)
        else:
            say(text, file=self.file)

    def time_left(self) -> str:
        """Estimate the time left from the speed so far; empty if nothing is done yet."""
        if not self.total or self.done <= self.done_at_start:
            return ""
        seconds_per_unit = (time.monotonic() - self.started_at) / (self.done - self.done_at_start)
        return duration(seconds_per_unit * max(0.0, self.total - self.done))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()


def duration(seconds: float) -> str:
    """Format a duration: 42s, 3m10s, 2h05m, 3d04h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
