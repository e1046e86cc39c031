"""The registry of options: what is built in, and a user's plug-ins, by slot and name.

    @bertkit.masking
    def block(ids, special, rng, policy, *, length: int = 3): ...

An option is a function or a class with the decorator of its slot. Its keyword-only parameters are its settings, with types and
defaults: `masking=block masking.options.length=5`; one with the name of a setting of the group, such as `attention.window`, has that value.
The modules of the built-in options are imported when a name other than the default is first looked up.

bertkit knows a plug-in once its module is imported: by `plugins=[my_module]`, by the user's own program, or by an entry point
of the group `bertkit` in an installed package. Processes that a command starts import the same modules.

An exception is a plug-in's own if it passes through its module (`fault_of`); for a wrong result its slot raises `wrong_result`.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from types import FrameType, FunctionType, NoneType, UnionType
from typing import Annotated, Any, Literal, SupportsFloat, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from bertkit.base.errors import InputError, refusing

Made = TypeVar("Made", bound=Callable[..., object])
ResultT = TypeVar("ResultT")
Option: TypeAlias = Callable[..., Any]  # its slot checks what it returns


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where the user chooses an option, and where the built-in ones are."""

    setting: str  # the setting with the name of the option
    arguments: str  # what an option is called with, before its own settings
    module: str | None = None  # with the built-in options
    default: str | None = None  # the option that needs no look-up in settings
    options: str | None = None  # the setting with the option's own settings
    of_class: str | None = None  # what an option that is a class is called with, if that is something else


SLOTS = {
    "masking": Slot(
        "masking.kind", "ids, special, rng, policy", "bertkit.data.batches.masking", "bert", "masking.options", ""
    ),
    "model_head": Slot("heads", "", "bertkit.model.head.built_in"),
    "head_loss": Slot("heads", "model, batch, target, logits", "bertkit.objectives.losses"),
    "head": Slot("head.kind", "config, num_outputs", "bertkit.model.head.head", "linear", "head.options"),
    "score": Slot(
        "attention.score", "query, key", "bertkit.model.scores", "scaled_dot", "attention.score_options", "config"
    ),
    "positions": Slot(
        "attention.positions", "config", "bertkit.model.positions", "learned", "attention.positions_options"
    ),
    "pattern": Slot("attention.pattern", "", "bertkit.model.patterns", "full", "attention.pattern_options"),
    "feed_forward": Slot("feed_forward.kind", "config", "bertkit.model.bert", "mlp", "feed_forward.options"),
    "encoder": Slot("model.encoder", "config", "bertkit.model.bert", "transformer"),
    "pooler": Slot("pooling", "config", "bertkit.model.poolers", "first"),
    "norm": Slot("norm.kind", "size, epsilon", "bertkit.model.bert", "layer_norm"),
    "cell": Slot("decoder.cell", "num_inputs, size, by_step, both", "bertkit.model.recurrent.cells", "gru"),
    "schedule": Slot(
        "schedule.decay", "step, steps, warmup_steps", "bertkit.train.schedule", "polynomial", "schedule.options"
    ),
    "optimizer": Slot("optimizer.name", "groups, config", "bertkit.train.optimizer", "adamw", "optimizer.options"),
    "objective": Slot("objective", "", "bertkit.objectives.objective", "auto", "objective_options"),
    "metric": Slot("task.metrics", "predictions, references", "bertkit.tasks.scoring.metrics"),
    "task": Slot("task.kind", "config, labels"),
    # the name of a format is the ending of its files; the option for search without a name is that of all other endings
    "prediction_format": Slot("output", "file, separator", "bertkit.tasks.reading.writers"),
    "vector_format": Slot("output", "file, dimension", "bertkit.tasks.reading.writers"),
    "passage_format": Slot("output", "file, top_k", "bertkit.apps.retrieval.judging"),
    "architecture": Slot("model_type", "", "bertkit.interop.hugging_face.built_in"),
}
MODULES = "BERTKIT_PLUGINS"  # environment variable: the modules that every process imports, separated by commas
OWN = {"bertkit"}
_options: dict[tuple[str, str], Option] = {}
_modules: set[str] = set()  # those that have added plug-ins, themselves or by an import
_used: dict[tuple[str, str], Option] = {}  # the options that `get` has returned


