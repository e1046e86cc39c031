"""Batches drawn in a thread, a step ahead, so that a GPU does not wait for the next one."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def drawn_ahead(draw: Callable[[int], T], last_step: int) -> Iterator[Callable[[int], T]]:
    """Yield a function of the step with the results of `draw`; during a step a thread draws the next one, before `last_step`.

    `draw` must depend on the step alone. An error in the thread is raised when its step is asked for.
    """
    ahead: dict[int, Future[T]] = {}

    def take(step: int) -> T:
        drawn = ahead.pop(step, None) or thread.submit(draw, step)
        ahead.clear()  # of a step that was left out
        if step + 1 < last_step:
            ahead[step + 1] = thread.submit(draw, step + 1)
        return drawn.result()

    with ThreadPoolExecutor(1, "batches") as thread:
        yield take
