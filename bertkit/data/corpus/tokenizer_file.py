"""Tokenizers of any kind: a `tokenizer.json` with BPE, Unigram or another WordPiece than BERT's.

The library does what the file says. bertkit needs the special tokens by their roles, whatever their names are: those around a text
and between two texts from the post-processor, the others from `tokenizer_config.json` or `special_tokens_map.json`.
"""

import functools
import json
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder

from bertkit.base.errors import InputError, refusing
from bertkit.base.files import to_json
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import at, refuse
from bertkit.data.corpus.long_texts import FlatIds, TextPieces
from bertkit.data.corpus.word_rules import LibraryRules, Places, WordBorders, first_of_words, flat_ids
from bertkit.data.library_calls import library_call
from bertkit.data.tokenizers.added_tokens import name_of
from bertkit.data.tokenizers.published import INPUT_NAMES, Published
from bertkit.data.tokenizers.special_tokens import CLS, MASK, PAD, SEP, UNK, SpecialTokens, cls_and_sep

# the usual names of the special tokens, where no file says their roles
USUAL = {
    "pad": (PAD, "<pad>"),
    "unk": (UNK, "<unk>"),
    "cls": (CLS, "<s>"),
    "sep": (SEP, "</s>"),
    "mask": (MASK, "<mask>"),
}
NEVER = "\uffff"  # no character
BYTE_SPACE, SPACE_MARK = "Ġ", "▁"  # of byte-level BPE and SentencePiece, at the beginning of a word after a space
# characters of scripts without spaces between words: Thai, Lao, Tibetan and Burmese; Khmer; Japanese and Chinese
is_unspaced = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
).match
_byte_of = re.compile("<0x([0-9A-F]{2})>").fullmatch  # the name of a token for a byte of a rare character
PART_OF_CHARACTER = "\ufffd"  # decoded from some of its bytes
# code, paths, and tokens that tokenizer.json has
NOT_WRITTEN = ("added_tokens_decoder", "auto_map", "name_or_path", "special_tokens_map_file", "tokenizer_file")
EXTRA = "additional_special_tokens"


