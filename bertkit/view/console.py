"""The lines of a training run."""

from collections.abc import Mapping, Sequence
from typing import Any


def model_line(num_parameters: int, num_layers: int, hidden_size: int, heads: Sequence[str], how: str) -> str:
    """Describe the model and its training."""
    return (
        f"BERT with {num_parameters / 1e6:.1f} M parameters ({num_layers} layers of {hidden_size}), heads: "
        f"{', '.join(heads)}; {how}"
    )


def phase_line(
    steps: range, max_seq_length: int | None, batch_size: int, epoch_length: int, num_micro_batches: int
) -> str:
    """Describe a phase of a run: epochs and micro-batches.

    Args:
        steps: of the phase, counted from 0.
        max_seq_length: in tokens; None in a run with one phase.
        batch_size: sequences a step.
        epoch_length: examples an epoch.
        num_micro_batches: of a step.
    """
    where = f"steps {steps.start + 1} to {steps.stop}, sequences of up to {max_seq_length} tokens: "
    return (
        f"{where if max_seq_length else ''}{epoch_length:,} examples an epoch, {len(steps) * batch_size / epoch_length:.1f} "
        f"epochs; {batch_size} sequences a step in {num_micro_batches} micro-batches"
    )


def step_line(row: dict[str, Any], steps: int, time_left: str) -> str:
    """Write the values of a logged step."""
    parts = [f"step {row['step']}/{steps}"]
    if "skipped" in row:
        parts.append(f"skipped: {row['skipped']} (its {len(row['examples'])} examples are in metrics.jsonl)")
    else:
        parts.append(f"loss {row['loss']:.4f}" if "loss" in row else "left out")
    if "mlm_loss" in row:
        parts.append(f"mlm {row['mlm_loss']:.4f}")
    if "nsp_accuracy" in row:
        parts.append(f"nsp acc {row['nsp_accuracy']:.2f}")
    parts.append(f"lr {row['learning_rate']:.2e}")
    if "tokens_per_second" in row:
        parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
    return "  ".join([*parts, f"{time_left} left"])


def skips_line(num_skipped: int) -> str:
    """Count the skipped steps of a run."""
    steps = "1 step was" if num_skipped == 1 else f"{num_skipped} steps were"
    return f"{steps} skipped because the loss or gradient was not finite; metrics.jsonl names the examples"


def scores_line(metrics: Mapping[str, float], majority: Mapping[str, float]) -> str:
    """Write a task's metrics, beside those of always predicting the commonest label."""
    beside = {name: f" (majority {value:.4f})" for name, value in majority.items()}
    return ", ".join(f"{name} {value:.4f}{beside.get(name, '')}" for name, value in metrics.items())


def health_line(metrics: dict[str, float], baselines: dict[str, float]) -> str:
    """Compare the scores on held-out text with word counts and, for pairs, with guessing."""
    entropy, loss = baselines["unigram entropy"], metrics["mlm_loss"]
    verdict = "below it: learning from context" if loss < entropy else "not below it yet"
    text = f"held-out MLM loss {loss:.3f}, unigram entropy {entropy:.3f} ({verdict})"
    text += f", MLM accuracy {metrics['mlm_accuracy']:.3f}"
    if "nsp_accuracy" in metrics:
        text += f"; NSP accuracy {metrics['nsp_accuracy']:.3f}, guessing {baselines['guessing']:.3f}"
    return text
