"""Which of the processes of a run this one is."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """This process among all of a run."""

    rank: int
    size: int

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0


def world_from_environment() -> World:
    """Read the variables of torchrun and accelerate; a process by itself is a world of one."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    return World(0, 1)
