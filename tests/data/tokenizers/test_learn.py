"""Learned tokenizers: the same from the same text in every process, no unknown tokens in 40 languages, and what `transformers` makes of their files."""

import os
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SHARED, output_of, real_data

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Rules, Tokenizer, load_tokenizer, train_tokenizer
from bertkit.data.data_config import TokenizerConfig
from bertkit.data.tokenizers.learn import learn_wordpiece

KINDS = ("wordpiece", "bpe", "unigram")
NUM_LINES = 40  # of each language
HINDI, GERMAN = "हिन्दी में लिखना, पढ़ना और बोलना", "schön übt Süß für die Vögel über größere Äpfel"


def learn(kind: str, lines: list[str], size: int = 8000, **settings: object) -> Tokenizer:
    lowercase = None if kind == "wordpiece" else settings.get("lowercase")
    config = TokenizerConfig(None, size, 2, lowercase, "auto", kind, **settings)  # type: ignore[arg-type]
    return train_tokenizer(config, lambda: iter(lines), True, "hugging_face")


def languages() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and some lines of each of 40 languages and corpora; Chinese UD whole."""
    for path in sorted(real_data("text", "udhr").glob("*.txt")):
        yield path.stem, path.read_text(encoding="utf-8").splitlines()[:NUM_LINES]
    for path in sorted(real_data("text", "genesis").glob("*.txt")):
        yield path.stem, path.read_text(encoding="utf-8").splitlines()[:NUM_LINES]
    novel = real_data("text", "novels_de", "kafka_verwandlung.txt")
    yield "german_novel", novel.read_text(encoding="utf-8").splitlines()[:NUM_LINES]
    spanish = real_data("conll2002_es", "esp.testa").read_text(encoding="utf-8").split("\n\n")[:NUM_LINES]
    yield "spanish_news", [" ".join(line.split()[0] for line in one.splitlines()) for one in spanish]
    yield "chinese_ud", chinese()


def chinese() -> list[str]:
    lines = real_data("ud_chinese_gsdsimp", "zh_gsdsimp-ud-dev.conllu").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")]


def unknown_rate(tokenizer: Tokenizer, lines: list[str]) -> float:
    ids = [number for sentence in tokenizer.encode_document(lines) for number in sentence]
    return ids.count(tokenizer.facts.unk) / len(ids)


def without_spaces(text: str) -> str:
    """Return a text without spaces and format characters (Cf), such as joiners, which BERT removes."""
    return "".join(one for one in text if not one.isspace() and unicodedata.category(one) != "Cf")


def test_40_languages_have_no_unknown_tokens_and_come_back() -> None:
    """But for Thai clauses of more than 100 characters, which are unknown as words of BERT, and characters beyond the coverage."""
    all_lines = dict(languages())
    assert len(all_lines) == 43
    kept = set()
    for name, lines in all_lines.items():
        tokenizer = learn("wordpiece", lines)
        is_long = any(len(word) > 100 for line in lines for word in line.split())
        assert unknown_rate(tokenizer, lines) < (0.003 if is_long else 0.001), name
        if tokenizer.strip_accents is False:
            kept.add(name)
        for line, ids in zip(lines, tokenizer.encode_document(lines), strict=True):
            expected = line.lower() if name in kept else stripped(line.lower())
            back = without_spaces(tokenizer.decode(ids))
            assert tokenizer.facts.unk in ids or back == without_spaces(expected), name
    assert kept == {"arb", "ben", "bod", "hin", "jpn", "khm", "kor", "mya", "pes_1", "tam", "tha", "urd"}


def stripped(text: str) -> str:
    return "".join(one for one in unicodedata.normalize("NFD", text) if unicodedata.category(one) != "Mn")


@pytest.mark.parametrize("name", ["hin", "tha", "jpn", "kor", "cmn_hans", "ell_monotonic", "vie", "chinese_ud"])
def test_unigram_knows_every_language_and_gives_the_text_back(name: str) -> None:
    lines = dict(languages())[name]
    tokenizer = learn("unigram", lines)
    assert unknown_rate(tokenizer, lines) < 0.001
    for line, ids in zip(lines, tokenizer.encode_document(lines), strict=True):
        expected = " ".join(unicodedata.normalize("NFC", line).split())
        assert tokenizer.facts.unk in ids or tokenizer.decode(ids) == expected
    assert len(tokenizer.encode_document(lines)[0]) < len(lines[0])


def test_chinese_has_its_characters() -> None:
    lines = chinese()
    tokenizer = learn("wordpiece", lines)
    assert 0 < unknown_rate(tokenizer, lines) < 0.001
    left_out, fewer = tokenizer.notes
    share = "the alphabet has 1,942 of 1,952 characters, 99.950 % of the text"
    assert left_out == f"{share}; the others become [UNK] (tokenizer.coverage=1 keeps all)"
    assert fewer.startswith("fewer than tokenizer.vocab_size=8000: no other pair of pieces occurs at least 2 times")
    assert unknown_rate(learn("wordpiece", lines, coverage=1.0), lines) == 0
    with pytest.raises(InputError, match="no room for the 1,942 characters that are"):
        learn("wordpiece", lines, size=2000)


@pytest.mark.parametrize(("line", "settings", "words", "note"), [
    (HINDI, {}, HINDI, "accents and marks are kept: stripping them, as in BERT, would damage 8 of 54 characters (◌्"),
    (HINDI, {"strip_accents": True}, stripped(HINDI), "accents are stripped from 8 of 54 characters (◌्"),
    (GERMAN, {}, stripped(GERMAN.lower()), "accents are stripped from 16 of 76 characters (ü ö Ä), as in BERT"),
    (GERMAN, {"strip_accents": False}, GERMAN.lower(), ""),
    ("a cat " * 9000 + HINDI, {}, "a cat " * 9000 + stripped(HINDI), "accents are stripped from 8 of 72,054 characters (◌्"),
    ("a cat", {}, "a cat", ""),
])  # fmt: skip
def test_lower_casing_strips_accents_but_not_the_marks_of_a_script(
    line: str, settings: dict[str, bool], words: str, note: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = learn("wordpiece", [line] * 2, 300, **settings)
    ids = tokenizer.encode_document([line])[0]
    assert without_spaces(tokenizer.decode(ids)) == without_spaces(words)
    assert [one[: len(note)] for one in tokenizer.notes if "accents" in one] == [note] * bool(note)
    for name, content in tokenizer.files(64).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (line, line.upper(), f"{HINDI} {GERMAN} e\u0301"):
        assert theirs(text)["input_ids"] == tokenizer(text)["input_ids"] == load_tokenizer(tmp_path)(text)["input_ids"]


def test_joiners_are_counted_where_bert_removes_them() -> None:
    """They make another letter in Malayalam, and separate the parts of a word in Persian."""
    lines = ["അവന്\u200d വന്നു, അവള്\u200d പോയി", "می\u200cخواهم کتاب\u200cها را"] * 2
    removed = learn("wordpiece", lines, 300)
    assert any(
        note.startswith("8 joiners without width are removed, as in BERT; tokenizer=unigram") for note in removed.notes
    )
    assert not any("joiners" in note for note in learn("wordpiece", [HINDI] * 2, 300).notes)
    for tokenizer, change in (
        (removed, without_spaces),
        (learn("bpe", lines, 600), str),
        (learn("unigram", lines, 300), str),
    ):
        assert [change(tokenizer.decode(ids)).strip() for ids in tokenizer.encode_document(lines)] == [
            *map(change, lines)
        ]


def test_googles_rules_have_no_choice() -> None:
    config = TokenizerConfig(None, 300, 2, None, "auto")
    rules: Rules = "google"
    learned = learn_wordpiece(lambda: [HINDI] * 2, config, True, rules)
    assert learned.rules.strip_accents is None
    assert learned.notes[0].endswith("as in BERT; tokenizer.lowercase=false keeps them")
    config = TokenizerConfig(None, 300, 2, None, "auto", strip_accents=False)
    with pytest.raises(InputError, match="strip_accents=False: by Google's rules"):
        learn_wordpiece(lambda: [HINDI] * 2, config, True, rules)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_files_of_other_kinds_are_what_transformers_reads(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    lines = [HINDI, GERMAN, "日本語のテキスト ไทย", " a  cat\u00a0sat\ton the mat "] * 3
    tokenizer = learn(kind, lines, 400)
    for name, content in tokenizer.files(64).items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (*lines[:4], "a [MASK] sat", "क😀", ""):
        assert theirs(text)["input_ids"] == tokenizer(text)["input_ids"] == load_tokenizer(tmp_path)(text)["input_ids"]
    before, mask = tokenizer("a cat")["input_ids"][1:-1], tokenizer.facts.mask
    assert tokenizer("a cat [MASK]")["input_ids"][1:-1] == [*before, mask]  # the space belongs to the mask


def test_unigram_splits_white_space_alike_and_cuts_long_runs() -> None:
    tokenizer = learn("unigram", ["a cat\u00a0sat\ton   the mat"] * 3 + ["日本" * 1500], 60)
    a, b = tokenizer.encode_document(["a cat sat", " a\t\tcat\u3000sat "])
    assert a == b
    assert tokenizer.decode(a) == "a cat sat"
    assert tokenizer.encode_document(["ß"])[0] == [tokenizer.encode_document(["▁"])[0][0], tokenizer.facts.unk]
    with pytest.raises(InputError, match="vocab_size=100 has no room for the 153 characters"):
        learn("unigram", ["".join(map(chr, range(0x4E00, 0x4E99)))], 100)


LEARN = """
import hashlib, itertools, sys
from bertkit.data.corpus.tokenizer import train_tokenizer
from bertkit.data.data_config import TokenizerConfig
lines = open(sys.argv[1], encoding="utf-8").read().splitlines() if len(sys.argv) > 1 else []
# many ties: words of a few letters, each as frequent as the others
lines += [" ".join("".join(word) for word in itertools.product("abcdeéüß中文", repeat=3))] * 2
made = ""
for kind in ("wordpiece", "bpe", "unigram"):
    tokenizer = train_tokenizer(TokenizerConfig(None, 700, 2, None, "auto", kind), lambda: iter(lines), True, "hugging_face")
    made += kind + " " + hashlib.sha256(repr(tokenizer.files(64)).encode()).hexdigest() + "\\n"
"""


def test_the_same_text_gives_the_same_tokenizers_in_every_process() -> None:
    """Unigram's trainer adds up words in the random order of a hash map, in as many threads as there are."""
    text = SHARED / "text" / "udhr" / "hun.txt"
    made = set()
    for threads in ("1", "2", "5"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": threads,
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "true",
        }
        made.add(
            output_of(
                [sys.executable, "-c", f"{LEARN}print(made)", *([str(text)] if text.is_file() else [])], env=environment
            )
        )
    assert len(made) == 1
    assert made.pop().split()[::2] == [*KINDS]
