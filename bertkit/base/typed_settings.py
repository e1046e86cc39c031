"""Converts plain mappings to frozen dataclasses, and reports all errors at once; `checked` does the same for file contents.

The annotations of a dataclass are its schema; `annotations.py` has the forms that they may have. A value may be null only if its
annotation includes `None`; unknown keys are errors.
"""

import dataclasses
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from bertkit.base.annotations import kind_of
from bertkit.base.errors import InputError
from bertkit.base.problems import Place, PlaceInFile
from bertkit.base.text_files import JsonObject, JsonValue, parse_yaml, read_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


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


def option_file(directories: Sequence[Path], group: str, option: str) -> Path:
    """Return the file of an option, in the first directory that has it."""
    paths = [directory / group / f"{option}.yaml" for directory in directories]
    return next((path for path in paths if path.is_file()), paths[0])


IF_SET = {"is_written": "if set"}  # metadata of a setting that is written only if it differs from its default


def build(schema: type[T], mapping: object, path: str = "") -> T:
    """Build the dataclass `schema` from a mapping of settings, or of the group `path`.

    Raises:
        InputError: one line for each unknown key, missing value, wrong type, and error of a `__post_init__`.
    """
    problems: list[str] = []
    value = _read(schema, mapping, Place(path, problems))
    refuse(dict.fromkeys(problems))
    return value


def checked(kind: type[T], content: object, where: Path | str, advice: str = "restore it from where it came") -> T:
    """Convert the content of a file to a type; additional fields are allowed; InputError names the first wrong field."""
    problems: list[str] = []
    value = _read(kind, content, PlaceInFile("", problems))
    refuse([f"{where}: {problem.replace('of settings', 'of values')}; {advice}" for problem in problems[:1]])
    return value


def read_object(path: Path) -> JsonObject:
    """Read a JSON file that holds an object; {} if there is no such file."""
    return checked(JsonObject, read_json(path), path) if path.is_file() else {}


def _read(schema: type[T], value: object, place: Place) -> T:
    return cast(T, kind_of(schema).read(value, place))  # type: ignore[arg-type]  # a class is hashable


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
        value = vars(settings)[name]
        if is_unused and value is not None and value is not False and value not in default:
            is_plain = isinstance(value, (str, int, float))
            shown = f"={str(value).lower() if value is True else value}" if is_plain else ""
            problems.append(f"{group}{name}{shown}: has no effect {why}; leave it out")
    return problems


def unused_keys(explicit_keys: Iterable[str], groups: Container[str], why: str) -> list[str]:
    """List the settings of some groups that the user set although they have no effect."""
    return [f"{key}: has no effect {why}; leave it out" for key in explicit_keys if key.partition(".")[0] in groups]


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
        written, item = field.metadata.get("is_written", True), vars(value)[field.name]
        if written is True or (written == IF_SET["is_written"] and not _is_default(field, item)):
            plain[field.name] = _plain(item)
    return plain


def not_default(value: "DataclassInstance") -> set[str]:
    """Return the names of the settings that differ from their defaults."""
    return {field.name for field in dataclasses.fields(value) if not _is_default(field, vars(value)[field.name])}


def _is_default(field: dataclasses.Field[object], item: object) -> bool:
    return item in ({}, (), field.default)  # the default of a setting with a factory is empty


def without_none(mapping: Mapping[str, JsonValue]) -> JsonObject:
    """Return a mapping without the keys that stand for nothing."""
    return {key: value for key, value in mapping.items() if value is not None}


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
