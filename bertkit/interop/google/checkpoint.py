"""Checkpoints of google-research/bert: find one, read its weights, write a directory like Google's releases.

Source: google-research/bert modeling.py, run_pretraining.py, run_classifier.py, run_squad.py and optimization.py.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from bertkit.base.errors import InputError, listed
from bertkit.base.files import to_json
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.google import bundle
from bertkit.interop.hugging_face.architecture import StoredTensors, rule_of
from bertkit.interop.hugging_face.bert import SHAPE
from bertkit.interop.hugging_face.names import OF_A_LAYER, full_name, translate
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads

MOST_NAMED = 3  # tensors in a message
NAME = "bert_model.ckpt"  # the prefix of the file names in Google's releases
SKIPPED = {
    r"(.+/)?(adam|lamb)_[mv]": "a moment of the optimizer",
    r".+/Adam(_1)?": "a moment of the optimizer",
    r"(.+/)?beta[12]_power": "a count of the optimizer",
    r"global_step": "the count of steps",
    r"(.+/)?(current_)?loss_scale|(.+/)?(num_)?(good|bad)_steps": "loss scaling",
}


def read_release(prefix: Path) -> StoredTensors:
    """Read the weights by their Hugging Face names, without the variables of the optimizer."""
    return as_hugging_face(bundle.read_checkpoint(prefix), prefix)


def as_hugging_face(tensors: Mapping[str, Tensor], prefix: Path) -> StoredTensors:
    """Rename and transpose the variables of a checkpoint."""
    translated = translate(tensors, FROM_TENSORFLOW)
    stored = StoredTensors({})
    problems = []
    for name, tensor in tensors.items():
        if reason := rule_of(name, SKIPPED):
            stored.skipped[name] = reason
        elif name not in translated:
            problems.append(f"{name}: no variable of BERT")
        elif not tensor.is_floating_point():
            problems.append(f"{name}: {tensor.dtype}, expected floating-point numbers")
        elif is_transposed(name) and tensor.dim() != 2:
            problems.append(f"{name}: shape {tuple(tensor.shape)}, expected a matrix")
        else:
            stored.tensors[translated[name]] = tensor.t() if is_transposed(name) else tensor
    if problems:
        raise InputError(f"{prefix}: {len(problems)} variables do not fit BERT: {listed(problems)}")
    return stored


def release_problems(model: BertWithHeads, tokenizer: Tokenizer) -> list[str]:
    """List what google-research/bert cannot hold of a model and its tokenizer."""
    config, is_bert = model.config, model.config.family is None
    problems = {
        f"has no {', '.join(model.heads)} head": not {"token", "choice", "generation"}.isdisjoint(model.heads),
        f"has no {config.family}": not is_bert,
        "has no causal attention": config.attention.pattern == "causal",
        f"has layer_norm_eps=1e-12 alone, this model {config.layer_norm_eps}": is_bert
        and config.layer_norm_eps != 1e-12,
        f"has hidden_act gelu and relu alone, this model {config.hidden_act}": config.hidden_act
        not in ("gelu", "relu"),
        "reads BERT's WordPiece only, from vocab.txt": not tokenizer.words_by.is_of_bert,
        "strips accents from lower-cased text, and from no other": (
            tokenizer.strip_accents not in (None, tokenizer.lowercase)
        ),
    }
    return [problem for problem, is_there in problems.items() if is_there]


def write_release(directory: Path, config: BertConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint and `bert_config.json`, as in Google's releases, to an existing directory, and read them back.

    The names of the tensors are Hugging Face's, with or without the prefix `bert.`. Raises InputError if google-research/bert
    has no variable for a part of the model.
    """
    content, variables = config_json(config), as_tensorflow(tensors)
    (directory / "bert_config.json").write_text(content, encoding="utf-8")
    bundle.write_checkpoint(directory / NAME, variables)
    reread = read_release(directory / NAME).tensors
    written = {full_name(name): tensor for name, tensor in tensors.items()}
    if set(reread) != set(written) or not all(torch.equal(reread[name], tensor) for name, tensor in written.items()):
        raise InputError(f"{directory / NAME}: differs when it is read back; try again")


def as_tensorflow(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename and transpose the weights of Hugging Face as google-research/bert stores them."""
    full = {full_name(name): tensor for name, tensor in tensors.items()}
    translated = translate(full, TENSORFLOW)
    without = sorted(set(full) - set(translated))
    if without:
        few = listed(without, ", ", MOST_NAMED)
        raise InputError(f"google-research/bert has no variable for {few}; leave google=true out")
    return {theirs: full[name].t() if is_transposed(theirs) else full[name] for name, theirs in translated.items()}


def config_json(config: BertConfig) -> str:
    """Return `bert_config.json` with the keys of Google's releases.

    Here `gelu` is the exact function, with which the released weights were trained; the newest google-research/bert computes
    a tanh approximation by that name.
    """
    content = asdict(config)
    return to_json({key: content[key] for key in sorted(SHAPE) if key != "layer_norm_eps"})


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
            *(f"bert.encoder.layer.{{}}.{module}" for module in OF_A_LAYER.values()),
            "bert.pooler.dense",
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
        )
        for part, theirs in zip(
            ("weight", "bias"), ("gamma", "beta") if module.endswith("LayerNorm") else ("kernel", "bias"), strict=True
        )
    },
}
FROM_TENSORFLOW = {theirs: name for name, theirs in TENSORFLOW.items()}


def is_transposed(tensorflow_name: str) -> bool:
    """Whether TensorFlow stores this variable as (inputs, outputs), where torch stores (outputs, inputs)."""
    return tensorflow_name.endswith("/kernel")
