"""Google's words: equal to the original's algorithm, written down once more, on every kind of character."""

import json
import unicodedata
from collections.abc import Iterable

import pytest
from conftest import real_data
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bertkit.data.corpus.google_words import split_words

CJK = (
    range(0x4E00, 0xA000), range(0x3400, 0x4DC0), range(0x20000, 0x2A6E0), range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820), range(0x2B820, 0x2CEB0), range(0xF900, 0xFB00), range(0x2F800, 0x2FA20),
)  # fmt: skip
ASCII_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


def is_punctuation(character: str) -> bool:
    return character in ASCII_PUNCTUATION or unicodedata.category(character).startswith("P")


def original(text: str, lowercase: bool) -> list[str]:
    """The original's steps in order, word by word and character by character."""
    cleaned = ""
    for character in text:
        category = unicodedata.category(character)
        is_space = character in "\t\n\r" or category == "Zs"
        if character in "\0\ufffd" or (category in ("Cc", "Cf") and not is_space):
            continue
        cleaned += " " if is_space else character
    spaced = "".join(f" {c} " if any(ord(c) in block for block in CJK) else c for c in cleaned)
    words: list[str] = []
    for word in spaced.strip().split():
        if lowercase:
            word = "".join(c for c in unicodedata.normalize("NFD", word.lower()) if unicodedata.category(c) != "Mn")
        part = ""
        for character in word:
            if is_punctuation(character):
                words += [part, character]
                part = ""
            else:
                part += character
        words.append(part)
    return " ".join(words).split()


def hugging_face(text: str, lowercase: bool) -> list[str]:
    normalizer = BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase)
    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(text))]


@pytest.mark.parametrize(("text", "lowercase", "google", "theirs"), [
    ("Hello, World!", True, ["hello", ",", "world", "!"], None),
    ("Hello, World!", False, ["Hello", ",", "World", "!"], None),
    ("Café\u0301 ÅNGSTRÖM", True, ["cafe", "angstrom"], None),
    ("a中国b", True, ["a", "中", "国", "b"], None),
    ("a\u2028b\u00a0c\u3000d\x0be", True, ["a", "b", "c", "de"], None),
    ("[MASK]", False, ["[", "MASK", "]"], None),
    ("\ufeffa\u200bb\x00c\ufffdd\u00ade", True, ["abcde"], None),
    ("İI ıi", True, ["ii", "ıi"], None),
    ("ẞß", True, ["ßß"], None),
    # the table of the module, row by row
    ("ΟΔΟΣ ΣΑΣ Σ", True, ["οδος", "σας", "σ"], ["οδοσ", "σασ", "σ"]),
    ("ΟΔΟΣ, ΣΑΣ.Σ", True, ["οδος", ",", "σασ", ".", "ς"], None),  # a full stop within does not end the word
    ("a\ue000b", True, ["a\ue000b"], ["ab"]),
    ("a\u08e2b", True, ["ab"], ["a\u08e2b"]),
    ("a\U0002b820b", True, ["a", "\U0002b820", "b"], ["a\U0002b820b"]),
    ("a\u2e43b", True, ["a", "\u2e43", "b"], ["a\u2e43b"]),
    ("a\u166db", True, ["a\u166db"], ["a", "\u166d", "b"]),
    ("a\u0898b", True, ["ab"], ["a\u0898b"]),
    ("a\u1734b", True, ["a\u1734b"], ["ab"]),
    ("a\u0300\u0316 e\u0301", False, ["a\u0300\u0316", "e\u0301"], None),
])  # fmt: skip
def test_words_are_those_of_google_and_hugging_face(
    text: str, lowercase: bool, google: list[str], theirs: list[str] | None
) -> None:
    assert split_words(text, lowercase).split() == google == original(text, lowercase)
    if theirs is not None:
        assert hugging_face(text, lowercase) == theirs


def lines_of(codes: Iterable[int]) -> list[str]:
    """Every character alone, inside of a word, at its end, and beside a sigma; some dozens of them a line."""
    characters = [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
    return [
        " ".join(f"{c} a{c}B É{c} Σ{c}Σ" for c in characters[first : first + 64])
        for first in range(0, len(characters), 64)
    ]


def check(codes: Iterable[int]) -> None:
    for line in lines_of(codes):
        for lowercase in (True, False):
            assert split_words(line, lowercase).split() == original(line, lowercase), line


def test_characters_below_u3000_are_split_as_by_google() -> None:
    """Every script in daily use, all white space, controls and combining marks below U+3000, and samples above."""
    check(range(0x3000))
    check(range(0x3000, 0x110000, 101))


@pytest.mark.slow
def test_every_character_is_split_as_by_google() -> None:
    check(range(0x110000))


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False])
def test_every_difference_from_hugging_face_is_documented(lowercase: bool) -> None:
    """The characters on which both sides differ are those of the table, by category; a newer library may differ less."""
    results: dict[str, int] = {}
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        character = chr(code)
        for text in (character, f"a{character}b"):
            if split_words(text, lowercase).split() != hugging_face(text, lowercase):
                category = unicodedata.category(character)
                results[category] = results.get(category, 0) + 1
                break
    punctuation = sum(results.pop(category, 0) for category in ("Pd", "Pe", "Po", "Ps"))
    common = {"Cf": 13, "Co": 137_468, "Lo": 256, "So": 1}
    more = {"Cn": 55, "Mc": 2, "Mn": 384} if lowercase else {"Mn": 1}
    assert (results, punctuation) == ({**common, **more}, 104)


def test_real_text_of_many_languages() -> None:
    files = sorted(real_data("text", "udhr").glob("*.txt"))
    assert len(files) == 36
    num_words = 0
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines()[:40]:
            for lowercase in (True, False):
                words = split_words(line, lowercase).split()
                assert words == original(line, lowercase)
                num_words += len(words)
    assert num_words > 50_000


def test_cases_of_upstream_tests() -> None:
    lines = real_data("tokenization", "upstream_cases.jsonl").read_text(encoding="utf-8").splitlines()
    plain = {"do_lower_case", "tokenize_chinese_chars"}
    cases = [case for case in map(json.loads, lines) if case["kind"] == "basic" and set(case["options"]) <= plain]
    assert len(cases) == 9
    for case in cases:
        assert split_words(case["input"], case["options"]["do_lower_case"]).split() == case["expected"]
