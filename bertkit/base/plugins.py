"""The registry of options: what is built in, and a user's plug-ins, by slot and name.

    @bertkit.masking("block")
    def block(ids, special, rng, policy, *, length: int = 3): ...

An option is a function or a class with the decorator of its slot. Its keyword-only parameters are its settings, with types and
defaults: `masking=block masking.options.length=5`; one with the name of a setting of the group, such as `attention.window`, has that value.
The modules of the built-in options are imported when a name other than the default is first looked up.

bertkit knows a plug-in once its module is imported: by `plugins=[my_module]`, by the user's own program, or by an entry point
of the group `bertkit` in an installed package. Processes that a command starts import the same modules.
"""

import dataclasses
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, TypeVar

from bertkit.base.errors import InputError

Made = TypeVar("Made", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where the user chooses an option, and where the built-in ones are."""

    setting: str  # the setting with the name of the option
    module: str | None = None  # the module with the built-in options
    default: str | None = None  # the option that needs no look-up in settings
    options: str | None = None  # the setting with the option's own settings


SLOTS = {
    "masking": Slot("masking.kind", "bertkit.data.batches.masking", "bert", "masking.options"),
    "head": Slot("head.kind", "bertkit.model.heads", "linear", "head.options"),
    "score": Slot("attention.score", "bertkit.model.scores", "scaled_dot", "attention.score_options"),
    "positions": Slot("attention.positions", "bertkit.model.positions", "learned", "attention.positions_options"),
    "pattern": Slot("attention.pattern", "bertkit.model.patterns", "full", "attention.pattern_options"),
    "norm": Slot("norm.kind", "bertkit.model.bert", "layer_norm"),
    "cell": Slot("decoder.cell", "bertkit.model.cells", "gru"),
    "schedule": Slot("schedule.decay", "bertkit.train.schedule", "polynomial", "schedule.options"),
    "optimizer": Slot("optimizer.name", "bertkit.train.optimizer", "adamw", "optimizer.options"),
    "metric": Slot("task.metrics", "bertkit.tasks.scoring.metrics"),
    "shape": Slot("task.kind"),
}
MODULES = "BERTKIT_PLUGINS"  # environment variable: the modules that every process imports, separated by commas
_options: dict[tuple[str, str], Callable[..., Any]] = {}


def option(slot: str, name: str) -> Callable[[Made], Made]:
    """Return the decorator that adds an option to a slot.

    Raises:
        InputError: another module has an option with this name.
    """

    def decorator(made: Made) -> Made:
        other = _options.get((slot, name), made).__module__
        if other != made.__module__:
            raise InputError(f"{slot} {name!r}: defined in {other} and in {made.__module__}; rename one of them")
        _options[slot, name] = made
        return made

    return decorator


def load(modules: Iterable[str]) -> None:
    """Import modules with plug-ins, from the working directory too; child processes will do the same."""
    known = [name for name in os.environ.get(MODULES, "").split(",") if name]
    names = list(dict.fromkeys([*known, *modules]))
    if names and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for name in names:
        _import(f"plugins=[{name}]", lambda name=name: importlib.import_module(name))  # type: ignore[misc]
    if names:
        os.environ[MODULES] = ",".join(names)


@functools.cache
def _load_once() -> None:
    """Import the modules that the parent process named, and the entry points of installed packages."""
    from importlib.metadata import entry_points  # slow

    load(())
    for entry in entry_points(group="bertkit"):
        _import(f"the plug-in {entry.name} of an installed package", entry.load)


def _import(what: str, load: Callable[[], object]) -> None:
    try:
        load()
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{what}: cannot be imported ({reason}); correct the module, or leave it out") from None


def _load_built_in(slot: str) -> None:
    module = SLOTS[slot].module
    if module is not None:
        importlib.import_module(module)


def find(slot: str, name: object) -> Callable[..., Any] | None:
    """Find an option by its name; None if no module has it."""
    if not isinstance(name, str):
        return None
    if (slot, name) not in _options:
        _load_built_in(slot)
    if (slot, name) not in _options:
        _load_once()
    return _options.get((slot, name))


def exists(slot: str, name: object) -> bool:
    """Whether a slot has an option with this name; the default is known without an import."""
    return name == SLOTS[slot].default or find(slot, name) is not None


def names_of(slot: str) -> list[str]:
    """List the options of a slot, the plug-ins last."""
    _load_built_in(slot)
    return [name for other, name in _options if other == slot and not is_plugin(slot, name)] + plugins_of(slot)


def plugins_of(slot: str) -> list[str]:
    """List the plug-ins of a slot."""
    _load_once()
    return [name for other, name in _options if other == slot and is_plugin(slot, name)]


def is_plugin(slot: str, name: str) -> bool:
    """Whether an option is the user's own."""
    return _options[slot, name].__module__.partition(".")[0] != "bertkit"


def has_setting(key: str) -> bool:
    """Whether a setting belongs to options, such as `masking.options.length`; configuration files do not list these."""
    return any(
        key == slot.setting or (slot.options is not None and key.startswith(f"{slot.options}."))
        for slot in SLOTS.values()
    )


def get(slot: str, name: str) -> Callable[..., Any]:
    """Return an option; raises InputError if its module has not been imported."""
    if (made := find(slot, name)) is None:
        raise InputError(f"{SLOTS[slot].setting}={name}: a plug-in that is not loaded; set plugins=[its module]")
    return made


@functools.cache
def _settings_of(made: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Return the keyword-only parameters of an option."""
    parameters = inspect.signature(made, eval_str=True).parameters.values()
    return tuple(one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY)


def options_of(slot: str, name: str, group: Container[str] = ()) -> type:
    """Return a dataclass with the settings of an option, with types and defaults; those in `group` are settings of its group."""
    settings = [one for one in _settings_of(get(slot, name)) if one.name not in group]
    if bare := [one.name for one in settings if one.default is one.empty or one.annotation is one.empty]:
        raise InputError(f"{slot} {name!r}: option {bare[0]} needs a type and a default, as in {bare[0]}: int = 3")
    fields = [(one.name, one.annotation, dataclasses.field(default=one.default)) for one in settings]
    return dataclasses.make_dataclass("Options", fields)


def bind(slot: str, name: str, *settings: Mapping[str, Any]) -> functools.partial[Any]:
    """Return an option with its settings, from mappings that may hold others too; later ones override earlier ones."""
    made = get(slot, name)
    known = {key: value for each in settings for key, value in each.items()}
    return functools.partial(made, **{one.name: known[one.name] for one in _settings_of(made) if one.name in known})
