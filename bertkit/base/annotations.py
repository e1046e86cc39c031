"""The forms of annotation that a setting may have, each with the values that it accepts and how it converts them.

`kind_of` returns the form: nested dataclasses, `bool`, `str`, perhaps with a `Form`, numbers, perhaps with an `Interval`, `Literal`,
the name of an option, `tuple[X, ...]`, `dict[str, X]`, and unions, whose forms are tried in order.
"""

import dataclasses
import functools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

from bertkit.base import plugins
from bertkit.base.errors import InputError, user_name
from bertkit.base.intervals import Form, Interval
from bertkit.base.problems import Place, PlaceInFile
from bertkit.base.text_files import JsonValue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

OptionOf = NewType("OptionOf", str)  # marks the name of an option: `Annotated[str, OptionOf("optimizer")]`


class Kind(ABC):
    """A form of annotation."""

    is_group = False

    @abstractmethod
    def expected(self, value: JsonValue) -> str:
        """Describe what should stand instead of a value that is not accepted."""

    @abstractmethod
    def accepts(self, value: JsonValue, place: Place) -> bool:
        """Whether the value has this form; what is inside may still be wrong."""

    def converted(self, value: JsonValue, place: Place) -> object:
        """Convert a value that is accepted; note what is wrong inside."""
        return value

    def read(self, value: JsonValue, place: Place) -> object:
        """Convert a value; note what is wrong with it."""
        if place.is_unset(value):
            place.refuse_absent()
        elif self.accepts(value, place):
            return self.converted(value, place)
        else:
            place.refuse_value(value, self.expected(value))
        return None


@dataclasses.dataclass(frozen=True)
class _Plain(Kind):
    """A text, a truth value, or null."""

    type: type
    name: str

    def expected(self, value: JsonValue) -> str:
        return self.name

    def accepts(self, value: JsonValue, place: Place) -> bool:
        return isinstance(value, self.type)


class _Anything(Kind):
    def expected(self, value: JsonValue) -> str:
        return "any value"

    def accepts(self, value: JsonValue, place: Place) -> bool:
        return True


class _Whole(Kind):
    def expected(self, value: JsonValue) -> str:
        return "a whole number"

    def accepts(self, value: JsonValue, place: Place) -> bool:
        return type(value) is int or (type(value) is float and value.is_integer() and place.takes_whole_floats)

    def converted(self, value: JsonValue, place: Place) -> int:
        return int(value)


class _Number(Kind):
    def expected(self, value: JsonValue) -> str:
        return "a finite number" if type(value) is float else "a number"

    def accepts(self, value: JsonValue, place: Place) -> bool:
        is_small = type(value) is int and abs(value) < 2**1023  # larger ones overflow
        return is_small or (type(value) is float and math.isfinite(value))

    def converted(self, value: JsonValue, place: Place) -> float:
        return float(value)


class _Choice(Kind):
    def __init__(self, *choices: object) -> None:
        self.choices = choices

    def expected(self, value: JsonValue) -> str:
        return " or ".join(map(str, self.choices))

    def accepts(self, value: JsonValue, place: Place) -> bool:
        return value in self.choices


@dataclasses.dataclass(frozen=True)
class _InForm(Kind):
    """A text in a certain form."""

    form: Form

    def expected(self, value: JsonValue) -> str:
        return self.form.expected

    def accepts(self, value: JsonValue, place: Place) -> bool:
        return isinstance(value, str) and re.fullmatch(self.form.pattern, value) is not None


@dataclasses.dataclass(frozen=True)
class _Option(Kind):
    """The name of an option, built in or of a plug-in."""

    slot: str

    def expected(self, value: JsonValue) -> str:
        return f"{' or '.join(plugins.names_of(self.slot))}, or a plug-in whose module is in plugins="

    def accepts(self, value: JsonValue, place: Place) -> bool:
        return plugins.exists(self.slot, value)


@dataclasses.dataclass(frozen=True)
class _InInterval(Kind):
    number: _Whole | _Number
    interval: Interval

    def expected(self, value: JsonValue) -> str:
        return self.number.expected(value)

    def accepts(self, value: JsonValue, place: Place) -> bool:
        return self.number.accepts(value, place)

    def converted(self, value: JsonValue, place: Place) -> object:
        number = self.number.converted(value, place)
        expected = self.interval.expected(number)
        if expected:
            place.refuse(f"{user_name(place.path)}={number}: expected {expected}")
        return number


class _List(Kind):
    plurals: Mapping[str, str] = {"a whole number": "whole numbers", "a number": "numbers", "text": "texts"}

    def __init__(self, item: object, *_: object) -> None:
        self.item = kind_of(item)

    def expected(self, value: JsonValue) -> str:
        item = self.item.expected(None)
        return f"a list of {self.plurals.get(item, item)}"

    def accepts(self, value: JsonValue, place: Place) -> bool:
        return isinstance(value, (list, tuple)) or (place.takes_single_items and self.item.accepts(value, place))

    def converted(self, value: JsonValue, place: Place) -> tuple[object, ...]:
        items, is_group = value if isinstance(value, (list, tuple)) else [value], self.item.is_group
        return tuple(self.item.read(item, place.item(number, is_group)) for number, item in enumerate(items))


class _Group(Kind):
    def expected(self, value: JsonValue) -> str:
        return "a group of settings"

    def accepts(self, value: JsonValue, place: Place) -> bool:
        return isinstance(value, Mapping)


