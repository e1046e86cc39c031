"""The texts of `--help` and `--info`. Settings are read from the configuration files, mostly without Hydra, to be fast."""

import dataclasses
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

from bertkit.base import plugins
from bertkit.base.errors import InputError, nearest
from bertkit.base.typed_settings import conf_dir, conf_dirs, option_file, option_names
from bertkit.commands import all_commands
from bertkit.settings.reading.assignments import unparsed
from bertkit.settings.reading.names import command_of, load_plugins

PACKAGES = (
    "torch", "numpy", "tokenizers", "safetensors", "accelerate", "datasets", "evaluate", "transformers", "hydra-core",
)  # fmt: skip
USAGE = """\
usage: bertkit <command> [group=option] [key=value] ...

{commands}

options:
  --help             this text; `bertkit <command> --help` (or `bertkit help <command>`) shows a command and its usual settings,
                     `bertkit <command> --help all` all of them, and with an option, such as task=ner, those of that option
  --config FILE      start from the settings of an earlier run (its config.yaml); the command line overrides them
  --config-dir DIR   add your own configuration groups
  --cfg job          print the composed configuration and stop
  -m, --multirun     run every combination of comma-separated values, each in its own directory
  --debug            show tracebacks
  --info             show versions, devices, and the directory of the configuration files
  --version

model_dir= takes any model: a run, a checkpoint, a Hugging Face or TensorFlow directory, or a hub id,
perhaps with a revision: ID@REVISION. checkpoint= and init_from= are synonyms of model_dir=.

first steps:
  bertkit prepare corpus=python_docs tokenizer.vocab_size=4096 output_dir=runs/docs
  bertkit pretrain experiment=quickstart data_dir=runs/docs output_dir=runs/tiny
  bertkit finetune reviews.csv --text review --label stars model_dir=runs/tiny --output runs/stars
  bertkit export model_dir=runs/tiny head=masked_lm output_dir=runs/tiny-mlm

exit codes:
  0 done                           6 another process or host died or hangs
  1 verify found a difference     70 a bug in bertkit
  2 wrong input or settings       75 stopped on request, checkpoint saved
  3 output directory in use      130 interrupted before there was anything to save
  4 storage                      141 output pipe closed
  5 numerics"""


def usage() -> str:
    """Return the text of `bertkit --help`."""
    commands = [f"  {command.name:<10} {command.needs} -> {command.gives}" for command in all_commands()]
    return USAGE.format(commands="\n".join(commands))


@dataclasses.dataclass(frozen=True)
class _CommandFile:
    """The configuration file of a command, as lines."""

    head: list[str]  # the comment
    settings: list[str]
    chosen: dict[str, str]  # the option of each group

    @classmethod
    def read(cls, path: Path) -> "_CommandFile":
        """Read a file; in it the comment is followed by the list of options, a blank line, and the settings."""
        lines = path.read_text(encoding="utf-8").splitlines()
        defaults = re.findall(r"^  - (\w+): (\S+)", "\n".join(lines), re.MULTILINE)
        settings = [line for line in _with_full_names(lines[lines.index("") + 1 :]) if line]
        return cls([line[2:] for line in lines[: lines.index("defaults:")]], settings, dict(defaults))

    @property
    def summary(self) -> list[str]:
        """The comment up to what the command gives."""
        gives = next(number for number, line in enumerate(self.head) if line.startswith("Gives:"))
        return self.head[: self.head.index("", gives)]


def _with_full_names(lines: Iterable[str]) -> list[str]:
    """Return the lines of a file with its settings as the user types them: `log.trackers: []`."""
    named, group = list[str](), ""
    for line in lines:
        if header := re.fullmatch(r"(\w+):", line):
            group = f"{header[1]}."
        else:
            named.append(f"{group}{line[2:]}" if re.match(r"  \w", line) else line.strip())
    return named


