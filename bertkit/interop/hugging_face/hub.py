"""Download a model directory from the hub."""

from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.hub_ids import is_offline, missing_model_error

_TOKENIZER = (
    *("vocab.txt", "tokenizer.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "*.model"),  # for a class of transformers
)
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
    is_offline()
    import huggingface_hub

    repository, _, revision = name.partition("@")
    fault: Exception | None = None
    for patterns in _HUB_WEIGHTS:
        try:
            wanted = {"revision": revision or None, "allow_patterns": [*_HUB_TEXTS, *patterns]}
            snapshot = Path(huggingface_hub.snapshot_download(repository, **wanted))
        except Exception as error:  # of the hub's client, the network or the disk
            fault = error
            if not hasattr(error, "snapshot_path"):  # with it, the cache lacks this format, but may have another
                break
        else:
            if any(any(snapshot.glob(pattern)) for pattern in patterns):
                return snapshot
    if fault is None:
        raise InputError(f"{setting}={name}: the hub's {name} holds no weights that bertkit reads")
    raise missing_model_error(name, setting, type(fault.__cause__ or fault).__name__) from fault
