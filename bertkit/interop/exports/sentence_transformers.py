"""The files of sentence-transformers beside an encoder, which define how the vectors of a text's tokens are pooled.

They are written in the old format (`sentence_transformers.models.*`), which every version since 3 loads; version 5 cannot load
the format of version 6. Both formats are read.
"""

from dataclasses import dataclass
from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.files import to_json
from bertkit.base.text_files import JsonObject, read_json
from bertkit.base.typed_settings import checked

_MODES = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens"}
_OTHER_MODES = ("pooling_mode_mean_sqrt_len_tokens",)
MOST = 1e31  # transformers writes 1e30 for no limit


@dataclass(frozen=True)
class Pooling:
    """How the vectors of a text's tokens are pooled into one vector."""

    mode: str = "mean"  # the mean of all tokens; "cls": the first token; "max": the maximum of each element
    normalize: bool = False  # whether the vector is scaled to length 1
    max_length: int | None = None  # texts are truncated to so many tokens; None for the model's limit


@dataclass(frozen=True)
class _Module:
    """A step from a text to a vector, in `modules.json`."""

    type: str = ""
    path: str = ""


def read_pooling(directory: Path) -> Pooling | None:
    """Read the pooling of a sentence-transformers directory; None without `modules.json`, InputError for other modules."""
    path = directory / "modules.json"
    if not path.is_file():
        return None
    modules = checked(tuple[_Module, ...], read_json(path), path)
    kinds = [module.type.rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise InputError(f"{path}: {', '.join(kinds) or 'no modules'}; bertkit supports only Pooling and Normalize")
    path = directory / Path(modules[1].path).name / "config.json"
    settings = _settings_in(path)
    modes = settings.get("pooling_mode", [])  # the key of version 6
    chosen = [mode for mode, key in _MODES.items() if settings.get(key)]
    chosen += modes if isinstance(modes, list) else [modes]
    others = [key for key in _OTHER_MODES if settings.get(key)]
    if len(chosen) != 1 or chosen[0] not in _MODES or others:
        raise InputError(f"{path}: pools by {[*chosen, *others]}; expected one of {', '.join(_MODES)}")
    path = directory / "config_sentence_transformers.json"
    prompt = _settings_in(path).get("default_prompt_name") if path.is_file() else None
    if prompt:
        raise InputError(
            f"{path}: default_prompt_name={prompt!r}: bertkit adds no prompt; set it to null, and write "
            "the prompt before your texts"
        )
    return Pooling(chosen[0], kinds[-1] == "Normalize", max_length_of(directory))


def _settings_in(path: Path) -> JsonObject:
    """Read a JSON file of settings by name."""
    return checked(JsonObject, read_json(path), path)


def max_length_of(directory: Path) -> int | None:
    """Read the number of tokens to which sentence-transformers or transformers truncates a text; None for the model's own limit."""
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        path = directory / name
        max_length = _settings_in(path).get(key) if path.is_file() else None
        if max_length is None:
            continue
        if type(max_length) not in (int, float) or not 1 <= max_length < MOST:
            raise InputError(f"{path}: {key}={max_length!r}: expected a whole number")
        return int(max_length)
    return None


def layout_files(pooling: Pooling, hidden_size: int, longest: int) -> dict[str, str]:
    """Return the contents of the files of sentence-transformers, by name; `longest` is the encoder's limit in tokens."""
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