def _lines_of(path: Path) -> list[str]:
    """Return the lines of an option's file, with the settings' names in their group; none for the option null."""
    return _with_full_names(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else []


def command_help(command: str, words: Sequence[str] = (), config_dir: str | None = None) -> str:
    """Return the help of a command: what it needs and gives, with examples, and its usual settings.

    With the word `all`, or for a command without usual settings: the whole comment in its configuration file, all settings,
    and the options of its groups. An option in the words, such as task=ner, adds the settings of that option.
    """
    directories = conf_dirs(config_dir)
    file = _CommandFile.read(directories[0] / f"{command}.yaml")
    groups = {name: options for name, options in option_names(directories).items() if name in file.chosen}
    own = command_of(command).options
    requested = {name: option for name, _, option in (word.partition("=") for word in words) if name in groups}
    for name, option in requested.items():
        if option not in groups[name]:
            hint = nearest(option, groups[name])
            raise InputError(f"unknown option {name}={option}{hint} (one of {', '.join(groups[name])})")
    load_plugins([unparsed(word) for word in words])
    usual = _usual_settings(directories[0], command, file.chosen) if "all" not in words else []
    if usual:
        more = f"`bertkit {command} --help all` explains more, and lists all settings."
        text = [*file.summary, "", "usual settings:", *usual, "", more]
        groups = {name: options for name, options in groups.items() if name in requested}
    else:
        text = [*file.head, "", "settings:", *(f"  {line}" for line in file.settings)]
        groups |= own
    chosen = file.chosen | {name: options[0] for name, options in own.items()}
    for name, options in sorted(groups.items(), key=lambda item: item[0] in requested):  # requested groups come last
        text += ["", f"{name}= {', '.join(options)}"]
        if name in requested:
            text += _option_help(name, requested[name], directories)
        else:
            text += _chosen_help(command, name, directories[0] / name / f"{chosen[name]}.yaml")
    head = text.index("usual settings:" if usual else "settings:")
    text = [*text[:head], *_with_size(text[head:], command, file.chosen, requested, directories)]
    text = [line.replace("  #: ", "  # ") for line in text]
    top_level = {re.split("[:.]", line)[0] for line in file.settings} | file.chosen.keys()
    return "\n".join([*text, *(line for slot in plugins.SLOTS for line in _plugin_help(slot, top_level))])


def _chosen_help(command: str, group: str, path: Path) -> list[str]:
    """List the settings of a chosen option; without a task, say how to see the settings of tasks."""
    text = (
        [f"  `bertkit {command} task=sequence --help` lists the settings of a task, such as task.skip_labels"]
        if group == "task"
        else []
    )
    return text + [f"  {group}.{line}" for line in _lines_of(path) if line and not line.startswith("#")]


def _with_size(
    text: list[str], command: str, chosen: Mapping[str, str], requested: Mapping[str, str], directories: Sequence[Path]
) -> list[str]:
    """Give the settings of pretrain that a size of model sets the values of this size, unless an option is requested, which has its own."""
    if command != "pretrain" or "experiment" in requested:
        return text
    size, own = requested.get("model", chosen["model"]), {"segments": "final_phase"}  # lengths go together
    others = {*requested, *(own.get(group) for group in requested)} - {"model"}
    lines = "\n".join(_lines_of(option_file(directories, "from_scratch", size)))
    values = dict(re.findall(r"^([\w.]+): (\S+)", lines, re.MULTILINE))
    names = "|".join(re.escape(name) for name in values if name.partition(".")[0] not in others)

    def with_value(found: re.Match[str]) -> str:
        value = f"{values[found[2]]:<{len(found[3])}}"  # as wide as the other one; the source is that of the other one
        return f"{found[1]}{value}{found[4] or '  #'} (model={size}: conf/from_scratch)"

    pattern = rf"^(  ({names})(?:=|: ))(\S+ *)(.*?)(?: \([^()]*\))?$"
    return re.sub(pattern, with_value, "\n".join(text), flags=re.MULTILINE).split("\n")


def _usual_settings(directory: Path, command: str, chosen: Mapping[str, str]) -> list[str]:
    """Return the usual settings in the file of a command, and, if there are any, in the options that it chooses."""
    own, of_groups = _usual_in(directory / f"{command}.yaml", ""), dict[str, str]()
    if not own:
        return []
    for group, option in chosen.items():
        of_groups |= _usual_in(directory / group / f"{option}.yaml", f"{group}.")
    return [*own.values(), *(line for name, line in of_groups.items() if name not in own)]


def _usual_in(path: Path, prefix: str) -> dict[str, str]:
    """Return the settings in a file whose comments begin with `#:`, and a line of help for each."""
    usual = dict[str, str]()
    for line in _lines_of(path):
        if match := re.match(r"([\w.]+): (.*?)  #: (.*)", line):
            name, value, comment = match.groups()
            setting = f"{prefix}{name}={'' if value.startswith('$') else value}"
            usual[f"{prefix}{name}"] = f"  {setting:<34} {comment}"
    return usual


def _plugin_help(slot: str, settings: Container[str]) -> list[str]:
    """List the plug-ins of a slot with their options, if a command has its setting."""
    place = plugins.SLOTS[slot]
    if place.setting.partition(".")[0] not in settings:
        return []
    lines = []
    for name in plugins.plugins_of(slot):
        options = dataclasses.fields(plugins.options_of(slot, name)) if place.options else ()
        lines += ["", f"{place.setting}={name}  (a plug-in)"]
        lines += [f"  {place.options}.{option.name}: {option.default}" for option in options]
    return lines


def _option_help(group: str, option: str, directories: Sequence[Path]) -> list[str]:
    """Return the comments in the file of an option, and its settings with their comments, including inherited ones."""
    from bertkit.settings.reading.compose import check_own_files, option_lines

    check_own_files(directories)
    own, *inherited = _with_inherited(group, option, directories)
    if own[0] == "# @package _global_":  # an experiment sets settings of other groups
        return [f"  {line}" for line in own[1:]]
    comments = _comments(own)
    for lines in inherited:
        for name, comment in _comments(lines).items():
            if not comments.get(name):  # the source, in parentheses, of a number is not that of a changed one
                comments[name] = re.sub(r" \([^()]*\)$", "", comment) if name in comments else comment
    text = [line for line in own if line.startswith("#")]
    for line in option_lines(group, option, directories):
        name = line.partition(":")[0].removeprefix(f"{group}.")
        text.append(f"{line}{comments.get(name, '')}")
    return [f"  {line}" for line in text]


def _with_inherited(group: str, option: str, directories: Sequence[Path]) -> list[list[str]]:
    """Return the lines of an option's file, and of each file from which it inherits settings, the nearest one first."""
    import yaml

    text = option_file(directories, group, option).read_text(encoding="utf-8")
    files = [text.splitlines()]
    for parent in yaml.safe_load(text).get("defaults", ()):
        if isinstance(parent, str) and parent != "_self_":
            files += _with_inherited(group, parent, directories)
    return files


def _comments(lines: Sequence[str]) -> dict[str, str]:
    """Return the comment behind each setting in a file; "" for none."""
    settings = (re.match(r"([\w.]+):.*?(  #:? .*)?$", line) for line in _with_full_names(lines))
    return {setting[1]: setting[2] or "" for setting in settings if setting is not None}


def info() -> str:
    """Return the information for a bug report: versions, devices, and the directory of the configuration files."""
    import platform
    from importlib.metadata import version

    import torch

    from bertkit import __version__
    from bertkit.base.processors import num_processors

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    facts = {
        "bertkit": f"{__version__} in {Path(__file__).resolve().parent}",
        "configuration": str(conf_dir()),
        "python": f"{platform.python_version()} on {platform.platform()}",
        **{package: version(package) for package in PACKAGES},
        "cpu": f"{num_processors()} cores, {torch.get_num_threads()} threads of torch",
        "cuda": ", ".join(gpus) or "no device",
    }
    return "\n".join(f"{name:<14} {value}" for name, value in facts.items())
