"""The examples of an epoch on disk, memory-mapped: written once, in memory that does not grow with the corpus."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import numpy as np

from bertkit import signs
from bertkit.config import to_mapping
from bertkit.data.config import SegmentsConfig
from bertkit.data.prepared import Split, fingerprint
from bertkit.data.segments import Examples, examples_of_epoch

COLUMNS = ("first_piece", "piece_start", "piece_length", "is_random_next")


class EpochCache:
    """Computes the examples of an epoch into a directory, or opens them there."""

    def __init__(self, directory: Path, split: Split, segments: SegmentsConfig, seed: int) -> None:
        self.directory, self.split, self.segments, self.seed = directory, split, segments, seed
        self.key = fingerprint([to_mapping(segments), seed])[:12]

    def open(self, epoch: int) -> Examples:
        """Give the examples of an epoch; whichever process comes first writes them."""
        final = self._path(epoch)
        if not final.is_dir():
            partial = self.directory / f"{final.name}.{socket.gethostname()}-{os.getpid()}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            self._write(partial, epoch)
            try:
                partial.rename(final)
            except OSError:  # another process was faster; its files are the same
                shutil.rmtree(partial)
            if epoch > 2:
                shutil.rmtree(self._path(epoch - 2), ignore_errors=True)
        columns = {name: np.asarray(np.memmap(final / name, np.int64, "r")) for name in COLUMNS[:3]}
        is_pairs = self.segments.kind == "pairs"
        labels = np.asarray(np.memmap(final / COLUMNS[3], np.int64, "r")) if is_pairs else None
        return Examples(**columns, is_random_next=labels)

    def _path(self, epoch: int) -> Path:
        return self.directory / f"epoch-{epoch:05d}-{self.key}"

    def _write(self, directory: Path, epoch: int) -> None:
        num_pieces = 0
        files = {name: (directory / name).open("wb") for name in COLUMNS}
        parts = examples_of_epoch(self.split.sentences, self.split.documents, self.segments, self.seed, epoch)
        for part in parts:
            signs.beat()
            files["first_piece"].write((part.first_piece[:-1] + num_pieces).tobytes())
            files["piece_start"].write(part.piece_start.astype(np.int64).tobytes())
            files["piece_length"].write(part.piece_length.astype(np.int64).tobytes())
            if part.is_random_next is not None:
                files["is_random_next"].write(part.is_random_next.tobytes())
            num_pieces += len(part.piece_start)
        files["first_piece"].write(np.array([num_pieces], np.int64).tobytes())
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
