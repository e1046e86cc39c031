"""`bertkit <command> [group=option] [key=value] ...`: compose, build the settings, call the stage.

Hydra composes plain YAML here and nowhere else. torch is imported only by the stages, after every key and type
has been checked.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import signs
from bertkit.launch import launcher as launch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType

COMMANDS = {
    "prepare": "text -> tokenizer and prepared dataset",
    "pretrain": "prepared dataset -> BERT, by masked LM and next sentence prediction",
    "finetune": "any model and a task's files -> a model of the task, and its scores",
    "glue": "any model and GLUE's files -> a model of every task and seed, a table, and the archive for the server",
    "predict": "model and inputs -> predictions, a line each",
    "evaluate": "model and a task's labelled split, or a prepared dataset -> metrics",
    "export": "checkpoint -> a directory that transformers loads, compared before it says done",
    "verify": "any model -> a certificate of parity with the Hugging Face implementation",
    "bench": "bertkit beside the Hugging Face way on the same work -> tokens per second, ratio, memory",
}

KNOW_WHAT_IS_GIVEN = ("prepare", "pretrain", "evaluate")  # they ask which settings the command line names
KNOW_THE_TASK_OF_A_MODEL = ("predict", "evaluate")  # they take task.* without task=
TRAINING_COMMANDS = ("pretrain", "finetune")
PARALLEL_COMMANDS = (*TRAINING_COMMANDS, "evaluate")
INTERNAL_FAULT = 70  # EX_SOFTWARE

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


def main() -> None:
    """Run one command and exit with its code."""
    try:
        code = _work() if sys.argv[1:2] == ["--worker"] else run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to be flushed at the end
        code = launch.READER_LEFT_CODE
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command; give the exit code instead of raising."""
    options = {"--help": False, "-h": False, "-m": False, "--debug": False, "--version": False}
    config_dir: str | None = None
    print_config = False
    rest: list[str] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if argument in options:
            options[argument] = True
        elif argument in ("--config-dir", "--cfg"):
            value = queue.pop(0) if queue else ""
            if argument == "--config-dir":
                config_dir = value
            elif value == "job":
                print_config = True
            else:
                return _fail("--cfg: expected 'job'")
        elif argument.startswith("-"):
            return _fail(f"unknown option {argument}; see bertkit --help")
        else:
            rest.append(argument.replace("=~/", f"={Path.home()}/", 1))

    if options["--version"]:
        from bertkit import __version__

        print(f"bertkit {__version__}")
        return 0
    command = rest[0] if rest else ""
    if command not in COMMANDS:
        if command and not (options["--help"] or options["-h"]):
            from bertkit.config import nearest

            return _fail(f"unknown command '{command}'{nearest(command, COMMANDS)}; see bertkit --help")
        print(_usage())
        return 0 if options["--help"] or options["-h"] or not arguments else 2
    if options["--help"] or options["-h"]:
        print(_command_help(command))
        return 0
    try:
        launch.shows_tracebacks = options["--debug"]
        return _run_command(command, rest[1:], config_dir, print_config, options["-m"])
    except BrokenPipeError:
        raise
    except Exception as error:
        if options["--debug"]:
            raise
        return _report(error)
    except KeyboardInterrupt:
        return _fail(launch.INTERRUPTED, launch.INTERRUPTED_CODE)


def _run_command(command: str, overrides: list[str], config_dir: str | None, print_config: bool, sweep: bool) -> int:
    if sweep:
        return _sweep(command, overrides, config_dir)
    composed = compose(command, overrides, config_dir)
    if print_config:
        import yaml

        composed.pop("given", None)
        if not composed.get("task_changes"):
            composed.pop("task_changes", None)
        print(yaml.safe_dump(composed, sort_keys=False), end="")
        return 0
    from bertkit.config import build
    from bertkit.settings.schemas import SCHEMAS

    settings: Any = build(SCHEMAS[command], composed)
    if command in PARALLEL_COMMANDS:
        if launch.starts_workers(settings.launch):
            launch.start(command, settings)
            return 0
        launch.enter(settings.launch)
    elif not launch.world_from_environment().is_main:
        return 0  # one process is enough
    return _run_stage(command, settings)