def option(slot: str, name: str | None = None) -> Callable[[Made], Made]:
    """Return the decorator that adds an option to a slot; `@bertkit.masking` without a name takes the function's.

    Raises InputError if the name is no text, another module has an option with it, or a plug-in does not take what its slot passes.
    """
    given: object = name  # without a call, what is decorated
    frame = inspect.currentframe()
    module = _module_of(frame.f_back if frame else None)

    def decorator(made: Made) -> Made:
        own = given if isinstance(given, str) else cast(FunctionType, made).__name__
        if not _is_in(module, OWN):
            _modules.add(module)
            _check_arguments(slot, own, made)
        other = _options.get((slot, own), made).__module__
        if other != made.__module__:
            raise InputError(f"{slot} {own!r}: defined in {other} and in {made.__module__}; rename one of them")
        _options[slot, own] = made
        return made

    if inspect.isfunction(given) or inspect.isclass(given):
        return cast(Callable[[Made], Made], decorator(given))
    if not isinstance(given, str | None):
        raise InputError(f"{slot} {given!r:.80}: expected a name; write @bertkit.{slot}('name')")
    return decorator


def _check_arguments(slot: str, name: str, made: Callable[..., object]) -> None:
    place, signature = SLOTS[slot], inspect.signature(made)
    expected = place.arguments if place.of_class is None or not inspect.isclass(made) else place.of_class
    arguments = expected.split(", ") if expected else []
    positional = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    wanted = f"takes {signature}; expected ({expected}), and options after *"
    with refusing(TypeError, lambda _: f"{slot} {name!r} ({_place(made)}) {wanted}"):
        signature.replace(parameters=positional).bind(*arguments)


def load(modules: Iterable[str]) -> None:
    """Import modules with plug-ins, from the working directory too; child processes will do the same.

    Raises InputError if a name is no module's, or a module cannot be imported, or adds no plug-in.
    """
    names = list(dict.fromkeys([*filter(None, os.environ.get(MODULES, "").split(",")), *modules]))
    if names and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for name in names:
        if not all(word.isidentifier() for word in name.split(".")):
            raise InputError(f"plugins=[{name!r}]: expected the name of a module, such as my_plugins for my_plugins.py")
        _import(f"plugins=[{name}]", name, lambda name=name: importlib.import_module(name))  # type: ignore[misc]
    if names:
        os.environ[MODULES] = ",".join(names)


@functools.cache
def _load_once() -> None:
    """Import the modules that the parent process named, and the entry points of installed packages."""
    from importlib.metadata import entry_points  # slow

    load(())
    for entry in entry_points(group="bertkit"):
        _import(f"the plug-in {entry.name} of an installed package", entry.module, entry.load)


def _import(what: str, module: str, load: Callable[[], object]) -> None:
    num_before = len(_modules)
    streams, folder = (sys.stdout, sys.stderr), os.getcwd()
    try:
        load()
    except InputError:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent is not None and f"{module}.".startswith(f"{absent}."):
            where = f"{os.getcwd()} and the installed packages have no module {absent}"
            way = "start in its folder, or add that to PYTHONPATH"
            raise InputError(f"{what}: {where}; {'write it without .py' if absent.endswith('.py') else way}") from None
        reason, place = _reason(error), _place_in(error, {module})
        where = f"{place}: {reason}" if place else reason
        raise InputError(f"{what}: cannot be imported ({where}); correct the module, or leave it out") from None
    finally:  # what the module may have changed for all of bertkit
        sys.stdout, sys.stderr = streams
        os.chdir(folder)
    if len(_modules) == num_before and not any(_is_in(name, {module.partition(".")[0]}) for name in _modules):
        raise InputError(
            f"{what}: has no effect, since {module} adds no plug-in; decorate one there, such as @bertkit.masking('mine'), or "
            "leave it out"
        )
    _modules.add(module)


def fault_of(error: BaseException) -> InputError | None:
    """Return the error to report for one that passes through a module with plug-ins; None if it is not a plug-in's own."""
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):  # raised in a generator
        error = error.__cause__
    place = _place_in(error, {name.partition(".")[0] for name in _modules})
    if place is None:
        return None
    return InputError(f"{place}: {_reason(error)}; the plug-in raised this; correct it there (--debug shows all calls)")


def wrong_result(slot: str, name: str, result: object, expected: str) -> InputError:
    """Return the error for what a plug-in returned; `expected` says what its slot needs."""
    what = " ".join(f"{result!r:.80}".split())
    return fault(slot, name, f"returned {what}; expected {expected}")


def returned(slot: str, name: str, result: object, kind: type[ResultT], expected: str) -> ResultT:
    """Return what a plug-in returned; raises InputError unless it is of a kind, which `expected` describes."""
    if not isinstance(result, kind):
        raise wrong_result(slot, name, result, expected)
    return result


def fault(slot: str, name: str, what: str) -> InputError:
    """Return the error for what a plug-in does, with its file and line, or a class that is given in Python."""
    made = find(slot, name)
    return InputError(f"{slot} {name!r}{'' if made is None else f' ({_place(made)})'} {what}")


