"""Text to words by Google's rules: the same words as by the `BasicTokenizer` of google-research/bert.

The `tokenizers` library, and so every program that uses an exported model, follows Hugging Face's rules. The table lists all
differences. They were measured for every code point, alone and inside words, with tokenizers 0.23 and Python 3.11 (Unicode 14;
the library has older Unicode tables):

| input | by Google's rules | by Hugging Face's rules | example |
|---|---|---|---|
| a word of 101 to 200 characters | its pieces | `[UNK]` | `"x" * 101` |
| the name of a special token | text: `[`, `mask`, `]` | `[MASK]`; text when a corpus is prepared | `the[MASK]word` |
| capital sigma at the end of a word, lower-cased | final sigma | the other sigma | `ΟΔΟΣ`: `οδος` / `οδοσ` |
| private use (Co, 137,468 characters) | kept | dropped | `a\\ue000b`: 1 word of 3 / of 2 characters |
| 13 newer format characters (Cf) | dropped | kept | `a\\u08e2b`: `ab` / 1 word of 3 characters |
| 256 ideographs, U+2B820 to U+2B91F | each a word | not split | `a𫠠b`: 3 words / 1 word |
| 104 newer punctuation characters | each a word | not split | `a⹃b`: 3 words / 1 word |
| U+166D and U+111C9, punctuation once | not split | each a word | `a᙭b`: 1 word / 3 words |
| 384 newer accents (Mn), lower-cased | dropped | kept | `a\\u0898b`: `ab` / 1 word of 3 characters |
| U+1734 and U+11938, accents once, lower-cased | kept | dropped | `a\\u1734b`: 1 word of 3 / of 2 characters |
| 55 letters newer than Python's table | unchanged | lower-cased | U+1C89: unchanged / U+1C8A |

Source: google-research/bert tokenization.py (commit eedf571).
"""

import unicodedata
from collections.abc import Callable

# CJK ideographs, each a word of its own
_CJK = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
MAX_INPUT_CHARS_PER_WORD = 200  # a longer word is [UNK]; Hugging Face's limit is 100


class _Replacements(dict[int, str]):
    """Replacements of characters for `str.translate`, computed when a character first occurs."""

    def __init__(self, replace: Callable[[str], str]) -> None:
        self.replace = replace

    def __missing__(self, code: int) -> str:
        self[code] = text = self.replace(chr(code))
        return text


def _cleaned(character: str) -> str:
    """Return the replacement of a character before lower-casing.

    White space becomes a space, control characters are removed, and CJK ideographs get a space on both sides.
    """
    code, category = ord(character), unicodedata.category(character)
    if character in "\t\n\r" or category == "Zs":
        return " "
    if code in (0, 0xFFFD) or category in ("Cc", "Cf"):
        return ""
    return f" {character} " if any(first <= code <= last for first, last in _CJK) else character


def _split(character: str) -> str:
    """Return the replacement of a character after lower-casing: punctuation gets a space on both sides."""
    is_symbol = character.isascii() and not character.isalnum() and character.isprintable() and character != " "
    return f" {character} " if is_symbol or unicodedata.category(character).startswith("P") else character


_CLEANED = _Replacements(_cleaned)
_SPLIT = {
    False: _Replacements(_split),
    True: _Replacements(lambda character: "" if unicodedata.category(character) == "Mn" else _split(character)),
}


def split_words(text: str, lowercase: bool) -> str:
    """Separate the words of a text with white space.

    With `lowercase`, the text is lower-cased and decomposed (NFD), and accents (category Mn) are removed. The original does
    this word by word. The result is the same, since characters of other words change neither the lower-casing (a final sigma
    depends on its neighbours) nor the decomposition.
    """
    text = text.translate(_CLEANED)
    if lowercase:
        text = text.lower()
        if not text.isascii():
            text = unicodedata.normalize("NFD", text)
    return text.translate(_SPLIT[lowercase])
