"""The launchers of several hosts: one connection from each to host 0's, for the start, signs of life, and the end.

Every message is a line of JSON, [kind, value]:

    hello    who connects, with its settings; the answer is "store", the port where the processes meet, or "failed"
    alive    once a second; the value grows with the signs of life of the processes, host 0's with those of all
    failed   why this host ends: [exit code, message]; host 0 tells the others
    done     this host ends well

There is no password: whoever reaches the port could take part, so the network has to be trusted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertkit.config import differences
from bertkit.errors import InputError, PeerError

SIOCGIFADDR = 0x8915  # linux/sockios.h
SECONDS_BETWEEN_SIGNS = 1.0
SECONDS_BETWEEN_TRIES = 0.2
LONGEST_MESSAGE = 1 << 20


def parse_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT.

    Raises:
        InputError: it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"launch.address={address}: expected HOST:PORT of host 0, such as 10.0.0.1:29500")
    return host, int(port)


def own_address(host: str, port: int) -> str:
    """Give this host's IPv4 address on the way to another; no packet is sent.

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
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Give the network interface that has an IPv4 address; None where it cannot be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def listen(host: str, port: int) -> socket.socket:
    """Listen on one address of this host, and on no other.

    Raises:
        InputError: the address is not this host's, or the port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InputError(
            f"launch.address={host}:{port}: {error.strerror or error}; host 0 listens there: give an address of its own "
            "and a free port"
        ) from None
    listener.listen(128)
    return listener


class Peer:
    """The launcher of another host."""

    def __init__(self, connection: socket.socket, rank: int | None, address: str) -> None:
        self.connection, self.rank, self.address = connection, rank, address
        connection.setblocking(False)
        self.heard_at = time.monotonic()
        self.activity = 0
        self.is_done = False
        self._received = b""

    def __str__(self) -> str:
        return f"host {self.rank} ({self.address})"

    def send(self, kind: str, value: Any) -> None:
        """Send a message; one that the link does not take is lost, and the silence will tell."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps([kind, value]).encode() + b"\n")

    def receive(self) -> list[tuple[str, Any]]:
        """Give the messages that came; a last one, "closed", where the connection ended.

        Raises:
            ValueError: these are no messages.
        """
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return [("closed", None)]
        self.heard_at = time.monotonic()
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > LONGEST_MESSAGE:
            raise ValueError("no end of the line")
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in messages):
            raise ValueError("not a message")
        return [(kind, value) for kind, value in messages]


class Hosts:
    """This host's connections to the others.

    Attributes:
        peers: for host 0 all others, for each of them host 0.
        store: where the processes meet: the address and port, and on host 0 the listening socket.
        failure: exit code and message of the host that failed first.
    """

    def __init__(self, rank: int, peers: list[Peer], store: tuple[str, int], listener: socket.socket | None) -> None:
        self.rank, self.peers, self.store, self.listener = rank, peers, store, listener
        self.failure: tuple[int, str] | None = None
        self._signed_at = 0.0

    def take(self, peer: Peer) -> bool:
        """Take in what a peer sent; whether that was a sign of life of some process."""
        was_active = False
        try:
            messages = peer.receive()
        except ValueError:
            messages = [("closed", None)]
        for kind, value in messages:
            if kind == "alive":
                was_active = was_active or value > peer.activity
                peer.activity = value
            elif kind == "done":
                peer.is_done = True
            elif kind == "failed" and self.failure is None:
                self.failure = (value[0], value[1])
            elif kind == "closed":
                peer.connection.close()
                if not peer.is_done and self.failure is None:
                    self.failure = (PeerError.exit_code, f"the launcher of {peer} ended without a word")
                peer.is_done = True
        return was_active

    def sign(self, activity: int) -> None:
        """Tell the others, once a second, how many signs of life there were here."""
        if time.monotonic() - self._signed_at < SECONDS_BETWEEN_SIGNS:
            return
        self._signed_at = time.monotonic()
        for peer in self.peers:
            if not peer.is_done:
                others = sum(other.activity for other in self.peers if other is not peer) if self.rank == 0 else 0
                peer.send("alive", activity + others)

    def silent(self, seconds: float) -> Peer | None:
        """Give a peer that nothing was heard of for so long."""
        now = time.monotonic()
        return next((peer for peer in self.peers if not peer.is_done and now - peer.heard_at > seconds), None)

    def still_here(self) -> None:
        """After this host itself stood still: begin to wait for the others anew."""
        for peer in self.peers:
            peer.heard_at = time.monotonic()

    def end(self, kind: str, value: Any) -> None:
        """Tell the others that this host ends, and how."""
        for peer in self.peers:
            if not peer.is_done:
                peer.connection.setblocking(True)
                peer.connection.settimeout(SECONDS_BETWEEN_SIGNS)
                peer.send(kind, value)


