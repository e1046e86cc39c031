"""bertkit: pretrain and fine-tune BERT.

Each command, such as `prepare` or `finetune`, is a function. `load_model`, `load_tokenizer`, `load_predictor` and `load_embedder`
load the resulting models or any other BERT. `BertClassifier`, `BertRegressor` and `BertTagger` are scikit-learn's estimators.
Names are imported on first use: `import bertkit` takes milliseconds.
"""

import functools
import importlib

__version__ = "0.3.0"
_HOMES = {
    "Run": "bertkit.functions",
    **dict.fromkeys(("BertClassifier", "BertRegressor", "BertTagger"), "bertkit.estimators"),
    **dict.fromkeys(("load_model", "load_tokenizer"), "bertkit.interop.load"),
    "check_certificate": "bertkit.interop.parity.certificate",
    "export_model": "bertkit.interop.hugging_face.directory",
    "load_embedder": "bertkit.inference.embedding",
    **dict.fromkeys(("MaskedLM", "Moment", "Objective"), "bertkit.objectives.objective"),
    "Pretraining": "bertkit.training.pretraining",
    "Finetuning": "bertkit.training.finetuning",
    "fit": "bertkit.training.fit",
    **dict.fromkeys(("new_model", "open_dataset"), "bertkit.training.data_and_model"),
    **dict.fromkeys(("LossTerm", "cross_entropy"), "bertkit.train.losses"),
    **dict.fromkeys(("Batch", "Target"), "bertkit.base.batch"),
    **dict.fromkeys(("head_losses", "outputs"), "bertkit.objectives.losses"),
    "load_predictor": "bertkit.inference.predictor",
}
COMMANDS = (  # in their usual order
    "prepare", "pretrain", "finetune", "glue", "predict", "embed", "evaluate", "compare", "view", "serve", "index", "search",
    "export", "verify",
)  # fmt: skip
# decorators of plug-ins
SLOTS = (
    "masking", "head", "model_head", "head_loss", "score", "positions", "pattern", "feed_forward", "encoder", "pooler", "schedule", "optimizer", "objective", "metric", "task",
    "prediction_format", "vector_format", "passage_format", "architecture",
)  # fmt: skip
_OLD_SLOTS = {"shape": "task"}  # by their names of earlier versions
__all__ = ["__version__", *COMMANDS, *_HOMES]


def __getattr__(name: str) -> object:
    if (slot := _OLD_SLOTS.get(name, name)) in SLOTS:
        plugins = importlib.import_module("bertkit.base.plugins")
        decorator = functools.partial(plugins.option, slot)
        decorator.__doc__ = f"Add a function or class as an option of the setting {plugins.SLOTS[slot].setting}."
        return decorator
    if name in COMMANDS:
        return importlib.import_module("bertkit.functions").function_of(name)
    if name not in _HOMES:
        raise AttributeError(f"module 'bertkit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, *SLOTS]
