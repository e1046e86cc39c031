"""What a GPU needs next, made in a thread while it computes."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

AHEAD = ("cuda",)  # the devices; on a CPU the thread would share its cores
T = TypeVar("T")


def made_ahead(items: Iterator[T], device: str) -> Iterator[T]:
    """Yield the items of an iterator; for a GPU a thread makes the next item while one is in use."""
    if device not in AHEAD:
        yield from items
        return
    with ThreadPoolExecutor(1, "ahead") as thread:
        following: Future[T | None] = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item


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
