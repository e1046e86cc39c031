"""Read the records of parquet files."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bertkit.base.errors import InputError, check_distinct
from bertkit.base.text_files import parse_json
from bertkit.base.typed_settings import at

RECORDS_AT_ONCE = 1024  # records in memory


class ParquetFile(NamedTuple):
    """An open parquet file."""

    label_names: dict[str, list[str]]  # of each class-label column, if `datasets` wrote the file
    records: Iterator[dict[str, object]]


def parquet_records(path: Path, data: bytes | None = None) -> ParquetFile:
    """Open a parquet file, or its content `data`; needs neither a cache nor the network.

    Raises InputError if the file is missing or damaged, also when a record is read.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile as Reader

    if data is None and not path.is_file():
        raise InputError(f"{path}: no such file")

    @contextlib.contextmanager
    def reading() -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{path}: not readable as parquet ({reason}); restore the file") from None

    def records() -> Iterator[dict[str, object]]:
        with file, reading():
            for batch in file.iter_batches(RECORDS_AT_ONCE, use_threads=False):
                yield from batch.to_pylist()

    with reading():
        file = Reader(path if data is None else pa.BufferReader(data))
        check_distinct(file.schema_arrow.names, str(path))
        return ParquetFile(_label_names(file.schema_arrow.metadata or {}), records())


def _label_names(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """Return the label names that `datasets` stores in a parquet file's metadata; empty if another program wrote it."""
    names: dict[str, list[str]] = {}
    with contextlib.suppress(ValueError):
        features = at(parse_json(metadata.get(b"huggingface", b"{}").decode()), "info.features")
        for column, feature in features.items() if isinstance(features, dict) else ():
            match feature:
                # in a column of lists, the labels of the items
                case {"feature": {"names": list() as own}} | {"names": list() as own}:
                    names[column] = own
    return names
