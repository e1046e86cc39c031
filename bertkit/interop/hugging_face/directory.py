"""Write model directories of Hugging Face, without `transformers`."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from bertkit.base.errors import InputError, listed
from bertkit.base.files import building_dir, check_output_dir
from bertkit.base.hub_ids import path_of
from bertkit.base.tensor_files import write_tensors
from bertkit.base.text_files import read_json
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face.architecture import writer_of
from bertkit.interop.hugging_face.config_json import architecture_of, config_json, require_bert
from bertkit.interop.hugging_face.weight_files import unfit_values
from bertkit.interop.padded import PaddedBert
from bertkit.model.heads import BertWithHeads
from bertkit.model.label_scale import in_own_units


def export_model(model: PaddedBert | BertWithHeads, tokenizer: Tokenizer, output_dir: str | Path) -> Path:
    """Write a Hugging Face directory for the `transformers` class with the model's heads, without comparing outputs.

    An earlier export of the same class is replaced.

    Raises:
        InputError: the directory contains other files, the tokenizer and the model have vocabularies of different sizes, or
            a weight is not finite.
    """
    inner, final = packed(model), path_of(output_dir, "output_dir")
    if not isinstance(tokenizer, Tokenizer):
        raise InputError(f"tokenizer: {type(tokenizer).__name__}: expected what load_tokenizer returns")
    require_bert(inner, "the model")
    check_output_dir(final)
    if final.exists() and any(final.iterdir()):
        ours = {"model.safetensors", "README.md", "parity.json", *text_files(inner, tokenizer)}
        others = sorted(path.name for path in final.iterdir() if path.name not in ours)
        if not _holds(final / "config.json", architecture_of(inner)):
            others.append("a model of another class")
        if others:
            raise InputError(f"output_dir={final} holds something else ({', '.join(others[:3])}); choose another one")
    with building_dir(final.resolve()) as partial:
        write_model(inner, tokenizer, partial)
    return final


def write_model(
    model: PaddedBert | BertWithHeads,
    tokenizer: Tokenizer,
    directory: Path,
    more_files: Mapping[str, str] | None = None,
) -> None:
    """Write weights, configuration and tokenizer into an existing directory."""
    inner = packed(model)
    if not tokenizer.fits(inner.config.vocab_size):
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model {inner.config.vocab_size}; use the model's tokenizer"
        )
    with in_own_units(inner):  # a job's model that learns numbers has them in other units
        tensors = tensors_of(inner)
        if problems := unfit_values(tensors):
            raise InputError(f"the model cannot be written: {listed(problems)}")
        for name, content in {**text_files(inner, tokenizer), **(more_files or {})}.items():
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(content, encoding="utf-8")
        write_tensors(directory / "model.safetensors", tensors)


def text_files(model: PaddedBert | BertWithHeads, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the contents of the configuration and tokenizer files of a model directory, by file name."""
    inner = packed(model)
    has_types = inner.config.type_vocab_size > 1
    return {"config.json": config_json(inner), **tokenizer.files(inner.config.max_position_embeddings, has_types)}


def tensors_of(model: BertWithHeads) -> dict[str, Tensor]:
    """Return the weights by their names in the `transformers` class with the same heads; tied weights once."""
    return writer_of(model.config, model.heads).tensors_of(model)


def copy_weights(model: BertWithHeads, tensors: Mapping[str, Tensor]) -> None:
    """Copy weights by their names in `tensors_of` into a model."""
    architecture = writer_of(model.config, model.heads)
    for name, parameter in model.named_parameters():
        place = architecture.in_file(model, architecture.full_name(name))
        if place.name in tensors:  # a file has no pooler if its class has none
            parameter.detach().copy_(place.part_of(tensors[place.name]))


def packed(model: PaddedBert | BertWithHeads) -> BertWithHeads:
    """Return the packed model inside a `PaddedBert`; raise InputError for what is no model."""
    if not isinstance(model, (PaddedBert, BertWithHeads)):
        raise InputError(f"model: {type(model).__name__}: expected what load_model returns")
    return model.model if isinstance(model, PaddedBert) else model


def _holds(path: Path, class_name: str) -> bool:
    """Whether a configuration is that of a class of `transformers`."""
    match read_json(path) if path.is_file() else None:
        case {"architectures": [name]}:
            return bool(name == class_name)
    return False
