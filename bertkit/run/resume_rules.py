"""Which settings may change when a run is resumed: each has a class, its own or that of its group.

A run is identified by its settings that are not free, and by the content of its data and starting weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.base.typed_settings import differences
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings

FREE = "free"  # does not change what is learned: places, logs, saves
WARN = "warn"  # takes effect, with a warning
FIXED = "fixed"  # refused, unless resume.allow names it; then it takes effect
BEGUN = "begun"  # takes effect only when a run begins; changes on resume are always refused
REFUSED = (FIXED, BEGUN)

Rules = Mapping[str, str]
RunSettings = PretrainSettings | FinetuneSettings

CONTENT = {"data_fingerprint": FIXED, "starting_weights": BEGUN, "vocabulary": BEGUN}
BOTH = {
    **CONTENT,
    "output_dir": FREE,
    "data_dir": FREE,
    "seed": FIXED,
    "precision": FIXED,
    "kernels": WARN,  # rounding and dropout differ
    "compile": WARN,
    "device": FREE,  # a warning about another kind comes with the checkpoint
    "batch.sequences": FIXED,
    "batch.micro_sequences": WARN,  # rounding and dropout differ
    "batch.micro_tokens": WARN,
    "optimizer": FIXED,
    "optimizer.name": BEGUN,  # the moments have another meaning in another optimizer
    "schedule": FIXED,
    "reproducibility": FIXED,
    "numerics": FREE,
    "data.skip_steps": WARN,
    "checkpoint": FREE,
    "log": FREE,
    "launch": FREE,
    "plugins": FREE,  # where they come from; their names and options are settings of their slots
    "resume": FREE,
}
PRETRAIN: Rules = {
    **BOTH,
    "model_dir": FREE,
    "init_moments": BEGUN,
    "steps": WARN,  # the schedule continues with the new number
    **dict.fromkeys(("model", "attention", "norm", "pooling"), BEGUN),  # the weights have their shape
    "segments": FIXED,
    **dict.fromkeys(("segments.kind", "segments.next_sentence"), BEGUN),  # the heads depend on them
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
    "head": BEGUN,
    "num_epochs": FIXED,
    "freeze": BEGUN,
    "reinit_layers": BEGUN,
    "layer_decay": FIXED,
    "class_weights": FIXED,
    "max_train_examples": FIXED,
    "dev_share": FIXED,
    "evaluation": WARN,  # the best weights depend on the steps of evaluation
}
LENGTH = "steps"  # the only WARN setting with which a finished run continues


@dataclass(frozen=True)
class Change:
    """A setting with another value than before."""

    key: str
    old: Any
    new: Any


def class_of(key: str, rules: Rules) -> str:
    """Give the class of a dotted key: its own, or that of the nearest group with one."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in rules:
            return rules[".".join(parts[:length])]
    raise KeyError(f"no rule says whether '{key}' may change when a run is resumed")


def identity_of(settings: Mapping[str, Any], rules: Rules, prefix: str = "") -> dict[str, Any]:
    """Give the settings that are not free, nested as they are."""
    identity: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            inner = identity_of(value, rules, f"{prefix}{key}.")
            identity |= {key: inner} if inner else {}
        elif class_of(f"{prefix}{key}", rules) != FREE:
            identity[key] = value
    return identity


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """List the differences of two identities, for the top-level keys that both have."""
    common = [key for key in old if key in new]
    pairs = differences({key: old[key] for key in common}, {key: new[key] for key in common})
    return [Change(*pair) for pair in pairs]


def refused(changes: Sequence[Change], rules: Rules, allow: Sequence[str]) -> list[Change]:
    """Give the changes that are refused: those of BEGUN settings, and of FIXED ones unless `allow` names them or a group."""

    def is_allowed(key: str) -> bool:
        return class_of(key, rules) != BEGUN and any(key == name or key.startswith(f"{name}.") for name in allow)

    return [change for change in changes if class_of(change.key, rules) in REFUSED and not is_allowed(change.key)]


def ways_out(changes: Sequence[Change], rules: Rules) -> str:
    """Suggest remedies for refused changes, other than choosing another directory."""
    begun = [change.key for change in changes if class_of(change.key, rules) == BEGUN]
    if begun:
        return f"or restore its original value of {', '.join(begun)}, which cannot change after the run has begun"
    names = ",".join(change.key for change in changes)
    return f"use its settings, or change them from here on with resume.allow=[{names}]"
