"""Signs of life of one process, to whoever listens: its launcher, or a thread of its own (`launch.watch`).

    beat(), beat(step=7)   still at work; from every loop that may take long
    beating(rows)          the same for every row that is taken
    saved(7)               from now on a stop loses nothing before step 7
    fail(2, "...")         why this process ends

Without a listener all of them do nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

TICK_SECONDS = 0.2


class Silence:
    """Nobody listens."""

    decides_stops = False  # whether it judges a second request to stop

    def send(self, kind: str, value: Any) -> bool:
        """Take a sign; give whether it was passed on to somebody who tells the user."""
        return False

    def share(self, add: Callable[[int], int]) -> None:
        """Take a counter that all processes add their signs to."""


_listener = Silence()
_beaten_at = 0.0


def listen(listener: Silence) -> None:
    """Send all signs of this process to a listener from now on."""
    global _listener
    _listener = listener


def is_watched() -> bool:
    """Whether a launcher watches this process, and decides on a second request to stop."""
    return _listener.decides_stops


def is_heard() -> bool:
    """Whether anyone ends this process when it hangs: a launcher, or a watch."""
    return type(_listener) is not Silence


def share(add: Callable[[int], int]) -> None:
    """Tell the other processes of this one's signs of life, and be patient with long work of theirs; a launcher sees it all.

    Args:
        add: adds to a number that all processes share, and gives it.
    """
    _listener.share(add)


def beat(step: int | None = None) -> None:
    """Say that this process is at work, and with `step` how many steps are done.

    Nobody needs to hear of work that was done since the last tick: a call that says no more than that is free.
    """
    global _beaten_at
    now = time.monotonic()
    if step is None and now - _beaten_at < TICK_SECONDS:
        return
    _beaten_at = now
    _listener.send("beat", step)


def beating(items: Iterable[T]) -> Iterator[T]:
    """Give items on, with a sign of life for each of them that comes."""
    said_at = -TICK_SECONDS
    for item in items:
        now = time.monotonic()  # a call of beat() for each item would cost three times as much
        if now - said_at >= TICK_SECONDS:
            beat()
            said_at = now
        yield item


def saved(step: int) -> None:
    """Say that a checkpoint of `step` is on the disk."""
    _listener.send("saved", step)


def fail(code: int, message: str) -> bool:
    """Tell the launcher why this process ends; False where there is none, and the user must be told here."""
    return _listener.send("failed", [code, message])
