"""A parquet file, or a dataset of the hub -> rows, by way of `datasets`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertkit.errors import InputError
from bertkit.tasks.config import TaskConfig
from bertkit.tasks.files.tables import Gaps, Rows, Table, records


def parquet_table(path: Path) -> Table:
    """Open a parquet file.

    Raises:
        InputError: it is missing or damaged.
    """
    import datasets

    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        rows = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        return records(path, "parquet", _named_labels(rows, rows.features), Gaps(), counts=" record ")
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not readable as parquet ({reason}); restore the file") from None


def hub_table(task: TaskConfig, split: str) -> Table:
    """Open a split of the task's dataset on the hub, or of its copy in the local cache.

    Raises:
        InputError: it cannot be had, with the ways out.
    """
    import datasets

    hub = task.hub
    where = f"{hub.path}{f'/{hub.name}' if hub.name else ''} of the hub, split {split}"
    try:
        rows = datasets.load_dataset(hub.path, hub.name, split=split, revision=hub.revision)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"task={task.name}: cannot read {where} ({reason[:300]}); set data_dir= to the task's files, or fill HF_HOME "
            "where there is a network, or set task.hub.path= to another copy"
        ) from None
    return records(where, "datasets", _named_labels(rows, rows.features), Gaps(), counts=" record ")


def _named_labels(rows: Any, features: Mapping[str, Any] | None) -> Rows:
    """Rows whose numbered labels are names again; -1, the hub's way to say that a label is not known, is None."""
    names: dict[str, list[str]] = {}
    for column, feature in (features or {}).items():
        inner = getattr(feature, "feature", feature)
        if hasattr(inner, "names"):
            names[column] = inner.names

    def named(value: Any, of: list[str]) -> Any:
        if isinstance(value, list):
            return [named(item, of) for item in value]
        return of[value] if isinstance(value, int) and 0 <= value < len(of) else None

    for number, row in enumerate(rows, 1):
        yield number, {key: named(value, names[key]) if key in names else value for key, value in row.items()}