class _Mapping(_Group):
    def __init__(self, _: object, item: object) -> None:
        self.item = kind_of(item)

    def converted(self, value: JsonValue, place: Place) -> dict[str, object]:
        return {key: self.item.read(item, place.inside(key)) for key, item in value.items()}


class _Schema(_Group):
    """A nested dataclass."""

    is_group = True

    def __init__(self, schema: "type[DataclassInstance]") -> None:
        self.schema = schema

    @functools.cached_property
    def fields(self) -> dict[str, "dataclasses.Field[object]"]:
        return {field.name: field for field in dataclasses.fields(self.schema)}

    @functools.cached_property
    def hints(self) -> dict[str, object]:
        return get_type_hints(self.schema, include_extras=True)

    def converted(self, value: JsonValue, place: Place) -> object:
        num_before, values = len(place.problems), dict[str, object]()
        place.refuse_unknown(value, self.fields)
        for name, field in self.fields.items():
            if "slot" in field.metadata:
                values[name] = self._options(field, values, value.get(name, {}), place)
            elif name in value:
                # what bypasses Hydra holds what it says
                inside = PlaceInFile(place.path, place.problems) if "is_verbatim" in field.metadata else place
                values[name] = kind_of(self.hints[name]).read(value[name], inside.inside(name))
            elif field.default is field.default_factory is dataclasses.MISSING:  # old files get a newer field's default
                place.inside(name).refuse_absent()
        try:
            if len(place.problems) == num_before:
                return self.schema(**values)
        except InputError as error:
            place.problems.extend(error.args)
        needs = (field.metadata["needed"](values) for field in self.fields.values() if "needed" in field.metadata)
        place.problems.extend(filter(None, needs))  # what else is missing
        return None

    def _options(
        self, field: "dataclasses.Field[object]", values: dict[str, object], own: JsonValue, place: Place
    ) -> dict[str, object]:
        """Convert the settings of the option that another field names; an unknown one is refused there, and is None here."""
        slot, named_by = field.metadata["slot"], field.metadata["named_by"]
        chosen = values.get(named_by, self.fields[named_by].default)
        if not isinstance(chosen, str) or (chosen == plugins.SLOTS[slot].default and not own):
            return {}
        schema = plugins.options_of(slot, chosen, self.fields)
        options = kind_of(schema).read(own, Place(place.inside(field.name).path, place.problems))
        return {} if options is None else vars(options)


class _SchemaByKind(_Group):
    """One of several dataclasses: in each, the annotation of `kind` lists its names."""

    is_group = True

    def __init__(self, schemas: Iterable[_Schema]) -> None:
        self.schemas = schemas

    @functools.cached_property
    def named(self) -> dict[str, _Schema]:
        return {name: schema for schema in self.schemas for name in get_args(schema.hints["kind"])}

    def converted(self, value: JsonValue, place: Place) -> object:
        name = value.get("kind")
        if str(name) in self.named:
            return self.named[str(name)].converted(value, place)
        problem = (
            f"{place.path}.kind={name!r}: expected" if "kind" in value else f"missing value: set {place.path}.kind= to"
        )
        place.refuse(f"{problem} {' or '.join(self.named)}")
        return None


class _AnyOf(Kind):
    def __init__(self, *annotations: object) -> None:
        kinds = [kind_of(annotation) for annotation in annotations]
        schemas = [kind for kind in kinds if isinstance(kind, _Schema)]
        others = [kind for kind in kinds if kind not in schemas]
        self.kinds = [_SchemaByKind(schemas), *others] if len(schemas) > 1 else kinds

    def expected(self, value: JsonValue) -> str:
        return " or ".join(dict.fromkeys(kind.expected(value) for kind in self.kinds))

    def accepts(self, value: JsonValue, place: Place) -> bool:
        return any(kind.accepts(value, place) for kind in self.kinds)

    def converted(self, value: JsonValue, place: Place) -> object:
        fitting, wrong = [kind for kind in self.kinds if kind.accepts(value, place)], list[list[str]]()
        for kind in fitting:
            inside = dataclasses.replace(place, problems=[])
            result = kind.converted(value, inside)
            if not inside.problems:
                return result
            wrong.append(inside.problems)
        place.problems.extend(wrong[0])
        return None


_NUMBERS: dict[type, _Whole | _Number] = {int: _Whole(), float: _Number()}
_PLAIN: dict[object, Kind] = {
    NoneType: _Plain(NoneType, "null"),
    bool: _Plain(bool, "true or false"),
    str: _Plain(str, "text"),
    Any: _Anything(),
}


def _marked(plain: type, mark: str | Interval | Form) -> Kind:
    match mark:
        case Interval():
            return _InInterval(_NUMBERS[plain], mark)
        case Form():
            return _InForm(mark)
    return _Option(mark)


_COMPOSED: dict[object, Callable[..., Kind]] = {
    Annotated: _marked, Literal: _Choice, tuple: _List, dict: _Mapping, Union: _AnyOf, UnionType: _AnyOf,
}  # fmt: skip


@functools.cache
def kind_of(annotation: Any) -> Kind:
    """Return the form of an annotation."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _Schema(annotation)
    return (
        _PLAIN.get(annotation) or _NUMBERS.get(annotation) or _COMPOSED[get_origin(annotation)](*get_args(annotation))
    )
