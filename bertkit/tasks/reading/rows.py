"""Rows from Python: mappings, `datasets` and pandas data frames."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertkit.base.errors import InputError, check_distinct


def plain_rows(rows: Any, what: str, text: str | None = None) -> Iterator[dict[str, Any]]:
    """Convert rows to mappings with JSON types: text, number, boolean, None, list or mapping; raises InputError for others.

    `rows` are mappings of columns to values, a `datasets.Dataset` (numbers of class labels become names), or a pandas data
    frame (missing values become None). `what` names them in messages. `text` is the column of rows that are bare texts; None
    refuses these.
    """
    for number, row in enumerate(_mappings(rows, what), start=1):
        row = {text: row} if text is not None and isinstance(row, str) else row
        if not isinstance(row, Mapping):
            raise InputError(f"{what}:{number}: {type(row).__name__}: expected a mapping from columns to values")
        try:
            yield _plain(dict(row))
        except (TypeError, RecursionError) as error:
            raise InputError(f"{what}:{number}: {error}; use texts, numbers, and lists of them") from None


def is_frame(rows: Any) -> bool:
    """Whether rows are a pandas data frame."""
    return hasattr(rows, "notna") and hasattr(rows, "columns")


def _mappings(rows: Any, what: str) -> Iterable[Any]:
    if hasattr(rows, "column_names") and hasattr(rows, "features"):
        return with_label_names(rows, label_names(rows.features))
    if is_frame(rows):
        check_distinct(rows.columns, what)
        records: list[Any] = rows.astype(object).where(rows.notna(), None).to_dict("records")
        return records
    return iterated(rows, what)


def iterated(items: Any, what: str) -> Iterator[Any]:
    """Iterate over rows or texts from Python; raises InputError for a single one."""
    with contextlib.suppress(TypeError):
        if not isinstance(items, (str, bytes, Mapping)):
            return iter(items)
    expected = "expected rows or texts, in a list, a column, a pandas data frame or a datasets.Dataset"
    raise InputError(f"{what}: {type(items).__name__}: {expected}")


def label_names(features: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Return the label names of each column of a dataset that stores labels as numbers."""
    inner = {column: getattr(feature, "feature", feature) for column, feature in (features or {}).items()}
    return {column: feature.names for column, feature in inner.items() if hasattr(feature, "names")}


def with_label_names(rows: Iterable[Mapping[str, Any]], names: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    """Replace label numbers by names; -1, which means an unknown label on the hub, becomes None."""

    def name_of(value: Any, own: list[str]) -> Any:
        if isinstance(value, list):
            return [name_of(item, own) for item in value]
        return own[value] if isinstance(value, int) and 0 <= value < len(own) else None

    for row in rows:
        yield {key: name_of(value, names[key]) if key in names else value for key, value in row.items()}


def _plain(value: Any) -> Any:
    """Convert numpy numbers and arrays, also inside lists and mappings, to Python types."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"a value has the type {type(value).__name__}")
