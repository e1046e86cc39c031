"""Read the records of parquet files, and of the arrow files of `datasets`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bertkit.base.blocks import packing_of
from bertkit.base.errors import InputError, check_distinct, in_one_line, refusing
from bertkit.base.text_files import parse_json
from bertkit.base.typed_settings import at

RECORDS_AT_ONCE = 1024  # records in memory
_ARROW_FILE = b"ARROW1"  # the first bytes of an arrow file with an index
_SAVED = (("dataset_dict.json",), ("dataset_info.json", "state.json"))  # in a directory of `datasets.save_to_disk`


class ParquetFile(NamedTuple):
    """An open parquet file."""

    label_names: dict[str, list[str]]  # of each class-label column, if `datasets` wrote the file
    records: Iterator[dict[str, object]]


def _reading(path: Path, format: str) -> contextlib.AbstractContextManager[None]:
    """Turn errors of the library into an InputError."""
    import pyarrow as pa

    way_out = "unpack it" if packing_of(path, b"") else "restore the file"
    return refusing(
        (pa.ArrowException, OSError, ValueError),
        lambda error: f"{path}: not readable as {format} ({in_one_line(error)}); {way_out}",
    )


def parquet_records(path: Path, data: bytes | None = None) -> ParquetFile:
    """Open a parquet file, or its content `data`; needs neither a cache nor the network.

    Raises InputError if the file is missing or damaged, also when a record is read.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile as Reader

    if data is None and not path.is_file():
        raise InputError(f"{path}: no such file")

    def records() -> Iterator[dict[str, object]]:
        with file, _reading(path, "parquet"):
            for batch in file.iter_batches(RECORDS_AT_ONCE, use_threads=False):
                yield from batch.to_pylist()

    with _reading(path, "parquet"):
        file = Reader(path if data is None else pa.BufferReader(data))
        check_distinct(file.schema_arrow.names, str(path))
        return ParquetFile(_label_names(file.schema_arrow.metadata or {}), records())


def arrow_records(path: Path) -> Iterator[dict[str, object]]:
    """Read an arrow file, a stream as `datasets` writes it or a file with an index; raises InputError if it is damaged."""
    import pyarrow as pa

    with _reading(path, "arrow"), pa.memory_map(str(path)) as file:
        is_stream = file.read(len(_ARROW_FILE)) != _ARROW_FILE
        file.seek(0)
        opened = pa.ipc.open_stream(file) if is_stream else pa.ipc.open_file(file)
        check_distinct(opened.schema.names, str(path))
        batches = opened if is_stream else map(opened.get_batch, range(opened.num_record_batches))
        for batch in batches:
            batch.validate(full=True)  # a damaged one would end the process
            for first in range(0, len(batch), RECORDS_AT_ONCE):
                yield from batch.slice(first, RECORDS_AT_ONCE).to_pylist()


class SavedDataset(NamedTuple):
    """A directory of `datasets.save_to_disk`."""

    files: list[Path]  # arrow files, of one split if the dataset has several
    others: list[Path]  # the folders of the other splits


def saved_dataset(directory: Path, split: str, setting: str) -> SavedDataset | None:
    """Open a directory of `datasets.save_to_disk`; None for another directory.

    Raises InputError if it is damaged, or has other splits than the one of the setting.
    """
    if not any(all((directory / name).is_file() for name in names) for names in _SAVED):
        return None
    import datasets

    what = f"{directory}: not readable as a dataset of datasets.save_to_disk"
    with refusing(Exception, lambda error: f"{what} ({in_one_line(error):.200})"):  # the library raises many kinds
        saved = datasets.load_from_disk(str(directory))
    others = list[Path]()
    if isinstance(saved, datasets.DatasetDict):
        if split not in saved:
            raise InputError(f"{directory}: no split '{split}' (it has: {', '.join(saved)}); set {setting}=")
        others = [directory / name for name in saved if name != split]
        saved = saved[split]
    return SavedDataset([Path(file["filename"]) for file in saved.cache_files], others)


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
