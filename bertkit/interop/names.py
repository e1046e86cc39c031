"""The table of parameter names: bertkit <-> Hugging Face <-> TensorFlow. The inverses are computed.

`{}` stands for a layer's number. Three heads share the name `classifier` there, so their inverse asks which one is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.intermediate": "intermediate.dense",
    "feed_forward.output": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
CLASSIFIERS = ("sequence", "token", "choice")
_MODULES = {
    "bert.embeddings.norm": "bert.embeddings.LayerNorm",
    **{f"bert.encoder.layers.{{}}.{ours}": f"bert.encoder.layer.{{}}.{theirs}" for ours, theirs in _LAYER.items()},
    "bert.pooler.dense": "bert.pooler.dense",
    "heads.masked_lm.dense": "cls.predictions.transform.dense",
    "heads.masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "heads.next_sentence.dense": "cls.seq_relationship",
    "heads.span.dense": "qa_outputs",
    **{f"heads.{head}.dense": "classifier" for head in CLASSIFIERS},
}
HUGGING_FACE = {
    "bert.embeddings.token.weight": "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.position.weight": "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.segment.weight": "bert.embeddings.token_type_embeddings.weight",
    "heads.masked_lm.bias": "cls.predictions.bias",
    **{f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in _MODULES.items() for part in ("weight", "bias")},
}
_INVERSES = {
    meant: {
        theirs: ours
        for ours, theirs in HUGGING_FACE.items()
        if not theirs.startswith("classifier.") or ours.startswith(f"heads.{meant}.")
    }
    for meant in CLASSIFIERS
}


# Hugging Face -> google-research/bert: the scopes of modeling.py, run_pretraining.py, run_classifier.py (`output_*`) and
# run_squad.py (`cls/squad/output_*`)
TENSORFLOW = {
    "bert.embeddings.word_embeddings.weight": "bert/embeddings/word_embeddings",
    "bert.embeddings.position_embeddings.weight": "bert/embeddings/position_embeddings",
    "bert.embeddings.token_type_embeddings.weight": "bert/embeddings/token_type_embeddings",
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    "classifier.weight": "output_weights",
    "classifier.bias": "output_bias",
    "qa_outputs.weight": "cls/squad/output_weights",
    "qa_outputs.bias": "cls/squad/output_bias",
    **{
        f"{module}.{part}": f"{module.replace('.layer.', '.layer_').replace('.', '/')}/{theirs}"
        for module in (
            "bert.embeddings.LayerNorm",
            *(f"bert.encoder.layer.{{}}.{module}" for module in _LAYER.values()),
            "bert.pooler.dense",
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
        )
        for part, theirs in zip(
            ("weight", "bias"), ("gamma", "beta") if module.endswith("LayerNorm") else ("kernel", "bias"), strict=True
        )
    },
}
_FROM_TENSORFLOW = {theirs: name for name, theirs in TENSORFLOW.items()}


def to_hugging_face(name: str) -> str:
    """Translate a bertkit parameter name; every name of every model has one."""
    return _translate(name, HUGGING_FACE)


def from_hugging_face(names: Iterable[str], classifier: str = "sequence") -> dict[str, str]:
    """Translate the Hugging Face names that have a place in bertkit; names without one are left out.

    Args:
        names: Hugging Face names.
        classifier: the head, of `CLASSIFIERS`, that `classifier.weight` and `classifier.bias` belong to.
    """
    inverse = _INVERSES[classifier]
    return {name: _translate(name, inverse) for name in names if _template(name)[0] in inverse}


def to_tensorflow(names: Iterable[str]) -> dict[str, str]:
    """Translate the Hugging Face names that google-research/bert has a variable for; the others are left out."""
    return {name: _translate(name, TENSORFLOW) for name in names if _template(name)[0] in TENSORFLOW}


def from_tensorflow(names: Iterable[str]) -> dict[str, str]:
    """Translate google-research/bert's names to those of Hugging Face; names that are not its own are left out."""
    return {name: _translate(name, _FROM_TENSORFLOW) for name in names if _template(name)[0] in _FROM_TENSORFLOW}


def is_transposed(tensorflow_name: str) -> bool:
    """Whether TensorFlow holds the matrix as (inputs, outputs), where torch has (outputs, inputs)."""
    return tensorflow_name.endswith("/kernel")


def _translate(name: str, table: dict[str, str]) -> str:
    template, number = _template(name)
    return table[template].replace("{}", number)


def _template(name: str) -> tuple[str, str]:
    match = re.search(r"(?<=\.layer\.)\d+|(?<=\.layers\.)\d+|(?<=/layer_)\d+", name)
    if match is None:
        return name, ""
    return name[: match.start()] + "{}" + name[match.end() :], match.group()
