"""The WordPiece vocabulary, read from the files of another program."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bertkit.base.errors import InputError
from bertkit.base.files import sha256_file
from bertkit.base.text_files import read_json, read_whole
from bertkit.base.typed_settings import at, checked

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Whether published vocabularies are lower-cased, by the SHA-256 of vocab.txt, if their tokens do not show it.
# bert-base-chinese has no upper-case Latin letter. Its tokenizer_config.json on the Hugging Face hub has
# do_lower_case=false, which is how it is used. (In google-research/bert tokenization.py,
# `validate_case_matches_checkpoint`, the same vocabulary, chinese_L-12_H-768_A-12, is lower-cased.)
LOWERCASE_OF_PUBLISHED = {"45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c": False}


@dataclass(frozen=True)
class _Settings:
    """The settings in `tokenizer_config.json`, or in the normalizer of `tokenizer.json`, that bertkit reads."""

    do_lower_case: bool | None = None
    lowercase: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    handle_chinese_chars: bool | None = None
    clean_text: bool | None = None


@dataclass(frozen=True)
class _Model:
    vocab: dict[str, int]
    continuing_subword_prefix: str = "##"


@dataclass(frozen=True)
class _Added:
    content: str
    id: int


@dataclass(frozen=True)
class _TokenizerJson:
    """The fields of `tokenizer.json` that bertkit reads."""

    model: _Model
    normalizer: _Settings | None = None
    added_tokens: tuple[_Added, ...] | None = None


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary read from a file."""

    path: Path
    ids: dict[str, int]
    lowercase: bool
    strip_accents: bool | None  # None: the same as `lowercase`


def read_vocabulary(path: Path) -> Vocabulary:
    """Read the WordPiece vocabulary in `vocab.txt`, `tokenizer.json`, or a directory with one of them."""
    settings = normalizer = _Settings()
    if path.is_dir():
        settings_path = path / "tokenizer_config.json"
        if settings_path.is_file():
            settings = checked(_Settings, read_json(settings_path), settings_path)
        if settings.tokenize_chinese_chars is False:
            raise InputError(f"{settings_path}: tokenize_chinese_chars=false is not supported; BERT splits them")
        files = [path / name for name in ("vocab.txt", "tokenizer.json") if (path / name).is_file()]
        if not files:
            raise InputError(f"{path}: no vocab.txt or tokenizer.json in this directory")
        if len(files) == 2:
            _check_same_ids(*files)
        path = files[0]
    if path.suffix == ".json":
        ids, normalizer = _read_tokenizer_json(path)
    else:
        ids = _read_vocab_txt(path)
    published = LOWERCASE_OF_PUBLISHED.get(sha256_file(path))
    is_cased = any(token != token.lower() and token[:1] not in "[<" for token in ids)  # [MASK] and <s> do not count
    choices = (settings.do_lower_case, normalizer.lowercase, published, not is_cased)
    lowercase = next(choice for choice in choices if choice is not None)
    strip_accents = normalizer.strip_accents if settings.strip_accents is None else settings.strip_accents
    return Vocabulary(path, ids, lowercase, strip_accents)


def _check_same_ids(vocab_txt: Path, tokenizer_json: Path) -> None:
    """Raise InputError if a token has another id in the other file, since a program reads only one of the files."""
    ids, others = _read_vocab_txt(vocab_txt), at(read_json(tokenizer_json), "model.vocab")
    for token, number in others.items() if isinstance(others, dict) else ():
        if ids.get(token) != number:
            wrong = f"vocab.txt and tokenizer.json have different ids for {json.dumps(token)}"
            raise InputError(f"{vocab_txt.parent}: {wrong}; restore both from the same source")


class _Tokens(NamedTuple):
    """The tokens of `tokenizer.json`."""

    ids: dict[str, int]
    normalizer: _Settings


def _read_tokenizer_json(path: Path) -> _Tokens:
    content = read_json(path)
    file = checked(_TokenizerJson, content, path)
    normalizer = file.normalizer or _Settings()
    if (prefix := file.model.continuing_subword_prefix) != "##":
        raise InputError(f"{path}: continuing_subword_prefix={prefix!r} is not supported; BERT's is '##'")
    for setting in ("clean_text", "handle_chinese_chars"):
        if vars(normalizer)[setting] is False:
            raise InputError(f"{path}: normalizer.{setting}=false is not supported; BERT does it")
    ids = dict(file.model.vocab)
    for token in file.added_tokens or ():
        ids.setdefault(token.content, token.id)
    return _Tokens(ids, normalizer)


def _read_vocab_txt(path: Path) -> dict[str, int]:
    try:
        lines = read_whole(path).split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start}); expected one token per line") from None
    tokens = [line.rstrip("\r") for line in lines]
    while tokens and not tokens[-1]:
        tokens.pop()
    vocab: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if token in vocab:
            raise InputError(f"{path}:{number + 1}: duplicate of token {json.dumps(token)} on line {vocab[token] + 1}")
        vocab[token] = number
    return vocab
