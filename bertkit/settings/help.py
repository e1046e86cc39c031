"""What `--help` says, read off the configuration files; nothing is composed for it."""

from __future__ import annotations

import re

from bertkit.config import conf_dir, option_names

COMMANDS = {
    "prepare": "text -> tokenizer and prepared dataset",
    "pretrain": "prepared dataset -> BERT, by masked LM and next sentence prediction",
    "finetune": "any model and a task's files -> a model of the task, and its scores",
    "glue": "any model and GLUE's files -> a model of every task and seed, a table, and the archive for the server",
    "predict": "model and inputs -> predictions, a line each",
    "embed": "encoder and texts -> a vector for each text",
    "evaluate": "model and a task's labelled split, or a prepared dataset -> metrics",
    "export": "checkpoint -> a directory that transformers loads, compared before it says done",
    "verify": "any model -> a certificate of parity with the Hugging Face implementation",
    "bench": "bertkit beside the Hugging Face way on the same work -> tokens per second, ratio, memory",
}


USAGE = """\
usage: bertkit <command> [group=option] [key=value] ...

{commands}

options:
  --help             this text; `bertkit <command> --help` for what a command needs and gives
  --cfg job          print the composed configuration and stop
  --config-dir DIR   add your own configuration groups
  -m                 one run per combination of comma-separated values, each in its own directory
  --debug            show tracebacks
  --version

first steps:
  bertkit prepare corpus=python_docs tokenizer.vocab_size=4096 output_dir=runs/docs
  bertkit pretrain experiment=quickstart data_dir=runs/docs output_dir=runs/tiny
  bertkit finetune task=mrpc model_dir=runs/tiny data_dir=glue output_dir=runs/mrpc
  bertkit export checkpoint=runs/tiny head=masked_lm output_dir=runs/tiny-mlm"""


def usage() -> str:
    """Give the text of `bertkit --help`."""
    return USAGE.format(commands="\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items()))


def command_help(command: str) -> str:
    """The head of the command's configuration file, its settings, and the options of its groups."""
    directory = conf_dir()
    lines = (directory / f"{command}.yaml").read_text(encoding="utf-8").splitlines()
    head = [line[2:] for line in lines[: lines.index("defaults:")]]
    settings = [line for line in lines[lines.index("") + 1 :] if line]
    chosen = {line.split(":")[0].strip(" -"): line.split(":")[1].strip() for line in lines if re.match("  - .+:", line)}
    groups = {name: options for name, options in option_names([directory]).items() if name in chosen}
    text = [*head, "", "settings:", *(f"  {line}" for line in settings)]
    if command == "prepare":
        groups["segments"], chosen["segments"] = ["google"], "google"  # the others belong to pretrain
    for name, options in groups.items():
        text += ["", f"{name}= {', '.join(options)}"]
        if chosen[name] in options:
            option = (directory / name / f"{chosen[name]}.yaml").read_text(encoding="utf-8").splitlines()
            text += [f"  {name}.{line}" for line in option if line and not line.startswith("#")]
    return "\n".join(text)
