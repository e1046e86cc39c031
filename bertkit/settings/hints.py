"""One word for one thing: synonyms that are taken, and what a setting of another tool or command is called here."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.text_files import MAX_DEPTH, TOO_DEEP
from bertkit.base.typed_settings import conf_dir, nearest
from bertkit.settings.help import COMMANDS

MODEL_DIR = "model_dir"
OPTIONS = ("--help", "-h", "-m", "--multirun", "--debug", "--version", "--info")
VALUED_OPTIONS = ("--config-dir", "--config", "--cfg")
SYNONYMS = ("checkpoint", "init_from")  # of model_dir
NEXT_SENTENCE = "segments.next_sentence"
_SYNONYMS_OF = {MODEL_DIR: SYNONYMS, NEXT_SENTENCE: ("next_sentence",)}

# Names of other tools, mostly of transformers' TrainingArguments and scripts -> the settings that may be meant, of which a
# command has the first ones that it knows. One with a value takes the place of the whole.
_LENGTHS, _EPOCHS = ("task.max_seq_length", "segments.max_seq_length"), ("num_epochs", "steps=auto")
_ELSEWHERE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "learning_rate", "peak_lr", "max_lr"), ("optimizer.peak_learning_rate",)),
    **dict.fromkeys(("batch_size", "train_batch_size", "global_batch_size"), ("batch.sequences", "batch_sequences")),
    "per_device_train_batch_size": ("batch.micro_sequences",),
    **dict.fromkeys(("epochs", "num_train_epochs", "max_epochs", "n_epochs"), _EPOCHS),
    **dict.fromkeys(("max_steps", "num_steps", "train_steps", "num_train_steps"), ("steps", "num_epochs=3")),
    **dict.fromkeys(("max_length", "max_seq_length", "max_seq_len", "model_max_length"), _LENGTHS),
    **dict.fromkeys(("fp16", "bf16", "mixed_precision", "amp"), ("precision=bf16",)),
    **dict.fromkeys(("no_cuda", "use_cpu", "cpu"), ("device=cpu",)),
    **dict.fromkeys(("model_name_or_path", "model_name", "model_path", "model", "pretrained_model"), (MODEL_DIR,)),
    **dict.fromkeys(("out", "out_dir", "save_dir", "output_path"), ("output_dir", "output")),
    **dict.fromkeys(("input_file", "text_file", "predict_file"), ("input", "corpus.path")),
    "dataset_name": ("corpus.path", "task.hub.path"),
    **dict.fromkeys(("warmup", "num_warmup_steps", "warmup_steps"), ("schedule.warmup_steps",)),
    **dict.fromkeys(("warmup_ratio", "warmup_proportion"), ("schedule.warmup_share",)),
    "weight_decay": ("optimizer.weight_decay",),
    "max_grad_norm": ("optimizer.max_grad_norm",),
    "lr_scheduler_type": ("schedule",),
    "optim": ("optimizer",),
    "gradient_accumulation_steps": ("batch.micro_sequences",),
    "logging_steps": ("log.every_steps",),
    "save_steps": ("checkpoint.every_steps",),
    "eval_steps": ("evaluation.every_steps",),
    "save_total_limit": ("checkpoint.keep_last",),
    "early_stopping_patience": ("evaluation.patience",),
    "max_train_samples": ("max_train_examples",),
    "mlm_probability": ("masking.probability",),
    "whole_word_mask": ("masking=whole_word",),
    **dict.fromkeys(("vocab_file", "tokenizer_name"), ("tokenizer.path",)),
    "vocab_size": ("tokenizer.vocab_size",),
    **dict.fromkeys(("text_column", "text_column_name"), ("task.columns.text",)),
    **dict.fromkeys(("label_column", "label_column_name"), ("task.columns.label",)),
    "task_name": ("task",),
    "label_list": ("task.labels",),
    "doc_stride": ("task.spans.window_step",),
    **dict.fromkeys(("num_beams", "beam_size"), ("task.generation.num_beams",)),
    **dict.fromkeys(("label_smoothing", "label_smoothing_factor"), ("task.generation.label_smoothing",)),
    **dict.fromkeys(("max_target_length", "generation_max_length"), ("task.generation.max_target_length",)),
    **dict.fromkeys(("num_gpus", "nproc_per_node", "num_devices"), ("launch.num_processes",)),
    **dict.fromkeys(("resume_from_checkpoint", "overwrite_output_dir"), ("output_dir",)),
}
_FILES = {"train_file": "train", "validation_file": "dev", "dev_file": "dev", "eval_file": "dev", "test_file": "test"}
_TAKES_OVER = {"prepare": "data_dir", "pretrain": MODEL_DIR}  # whose result is given on by which setting


def check_depth(overrides: Sequence[str]) -> None:
    """Refuse brackets deeper in one another than the parser can follow; those in quotes are text.

    Raises:
        InputError: naming the first one.
    """
    for text in overrides:
        depth = 0
        for mark in re.findall(r"[\[{(]|[\]})]", re.sub(r"""(["'])(?:\\.|(?!\1).)*\1""", "", text, flags=re.DOTALL)):
            depth += 1 if mark in "[{(" else -1
            if depth > MAX_DEPTH:
                raise InputError(f"'{text[:40]}...': {TOO_DEEP}; quote the value if it is a text")


