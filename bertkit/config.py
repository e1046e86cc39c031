"""Plain mappings to frozen dataclasses, or every reason why not, in one error; and what files hold, checked alike.

The schema is a dataclass whose annotations say all: nested dataclasses, `int`, `float`, `bool`, `str`, `Literal`,
`tuple[X, ...]` and unions of them. Nothing is optional unless its annotation admits `None`; unknown keys are errors.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bertkit.errors import InputError

T = TypeVar("T")


def conf_dir() -> Path:
    """Find the directory of the shipped configuration files: inside the installed package, or beside it.

    Raises:
        InputError: neither place has it (a broken installation).
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "pretrain.yaml").is_file():
            return candidate
    raise InputError(f"no configuration files in {package} or beside it; reinstall bertkit")


def conf_dirs(own: str | None) -> list[Path]:
    """Give the directories of configuration files: the shipped one, and the user's own where there is one.

    Raises:
        InputError: the user's own is no directory.
    """
    if own is None:
        return [conf_dir()]
    directory = Path(own).expanduser().resolve()
    if not directory.is_dir():
        raise InputError(f"--config-dir {own}: no such directory")
    return [conf_dir(), directory]


def option_names(directories: Iterable[Path]) -> dict[str, list[str]]:
    """List the options of every configuration group in some directories like `conf/`."""
    groups: dict[str, list[str]] = {}
    for directory in directories:
        for path in sorted(directory.glob("*/*.yaml")):
            groups.setdefault(path.parent.name, []).append(path.stem)
    return groups


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant: "; did you mean 'x'?", or nothing when none is near."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{match[0]}'?" if match else ""


# where "" would be the working directory
PLACES = ("output_dir", "output", "data_dir", "model_dir", "input", "corpus.path", "tokenizer.path")


def build(schema: type[T], mapping: Mapping[str, Any]) -> T:
    """Build the dataclass `schema` from a plain mapping, with every type and key checked.

    Raises:
        InputError: one line for each unknown key, missing value, wrong type and broken rule of a `__post_init__`.
    """
    errors: list[str] = []
    value = _build_dataclass(schema, mapping, "", errors)
    if errors:
        raise InputError(*dict.fromkeys(errors))
    return value  # type: ignore[no-any-return]


def checked(
    schema: Any, content: Any, where: Path | str, way_out: str = "restore it from where it came"
) -> dict[str, Any]:
    """Refuse what a file holds unless it is as a dataclass says, and give it as it is.

    Each field must be there, unless it has a default, and be of its type; other fields may be there too.

    Raises:
        InputError: naming the file and the first field that is wrong.
    """
    problem = _misfit(schema, content, "")
    if problem is not None:
        raise InputError(f"{where}: {problem}; {way_out}")
    return content  # type: ignore[no-any-return]


def of_fields(kind: type[T], mapping: Mapping[str, Any]) -> T:
    """Make a dataclass of what `checked` let pass, which may hold more than its fields."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in mapping.items() if name in names})


def _misfit(annotation: Any, value: Any, path: str) -> str | None:
    """Say which part of a value is not what an annotation says; None where all is."""
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    for option in options:
        kind, inner = get_origin(option) or option, get_args(option)
        parts: Iterable[tuple[Any, Any, str]] = ()
        if dataclasses.is_dataclass(option) and isinstance(value, dict):
            hints = get_type_hints(option)
            for field in dataclasses.fields(option):
                if field.name not in value and field.default is field.default_factory is dataclasses.MISSING:
                    return f"no field '{_joined(path, field.name)}'"
            parts = ((hints[name], value[name], _joined(path, name)) for name in hints if name in value)
        elif kind is dict and isinstance(value, dict):
            parts = ((inner[1], item, _joined(path, key)) for key, item in value.items()) if inner else ()
        elif kind is tuple and isinstance(value, list):
            parts = ((inner[0], item, f"{path}[{number}]") for number, item in enumerate(value))
        elif not (option is Any or (kind is Literal and value in inner) or _is_of(option, value)):
            continue
        return next((problem for part in parts if (problem := _misfit(*part))), None)
    shown = f"{value!r:.60}"
    return (
        f"{path}={shown}: expected {' or '.join(map(_describe, options))}" if path else f"{shown}: expected an object"
    )


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _is_of(option: Any, value: Any) -> bool:
    """Whether a plain value is of a plain type; a whole number is a number too, and what is not finite is none."""
    if option is type(None):
        return value is None
    if option is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is option


def dotted_keys(mapping: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Give the keys of a mapping, with those of the groups in it, which stand after their own."""
    keys = []
    for key, value in mapping.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            keys += dotted_keys(value, f"{prefix}{key}.")
    return keys


