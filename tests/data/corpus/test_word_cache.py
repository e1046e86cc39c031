"""The word cache gives what the tokenizers library gives, token for token, whatever the text."""

import itertools

import numpy as np
import pytest
from conftest import real_data
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data.corpus.tokenizer import SPECIAL_TOKENS, Tokenizer, load_tokenizer, wordpiece
from bertkit.data.corpus.word_cache import TOKENS_PER_ENTRY, WordCache

# Every kind of character that a step of the tokenizer treats in its own way.
CHARACTERS = [
    *" \t\r\x0b\x0c\x85\xa0\u1680\u2000\u2001\u2009\u2028\u2029\u202f\u205f\u3000",  # white space, for some
    *"\0\x01\x1c\x1f\x7f\x9f\xad\u200b\u200d\u2060\ufeff\ufffd\ue000\U000e0001",  # control, format, private use
    *"aZ09é\u0301\u0308\u0327\u093e\u1734İıßẞΣσςǅﬁ①½ÅÅ",  # letters, marks on them, odd case, decompositions
    *"!\"#'[]_`~‘’“”–—…«»؟।¿。、",  # punctuation
    *"中𠀀𪜀豈々ぁア한ᄒ",  # what is a word of its own, and what is not
    *"😀🏽♥™€",
]
HOSTILE = [
    "", " ", "  ", "\n", "a\nb", " \n ", "\t", *SPECIAL_TOKENS, "[mask]", "a[MASK]b", "[ MASK ]", "##ing", "# #",
    "x" * 100, "x" * 101, "x" * 200, "x" * 201, "X" * 101 + "," + "y" * 100, "…" * 101, "a" + "\u0301" * 101, "Word word, \"word\"",
    "ΟΔΟΣ ΟΔΟΣ, ΟΔΟΣ\u00a0ΟΔΟΣ ΟΔΟΣ\u0301", "e\u0301 \u0301e  \u0301", "don’t – “stop”… 3,141.59 a_b",
    *("".join(pair) for pair in itertools.product(CHARACTERS, repeat=2)),
    *(f"a{one}b" for one in CHARACTERS), *(f"中{one} {one}!" for one in CHARACTERS),
]  # fmt: skip
VOCABULARIES = ["bert-base-uncased", "bert-base-cased", "bert-base-multilingual-cased", "bert-base-chinese"]


def made_up(lowercase: bool, rules: str) -> Tokenizer:
    """A vocabulary of short pieces of all the characters above, so that few tokens are unknown."""
    letters = sorted({part for one in CHARACTERS for part in (one, one.lower(), one.upper()) if len(part.strip()) == 1})
    letters += [a + b for a, b in itertools.product("abxyz", repeat=2)]
    tokens = dict.fromkeys([*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)])
    return wordpiece({token: n for n, token in enumerate(tokens)}, lowercase, rules=rules)  # type: ignore[arg-type]


TOKENIZERS = {
    (lowercase, rules): made_up(lowercase, rules) for lowercase in (True, False) for rules in ("hugging_face", "google")
}


def assert_same(tokenizer: Tokenizer, sentences: list[str], num_entries: int, at_once: int) -> None:
    cache = WordCache(tokenizer, num_entries)
    expected_tokens, expected_lengths = tokenizer.encode_flat(sentences)
    for _ in range(2):  # what is new, and what is remembered
        result = [cache.encode_flat(sentences[n : n + at_once]) for n in range(0, len(sentences), at_once)]
        assert np.concatenate([lengths for _, lengths in result]).tolist() == expected_lengths.tolist()
        assert np.concatenate([tokens for tokens, _ in result]).tolist() == expected_tokens.tolist()


def test_flat_ids_are_those_of_the_library() -> None:
    tokenizer = TOKENIZERS[True, "hugging_face"]
    tokens, lengths = tokenizer.encode_flat(["a a", "", "ab Z"])
    assert lengths.tolist() == [2, 0, 2]
    assert [tokenizer.vocab[token] for token in tokens] == ["a", "a", "ab", "z"]
    for encode in (tokenizer.encode_flat, WordCache(tokenizer, 7).encode_flat):
        assert [part.tolist() for part in encode([])] == [[], []]


@pytest.mark.parametrize(("lowercase", "rules"), TOKENIZERS)
@pytest.mark.parametrize(("num_entries", "at_once"), [(1 << 18, 10**6), (1 << 18, 7), (1, 101), (50, 3)])
def test_cache_gives_same_ids_for_hostile_strings(lowercase: bool, rules: str, num_entries: int, at_once: int) -> None:
    tokenizer = TOKENIZERS[lowercase, rules]
    assert len(HOSTILE) > 5_000
    assert (tokenizer.encode_flat(HOSTILE)[0] != tokenizer.facts.unk).mean() > 0.8
    assert_same(tokenizer, HOSTILE if at_once > 10 else HOSTILE[:40] + HOSTILE[-200:], num_entries, at_once)


TEXT = st.lists(
    st.text(st.one_of(st.sampled_from(CHARACTERS), st.sampled_from("ab "), st.characters(exclude_categories=["Cs"])))
)


@settings(max_examples=200, deadline=None)
@given(TEXT, st.booleans(), st.sampled_from(["hugging_face", "google"]), st.sampled_from([1, 5, 1000]))
def test_cache_gives_same_ids_for_any_text(sentences: list[str], lowercase: bool, rules: str, num_entries: int) -> None:
    if sentences:
        assert_same(TOKENIZERS[lowercase, rules], sentences, num_entries, 3)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_cache_gives_same_ids_for_every_script(name: str) -> None:
    tokenizer = load_tokenizer(real_data("vocab", name, "vocab.txt"))
    files = sorted(real_data("text", "udhr").glob("*.txt"))
    assert len(files) == 36
    lines = [line for file in files for line in file.read_text(encoding="utf-8").split("\n")]
    assert len(lines) > 3_000
    assert_same(tokenizer, [*lines, *HOSTILE[:60]], 1 << 18, 997)


def test_memory_is_bounded_by_the_number_of_entries() -> None:
    cache = WordCache(TOKENIZERS[True, "hugging_face"], 100)
    most = 0
    for first in range(0, 5_000, 50):
        cache.encode_flat([f"{number} 中{number}" for number in range(first, first + 50)])
        most = max(most, len(cache._tokens))
    assert 100 < most <= (TOKENS_PER_ENTRY + 5) * 100
    cache.encode_flat(["中" * 5_000])
    cache.encode_flat(["a"])
    assert len(cache._tokens) == 1  # the cache was emptied after the long run


def test_keys_and_places_shared_by_entries() -> None:
    """Entries that differ only in their last bytes, or in zero bytes, at the lengths where keys change; and in one place."""
    long = ["ab" * 4, "ab" * 7 + "x", "ab" * 8, "ab" * 20]
    texts = [begin + end for begin in ["", "a", *long] for end in ("", "x", "y", "\0", "\0\0", "’", "–y", "\0x")]
    for num_entries in (1, 2, 1000):
        assert_same(TOKENIZERS[True, "hugging_face"], texts * 3, num_entries, 5)
