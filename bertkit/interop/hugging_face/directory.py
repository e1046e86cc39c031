"""Model directories of Hugging Face: download one from the hub, write one, read its weights; without `transformers`.

Directories that old versions of `transformers` wrote are read too: each tensor gets the name that it has today, or is left out
by a named rule.
"""

import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit.base.errors import InputError, listed
from bertkit.base.files import building_dir, read_tensors, refuse_file, write_tensors
from bertkit.base.hub_ids import is_offline, missing_model_error, path_of
from bertkit.base.memory import require_memory
from bertkit.base.text_files import read_json
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face.config_json import PAIR_TYPE, RELATIVE_KEY, architecture_of, config_json, require_bert
from bertkit.interop.hugging_face.names import full_name, to_hugging_face
from bertkit.interop.padded import PaddedBert
from bertkit.model.heads import BertWithHeads

WITHOUT_POOLER = ("BertForMaskedLM", "BertLMHeadModel", "BertForTokenClassification", "BertForQuestionAnswering")
_FILES = ("model.safetensors", "pytorch_model.bin")  # whole, or in shards with an index beside them
_TIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_TIES |= {f"decoder.{tied}": f"decoder.{original}" for tied, original in _TIES.items()}
_DISTANCES, _PLACES = ".attention.self.distance_embedding.weight", "bert.embeddings.position_embeddings.weight"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_BUFFERS = tuple(
    f"{part}bert.embeddings.{name}_ids" for part in ("", "decoder.") for name in ("position", "token_type")
)
MAX_SHARED = 4  # how often the numbers in a file may be shared by tensors; tied weights are there twice
_HUB_TEXTS = ["*config.json", "vocab.txt", "tokenizer.json", "special_tokens_map.json", "added_tokens.json"]
# in the order of preference; only the first format that the hub has is downloaded
_HUB_WEIGHTS = (
    ("model*.safetensors", "model.safetensors.index.json"),
    ("pytorch_model*.bin", "pytorch_model.bin.index.json"),
    ("*.ckpt*.index", "*.ckpt*.data-*"),
)


def fetch(name: str, setting: str) -> Path:
    """Download the files of a hub model that the cache lacks, and return the local directory.

    Configuration, tokenizer and weights in one format are downloaded. `HF_HOME`, `HF_HUB_OFFLINE` and `HF_TOKEN` have their
    usual meaning. Messages name the `setting`. Raises InputError if neither the hub nor the cache has the model.
    """
    is_offline()
    import huggingface_hub

    fault: Exception | None = None
    for patterns in _HUB_WEIGHTS:
        try:
            snapshot = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*_HUB_TEXTS, *patterns]))
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
    require_bert(inner.config, "the model")
    refuse_file(final)
    if final.exists() and any(final.iterdir()):
        ours = {"model.safetensors", "README.md", "parity.json", *text_files(inner, tokenizer)}
        others = sorted(path.name for path in final.iterdir() if path.name not in ours)
        if _config_of(final).get("architectures") != [architecture_of(inner)]:
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
    if tokenizer.vocab_size != inner.config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model {inner.config.vocab_size}; use the model's tokenizer"
        )
    tensors = tensors_of(inner)
    problems = unfit_values(tensors)
    if problems:
        raise InputError(f"the model cannot be written: {listed(problems)}")
    for name, content in {**text_files(inner, tokenizer), **(more_files or {})}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(content, encoding="utf-8")
    write_tensors(directory / "model.safetensors", tensors)


