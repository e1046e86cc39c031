"""Parquet files -> records. Nothing but the file is opened: no cache, no network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError

RECORDS_AT_ONCE = 1024


def parquet_records(path: Path, data: bytes | None = None) -> tuple[dict[str, list[str]], Iterator[dict[str, Any]]]:
    """Open a parquet file, or the bytes of one.

    Returns:
        The names of the numbered labels of each column that has some, as `datasets` notes them in the file; and the
        records, on their way.

    Raises:
        InputError: it is missing or damaged; what is damaged farther on, when that is read.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    if data is None and not path.is_file():
        raise InputError(f"{path}: no such file")

    def records() -> Iterator[dict[str, Any]]:
        with file:
            try:
                for batch in file.iter_batches(RECORDS_AT_ONCE, use_threads=False):
                    yield from batch.to_pylist()
            except (pa.ArrowException, OSError, ValueError) as error:
                raise _damaged(path, error) from None

    try:
        file = ParquetFile(path if data is None else pa.BufferReader(data))
        return _names_of_labels(file.schema_arrow.metadata or {}), records()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> InputError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"{path}: not readable as parquet ({reason}); restore the file")


def _names_of_labels(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        found = {column: feature.get("feature", feature).get("names") for column, feature in features.items()}
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return {}
    return {column: names for column, names in found.items() if isinstance(names, list)}
