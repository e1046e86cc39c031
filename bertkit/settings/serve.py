"""The settings of `bertkit serve`."""

import contextlib
import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from bertkit.base.intervals import MAX_INT32, Interval, Size
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import refuse, unused
from bertkit.launch.launch_config import Processes
from bertkit.settings.command import Command, CommandSettings, short_name
from bertkit.settings.search import BothConfig, Passages


@dataclass(frozen=True)
class ServeSettings(CommandSettings):
    """`bertkit serve`."""

    model_dir: str | tuple[str, ...]
    index: str | None
    candidates: Passages | None  # as in `SearchSettings`; None means the default of `search`
    both: BothConfig | None  # likewise
    glossary: str | None  # likewise
    translate: str | None  # likewise
    encoder: str | None  # likewise
    host: str
    hosts: tuple[str, ...]  # further names of this machine, by which clients call it
    token: str | None  # a file with the token that clients must send; None: the variable BERTKIT_TOKEN, if it is set
    port: Annotated[int, Interval(0, 65535)]
    workers: Processes  # number of processes; each has all the models
    queue_requests: Size  # maximum number of requests that wait
    max_body_bytes: Size  # maximum size of a request
    max_inputs: Size  # maximum number of inputs in a request
    max_tokens: Annotated[int, Interval(8, MAX_INT32)]  # maximum number of tokens in a request
    batch_tokens: Size | None  # tokens in a forward pass; None for a default by device
    request_seconds: Annotated[float, Interval(0, 1_000_000, "()")]  # maximum time that a request waits
    # maximum number of tokens of an input, or of one window of it, for `/view`; more: status 413
    max_view_tokens: Annotated[int, Interval(8, MAX_INT32)]
    top_k: Annotated[int, Interval(1, 1000)]  # number of tokens predicted for each mask
    log_inputs: bool
    kernels: Literal["auto", "plain"]
    precision: Literal["fp32", "bf16", "fp16"]
    device: Literal["auto", "cpu", "cuda"]
    task_changes: JsonObject  # of the models' own tasks; `task.spans.*` applies to the models that have spans

    def __post_init__(self) -> None:
        of_search = [
            (key, self.index is None, "without index=")
            for key in ("candidates", "both", "glossary", "translate", "encoder")
        ]
        refuse(
            unused(self, "", *of_search),
            not self.host and "host=: expected a name or an address, such as 127.0.0.1",
            not self.models and "model_dir=[]: expected at least one model",
            len(set(self.models)) < len(self.models)
            and f"model_dir={self.models}: the same model twice; remove one of them",
        )

    @property
    def models(self) -> list[str]:
        """The directories of the models."""
        return [self.model_dir] if isinstance(self.model_dir, str) else [*self.model_dir]

    @property
    def names(self) -> dict[str, str]:
        """The name of each model, mapped to its directory: the name of its run if that is unique, else the directory."""
        short = [short_name(directory) for directory in self.models]
        return {
            (name if short.count(name) == 1 else directory): directory
            for name, directory in zip(short, self.models, strict=True)
        }

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        address = _address(self.host)
        return self.host == "localhost" if address is None else address.is_loopback

    def accepts(self, header: str) -> bool:
        """Whether the header Host names this server: an address, or a known name.

        Other names are refused, because the owner of a name may let it point to this machine, and so read the answers to
        requests from his own web page (DNS rebinding).
        """
        name = re.sub(r":\d*$", "", header).strip("[]").lower()
        return _address(name) is not None or name in map(str.lower, ("localhost", self.host, *self.hosts))


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name)
    return None


COMMAND = Command(
    "serve",
    ServeSettings,
    stage="bertkit.apps.server.server",
    needs="models",
    gives="a JSON API and a web page",
    positions=("model_dir",),
)
