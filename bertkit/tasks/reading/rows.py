"""Rows from Python: mappings, `datasets` and pandas data frames."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Protocol, Self, TypeGuard, runtime_checkable

from bertkit.base.errors import InputError, check_distinct, refusing
from bertkit.tasks.reading.json_records import with_entities

Record = Mapping[str, object]
# what the user calls the rows from Python that are in a file of this name, as in `train: row 12`
names_by_file: ContextVar[Mapping[str, str]] = ContextVar("names_by_file", default=MappingProxyType({}))


@runtime_checkable
class Frame(Protocol):
    """A pandas data frame."""

    columns: Sequence[object]

    def notna(self) -> object:
        """Return which values are not missing."""

    def astype(self, dtype: type) -> Self:
        """Return a copy with another type."""

    def where(self, condition: object, other: object) -> Self:
        """Return a copy with `other` where the condition is false."""

    def to_dict(self, orient: str) -> list[Record]:
        """Return the rows as mappings, with `orient` "records"."""


@runtime_checkable
class Dataset(Protocol):
    """A `datasets.Dataset`."""

    column_names: object
    features: Mapping[str, object] | None

    def __iter__(self) -> Iterator[Record]: ...


@runtime_checkable
class _Nested(Protocol):
    """The type of a column of lists, in a dataset."""

    feature: object


@runtime_checkable
class _ClassLabel(Protocol):
    """The type of a column of labels that are stored as numbers, in a dataset."""

    names: list[str]


def plain_rows(rows: object, what: str, text: str | None = None) -> Iterator[dict[str, object]]:
    """Convert rows to mappings with JSON types: text, number, boolean, None, list or mapping; raises InputError for others.

    `rows` are mappings of columns to values, a `datasets.Dataset` (numbers of class labels become names), or a pandas data
    frame (missing values become None). `what` names them in messages. `text` is the column of rows that are bare texts; None
    refuses these.
    """
    for number, record in enumerate(_mappings(rows, what), start=1):
        yield _plain_row(record, f"{what}: row {number}", text)


def _plain_row(record: object, where: str, text: str | None) -> dict[str, object]:
    with refusing(ValueError, lambda error: f"{where}: {error}"):
        row = with_entities(record)
    row = {text: row} if text is not None and isinstance(row, str) else row
    if not isinstance(row, Mapping):
        expected = "a mapping from columns to values" if text is None else "a text, or a mapping from columns to values"
        raise InputError(f"{where}: {type(row).__name__}; expected {expected}")
    advice = "use texts, numbers, and lists of them"
    with refusing((TypeError, RecursionError), lambda error: f"{where}: {error}; {advice}"):
        return {str(key): _plain(value) for key, value in row.items()}


def is_frame(rows: object) -> TypeGuard[Frame]:
    """Whether rows are a pandas data frame."""
    return isinstance(rows, Frame)


def _mappings(rows: object, what: str) -> Iterable[object]:
    if isinstance(rows, Dataset):
        return with_label_names(rows, label_names(rows.features))
    if isinstance(rows, Frame):
        check_distinct(rows.columns, what)
        return rows.astype(object).where(rows.notna(), None).to_dict("records")
    return iterated(rows, what)


def iterated(items: object, what: str) -> Iterator[object]:
    """Iterate over rows or texts from Python; raises InputError for a single one."""
    with contextlib.suppress(TypeError):
        if not isinstance(items, (str, bytes, Mapping)):
            return iter(items)  # type: ignore[call-overload, no-any-return]
    expected = "expected rows or texts, in a list, a column, a pandas data frame or a datasets.Dataset"
    raise InputError(f"{what}: {type(items).__name__}: {expected}")


def label_names(features: Mapping[str, object] | None) -> dict[str, list[str]]:
    """Return the label names of each column of a dataset that stores labels as numbers."""
    names = {}
    for column, feature in (features or {}).items():
        inner = feature.feature if isinstance(feature, _Nested) else feature
        if isinstance(inner, _ClassLabel):
            names[column] = inner.names
    return names


def with_label_names(rows: Iterable[Record], names: Mapping[str, list[str]]) -> Iterator[Record]:
    """Replace label numbers by names; -1, which means an unknown label on the hub, becomes None."""
    by_number: dict[str, dict[object, str]] = {column: dict(enumerate(own)) for column, own in names.items()}

    def name_of(value: object, own: Mapping[object, str]) -> object:
        return [name_of(item, own) for item in value] if isinstance(value, list) else own.get(value)

    for row in rows:
        yield {**row, **{column: name_of(row[column], own) for column, own in by_number.items() if column in row}}


def _plain(value: object) -> object:
    """Convert numpy numbers and arrays, also inside lists and mappings, to Python types."""
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _ if hasattr(value, "tolist"):  # much faster than a protocol that is checked at run time
            return _plain(value.tolist())
        case None | str() | int() | float():
            return value
    raise TypeError(f"a value has the type {type(value).__name__}")
