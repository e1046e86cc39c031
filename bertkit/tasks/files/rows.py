"""Rows in memory as the JSON lines of a file: mappings, a `datasets.Dataset`, a pandas frame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertkit.errors import InputError


def as_json_lines(rows: Any, what: str) -> Iterator[str]:
    """Write each row as a line of JSON.

    Args:
        rows: mappings of columns to values, a `datasets.Dataset` (its class labels become their names), or a pandas frame
            (a missing value becomes null).
        what: the rows are called in messages.

    Raises:
        InputError: something else is given, or a value that JSON does not have.
    """
    for number, row in enumerate(_mappings(rows, what), start=1):
        if not isinstance(row, Mapping):
            raise InputError(f"{what}:{number}: {type(row).__name__}: expected a mapping of columns to values")
        try:
            yield json.dumps(dict(row), default=_plain)
        except TypeError as error:
            raise InputError(f"{what}:{number}: {error}; give texts, numbers, and lists of them") from None


def _mappings(rows: Any, what: str) -> Iterable[Any]:
    if hasattr(rows, "column_names") and hasattr(rows, "features"):
        return _of_dataset(rows)
    if hasattr(rows, "notna") and hasattr(rows, "to_dict"):
        records: list[Any] = rows.astype(object).where(rows.notna(), None).to_dict("records")
        return records
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise InputError(
            f"{what}: {type(rows).__name__}: expected a list of rows, a datasets.Dataset or a pandas frame"
        )
    return rows


def _of_dataset(rows: Any) -> Iterator[dict[str, Any]]:
    """Give the rows of a dataset, with the names of its class labels instead of their numbers."""
    named = {}
    for column, feature in (rows.features or {}).items():
        of_items = getattr(feature, "feature", feature)
        if hasattr(of_items, "int2str"):
            named[column] = of_items
    for row in rows:
        yield row | {column: _names(feature, row[column]) for column, feature in named.items()}


def _names(feature: Any, value: Any) -> Any:
    if isinstance(value, list):
        return [_names(feature, item) for item in value]
    return feature.int2str(value) if isinstance(value, int) and value >= 0 else None  # -1: a hidden label


def _plain(value: Any) -> Any:
    """Turn numpy's numbers and arrays into Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value is {type(value).__name__}")