def text_files(model: PaddedBert | BertWithHeads, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the contents of the configuration and tokenizer files of a model directory, by file name."""
    inner = packed(model)
    config = config_json(inner.config, architecture_of(inner), next(inner.parameters()).dtype)
    return {"config.json": config, **tokenizer.files(inner.config.max_position_embeddings)}


def tensors_of(model: BertWithHeads) -> dict[str, Tensor]:
    """Return the weights by their names in the `transformers` class with the same heads; tied weights once.

    The pooler is left out if that class has none.
    """
    architecture, decoder = architecture_of(model), model.config.decoder
    if decoder is not None and decoder.kind == "bert":
        return _tensors_of_pair(model)
    prefix = "bert." if architecture == "BertModel" else ""
    return {
        to_hugging_face(name).removeprefix(prefix): tensor.detach()
        for name, tensor in model.named_parameters()
        if not (architecture in WITHOUT_POOLER and name.startswith("bert.pooler."))
    }


def _tensors_of_pair(model: BertWithHeads) -> dict[str, Tensor]:
    """Return the weights of an encoder-decoder: shared weights twice, and zeros for the unused pooler of the encoder."""
    size, like = model.config.hidden_size, next(model.parameters())
    shapes = {"encoder.pooler.dense.weight": (size, size), "encoder.pooler.dense.bias": (size,)}
    tensors = {name: like.new_zeros(shape) for name, shape in shapes.items()}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        tensors[re.sub(r"^bert\.", "encoder.", to_hugging_face(name))] = tensor.detach()
    return tensors


def packed(model: PaddedBert | BertWithHeads) -> BertWithHeads:
    """Return the packed model inside a `PaddedBert`; raise InputError for what is no model."""
    if not isinstance(model, (PaddedBert, BertWithHeads)):
        raise InputError(f"model: {type(model).__name__}: expected what load_model returns")
    return model.model if isinstance(model, PaddedBert) else model


def _config_of(directory: Path) -> dict[str, Any]:
    """Read `config.json`; an empty mapping if there is none."""
    content = read_json(directory / "config.json") if (directory / "config.json").is_file() else None
    return content if isinstance(content, dict) else {}


def has_weights(directory: Path) -> bool:
    """Whether a directory has weights in a format of Hugging Face."""
    return any((directory / name).is_file() or _index(directory, name).is_file() for name in _FILES)


def weight_files(directory: Path) -> list[Path]:
    """List the weight files: one, or the shards in an index."""
    for name in _FILES:
        if (directory / name).is_file():
            return [directory / name]
        index = _index(directory, name)
        if index.is_file():
            return _shards(index)
    missing = "no model.safetensors or pytorch_model.bin, and no TensorFlow checkpoint"
    raise InputError(f"{directory}: {missing}; copy the model's weights there, or choose another model_dir=")


def read_weights(directory: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read all tensors, by the full names that they have today; also return the tensors left out, each with the reason.

    Old names are translated: `gamma` and `beta` of LayerNorm, the `module.` prefix of data-parallel training, and the names of
    an encoder that was saved without the `bert.` prefix. Raises InputError if there are no weights, or a file is damaged.
    """
    renamed: dict[str, Tensor] = {}
    skipped: dict[str, str] = {}
    config = _config_of(directory)
    is_pair = config.get("model_type") == PAIR_TYPE
    for name, tensor in _read_files(directory).items():
        if is_pair and name.startswith("encoder.pooler."):
            skipped[name] = "an unused pooler"
            continue
        full = full_name(re.sub("^encoder[.]", "bert.", name) if is_pair else name.removeprefix("module."))
        full = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", full)
        full = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", full)
        if full in _BUFFERS:
            skipped[name] = "a buffer of old versions, not a weight"
        elif full in renamed:
            raise InputError(f"{directory}: {name} is there twice, by its old and its new name; remove one")
        else:
            renamed[full] = tensor
    is_relative = config.get("position_embedding_type") == RELATIVE_KEY
    for name in [name for name in renamed if is_relative and name.endswith(_DISTANCES)]:
        # its rows are for i - j, those of Shaw et al. 2018 for j - i
        layer = name.removesuffix(_DISTANCES).rpartition(".")[2]
        renamed[f"bert.encoder.layers.{layer}.attention.slots.relative.key.weight"] = renamed.pop(name).flip(0)
        if renamed.pop(_PLACES, None) is not None:
            skipped[_PLACES] = "not used with relative positions"
    for tied, original in _TIES.items():
        if tied in renamed:
            tensor = renamed.pop(tied)
            if original in renamed and not torch.equal(tensor, renamed[original]):
                raise InputError(f"{directory}: {tied} differs from {original}; bertkit loads tied weights only")
            renamed.setdefault(original, tensor)
            skipped[tied] = f"tied to {original}"
    return renamed, skipped


def _read_files(directory: Path) -> dict[str, Tensor]:
    """Read every tensor, by its name in the file."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(directory):
        read = read_tensors(path) if path.suffix == ".safetensors" else _read_pickled(path)
        twice = sorted(set(read) & set(tensors))
        if twice:
            raise InputError(f"{path}: {twice[0]} is in another shard too; copy the whole directory again")
        tensors |= read
    return tensors


def _index(directory: Path, name: str) -> Path:
    return directory / f"{name}.index.json"


def _shards(index: Path) -> list[Path]:
    content = read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    is_map = isinstance(weight_map, dict) and all(isinstance(shard, str) for shard in weight_map.values())
    if not is_map or not weight_map:
        raise InputError(f"{index}: no weight_map; copy the whole directory again")
    shards = sorted(set(weight_map.values()))
    expected = Path(index.name.removesuffix(".index.json")).suffix
    if any(Path(shard).name != shard or shard in ("", ".", "..") for shard in shards):
        raise InputError(f"{index}: names a file outside of its directory")
    if any(Path(shard).suffix != expected for shard in shards):
        raise InputError(f"{index}: names {shards[0]}, expected files that end in {expected}")
    missing = [shard for shard in shards if not index.with_name(shard).is_file()]
    if missing:
        raise InputError(f"{index}: {', '.join(missing)} missing; copy the whole directory")
    return [index.with_name(shard) for shard in shards]


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Read a file of `torch.save` that contains only tensors; code in the file is never run.

    A tensor may repeat a few stored numbers without end, and a zip archive may be compressed; `torch.save` does neither.
    """
    path.open("rb").close()
    most = MAX_SHARED * path.stat().st_size
    require_memory(str(path), path.stat().st_size, "take a smaller model")
    try:
        if zipfile.is_zipfile(path) and sum(entry.file_size for entry in zipfile.ZipFile(path).infolist()) > most:
            raise zipfile.BadZipFile
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or malicious file can raise any error
        refused = re.search(r"Unsupported (?:global|class|operand)[^.]*?(?:GLOBAL )?([\w.]+)", str(error))
        reason = f"it needs {refused[1]}" if refused else type(error).__name__
        raise InputError(
            f"{path}: damaged, or contains more than weights ({reason}); no code was run: use a copy with tensors only, "
            "preferably in safetensors"
        ) from None
    is_good = isinstance(content, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta
        for name, tensor in content.items()
    )
    if not is_good or sum(tensor.nbytes for tensor in content.values()) > most:
        raise InputError(f"{path}: expected weights by name, each stored in full; save the model's state_dict() to it")
    return dict(content)


def unfit_values(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return an error line for each tensor that cannot be a float32 weight: unsupported or mixed dtypes, not finite values."""
    common = Counter(tensor.dtype for tensor in tensors.values()).most_common(1)
    problems = []
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            problems.append(f"{name}: {_name(tensor.dtype)}, expected {', '.join(map(_name, _DTYPES))}")
        elif tensor.dtype != common[0][0]:
            problems.append(f"{name}: {_name(tensor.dtype)}, the others {_name(common[0][0])}")
        elif not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            problems.append(f"{name}: {count} of {tensor.numel()} values are not finite")
        elif tensor.dtype == torch.float64 and not torch.equal(tensor.float().double(), tensor):
            problems.append(f"{name}: float64 values that float32 cannot represent; convert the file to float32")
    return problems


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
