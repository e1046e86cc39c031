"""Converts plain mappings to frozen dataclasses, and reports all errors at once; `checked` does the same for file contents.

The annotations of a dataclass are its schema: nested dataclasses, `bool`, `str`, `Literal`, `tuple[X, ...]`, `dict[str, X]`, unions,
and numbers with their `Interval`, such as `Size`. A value may be null only if its annotation includes `None`; unknown keys are errors.
"""

import dataclasses
import difflib
import functools
import itertools
import math
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.base.intervals import Interval
from bertkit.base.text_files import JsonObject, JsonValue, parse_yaml

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


# marks the name of an option: `Annotated[str, Slot("optimizer")]`
Slot = NewType("Slot", str)


def options_of(slot: str, setting: str) -> dict[str, str]:
    """Return the metadata of a setting: those of an option of a slot, whose name is in another setting of the dataclass."""
    return {"slot": slot, "named_by": setting, **IF_SET}


def conf_dir() -> Path:
    """Return the directory of bertkit's configuration files: inside the package, or, in a git checkout, beside it."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "pretrain.yaml").is_file():
            return candidate
    raise InputError(f"no configuration files in {package} or beside it; reinstall bertkit")


def read_conf(name: str) -> JsonObject:
    """Read one of bertkit's configuration files, such as "task/spans", as it is."""
    content: JsonObject = parse_yaml((conf_dir() / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


def conf_dirs(own: str | None) -> list[Path]:
    """Return the directories of configuration files: bertkit's, and the user's own, if any."""
    if own is None:
        return [conf_dir()]
    directory = Path(own).expanduser().resolve()
    if not directory.is_dir():
        raise InputError(f"--config-dir {own}: no such directory")
    return [conf_dir(), directory]


def option_names(directories: Iterable[Path]) -> dict[str, list[str]]:
    """List the options of every configuration group."""
    groups: dict[str, list[str]] = {}
    for directory in directories:
        for path in sorted(directory.glob("*/*.yaml")):
            groups.setdefault(path.parent.name, []).append(path.stem)
    return groups


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" with the most similar known name; "" if none is similar."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{match[0]}'?" if match else ""


IF_SET = {"is_written": "if set"}  # metadata of a setting that is written only if it differs from its default
# settings that must not be empty, because "" would mean the working directory
PLACES = ("output_dir", "output", "data_dir", "model_dir", "input", "corpus.path", "tokenizer.path")


def build(schema: type[T], mapping: object, path: str = "") -> T:
    """Build the dataclass `schema` from a mapping of settings, or of the group `path`.

    Raises:
        InputError: one line for each unknown key, missing value, wrong type, and error of a `__post_init__`.
    """
    errors: list[str] = []
    value = _convert(schema, mapping, path, errors, is_file=False)
    if errors:
        raise InputError(*dict.fromkeys(errors))
    return value  # type: ignore[no-any-return]


def checked(kind: type[T], content: object, where: Path | str, advice: str = "restore it from where it came") -> T:
    """Convert the content of a file to a type; additional fields are allowed; InputError names the first wrong field."""
    errors: list[str] = []
    value = _convert(kind, content, "", errors, is_file=True)
    if errors:
        raise InputError(f"{where}: {errors[0].replace('group of settings', 'group of values')}; {advice}")
    return value  # type: ignore[no-any-return]


def refuse(*problems: object) -> None:
    """Raise all problems as an InputError. A problem is a string or a list of strings; false and empty values are ignored."""
    lines = [line for item in problems if item for line in ([item] if isinstance(item, str) else item)]  # type: ignore[attr-defined]
    if lines:
        raise InputError(*lines)


def unused(
    settings: object, group: str, *rows: tuple[str, bool, str] | tuple[str, bool, str, *tuple[object, ...]]
) -> list[str]:
    """List settings that the user set although they have no effect.

    A row has a setting's name, whether it has no effect, why, and its default if that is not null or false.
    """
    problems = []
    for name, is_unused, why, *default in rows:
        value = getattr(settings, name)
        if is_unused and value is not None and value is not False and value not in default:
            is_plain = isinstance(value, (str, int, float))
            shown = f"={str(value).lower() if value is True else value}" if is_plain else ""
            problems.append(f"{group}{name}{shown}: has no effect {why}; leave it out")
    return problems


def dotted_keys(mapping: Mapping[str, object], prefix: str = "") -> list[str]:
    """List the keys of a nested mapping in dotted form; a group comes before its keys."""
    keys = []
    for key, value in mapping.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            keys += dotted_keys(value, f"{prefix}{key}.")
    return keys


def to_mapping(value: "DataclassInstance") -> JsonObject:
    """Convert a dataclass to plain dicts and lists, for YAML and JSON."""
    plain = {}
    for field in dataclasses.fields(value):
        written, item = field.metadata.get("is_written", True), getattr(value, field.name)
        if written is True or (written == IF_SET["is_written"] and item not in ({}, (), field.default)):
            plain[field.name] = _plain(item)
    return plain


def at(mapping: Mapping[str, JsonValue], key: str) -> JsonValue:
    """Return the value of a dotted key in a nested mapping; None if the key is missing."""
    value: JsonValue = mapping
    while key and isinstance(value, Mapping):
        name = key if key in value else key.partition(".")[0]  # a key may contain a dot, such as a file name
        value, key = value.get(name), key[len(name) + 1 :]
    return None if key else value


def differences(
    old: Mapping[str, JsonValue], new: Mapping[str, JsonValue], prefix: str = ""
) -> list[tuple[str, JsonValue, JsonValue]]:
    """Return (dotted key, old value, new value) for each difference between two nested mappings."""
    rows: list[tuple[str, JsonValue, JsonValue]] = []
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            rows += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            rows.append((f"{prefix}{key}", before, after))
    return rows


def _plain(value: object) -> JsonValue:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def _convert(annotation: Any, value: Any, path: str, errors: list[str], is_file: bool) -> Any:
    """Convert a plain value to the type of its annotation; append problems to `errors`."""
    if not is_file and (value == "???" or (value == "" and path in PLACES)):
        errors.append(f"missing value: set {path}=")
        return None
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    schemas = [option for option in options if dataclasses.is_dataclass(option)]
    if len(schemas) > 1 and isinstance(value, Mapping):
        options = _schema_of_kind(schemas, value, path, errors)
        if not options:
            return None
    inner_errors: list[str] = []  # errors inside a list or mapping that has the right type itself
    for option in options:
        kind, inner = get_origin(option) or option, get_args(option)
        wrong: list[str] = []
        if dataclasses.is_dataclass(option) and isinstance(value, Mapping):
            converted: Any = _build_dataclass(option, value, path, wrong, is_file)
        elif kind is dict and inner and isinstance(value, Mapping):
            converted = {
                key: _convert(inner[1], item, _joined(path, key), wrong, is_file) for key, item in value.items()
            }
        elif kind is tuple and isinstance(value, (list, tuple)):
            # errors in glue's settings of several runs do not name the number of the run
            is_numbered = is_file or not dataclasses.is_dataclass(inner[0])
            places = (f"{path}[{number}]" if is_numbered else "" for number in itertools.count())
            converted = tuple(_convert(inner[0], *pair, wrong, is_file) for pair in zip(value, places, strict=False))
        else:
            fits, converted = _match(option, value, is_file)
            if not fits:
                continue
            if kind is Annotated and isinstance(inner[1], Interval) and (expected := inner[1].expected(converted)):
                wrong = [f"{path}={converted}: expected {expected}"]
        if not wrong:
            return converted
        inner_errors = inner_errors or wrong
    if not inner_errors:
        expected = " or ".join(dict.fromkeys(map(_describe, options)))
        if isinstance(value, float) and not math.isfinite(value) and float in options:
            expected = expected.replace("a number", "a finite number")
        inner_errors = [f"{path}={value!r:.60}: expected {expected}".removeprefix("=")]
    errors += inner_errors
    return None


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


_hints = functools.cache(functools.partial(get_type_hints, include_extras=True))


def _build_dataclass(schema: Any, mapping: Mapping[str, Any], path: str, errors: list[str], is_file: bool) -> Any:
    fields = {field.name: field for field in dataclasses.fields(schema)}
    if not is_file:
        errors += [
            f"unknown key '{_joined(path, key)}'{nearest(str(key), fields)}" for key in mapping if key not in fields
        ]
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if "slot" in field.metadata:
            slot, named_by, given = field.metadata["slot"], field.metadata["named_by"], mapping.get(name, {})
            chosen, options = values.get(named_by, fields[named_by].default), None
            if chosen is not None and (given or chosen != plugins.SLOTS[slot].default):  # None: the name was refused
                schema_of_options = plugins.options_of(slot, chosen, fields)
                options = _convert(schema_of_options, given, _joined(path, name), errors, is_file=False)
            values[name] = {} if options is None else vars(options)
        elif name in mapping:
            is_text = is_file or "is_verbatim" in field.metadata  # then "???" is a value
            values[name] = _convert(_hints(schema)[name], mapping[name], _joined(path, name), errors, is_text)
        elif field.default is field.default_factory is dataclasses.MISSING:  # files older than a field get its default
            place = _joined(path, name)
            errors.append(f"no field '{place}'" if is_file else f"missing value: set {place}=")
    try:
        return None if errors else schema(**values)
    except InputError as error:
        errors.extend(error.args)
        return None


def _schema_of_kind(schemas: list[Any], value: Mapping[str, Any], path: str, errors: list[str]) -> tuple[Any, ...]:
    """Select one of several dataclasses by the value of `kind`; its annotation in each dataclass lists the literals."""
    kinds = {kind: schema for schema in schemas for kind in get_args(_hints(schema)["kind"])}
    kind = value.get("kind")
    if isinstance(kind, str) and kind in kinds:
        return (kinds[kind],)
    problem = f"{path}.kind={kind!r}: expected" if "kind" in value else f"missing value: set {path}.kind= to"
    errors.append(f"{problem} {' or '.join(kinds)}")
    return ()


def _match(option: Any, value: Any, is_file: bool) -> tuple[bool, Any]:
    """Return whether a value has a plain type, and the value converted to that type; in a file 3.0 is no whole number."""
    if option is Any:
        return True, value
    if option is type(None):
        return value is None, None
    if get_origin(option) is Annotated:
        plain, mark = get_args(option)
        if isinstance(mark, Interval):
            return _match(plain, value, is_file)
        return plugins.exists(mark, value), value
    if get_origin(option) is Literal:
        return value in get_args(option), value
    if get_origin(option) is not None or dataclasses.is_dataclass(option):
        return False, None
    if option is bool or isinstance(value, bool):
        return option is bool and isinstance(value, bool), value
    if option is int and isinstance(value, float) and value.is_integer() and not is_file:
        return True, int(value)  # steps=1e6
    if option is float and isinstance(value, int) and abs(value) < 2**1023:  # larger ones overflow
        return True, float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return False, value
    return isinstance(value, option), value


_PLURALS = {"a whole number": "whole numbers", "a number": "numbers", "text": "texts"}


def _describe(option: Any) -> str:
    if option is type(None):
        return "null"
    if get_origin(option) is Annotated:
        plain, mark = get_args(option)
        if isinstance(mark, Interval):
            return _describe(plain)
        return f"{' or '.join(plugins.names_of(mark))}, or a plug-in whose module is in plugins="
    if get_origin(option) is Literal:
        return " or ".join(str(choice) for choice in get_args(option))
    if get_origin(option) is tuple:
        inner = _describe(get_args(option)[0])
        return f"a list of {_PLURALS.get(inner, inner)}"
    if get_origin(option) is dict or option is dict or dataclasses.is_dataclass(option):
        return "a group of settings"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[option]
