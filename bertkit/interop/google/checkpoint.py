"""Google's BERT checkpoints: which file, whose names, and the layout of google-research/bert's releases.

Source: google-research/bert modeling.py, run_pretraining.py, run_classifier.py, run_squad.py and optimization.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from bertkit.errors import InputError
from bertkit.files import to_json
from bertkit.interop import names
from bertkit.interop.google import bundle
from bertkit.model.config import BertConfig

NAME = "bert_model.ckpt"  # the prefix that Google's releases have
CONFIG_FILES = ("bert_config.json", "config.json")
SKIPPED = {
    r"(.+/)?(adam|lamb)_[mv]": "a moment of the optimizer",
    r".+/Adam(_1)?": "a moment of the optimizer",
    r"(.+/)?beta[12]_power": "a count of the optimizer",
    r"global_step": "the count of steps",
    r"(.+/)?(current_)?loss_scale|(.+/)?(num_)?(good|bad)_steps": "loss scaling",
}
# The keys of Google's bert_config.json, in their order.
_CONFIG_KEYS = (
    "attention_probs_dropout_prob", "hidden_act", "hidden_dropout_prob", "hidden_size", "initializer_range",
    "intermediate_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "type_vocab_size",
    "vocab_size",
)  # fmt: skip


def find_checkpoint(path: Path) -> Path | None:
    """Find the checkpoint of a directory, or at a prefix such as `DIR/bert_model.ckpt`.

    Of several in a directory the one is taken that the file `checkpoint` names.

    Returns:
        Its prefix; None where there is none.

    Raises:
        InputError: several, and nothing says which one; or a checkpoint in the V1 format.
    """
    if not path.is_dir():
        prefix = Path(str(path).removesuffix(".index"))
        if bundle.index_file(prefix).is_file():
            return prefix
        if path.is_file():
            bundle.refuse_v1([path])
        return None
    held = {name.name.removesuffix(".index"): name for name in sorted(path.glob("*.index"))}
    if not held:
        bundle.refuse_v1(file for file in sorted(path.glob("*ckpt*")) if file.is_file())
        return None
    if len(held) == 1:
        return path / next(iter(held))
    state = path / "checkpoint"
    newest = re.search(
        r'^model_checkpoint_path:\s*"(.*)"', state.read_text("utf-8", "replace") if state.is_file() else "", re.M
    )
    chosen = Path(newest[1]).name if newest else None  # the directory may have been moved since it was written
    if chosen in held:
        return path / chosen
    said = f"the file checkpoint names {chosen}, which is not here" if chosen else "no file checkpoint says which one"
    raise InputError(
        f"{path}: holds the checkpoints {', '.join(held)}, and {said}; name one: {path / next(iter(held))}"
    )


def config_file(prefix: Path) -> Path:
    """Find `bert_config.json`, or `config.json`, beside a checkpoint.

    Raises:
        InputError: there is neither.
    """
    for name in CONFIG_FILES:
        if (prefix.parent / name).is_file():
            return prefix.parent / name
    raise InputError(
        f"{prefix}: no bert_config.json beside this checkpoint; copy it from the model it was trained from"
    )


def as_hugging_face(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Give google-research/bert's variables the names and the layout of Hugging Face.

    Returns:
        The weights, and the variables left out, with the rule.

    Raises:
        InputError: variables that are neither weights of BERT nor left out by a rule; all of them are listed.
    """
    translated = names.from_tensorflow(tensors)
    weights: dict[str, Tensor] = {}
    skipped: dict[str, str] = {}
    problems = []
    for name, tensor in tensors.items():
        rule = next((rule for pattern, rule in SKIPPED.items() if re.fullmatch(pattern, name)), None)
        if rule is not None:
            skipped[name] = rule
        elif name not in translated:
            problems.append(f"{name}: no variable of BERT")
        elif not tensor.is_floating_point():
            problems.append(f"{name}: {tensor.dtype}, expected floating-point numbers")
        elif names.is_transposed(name) and tensor.dim() != 2:
            problems.append(f"{name}: shape {tuple(tensor.shape)}, expected a matrix")
        else:
            weights[translated[name]] = tensor.t() if names.is_transposed(name) else tensor
    if problems:
        listed = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise InputError(f"{len(problems)} variables have no place in BERT: {listed}")
    return weights, skipped


def read_weights(prefix: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a checkpoint's weights under the names of Hugging Face, and list the variables skipped, with the rule.

    Raises:
        InputError: a damaged file; or a data file is missing, or the checkpoint is not of a BERT.
    """
    tensors = bundle.read_checkpoint(prefix)
    try:
        return as_hugging_face(tensors)
    except InputError as error:
        raise InputError(f"{prefix}: {error}") from None


def as_tensorflow(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give weights the names and the layout of google-research/bert.

    Args:
        tensors: weights under the names of Hugging Face, with or without the `bert.` prefix.

    Raises:
        InputError: weights that google-research/bert has no variable for; all of them are listed.
    """
    parts = ("bert.", "cls.", "classifier.", "qa_outputs.")
    full = {name if name.startswith(parts) else f"bert.{name}": tensor for name, tensor in tensors.items()}
    translated = names.to_tensorflow(full)
    without = sorted(set(full) - set(translated))
    if without:
        raise InputError(f"google-research/bert has no variable for {', '.join(without)}; export another head")
    return {
        theirs: full[name].t() if names.is_transposed(theirs) else full[name] for name, theirs in translated.items()
    }


def config_json(config: BertConfig) -> str:
    """Write `bert_config.json`, with the keys of Google's own.

    `gelu` is the exact one here, as in the released weights; the newest google-research/bert computes its tanh
    approximation under that name.

    Raises:
        InputError: google-research/bert has no setting for one of the values.
    """
    if config.layer_norm_eps != 1e-12:
        raise InputError(
            f"layer_norm_eps={config.layer_norm_eps}: google-research/bert has 1e-12 and no setting for it"
        )
    if config.hidden_act not in ("gelu", "relu"):
        raise InputError(f"hidden_act={config.hidden_act!r}: google-research/bert has gelu and relu")
    content = asdict(config)
    return to_json({key: content[key] for key in _CONFIG_KEYS})


def google_files(directory: Path, config: BertConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write a model in the layout of Google's releases into an existing directory; all but `vocab.txt`.

    Args:
        directory: gets `bert_config.json`, `bert_model.ckpt.index` and `bert_model.ckpt.data-00000-of-00001`.
        config: of the model.
        tensors: weights under the names of Hugging Face, as `huggingface.tensors_of` gives them.

    Raises:
        InputError: google-research/bert has no variable or setting for a part of the model.
    """
    content, variables = config_json(config), as_tensorflow(tensors)
    (directory / "bert_config.json").write_text(content, encoding="utf-8")
    bundle.write_checkpoint(directory / NAME, variables)
