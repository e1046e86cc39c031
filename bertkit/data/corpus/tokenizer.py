"""The tokenizer: text to ids and back, and the files that other programs read.

It uses the `tokenizers` library, with BERT's settings or with a `tokenizer.json` of any kind: BPE, Unigram or WordPiece.
BERT's splits text into words either by Hugging Face's rules, as other programs do with an exported model, or by Google's rules;
`google_words.py` lists the differences.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from tokenizers import Encoding

from bertkit.base.errors import InputError, refusing
from bertkit.base.files import building_dir, to_json
from bertkit.base.text_files import JsonObject, read_json
from bertkit.base.typed_settings import at, refuse
from bertkit.data.corpus.long_texts import FlatIds, TextPieces
from bertkit.data.corpus.tokenizer_file import FileRules, file_rules
from bertkit.data.corpus.word_rules import Rules as Rules
from bertkit.data.corpus.word_rules import VocabFacts as VocabFacts
from bertkit.data.corpus.word_rules import Word as Word
from bertkit.data.corpus.word_rules import WordRules, rules_named
from bertkit.data.corpus.word_rules import after_marks as after_marks
from bertkit.data.data_config import TokenizerConfig
from bertkit.data.library_calls import library_call
from bertkit.data.tokenizers.files import Files
from bertkit.data.tokenizers.learn import learn_byte_pairs, learn_unigram, learn_wordpiece
from bertkit.data.tokenizers.published import Built, Published, read_published
from bertkit.data.tokenizers.special_tokens import SPECIAL_TOKENS as SPECIAL_TOKENS

MAX_LENGTH = 512  # in the files of a prepared dataset
PieceT = TypeVar("PieceT")
RULES_FILE = "rules.json"  # in a prepared dataset; without it the rules are Hugging Face's


class Tokenizer:
    """Text to ids and back: `tokenizer("a text", "its pair")` returns ids like Hugging Face's."""

    def __init__(self, words_by: WordRules, notes: Sequence[str] = ()) -> None:
        """Build a tokenizer from its rules; raises InputError if the ids of its tokens are not 0 to size - 1.

        `notes` are what a user should know of it, if it was learned.
        """
        self.notes = notes
        self.words_by, self.backend = words_by, words_by.exported
        self.rules, self.lowercase, self.strip_accents = words_by.name, words_by.lowercase, words_by.strip_accents
        self.max_length: int | None = None  # tokens that the model reads; None for all its positions
        ids = self.backend.get_vocab()
        self.vocab = sorted(ids, key=ids.__getitem__)  # the tokens in the order of their ids
        if sorted(ids.values()) != list(range(len(ids))):
            raise InputError(f"vocabulary of {len(ids)} tokens: its ids are not 0 to {len(ids) - 1}")

    def __repr__(self) -> str:
        return f"Tokenizer({self.rules}, {self.vocab_size:,} tokens)"

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return int(self.backend.get_vocab_size())

    def fits(self, num_embeddings: int) -> bool:
        """Whether it can be the tokenizer of a model with so many token embeddings: one for each token, and perhaps unused ones."""
        return num_embeddings >= self.vocab_size

    @cached_property
    def vocabulary_sha256(self) -> str:
        """The SHA-256 of the tokens, one in a line, as in `vocab.txt`."""
        return hashlib.sha256("".join(f"{token}\n" for token in self.vocab).encode()).hexdigest()

    @cached_property
    def facts(self) -> VocabFacts:
        """The special ids, and where words begin."""
        special = {role: self.vocab.index(token) for role, token in vars(self.words_by.special).items()}
        return VocabFacts(self.vocab_size, **special, borders=self.words_by.borders)

    @cached_property
    def between(self) -> list[int]:
        """The ids of the special tokens between the two texts of a pair: [SEP] alone, if the tokenizer is BERT's."""
        return [self.vocab.index(token) for token in self.words_by.between]

    def cut(self, pieces: Sequence[PieceT], room: int) -> list[PieceT]:
        """Return the `room` pieces that are kept of a text."""
        return list(pieces[max(0, len(pieces) - room) :] if self.words_by.cuts_beginnings else pieces[:room])

    def pair_types(self, num_first: int, num_second: int) -> list[int]:
        """Return the token types of a pair of texts with so many pieces, and of the special tokens around and between them."""
        cls, first, *between, second, sep = self.words_by.pair_types
        types = [cls, *[first] * num_first, *between, *[second] * num_second, sep]
        return types if self.words_by.has_types else [0] * len(types)

    @property
    def largest_type(self) -> int:
        """The largest token type of a pair."""
        return max(self.words_by.pair_types) * self.words_by.has_types

    @library_call()
    def encode_document(self, document: list[str]) -> list[list[int]]:
        """Return the ids of each sentence, without special tokens; "[MASK]" in a sentence is ordinary text."""
        return [encoding.ids for encoding in self.words_by.encode(document)]

    @library_call()
    def encode_words(self, words: list[str]) -> list[list[int]]:
        """Return the ids of each word, as inside a running text; "[MASK]" is that token, as in `transformers`."""
        return self.words_by.encode_words(words)

    @library_call()
    def encode_flat(self, sentences: list[str]) -> FlatIds:
        """Return the ids of many sentences of a corpus, concatenated, and the number of ids in each sentence."""
        return self.words_by.encode_flat(sentences)

    @library_call()
    def encode_with_offsets(self, texts: list[str]) -> list[TextPieces]:
        """Return the pieces of each text, without special tokens around it, with their places; "[MASK]" in a text is that token."""
        return self.words_by.pieces(texts)

    @library_call()
    def words(self, texts: list[str]) -> list[list[Word]]:
        """Cut texts into words, at white space and punctuation; in scripts without spaces each piece is a word."""
        return self.words_by.words(texts)

    @library_call()
    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Decode ids to readable text."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def texts_of(self, ids: Iterable[int]) -> list[str]:
        """Return the text of each token alone: `##ing` of a WordPiece, ` kan` for the `Ġkan` of a byte-level BPE.

        That of an embedding without a token is its number, as in `[30523]`.
        """
        return [self.decode([number]) or self._name_of(number) for number in ids]

    def _name_of(self, number: int) -> str:
        return self.vocab[number] if number < len(self.vocab) else f"[{number}]"

    def encode_texts(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of each text, with [CLS] and [SEP]."""
        return [encoding.ids for encoding in self._encode_batch(texts, None, False, None)]

    def __call__(
        self,
        text: str | list[str],
        text_pair: str | list[str] | None = None,
        *,
        padding: bool = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
    ) -> dict[str, Any]:
        """Encode a text, a pair of texts, or lists of them, with [CLS] and [SEP].

        Args:
            text: one text, or a list of texts.
            text_pair: the second segment of each.
            padding: pad all sequences to the longest one.
            truncation: cut sequences to `max_length` tokens, the longer segment first.
            max_length: required with `truncation`.
            return_tensors: "pt" for torch tensors (B, T), "np" for numpy arrays; None for lists.

        Returns:
            `input_ids`, `token_type_ids` (0 for the first segment, 1 for the second) and `attention_mask` (0 for padding).
        """
        if truncation and max_length is None:
            raise InputError("truncation=True needs max_length=")
        texts = [text] if isinstance(text, str) else list(text)
        pairs = [text_pair] if isinstance(text_pair, str) else text_pair
        if pairs is not None and len(pairs) != len(texts):
            raise InputError(f"text_pair: {len(pairs)} texts; expected {len(texts)}, one for each text")
        encodings = self._encode_batch(texts, pairs, padding, max_length if truncation else None)
        columns: dict[str, list[list[int]]] = {
            "input_ids": [encoding.ids for encoding in encodings],
            "token_type_ids": [one.type_ids if self.words_by.has_types else [0] * len(one.ids) for one in encodings],
            "attention_mask": [encoding.attention_mask for encoding in encodings],
        }
        if return_tensors is not None:
            return _as_arrays(columns, return_tensors)
        return {name: rows[0] for name, rows in columns.items()} if isinstance(text, str) else columns

    @library_call()
    def _encode_batch(
        self, texts: list[str], pairs: list[str] | None, padding: bool, max_length: int | None
    ) -> list[Encoding]:
        words, backend = self.words_by, self.words_by.inputs
        first = words.prepared(texts)
        inputs = first if pairs is None else list(zip(first, words.prepared(pairs), strict=True))
        if max_length is not None:
            backend.enable_truncation(max_length, direction="left" if self.words_by.cuts_beginnings else "right")
        if padding:
            side = at(words.config, "padding_side") or "right"
            backend.enable_padding(direction=side, pad_id=self.facts.pad, pad_token=words.special.pad)
        try:
            return backend.encode_batch_fast(inputs)
        finally:
            backend.no_padding()
            backend.no_truncation()

    def files(self, longest: int, has_types: bool = True) -> dict[str, str]:
        """Return the names and contents of the files that `transformers` and other programs read.

        `longest` is the number of the model's positions, and `has_types` whether it reads token types.
        """
        return self.words_by.files(min(self.max_length or longest, longest), has_types and self.words_by.has_types)

    def save(self, directory: Path) -> None:
        """Write the tokenizer's files, and the rules, into a prepared dataset; they appear together, by a rename."""
        with building_dir(directory) as partial:
            longest = min(self.max_length or MAX_LENGTH, MAX_LENGTH)
            for name, content in self.words_by.files(
                longest, has_types=True
            ).items():  # the pairs of a dataset have types
                (partial / name).write_text(content, encoding="utf-8")
            if self.rules != "hugging_face":
                (partial / RULES_FILE).write_text(to_json(self.rules), encoding="utf-8")


def _as_arrays(columns: Mapping[str, list[list[int]]], kind: str) -> dict[str, object]:
    """Convert columns to torch tensors, for "pt", or numpy arrays, for "np"."""
    if len({*map(len, columns["input_ids"])}) > 1:
        raise InputError(f"return_tensors={kind!r}: sequences have different lengths; set padding=True")
    match kind:
        case "np":
            return {name: np.array(rows) for name, rows in columns.items()}
        case "pt":
            import torch

            return {name: torch.tensor(rows) for name, rows in columns.items()}
    raise InputError(f"return_tensors={kind!r}: expected 'pt' or 'np'")


def wordpiece(
    vocab: dict[str, int],
    lowercase: bool,
    strip_accents: bool | None = None,
    rules: Rules = "hugging_face",
    config: JsonObject | None = None,
) -> Tokenizer:
    """Build BERT's tokenizer from a mapping of tokens to ids; `config` are further settings for tokenizer_config.json.

    Raises:
        InputError: a special token is missing, the ids are not 0 to size - 1, the rules are unknown, or they do not allow
            this `strip_accents`.
    """
    made = rules_named(rules, lowercase, strip_accents)
    if missing := " ".join(token for token in SPECIAL_TOKENS if token not in vocab):
        expected = f"BERT needs {' '.join(SPECIAL_TOKENS)}: add them or choose another vocabulary"
        raise InputError(f"vocabulary of {len(vocab)} tokens has no {missing}; {expected}")
    return Tokenizer(made(vocab, lowercase, strip_accents, config))


def train_wordpiece(
    sentences: Callable[[], Iterable[str]], vocab_size: int, lowercase: bool, min_frequency: int
) -> Tokenizer:
    """Learn the vocabulary and build the tokenizer of BERT, by Hugging Face's rules."""
    config = TokenizerConfig(None, vocab_size, min_frequency, lowercase, "hugging_face")
    return train_tokenizer(config, sentences, lowercase, "hugging_face")


def train_tokenizer(
    config: TokenizerConfig, sentences: Callable[[], Iterable[str]], lowercase: bool, rules: Rules
) -> Tokenizer:
    """Learn the tokenizer that the settings name; `lowercase` and `rules` are for WordPiece."""
    match config.kind:
        case "wordpiece":
            learned = learn_wordpiece(sentences, config, lowercase, rules)
        case "bpe":
            learned = learn_byte_pairs(sentences, config)
        case "unigram":
            learned = learn_unigram(sentences, config)
    return Tokenizer(learned.rules, learned.notes)


def load_tokenizer(
    path: Path,
    lowercase: bool | None = None,
    rules: Rules | None = None,
    strip_accents: bool | None = None,
    build: Callable[[Files], Built | None] | None = None,
) -> Tokenizer:
    """Load the tokenizer that the files in a directory describe, or a `vocab.txt` or `tokenizer.json`.

    BERT's WordPiece is bertkit's own; any other tokenizer is the library's, and `lowercase`, `rules` and `strip_accents` are then refused
    if they differ. By default text is lower-cased as the files say (`do_lower_case`); a `vocab.txt` without these files is cased if it
    contains an upper-case letter, or is the vocabulary of bert-base-chinese. The default rules are those stored in a prepared dataset, in
    other directories Hugging Face's. `build` returns the tokenizer that a class of `transformers` builds from the files. Raises InputError if
    there is no such file, or BERT cannot use it.
    """
    published = read_published(path, lowercase, build)
    if isinstance(published, Published):
        own = file_rules(published)
        asked = {"lowercase": None if lowercase == own.lowercase else lowercase, "strip_accents": strip_accents}
        return Tokenizer(_as_asked(own, path, asked, rules))
    rules = rules or _stored_rules(path / RULES_FILE)
    is_lowercase = published.lowercase if lowercase is None else lowercase
    strips = published.strip_accents if strip_accents is None else strip_accents
    with refusing(InputError, lambda error: f"{published.path}: {error}"):
        return wordpiece(published.ids, is_lowercase, strips, rules, published.config)


def _as_asked(own: FileRules, path: Path, asked: Mapping[str, bool | None], rules: Rules | None) -> FileRules:
    """Return the rules of a file; raises InputError if others are asked for."""
    others = (f"tokenizer.{name}={str(value).lower()}" for name, value in asked.items() if value is not None)
    refuse(
        [f"{path}: {other}: its own normalizer decides; leave it out" for other in others],
        rules == "google"
        and f"{path}: Google's rules and instances (segments=google) are for BERT's WordPiece, not for {own.kind}; "
        "leave them out",
    )
    return own


def _stored_rules(path: Path) -> Rules:
    if not path.is_file():
        return "hugging_face"
    rules: Rules = read_json(path)
    if rules not in get_args(Rules):
        raise InputError(f"{path}: {rules!r}: expected {' or '.join(get_args(Rules))}; restore it")
    return rules
