"""Hub ids: fetch a model's files, or find them in the local cache."""

from __future__ import annotations

import re
from pathlib import Path

from bertkit.errors import InputError

_TEXT = ["*config.json", "vocab.txt", "tokenizer.json", "special_tokens_map.json", "added_tokens.json"]
# Weights in the order of preference; those of the first kind that the hub has are fetched.
_WEIGHTS = (
    ("model*.safetensors", "model.safetensors.index.json"),
    ("pytorch_model*.bin", "pytorch_model.bin.index.json"),
    ("*.ckpt*.index", "*.ckpt*.data-*"),
)


def is_id(name: str) -> bool:
    """Whether a name looks like one of the hub: `model` or `organisation/model`."""
    return re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) is not None


def fetch(name: str, setting: str) -> Path:
    """Give the local directory of a hub model, fetching what is not in the cache yet.

    Only configuration, tokenizer and one kind of weights are fetched. The usual variables hold: `HF_HOME`,
    `HF_HUB_OFFLINE`, `HF_TOKEN`.

    `setting` is what the caller calls the name.

    Raises:
        InputError: the hub does not have it, or cannot be reached and the cache does not have it.
    """
    import huggingface_hub

    fault: Exception | None = None
    for patterns in _WEIGHTS:
        try:
            found = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*_TEXT, *patterns]))
        except Exception as error:  # the hub's own, the network's, the disk's: whichever library is underneath
            fault = error
            if not hasattr(error, "snapshot_path"):  # else the cache lacks this kind of weights, and may hold another
                break
        else:
            if any(any(found.glob(pattern)) for pattern in patterns):
                return found
    if fault is None:
        raise InputError(f"{setting}={name}: the hub's {name} holds no weights that bertkit reads")
    why = type(fault.__cause__ or fault).__name__
    raise InputError(
        f"{setting}={name}: no such directory, and no hub model that is cached or can be fetched ({why}); give a local "
        "directory, or fetch it where there is a network and set HF_HOME to that cache"
    ) from fault
