"""A folder of sentence-transformers: how a text becomes a vector, beyond the encoder.

Its files are `modules.json`, a folder for each module, `sentence_bert_config.json` beside the encoder, and
`config_sentence_transformers.json`; those of all versions are read. A key that changes a vector is honoured or refused, and so is one
that is not in the tables below; tests hold them against the classes of the installed version.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bertkit.base.errors import InputError, named
from bertkit.base.intervals import Size
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import checked, read_object, refuse, without_none
from bertkit.interop.hugging_face.config_keys import Keys
from bertkit.interop.sentence_transformers.modules import modules_in, root_of
from bertkit.interop.sentence_transformers.steps import NORMALIZE, STEPS, Step, check_keys, read_step

MOST = 1e31  # transformers writes 1e30 for no limit
# in the order in which sentence-transformers concatenates them, with their keys in files of versions before 6
LEGACY_MODES = {
    "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens", "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}  # fmt: skip
SETTINGS = "config_sentence_transformers.json"
_ENCODER = "sentence_bert_config.json"
# by the names that old versions gave it
_ENCODERS = (
    _ENCODER,
    *(
        f"sentence_{name}_config.json"
        for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
_IN_ENCODER = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs", "config_args": "config_kwargs"}
_HARMLESS = {  # arguments of `from_pretrained` that change no number, or only its rounding
    "model_kwargs": {"add_pooling_layer", "attn_implementation", "device_map", "dtype", "low_cpu_mem_usage", "torch_dtype",
                     "trust_remote_code", "use_safetensors"},
    "processor_kwargs": {"model_max_length", "trust_remote_code", "use_fast"},
    "config_kwargs": {"trust_remote_code"},
}  # fmt: skip
POOLING_KEYS = Keys(
    frozenset({"include_prompt", "pooling_mode", *LEGACY_MODES.values()}),
    {},
    frozenset({"embedding_dimension", "word_embedding_dimension"}),
)
ENCODER_KEYS = Keys(
    frozenset({"do_lower_case", "max_seq_length", *_IN_ENCODER.values()}),
    {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        "module_output_name": "token_embeddings",
        "processing_kwargs": {},
        "query_length": None, "document_length": None, "query_expansion": None, "tokenizer_name_or_path": None,
    },
    frozenset({"unpad_inputs"}),
)  # fmt: skip
MODEL_KEYS = Keys(
    frozenset({"default_prompt_name", "prompts", "similarity_fn_name", "truncate_dim"}),
    {"model_type": "SentenceTransformer"},
    frozenset({"__version__", "activation_fn", "keep_in_fp32_modules", "requirements"}),
)


@dataclass(frozen=True)
class Pooling:
    """How the vectors of a text's tokens become the vector of the text."""

    modes: tuple[str, ...] = ("mean",)  # of LEGACY_MODES; the vectors of several are concatenated
    normalize: bool = False  # whether the vector is scaled to length 1, before `truncate_dim`
    max_length: int | None = None  # texts are truncated to so many tokens; None for the model's limit
    steps: tuple[Step, ...] = ()  # between the pooling and the normalization
    lowercase: bool = False  # whether texts are lower-cased before the tokenizer
    include_prompt: bool = True  # whether the tokens of a prompt are pooled, too
    prompts: Mapping[str, str] = field(
        default_factory=dict, hash=False
    )  # written before a text, by name; none is empty
    default_prompt: str | None = None  # the name of the prompt for every text
    similarity: str = "cosine"  # of two vectors
    truncate_dim: int | None = None  # keeps so many numbers of the vector

    @property
    def prompt(self) -> str:
        """What is written before a text if nothing else is asked for."""
        return self.prompts.get(self.default_prompt or "", "")

    @property
    def identity(self) -> str:
        """Two poolings with the same identity make the same vectors of an encoder's."""
        plain = f"Pooling(mode={'+'.join(self.modes)!r}, normalize={self.normalize}, max_length={self.max_length})"
        others = (self.lowercase, self.include_prompt, sorted(self.prompts.items()), self.default_prompt)
        more = (*others, self.similarity, self.truncate_dim, [step.identity for step in self.steps])
        # earlier versions, which had no more, stored it in libraries
        return plain if more == (False, True, [], None, "cosine", None, []) else f"{plain} {more}"


@dataclass(frozen=True)
class _ModelSettings:
    """`config_sentence_transformers.json`."""

    prompts: dict[str, str | None] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity_fn_name: str = "cosine"
    truncate_dim: Size | None = None


