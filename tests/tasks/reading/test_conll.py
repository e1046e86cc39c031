"""CoNLL columns and CoNLL-U, and the schemes of tags: one reading, three writings, each by hand."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from task_files import read, tagged, write

from bertkit.base.errors import InputError
from bertkit.tasks.reading.conll import chunks_of, convert, detect_scheme, first_break, parts_of

NER = "-DOCSTART- -X- O O\n\nU.N. NNP I-NP I-ORG\n# SYM I-NP O\nEkeus NNP I-NP I-PER\n\nBob NNP I-NP I-PER\nBob NNP B-NP B-PER\n\n-DOCSTART- -X- O O\n\nAI2\u00a0x NNP I-NP I-ORG\n"
TAGGED = [
    (("U.N.", "#", "Ekeus"), ("B-ORG", "O", "B-PER")),
    (("Bob", "Bob"), ("B-PER", "B-PER")),
    (("AI2\u00a0x",), ("B-ORG",)),
]
GERMEVAL = "#\thttp://x\t[2010]\n1\tEcce\tB-OTH\tO\n2\thomo\tI-OTH\tB-PER\n\n#\thttp://y\t[2010]\n1\tJesu\tB-PER\tO\n"
UD = (
    "# newdoc id = d1\n# sent_id = s1\n1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n1\tdo\tdo\tAUX\tVBP\t_\t0\troot\t_\t_\n"
    "2\tn't\tnot\tPART\tRB\t_\t1\tx\t_\t_\n2.1\tgo\tgo\tVERB\t_\t_\t_\t_\t_\t_\n\n# sent_id = s2\n# text = #\n"
    "1\t#\t#\tSYM\tNN\t_\t0\troot\t_\t_\n\n# newdoc id = d2\n# sent_id = s3\n1\tGo o\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n"
)


@pytest.mark.parametrize("separator", [" ", "\t", "  \t"])
def test_conll_columns_are_split_at_any_separator(tmp_path: Path, separator: str) -> None:
    text = "".join(
        line if line.startswith("-DOC") else line.replace(" ", separator) for line in NER.splitlines(keepends=True)
    )
    write(tmp_path, "eng.train", text)
    if separator == "  \t":
        text = text.replace("\t", " ")
        write(tmp_path, "eng.train", text)
    source = read(tmp_path, "conll2003", "train")
    assert tagged(source) == TAGGED
    assert source.description == f"{tmp_path}/eng.train (conll, sentences, IOB1 read as IOB2)"
    assert source.warnings == (
        f"{tmp_path}/eng.train: labels without an example: I-PER, I-ORG, B-LOC, I-LOC, B-MISC, I-MISC",
    )
    documents = read(tmp_path, "conll2003", "train", "documents=true")
    (first, second), third = TAGGED[:2], TAGGED[2]
    assert tagged(documents) == [(first[0] + second[0], first[1] + second[1]), third]  # PER ends with the sentence


@pytest.mark.parametrize("line", ["\ufeff", "\u200b\u200c\u200d", "\u2060 \t", "\u00a0\u3000"])
def test_a_line_of_nothing_that_is_seen_is_blank(tmp_path: Path, line: str) -> None:
    """The dev file of WNUT 2017 has such a line between two sentences."""
    write(tmp_path, "train.conll", f"\ufeffa B-P\nb O\n{line}\nc\ufeff O\n{line}")
    assert tagged(read(tmp_path, "tagging", "train")) == [(("a", "b"), ("B-P", "O")), (("c\ufeff",), ("O",))]


def test_conll_with_its_columns_chosen(tmp_path: Path) -> None:
    write(tmp_path, "train.tsv", GERMEVAL)
    outer = read(tmp_path, "tagging", "train", "columns.words=1", "columns.tags=2")
    assert tagged(outer) == [(("Ecce", "homo"), ("B-OTH", "I-OTH")), (("Jesu",), ("B-PER",))]
    assert outer.labels == ("O", "B-OTH", "I-OTH", "B-PER", "I-PER")
    inner = read(tmp_path, "tagging", "train", "columns.words=1", "columns.tags=3")
    assert tagged(inner) == [(("Ecce", "homo"), ("O", "B-PER")), (("Jesu",), ("O",))]
    write(tmp_path, "train.conll", "% note\nIch PRON\n")
    (tmp_path / "train.tsv").unlink()
    assert tagged(read(tmp_path, "tagging", "train", "comment='%'")) == [(("Ich",), ("PRON",))]


def test_conllu_is_read_as_words_and_tags(tmp_path: Path) -> None:
    write(tmp_path, "en_x-ud-dev.conllu", UD)
    source = read(tmp_path, "pos", "dev")
    assert tagged(source) == [(("do", "n't"), ("AUX", "PART")), (("#",), ("SYM",)), (("Go o",), ("VERB",))]
    assert [example.id for example in source.examples] == ["s1", "s2", "s3"]
    assert len(source.labels) == 17
    documents = read(tmp_path, "pos", "dev", "documents=true", "columns.tags=4", "labels=auto")
    assert tagged(documents) == [(("do", "n't", "#"), ("VBP", "RB", "NN")), (("Go o",), ("VB",))]
    assert [example.id for example in documents.examples] == ["d1", "d2"]
    assert documents.labels == ("NN", "RB", "VB", "VBP")


@pytest.mark.parametrize(
    ("content", "line", "wrong"),
    [
        (UD, 3, "column 0 numbers the words"),  # CoNLL-U with the ending of CoNLL
        ("".join(line for line in GERMEVAL.splitlines(True) if line[0] != "#"), 1, "column 0 numbers the words"),
        ("word\tpos\nBob\tNOUN\n\nRo\tNOUN\n", 1, "the first line names the columns"),
        ("tokens\tner_tags\nBob x\tB-P O\nRo x\tO O\n", 1, "the first line names the columns"),
        ('"tokens"\t"tags"\n"Bob x"\t"B-P O"\n"Ro x"\t"O O"\n', 1, "the first line names the columns"),
        ("id\ttext\n7\tBob x\n8\tRo x\n", 1, "the first line names the columns"),
        ("id\twords\tlabel\n7\tBob x\tgood\n8\tRo x\tbad\n", 1, "the first line names the columns"),
    ],
)
def test_a_column_without_words_is_none_of_words(tmp_path: Path, content: str, line: int, wrong: str) -> None:
    write(tmp_path, "train.conll", content)
    with pytest.raises(InputError, match=rf"train.conll:{line}: {wrong}; "):
        read(tmp_path, "tagging", "train")


def test_numbers_may_be_words(tmp_path: Path) -> None:
    write(tmp_path, "train.conll", "1 N\n2 N\n3 N\n\nBob P\n")
    assert tagged(read(tmp_path, "tagging", "train"))[0][0] == ("1", "2", "3")
    write(tmp_path, "train.conll", "1 N\n2 N\n3 P\n")
    assert tagged(read(tmp_path, "tagging", "train", "columns.words=0"))[0][0] == ("1", "2", "3")


def test_words_without_tags_are_read(tmp_path: Path) -> None:
    write(tmp_path, "test.txt", "Bob\n\nEcce\nhomo\n")
    source = read(tmp_path, "conll2003", "test")
    assert tagged(source) == [(("Bob",), None), (("Ecce", "homo"), None)]
    assert source.describe().endswith("(conll, sentences): 2 sequences of 3 words; no labels")


def test_json_tags_are_converted_to_iob2(tmp_path: Path) -> None:
    write(tmp_path, "train.jsonl", '{"words": ["Bob", "x"], "ner": ["S-PER", "O"]}\n{"words": ["a"], "ner": ["O"]}\n')
    source = read(tmp_path, "tagging", "train")
    assert tagged(source) == [(("Bob", "x"), ("B-PER", "O")), (("a",), ("O",))]
    assert source.labels == ("O", "B-PER", "I-PER")
    assert "BIOES read as IOB2" in source.describe()
    assert source.describe().endswith("2 sequences of 3 words; O 2 (66.7%), B-PER 1 (33.3%)")


@pytest.mark.parametrize(
    ("labels", "tags", "scheme"),
    [
        ("O B-P I-P B-L I-L", "B-P I-P O B-L B-L", "IOB2"),
        ("O B-P I-P E-P S-P B-L I-L E-L S-L", "B-P E-P O S-L S-L", "IOB2 read as BIOES"),
        ("O B-P I-P L-P U-P B-L I-L L-L U-L", "B-P L-P O U-L U-L", "IOB2 read as BIOES"),
        ("O B-P M-P E-P S-P B-L M-L E-L S-L", "B-P E-P O S-L S-L", "IOB2 read as BIOES"),
        ("O B-P M-P E-P W-P B-L M-L E-L W-L", "B-P E-P O W-L W-L", "IOB2 read as BIOES"),
        ("O I-P B-L I-L", "I-P I-P O I-L B-L", "IOB2 read as IOB1"),  # no name of a person followed another
        ("O I-P I-L", "I-P I-P O I-L I-L", "IOB2 read as IOB1"),
    ],
)
def test_tags_are_those_of_a_published_model(tmp_path: Path, labels: str, tags: str, scheme: str) -> None:
    write(tmp_path, "dev.conll", "Al B-P\nRo I-P\nin O\nBonn B-L\nKiel B-L\n")
    source = read(tmp_path, "tagging", "dev", labels=tuple(labels.split()))
    assert tagged(source)[0][1] == tuple(tags.split())
    assert f"({scheme})" in source.describe().replace("conll, sentences, ", "")
    assert ("seqeval_strict" in source.task.fitting_metrics().metrics) == ("B-P I-P B-L" in labels)


def test_chunks_that_the_labels_of_a_model_cannot_tell_apart_are_named(tmp_path: Path) -> None:
    """As in IOB1 whose training files had no two names of persons side by side: seqeval counts two names in the file, here one."""
    write(
        tmp_path, "dev.conll", "in O\nBonn B-L\nKiel B-L\n\nAl B-P\nRo B-P\n\nAl B-P\nin O\nRo B-P\n\nAl I-P\nRo B-P\n"
    )
    source = read(tmp_path, "tagging", "dev", labels=("O", "I-P", "B-L", "I-L"))
    expected = ("O", "I-L", "B-L"), ("I-P", "I-P"), ("I-P", "O", "I-P"), ("I-P", "I-P")
    assert tuple(tags for _, tags in tagged(source)) == expected
    assert [line for line in source.warnings if "side by side" in line] == [
        f"{tmp_path}/dev.conll: sentences with chunks side by side that the model's labels cannot tell apart: 2 (first "
        f"{tmp_path}/dev.conll:5); read as one chunk, in scores too"
    ]
    assert "side by side" not in "".join(read(tmp_path, "tagging", "dev").warnings)


def test_lists_of_words_in_csv_are_lists(tmp_path: Path) -> None:
    """As pandas writes them, and as a JSON list in a cell."""
    lists = [["Bob", "it's", ",", "a"], ["B-PER", "O", "O", "O"]]
    for words, tags in (map(str, lists), map(json.dumps, lists)):
        cells = ",".join(f'"{cell.replace(chr(34), 2 * chr(34))}"' for cell in (words, tags))
        write(tmp_path, "train.csv", f"tokens,tags\n{cells}\n[ x ],O B-LOC O\n")
        expected = [(("Bob", "it's", ",", "a"), ("B-PER", "O", "O", "O")), (("[", "x", "]"), ("O", "B-LOC", "O"))]
        assert tagged(read(tmp_path, "tagging", "train")) == expected
    write(tmp_path, "train.csv", "tokens,tags\n\"['Bob', 'x']\",\"[1, 0]\"\n['a'],[0]\n")
    assert tagged(read(tmp_path, "tagging", "train")) == [(("Bob", "x"), ("1", "0")), (("a",), ("0",))]
    write(tmp_path, "train.csv", 'tokens,tags\n"[Smith,2001]",O\n[12],O\nBob x,B-PER O\n')  # words in brackets
    assert [words for words, _ in tagged(read(tmp_path, "tagging", "train"))] == [
        ("[Smith,2001]",),
        ("[12]",),
        ("Bob", "x"),
    ]
    write(tmp_path, "train.csv", 'tokens,tags\nBob x,"[""NE"",""O""]"\n"Bob , x","NE , $."\n("Yes") x,O O\n')
    expected = [(("Bob", "x"), ("NE", "O")), (("Bob", ",", "x"), ("NE", ",", "$.")), (('("Yes")', "x"), ("O", "O"))]
    assert tagged(read(tmp_path, "tagging", "train", "scheme=none")) == expected


@pytest.mark.parametrize("tags", [
    "[O, B-PER]", "[O,B-PER]", "[O B-PER]", "[O; B-PER]", "[ O, B-PER ]", "(O, B-PER)", "{O, B-PER}", "O, B-PER", "O; B-PER", "0, 1", "[ 0  1]",
    "('O', 'B-PER')", "['O', 'B-PER'", "array(['O', 'B-PER'])", "['O', None]",
])  # fmt: skip
def test_lists_of_other_forms_are_refused(tags: str, tmp_path: Path) -> None:
    """Between blanks they would be tags such as [O and B-PER], and as many as words."""
    write(tmp_path, "train.csv", f'tokens,tags\nBob x,O O\nBob x,"{tags}"\n')
    wrong = rf"train.csv:3: field 'tags': [\"']{re.escape(tags)}[\"']: expected a list with commas and quotes"
    with pytest.raises(InputError, match=wrong):
        read(tmp_path, "tagging", "train")


def test_words_in_brackets_of_other_lists_are_refused(tmp_path: Path) -> None:
    for words in ("('Bob', 'x')", "{'Bob', 'x'}", "[ 1  2]"):
        write(tmp_path, "train.csv", f'tokens,tags\nBob x,O O\n"{words}",O O\n')
        with pytest.raises(InputError, match=r"train.csv:3: field 'tokens': .*expected a list with commas and quotes"):
            read(tmp_path, "tagging", "train")


def test_names_of_columns_in_copies_of_conll2003(tmp_path: Path) -> None:
    for words, tags in (("tokens", "ner_tags"), ("words", "ner"), ("tokens", "tags")):
        write(tmp_path, "train.json", json.dumps({words: ["Bob", "x"], tags: ["B-PER", "O"]}))
        source = read(tmp_path, "conll2003", "train", "files.train=train.json")
        assert tagged(source) == [(("Bob", "x"), ("B-PER", "O"))]


def test_tags_that_break_their_scheme(tmp_path: Path) -> None:
    """Detected: counted and read as the CoNLL evaluation does. Asked for: refused."""
    write(tmp_path, "train.conll", "a B-P\nb I-P\n\nc I-P\nd B-P\n\ne B-P\n")
    source = read(tmp_path, "tagging", "train")
    assert tagged(source)[1] == (("c", "d"), ("B-P", "B-P"))
    assert source.warnings[0] == (
        f"{tmp_path}/train.conll: sentences with a tag that breaks IOB2: 1 (first 'I-P' at {tmp_path}/train.conll:4); "
        "interpreted as in the CoNLL evaluation"
    )
    with pytest.raises(InputError, match=r"train\.conll:4: tag 'I-P' breaks IOB2"):
        read(tmp_path, "tagging", "train", "scheme=iob2")
    assert tagged(read(tmp_path, "tagging", "train", "scheme=none"))[1] == (("c", "d"), ("I-P", "B-P"))


# ---- schemes of tags


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
    ("S-P B-L M-L M-L E-L", [("P", 0, 1), ("L", 1, 5)]),
    ("W-P B-L M-L E-L", [("P", 0, 1), ("L", 1, 4)]),
    ("B-P S-P I-P", [("P", 0, 1), ("P", 1, 2), ("P", 2, 3)]),
]


@pytest.mark.parametrize(("chunks", "iob1", "iob2", "bioes"), TABLE)
def test_chunks_are_read_and_written_in_every_scheme(
    chunks: list[tuple[str, int, int]], iob1: str, iob2: str, bioes: str
) -> None:
    written = {"iob1": iob1, "iob2": iob2, "bioes": bioes}
    for source in written.values():
        assert chunks_of(source.split()) == chunks
        for scheme, target in written.items():
            assert " ".join(convert(source.split(), scheme)) == target


@pytest.mark.parametrize(("tags", "chunks"), LOOSE)
def test_chunks_of_inconsistent_tags_are_as_conlleval_reads_them(tags: str, chunks: list[tuple[str, int, int]]) -> None:
    assert chunks_of(tags.split()) == chunks


@pytest.mark.parametrize("tag", ["B-", "-P", "BP", "B", "", "X-P", "b-P", "I_P", "O-P"])
def test_malformed_tags_are_refused(tag: str) -> None:
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
    ("B-P M-P E-P S-P W-P", "bioes", None),
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
    (["B-P M-P E-P"], "bioes"),
    (["W-P O"], "bioes"),
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
def test_tag_scheme_is_detected(sentences: list[str], scheme: str) -> None:
    assert detect_scheme([sentence.split() for sentence in sentences]) == scheme


@settings(deadline=None)
@given(st.lists(st.sampled_from(["O", "B-P", "I-P", "E-P", "S-P", "B-L", "I-L"]), max_size=11))
def test_tags_convert_to_every_scheme_and_back(tags: list[str]) -> None:
    chunks = chunks_of(tags)
    assert [end for _, _, end in chunks] == sorted(end for _, _, end in chunks)
    for scheme in ("iob1", "iob2", "bioes"):
        assert chunks_of(convert(tags, scheme)) == chunks
        assert first_break(convert(tags, scheme), scheme) is None