def to_mapping(value: Any) -> dict[str, Any]:
    """Turn a dataclass back into plain dicts and lists, as YAML and JSON write them."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(value))
    for field in dataclasses.fields(value):
        if field.metadata == {"is_written": False}:  # no setting, only said about the settings
            del plain[field.name]
    return plain


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """List the dotted keys whose values differ between two nested mappings, with both values."""
    found: list[tuple[str, Any, Any]] = []
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append((f"{prefix}{key}", before, after))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def _build_dataclass(schema: Any, mapping: Any, path: str, errors: list[str]) -> Any:
    if not isinstance(mapping, Mapping):
        errors.append(f"{path.rstrip('.') or 'configuration'}={mapping!r}: expected a group of settings")
        return None
    annotations = get_type_hints(schema)
    fields = {field.name: field for field in dataclasses.fields(schema)}
    names = list(fields)
    for key in mapping:
        if key not in names:
            errors.append(f"unknown key '{path}{key}'{nearest(str(key), names)}")
    values: dict[str, Any] = {}
    errors_before = len(errors)
    for name in names:
        if name in mapping:
            values[name] = _convert(annotations[name], mapping[name], f"{path}{name}", errors)
        elif fields[name].default is dataclasses.MISSING:  # else a file from before it was a setting
            errors.append(f"missing value: set {path}{name}=")
    if len(errors) > errors_before:
        return None
    try:
        return schema(**values)
    except InputError as error:
        errors.extend(error.args)
        return None


def _convert(annotation: Any, value: Any, path: str, errors: list[str]) -> Any:
    if value == "???" or (value == "" and path in PLACES):
        errors.append(f"missing value: set {path}=")
        return None
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    schemas = [option for option in options if dataclasses.is_dataclass(option)]
    if schemas and not (value is None and type(None) in options):
        schema = schemas[0] if len(schemas) == 1 else _schema_of_kind(schemas, value, path, errors)
        return None if schema is None else _build_dataclass(schema, value, f"{path}.", errors)
    for option in options:
        if get_origin(option) is tuple and dataclasses.is_dataclass(get_args(option)[0]) and isinstance(value, list):
            # each a configuration of its own, whose messages are those that it has by itself
            return tuple(_build_dataclass(get_args(option)[0], item, "", errors) for item in value)
        matched, converted = _match(option, value)
        if matched:
            return converted
    expected = " or ".join(_describe(option) for option in options)
    if isinstance(value, float) and not math.isfinite(value) and float in options:
        expected = expected.replace("a number", "a finite number")
    errors.append(f"{path}={value!r}: expected {expected}")
    return None


def _schema_of_kind(schemas: list[Any], value: Any, path: str, errors: list[str]) -> Any:
    """Choose among several dataclasses by the value's `kind`, which each of them annotates with its own literals."""
    if not isinstance(value, Mapping):
        return schemas[0]  # which says that a group is expected
    kinds = {kind: schema for schema in schemas for kind in get_args(get_type_hints(schema)["kind"])}
    kind = value.get("kind")
    if isinstance(kind, str) and kind in kinds:
        return kinds[kind]
    problem = f"{path}.kind={kind!r}: expected" if "kind" in value else f"missing value: set {path}.kind= to"
    errors.append(f"{problem} {' or '.join(kinds)}")
    return None


def _match(option: Any, value: Any) -> tuple[bool, Any]:
    """Whether `value` is of the type `option`, and the value as that type."""
    origin = get_origin(option)
    if option is type(None):
        return value is None, None
    if origin is Literal:
        return value in get_args(option), value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            return False, None
        items = [_match(get_args(option)[0], item) for item in value]
        return all(ok for ok, _ in items), tuple(item for _, item in items)
    if origin is dict:
        return isinstance(value, dict), value
    if option is bool or isinstance(value, bool):
        return option is bool and isinstance(value, bool), value
    if option is int and isinstance(value, float) and value.is_integer():
        return True, int(value)  # steps=1e6
    if option is float and isinstance(value, int):
        return True, float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return False, value
    return isinstance(value, option), value


def _describe(option: Any) -> str:
    if option is type(None):
        return "null"
    if get_origin(option) is Literal:
        return " or ".join(str(choice) for choice in get_args(option))
    if get_origin(option) is tuple:
        return f"a list of {_describe(get_args(option)[0])}"
    if get_origin(option) is dict or option is dict or dataclasses.is_dataclass(option):
        return "a group of settings"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[option]
