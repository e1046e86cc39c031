"""How a published model writes texts: `generation_config.json`, or in older releases keys of `config.json`.

Source: transformers 5.23, generation/configuration_utils.py.
"""

from dataclasses import dataclass
from pathlib import Path

from bertkit.base.text_files import JsonObject, read_json
from bertkit.base.typed_settings import checked
from bertkit.interop.hugging_face.config_json import warn_once

FILE = "generation_config.json"
# what bertkit's search does; it has no setting for other values
FIXED: JsonObject = {
    "min_length": 0, "min_new_tokens": 0, "early_stopping": False, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
    "num_beam_groups": 1, "diversity_penalty": 0.0, "guidance_scale": 1.0, "renormalize_logits": False,
    **dict.fromkeys((
        "bad_words_ids", "begin_suppress_tokens", "constraints", "dola_layers", "exponential_decay_length_penalty", "force_words_ids",
        "forced_bos_token_id", "forced_eos_token_id", "max_time", "min_p", "penalty_alpha", "sequence_bias", "stop_strings",
        "suppress_tokens", "top_h", "watermarking_config",
    )),
}  # fmt: skip


@dataclass(frozen=True)
class _Search:
    """The keys that bertkit has settings for."""

    max_length: int | None = None
    max_new_tokens: int | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    num_return_sequences: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


def search_of(directory: Path, *, has_decoder: bool) -> dict[str, object]:
    """Return the settings `task.generation.*` that the files of a model name; a line names what bertkit's search lacks.

    If they name other settings but no beams, the search is greedy, as in `transformers`. Without a decoder of its own, a model counts
    the text that it continues in `max_length`, for which there is no setting. Raises InputError for a value of another type.
    """
    path = next((each for each in (directory / FILE, directory / "config.json") if each.is_file()), None)
    content = {} if path is None else checked(JsonObject, read_json(path), path)
    fixed = FIXED if has_decoder else FIXED | {"max_length": None}
    search = checked(_Search, content, path or directory)
    beams, is_named = search.num_beams or 1, any(value is not None for value in vars(search).values())
    others = [
        f"{key}={content[key]!r:.40}"
        for key, value in fixed.items()
        if content.get(key) not in (None, value) and (key != "early_stopping" or beams > 1)
    ]
    if others:
        warn_once(
            f"{path}: {', '.join(others)}: bertkit's search for texts has no such setting, so it may write other texts than transformers"
        )
    longest = search.max_length - 1 if search.max_length and has_decoder else None  # without the token that begins it
    of_samples = {
        "temperature": search.temperature,
        "top_p": search.top_p,
        "top_k": 50 if search.top_k is None else search.top_k or None,
    }
    known = {
        "max_target_length": search.max_new_tokens or longest, "num_beams": beams if is_named else None,
        "length_penalty": search.length_penalty, "num_candidates": search.num_return_sequences, "sample": search.do_sample,
    }  # fmt: skip
    return {
        key: value for key, value in (known | (of_samples if search.do_sample else {})).items() if value is not None
    }
