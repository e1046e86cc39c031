"""The tokenizer that the files in a folder describe, built as `transformers` 5 builds it.

`tokenizer_class` decides. The generic classes take `tokenizer.json` as it is, and so does every ModernBERT. `BertTokenizer`, which
is also the class of a BERT that names none, takes the vocabulary, from `tokenizer.json` or `vocab.txt`; the rest is BERT's, by the
settings in `tokenizer_config.json`. Other classes are built by `transformers` itself, in interop. Then come the added tokens.

Source: transformers 5.23, models/auto/tokenization_auto.py, models/bert/tokenization_bert.py, tokenization_utils_tokenizers.py.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from bertkit.base.files import sha256_file
from bertkit.base.text_files import JsonObject, parse_json, read_whole
from bertkit.base.typed_settings import at, checked, refuse
from bertkit.data.library_calls import opened, tried
from bertkit.data.tokenizers.added_tokens import AddedTokens
from bertkit.data.tokenizers.files import BERT, CONFIG, Files, read_files, read_vocab_txt, warn_once
from bertkit.data.tokenizers.other_formats import refuse_other_formats
from bertkit.data.tokenizers.special_tokens import (
    BERTS,
    MAX_INPUT_CHARS_PER_WORD,
    SPECIAL_TOKENS,
    SpecialTokens,
    bert_library,
    cls_and_sep,
)

INPUT_NAMES = {  # of `transformers`, for models with and without token types
    True: ["input_ids", "token_type_ids", "attention_mask"],
    False: ["input_ids", "attention_mask"],
}
# what is written again beside BERT's own tokenizer
KEPT = ("clean_up_tokenization_spaces", "model_input_names", "padding_side", "truncation_side")
# Whether published vocabularies are lower-cased, by the SHA-256 of vocab.txt, if their tokens do not show it.
# bert-base-chinese has no upper-case Latin letter. Its tokenizer_config.json on the Hugging Face hub has
# do_lower_case=false, which is how it is used. (In google-research/bert tokenization.py,
# `validate_case_matches_checkpoint`, the same vocabulary, chinese_L-12_H-768_A-12, is lower-cased.)
LOWERCASE_OF_PUBLISHED = {"45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c": False}
# BERT's tokenizer.json, but for its normalizer, vocabulary and special tokens
BERTS_PARTS: JsonObject = {
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model.type": "WordPiece",
    "model.unk_token": BERTS.unk,
    "model.continuing_subword_prefix": "##",
    "model.max_input_chars_per_word": MAX_INPUT_CHARS_PER_WORD,
}
_BERTS_TOKENS = {repr(AddedToken(name, special=True, normalized=False)) for name in SPECIAL_TOKENS}
# of transformers 5's BertTokenizer and of the file, by which version 4 went
DIFFERING = ("pre_tokenizer", "model.continuing_subword_prefix", "model.max_input_chars_per_word")


@dataclass(frozen=True)
class Vocabulary:
    """BERT's tokenizer, and nothing else."""

    path: Path
    ids: dict[str, int]
    lowercase: bool
    strip_accents: bool | None  # None: the same as `lowercase`
    config: JsonObject  # some of tokenizer_config.json, `KEPT`


@dataclass(frozen=True)
class Published:
    """Any other tokenizer."""

    path: Path  # the file with its vocabulary
    library: Tokenizer
    content: JsonObject  # of its tokenizer.json
    config: JsonObject  # of tokenizer_config.json and special_tokens_map.json
    is_of_model: bool  # whether there is the config.json of a model


@dataclass(frozen=True)
class Built:
    """A tokenizer that a class of `transformers` has built, and the settings of this class."""

    library: Tokenizer
    config: JsonObject


@dataclass(frozen=True)
class _Model:
    vocab: dict[str, int]


@dataclass(frozen=True)
class _Content:
    """What `BertTokenizer` reads of tokenizer.json, and what it replaces."""

    model: _Model
    normalizer: JsonObject | None = None


@dataclass(frozen=True)
class _Settings:
    """The settings of `BertTokenizer`."""

    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None


