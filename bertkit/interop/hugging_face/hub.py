"""Download a model, or its tokenizer, from the hub."""

import functools
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.hub_ids import is_offline, missing_model_error
from bertkit.data.tokenizers.other_formats import OWN

_TOKENIZER = ("vocab.txt", "tokenizer.json", "special_tokens_map.json", "added_tokens.json")
_OTHER_TOKENIZER = ("vocab.json", "merges.txt", "*.model")  # for a model without vocab.txt and tokenizer.json
# the encoder of sentence-transformers may be in a folder; its other modules are small, and have their weights in either format
_HUB_TEXTS = [
    *("*config.json", "modules.json", "config_sentence_transformers.json", *_TOKENIZER),
    *(f"0_*/{name}" for name in _TOKENIZER),
    *("[1-9]*_*/model.safetensors", "[1-9]*_*/pytorch_model.bin"),
]
# in the order of preference; only the first format that the hub has is downloaded
_HUB_WEIGHTS = (
    ("model*.safetensors", "model.safetensors.index.json", "0_*/model*.safetensors"),
    ("pytorch_model*.bin", "pytorch_model.bin.index.json", "0_*/pytorch_model*.bin"),
    ("*.ckpt*.index", "*.ckpt*.data-*"),
)


def fetch(name: str, setting: str) -> Path:
    """Download the files of a hub model, perhaps of a revision, that the cache lacks, and return the local directory.

    Configuration, tokenizer and weights in one format are downloaded. `HF_HOME`, `HF_HUB_OFFLINE` and `HF_TOKEN` have their
    usual meaning. Messages name the `setting`. Raises InputError if neither the hub nor the cache has the model.
    """
    fault: Exception | None = None
    for patterns in _HUB_WEIGHTS:
        try:
            snapshot = _download(name, [*_HUB_TEXTS, *patterns])
        except Exception as error:  # of the hub's client, the network or the disk
            fault = error
            if not hasattr(error, "snapshot_path"):  # with it, the cache lacks this format, but may have another
                break
        else:
            if any(any(snapshot.glob(pattern)) for pattern in patterns):
                return snapshot
    if fault is None:
        raise InputError(f"{setting}={name}: the hub's {name} holds no weights that bertkit reads")
    raise _missing(name, setting, fault) from fault


def fetch_tokenizer(name: str, setting: str) -> Path:
    """Download the files of a hub model's tokenizer; otherwise as `fetch`."""
    try:
        return _download(name, ["*config.json", *_TOKENIZER])
    except Exception as error:  # of the hub's client, the network or the disk
        raise _missing(name, setting, error) from error


def _download(name: str, patterns: list[str]) -> Path:
    is_offline()
    import huggingface_hub

    repository, _, revision = name.partition("@")
    download = functools.partial(huggingface_hub.snapshot_download, repository, revision=revision or None)
    snapshot = Path(download(allow_patterns=patterns))
    own = (snapshot.glob(f"{place}{file}") for place in ("", "0_*/") for file in OWN)
    return snapshot if any(map(any, own)) else Path(download(allow_patterns=[*_OTHER_TOKENIZER]))


def _missing(name: str, setting: str, error: Exception) -> InputError:
    return missing_model_error(name, setting, type(error.__cause__ or error).__name__)
