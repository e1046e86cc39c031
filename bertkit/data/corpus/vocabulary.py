"""The WordPiece vocabulary: learned from a corpus, or read from the files of another program."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

from bertkit.base.errors import InputError
from bertkit.base.files import sha256_file
from bertkit.base.text_files import read_json, read_whole
from bertkit.base.typed_settings import at, checked
from bertkit.data.corpus.google_words import MAX_INPUT_CHARS_PER_WORD

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_ALPHABET = 1000  # the library's own limit; rarer characters become [UNK]

# Whether published vocabularies are lower-cased, by the SHA-256 of vocab.txt, if their tokens do not show it.
# bert-base-chinese has no upper-case Latin letter. Its tokenizer_config.json on the Hugging Face hub has
# do_lower_case=false, which is how it is used. (In google-research/bert tokenization.py,
# `validate_case_matches_checkpoint`, the same vocabulary, chinese_L-12_H-768_A-12, is lower-cased.)
LOWERCASE_OF_PUBLISHED = {"45bbac6b341c319adc98a532532882e91a9cefc0329aa57bac9ae761c27b291c": False}


def learn_vocabulary(
    sentences: Callable[[], Iterable[str]], vocab_size: int, lowercase: bool, min_frequency: int
) -> dict[str, int]:
    """Learn a WordPiece vocabulary; the same text always gives the same vocabulary.

    `sentences` is called twice, for the characters and for the words. `vocab_size` includes special tokens and single
    characters. A pair of pieces can become one piece if it occurs at least `min_frequency` times. Raises InputError if the
    text has no words, or more different characters than `vocab_size` allows.
    """
    learner = Tokenizer(WordPiece(unk_token=UNK))
    normalizer = BertNormalizer(clean_text=True, handle_chinese_chars=True, lowercase=lowercase)
    learner.normalizer, learner.pre_tokenizer = normalizer, BertPreTokenizer()
    # The library numbers characters in the random order of a hash map, so ties between merges differ from run to run.
    # Special tokens keep their order, so the characters are passed as special tokens.
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
        wrong = f"tokenizer.vocab_size={vocab_size} has no room for the {len(alphabet)} characters of the corpus"
        raise InputError(f"{wrong}; set it to {2 * len(first_tokens)} or more")
    trainer = WordPieceTrainer(
        # the library allocates so many entries; a merge joins two pieces, so there cannot be more tokens than this
        vocab_size=min(vocab_size, len(first_tokens) + normal.total()),
        min_frequency=min_frequency,
        special_tokens=first_tokens,
        limit_alphabet=0,
        show_progress=False,
        continuing_subword_prefix="##",
    )
    learner.train_from_iterator((_without_long_words(sentence, normalizer) for sentence in sentences()), trainer)
    return dict(learner.get_vocab())


def _without_long_words(sentence: str, normalizer: BertNormalizer) -> str:
    """Remove words that are so long that they become [UNK]; the library's time grows with the square of their length."""
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
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected vocab.txt, tokenizer.json or a directory with one")
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
