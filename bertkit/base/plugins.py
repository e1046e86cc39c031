"""Plug-ins: a user's function or class adds an option to a slot of bertkit, such as a masking policy.

    @bertkit.masking("block")
    def block(ids, special, rng, policy, *, length: int = 3): ...

The keyword-only parameters are the plug-in's options, with their types and defaults: `masking=block masking.options.length=5`.
bertkit knows a plug-in once its module is imported: by `plugins=[my_module]`, by the user's own program, or by an entry point
of the group `bertkit` in an installed package. Processes that a command starts import the same modules.
"""

import dataclasses
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from bertkit.base.errors import InputError

Made = TypeVar("Made", bound=Callable[..., Any])

SETTINGS = {  # slot -> the setting with the name of the plug-in
    "masking": "masking.kind",
    "head": "head.kind",
    "score": "attention.score",
    "positions": "attention.positions",
    "schedule": "schedule.decay",
    "optimizer": "optimizer.name",
    "metric": "task.metrics",
    "shape": "task.kind",
}
OPTIONS = {  # slot -> the setting with the options of the plug-in
    **{slot: f"{slot}.options" for slot in ("masking", "head", "schedule", "optimizer")},
    **{slot: f"attention.{slot}_options" for slot in ("score", "positions")},
}
MODULES = "BERTKIT_PLUGINS"  # environment variable: the modules that every process imports, separated by commas
_plugins: dict[tuple[str, str], Callable[..., Any]] = {}


def add(slot: str, name: str) -> Callable[[Made], Made]:
    """Return the decorator that adds a plug-in to a slot.

    Raises:
        InputError: another module has a plug-in with this name.
    """

    def decorator(made: Made) -> Made:
        other = _plugins.get((slot, name), made).__module__
        if other != made.__module__:
            raise InputError(f"{slot} {name!r}: a plug-in in {other} and in {made.__module__}; rename one of them")
        _plugins[slot, name] = made
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


def find(slot: str, name: object) -> Callable[..., Any] | None:
    """Find a plug-in by its name; None if no imported module has it."""
    if not isinstance(name, str):
        return None
    if (slot, name) not in _plugins:
        _load_once()
    return _plugins.get((slot, name))


def names_of(slot: str) -> list[str]:
    """List the plug-ins of a slot."""
    _load_once()
    return [name for other, name in _plugins if other == slot]


def has_setting(key: str) -> bool:
    """Whether a setting belongs to plug-ins, such as `masking.options.length`; configuration files do not list these."""
    return key in SETTINGS.values() or any(key.startswith(f"{setting}.") for setting in OPTIONS.values())


def get(slot: str, name: str) -> Callable[..., Any]:
    """Return a plug-in; raises InputError if its module has not been imported."""
    if (made := find(slot, name)) is None:
        raise InputError(f"{SETTINGS[slot]}={name}: a plug-in that is not loaded; set plugins=[its module]")
    return made


def options_of(slot: str, name: str) -> type:
    """Return a dataclass with the options of a plug-in: its keyword-only parameters, with types and defaults."""
    parameters = inspect.signature(get(slot, name), eval_str=True).parameters.values()
    options = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    if bare := [p.name for p in options if p.default is p.empty or p.annotation is p.empty]:
        raise InputError(f"{slot} {name!r}: option {bare[0]} needs a type and a default, as in {bare[0]}: int = 3")
    fields = [(p.name, p.annotation, dataclasses.field(default=p.default)) for p in options]
    return dataclasses.make_dataclass("Options", fields)


def bind(slot: str, name: str, options: Mapping[str, Any]) -> functools.partial[Any]:
    """Return a plug-in with its options set."""
    return functools.partial(get(slot, name), **options)
