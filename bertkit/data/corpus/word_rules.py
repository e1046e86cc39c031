"""The rules by which a text becomes words, and words pieces: BERT's WordPiece by Hugging Face's rules or by Google's.

The rules of other tokenizers are in `tokenizer_file.py`.
"""

import itertools
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit

from bertkit.base.errors import InputError
from bertkit.base.files import to_json
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import at
from bertkit.data.corpus.google_words import MAX_INPUT_CHARS_PER_WORD, split_words
from bertkit.data.corpus.long_texts import PART_CHARACTERS, FlatIds, TextPieces, encode_in_parts, encode_long
from bertkit.data.tokenizers.published import INPUT_NAMES
from bertkit.data.tokenizers.special_tokens import BERTS, SEP, UNK, SpecialTokens, cls_and_sep, plain_bert

Rules = Literal["hugging_face", "google"]
Places = list[tuple[int, int]]  # (first, last) character of each word or piece in a text, `last` excluded


class Word(NamedTuple):
    """A word of a text, `text[start:end]`."""

    start: int
    end: int
    ids: list[int]  # of its pieces


@dataclass(frozen=True)
class WordBorders:
    """Where words begin among consecutive tokens of a vocabulary of V tokens."""

    continues: NDArray[np.bool_]  # which tokens go on with the word before them, (V,)
    ends: NDArray[np.bool_]  # after which tokens a word begins in any case, (V,)

    def begins(self, ids: Sequence[int] | NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which of these tokens begin a word."""
        numbers = np.asarray(ids, np.int64)
        begins = ~self.continues[numbers]
        begins[1:] |= self.ends[numbers[:-1]]
        return begins


@dataclass(frozen=True)
class VocabFacts:
    """The size of the vocabulary, the special ids, and where words begin."""

    size: int
    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    borders: WordBorders


class WordRules(ABC):
    """How texts become words, and words pieces."""

    name: Rules
    lowercase: bool  # whether capital letters are lost
    strip_accents: bool | None = None  # None: the same as `lowercase`
    is_of_bert: bool  # BERT's WordPiece, with `##`: the pieces of a word do not depend on the text around it
    special: SpecialTokens
    between: tuple[str, ...]  # the special tokens between the two texts of a pair
    pair_types: tuple[int, ...]  # the token types of [CLS], the first text, those between, the second text, and [SEP]
    config: JsonObject  # what tokenizer_config.json says, or some of it
    exported: Tokenizer  # of the library, as other programs use it
    inputs: Tokenizer  # of the library, for `prepared` texts with special tokens around them

    @property
    def has_types(self) -> bool:
        """Whether its models read token types; otherwise all are 0."""
        names = at(self.config, "model_input_names")
        return not isinstance(names, list) or "token_type_ids" in names

    @property
    def cuts_beginnings(self) -> bool:
        """Whether a text that is too long loses its beginning, and not its end."""
        return bool(at(self.config, "truncation_side") == "left")

    @abstractmethod
    def prepared(self, texts: list[str]) -> list[str]:
        """Return the texts as the library's tokenizer takes them."""

    @abstractmethod
    def encode(self, sentences: list[str]) -> list[Encoding]:
        """Encode the sentences of a corpus, without special tokens; "[MASK]" is ordinary text, as in the original."""

    @abstractmethod
    def pieces(self, texts: list[str]) -> list[TextPieces]:
        """Return the pieces of each text, without special tokens around it, with their places in the text."""

    @abstractmethod
    def encode_flat(self, sentences: list[str]) -> FlatIds:
        """Return the ids of many sentences of a corpus, concatenated, and the number of ids in each sentence."""

    def words(self, texts: list[str]) -> list[list[Word]]:
        """Cut texts into words, each of which is made of pieces of the text.

        A combining mark belongs to the letter before it, and white space to the word before it; that at the beginning of a
        text is left out.
        """
        return [
            _words(text, pieces, self.begins(pieces)) for text, pieces in zip(texts, self.pieces(texts), strict=True)
        ]

    @abstractmethod
    def begins(self, pieces: TextPieces) -> NDArray[np.bool_]:
        """Return which pieces of a text begin a word."""

    @cached_property
    def borders(self) -> WordBorders:
        """Where words begin among tokens of this vocabulary."""
        vocab = self.exported.get_vocab()
        return self.borders_of(sorted(vocab, key=vocab.__getitem__))

    @abstractmethod
    def borders_of(self, tokens: Sequence[str]) -> WordBorders:
        """Return where words begin among tokens, by the texts of these."""

    @abstractmethod
    def files(self, max_length: int, has_types: bool) -> dict[str, str]:
        """Return the names and contents of the files that `transformers` and other programs read; the model may have no token types."""

    def encode_words(self, words: list[str]) -> list[list[int]]:
        """Return the ids of each word, as inside a running text."""
        return [
            encoding.ids for encoding in self.inputs.encode_batch_fast(self.prepared(words), add_special_tokens=False)
        ]


class WordPieceRules(WordRules):
    """BERT's WordPiece, by one of the rules that split a text into words."""

    is_of_bert = True
    special = BERTS
    between, pair_types = (SEP,), (0, 0, 0, 1, 1)

    def __init__(
        self, vocab: dict[str, int], lowercase: bool, strip_accents: bool | None, config: JsonObject | None = None
    ) -> None:
        self.lowercase, self.strip_accents, self.config = lowercase, strip_accents, config or {}
        self.exported = plain_bert(vocab, lowercase, strip_accents)

    def encode_flat(self, sentences: list[str]) -> FlatIds:
        """Return the ids of many sentences; long sentences are encoded in parts."""
        return encode_in_parts(sentences, self.name, lambda parts: flat_ids(self.encode(parts)))

    def begins(self, pieces: TextPieces) -> NDArray[np.bool_]:
        """Return which pieces begin a word of the pre-tokenizer, which cuts at white space, punctuation and Chinese characters."""
        return first_of_words(pieces)

    def borders_of(self, tokens: Sequence[str]) -> WordBorders:
        """Return that `##` pieces continue a word."""
        return WordBorders(np.array([token.startswith("##") for token in tokens]), np.zeros(len(tokens), np.bool_))

    def files(self, max_length: int, has_types: bool) -> dict[str, str]:
        """Return the files, which follow Hugging Face's rules, even if these are Google's, which files cannot express."""
        settings = {
            "clean_up_tokenization_spaces": False,
            "do_lower_case": self.lowercase,
            "model_max_length": max_length,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": True,
            "tokenizer_class": "BertTokenizer",
            **self.config,
            **({} if has_types else {"model_input_names": INPUT_NAMES[False]}),  # by default with token types
        }
        specials, vocab = self.special.settings(), self.exported.get_vocab()
        return {
            "tokenizer.json": self.exported.to_str(pretty=True) + "\n",
            "tokenizer_config.json": to_json(dict(sorted((settings | specials).items()))),
            "special_tokens_map.json": to_json(specials),
            "vocab.txt": "".join(f"{token}\n" for token in sorted(vocab, key=vocab.__getitem__)),
        }


class LibraryRules(WordRules):
    """Rules that the library alone applies, to texts as they are."""

    of_corpus: Tokenizer  # of the library, for which the name of a special token is text

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore a copy, for which the library forgets where special tokens are text."""
        vars(self).update(state)
        self.read_names()

    def read_names(self) -> None:
        """Tell the library where the name of a special token is text."""
        self.of_corpus.encode_special_tokens = True

    def prepared(self, texts: list[str]) -> list[str]:
        """Return the texts."""
        return texts

    def encode(self, sentences: list[str]) -> list[Encoding]:
        """Encode the sentences of a corpus, without special tokens."""
        return self.of_corpus.encode_batch_fast(sentences, add_special_tokens=False)


class HuggingFaceRules(LibraryRules, WordPieceRules):
    """The rules of the library, and so of every program that uses an exported model."""

    name = "hugging_face"

    def __init__(
        self, vocab: dict[str, int], lowercase: bool, strip_accents: bool | None, config: JsonObject | None = None
    ) -> None:
        super().__init__(vocab, lowercase, strip_accents, config)
        self.inputs = self.exported
        self.of_corpus = plain_bert(vocab, lowercase, strip_accents)
        self.read_names()

    def pieces(self, texts: list[str]) -> list[TextPieces]:
        """Return the pieces of each text; a long text is encoded in parts."""
        short = [text for text in texts if len(text) <= PART_CHARACTERS]
        encodings = self.inputs.encode_batch(short, add_special_tokens=False)
        whole = (TextPieces(encoding.ids, encoding.offsets, encoding.word_ids) for encoding in encodings)
        return [next(whole) if len(text) <= PART_CHARACTERS else encode_long(text, self.inputs) for text in texts]


class GoogleRules(WordPieceRules):
    """The rules of google-research/bert."""

    name = "google"

    def __init__(
        self, vocab: dict[str, int], lowercase: bool, strip_accents: bool | None, config: JsonObject | None = None
    ) -> None:
        super().__init__(vocab, lowercase, strip_accents, config)
        # for the output of `split_words`, in which "[MASK]" is ordinary text
        self.inputs = Tokenizer(WordPiece(vocab, unk_token=UNK, max_input_chars_per_word=MAX_INPUT_CHARS_PER_WORD))
        self.inputs.pre_tokenizer = WhitespaceSplit()
        self.inputs.post_processor = cls_and_sep(self.inputs, self.special)

    def prepared(self, texts: list[str]) -> list[str]:
        """Return the words of each text, separated by spaces."""
        return [split_words(text, self.lowercase) for text in texts]

    def encode(self, sentences: list[str]) -> list[Encoding]:
        """Encode the sentences of a corpus, without special tokens."""
        return self.inputs.encode_batch_fast(self.prepared(sentences), add_special_tokens=False)

    def pieces(self, texts: list[str]) -> list[TextPieces]:
        """Return the pieces of each text, with their places in the text, not in its words."""
        words = self.prepared(texts)
        encodings = self.inputs.encode_batch(words, add_special_tokens=False)
        return [self._located(*row) for row in zip(texts, words, encodings, strict=True)]

    def _located(self, text: str, words: str, encoding: Encoding) -> TextPieces:
        # `split_words` replaces a character by as many characters when it is alone as inside a text
        lengths = {character: len(split_words(character, self.lowercase)) for character in set(text)}
        origin: list[int] = np.repeat(np.arange(len(text)), [lengths[character] for character in text]).tolist()
        assert len(origin) == len(words), "a character alone and inside a text becomes as many characters"
        offsets = [(origin[start], origin[end - 1] + 1) for start, end in encoding.offsets]
        return TextPieces(encoding.ids, offsets, encoding.word_ids)


def rules_named(
    rules: Rules, lowercase: bool, strip_accents: bool | None
) -> type[HuggingFaceRules] | type[GoogleRules]:
    """Return the rules of this name; raises InputError if there are none, or they do not allow this `strip_accents`."""
    if rules not in get_args(Rules):
        raise InputError(f"rules={rules!r}: expected {' or '.join(get_args(Rules))}")
    if rules == "google" and strip_accents not in (None, lowercase):
        raise InputError(
            f"strip_accents={strip_accents}: by Google's rules accents are stripped exactly when text is lower-cased "
            f"(here {lowercase}); set tokenizer.rules=hugging_face"
        )
    return GoogleRules if rules == "google" else HuggingFaceRules


def first_of_words(pieces: TextPieces) -> NDArray[np.bool_]:
    """Return which pieces are the first ones of their words, by the numbers of the words."""
    return np.asarray(np.diff(np.array(pieces.word_ids, np.int64), prepend=-1) != 0)


def _words(text: str, pieces: TextPieces, begins: NDArray[np.bool_]) -> list[Word]:
    """Join the pieces of a text into words."""
    words: list[Word] = []
    for first, last in itertools.pairwise([*np.flatnonzero(begins).tolist(), len(begins)]):
        places = pieces.offsets[first:last]
        start, end = min(place[0] for place in places), max(place[1] for place in places)
        next_start = pieces.offsets[last][0] if last < len(begins) else len(text)
        words.append(Word(start, after_marks(text, end, next_start), pieces.ids[first:last]))
    return words


def after_marks(text: str, end: int, next_start: int) -> int:
    """Return the end of a piece with the marks after it, such as accents, that a tokenizer has removed; the next piece has its own."""
    while end < next_start and unicodedata.category(text[end])[0] == "M":
        end += 1
    return end


def flat_ids(encodings: Sequence[Encoding]) -> FlatIds:
    """Concatenate the ids of encodings."""
    ids = [encoding.ids for encoding in encodings]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths
