"""Where the processes that the launcher started find each other."""

from __future__ import annotations

import os

import torch.distributed as dist

STORE = "BERTKIT_STORE_FD"  # set by the launcher: rank 0's is a socket that listens already, the others' is empty


def join(device_type: str) -> None:
    """Make the process group over the launcher's own socket; under other launchers accelerate makes it.

    By itself torch listens on every address of the host, and anyone who reaches the port may take part. The launcher's
    socket listens on one address: 127.0.0.1, or host 0's.
    """
    listener = os.environ.pop(STORE, None)
    if listener is None:
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        size,
        is_master=bool(listener),
        master_listen_fd=int(listener) if listener else None,
    )
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    prefixed = dist.PrefixStore("bertkit", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=prefixed, rank=rank, world_size=size)
