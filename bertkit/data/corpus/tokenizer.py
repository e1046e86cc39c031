"""The WordPiece tokenizer: text to ids and back, and the files that other programs read.

It uses the `tokenizers` library, with BERT's settings. A tokenizer splits text into words either by Hugging Face's rules, as
other programs do with an exported model, or by Google's rules; `google_words.py` lists the differences.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from bertkit.base.errors import InputError
from bertkit.base.files import building_dir, to_json
from bertkit.base.text_files import read_json
from bertkit.data.corpus.long_texts import FlatIds, TextPieces, encode_in_parts
from bertkit.data.corpus.vocabulary import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK, learn_vocabulary, read_vocabulary
from bertkit.data.corpus.word_rules import GoogleRules, HuggingFaceRules, WordRules

Rules = Literal["hugging_face", "google"]
MAX_LENGTH = 512  # in the files of a prepared dataset
RULES_FILE = "rules.json"  # in a prepared dataset; without it the rules are Hugging Face's


@dataclass(frozen=True)
class VocabFacts:
    """The size of the vocabulary, the special ids, and for every id whether it is a `##` piece."""

    size: int
    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    is_continuation: NDArray[np.bool_]


class Tokenizer:
    """A WordPiece tokenizer: `tokenizer("a text", "its pair")` returns ids like Hugging Face's."""

    def __init__(
        self, vocab: dict[str, int], lowercase: bool, strip_accents: bool | None = None, rules: Rules = "hugging_face"
    ) -> None:
        """Build a tokenizer from a mapping of tokens to ids.

        Raises:
            InputError: a special token is missing, the ids are not 0 to size - 1, the rules are unknown, or they do not allow
                this `strip_accents`.
        """
        if rules not in get_args(Rules):
            raise InputError(f"rules={rules!r}: expected {' or '.join(get_args(Rules))}")
        if rules == "google" and strip_accents not in (None, lowercase):
            raise InputError(
                f"strip_accents={strip_accents}: by Google's rules accents are stripped exactly when text is lower-cased "
                f"(here {lowercase}); set tokenizer.rules=hugging_face"
            )
        if missing := " ".join(token for token in SPECIAL_TOKENS if token not in vocab):
            expected = f"BERT needs {' '.join(SPECIAL_TOKENS)}: add them or choose another vocabulary"
            raise InputError(f"vocabulary of {len(vocab)} tokens has no {missing}; {expected}")
        if sorted(vocab.values()) != list(range(len(vocab))):
            raise InputError(f"vocabulary of {len(vocab)} tokens: its ids are not 0 to {len(vocab) - 1}")
        self.lowercase, self.strip_accents, self.rules = lowercase, strip_accents, rules
        self.max_length: int | None = None  # tokens that the model reads; None for all its positions
        own = HuggingFaceRules(vocab, lowercase, strip_accents)
        self.backend = own.inputs
        self.words_by: WordRules = GoogleRules(vocab, lowercase) if rules == "google" else own

    @cached_property
    def vocab(self) -> list[str]:
        """The tokens in the order of their ids."""
        return [token for token, _ in sorted(self.backend.get_vocab().items(), key=lambda item: item[1])]

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return int(self.backend.get_vocab_size())

    @cached_property
    def facts(self) -> VocabFacts:
        """The special ids, and which ids are `##` pieces."""
        pad, unk, cls, sep, mask = (self.vocab.index(token) for token in SPECIAL_TOKENS)
        is_continuation = np.array([token.startswith("##") for token in self.vocab])
        return VocabFacts(self.vocab_size, pad, unk, cls, sep, mask, is_continuation)

    def encode_document(self, document: list[str]) -> list[list[int]]:
        """Return the ids of each sentence, without special tokens; "[MASK]" in a sentence is ordinary text."""
        return [encoding.ids for encoding in self.encode_sentences(document)]

    def encode_sentences(self, sentences: list[str]) -> list[Encoding]:
        """Return the library's encoding of each sentence of a corpus; uses all cores."""
        return self.words_by.encode(sentences)

    def encode_flat(self, sentences: list[str]) -> FlatIds:
        """Return the ids of many sentences of a corpus, concatenated, and the number of ids in each sentence."""
        return encode_in_parts(sentences, self.rules, self._encode_flat)

    def _encode_flat(self, sentences: list[str]) -> FlatIds:
        ids = [encoding.ids for encoding in self.encode_sentences(sentences)]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum())), lengths

    def encode_with_offsets(self, texts: list[str]) -> list[TextPieces]:
        """Return the pieces of each text, without special tokens, with their places in the text."""
        return self.words_by.pieces(texts)

    def words(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """Cut texts into words as the model's pre-tokenizer does: at white space, punctuation and Chinese characters.

        Return the (first, last) character of each word of each text, `last` excluded; a combining accent belongs to the letter
        before it.
        """
        words_of_texts = []
        for text, pieces in zip(texts, self.words_by.pieces(texts), strict=True):
            words: dict[int | None, tuple[int, int]] = {}
            for word, (start, end) in zip(pieces.word_ids, pieces.offsets, strict=True):
                while end < len(text) and unicodedata.combining(text[end]):
                    end += 1
                words[word] = (min(start, words.get(word, (start, end))[0]), end)
            words_of_texts.append(list(words.values()))
        return words_of_texts

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Decode ids to readable text."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

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
            "token_type_ids": [encoding.type_ids for encoding in encodings],
            "attention_mask": [encoding.attention_mask for encoding in encodings],
        }
        if return_tensors is not None:
            return _as_arrays(columns, return_tensors)
        return {name: rows[0] for name, rows in columns.items()} if isinstance(text, str) else columns

    def _encode_batch(
        self, texts: list[str], pairs: list[str] | None, padding: bool, max_length: int | None
    ) -> list[Encoding]:
        words, backend = self.words_by, self.words_by.inputs
        first = words.prepared(texts)
        inputs = first if pairs is None else list(zip(first, words.prepared(pairs), strict=True))
        if max_length is not None:
            backend.enable_truncation(max_length)
        if padding:
            backend.enable_padding(pad_id=self.facts.pad, pad_token=PAD)
        try:
            return backend.encode_batch(inputs)
        finally:
            backend.no_padding()
            backend.no_truncation()

    def files(self, longest: int) -> dict[str, str]:
        """Return the names and contents of the files that `transformers` and other programs read.

        `longest` is the number of the model's positions.
        They follow Hugging Face's rules, even if this tokenizer has Google's, which these files cannot express.
        """
        specials = {"cls_token": CLS, "mask_token": MASK, "pad_token": PAD, "sep_token": SEP, "unk_token": UNK}
        settings = {
            "clean_up_tokenization_spaces": False,
            "do_lower_case": self.lowercase,
            "model_max_length": min(self.max_length or longest, longest),
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": True,
            "tokenizer_class": "BertTokenizer",
        }
        return {
            "tokenizer.json": self.backend.to_str(pretty=True) + "\n",
            "tokenizer_config.json": to_json(dict(sorted((settings | specials).items()))),
            "special_tokens_map.json": to_json(specials),
            "vocab.txt": "".join(f"{token}\n" for token in self.vocab),
        }

    def save(self, directory: Path) -> None:
        """Write the tokenizer's files, and the rules, into a prepared dataset; they appear together, by a rename."""
        with building_dir(directory) as partial:
            for name, content in self.files(MAX_LENGTH).items():
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


