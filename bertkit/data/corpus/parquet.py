"""Parquet files -> records, without a cache or the network."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError

RECORDS_AT_ONCE = 1024


def parquet_records(path: Path, data: bytes | None = None) -> tuple[dict[str, list[str]], Iterator[dict[str, Any]]]:
    """Open a parquet file, or its bytes.

    Returns:
        The label names of each class-label column, where the file stores them as `datasets` does; and an iterator over
        the records.

    Raises:
        InputError: the file is missing or damaged; later damage is reported when it is read.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    if data is None and not path.is_file():
        raise InputError(f"{path}: no such file")

    def damaged(error: Exception) -> InputError:
        reason = " ".join(str(error).split()) or type(error).__name__
        return InputError(f"{path}: not readable as parquet ({reason}); restore the file")

    def records() -> Iterator[dict[str, Any]]:
        with file:
            try:
                for batch in file.iter_batches(RECORDS_AT_ONCE, use_threads=False):
                    yield from batch.to_pylist()
            except (pa.ArrowException, OSError, ValueError) as error:
                raise damaged(error) from None

    try:
        file = ParquetFile(path if data is None else pa.BufferReader(data))
        return _label_names(file.schema_arrow.metadata or {}), records()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(error) from None


def _label_names(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """Read the label names that `datasets` stores in a file; none where another program wrote the metadata."""
    names: dict[str, list[str]] = {}
    if b"huggingface" not in metadata:
        return names
    try:
        for column, feature in json.loads(metadata[b"huggingface"])["info"]["features"].items():
            label = feature.get("feature", feature)  # a list of labels describes its items
            if isinstance(label, dict) and isinstance(label.get("names"), list):
                names[column] = label["names"]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return {}
    return names
