"""Answers to words of other tools that are no setting here: what to set instead, computed from the other settings."""

import contextlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

from bertkit.base.errors import counted
from bertkit.settings.reading import synonyms

Current = Callable[[str], object]  # takes a name; returns its value in this command, None if it has none
PER_DEVICE, PARTS = "per_device_train_batch_size", "gradient_accumulation_steps"


def answer(name: str, value: object, current: Current) -> str:
    """Return what to set instead of a name, or what to do; "" if nothing is known about it."""
    compute = _COMPUTED.get(name.lower())
    return (compute(value, current) if compute is not None else "") or synonyms.advice(name)


def is_answered(name: str) -> bool:
    """Whether something is known about a name that is no setting here."""
    return name in _COMPUTED or bool(synonyms.advice(name))


def _batch(_: object, current: Current) -> str:
    """Convert the sizes of batches on one device, and the number of them in a step, to those of a global batch and its parts."""
    sequences, size, parts = (_number(current(name)) for name in ("batch.sequences", PER_DEVICE, PARTS))
    if sequences is None:
        return ""
    num_processes = math.prod(_number(current(f"launch.{name}")) or 1 for name in ("num_processes", "num_hosts"))
    num_processes = max(num_processes, _number(os.environ.get("WORLD_SIZE")) or 1)  # of torchrun
    where = counted(num_processes, "process")
    if size is not None:
        total = size * (parts or 1) * num_processes
        return f"here it is batch.micro_sequences={size}; the global batch is batch.sequences={total}, over {where}"
    micro = math.ceil(sequences / (parts or 1) / num_processes)
    return f"here it is batch.micro_sequences={micro}; the global batch is batch.sequences={sequences}, over {where}"


def _epochs(value: object, current: Current) -> str:
    """Convert steps to epochs, as far as that is possible without the data."""
    sequences, steps = _number(current("batch.sequences")), _number(value)
    if sequences is None or steps is None:
        return ""
    examples = steps * sequences
    return f"here it is num_epochs={examples}/N for N training examples, since a step has batch.sequences={sequences}"


def _shape(value: object, current: Current) -> str:
    """Convert a file with the sizes of a BERT to settings; for its weights, name the folder."""
    folder = f"for a model with weights set model_dir={Path(str(value)).parent}"
    shown = list[str]()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sizes = json.loads(Path(str(value)).expanduser().read_text(encoding="utf-8"))
        shown = [f"model.{name}={size}" for name, size in sizes.items() if current(f"model.{name}") not in (None, size)]
    return f"here it is {' '.join(shown)}; {folder}" if shown else folder


def _maximum(value: object, current: Current) -> str:
    """Name the setting of the instances of segments=google, if the command has them."""
    name = "segments.max_predictions_per_seq"
    return "" if current(name) is None else f"here it is {name}={value}"


def _number(value: object) -> int | None:
    return int(str(value)) if str(value).isdecimal() and int(str(value)) else None


_COMPUTED: dict[str, Callable[[object, Current], str]] = {
    PER_DEVICE: _batch,
    PARTS: _batch,
    "max_predictions_per_seq": _maximum,
    "max_steps": _epochs,
    "num_steps": _epochs,
    "bert_config_file": _shape,
    "config_file": _shape,
}
