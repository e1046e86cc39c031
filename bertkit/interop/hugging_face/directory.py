"""A model -> a Hugging Face directory of the class with its heads; without importing `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import InputError
from bertkit.files import building_dir, read_json, write_tensors
from bertkit.interop.hugging_face.config import architecture_of, config_json
from bertkit.interop.hugging_face.names import to_hugging_face
from bertkit.interop.hugging_face.weights import unfit_values
from bertkit.model.heads import BertWithHeads, PaddedBert

WITHOUT_POOLER = ("BertForMaskedLM", "BertForTokenClassification", "BertForQuestionAnswering")
MAX_LISTED = 8  # problems that a line names


def export_model(model: PaddedBert | BertWithHeads, tokenizer: Tokenizer, output_dir: str | Path) -> Path:
    """Write a Hugging Face directory of the class that has the model's heads; nothing is compared.

    An earlier export of the same class is replaced.

    Raises:
        InputError: the directory holds something else, the vocabulary is of another size than the model's, or a weight is
            not finite.
    """
    final = Path(output_dir)
    if final.exists() and not final.is_dir():
        raise InputError(f"output_dir={final} is a file; choose a directory")
    if final.exists() and any(final.iterdir()):
        ours = {"model.safetensors", "README.md", "parity.json", *text_files(model, tokenizer)}
        others = sorted(path.name for path in final.iterdir() if path.name not in ours)
        there = read_json(final / "config.json") if (final / "config.json").is_file() else None
        if not isinstance(there, dict) or there.get("architectures") != [architecture_of(packed(model))]:
            others.append("a model of another class")
        if others:
            raise InputError(f"output_dir={final} holds something else ({', '.join(others[:3])}); choose another one")
    with building_dir(final) as partial:
        write_model(model, tokenizer, partial)
    return final


def write_model(
    model: PaddedBert | BertWithHeads,
    tokenizer: Tokenizer,
    directory: Path,
    more_files: Mapping[str, str] | None = None,
) -> None:
    """Write weights, configuration and tokenizer into an existing directory."""
    inner = packed(model)
    if tokenizer.vocab_size != inner.config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model {inner.config.vocab_size}; they do not belong "
            "together"
        )
    tensors = tensors_of(inner)
    problems = unfit_values(tensors)
    if problems:
        raise InputError(f"the model cannot be written: {'; '.join(problems[:MAX_LISTED])}")
    for name, content in {**text_files(inner, tokenizer), **(more_files or {})}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(content, encoding="utf-8")
    write_tensors(directory / "model.safetensors", tensors)


def text_files(model: PaddedBert | BertWithHeads, tokenizer: Tokenizer) -> dict[str, str]:
    """Give every small file of a model directory, by name: configuration and tokenizer."""
    inner = packed(model)
    config = config_json(inner.config, architecture_of(inner), next(inner.parameters()).dtype)
    return {"config.json": config, **tokenizer.files(inner.config.max_position_embeddings)}


def tensors_of(model: BertWithHeads) -> dict[str, Tensor]:
    """Give the weights under the names of the `transformers` class with the same heads, tied ones once.

    A pooler is left out where that class has none.
    """
    architecture = architecture_of(model)
    prefix = "bert." if architecture == "BertModel" else ""
    return {
        to_hugging_face(name).removeprefix(prefix): tensor.detach()
        for name, tensor in model.state_dict().items()
        if not (architecture in WITHOUT_POOLER and name.startswith("bert.pooler."))
    }


def packed(model: PaddedBert | BertWithHeads) -> BertWithHeads:
    """Give the model behind the door for padded tensors."""
    return model.model if isinstance(model, PaddedBert) else model