def read_published(
    path: Path, lowercase: bool | None = None, build: Callable[[Files], Built | None] | None = None
) -> Vocabulary | Published:
    """Read the files in a folder, or a vocabulary file: a `vocab.txt` alone, or a `tokenizer.json` as it is.

    `lowercase` overrides the setting of a BERT, and `build` returns what a class of `transformers` makes of the files. Raises InputError
    if there are none, or they are damaged, or not for BERT.
    """
    files = read_files(path)
    built = None if build is None else build(files)
    if built is not None:
        content = parse_json(built.library.to_str())
        library = tried(files.path, built.library, content)
        return _published(files, library, content, files.config | files.special | built.config)
    if files.is_other:
        refuse_other_formats(path)
    settings = checked(_Settings, files.config, files.path.with_name(CONFIG))
    if files.class_name == BERT:
        return _of_bert(files, settings, lowercase)
    refuse(
        not files.content
        and f"{path / CONFIG}: tokenizer_class={files.class_name}: its words are not BERT's, and vocab.txt does not say which; save "
        "the model with its tokenizer.json"
    )
    return _as_it_is(files)


def _as_it_is(files: Files) -> Vocabulary | Published:
    """Take `tokenizer.json` as it is, with the added tokens of all files."""
    own = _in_file(files.content)
    if files.model:
        own["model_input_names"] = INPUT_NAMES[False]
    config = own | files.config | files.special
    library = opened(files.path, read_whole(files.path), files.content)
    files.tokens(own).add_to(library, {}, files.path)
    match files.content.get("normalizer"):
        case {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "lowercase": bool() as lowercase,
        }:
            is_plain = all(at(files.content, part) == value for part, value in BERTS_PARTS.items())
            strip_accents = at(files.content, "normalizer.strip_accents")
            if is_plain and _has_berts_special_tokens(library) and not config.get("split_special_tokens"):
                vocab = files.content["model"]["vocab"]
                return Vocabulary(files.path, vocab, lowercase, strip_accents, _kept(config))
    return _published(files, library, files.content, config)


def _has_berts_special_tokens(library: Tokenizer) -> bool:
    """Whether a tokenizer adds [CLS] and [SEP] as BERT's, and has its special tokens as the only added ones."""
    added, own = library.get_added_tokens_decoder().values(), library.post_processor
    if {repr(token) for token in added} != _BERTS_TOKENS or own is None:
        return False
    return bool(own.__getstate__() == cls_and_sep(library, BERTS).__getstate__())


def _published(files: Files, library: Tokenizer, content: JsonObject, config: JsonObject) -> Published:
    added = library.get_added_tokens_decoder().items()
    tokens = [{"id": number, **token.__getstate__()} for number, token in added]
    return Published(files.path, library, {**content, "added_tokens": tokens}, config, bool(files.model))


def _kept(config: JsonObject) -> JsonObject:
    return {name: config[name] for name in KEPT if config.get(name) is not None}


def _of_bert(files: Files, settings: _Settings, asked: bool | None) -> Vocabulary | Published:
    """Build `BertTokenizer` with the vocabulary of the files."""
    content = files.content
    kind = at(content, "model.type")
    refuse(
        kind not in (None, "WordPiece")
        and f"{files.path}: model.type={kind}: transformers 5 makes WordPiece of it, as of every tokenizer of a BERT that names no other "
        f"class; set tokenizer_class to PreTrainedTokenizerFast in {CONFIG}"
    )
    vocab = _vocabulary_of(files) if content else read_vocab_txt(files.path)
    _refuse_sentence_pieces(files.path, vocab)
    lowercase, is_chinese = _is_lowercase(files, vocab, settings), settings.tokenize_chinese_chars is not False
    tokens, usual = files.tokens({}), BERTS.settings()
    names = {role: token.content for role, token in tokens.by_role(usual).items()}
    if content:
        _say_what_differs(files, lowercase, settings)
    lowercase = lowercase if asked is None else asked
    config = _in_file(content) | files.config
    if _is_plain(tokens, vocab) and is_chinese and not files.config.get("split_special_tokens"):
        return Vocabulary(files.path, vocab, lowercase, settings.strip_accents, _kept(config))
    unk = names["unk_token"]
    refuse(
        unk not in vocab
        and f"{files.path}: its unknown token {unk} is not in the vocabulary; set unk_token in {CONFIG}"
    )
    library = bert_library(vocab, lowercase, settings.strip_accents, is_chinese, names["unk_token"])
    tokens.add_to(library, usual, files.path)
    library.post_processor = cls_and_sep(
        library, SpecialTokens(**{role[: -len("_token")]: names[role] for role in usual})
    )
    return _published(files, library, parse_json(library.to_str()), config | files.special | names)


