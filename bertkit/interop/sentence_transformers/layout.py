"""The files that sentence-transformers reads beside an encoder.

They are in the old format (`sentence_transformers.models.*`), which every version since 3 loads; version 5 cannot load the format
of version 6. Only modes of pooling in another order than the old one need a key of version 6.
"""

from pathlib import Path

from bertkit.base.files import to_json
from bertkit.interop.sentence_transformers.folder import LEGACY_MODES, SETTINGS, Pooling

_WRITTEN = ("mean", "cls", "max", "mean_sqrt_len_tokens")  # always; the others are known to newer versions only


def layout_files(pooling: Pooling, hidden_size: int, longest: int) -> dict[str, str]:
    """Return the contents of the files of sentence-transformers, by name; `longest` is the encoder's limit in tokens."""
    modules = ["Pooling", *(step.kind for step in pooling.steps), *["Normalize"] * pooling.normalize]
    paths = [("", "Transformer"), *((f"{number}_{kind}", kind) for number, kind in enumerate(modules, 1))]
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(paths)
    ]
    modes: dict[str, object] = {LEGACY_MODES[mode]: mode in pooling.modes for mode in (*_WRITTEN, *pooling.modes)}
    if pooling.modes != tuple(mode for mode in LEGACY_MODES if mode in pooling.modes):
        modes = {"pooling_mode": list(pooling.modes)}
    if not pooling.include_prompt:
        modes["include_prompt"] = False
    max_length = min(pooling.max_length or longest, longest)
    files = {
        "modules.json": to_json(listed),
        "1_Pooling/config.json": to_json({"word_embedding_dimension": hidden_size, **modes}),
        "sentence_bert_config.json": to_json({"max_seq_length": max_length, "do_lower_case": pooling.lowercase}),
    }
    settings = {
        "prompts": dict(pooling.prompts),
        "default_prompt_name": pooling.default_prompt,
        "similarity_fn_name": pooling.similarity,
        **({} if pooling.truncate_dim is None else {"truncate_dim": pooling.truncate_dim}),
    }
    is_plain = settings == {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    return files if is_plain else {**files, SETTINGS: to_json(settings)}


def step_files(pooling: Pooling) -> dict[str, Path]:
    """Return the files of the modules after the pooling, which are copied, by name."""
    return {
        f"{number}_{step.kind}/{name}": path
        for number, step in enumerate(pooling.steps, 2)
        for name, path in step.files.items()
    }