def canonical_overrides(command: str, overrides: Sequence[str]) -> list[str]:
    """Replace the synonyms of a setting where a command has it.

    Raises:
        InputError: it is given twice.
    """
    texts = list(overrides)
    for setting, synonyms in _SYNONYMS_OF.items():
        if setting.partition(".")[0] not in names_of(command):
            continue
        found = [text for text in texts if text.partition("=")[0] in (setting, *synonyms)]
        if len(found) > 1:
            raise InputError(f"{' and '.join(found)}: the same setting; give {setting}= alone, once")
        texts = [f"{setting}={text.partition('=')[2]}" if text in found else text for text in texts]
    return texts


@functools.cache
def names_of(command: str) -> frozenset[str]:
    """Give the first parts of the names of a command's settings, its groups among them."""
    import yaml  # not before it is needed: --help does without

    content = yaml.safe_load((conf_dir() / f"{command}.yaml").read_text(encoding="utf-8"))
    groups = [group for entry in content.pop("defaults", []) if isinstance(entry, dict) for group in entry]
    names = frozenset({*content, *groups})
    return names | names_of("finetune") - {"task", "seed"} if command == "glue" else names


def here(command: str, key: str, value: str) -> str | None:
    """Say what a setting of another tool is in a command of ours, with its value; None where nothing is known of it."""
    name, known = key.replace("-", "_").rpartition(".")[2], names_of(command)
    if name in _FILES and "task" in known:
        path = Path(value)
        return f"data_dir={path.parent} task.files.{_FILES[name]}={path.name}"
    meant = _ELSEWHERE.get(name, ("corpus.path",) if name in _FILES else ())
    fitting = next((each for each in meant if each.partition(".")[0].partition("=")[0] in known and each != key), None)
    if fitting is None:
        return None
    return fitting if "=" in fitting else f"{fitting}={value}"


def undashed(command: str, option: str, value: str) -> str:
    """Say what to write for an option that there is none of."""
    key, has_value, own = option.lstrip("-").partition("=")
    key, value = key.replace("-", "_"), own if has_value else value
    if command in COMMANDS:
        ours = here(command, key, value or "...")
        if ours is None and key.partition(".")[0] in names_of(command):
            ours = f"{key}={value or '...'}"
        if ours is not None:
            return f"unknown option {option}; settings have no dashes, write {ours}"
    return f"unknown option {option}{nearest(option, (*OPTIONS, *VALUED_OPTIONS))}; see bertkit --help"


def advice(command: str, key: str, value: str) -> str | None:
    """Say what to do about a key that a command has not: its name here, or the command that has it; None: neither."""
    ours = here(command, key, value)
    if ours is not None:
        return f"; here it is {ours}"
    foreign = _ELSEWHERE.get(key.rpartition(".")[2], ("corpus.path",) if key in _FILES else ())
    if foreign and command not in ("prepare", "pretrain", "finetune"):
        return f"; bertkit {command} has no such setting"
    for name in (key, *foreign):
        first = name.partition(".")[0].partition("=")[0]
        owner = next((each for each in COMMANDS if first in names_of(each)), None)
        if owner is not None and first not in names_of(command):
            given, here_as = name if "=" in name else f"{name}={value}", _TAKES_OVER.get(owner)
            then = f", whose output_dir is {here_as}= here" if here_as in names_of(command) else ""
            return f"; give {given} to bertkit {owner}{then}"
    return None