def _run_stage(command: str, settings: Any) -> int:
    import importlib

    _quieten_libraries()
    numbers = launch.STOP_SIGNALS if command in (*TRAINING_COMMANDS, "glue") else (signal.SIGINT,)
    # raised inside an import, an interrupt leaves a library half loaded
    with _handling(numbers, lambda *_: os._exit(_stopped(command, settings))):
        stage = importlib.import_module("bertkit.bench.run" if command == "bench" else f"bertkit.stages.{command}")
    signs.beat()
    try:
        with _handling(numbers, signal.default_int_handler):  # between steps, training saves first
            return int(stage.run(settings) or 0)
    except KeyboardInterrupt:
        return _stopped(command, settings)


def _work() -> int:
    """Do, as one of several processes, what the launcher says; tell it how that ended."""
    from bertkit.config import build
    from bertkit.settings.schemas import SCHEMAS

    job = launch.take_job()
    try:
        code = _run_stage(job["command"], build(SCHEMAS[job["command"]], job["settings"]))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        signs.fail(launch.READER_LEFT_CODE, launch.READER_LEFT)
        raise
    except Exception as error:
        if job["debug"]:
            import traceback

            traceback.print_exc()
        return _report(error)
    except KeyboardInterrupt:
        return _fail(launch.INTERRUPTED, launch.INTERRUPTED_CODE)


