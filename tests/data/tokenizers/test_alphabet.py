"""The alphabet of a new vocabulary: by hand, for texts of few characters."""

from collections import Counter

import pytest

from bertkit.base.errors import InputError
from bertkit.data.tokenizers import alphabet as module
from bertkit.data.tokenizers.alphabet import choose_alphabet, described, stripping

COUNTS = Counter({"e": 700, "a": 200, "x": 50, "q": 30, "æ": 19, "ø": 1})


@pytest.mark.parametrize(("coverage", "vocab_size", "most_common", "expected"), [
    (0.9995, 100, 1000, "aeqxæø"),  # there is room for all
    (0.95, 17, 1000, "aeqxæø"),
    (0.95, 16, 1000, "aex"),  # no room for all, but for the coverage
    (0.951, 15, 1000, "aeqx"),
    (0.95, 100, 2, "aex"),
    (0.95, 100, 4, "aeqx"),
    (1.0, 100, 2, "aeqxæø"),
    (0.9995, 100, 2, "aeqxæø"),
    (0.999, 100, 2, "aeqxæ"),
])  # fmt: skip
def test_the_alphabet_covers_the_text(
    coverage: float, vocab_size: int, most_common: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_COMMON", most_common)
    characters, notes = choose_alphabet(COUNTS, vocab_size, 5, 2, coverage)
    assert "".join(characters) == expected
    assert len(notes) == (len(expected) < 6)
    if expected == "aeqxæ":
        assert notes == [
            "the alphabet has 5 of 6 characters, 99.900 % of the text; the others become [UNK] (tokenizer.coverage=1 keeps all)"
        ]


def test_no_room_and_no_text_are_refused() -> None:
    with pytest.raises(InputError) as error:
        choose_alphabet(COUNTS, 12, 5, 2, 0.97)
    wrong = "tokenizer.vocab_size=12 has no room for the 4 characters that are 97 % of the corpus"
    assert str(error.value) == f"{wrong}; set it to 26 or more, or lower tokenizer.coverage"
    with pytest.raises(InputError, match="no room for the 6 characters of the corpus; set it to 34 or more"):
        choose_alphabet(COUNTS, 16, 5, 2, 1.0)
    with pytest.raises(InputError, match="no words in the corpus"):
        choose_alphabet(Counter(), 100, 5, 2, 0.9995)


def test_marks_of_a_script_are_told_from_accents() -> None:
    accents = "éüñÅÇőếйїёάϊ\u0301"
    marks = "्ंุัৃ்်្ྱِّآأئがパ한"  # Hindi, Thai, Bengali, Tamil, Burmese, Khmer, Tibetan, Arabic, Japanese, Korean
    others = "aßøłæđıẞжωаאבد日木ก가"[:-1] + "\ufe0f😀€½ªﬁ"
    found = stripping(Counter(accents + marks + others))
    assert {*found.accents} == {*accents}
    assert {*found.marks} == {*marks}
    assert described(Counter({"ं": 3, "आ": 2}), 1234) == "5 of 1,234 characters (◌ं आ)"
