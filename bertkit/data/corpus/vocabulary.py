"""The WordPiece vocabulary: learned from a text, or read from the files of another program."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

from bertkit.base.errors import InputError
from bertkit.base.files import sha256_file
from bertkit.base.text_files import read_json, read_whole
from bertkit.base.typed_settings import checked
from bertkit.data.corpus.google_words import MAX_INPUT_CHARS_PER_WORD

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_ALPHABET = 1000  # the library's own limit; rarer characters become [UNK]

# Published vocabularies whose case cannot be read off them, by the SHA-256 of vocab.txt: whether they are lower-cased.
# bert-base-chinese has no upper-case Latin letter. Its tokenizer_config.json on the Hugging Face hub says
# do_lower_case=false, and that is how its users run it; google-research/bert tokenization.py,
# `validate_case_matches_checkpoint`, lists the same vocabulary (chinese_L-12_H-768_A-12) as lower-cased.
LOWERCASE_OF_PUBLISHED = {"45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c": False}


def learn_vocabulary(
    sentences: Callable[[], Iterable[str]], vocab_size: int, lowercase: bool, min_frequency: int
) -> dict[str, int]:
    """Learn a WordPiece vocabulary; the same text gives the same vocabulary.

    `sentences` is called twice, for the characters and for the words. `vocab_size` counts special tokens and characters
    too; `min_frequency` is how often a pair of pieces must occur to become one piece.

    Raises:
        InputError: the text has no words to learn from, or more characters than `vocab_size` has room for.
    """
    learner = Tokenizer(WordPiece(unk_token=UNK))
    normalizer = BertNormalizer(clean_text=True, handle_chinese_chars=True, lowercase=lowercase)
    learner.normalizer, learner.pre_tokenizer = normalizer, BertPreTokenizer()
    # The library numbers characters in the order of a hash map, which breaks ties between merges differently in every
    # run. Characters that it is given as special tokens are numbered in their order.
    counts: Counter[str] = Counter()
    for sentence in sentences():
        counts.update(sentence)
    normal: Counter[str] = Counter()
    for character, count in counts.items():
        for normalized in "".join(normalizer.normalize_str(character).split()):
            normal[normalized] += count
    alphabet = sorted(character for character, _ in normal.most_common(MAX_ALPHABET))
    if not alphabet:
        raise InputError("no words in the corpus to learn a vocabulary from; check corpus.path")
    first_tokens = [*SPECIAL_TOKENS, *alphabet, *(f"##{character}" for character in alphabet)]
    if len(first_tokens) > vocab_size:
        raise InputError(
            f"tokenizer.vocab_size={vocab_size} has no room for the {len(alphabet)} characters of the corpus; "
            f"set it to {2 * len(first_tokens)} or more"
        )
    trainer = WordPieceTrainer(
        # the library makes room for as many at once; each piece takes the place of two, so the text cannot have more
        vocab_size=min(vocab_size, len(first_tokens) + normal.total()),
        min_frequency=min_frequency,
        special_tokens=first_tokens,
        limit_alphabet=0,
        show_progress=False,
        continuing_subword_prefix="##",
    )
    learner.train_from_iterator((_without_endless_words(sentence, normalizer) for sentence in sentences()), trainer)
    return dict(learner.get_vocab())


def _without_endless_words(sentence: str, normalizer: BertNormalizer) -> str:
    """Leave out words that are [UNK] by every rule, whatever the vocabulary; the library's time grows with their square."""
    if len(sentence) <= MAX_INPUT_CHARS_PER_WORD:
        return sentence
    runs = sentence.split()
    for place, run in enumerate(runs):
        if len(run) > MAX_INPUT_CHARS_PER_WORD:
            words = BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(run))
            runs[place] = " ".join(word for word, _ in words if len(word) <= MAX_INPUT_CHARS_PER_WORD)
    return " ".join(runs)


@dataclass(frozen=True)
class _Settings:
    """Of `tokenizer_config.json`, all that is read."""

    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None


@dataclass(frozen=True)
class _Model:
    vocab: dict[str, int]
    continuing_subword_prefix: str = "##"


@dataclass(frozen=True)
class _Normalizer:
    lowercase: bool | None = None
    strip_accents: bool | None = None
    clean_text: bool | None = None
    handle_chinese_chars: bool | None = None