@contextlib.contextmanager
def _handling(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _stopped(command: str, settings: Any) -> int:
    """Say what is left of a command that was stopped while it loaded or finished; give the exit code."""
    from bertkit.errors import StoppedError

    step = launch.newest_checkpoint(settings.output_dir) if command in TRAINING_COMMANDS else None
    if step is not None:
        return _report(StoppedError(launch.stopped_line(step)))
    if command == "glue" and any(Path(settings.output_dir).glob("*/seed-*/manifest.json")):
        return _report(StoppedError("stopped; the runs that are there are kept, and the same command goes on"))
    return _fail(launch.INTERRUPTED, launch.INTERRUPTED_CODE)


def compose(command: str, overrides: list[str], config_dir: str | None = None) -> dict[str, Any]:
    """Compose a command's configuration into a plain, resolved mapping.

    Raises:
        InputError: unknown keys and options, each with the nearest known name; malformed overrides.
    """
    if command == "glue":
        return _compose_suite(overrides, config_dir)
    return _compose_one(command, overrides, config_dir)


def _compose_suite(overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    """Compose glue: its own settings, and those of fine-tuning on each task, to which every other override goes."""
    from bertkit.errors import InputError
    from bertkit.settings.schemas import GLUE_TASKS

    own = _compose_one("glue", [], config_dir)
    mine = [text for text in overrides if text.partition("=")[0] in own]
    others = [text for text in overrides if text not in mine]
    for text in others:
        if text.partition("=")[0] in ("task", "seed"):
            raise InputError(f"'{text}': glue has several; set {text.partition('=')[0]}s=[...]")
    suite = _compose_one("glue", mine, config_dir)
    places = {name: suite[name] or "" for name in ("model_dir", "output_dir")} | {"data_dir": suite["data_dir"]}
    given = suite["tasks"] if isinstance(suite["tasks"], list) else []
    tasks = [task for task in given if task in GLUE_TASKS]  # the others are refused when the settings are built
    suite["runs"] = [_compose_one("finetune", [f"task={task}", *others], config_dir) | places for task in tasks]
    return suite


def _compose_one(command: str, overrides: list[str], config_dir: str | None) -> dict[str, Any]:
    """Compose one configuration file."""
    import yaml
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from bertkit.config import conf_dir
    from bertkit.errors import InputError

    directories = [conf_dir()]
    searchpath = []
    if config_dir is not None:
        directory = Path(config_dir).resolve()
        if not directory.is_dir():
            raise InputError(f"--config-dir {config_dir}: no such directory")
        directories.append(directory)
        searchpath = [f"hydra.searchpath=['file://{directory}']"]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(directories[0]), version_base="1.3"):
        groups = _groups(directories)
        choices = [text for text in overrides if text.partition("=")[2] in groups.get(text.partition("=")[0], ())]
        try:
            with_choices = hydra_compose(command, overrides=[*choices, *searchpath])
            known: dict[str, Any] = OmegaConf.to_container(with_choices, resolve=False)  # type: ignore[assignment]
            changes: list[str] = []
            if command in KNOW_THE_TASK_OF_A_MODEL and known["task"] is None:
                changes = [text for text in overrides if text.startswith("task.")]
                known |= {"task": _keys_of_tasks()} if changes else {}
            given = _check_overrides(overrides, known, groups)
            none = {(group, "null") for group in groups}
            kept = [text for text in overrides if text not in changes and text.partition("=")[::2] not in none]
            composed = hydra_compose(command, overrides=[*kept, *searchpath])  # Hydra has no null for a group
            plain: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            reason = " ".join(str(error.__cause__ or error).split())
            required = re.match(r"You must specify '(\w+)'", reason)
            if required:
                _refuse_unknown_option(required.group(1), overrides, groups)
                options = ", ".join(groups[required.group(1)])
                raise InputError(f"missing value: set {required.group(1)}= (one of {options})") from None
            raise InputError(f"cannot compose the configuration: {reason}") from None
    chosen = [text.partition("=")[2] for text in choices if text.startswith("experiment=")]
    plain.pop("experiment", None)
    if command in KNOW_THE_TASK_OF_A_MODEL:
        plain["task_changes"] = _values(changes)["task"] if changes else {}
    if command in KNOW_WHAT_IS_GIVEN:
        plain["given"] = [*given, *(key for name in chosen for key in _keys_of_experiment(directories, name))]
    return plain


def _refuse_unknown_option(group: str, overrides: list[str], groups: Mapping[str, list[str]]) -> None:
    """Refuse an option of a required group, which is missing because there is no such option."""
    from bertkit.config import nearest
    from bertkit.errors import InputError

    for text in overrides:
        name, _, value = text.partition("=")
        if name == group:
            hint = nearest(value, groups[group])
            raise InputError(f"unknown option {text}{hint} (one of {', '.join(groups[group])})")


def _check_overrides(overrides: list[str], defaults: Mapping[str, Any], groups: Mapping[str, list[str]]) -> list[str]:
    """Refuse every override whose key or option does not exist, all of them in one error; give their keys and groups."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from bertkit.config import nearest
    from bertkit.errors import InputError

    keys = _dotted_keys(defaults)
    parser = OverridesParser.create()
    errors: list[str] = []
    named: list[str] = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException:
            given, has_value, rest = text.partition("=")
            hint = f"quote the value twice: \"{given}='{rest}'\"" if has_value else "such as output_dir=runs/mine"
            errors.append(f"'{text}': expected key=value or group=option, {hint}")
            continue
        key = override.key_or_group
        name = key.split("/")[-1]
        named.append(key)
        if override.is_sweep_override():
            errors.append(f"'{text}': several values; write key=[a,b] for a list, or add -m to run each of them")
        elif key in groups:
            value = override.value()
            if value is None and defaults.get(key) is None:
                continue
            if value not in groups[key]:
                hint = nearest(value, groups[key]) if isinstance(value, str) else ""
                errors.append(f"unknown option {key}={value}{hint} (one of {', '.join(groups[key])})")
        elif key.endswith((".kind", ".name")) and override.value() in groups.get(key.rpartition(".")[0], ()):
            group = key.rpartition(".")[0]
            errors.append(f"{text}: would leave the other values as they are; choose {group}={override.value()}")
        elif key not in keys and key.startswith("segments.") and defaults.get("segments", "") is None:
            errors.append(f"'{key}': prepare stores tokens only; add segments=google, or give it to pretrain")
        elif key not in keys:
            known = [*keys, *groups]
            leaves = {leaf.split(".")[-1]: leaf for leaf in keys}
            hint = nearest(key, known) or nearest(name.split(".")[-1], leaves)
            parent, _, leaf = key.rpartition(".")
            if parent and any(known_key.startswith(f"{parent}.") for known_key in keys):
                siblings = [k[len(parent) + 1 :] for k in keys if k.startswith(f"{parent}.")]
                hint = nearest(leaf, siblings) or hint
            errors.append(f"unknown key '{key}'{hint or '; see bertkit <command> --help'}")
    if errors:
        raise InputError("\n".join(errors))
    return named


def _keys_of_tasks() -> dict[str, Any]:
    """What may be set of a task of any shape, as the general ones have it."""
    import yaml

    from bertkit.config import conf_dir

    tasks = {
        kind: yaml.safe_load((conf_dir() / "task" / f"{kind}.yaml").read_text(encoding="utf-8"))
        for kind in ("sequence", "tagging", "spans")
    }
    return {**tasks["sequence"], **{kind: tasks[kind][kind] for kind in ("tagging", "spans")}}


def _values(overrides: list[str]) -> dict[str, Any]:
    """The values of overrides, nested by the parts of their keys."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    nested: dict[str, Any] = {}
    for override in OverridesParser.create().parse_overrides(overrides):
        *parents, name = override.key_or_group.split(".")
        inside = nested
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[name] = override.value()
    return nested


def _keys_of_experiment(directories: list[Path], name: str) -> list[str]:
    """The groups that an experiment overrides, and the keys that it sets."""
    import yaml

    path = next(path for directory in directories if (path := directory / "experiment" / f"{name}.yaml").is_file())
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    defaults = [entry for entry in content.pop("defaults", []) if isinstance(entry, dict)]
    groups = [key.removeprefix("override").strip(" /") for entry in defaults for key in entry]
    keys = _dotted_keys(content)
    return [*groups, *(key for key in keys if not any(other.startswith(f"{key}.") for other in keys))]


def _dotted_keys(mapping: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for key, value in mapping.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, dict):
            keys += _dotted_keys(value, f"{prefix}{key}.")
    return keys


def _groups(directories: list[Path]) -> dict[str, list[str]]:
    """The option names of every configuration group."""
    groups: dict[str, list[str]] = {}
    for directory in directories:
        for path in sorted(directory.glob("*/*.yaml")):
            groups.setdefault(path.parent.name, []).append(path.stem)
    return groups


def _sweep(command: str, overrides: list[str], config_dir: str | None) -> int:
    """Run every combination of comma-separated values, each in a process and a directory of its own."""
    import itertools
    import subprocess

    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from bertkit.config import build
    from bertkit.errors import InputError
    from bertkit.settings.schemas import SCHEMAS

    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise InputError(f"expected key=value or group=option ({' '.join(str(error).split())})") from None
    choices = [
        [f"{item.key_or_group}={value}" for value in item.sweep_string_iterator()]
        if item.is_sweep_override()
        else [str(item.input_line)]
        for item in parsed
    ]
    swept = [item.is_sweep_override() for item in parsed]
    outputs = [n for n, item in enumerate(parsed) if item.key_or_group == "output_dir"]
    if not outputs and command in ("prepare", "pretrain", "finetune", "glue", "export"):
        raise InputError("-m needs output_dir=: each run goes to a directory below it")
    for combination in itertools.product(*choices):  # refuse before the first one runs
        build(SCHEMAS[command], compose(command, list(combination), config_dir))
    extra = [*(["--config-dir", config_dir] if config_dir else []), *(["--debug"] if launch.shows_tracebacks else [])]
    for combination in itertools.product(*choices):
        name = "_".join(choice for choice, is_swept in zip(combination, swept, strict=True) if is_swept)
        arguments = list(combination)
        if outputs:
            output_dir = arguments[outputs[0]].partition("=")[2].strip("'\"")
            arguments[outputs[0]] = f"output_dir='{output_dir}/{name.replace('/', '-').replace('=', '-')}'"
        print(f"-- {name}", flush=True)
        code = subprocess.run([sys.executable, "-m", "bertkit", command, *extra, *arguments]).returncode
        if code:
            return code
    return 0


def _quieten_libraries() -> None:
    """Keep third-party notices off the terminal; bertkit's own lines say what matters."""
    import os
    import warnings

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.filterwarnings("ignore", module=r"(torch|accelerate|datasets|transformers|huggingface_hub)\b.*")


def _report(error: Exception) -> int:
    """Say in a line what went wrong; give the exit code."""
    from bertkit.errors import BertkitError, InputError, PeerError, StoppedError, StorageError

    if isinstance(error, StoppedError):
        if not signs.fail(error.exit_code, str(error)) and _is_main():
            print(error, flush=True)
        return error.exit_code
    from bertkit.files import DISK_ERRORS  # not before: a stop may come while it is being imported

    if isinstance(error, BertkitError):
        return _fail(str(error), error.exit_code)
    if isinstance(error, OSError):
        code = StorageError.exit_code if error.errno in DISK_ERRORS else InputError.exit_code
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", code)
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if signs.fail(INTERNAL_FAULT, message):
        return INTERNAL_FAULT
    if launch.is_lost_peer(error) and launch.world_from_environment().size > 1:
        return _fail(f"another process of the run was lost ({message})", PeerError.exit_code)
    # said by every process that it happens to: the others only know that this one was lost
    print(f"error: {message}; this is a fault of bertkit, --debug shows where", file=sys.stderr)
    return INTERNAL_FAULT


def _fail(message: str, code: int = 2) -> int:
    """Say it once on each host of torchrun and srun: what one lacks, such as a file, the others may have."""
    is_main = _is_main()
    if not signs.fail(code, message) and (is_main or launch.is_first_of_host()):
        where = "" if is_main else f" (on {socket.gethostname()})"
        for line in message.split("\n"):
            print(f"error{where}: {line}", file=sys.stderr)
    return code


def _is_main() -> bool:
    from bertkit.errors import InputError

    try:
        return launch.is_launcher or launch.world_from_environment().is_main
    except InputError:
        return True


def _usage() -> str:
    return USAGE.format(commands="\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items()))


def _command_help(command: str) -> str:
    """The head of the command's configuration file, its settings, and the options of its groups."""
    from bertkit.config import conf_dir

    directory = conf_dir()
    lines = (directory / f"{command}.yaml").read_text(encoding="utf-8").splitlines()
    head = [line[2:] for line in lines[: lines.index("defaults:")]]
    settings = [line for line in lines[lines.index("") + 1 :] if line]
    chosen = {line.split(":")[0].strip(" -"): line.split(":")[1].strip() for line in lines if re.match("  - .+:", line)}
    groups = {name: options for name, options in _groups([directory]).items() if name in chosen}
    text = [*head, "", "settings:", *(f"  {line}" for line in settings)]
    if command == "prepare":
        groups["segments"], chosen["segments"] = ["google"], "google"  # the others belong to pretrain
    for name, options in groups.items():
        text += ["", f"{name}= {', '.join(options)}"]
        if chosen[name] in options:
            option = (directory / name / f"{chosen[name]}.yaml").read_text(encoding="utf-8").splitlines()
            text += [f"  {name}.{line}" for line in option if line and not line.startswith("#")]
    return "\n".join(text)