class FileRules(LibraryRules):
    """What a `tokenizer.json` says."""

    name = "hugging_face"
    is_of_bert = False

    def __init__(self, library: Tokenizer, content: JsonObject, special: SpecialTokens, config: JsonObject) -> None:
        """Prepare the library's tokenizer, with the content of its file; `config` is the content of `tokenizer_config.json`."""
        self.special, self.config = special, config
        self.prefix = at(content, "model.continuing_subword_prefix")
        self.exported = self.inputs = library
        _check_template(library, special)
        self.is_split = config.get("split_special_tokens") is True
        bare = {**content, "post_processor": None, "truncation": None, "padding": None}
        self.untrimmed = Tokenizer.from_str(json.dumps(bare))
        self.of_corpus = Tokenizer.from_str(json.dumps(_of_corpus(bare, special, self.is_split)))
        self.read_names()
        self.between = tuple(library.encode("", "").tokens[1:-1])
        self.pair_types = _pair_types(library, len(self.between))
        own = {*vars(special).values()}
        whole = (token for token in content["added_tokens"] if not (self.is_split and token["special"]))
        self.names = tuple(token["content"] for token in whole)  # tokens in an input
        self.added = tuple(name for name in self.names if name not in own)  # and in a corpus
        self.kind = type(self.exported.model).__name__
        two = self.of_corpus.encode("a a", add_special_tokens=False)
        self.has_words = len({*two.word_ids}) > 1  # whether the library cuts texts into words
        # the space to put before a text; none if the library adds it
        self.space = "" if "".join(two.tokens).startswith((BYTE_SPACE, SPACE_MARK)) else " "
        normalizer = self.exported.normalizer
        self.lowercase = normalizer is not None and normalizer.normalize_str("A") == "a"

    def read_names(self) -> None:
        """Tell the library where the name of a special token is text: also in inputs, if the file says so."""
        super().read_names()
        self.exported.encode_special_tokens = self.untrimmed.encode_special_tokens = self.is_split

    def encode_words(self, words: list[str]) -> list[list[int]]:
        """Return the ids of each word after a space, which is a part of the word in many vocabularies."""
        encodings = self.untrimmed.encode_batch_fast(self._after_spaces(words, self.names), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_flat(self, sentences: list[str]) -> FlatIds:
        """Return the ids of many sentences, each after a space, if its script has spaces."""
        return flat_ids(self.encode(self._after_spaces(sentences, self.added)))

    def _after_spaces(self, texts: list[str], names: tuple[str, ...]) -> list[str]:
        def is_bare(text: str) -> bool:
            return not text or bool(is_unspaced(text)) or text.startswith(names)

        return [text if is_bare(text) else f"{self.space}{text}" for text in texts]

    def pieces(self, texts: list[str]) -> list[TextPieces]:
        """Return the pieces of each text; the space before a word is not one of its characters.

        Words are those of the library, if it cuts texts into words.
        """
        encodings = self.untrimmed.encode_batch(texts, add_special_tokens=False)
        return [
            TextPieces(
                one.ids,
                _stripped(text, one.offsets),
                one.word_ids if self.has_words else np.cumsum(self.borders.begins(one.ids)).tolist(),
            )
            for text, one in zip(texts, encodings, strict=True)
        ]

    def begins(self, pieces: TextPieces) -> NDArray[np.bool_]:
        """Return which pieces begin a word: as `borders_of` says, if the vocabulary marks spaces, and always after white space."""
        is_marked = not self.prefix and self.borders.continues.any()
        begins = self.borders.begins(pieces.ids) if is_marked else first_of_words(pieces)
        is_white = np.array([start >= end for start, end in pieces.offsets], np.bool_)
        begins[:1] = True
        begins[1:] |= is_white[:-1]
        return begins & ~is_white

    @cached_property
    def borders(self) -> WordBorders:
        """Where words begin among tokens of this vocabulary; an added token is a word of its own."""
        borders = super().borders
        added = np.array([self.exported.token_to_id(token) for token in self.names], np.int64)
        borders.continues[added], borders.ends[added] = False, True
        return borders

    def borders_of(self, tokens: Sequence[str]) -> WordBorders:
        """Return that tokens with the prefix continue a word, or those that begin with a letter or a digit and no mark of a space.

        A word ends with a sign, and is a single piece in a script without spaces. In a vocabulary with neither prefix nor marks no
        token continues a word.
        """
        if self.prefix:
            return WordBorders(
                np.array([token.startswith(str(self.prefix)) for token in tokens]), np.zeros(len(tokens), np.bool_)
            )
        if any(token.startswith(BYTE_SPACE) for token in tokens):
            decoder = ByteLevelDecoder()
            texts = [decoder.decode([token]) for token in tokens]
        elif any(token.startswith(SPACE_MARK) for token in tokens):
            texts = [_text_of(token) for token in tokens]
        else:
            texts = [" "] * len(tokens)
        ends = [not text.endswith(" ") and not _is_of_word(text[-1:]) for text in texts]
        return WordBorders(np.array([_is_of_word(text[:1]) for text in texts]), np.array(ends))

    def files(self, max_length: int, has_types: bool) -> dict[str, str]:
        """Return the files: the tokenizer, its settings, and the special tokens. Every version of `transformers` reads it as it is."""
        specials = self.special.settings()
        own = {
            "clean_up_tokenization_spaces": self.config.get("clean_up_tokenization_spaces", False),
            "model_input_names": INPUT_NAMES[has_types],
            "model_max_length": max_length,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        if isinstance(extra := self.config.get(EXTRA), list):
            own[EXTRA] = [name_of(token) for token in extra]  # tokenizer.json has their flags
        settings = specials | {key: value for key, value in self.config.items() if key not in NOT_WRITTEN} | own
        return {
            "tokenizer.json": self.exported.to_str(pretty=True) + "\n",
            "tokenizer_config.json": to_json(dict(sorted(settings.items()))),
            "special_tokens_map.json": to_json(specials),
        }


def file_rules(published: Published) -> FileRules:
    """Return the rules of a tokenizer that was read.

    Raises InputError if a special token is missing, or it does not put one before texts and one after them.
    """
    library, config = published.library, published.config
    with refusing(InputError, lambda error: f"{published.path}: {error}"), library_call():
        special = _special_tokens(library, config)
        if not published.is_of_model and not library.encode("").ids:
            library.post_processor = cls_and_sep(library, special)
        return FileRules(library, published.content, special, config)


def _special_tokens(library: Tokenizer, settings: JsonObject) -> SpecialTokens:
    """Find the special tokens by their roles; a vocabulary that knows every text may lack an unknown token."""
    around = library.encode("").tokens
    template = {"cls": around[0], "sep": around[-1]} if len(around) == 2 else {}

    def names(role: str) -> Iterator[str]:
        yield template.get(role, "")
        match settings.get(f"{role}_token"):
            case str() as name:
                yield name
            case {"content": str() as name}:
                yield name
        yield from USUAL[role]

    vocab = library.get_vocab()
    found = {role: next((name for name in names(role) if name in vocab), "") for role in USUAL}
    found["unk"] = found["unk"] or found["pad"]
    if missing := [role for role, name in found.items() if not name]:
        raise InputError(
            f"no special token for {', '.join(missing)}; name it in tokenizer_config.json, such as "
            f'"{missing[0]}_token": "{USUAL[missing[0]][0]}"'
        )
    return SpecialTokens(**found)


def _check_template(library: Tokenizer, special: SpecialTokens) -> None:
    """Raise InputError unless the tokenizer puts [CLS] before a text and [SEP] after it, both with token type 0."""
    cls, sep = special.cls, special.sep
    one, two = library.encode(""), library.encode("", "")
    single, pair = one.tokens, two.tokens
    refuse(
        single != [cls, sep]
        and f"the post_processor makes {' '.join(single) or 'nothing'} of an empty text; bertkit's models read {cls} {sep}",
        (len(pair) < 3 or (pair[0], pair[-1]) != (cls, sep))
        and f"the post_processor makes {' '.join(pair)} of 2 empty texts; bertkit's models read {cls} {sep} {sep}",
        any(one.type_ids)
        and f"the post_processor gives a text the token types {one.type_ids}; bertkit's models read 0",
    )


def _pair_types(library: Tokenizer, num_between: int) -> tuple[int, ...]:
    """Return the token types of [CLS], the first text, the tokens between, the second text and [SEP]."""
    vocab = library.get_vocab()
    known = (text for text in ("a", ".", *vocab) if library.encode(text, add_special_tokens=False).ids)
    text = next(known, "")
    pair = library.encode(text, text)
    of_texts = [
        next((kind for kind, own in zip(pair.type_ids, pair.sequence_ids, strict=True) if own == n), n) for n in (0, 1)
    ]
    special = [kind for kind, own in zip(pair.type_ids, pair.sequence_ids, strict=True) if own is None]
    refuse(
        len(special) < num_between + 2
        and f"the post_processor makes {' '.join(pair.tokens)} of 2 texts, with fewer special tokens than for empty ones; repair it"
    )
    return (special[0], of_texts[0], *special[1 : 1 + num_between], of_texts[1], special[-1])


def _of_corpus(content: JsonObject, special: SpecialTokens, is_split: bool) -> JsonObject:
    """Return the file for texts in which the name of a special token is text: no piece of a Unigram model has it.

    Other added tokens are tokens there too, unless special tokens are split.
    """
    names = {*vars(special).values()}
    added = [
        token if is_split else {**token, "special": token["content"] in names} for token in content["added_tokens"]
    ]
    content = {**content, "added_tokens": added}
    match content:
        case {"model": {"type": "Unigram", "vocab": list() as pieces} as model}:
            kept = [token for token in added if token["content"] not in names]
            vocab = [[f"{NEVER}{piece}" if piece in names else piece, score] for piece, score in pieces]
            content |= {"added_tokens": kept, "model": {**model, "vocab": vocab}}
    return content


def _text_of(token: str) -> str:
    """Return the text of a token of SentencePiece, which may be a byte."""
    byte = _byte_of(token)
    return token.replace(SPACE_MARK, " ") if byte is None else bytes.fromhex(byte[1]).decode(errors="replace")


@functools.cache
def _is_of_word(character: str) -> bool:
    """Whether a character, or a part of one, is no sign, and has no word of its own."""
    is_letter = unicodedata.category(character or " ")[0] in "LMN" and not is_unspaced(character)
    return is_letter or character == PART_OF_CHARACTER


def _stripped(text: str, places: Iterable[tuple[int, int]]) -> Places:
    """Return places in a text that begin after white space and end before it; that of white space alone is empty, before it."""
    filled = [place for place, character in enumerate(text) if not character.isspace()]
    nexts, lasts = [*filled, len(text)], [0, *(place + 1 for place in filled)]
    stripped = ((nexts[bisect_left(filled, start)], lasts[bisect_left(filled, end)]) for start, end in places)
    return [(min(start, end), end) for start, end in stripped]