def _in_file(content: JsonObject) -> JsonObject:
    """Return the settings that tokenizer.json has, for which tokenizer_config.json has no values."""
    places = {
        "truncation_side": "truncation.direction",
        "padding_side": "padding.direction",
        "pad_token": "padding.pad_token",
    }
    found = {name: at(content, place) for name, place in places.items()}
    return {
        name: str(value).lower() if name.endswith("_side") else value
        for name, value in found.items()
        if value is not None
    }


def _vocabulary_of(files: Files) -> dict[str, int]:
    """Return the vocabulary in tokenizer.json; its tokens are checked one by one only if one is wrong, which is faster."""
    vocab, normalizer = at(files.content, "model.vocab"), files.content.get("normalizer")
    if isinstance(vocab, dict) and {*map(type, vocab.values())} == {int} and isinstance(normalizer, (dict, type(None))):
        return vocab
    return checked(_Content, files.content, files.path).model.vocab


def _is_plain(tokens: AddedTokens, vocab: Mapping[str, int]) -> bool:
    """Whether the added tokens are BERT's special tokens alone, all of them in the vocabulary."""
    usual = BERTS.settings()
    return (
        {repr(token) for token in tokens.all(usual)} == _BERTS_TOKENS
        and {role: token.content for role, token in tokens.by_role(usual).items()} == usual
        and all(token.content in vocab for token in tokens.listed.values())
    )


def _refuse_sentence_pieces(path: Path, vocab: Mapping[str, int]) -> None:
    pieces = [token for token in vocab if token[0:1] == "▁" and len(token) > 1]
    refuse(
        pieces
        and len(pieces) > sum(token.startswith("##") for token in vocab)
        and f"{path}: its pieces are SentencePiece's, such as {pieces[0]}, not BERT's, as in KoBERT, whose tokenizer is code; save the model "
        "with its tokenizer.json"
    )


def _is_lowercase(files: Files, vocab: Mapping[str, int], settings: _Settings) -> bool:
    """Return the setting, which is true by default; for a `vocab.txt` that is not a model's of Hugging Face, what its tokens show."""
    if settings.do_lower_case is not None:
        return settings.do_lower_case
    is_cased = any(token != token.lower() and token[:1] not in "[<" for token in vocab)  # [MASK] and <s> do not count
    is_of_transformers = bool(files.content) or "model_type" in files.model
    if is_of_transformers and is_cased:
        warn_once(
            files.path,
            f"no do_lower_case in {CONFIG}: text is lower-cased, as in transformers, though the vocabulary has capital letters; if the model is "
            "cased, set it to false",
        )
    return is_of_transformers or LOWERCASE_OF_PUBLISHED.get(sha256_file(files.path), not is_cased)


def _say_what_differs(files: Files, lowercase: bool, settings: _Settings) -> None:
    """Warn of each part of tokenizer.json for which the class of transformers 5 has its own."""
    usual: JsonObject = {
        "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": settings.tokenize_chinese_chars is not False,
        "strip_accents": settings.strip_accents, "lowercase": lowercase,
    }  # fmt: skip
    for part, value in {"normalizer": usual, **{name: BERTS_PARTS[name] for name in DIFFERING}}.items():
        own = at(files.content, part)
        if own != value and not (part.startswith("model.") and own is None):
            warn_once(
                files.path,
                f"{part}={json.dumps(own):.150}: read past, as transformers 5 does, whose BertTokenizer has its own; for the file as it is "
                f"set tokenizer_class to PreTrainedTokenizerFast in {CONFIG}",
            )