@dataclass(frozen=True)
class _Added:
    content: str
    id: int


@dataclass(frozen=True)
class _TokenizerJson:
    """Of `tokenizer.json`, all that is read."""

    model: _Model
    normalizer: _Normalizer | None = None
    added_tokens: tuple[_Added, ...] | None = None


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary that was read, its file, and how its words are normalized (accents: None for what `lowercase` says)."""

    path: Path
    ids: dict[str, int]
    lowercase: bool
    strip_accents: bool | None


def read_vocabulary(path: Path) -> Vocabulary:
    """Read `vocab.txt`, `tokenizer.json`, or a directory with one of them.

    Raises:
        InputError: no such file, or not a WordPiece vocabulary that BERT can use.
    """
    settings: Any = {}
    if path.is_dir():
        settings_path = path / "tokenizer_config.json"
        settings = read_json(settings_path) if settings_path.is_file() else {}
        checked(_Settings, settings, settings_path)
        if settings.get("tokenize_chinese_chars") is False:
            raise InputError(f"{settings_path}: tokenize_chinese_chars=false is not supported; BERT splits them")
        _check_same_vocabulary(path)
        files = [path / name for name in ("vocab.txt", "tokenizer.json") if (path / name).is_file()]
        if not files:
            raise InputError(f"{path}: no vocab.txt or tokenizer.json in this directory")
        path = files[0]
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected vocab.txt, tokenizer.json or a directory with one")
    ids, normalizer = _read_tokenizer_json(path) if path.suffix == ".json" else (_read_vocab_txt(path), {})
    lowercase = settings.get("do_lower_case")
    lowercase = normalizer.get("lowercase") if lowercase is None else lowercase
    if lowercase is None and path.suffix != ".json":
        lowercase = LOWERCASE_OF_PUBLISHED.get(sha256_file(path))
    strip_accents = settings.get("strip_accents")
    return Vocabulary(
        path,
        ids,
        not _is_cased(ids) if lowercase is None else lowercase,
        normalizer.get("strip_accents") if strip_accents is None else strip_accents,
    )


def _check_same_vocabulary(directory: Path) -> None:
    """Refuse a directory whose two files number the tokens differently: each program would read its own."""
    if not all((directory / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        return
    listed = _read_vocab_txt(directory / "vocab.txt")
    content = read_json(directory / "tokenizer.json")
    model = content.get("model") if isinstance(content, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        differing = [token for token, number in vocab.items() if listed.get(token) != number]
        if differing:
            raise InputError(
                f"{directory}: vocab.txt and tokenizer.json number {json.dumps(differing[0])} differently; restore both from "
                "the same source"
            )


def _read_tokenizer_json(path: Path) -> tuple[dict[str, int], dict[str, Any]]:
    """The ids of the tokens, and the settings of the normalizer."""
    content = read_json(path)
    try:
        vocab = dict(content["model"]["vocab"])
        if content["model"]["type"] != "WordPiece":
            raise InputError(f"{path}: a {content['model']['type']} tokenizer; BERT needs WordPiece")
        checked(_TokenizerJson, content, path)
        normalizer = content.get("normalizer") or {}
        prefix = content["model"].get("continuing_subword_prefix", "##")
        if prefix != "##":
            raise InputError(f"{path}: continuing_subword_prefix={prefix!r} is not supported; BERT's is '##'")
        for setting in ("clean_text", "handle_chinese_chars"):
            if normalizer.get(setting) is False:
                raise InputError(f"{path}: normalizer.{setting}=false is not supported; BERT does it")
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path}: not a WordPiece tokenizer.json (no model.vocab)") from None
    for token in content.get("added_tokens") or []:
        vocab.setdefault(token["content"], token["id"])
    return vocab, normalizer


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
            raise InputError(
                f"{path}:{number + 1}: token {json.dumps(token)} stands on line {vocab[token] + 1} already"
            )
        vocab[token] = number
    return vocab


def _is_cased(vocab: Iterable[str]) -> bool:
    """Whether a vocabulary holds an upper-case letter outside of its special tokens in brackets."""
    return any(token != token.lower() and token[:1] not in "[<" for token in vocab)
