"""What may change when a run is resumed: every setting of pretraining and of fine-tuning has its class here.

A run is identified by its settings that are not free, and by its data and starting weights. A name stands for itself and
for everything below it that has no class of its own; a test asks for the class of every setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.base import errors
from bertkit.base.errors import InputError
from bertkit.base.typed_settings import differences, dotted_keys, nearest

FREE = "free"  # changes nothing of what is learned: places, logs, saves
WARN = "warn"  # takes effect, and is said in a line
FIXED = "fixed"  # refused, unless resume.allow names it; then it takes effect
BEGUN = "begun"  # had its effect when the run began, and can have none on resume: refused, whatever is allowed
REFUSED = (FIXED, BEGUN)

Rules = Mapping[str, str]

# of data and starting weights the content counts, not the place
CONTENT = {"data_fingerprint": FIXED, "starting_weights": BEGUN, "vocabulary": BEGUN}
BOTH = {
    **CONTENT,
    "output_dir": FREE,
    "data_dir": FREE,
    "seed": FIXED,
    "precision": FIXED,
    "kernels": WARN,  # rounding and dropout differ
    "compile": WARN,
    "device": FREE,  # of another kind than before: said when the checkpoint is loaded
    "batch.sequences": FIXED,
    "batch.micro_sequences": WARN,  # rounding and dropout differ
    "batch.micro_tokens": WARN,
    "optimizer": FIXED,
    "optimizer.name": BEGUN,  # the moments of one mean something else to another
    "schedule": FIXED,
    "reproducibility": FIXED,
    "numerics": FREE,
    "data.skip_steps": WARN,
    "checkpoint": FREE,
    "log": FREE,
    "launch": FREE,
    "resume": FREE,
}
PRETRAIN: Rules = {
    **BOTH,
    "model_dir": FREE,
    "init_moments": BEGUN,
    "steps": WARN,  # train longer, or less; the schedule is that of the new number of steps from there on
    **dict.fromkeys(("model", "attention", "norm", "pooling"), BEGUN),  # the weights have their shape
    "segments": FIXED,
    **dict.fromkeys(("segments.kind", "segments.next_sentence"), BEGUN),  # they decide on the heads
    "final_phase": FIXED,
    "masking": FIXED,
    "evaluation": FREE,
}
FINETUNE: Rules = {
    **BOTH,
    "model_dir": FREE,
    "task": FIXED,
    **dict.fromkeys(("task.kind", "task.labels", "task.multi_label"), BEGUN),  # the head has their shape
    **dict.fromkeys(("decoder", "model", "tokenizer"), BEGUN),  # the weights have their shape
    "num_epochs": FIXED,
    "freeze": BEGUN,
    "reinit_layers": BEGUN,
    "layer_decay": FIXED,
    "class_weights": FIXED,
    "max_train_examples": FIXED,
    "dev_share": FIXED,
    "evaluation": WARN,  # which weights are the best depends on when they are measured
}
LENGTH = "steps"  # the one setting to warn of that gives a finished run something to do


@dataclass(frozen=True)
class Change:
    """A setting that is another one than before."""

    key: str
    old: Any
    new: Any


def class_of(key: str, rules: Rules) -> str:
    """Give the class of a dotted key: its own, or that of the nearest group that has one."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in rules:
            return rules[".".join(parts[:length])]
    raise KeyError(f"no rule says whether '{key}' may change when a run is resumed")


def identity_of(settings: Mapping[str, Any], rules: Rules, prefix: str = "") -> dict[str, Any]:
    """Give the settings that are not free, nested as they are."""
    identity: dict[str, Any] = {}
    for key, value in settings.items():
        inner = identity_of(value, rules, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        is_free = not inner if isinstance(value, Mapping) else class_of(f"{prefix}{key}", rules) == FREE
        if not is_free:
            identity[key] = inner
    return identity


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """List what differs between two identities; what only one of them says is not compared."""
    common = [key for key in old if key in new]
    found = differences({key: old[key] for key in common}, {key: new[key] for key in common})
    return [Change(*difference) for difference in found]


def check_allowed(allow: Sequence[str], identity: Mapping[str, Any]) -> None:
    """Refuse names that stand for nothing.

    Raises:
        InputError: naming each of them, with the nearest name.
    """
    known = dotted_keys(identity)
    unknown = [f"resume.allow: no fixed setting '{name}'{nearest(name, known)}" for name in allow if name not in known]
    if unknown:
        raise InputError(*unknown)


def refused(found: Sequence[Change], rules: Rules, allow: Sequence[str]) -> list[Change]:
    """Give the changes that are refused.

    Those of a fixed setting that no name in `allow`, of the setting or of a group that it is in, permits; and all of one
    that had its effect when the run began.
    """

    def is_allowed(key: str) -> bool:
        return class_of(key, rules) != BEGUN and any(key == name or key.startswith(f"{name}.") for name in allow)

    return [change for change in found if class_of(change.key, rules) in REFUSED and not is_allowed(change.key)]


def ways_out(found: Sequence[Change], rules: Rules) -> str:
    """Say what to do about refused changes, but for choosing another directory."""
    begun = [change.key for change in found if class_of(change.key, rules) == BEGUN]
    if begun:
        return f"or go back to its settings: {', '.join(begun)} had its effect when the run began"
    return (
        f"use its settings, or change them from here on with resume.allow=[{','.join(change.key for change in found)}]"
    )


def listed(found: Sequence[Change]) -> str:
    """Write changes for people, the first few of many."""
    return errors.listed([f"{change.key}: {change.old!r} there, {change.new!r} here" for change in found])
