"""What `--help` and `--info` say, read off the configuration files; only an option that is asked for is composed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import conf_dir, conf_dirs, nearest, option_names

COMMANDS = {
    "prepare": "text -> tokenizer and prepared dataset",
    "pretrain": "prepared dataset -> BERT, by masked LM and next sentence prediction",
    "finetune": "any model and a task's files -> a model of the task, and its scores",
    "glue": "any model and GLUE's files -> a model of every task and seed, a table, and the archive for the server",
    "predict": "model and inputs -> predictions, a line each",
    "embed": "encoder and texts -> a vector for each text",
    "evaluate": "model and a task's labelled split, or a prepared dataset -> metrics",
    "compare": "several runs -> their scores, curves and settings side by side; of two, where they diverge and why",
    "view": "any model and an input -> a page, numbers or a picture: attention, and what the prediction rests on",
    "serve": "models -> a JSON API and a page, for programs and people",
    "index": "text -> a library of passages, found by their words",
    "search": "a library, a reader and questions -> passages with their answers, and how often they are right",
    "export": "checkpoint -> a directory that transformers loads, compared before it says done",
    "verify": "any model -> a certificate of parity with the Hugging Face implementation",
}


PACKAGES = (
    "torch", "numpy", "tokenizers", "safetensors", "accelerate", "datasets", "evaluate", "transformers", "hydra-core",
)  # fmt: skip
USAGE = """\
usage: bertkit <command> [group=option] [key=value] ...

{commands}

options:
  --help             this text; `bertkit <command> --help`, or `bertkit help <command>`, for what a command needs and gives,
                     and with an option, such as `bertkit finetune task=ner --help`, for all of its settings
  --config FILE      begin with the settings of a run, its config.yaml; what the command line names is changed
  --config-dir DIR   add your own configuration groups
  --cfg job          print the composed configuration and stop
  -m, --multirun     one run per combination of comma-separated values, each in its own directory
  --debug            show tracebacks
  --info             versions, devices, and where the configuration lies
  --version

model_dir= is any model: a run, a checkpoint, a Hugging Face or TensorFlow directory, a hub id; checkpoint= and init_from= mean the same.

first steps:
  bertkit prepare corpus=python_docs tokenizer.vocab_size=4096 output_dir=runs/docs
  bertkit pretrain experiment=quickstart data_dir=runs/docs output_dir=runs/tiny
  bertkit finetune task=mrpc model_dir=runs/tiny data_dir=glue output_dir=runs/mrpc
  bertkit export model_dir=runs/tiny head=masked_lm output_dir=runs/tiny-mlm

exit codes:
  0 done                           6 another process or host died or hangs
  1 verify found a difference     70 a fault of bertkit itself
  2 wrong input or settings       75 stopped on request, checkpoint saved
  3 output directory in use      130 interrupted before there was anything to save
  4 storage                      141 the reader of the output left
  5 numerics"""


def usage() -> str:
    """Give the text of `bertkit --help`."""
    return USAGE.format(commands="\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items()))


def command_help(command: str, words: Sequence[str] = (), config_dir: str | None = None) -> str:
    """The head of the command's configuration file, its settings, and the options of its groups.

    Args:
        command: its name.
        words: of the command line; of a group that they choose an option of, it has that one's settings.
        config_dir: the user's own groups.

    Raises:
        InputError: there is no such option or directory.
    """
    directories = conf_dirs(config_dir)
    directory = directories[0]
    lines = (directory / f"{command}.yaml").read_text(encoding="utf-8").splitlines()
    head = [line[2:] for line in lines[: lines.index("defaults:")]]
    settings = [line for line in lines[lines.index("") + 1 :] if line]
    chosen = {line.split(":")[0].strip(" -"): line.split(":")[1].strip() for line in lines if re.match("  - .+:", line)}
    groups = {name: options for name, options in option_names(directories).items() if name in chosen}
    asked = {name: option for name, has_value, option in (word.partition("=") for word in words) if name in groups}
    for name, option in asked.items():
        if option not in groups[name]:
            hint = nearest(option, groups[name])
            raise InputError(f"unknown option {name}={option}{hint} (one of {', '.join(groups[name])})")
    text = [*head, "", "settings:", *(f"  {line}" for line in settings)]
    if command == "prepare":
        groups["segments"], chosen["segments"] = ["google"], "google"  # the others belong to pretrain
        groups["masking"] = ["bert", "whole_word"]  # which fixed instances have
    for name, options in sorted(groups.items(), key=lambda item: item[0] in asked):  # what is asked for comes last
        text += ["", f"{name}= {', '.join(options)}"]
        if name == "task" and name not in asked:
            text.append(f"  `bertkit {command} task=sequence --help` lists the settings of a task")
        if name in asked:
            text += _composed_option(name, asked[name], directories, config_dir)
        elif chosen[name] in options:
            own = (directory / name / f"{chosen[name]}.yaml").read_text(encoding="utf-8").splitlines()
            text += [f"  {name}.{line}" for line in own if line and not line.startswith("#")]
    return "\n".join(text)


def _composed_option(group: str, option: str, directories: Sequence[Path], config_dir: str | None) -> list[str]:
    """Give what an option is for, and its settings, composed of what it builds on."""
    from bertkit.settings.compose import option_lines

    settings = option_lines(group, option, config_dir)
    path = next(path for directory in reversed(directories) if (path := directory / group / f"{option}.yaml").is_file())
    comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return [f"  {line}" for line in (*comments, *settings)]


def info() -> str:
    """Say what a report of a fault needs: versions, devices, and where the configuration lies."""
    import os
    import platform
    from importlib.metadata import version

    import torch

    from bertkit import __version__

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    facts = {
        "bertkit": f"{__version__} in {Path(__file__).resolve().parents[1]}",
        "configuration": str(conf_dir()),
        "python": f"{platform.python_version()} on {platform.platform()}",
        **{package: version(package) for package in PACKAGES},
        "cpu": f"{cores} cores, {torch.get_num_threads()} threads of torch",
        "cuda": ", ".join(gpus) or "no device",
    }
    return "\n".join(f"{name:<14} {value}" for name, value in facts.items())
