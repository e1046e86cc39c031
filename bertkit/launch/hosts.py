"""The launchers of all hosts of a run, and where all processes meet: a TCPStore of torch, which host 0's launcher holds.

It listens on one address alone: 127.0.0.1 for one host, else `launch.address`. There is no password: whoever reaches the
port could take part, so the network has to be trusted.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.utils.store import barrier

from bertkit import errors
from bertkit.config import differences
from bertkit.errors import BertkitError, InputError, PeerError
from bertkit.launch.config import LaunchConfig
from bertkit.launch.world import INTERRUPTED, INTERRUPTED_CODE, READER_LEFT, READER_LEFT_CODE

SIOCGIFADDR = 0x8915  # linux/sockios.h
SECONDS_BETWEEN_TRIES = 0.05
LEAVE_SECONDS = 3.0  # for the other launchers to read why this one ends
FAILED = "bertkit/failed"  # in the store
FOREVER = datetime.timedelta(days=14)
KINDS = {
    kind.exit_code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BertkitError)
}


def error_of(code: int, message: str) -> BaseException:
    """Give the error that a process or a host ended with."""
    if code == INTERRUPTED_CODE:
        return KeyboardInterrupt()
    return BrokenPipeError() if code == READER_LEFT_CODE else KINDS.get(code, PeerError)(*message.split("\n"))


def _code_and_message(error: BaseException) -> tuple[int, str]:
    if isinstance(error, BertkitError):
        return error.exit_code, str(error)
    if isinstance(error, BrokenPipeError):
        return READER_LEFT_CODE, READER_LEFT
    return (
        (INTERRUPTED_CODE, INTERRUPTED) if isinstance(error, KeyboardInterrupt) else (PeerError.exit_code, str(error))
    )


def parse_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT.

    Raises:
        InputError: it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"launch.address={address}: expected HOST:PORT of host 0, such as 10.0.0.1:29500")
    return host, int(port)


def interface_to(host: str, port: int) -> str:
    """Give the network interface on the way to a host; no packet is sent.

    Raises:
        InputError: the name is unknown, or there is no way.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise InputError(
                f"launch.address={host}:{port}: {error.strerror or error}; give host 0's address"
            ) from None
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == own:
                    return name
    raise InputError(f"no network interface with the address {own} found; set GLOO_SOCKET_IFNAME in the environment")


class Hosts:
    """This host among all of a run.

    Attributes:
        address: host and port of the store.
        failure: exit code and message of the host that failed first, as soon as it is known.
    """

    def __init__(self, launch: LaunchConfig, stop_requested: Callable[[], bool]) -> None:
        self.rank, self.size, self.stop_requested = launch.host_rank, launch.num_hosts, stop_requested
        self.failure: tuple[int, str] | None = None
        self.timeout_seconds = launch.hang_timeout_seconds
        self.deadline = time.monotonic() + self.timeout_seconds
        timeout = datetime.timedelta(seconds=self.timeout_seconds)
        host, port = ("127.0.0.1", 0) if launch.address is None else parse_address(launch.address)
        if self.rank == 0:
            try:
                listener = socket.create_server((host, port), backlog=128)
            except OSError as error:
                raise InputError(
                    f"launch.address={host}:{port}: {error.strerror or error}; host 0 listens there: give an address of its "
                    "own and a free port"
                ) from None
            port = listener.getsockname()[1]
            named: dict[str, Any] = {"is_master": True, "master_listen_fd": listener.detach()}
        else:
            self._await_port(host, port)
            named = {"is_master": False}
        self.address = host, port
        self.store = TCPStore(host, port, wait_for_workers=False, timeout=timeout, **named)
        if self.size > 1:
            # over a connection of its own, which is blocked meanwhile
            link = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=FOREVER)
            threading.Thread(target=self._follow, args=[link], daemon=True).start()

    def _await_port(self, host: str, port: int) -> None:
        while True:
            try:
                socket.create_connection((host, port), timeout=1.0).close()
                return
            except OSError as error:
                self._wait(f"host 0 at {host}:{port} could not be reached ({error.strerror or error})")

    def _wait(self, what: str) -> None:
        if self.failure is not None:
            raise error_of(*self.failure)
        if self.stop_requested():
            raise KeyboardInterrupt
        if time.monotonic() > self.deadline:
            raise PeerError(f"host {self.rank}: {what} within {self.timeout_seconds:g} s (launch.hang_timeout_seconds)")
        time.sleep(SECONDS_BETWEEN_TRIES)

    def _follow(self, store: Any) -> None:
        """Wait for a host that fails; host 0's launcher itself may be gone, and the store with it."""
        try:
            code, message = json.loads(store.get(FAILED))
        except Exception:
            code, message = PeerError.exit_code, "the launcher of host 0 ended without a word"
        self.failure = code, message

    def meet(self, settings: Mapping[str, Any]) -> None:
        """Wait for the launchers of the other hosts, whose settings have to be the same.

        Raises:
            InputError: hosts with other settings, or two of the same rank.
            PeerError: not all hosts came in time.
        """
        if self.size == 1:
            return
        if self.store.add(f"bertkit/number/{self.rank}", 1) > 1:
            raise InputError(
                f"two hosts have launch.host_rank={self.rank}; give each its own, from 0 to {self.size - 1}"
            )
        self.store.set(f"bertkit/host/{self.rank}", json.dumps(settings))
        for rank in range(self.size):
            while not self.store.check([f"bertkit/host/{rank}"]):
                self._wait(f"no word from host {rank}")
            theirs = json.loads(self.store.get(f"bertkit/host/{rank}"))
            if changed := differences(json.loads(json.dumps(settings)), theirs):
                key, ours, other = changed[0]
                raise InputError(
                    f"host {rank} has other settings than host {self.rank} ({key}: {other!r} there, {ours!r} here)"
                )

    def leave(self, error: BaseException | None) -> None:
        """Tell the others why this host ends, and stay until they have read it."""
        if self.size > 1:
            teller = threading.Thread(target=self._tell, args=[error], daemon=True)
            teller.start()
            teller.join(LEAVE_SECONDS + 0.5)  # a link that is cut takes no word
        del self.store  # which ends to listen

    def _tell(self, error: BaseException | None) -> None:
        with contextlib.suppress(Exception):  # the store may be gone
            if error is not None:
                self.store.compare_set(FAILED, "", json.dumps(_code_and_message(error)))
            barrier(self.store, self.size, "bertkit/left", LEAVE_SECONDS)


@contextlib.contextmanager
def joined(launch: LaunchConfig, settings: Mapping[str, Any], stop_requested: Callable[[], bool]) -> Iterator[Hosts]:
    """Meet the launchers of the other hosts, and tell them how this one ends; `stop_requested` is asked while it waits."""
    hosts = None
    try:
        try:
            hosts = Hosts(launch, stop_requested)
            hosts.meet(settings)
        except RuntimeError as error:
            raise PeerError(f"host {launch.host_rank}: no connection to host 0 at {launch.address} ({error})") from None
        yield hosts
    except BaseException as error:
        if hosts is not None:
            hosts.leave(error)
        raise
    hosts.leave(None)