@contextlib.contextmanager
def joined(
    address: str | None,
    rank: int,
    num_hosts: int,
    timeout_seconds: float,
    settings: Mapping[str, Any],
    stop_requested: Callable[[], bool],
) -> Iterator[Hosts]:
    """Meet the launchers of the other hosts; by itself, one host only opens the socket where its processes meet.

    The address is None for one host. The settings have to be the same on every host; `stop_requested` is asked while it
    waits.

    Raises:
        InputError: an address that is not there, hosts with other settings, or two of the same rank.
        PeerError: not all hosts came in time.
    """
    with contextlib.ExitStack() as stack:
        if num_hosts == 1:
            listener = stack.enter_context(listen("127.0.0.1", 0))
            yield Hosts(0, [], listener.getsockname()[:2], listener)
            return
        assert address is not None, "required for several hosts"
        host, port = parse_address(address)
        deadline = time.monotonic() + timeout_seconds

        def wait(what: str) -> None:
            if time.monotonic() > deadline:
                raise PeerError(f"host {rank}: {what} within {timeout_seconds:g} s")
            if stop_requested():
                raise KeyboardInterrupt
            time.sleep(SECONDS_BETWEEN_TRIES / 4)

        if rank == 0:
            door = stack.enter_context(listen(host, port))
            listener = stack.enter_context(listen(host, 0))
            peers = _gather(door, num_hosts, settings, wait, stack)
            store = listener.getsockname()[:2]
            for peer in peers:
                peer.send("store", store[1])
            yield Hosts(0, peers, store, listener)
        else:
            peer = Peer(_connect(host, port, wait, stack), 0, host)
            peer.send("hello", {"rank": rank, "settings": settings})
            messages: list[tuple[str, Any]] = []
            while not messages:
                wait(f"host 0 at {address} did not answer, since not all hosts came,")
                messages = peer.receive()
            kind, value = messages[0]
            if kind == "failed":
                raise InputError(value[1]) if value[0] == InputError.exit_code else PeerError(value[1])
            if kind != "store":
                raise PeerError(f"host {rank}: host 0 at {address} closed the connection; its own message says why")
            yield Hosts(rank, [peer], (socket.gethostbyname(host), value), None)


def _connect(host: str, port: int, wait: Callable[[str], None], stack: contextlib.ExitStack) -> socket.socket:
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=SECONDS_BETWEEN_SIGNS)
        except OSError as error:
            wait(f"host 0 at {host}:{port} could not be reached ({error.strerror or error})")
        else:
            return stack.enter_context(connection)


def _gather(
    door: socket.socket,
    num_hosts: int,
    settings: Mapping[str, Any],
    wait: Callable[[str], None],
    stack: contextlib.ExitStack,
) -> list[Peer]:
    """Wait at host 0 for all others; strangers are turned away."""
    door.setblocking(False)
    waiting: list[Peer] = []
    found: dict[int, Peer] = {}
    while len(found) < num_hosts - 1:
        missing = [str(rank) for rank in range(1, num_hosts) if rank not in found]
        wait(f"no word from host {', '.join(missing)} at {':'.join(map(str, door.getsockname()))}")
        with contextlib.suppress(BlockingIOError):
            connection, (address, *_) = door.accept()
            waiting.append(Peer(stack.enter_context(connection), None, address))
        for peer in list(waiting):
            try:
                messages = peer.receive()
                if not messages:
                    continue
                kind, value = messages[0]
                if kind != "hello":
                    raise ValueError("a stranger")
                peer.rank, theirs = int(value["rank"]), dict(value["settings"])
            except (ValueError, TypeError, KeyError):
                peer.connection.close()
                waiting.remove(peer)
                continue
            waiting.remove(peer)
            problem = None
            changed = differences(settings, theirs)
            if changed:
                key, ours, other = changed[0]
                problem = f"{peer} has other settings than host 0 ({key}: {other!r} there, {ours!r} here)"
            elif peer.rank in found or not 0 < peer.rank < num_hosts:
                problem = f"two hosts have launch.host_rank={peer.rank}; give each its own, from 0 to {num_hosts - 1}"
            if problem is not None:
                for other_peer in (*found.values(), peer):
                    other_peer.send("failed", [InputError.exit_code, problem])
                raise InputError(problem)
            found[peer.rank] = peer
    return [found[rank] for rank in sorted(found)]
