"""Schemes of tags: one reading, three writings, each by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.tasks.reading.conll import chunks_of, convert, detect_scheme, first_break, parts_of

# the same chunks in each scheme
TABLE = [
    # chunks, iob1, iob2, bioes
    ([], "O O", "O O", "O O"),
    ([("P", 0, 1)], "I-P", "B-P", "S-P"),
    ([("P", 1, 3)], "O I-P I-P O", "O B-P I-P O", "O B-P E-P O"),
    ([("P", 0, 3)], "I-P I-P I-P", "B-P I-P I-P", "B-P I-P E-P"),
    ([("P", 0, 1), ("P", 1, 2)], "I-P B-P", "B-P B-P", "S-P S-P"),
    ([("P", 0, 2), ("P", 2, 4)], "I-P I-P B-P I-P", "B-P I-P B-P I-P", "B-P E-P B-P E-P"),
    ([("P", 0, 1), ("L", 1, 2)], "I-P I-L", "B-P B-L", "S-P S-L"),
    ([("P", 0, 1), ("P", 2, 3)], "I-P O I-P", "B-P O B-P", "S-P O S-P"),
    ([("P-x", 0, 2)], "I-P-x I-P-x", "B-P-x I-P-x", "B-P-x E-P-x"),
]
# tags that keep to no scheme, as the CoNLL evaluation reads them
LOOSE = [
    ("O I-P I-P", [("P", 1, 3)]),
    ("B-P I-L", [("P", 0, 1), ("L", 1, 2)]),
    ("E-P O", [("P", 0, 1)]),
    ("B-P B-P E-P", [("P", 0, 1), ("P", 1, 3)]),
    ("S-P I-P", [("P", 0, 1), ("P", 1, 2)]),
    ("B-P O E-P", [("P", 0, 1), ("P", 2, 3)]),
    ("U-P B-L I-L L-L", [("P", 0, 1), ("L", 1, 4)]),
    ("B-P S-P I-P", [("P", 0, 1), ("P", 1, 2), ("P", 2, 3)]),
]


@pytest.mark.parametrize(("chunks", "iob1", "iob2", "bioes"), TABLE)
def test_reading_and_writing(chunks: list[tuple[str, int, int]], iob1: str, iob2: str, bioes: str) -> None:
    written = {"iob1": iob1, "iob2": iob2, "bioes": bioes}
    for source in written.values():
        assert chunks_of(source.split()) == chunks
        for scheme, target in written.items():
            assert " ".join(convert(source.split(), scheme)) == target


@pytest.mark.parametrize(("tags", "chunks"), LOOSE)
def test_loose_tags(tags: str, chunks: list[tuple[str, int, int]]) -> None:
    assert chunks_of(tags.split()) == chunks


@pytest.mark.parametrize("tag", ["B-", "-P", "BP", "B", "", "X-P", "b-P", "I_P", "O-P"])
def test_tags_that_do_not_parse(tag: str) -> None:
    assert parts_of(tag) is None
    with pytest.raises(ValueError, match=f"^{tag}$"):
        chunks_of(["O", tag])


BREAKS = [
    ("B-P I-P O", "iob2", None),
    ("O I-P", "iob2", 1),
    ("O B-P", "iob1", 1),
    ("I-P B-P", "iob1", None),
    ("B-P I-P", "bioes", 1),
    ("B-P L-P U-P", "bioes", None),
    ("B-P L-P", "iob2", 1),
]


@pytest.mark.parametrize(("tags", "scheme", "place"), BREAKS)
def test_the_first_tag_that_breaks_a_scheme(tags: str, scheme: str, place: int | None) -> None:
    assert first_break(tags.split(), scheme) == place


DETECTED = [
    (["B-P I-P O", "O"], "iob2"),
    (["I-P I-P O", "O"], "iob1"),
    (["I-P B-P"], "iob1"),
    (["B-P O"], "iob2"),
    (["S-P O"], "bioes"),
    (["B-P L-P"], "bioes"),
    (["O O"], "iob2"),
    (["B-P I-P", "B-P I-P", "I-P O"], "iob2"),  # two of three
    (["I-P I-P", "I-P O", "B-P O"], "iob1"),
    (["DET NOUN"], "none"),
    (["-LRB- NN -RRB-"], "none"),
    (["O PER"], "none"),
    (["B I O"], "none"),
    (["O B- B-P"], "iob2"),  # and the reader refuses B-
    (["O B-"], "iob2"),
    (["B-P NOUN"], "none"),
]


@pytest.mark.parametrize(("sentences", "scheme"), DETECTED)
def test_which_scheme(sentences: list[str], scheme: str) -> None:
    assert detect_scheme([sentence.split() for sentence in sentences]) == scheme


@given(st.lists(st.sampled_from(["O", "B-P", "I-P", "E-P", "S-P", "B-L", "I-L"]), max_size=11))
def test_there_and_back(tags: list[str]) -> None:
    chunks = chunks_of(tags)
    assert [end for _, _, end in chunks] == sorted(end for _, _, end in chunks)
    for scheme in ("iob1", "iob2", "bioes"):
        assert chunks_of(convert(tags, scheme)) == chunks
        assert first_break(convert(tags, scheme), scheme) is None
