"""Synonyms of settings, and hints for names from other tools and for settings of another command."""

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.base.typed_settings import conf_dir, nearest, option_names

MODEL_DIR = "model_dir"
OPTIONS = ("--help", "-h", "-m", "--multirun", "--debug", "--version", "--info")
VALUED_OPTIONS = ("--config-dir", "--config", "--cfg")
SYNONYMS = ("checkpoint", "init_from")  # of model_dir
NEXT_SENTENCE = "segments.next_sentence"
_SYNONYMS_OF = {MODEL_DIR: SYNONYMS, NEXT_SENTENCE: ("next_sentence",)}

# Names from other tools, mostly transformers' TrainingArguments and scripts -> candidates for the setting; a hint names the first
# one that the command has. A candidate with a value replaces the user's value too.
_FILES = {"train_file": "train", "validation_file": "dev", "dev_file": "dev", "eval_file": "dev", "test_file": "test"}
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
    **dict.fromkeys(_FILES, ("corpus.path",)),
    **dict.fromkeys(("resume_from_checkpoint", "overwrite_output_dir"), ("output_dir",)),
}
# the steps before and after another, and which setting takes their output_dir
_STEPS = {"prepare": "data_dir", "pretrain": MODEL_DIR, "finetune": MODEL_DIR}


def canonical_overrides(command: str, overrides: Sequence[str]) -> list[str]:
    """Replace synonyms by the name of the setting, if the command has it.

    Raises:
        InputError: a setting is set twice.
    """
    texts = with_plugins(command, overrides)
    for setting, synonyms in _SYNONYMS_OF.items():
        if setting.partition(".")[0] not in names_of(command):
            continue
        same = [text for text in texts if text.partition("=")[0] in (setting, *synonyms)]
        if len(same) > 1:
            raise InputError(f"{' and '.join(same)}: the same setting; give {setting}= alone, once")
        texts = [f"{setting}={text.partition('=')[2]}" if text in same else text for text in texts]
    return texts


def with_plugins(command: str, overrides: Sequence[str]) -> list[str]:
    """Import the modules in `plugins=`, and turn `masking=NAME` with a plug-in's name into `masking.kind=NAME`."""
    texts, modules = [], list[str]()
    for text in overrides:
        key, _, value = text.partition("=")
        if key == "plugins":
            modules += [name for name in re.split(r"[\[\],'\" ]+", value) if name]
        if key != "plugins" or key in names_of(command):
            texts.append(text)
    plugins.load(modules)
    for place, (key, _, value) in enumerate(text.partition("=") for text in texts):
        if (
            key in plugins.SETTINGS
            and value not in option_names([conf_dir()]).get(key, ())
            and plugins.find(key, value)
        ):
            texts[place] = f"{plugins.SETTINGS[key]}={value}"
    return texts


@functools.cache
def names_of(command: str) -> frozenset[str]:
    """Give the names of a command's settings and groups, without what stands after a dot."""
    import yaml  # slow; --help does without it

    content = yaml.safe_load((conf_dir() / f"{command}.yaml").read_text(encoding="utf-8"))
    groups = [group for entry in content.pop("defaults", []) if isinstance(entry, dict) for group in entry]
    names = frozenset({*content, *groups})
    return names | names_of("finetune") - {"task", "seed"} if command == "glue" else names


def undashed(command: str | None, option: str, value: str) -> str:
    """Say what to write instead of an unknown option; `command` is None if it is unknown too."""
    key, has_value, own = option.lstrip("-").partition("=")
    key, value = key.replace("-", "_"), (own if has_value else value) or "..."
    if command is not None:
        setting = _translated(command, key, value)
        if setting is None and _first(key) in names_of(command):
            setting = f"{key}={value}"
        if setting is not None:
            return f"unknown option {option}; settings have no dashes, write {setting}"
    return f"unknown option {option}{nearest(option, (*OPTIONS, *VALUED_OPTIONS))}; see bertkit --help"


def advice(command: str, key: str, value: str) -> str | None:
    """Say what to do about an unknown key: its name in this command, or the command that has it; None without advice."""
    setting = _translated(command, key, value)
    if setting is not None:
        return f"; here it is {setting}"
    candidates = _ELSEWHERE.get(key.rpartition(".")[2], ())
    if candidates and command not in _STEPS:
        return f"; bertkit {command} has no such setting"
    commands = [*_STEPS, *sorted(path.stem for path in conf_dir().glob("*.yaml") if path.stem not in _STEPS)]
    for name in (key, *candidates):
        owner = next((other for other in commands if _first(name) in names_of(other)), None)
        if owner is not None and _first(name) not in names_of(command):
            setting, taker = name if "=" in name else f"{name}={value}", _STEPS.get(owner)
            comes_before = commands.index(owner) < commands.index(command)
            then = f", whose output_dir is {taker}= here" if taker in names_of(command) and comes_before else ""
            return f"; give {setting} to bertkit {owner}{then}"
    return None


def _translated(command: str, key: str, value: str) -> str | None:
    """Translate a setting from another tool into one of this command; None if that is impossible."""
    name = key.replace("-", "_").rpartition(".")[2]
    if name in _FILES and "task" in names_of(command):
        path = Path(value)
        return f"data_dir={path.parent} task.files.{_FILES[name]}={path.name}"
    candidates = _ELSEWHERE.get(name, ())
    setting = next((other for other in candidates if _first(other) in names_of(command) and other != key), None)
    return setting if setting is None or "=" in setting else f"{setting}={value}"


def _first(name: str) -> str:
    """Give the first part of a name: `optimizer.beta1=0.9` -> optimizer."""
    return name.partition(".")[0].partition("=")[0]
