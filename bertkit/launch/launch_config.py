"""The settings `launch.*`."""

import os
from dataclasses import dataclass
from typing import Annotated

from bertkit.base.intervals import Count, Interval, Size
from bertkit.base.typed_settings import refuse

Processes = Annotated[int, Interval(1, max(64, 4 * (os.cpu_count() or 1)))]  # each needs about 0.5 GB of memory


@dataclass(frozen=True)
class LaunchConfig:
    """The number of processes and hosts of a run."""

    num_processes: Processes  # on each host
    num_hosts: Size  # every host runs the same command, with its own `host_rank`
    host_rank: Count  # from 0
    address: str | None  # HOST:PORT of host 0; None for one host
    # if a process waits longer for the others, the run ends; torch keeps milliseconds in 32 bits: at most 24 days
    hang_timeout_seconds: Annotated[float, Interval(0, 14 * 24 * 3600, "(]")]

    def __post_init__(self) -> None:
        hosts = self.num_hosts
        refuse(
            self.host_rank >= hosts
            and f"launch.host_rank={self.host_rank}: expected 0 to {hosts - 1}, with launch.num_hosts={hosts}",
            hosts > 1 and self.address is None and "missing value: set launch.address=HOST:PORT of host 0",
            hosts == 1
            and self.address is not None
            and f"launch.address={self.address}: has no effect with one host; set launch.num_hosts=",
        )
