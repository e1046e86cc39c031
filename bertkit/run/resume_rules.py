"""Which settings may change when a run is resumed: every setting, or its group, has a class.

The identity of a run consists of all settings that are not FREE, and of hashes of its data and starting weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.base.typed_settings import differences
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings

FREE = "free"  # may change, since the weights do not depend on it: directories, logs, saves
WARN = "warn"  # may change, with a warning
FIXED = "fixed"  # may change only if resume.allow names it
AT_START = "at_start"  # may never change, because it is used only when a run begins
REFUSED = (FIXED, AT_START)

Rules = Mapping[str, str]
RunSettings = PretrainSettings | FinetuneSettings

CONTENT = {
    "data_fingerprint": FIXED,
    "dev_split": AT_START,
    "label_scale": AT_START,
    "starting_weights": AT_START,
    "vocabulary": AT_START,
}
BOTH = {
    **CONTENT,
    "output_dir": FREE,
    "overwrite": FREE,
    "data_dir": FREE,
    "seed": FIXED,
    "freeze": AT_START,  # the moments are those of what is trained
    "precision": FIXED,
    "kernels": WARN,  # rounding and dropout differ
    "compile": WARN,
    "recompute": FREE,  # changes no bit
    "device": FREE,  # `restore_platform` warns about another device
    "batch.sequences": FIXED,
    "batch.micro_sequences": WARN,  # rounding and dropout differ
    "batch.micro_tokens": WARN,
    "optimizer": FIXED,
    "optimizer.name": AT_START,  # another optimizer cannot use the moments
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
    "init_moments": AT_START,
    "num_epochs": WARN,  # the steps are what follows from it
    "steps": WARN,  # the learning rate schedule continues with the new number; wsd, from its stable part
    **dict.fromkeys(("model", "attention", "norm", "feed_forward", "pooling"), AT_START),  # as the weights' shapes
    "segments": FIXED,
    **dict.fromkeys(("segments.kind", "segments.next_sentence"), AT_START),  # the heads depend on them
    "objective": AT_START,  # the head depends on it
    "objective_options": FIXED,
    "final_phase": FIXED,
    "masking": FIXED,
    "evaluation": FREE,
}
FINETUNE: Rules = {
    **BOTH,
    "model_dir": FREE,
    "task": FIXED,
    **dict.fromkeys(("task.kind", "task.labels", "task.multi_label"), AT_START),  # the head depends on them
    # the shapes of the weights depend on them
    **dict.fromkeys(("decoder", "model", "tokenizer", "attention", "norm"), AT_START),
    "head": AT_START,
    "num_epochs": FIXED,
    "reinit_layers": AT_START,
    "layer_decay": FIXED,
    "class_weights": FIXED,
    "calibrate": FIXED,
    **dict.fromkeys(("objective", "objective_options"), FIXED),
    "max_train_examples": FIXED,
    "dev_share": FIXED,
    "evaluation": WARN,  # the choice of the best weights depends on it
}
# settings that runs of earlier versions do not have, or that are not written by default, and what they then are
UNWRITTEN = {"calibrate": False, "objective": "auto", "objective_options": {}}
UNHASHED = "starting_weights.special_tokens_map.json"  # a file that versions before 0.3 did not hash
LENGTH = "steps"  # the only WARN setting whose change makes a finished run continue


@dataclass(frozen=True)
class Change:
    """A setting whose value has changed."""

    key: str
    old: Any
    new: Any


def class_of(key: str, rules: Rules) -> str:
    """Return the class of a dotted key, or of the innermost group that has a class."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in rules:
            return rules[".".join(parts[:length])]
    raise KeyError(f"no rule says whether '{key}' may change when a run is resumed")


def identity_of(settings: Mapping[str, object], rules: Rules, prefix: str = "") -> dict[str, object]:
    """Return the settings that are not FREE, as a nested mapping."""
    identity: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            inner = identity_of(value, rules, f"{prefix}{key}.")
            identity |= {key: inner} if inner else {}
        elif class_of(f"{prefix}{key}", rules) != FREE:
            identity[key] = value
    return identity


def changes(old: Mapping[str, object], new: Mapping[str, object]) -> list[Change]:
    """List the differences between two identities, for the top-level keys that both have; without settings, `new` is about content alone."""
    old, new = {**UNWRITTEN, **old}, {**(UNWRITTEN if "seed" in new else {}), **new}
    common = [key for key in old if key in new]
    pairs = differences({key: old[key] for key in common}, {key: new[key] for key in common})
    return [Change(*pair) for pair in pairs if pair[:2] != (UNHASHED, None)]


def refused(changes: Sequence[Change], rules: Rules, allow: Sequence[str]) -> list[Change]:
    """Return the refused changes: of AT_START settings, and of FIXED settings unless `allow` names them or their group."""

    def is_allowed(key: str) -> bool:
        return class_of(key, rules) != AT_START and any(key == name or key.startswith(f"{name}.") for name in allow)

    return [change for change in changes if class_of(change.key, rules) in REFUSED and not is_allowed(change.key)]


def remedies(changes: Sequence[Change], rules: Rules) -> str:
    """Suggest remedies for refused changes, other than choosing another directory."""
    at_start = [change.key for change in changes if class_of(change.key, rules) == AT_START]
    if at_start:
        return f"restore the original value of {', '.join(at_start)}, which cannot change after the run has begun"
    names = ",".join(change.key for change in changes)
    return f"use its settings, or change them from here on with resume.allow=[{names}]"
