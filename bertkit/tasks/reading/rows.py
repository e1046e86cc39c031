"""Rows in memory as the JSON lines of a file: mappings, a `datasets.Dataset`, a pandas frame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertkit.base.errors import InputError


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
        return with_label_names(rows, label_names(rows.features))
    if hasattr(rows, "notna") and hasattr(rows, "to_dict"):
        records: list[Any] = rows.astype(object).where(rows.notna(), None).to_dict("records")
        return records
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise InputError(
            f"{what}: {type(rows).__name__}: expected a list of rows, a datasets.Dataset or a pandas frame"
        )
    return rows


def label_names(features: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Give the names of the numbered labels of each column of a dataset that has some."""
    inner = {column: getattr(feature, "feature", feature) for column, feature in (features or {}).items()}
    return {column: feature.names for column, feature in inner.items() if hasattr(feature, "names")}


def with_label_names(rows: Iterable[Mapping[str, Any]], names: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    """Give rows whose numbered labels are names; -1, the hub's way to say that a label is not known, is None."""

    def named(value: Any, of: list[str]) -> Any:
        if isinstance(value, list):
            return [named(item, of) for item in value]
        return of[value] if isinstance(value, int) and 0 <= value < len(of) else None

    for row in rows:
        yield {key: named(value, names[key]) if key in names else value for key, value in row.items()}


def _plain(value: Any) -> Any:
    """Turn numpy's numbers and arrays into Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value is {type(value).__name__}")
