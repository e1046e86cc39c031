"""Requests that wait, and the thread that answers them: whatever waits is taken together, in the order in which it came."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException

from bertkit.base.errors import BertkitError, InputError, say


class RefusedError(HTTPException):
    """Why a request gets no answer.

    Args:
        status: of HTTP.
        code: a word for programs.
        message: a line for people.
        headers: that go with it.
    """

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.code = code

    def __str__(self) -> str:
        return str(self.detail)


@dataclass
class Counts:
    """How much a batch was."""

    num_sequences: int = 0
    num_tokens: int = 0

    def add(self, num_sequences: int, num_tokens: int) -> None:
        """Count more."""
        self.num_sequences, self.num_tokens = self.num_sequences + num_sequences, self.num_tokens + num_tokens


@dataclass(eq=False, slots=True)
class Job:
    """A request that waits for its answer.

    Attributes:
        kind: what is answered together, such as the path and the model.
        given: what is asked.
        size: about how many tokens.
        future: of the answer; of the event loop.
    """

    kind: Any
    given: Any
    size: int
    future: asyncio.Future[Any]


class Line:
    """Requests in line for one thread.

    Args:
        answer: gives the answers, or an exception for each, of what is asked of one kind, in its order.
        most_waiting: one more is refused.
        batch_size: jobs are taken together up to this size; a larger one is taken by itself.
        most_seconds: that a job may wait.
    """

    def __init__(
        self, answer: Callable[[Any, list[Any]], Sequence[Any]], most_waiting: int, batch_size: int, most_seconds: float
    ) -> None:
        self._answer, self.most_waiting, self.batch_size = answer, most_waiting, batch_size
        self.most_seconds = most_seconds
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._seconds_each = 0.05  # of a job, a moving mean
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def ask(self, kind: Any, given: Any, size: int) -> Any:
        """Wait in line, and give the answer.

        Raises:
            RefusedError: the line is full, or it took too long.
            InputError: what is asked is wrong.
        """
        if len(self._waiting) >= self.most_waiting:
            seconds = max(1, math.ceil(len(self._waiting) * self._seconds_each))
            message = f"{len(self._waiting)} requests wait already; try again in {seconds} s"
            raise RefusedError(429, "queue_full", message, {"retry-after": str(seconds)})
        job = Job(kind, given, size, self._loop.create_future())
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()
        until = self._loop.call_later(self.most_seconds, self._refuse, job)
        try:
            return await job.future
        finally:
            until.cancel()

    async def close(self) -> None:
        """End the thread, after all that waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while jobs := self._take():
            started_at = time.monotonic()
            for kind in dict.fromkeys(job.kind for job in jobs):
                alike = [job for job in jobs if job.kind == kind]
                try:
                    answers = self._answer(kind, [job.given for job in alike])
                except Exception as error:
                    answers = [_reason(error, len(alike))] * len(alike)
                self._loop.call_soon_threadsafe(_deliver, alike, answers)
            each = (time.monotonic() - started_at) / len(jobs)
            self._seconds_each += 0.2 * (each - self._seconds_each)

    def _take(self) -> list[Job]:
        """Wait for jobs, and take the first ones; none at the end."""
        taken: list[Job] = []
        size = 0
        with self._changed:
            while True:
                while self._waiting and (not taken or size + self._waiting[0].size <= self.batch_size):
                    job = self._waiting.popleft()
                    if not job.future.done():  # else its client is gone
                        taken.append(job)
                        size += job.size
                if taken or self._is_closed:
                    return taken
                self._changed.wait()

    def _refuse(self, job: Job) -> None:
        """Refuse a job that has waited too long."""
        with self._changed:
            if job not in self._waiting:  # it is being answered
                return
            self._waiting.remove(job)
        if not job.future.done():
            message = f"the request waited for more than {self.most_seconds:g} s; try again later"
            job.future.set_exception(RefusedError(503, "waited_too_long", message, {"retry-after": "1"}))


def _reason(error: Exception, num_jobs: int) -> Exception:
    """Give the reason that clients are told; what is not the user's fault is said here."""
    if isinstance(error, (InputError, RefusedError)):
        return error
    if not isinstance(error, BertkitError):
        # not what the error says, which may be of what was asked
        say(*"".join(traceback.format_tb(error.__traceback__)).splitlines(), file=sys.stderr)
    what = str(error) if isinstance(error, BertkitError) else type(error).__name__
    say(f"error: {num_jobs} requests failed together: {what}", file=sys.stderr)
    return RefusedError(
        500, "failed", f"the model failed: {what}" if isinstance(error, BertkitError) else "a fault here"
    )


def _deliver(jobs: Sequence[Job], answers: Sequence[Any]) -> None:
    for job, answer in zip(jobs, answers, strict=True):
        if job.future.done():
            continue
        if isinstance(answer, Exception):
            job.future.set_exception(answer)
        else:
            job.future.set_result(answer)
