"""bertkit: pretrain and fine-tune BERT.

`load_model`, `load_tokenizer`, `export_model` and `check_certificate` are imported on first use, so that `import bertkit`
costs milliseconds.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertkit.interop.hugging_face.directory import export_model
    from bertkit.interop.load import load_model, load_tokenizer
    from bertkit.interop.parity.certificate import check_certificate

__version__ = "0.1.0"
__all__ = ["__version__", "check_certificate", "export_model", "load_model", "load_tokenizer"]
_HOMES = {
    "check_certificate": "bertkit.interop.parity.certificate",
    "export_model": "bertkit.interop.hugging_face.directory",
    "load_model": "bertkit.interop.load",
    "load_tokenizer": "bertkit.interop.load",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'bertkit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