def train_wordpiece(
    sentences: Callable[[], Iterable[str]],
    vocab_size: int,
    lowercase: bool,
    min_frequency: int,
    rules: Rules = "hugging_face",
) -> Tokenizer:
    """Learn a vocabulary with `learn_vocabulary`, which always follows Hugging Face's rules, and build its tokenizer."""
    return Tokenizer(learn_vocabulary(sentences, vocab_size, lowercase, min_frequency), lowercase, rules=rules)


def load_tokenizer(path: Path, lowercase: bool | None = None, rules: Rules | None = None) -> Tokenizer:
    """Load `vocab.txt`, `tokenizer.json`, or a directory with one of them.

    By default, text is lower-cased as the files say (`do_lower_case`, or the normalizer); a `vocab.txt` without these files is
    cased if it contains an upper-case letter, or is the vocabulary of bert-base-chinese. The default rules are those stored in
    a prepared dataset, in other directories Hugging Face's. Raises InputError if there is no such file, or it is not a
    WordPiece vocabulary that BERT can use.
    """
    rules = rules or _stored_rules(path / RULES_FILE)
    vocabulary = read_vocabulary(path)
    try:
        is_lowercase = vocabulary.lowercase if lowercase is None else lowercase
        return Tokenizer(vocabulary.ids, is_lowercase, vocabulary.strip_accents, rules)
    except InputError as error:
        raise InputError(f"{vocabulary.path}: {error}") from None


def _stored_rules(path: Path) -> Rules:
    if not path.is_file():
        return "hugging_face"
    rules: Rules = read_json(path)
    if rules not in get_args(Rules):
        raise InputError(f"{path}: {rules!r}: expected {' or '.join(get_args(Rules))}; restore it")
    return rules