def number(slot: str, name: str, result: object) -> float:
    """Return what an option returned as a number; raises InputError if it is not a finite one."""
    with contextlib.suppress(TypeError, ValueError):
        value = float(cast(SupportsFloat, result))
        if math.isfinite(value):
            return value
    raise wrong_result(slot, name, result, "a finite number")


def used() -> list[str]:
    """List the plug-ins that this process has asked for, with their files and lines."""
    return [f"{slot} {name!r} ({_place(made)})" for (slot, name), made in _used.items() if is_plugin(slot, name)]


def _reason(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _place(made: Callable[..., object]) -> str:
    """Return the file and line of an option."""
    with contextlib.suppress(OSError, TypeError):  # without source, such as a built-in function
        return f"{inspect.getsourcefile(made)}:{inspect.getsourcelines(made)[1]}"
    return made.__module__


def _place_in(error: BaseException, modules: set[str]) -> str | None:
    """Return the last place in some modules that an error passes through: file, line and function; None if there is none."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _is_in(_module_of(frame), modules):
            place = f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_qualname}"
    return place


def _module_of(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def _is_in(module: str, modules: set[str]) -> bool:
    """Whether a module is one of some modules and packages, or in one of them."""
    return any(f"{module}.".startswith(f"{name}.") for name in modules)


def _load_built_in(slot: str) -> None:
    if module := SLOTS[slot].module:
        importlib.import_module(module)


def find(slot: str, name: object) -> Option | None:
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
    return built_in(slot) + plugins_of(slot)


def built_in(slot: str) -> list[str]:
    """List the options of a slot without the plug-ins."""
    _load_built_in(slot)
    return [name for other, name in _options if other == slot and not is_plugin(slot, name)]


def plugins_of(slot: str) -> list[str]:
    """List the plug-ins of a slot."""
    _load_once()
    return [name for other, name in _options if other == slot and is_plugin(slot, name)]


def is_plugin(slot: str, name: str) -> bool:
    """Whether an option is the user's own."""
    return not _is_in(_options[slot, name].__module__, OWN)


def has_setting(key: str) -> bool:
    """Whether a setting belongs to an option, such as `masking.options.length`; configuration files do not list these."""
    return any(
        slot.options is not None and (key == slot.setting or key.startswith(f"{slot.options}."))
        for slot in SLOTS.values()
    )


def get(slot: str, name: str) -> Option:
    """Return an option; raises InputError if its module has not been imported."""
    if (made := find(slot, name)) is None:
        raise InputError(f"{SLOTS[slot].setting}={name}: a plug-in that is not loaded; set plugins=[its module]")
    _used[slot, name] = made
    return made


@functools.cache
def _settings_of(made: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the keyword-only parameters of an option."""
    parameters = inspect.signature(made, eval_str=True).parameters.values()
    return [one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]


def takes(slot: str, name: str, setting: str) -> bool:
    """Whether an option uses a setting of its group."""
    return any(one.name == setting for one in _settings_of(get(slot, name)))


def options_of(slot: str, name: str, group: Container[str] = ()) -> type:
    """Return a dataclass with the settings of an option, with types and defaults; those in `group` are settings of its group."""
    made = get(slot, name)
    advice = "import what its annotations name"
    with refusing(NameError, lambda error: f"{slot} {name!r} ({_place(made)}): {error}; {advice}"):
        settings = [one for one in _settings_of(made) if one.name not in group]
    for one in settings:
        if one.default is one.empty or not _is_plain(one.annotation, one.default):
            raise InputError(
                f"{slot} {name!r} ({_place(made)}): option {one.name} needs a plain type and a default, as in {one.name}: int = 3, or "
                f"{one.name}: tuple[str, ...] = ()"
            )
    fields = [(one.name, one.annotation, dataclasses.field(default=one.default)) for one in settings]
    return dataclasses.make_dataclass("Options", fields)


def _is_plain(annotation: object, default: object) -> bool:
    """Whether an option's type is one that settings can have, and its default one of a dataclass."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType, tuple, Annotated):
        inner = [each for each in get_args(annotation)[: 1 if origin is Annotated else None] if each is not ...]
        return bool(inner) and all(_is_plain(each, default) for each in inner)
    is_known = annotation in (int, float, bool, str, NoneType) or origin is Literal
    return is_known and isinstance(default, Hashable)


def bind(slot: str, name: str, *settings: Mapping[str, object]) -> functools.partial[Any]:
    """Return an option with its settings, from mappings that may hold others too; later ones override earlier ones."""
    made = get(slot, name)
    known = {key: value for each in settings for key, value in each.items()}
    return functools.partial(made, **{one.name: known[one.name] for one in _settings_of(made) if one.name in known})
