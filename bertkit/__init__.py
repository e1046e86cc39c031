"""bertkit: pretrain and fine-tune BERT.

`prepare`, `pretrain`, `finetune`, `evaluate` and `export` run the commands. `load_model`, `load_tokenizer`, `load_predictor` and
`load_embedder` load the resulting models or any other BERT. `BertClassifier`, `BertRegressor` and `BertTagger` are scikit-learn's
estimators. Names are imported on first use: `import bertkit` takes milliseconds.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertkit.commands import Run, evaluate, export, finetune, prepare, pretrain
    from bertkit.estimators import BertClassifier, BertRegressor, BertTagger
    from bertkit.interop.hugging_face.directory import export_model
    from bertkit.interop.load import load_model, load_tokenizer
    from bertkit.interop.parity.certificate import check_certificate
    from bertkit.predict.embedding import load_embedder
    from bertkit.predict.predictor import load_predictor

__version__ = "0.2.0"
__all__ = [
    "BertClassifier", "BertRegressor", "BertTagger", "Run", "__version__", "check_certificate", "evaluate", "export",
    "export_model", "finetune", "load_embedder", "load_model", "load_predictor", "load_tokenizer", "prepare", "pretrain",
]  # fmt: skip
SLOTS = ("masking", "head", "score", "positions", "schedule", "optimizer", "metric", "shape")  # decorators of plug-ins
_HOMES = {
    **dict.fromkeys(("Run", "evaluate", "export", "finetune", "prepare", "pretrain"), "bertkit.commands"),
    **dict.fromkeys(("BertClassifier", "BertRegressor", "BertTagger"), "bertkit.estimators"),
    **dict.fromkeys(("load_model", "load_tokenizer"), "bertkit.interop.load"),
    "check_certificate": "bertkit.interop.parity.certificate",
    "export_model": "bertkit.interop.hugging_face.directory",
    "load_embedder": "bertkit.predict.embedding",
    "load_predictor": "bertkit.predict.predictor",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name in SLOTS:
        return importlib.import_module("bertkit.base.plugins").decorator(name)
    if name not in _HOMES:
        raise AttributeError(f"module 'bertkit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
