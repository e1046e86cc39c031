"""How a published model writes texts: `generation_config.json`, or in older releases keys of `config.json`.

Source: transformers 5.23, generation/configuration_utils.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from bertkit.base.files import to_json
from bertkit.base.text_files import JsonObject, read_json
from bertkit.base.typed_settings import checked, without_none
from bertkit.interop.hugging_face.config_json import warn_once
from bertkit.model.bert_config import DecoderConfig

FILE = "generation_config.json"
_USUAL_LENGTH = 20  # tokens that are written, where a file has no length
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


def search_of(directory: Path, *, has_decoder: bool, sample: bool | None = None) -> dict[str, object]:
    """Return the settings `task.generation.*` that the files of a model name; a line names what bertkit's search lacks.

    If they name no beams or no length, the search is greedy and writes at most 20 tokens, as in `transformers`. Without a decoder of
    its own, a model counts the text that it continues in `max_length`, for which there is no setting; if its files name nothing else
    either, the settings are bertkit's own. `sample` is what a user asks for, None if that is left to the files. Raises InputError for
    a value of another type.
    """
    path, content = _read(directory)
    fixed = FIXED if has_decoder else FIXED | {"max_length": None}
    search = checked(_Search, content, path)
    beams = search.num_beams or 1
    others = [
        f"{key}={content[key]!r:.40}"
        for key, value in fixed.items()
        if content.get(key) not in (None, value) and (key != "early_stopping" or beams > 1)
    ]
    if others:
        warn_once(
            f"{path}: {', '.join(others)}: bertkit's search for texts has no such setting, so it may write other texts than transformers"
        )
    if not (has_decoder or without_none(vars(search))):
        return {}
    longest = search.max_length - 1 if search.max_length and has_decoder else None  # without the token that begins it
    samples = search.do_sample if sample is None else sample
    of_samples = {
        "temperature": search.temperature,
        "top_p": search.top_p,
        "top_k": 50 if search.top_k is None else search.top_k or None,
    }
    known = {
        "max_target_length": search.max_new_tokens or longest or (None if search.max_length else _USUAL_LENGTH),
        "num_beams": beams, "length_penalty": search.length_penalty, "num_candidates": search.num_return_sequences, "sample": search.do_sample,
    }  # fmt: skip
    return without_none(known | (of_samples if samples else {}))


def warn_of_length(directory: Path, max_target_length: int) -> None:
    """Warn if the files of an encoder-decoder name no length, and its texts have the length that is usual in `transformers`."""
    path, content = _read(directory)
    if max_target_length == _USUAL_LENGTH and not (content.get("max_length") or content.get("max_new_tokens")):
        warn_once(
            f"{path}: no max_length: texts have at most {_USUAL_LENGTH} tokens, as in transformers; for longer ones add it, or set "
            "task.generation.max_target_length="
        )


def _read(directory: Path) -> tuple[Path, JsonObject]:
    """Return the path and the content of the file with the search; without one, the directory and no content."""
    path = next((each for each in (directory / FILE, directory / "config.json") if each.is_file()), None)
    if path is None:
        return directory, {}
    return path, _with_decoder(checked(JsonObject, read_json(path), path))


def _with_decoder(content: JsonObject) -> JsonObject:
    """Add what an old `config.json` says in the part of the decoder, where the whole model's says nothing."""
    decoder = content.get("decoder")
    inner = decoder if isinstance(decoder, dict) else {}
    keys = [*FIXED, *(each.name for each in fields(_Search))]
    return content | {key: inner[key] for key in keys if content.get(key) is None and key in inner}


def search_json(search: Mapping[str, object], decoder: DecoderConfig, pad_token_id: int) -> str:
    """Return the file's content for settings `task.generation.*` and the ids of a decoder, which `transformers` then reads nowhere else."""
    length, top_k, top_p, samples = (search[name] for name in ("max_target_length", "top_k", "top_p", "sample"))
    assert isinstance(length, int)
    of_samples = {"temperature": search["temperature"], "top_k": top_k or 0, "top_p": 1.0 if top_p is None else top_p}
    beams = 1 if samples else search["num_beams"]
    content = {
        "decoder_start_token_id": decoder.start_token_id,
        "do_sample": samples,
        "eos_token_id": decoder.end_token_id,
        "max_length": length + 1,  # with the token that begins a text
        "num_beams": beams,
        "num_return_sequences": search["num_candidates"],
        "pad_token_id": pad_token_id,
    }
    of_beams = {} if beams == 1 else {"length_penalty": search["length_penalty"]}
    return to_json(dict(sorted((content | of_beams | (of_samples if samples else {})).items())))
