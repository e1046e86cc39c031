"""Writes checkpoints, in the background if requested, and remembers which one is the best."""

from __future__ import annotations

import functools
import math
import threading
from dataclasses import dataclass, field
from pathlib import Path

from bertkit.base.errors import StorageError, counted, say
from bertkit.base.typed_settings import IF_SET
from bertkit.train import checkpoint
from bertkit.train.log import Window
from bertkit.train.processes import Ranks
from bertkit.train.step_report import NO_SKIPS, Skips
from bertkit.train.train_config import SavingConfig


@dataclass(frozen=True)
class Best:
    """The best weights of a run."""

    step: int
    score: float
    loss: float | None = field(default=None, metadata=IF_SET)  # decides between equal scores

    @property
    def rank(self) -> tuple[float, float]:
        """What is compared: the score, and then the loss."""
        return self.score, -math.inf if self.loss is None else -self.loss


@dataclass
class History:
    """The history of a run, saved in every checkpoint."""

    best: Best | None = None  # the best weights so far
    num_worse: int = 0  # evaluations in a row without a better score
    skips: Skips = NO_SKIPS  # counts the steps skipped so far
    window: Window = field(default_factory=Window)  # averages since the last logged row


class CheckpointWriter:
    """Writes the checkpoints of a run, one at a time; as a context manager, waits at the end for a save in the background."""

    def __init__(self, directory: Path, config: SavingConfig, ranks: Ranks) -> None:
        self.directory, self.config, self.ranks = directory, config, ranks
        self.history = History()  # saved in the next checkpoint
        self.branch_step: int | None = None  # its checkpoint is kept, since a longer run goes on from there
        self.num_failed = 0  # failed saves since this start, with `on_save_error=continue`
        self.last_good: int | None = None  # step of the newest checkpoint on disk
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._failed_step: int | None = None
        self._best_before: Best | None = None

    def offer_best(self, step: int, score: float, loss: float | None = None) -> bool:
        """Record the weights of `step` as the best if their score is the highest so far, or equals it with a lower loss; return whether they are."""
        self.wait()  # a failed save may change which weights are the best
        best, offered = self.history.best, Best(step, score, loss)
        if best is not None and not offered.rank > best.rank:
            return False
        self.history.best, self._best_before = offered, best
        return True

    def write(self, contents: checkpoint.Checkpoint, *, is_required: bool = False) -> None:
        """Write a checkpoint; every process calls this.

        With `config.background` a thread writes a copy; an error there is raised by the next call. With `is_required`, for a
        run that stops now, the call waits for the write and raises any error. Raises the errors of `checkpoint.save`.
        """
        self.wait()
        share = contents.share(self.ranks.rank, self.ranks.size)
        in_background = self.config.background and not is_required
        best = None if self.history.best is None else self.history.best.step
        kept = {step for step in (self.branch_step, best) if step is not None}
        write = functools.partial(self._write, share.copy() if in_background else share, kept)
        if in_background:
            self._thread = threading.Thread(target=write, name=f"save of step {share.step}")
            self._thread.start()
        else:
            write()
            self.wait(is_required)

    def _write(self, share: checkpoint.Share, kept: set[int]) -> None:
        """Save; store an error for `wait`, since this may run in a thread."""
        try:
            keep_last, last_good = self.config.keep_last, self.last_good
            checkpoint.save(self.directory, share, self.ranks, keep_last=keep_last, kept=kept, last_good=last_good)
            self.last_good = share.step
        except Exception as error:
            self._failure, self._failed_step = error, share.step

    def wait(self, is_required: bool = False) -> None:
        """Wait for a save in the background; if it failed, raise its error, or print it with `on_save_error=continue`."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if isinstance(failure, StorageError) and self.config.on_save_error == "continue" and not is_required:
            self.num_failed += 1
            if self.history.best is not None and self.history.best.step == self._failed_step:
                self.history.best = self._best_before  # its checkpoint is still on disk
            self.warn(f"{failure}; training continues ({counted(self.num_failed, 'failed save')} since this start)")
        elif failure is not None:
            raise failure

    def warn(self, text: str) -> None:
        """Print a warning on process 0."""
        if self.ranks.rank == 0:
            say(f"warning: {text}")

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            self.warn(str(failure))  # `error` ends the run and is printed elsewhere