def read_pooling(encoder: Path) -> Pooling | None:
    """Read the settings of a folder of sentence-transformers by its encoder's; None without `modules.json`.

    Raises InputError for a module, or a setting, that bertkit does not have.
    """
    directory = root_of(encoder)
    if not (directory / "modules.json").is_file():
        return None
    path, modules = directory / "modules.json", modules_in(directory)
    settings = _read_model_settings(directory)
    kinds = [module.type.rpartition(".")[2] for module in modules]
    foreign = [module.type for module in modules if not module.type.startswith("sentence_transformers.")]
    if foreign:
        raise InputError(f"{path}: type {foreign[0]!r} is code of its own, which is not run")
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= STEPS:
        own = ", ".join(kinds) or "no modules"
        raise InputError(f"{path}: {own}; bertkit supports Transformer, Pooling, then {', '.join(sorted(STEPS))}")
    refuse(len({module.name for module in modules}) < len(modules) and f"{path}: two modules have the same name")
    read = [read_step(kind, directory / module.path) for kind, module in zip(kinds[2:], modules[2:], strict=True)]
    steps = [step for step in read if step is not None]
    normalize = bool(steps) and steps[-1].kind == NORMALIZE
    path = directory / modules[1].path / "config.json"
    refuse(not path.is_file() and f"{path}: no such file; copy the whole folder")
    pooling = _known(path, POOLING_KEYS)
    prompts = {name: prompt for name, prompt in settings.prompts.items() if prompt}
    return Pooling(
        _modes_in(pooling, path),
        normalize,
        max_length_of(encoder),
        tuple(steps[:-1] if normalize else steps),
        bool(_check_encoder(encoder).get("do_lower_case")),
        bool(pooling.get("include_prompt", True)),
        prompts,
        settings.default_prompt_name if settings.default_prompt_name in prompts else None,
        settings.similarity_fn_name,
        settings.truncate_dim,
    )


def max_length_of(encoder: Path) -> int | None:
    """Read the number of tokens to which sentence-transformers or transformers truncates a text; None for the model's own limit."""
    settings = _encoder_settings(encoder)
    tokenizer = settings.get("processor_kwargs") or {}
    path = encoder / "tokenizer_config.json"
    others = read_object(path)
    for where, key, value in [
        (
            encoder / _ENCODER,
            "model_max_length",
            tokenizer.get("model_max_length") if isinstance(tokenizer, dict) else None,
        ),
        (encoder / _ENCODER, "max_seq_length", settings.get("max_seq_length")),
        (path, "model_max_length", others.get("model_max_length")),
    ]:
        if value is not None:
            if type(value) not in (int, float) or not 1 <= value < MOST:
                raise InputError(f"{where}: {key}={value!r}: expected a whole number")
            return int(value)
    return None


def _encoder_settings(encoder: Path) -> JsonObject:
    """Read the settings of the encoder, with the names that version 6 gives its keys."""
    read = [read_object(encoder / name) for name in _ENCODERS]
    return {_IN_ENCODER.get(key, key): value for key, value in next(filter(None, read), {}).items()}


def _check_encoder(encoder: Path) -> JsonObject:
    """Return the settings of the encoder; raise InputError for one that changes a vector and is not honoured."""
    path, settings = encoder / _ENCODER, _encoder_settings(encoder)
    others = [
        f"{key}.{name}={value!r} is not supported; leave it out"
        for key, harmless in _HARMLESS.items()
        for name, value in checked(JsonObject, settings.get(key) or {}, f"{path}: {key}").items()
        if name not in harmless
    ]
    check_keys(path, ENCODER_KEYS, settings, others)
    return settings


def _known(path: Path, keys: Keys) -> JsonObject:
    """Read a file of settings, {} if there is none; raise InputError for a key or a value that bertkit lacks."""
    settings = read_object(path)
    check_keys(path, keys, settings)
    return settings


def _modes_in(settings: JsonObject, path: Path) -> tuple[str, ...]:
    """Return the modes of a pooling: those of version 6, or else those of older versions that are on; the mean if none is."""
    chosen = settings.get("pooling_mode", [mode for mode, key in LEGACY_MODES.items() if settings.get(key)] or "mean")
    modes = tuple(chosen) if isinstance(chosen, list) else (chosen,)
    if not modes or not all(isinstance(mode, str) and mode in LEGACY_MODES for mode in modes):
        raise InputError(f"{path}: pooling_mode={chosen!r}: expected some of {', '.join(LEGACY_MODES)}")
    return modes


def _read_model_settings(directory: Path) -> _ModelSettings:
    """Read what holds for the whole model; raise InputError if its default prompt does not exist."""
    path = directory / SETTINGS
    content = _known(path, MODEL_KEYS)
    settings = checked(_ModelSettings, without_none(content), path)
    known = {"query": "", "document": ""} | settings.prompts
    refuse(
        settings.default_prompt_name not in (None, *known)
        and f"{path}: default_prompt_name={settings.default_prompt_name!r}: the prompts are {named(known)}"
    )
    return settings


def cross_encoder_keys(encoder: Path) -> JsonObject:
    """Return what a cross-encoder of version 6 says beside its `config.json`, by the keys of older versions; {} for other models.

    Raises InputError if it has a prompt, other modules or lower-cased texts, which would change its scores.
    """
    path = root_of(encoder) / SETTINGS
    settings = read_object(path)
    if settings.get("model_type") != "CrossEncoder":
        return {}
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts")
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    kinds = [module.type.rpartition(".")[2] for module in modules_in(path.parent)]
    refuse(
        bool(prompt)
        and f"{path}: default_prompt_name={name!r} is not supported for a cross-encoder; write {prompt!r} before the texts",
        kinds != ["Transformer"]
        and f"{path.parent / 'modules.json'}: {', '.join(kinds)}; of a cross-encoder bertkit supports Transformer alone",
        bool(_encoder_settings(encoder).get("do_lower_case"))
        and f"{encoder / _ENCODER}: do_lower_case=True is not supported for a cross-encoder",
    )
    return {"sentence_transformers": {"activation_fn": settings.get("activation_fn")}}
