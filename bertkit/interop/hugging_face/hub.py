"""Hub ids: fetch a model's files, or find them in the local cache."""

from __future__ import annotations

from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.hub_ids import is_offline, unavailable

_TEXT = ["*config.json", "vocab.txt", "tokenizer.json", "special_tokens_map.json", "added_tokens.json"]
# kinds of weights in the order of preference; the first kind that the hub has is fetched
_WEIGHTS = (
    ("model*.safetensors", "model.safetensors.index.json"),
    ("pytorch_model*.bin", "pytorch_model.bin.index.json"),
    ("*.ckpt*.index", "*.ckpt*.data-*"),
)


def fetch(name: str, setting: str) -> Path:
    """Return the local directory of a hub model, and fetch missing files: configuration, tokenizer and one kind of weights.

    The variables `HF_HOME`, `HF_HUB_OFFLINE` and `HF_TOKEN` apply. `setting` names the model in messages.

    Raises:
        InputError: the hub lacks the model, or cannot be reached and the cache lacks it.
    """
    is_offline()
    import huggingface_hub

    for patterns in _WEIGHTS:
        try:
            directory = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*_TEXT, *patterns]))
        except Exception as error:  # of the hub, the network or the disk, from whichever library is underneath
            if hasattr(error, "snapshot_path") and patterns != _WEIGHTS[-1]:
                continue  # the cache lacks this kind of weights, and may hold another
            raise unavailable(name, setting, type(error.__cause__ or error).__name__) from error
        if any(any(directory.glob(pattern)) for pattern in patterns):
            return directory
    raise InputError(f"{setting}={name}: the hub's {name} holds no weights that bertkit reads")
