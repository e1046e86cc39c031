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
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder

from bertkit.base.errors import InputError
from bertkit.base.files import to_json
from bertkit.base.text_files import JsonObject, read_json, read_whole
from bertkit.base.typed_settings import at, refuse
from bertkit.data.corpus.long_texts import FlatIds, TextPieces
from bertkit.data.corpus.vocabulary import CLS, MASK, PAD, SEP, UNK
from bertkit.data.corpus.word_rules import (
    INPUT_NAMES,
    LibraryRules,
    Places,
    SpecialTokens,
    WordBorders,
    cls_and_sep,
    first_of_words,
    flat_ids,
)
from bertkit.data.library_calls import library_call, opened

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
OF_BERT = {"model": "WordPiece", "normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}


class FileRules(LibraryRules):
    """What a `tokenizer.json` says."""

    name = "hugging_face"
    is_of_bert = False

    def __init__(self, library: Tokenizer, content: JsonObject, special: SpecialTokens, config: JsonObject) -> None:
        """Prepare the library's tokenizer, with the content of its file; `config` is the content of `tokenizer_config.json`."""
        self.special, self.config = special, config
        self.prefix = at(content, "model.continuing_subword_prefix")
        self.exported = self.inputs = _around_texts(library, special)
        self.of_corpus = Tokenizer.from_str(_of_texts(content, special))
        self.of_corpus.no_truncation()
        self.of_corpus.encode_special_tokens = True
        self.between = tuple(self.exported.encode("", "").tokens[1:-1])
        self.kind = type(self.exported.model).__name__
        two = self.of_corpus.encode("a a", add_special_tokens=False)
        self.has_words = len({*two.word_ids}) > 1  # whether the library cuts texts into words
        # the space to put before a text; none if the library adds it
        self.space = "" if "".join(two.tokens).startswith((BYTE_SPACE, SPACE_MARK)) else " "
        normalizer = self.exported.normalizer
        self.lowercase = normalizer is not None and normalizer.normalize_str("A") == "a"

    def encode_words(self, words: list[str]) -> list[list[int]]:
        """Return the ids of each word after a space, which is a part of the word in many vocabularies."""
        return [encoding.ids for encoding in self._after_spaces(words)]

    def encode_flat(self, sentences: list[str]) -> FlatIds:
        """Return the ids of many sentences, each after a space, if its script has spaces."""
        return flat_ids(self._after_spaces(sentences))

    def _after_spaces(self, texts: list[str]) -> list[Encoding]:
        return self.encode([text if not text or is_unspaced(text) else f"{self.space}{text}" for text in texts])

    def pieces(self, texts: list[str]) -> list[TextPieces]:
        """Return the pieces of each text; the space before a word is not one of its characters.

        Words are those of the library, if it cuts texts into words.
        """
        encodings = self.of_corpus.encode_batch(texts, add_special_tokens=False)
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
        """Return the files: the one that was read, its settings, and the special tokens."""
        specials = self.special.settings()
        usual = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        own = {"model_max_length": max_length, "model_input_names": INPUT_NAMES[has_types]}
        settings = usual | specials | self.config | own
        return {
            "tokenizer.json": self.exported.to_str(pretty=True) + "\n",
            "tokenizer_config.json": to_json(dict(sorted(settings.items()))),
            "special_tokens_map.json": to_json(specials),
        }


def rules_of_file(path: Path) -> FileRules | None:
    """Read a `tokenizer.json`, given itself or by its directory; None if there is none, or it is BERT's WordPiece.

    Raises InputError if the library cannot read it, a special token is missing, or it does not put one before texts and one after them.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if file.suffix != ".json" or not file.is_file():
        return None
    content = read_json(file)
    refuse(not isinstance(content, dict) and f"{file}: model.type=None: not a tokenizer of the library `tokenizers`")
    if all(at(content, f"{part}.type") in (usual, None) for part, usual in OF_BERT.items()) and at(
        content, "model.type"
    ):
        return None
    config = {k: v for k, v in _json_of(file.with_name("tokenizer_config.json")).items() if k != "auto_map"}  # code
    named = _json_of(file.with_name("special_tokens_map.json"))
    text = read_whole(file)
    library = opened(file, text, content)
    try:
        with library_call():
            return FileRules(library, content, _special_tokens(library, config, named), config)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def _json_of(path: Path) -> JsonObject:
    content = read_json(path) if path.is_file() else {}
    return content if isinstance(content, dict) else {}


def _special_tokens(library: Tokenizer, *settings: JsonObject) -> SpecialTokens:
    """Find the special tokens by their roles; a vocabulary that knows every text may lack an unknown token."""
    around = library.encode("").tokens
    template = {"cls": around[0], "sep": around[-1]} if len(around) == 2 else {}

    def names(role: str) -> Iterator[str]:
        yield template.get(role, "")
        for named in settings:
            match named.get(f"{role}_token"):
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


def _around_texts(library: Tokenizer, special: SpecialTokens) -> Tokenizer:
    """Return the library's tokenizer without padding and truncation; one that adds no special tokens adds BERT's."""
    library.no_padding()
    library.no_truncation()
    known = {token.content for token in library.get_added_tokens_decoder().values()}
    library.add_special_tokens([token for token in vars(special).values() if token not in known])
    if not library.encode("").ids:
        library.post_processor = cls_and_sep(library, special)
    cls, sep = special.cls, special.sep
    single, pair = library.encode("").tokens, library.encode("", "").tokens
    refuse(
        single != [cls, sep]
        and f"the post_processor makes {' '.join(single)} of an empty text; bertkit's models read {cls} {sep}",
        (len(pair) < 3 or (pair[0], pair[-1]) != (cls, sep))
        and f"the post_processor makes {' '.join(pair)} of 2 empty texts; bertkit's models read {cls} {sep} {sep}",
    )
    return library


def _of_texts(content: JsonObject, special: SpecialTokens) -> str:
    """Return the file for texts in which the name of a special token is text: no piece of a Unigram model has it."""
    names = {*vars(special).values()}
    match content:
        case {"model": {"type": "Unigram", "vocab": list() as pieces}, "added_tokens": list() as added}:
            pieces[:] = [[f"{NEVER}{piece}" if piece in names else piece, score] for piece, score in pieces]
            added[:] = [token for token in added if token["content"] not in names]
    return json.dumps(content)


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
