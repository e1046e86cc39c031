"""The files of sentence-transformers around an encoder, which describe the pooling of token vectors.

bertkit writes the old style (`sentence_transformers.models.*`), which loads in every version since 3, and reads also the style
of version 6, which does not load in 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.files import to_json
from bertkit.base.text_files import read_json
from bertkit.interop.hugging_face.config_json import read_object

_MODES = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens"}
_OTHER_MODES = ("pooling_mode_mean_sqrt_len_tokens",)


@dataclass(frozen=True)
class Pooling:
    """The pooling of the token vectors of a text."""

    mode: str = "mean"  # over all tokens; or "cls", the first token; or "max", by element
    normalize: bool = False  # to length 1
    max_length: int | None = None  # tokens of a text; None for the limit of the model


def read_pooling(directory: Path) -> Pooling | None:
    """Read the pooling of a sentence-transformers directory; None if it is no such directory.

    Raises:
        InputError: it has other modules, another pooling, or a prompt before every text.
    """
    path = directory / "modules.json"
    if not path.is_file():
        return None
    modules = read_json(path)
    listed = modules if isinstance(modules, list) else []
    kinds = [str(module.get("type")).rpartition(".")[2] if isinstance(module, dict) else "" for module in listed]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise InputError(f"{path}: {', '.join(kinds) or modules!r}; bertkit writes Pooling and Normalize")
    path = directory / Path(str(modules[1].get("path"))).name / "config.json"
    settings = read_object(path)
    by_name = settings.get("pooling_mode", [])  # in version 6
    chosen = [mode for mode, key in _MODES.items() if settings.get(key)]
    chosen += by_name if isinstance(by_name, list) else [by_name]
    chosen += [key for key in _OTHER_MODES if settings.get(key)]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        raise InputError(f"{path}: pools by {chosen}; bertkit knows {', '.join(_MODES)}, one of them")
    path = directory / "config_sentence_transformers.json"
    prompt = read_object(path, is_optional=True).get("default_prompt_name")
    if prompt:
        raise InputError(
            f"{path}: default_prompt_name={prompt!r}; bertkit puts no prompt before a text: set it to null, and write the "
            "prompt before your texts"
        )
    return Pooling(chosen[0], kinds[-1] == "Normalize", max_length_of(directory))


def max_length_of(directory: Path) -> int | None:
    """Read the largest number of tokens that sentence-transformers takes; None for the limit of the model."""
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        max_length = read_object(directory / name, is_optional=True).get(key)
        if max_length is None:
            continue
        if not isinstance(max_length, (int, float)) or isinstance(max_length, bool) or max_length < 1:
            raise InputError(f"{directory / name}: {key}={max_length!r}: expected a whole number")
        return int(max_length)  # transformers writes 1e30 for no limit
    return None


def layout_files(pooling: Pooling, hidden_size: int, longest: int) -> dict[str, str]:
    """Return the files, by name, that turn an encoder with `longest` positions into a sentence-transformers model."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")] + [("2_Normalize", "Normalize")] * pooling.normalize
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(modules)
    ]
    modes = {key: mode == pooling.mode for mode, key in _MODES.items()} | dict.fromkeys(_OTHER_MODES, False)
    max_length = min(pooling.max_length or longest, longest)
    return {
        "modules.json": to_json(listed),
        "1_Pooling/config.json": to_json({"word_embedding_dimension": hidden_size, **modes}),
        "sentence_bert_config.json": to_json({"max_seq_length": max_length, "do_lower_case": False}),
    }
