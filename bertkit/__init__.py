"""bertkit: pretrain and fine-tune BERT.

`load_model`, `load_tokenizer`, `export_model` and `check_certificate` are imported on first use, so that `import bertkit`
costs milliseconds.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertkit.interop.load import export_model, load_model, load_tokenizer
    from bertkit.interop.parity.certificate import check_certificate

__version__ = "0.1.0"
__all__ = ["__version__", "check_certificate", "export_model", "load_model", "load_tokenizer"]


def __getattr__(name: str) -> Any:
    if name in ("export_model", "load_model", "load_tokenizer"):
        from bertkit.interop import load

        return getattr(load, name)
    if name == "check_certificate":
        from bertkit.interop.parity import certificate

        return certificate.check_certificate
    raise AttributeError(f"module 'bertkit' has no attribute {name!r}")
