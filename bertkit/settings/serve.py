"""What `bertkit serve` accepts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertkit.base.errors import InputError
from bertkit.settings.search import BothConfig


@dataclass(frozen=True)
class ServeSettings:
    """`bertkit serve`.

    Attributes:
        candidates: passages that a reader reads; None for what `search` has, as for the next two.
        both: how the scores of the engine and of the reader are weighed.
        glossary: a TSV of words and what widens a question that has them.
        workers: processes, each with all the models.
        queue_requests: that wait; one more is refused.
        max_body_bytes: of a request.
        max_inputs: of a request.
        max_tokens: of a request.
        batch_tokens: that are computed together; None for what suits the device.
        request_seconds: that a request may wait.
        max_view_tokens: of an input that is looked into.
        top_k: tokens that are given for a mask.
        task_changes: what is set of the models' own tasks; of a group such as `generation`, of those that have it.
    """

    model_dir: str | tuple[str, ...]
    index: str | None
    candidates: int | None
    both: BothConfig | None
    glossary: str | None
    host: str
    port: int
    workers: int
    queue_requests: int
    max_body_bytes: int
    max_inputs: int
    max_tokens: int
    batch_tokens: int | None
    request_seconds: float
    max_view_tokens: int
    top_k: int
    log_inputs: bool
    kernels: Literal["auto", "plain"]
    precision: Literal["fp32", "bf16"]
    device: Literal["auto", "cpu", "cuda"]
    task_changes: dict[str, Any]

    def __post_init__(self) -> None:
        problems = []
        least = dict.fromkeys(
            ("workers", "queue_requests", "max_body_bytes", "max_inputs", "top_k", "batch_tokens", "candidates"), 1
        )
        for name, number in (least | {"max_tokens": 8, "max_view_tokens": 8}).items():
            if getattr(self, name) is not None and getattr(self, name) < number:
                problems.append(f"{name}={getattr(self, name)}: expected at least {number}")
        if not 0 < self.request_seconds < 1e6:
            problems.append(f"request_seconds={self.request_seconds}: expected more than 0, and less than 1,000,000")
        for name in ("candidates", "both", "glossary"):
            if self.index is None and getattr(self, name) is not None:
                problems.append(f"{name}: has no effect without index=; leave it out")
        if not 0 <= self.port < 65536:
            problems.append(f"port={self.port}: expected 1 to 65535, or 0 for one that is free")
        if not self.host:
            problems.append("host=: expected a name or an address, such as 127.0.0.1")
        if not self.directories:
            problems.append("model_dir=[]: expected one model or more")
        if len(set(self.directories)) < len(self.directories):
            problems.append(f"model_dir={list(self.directories)}: a model is there twice; leave one of them out")
        if problems:
            raise InputError(*problems)

    @property
    def directories(self) -> tuple[str, ...]:
        """Those of the models."""
        return (self.model_dir,) if isinstance(self.model_dir, str) else self.model_dir

    @property
    def names(self) -> dict[str, str]:
        """What each model is called, and its directory: the name of its run, or the directory where two have the same."""
        short = [_short(directory) for directory in self.directories]
        return {
            (name if short.count(name) == 1 else directory): directory
            for name, directory in zip(short, self.directories, strict=True)
        }

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def _short(directory: str) -> str:
    parts = Path(directory).expanduser().absolute().parts
    return next((part for part in reversed(parts[1:]) if part not in ("model", "checkpoints")), directory)
