"""Rows in memory: mappings, a `datasets.Dataset` or a pandas frame."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertkit.base.errors import InputError


def plain_rows(rows: Any, what: str) -> Iterator[dict[str, Any]]:
    """Turn rows into the mappings that a JSON file would hold.

    Args:
        rows: mappings of columns to values, a `datasets.Dataset` (class labels become their names), or a pandas frame
            (a missing value becomes None).
        what: the name of the rows in messages.

    Raises:
        InputError: `rows` is something else, or has a value that JSON lacks.
    """
    for number, row in enumerate(_mappings(rows, what), start=1):
        if not isinstance(row, Mapping):
            raise InputError(f"{what}:{number}: {type(row).__name__}: expected a mapping of columns to values")
        try:
            yield _plain(dict(row))
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
    """Give the label names of every column of a dataset with numbered labels."""
    inner = {column: getattr(feature, "feature", feature) for column, feature in (features or {}).items()}
    return {column: feature.names for column, feature in inner.items() if hasattr(feature, "names")}


def with_label_names(rows: Iterable[Mapping[str, Any]], names: Mapping[str, list[str]]) -> Iterator[dict[str, Any]]:
    """Replace label numbers by names; -1, the hub's number for an unknown label, becomes None."""

    def named(value: Any, of: list[str]) -> Any:
        if isinstance(value, list):
            return [named(item, of) for item in value]
        return of[value] if isinstance(value, int) and 0 <= value < len(of) else None

    for row in rows:
        yield {key: named(value, names[key]) if key in names else value for key, value in row.items()}


def _plain(value: Any) -> Any:
    """Turn a value, with numpy's numbers and arrays in it, into Python's own types."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"a value is {type(value).__name__}")
