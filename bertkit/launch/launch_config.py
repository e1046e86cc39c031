"""The settings `launch.*`."""

import os
from dataclasses import dataclass

from bertkit.base.typed_settings import outside, refuse

MOST_SECONDS = 14 * 24 * 3600  # torch keeps milliseconds in 32 bits: at most 24 days


@dataclass(frozen=True)
class LaunchConfig:
    """The number of processes and hosts of a run."""

    num_processes: int  # on each host
    num_hosts: int  # every host runs the same command, with its own `host_rank`
    host_rank: int  # from 0
    address: str | None  # HOST:PORT of host 0; None for one host
    hang_timeout_seconds: float  # if a process waits longer for the others, the run ends

    def __post_init__(self) -> None:
        hosts = self.num_hosts
        refuse(
            outside(self, "launch.", num_processes="[1, inf)", num_hosts="[1, inf)"),
            too_many("launch.num_processes", self.num_processes),
            hosts >= 1
            and not 0 <= self.host_rank < hosts
            and f"launch.host_rank={self.host_rank}: expected 0 to {hosts - 1}, with launch.num_hosts={hosts}",
            hosts > 1 and self.address is None and "missing value: set launch.address=HOST:PORT of host 0",
            hosts == 1
            and self.address is not None
            and f"launch.address={self.address}: has no effect with one host; set launch.num_hosts=",
            outside(self, "launch.", hang_timeout_seconds=f"(0, {MOST_SECONDS}]"),
        )


def too_many(setting: str, num_processes: int) -> list[str]:
    """Return an error if there are more processes than fit on a machine; each needs about 0.5 GB of memory."""
    most = max(64, 4 * (os.cpu_count() or 1))
    return [f"{setting}={num_processes}: expected at most {most} on this machine"] if num_processes > most else []
