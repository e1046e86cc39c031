"""Queues of requests. Each queue has a thread that computes waiting requests together, in the order of arrival."""

import asyncio
import math
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fastapi import HTTPException
from prometheus_client import Gauge

from bertkit.base.errors import BertkitError, InputError, LibraryError, say

InputsT = TypeVar("InputsT")
ResultT = TypeVar("ResultT")
ComputedT = TypeVar("ComputedT", covariant=True)


class RefusedError(HTTPException):
    """An HTTP error: the server refuses a request, with a short code for programs and a line for people."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.code = code

    def __str__(self) -> str:
        return str(self.detail)


class Call(Protocol[InputsT, ComputedT]):
    """What a queue computes, such as the predictions of a model; jobs with equal calls are computed together."""

    def compute(self, inputs: list[InputsT]) -> Sequence[ComputedT | Exception]:
        """Return a result or an exception for each job, from its inputs."""


@dataclass(eq=False, slots=True)
class Waiting(Generic[InputsT, ResultT]):
    """A waiting request."""

    call: Call[InputsT, ResultT]
    inputs: InputsT
    size: int  # estimated number of tokens
    future: asyncio.Future[ResultT]  # receives the result in the event loop

    def finish(self, result: ResultT | Exception) -> None:
        """Give the client its result, unless it has disconnected."""
        if self.future.done():
            return
        if isinstance(result, Exception):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


AnyWaiting = Waiting[Any, Any]


class Queue:
    """Waiting requests, with the thread that computes them.

    When `max_waiting` jobs wait, further ones are refused. Jobs of up to `batch_size` in total are taken together; a larger job
    is taken alone.
    """

    def __init__(self, max_waiting: int, batch_size: int, max_seconds: float, waiting: Gauge) -> None:
        self.max_waiting, self.batch_size, self.max_seconds = max_waiting, batch_size, max_seconds
        self._num_waiting = waiting  # of all queues
        self._waiting: deque[AnyWaiting] = deque()
        self._computed: list[AnyWaiting] = []
        self._refusal: RefusedError | None = None  # of all jobs
        self._changed = threading.Condition()
        self._is_closed = False
        self._seconds_per_job = 0.05  # a moving average
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    async def submit(self, call: Call[InputsT, ResultT], inputs: InputsT, size: int) -> ResultT:
        """Add a job to the queue, and wait for its result; raises RefusedError if the queue is full, or the wait too long."""
        if self._refusal is not None:
            raise self._refusal
        if len(self._waiting) >= self.max_waiting:
            seconds = max(1, math.ceil(len(self._waiting) * self._seconds_per_job))
            message = f"{len(self._waiting)} requests are waiting; try again in {seconds} s"
            raise RefusedError(429, "queue_full", message, {"retry-after": str(seconds)})
        future: asyncio.Future[ResultT] = self._loop.create_future()
        job = Waiting(call, inputs, size, future)
        with self._changed:
            self._waiting.append(job)
            self._num_waiting.inc()
            self._changed.notify()
        timer = self._loop.call_later(self.max_seconds, self._time_out, job)
        try:
            return await future
        finally:
            timer.cancel()

    async def close(self) -> None:
        """Compute all waiting jobs, then end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while jobs := self._take():
            self._computed = jobs
            started_at = time.monotonic()
            for call in dict.fromkeys(job.call for job in jobs):
                self._compute(call, [job for job in jobs if job.call == call])
            seconds = (time.monotonic() - started_at) / len(jobs)
            self._seconds_per_job += 0.2 * (seconds - self._seconds_per_job)

    def refuse_all(self, error: RefusedError) -> None:
        """Give all jobs an error, those being computed and those to come, too."""
        self._refusal = error
        with self._changed:
            jobs = [*self._computed, *self._waiting]
            self._waiting.clear()
        for job in jobs:
            job.finish(error)

    def _compute(self, call: Call[Any, object], jobs: list[AnyWaiting]) -> None:
        """Compute jobs together; if that fails, compute each alone, so that only those fail that would fail alone."""
        try:
            results = call.compute([job.inputs for job in jobs])
        except BaseException as error:  # this thread must not end
            if len(jobs) > 1:
                for job in jobs:
                    self._compute(call, [job])
                return
            results = [_client_error(error)]
        self._loop.call_soon_threadsafe(_finish, jobs, results)

    def _take(self) -> list[AnyWaiting]:
        """Wait for jobs, and take the first ones up to the batch size; returns none when the queue is closed and empty."""
        taken: list[AnyWaiting] = []
        size = 0
        with self._changed:
            while True:
                while self._waiting and (not taken or size + self._waiting[0].size <= self.batch_size):
                    job = self._waiting.popleft()
                    self._num_waiting.dec()
                    if not job.future.done():  # otherwise its client has disconnected
                        taken.append(job)
                        size += job.size
                if taken or self._is_closed:
                    return taken
                self._changed.wait()

    def _time_out(self, job: AnyWaiting) -> None:
        """Refuse a job that has waited too long."""
        with self._changed:
            if job not in self._waiting:  # it is being computed
                return
            self._waiting.remove(job)
            self._num_waiting.dec()
        message = f"the request waited for more than {self.max_seconds:g} s; try again later"
        job.finish(RefusedError(503, "waited_too_long", message, {"retry-after": "1"}))


def _client_error(error: BaseException) -> Exception:
    """Return the error to report to the client; log it if the client did not cause it."""
    if isinstance(error, (InputError, RefusedError)) and not isinstance(error, LibraryError):
        return error
    message = f"the model failed: {error}"
    if not isinstance(error, BertkitError):  # its message may quote inputs, so only its place is logged
        say(*"".join(traceback.format_tb(error.__traceback__)).splitlines(), file=sys.stderr)
        message = f"the server failed: {type(error).__name__}"
    say(f"error: a request failed: {message}", file=sys.stderr)
    return RefusedError(500, "failed", message)


def _finish(jobs: Sequence[AnyWaiting], results: Sequence[object]) -> None:
    for job, result in zip(jobs, results, strict=True):
        job.finish(result)
