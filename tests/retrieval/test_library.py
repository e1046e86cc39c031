"""Libraries: what passages are, that BM25 is the equation, that they grow and shrink to what one run makes."""

import contextlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Capsys, make_text, real_data, refused, write_text

from bertkit.apps.retrieval import library_file, passages
from bertkit.apps.retrieval.library import Library
from bertkit.apps.retrieval.library_writer import opened_for_writing
from bertkit.apps.retrieval.passages import (
    MAX_QUERY_WORDS,
    LibraryDocument,
    cut,
    document_of,
    document_of_text,
    words_of,
)
from bertkit.base.errors import InputError
from bertkit.cli import run
from bertkit.data.data_config import PassagesConfig

PLAIN = PassagesConfig(words=13, overlap=5, stemming="none", accents="drop")


def made_of(path: Path, texts: Iterable[tuple[str, str]], settings: PassagesConfig = PLAIN) -> Library:
    with opened_for_writing(path, settings) as library:
        library.sync(
            "memory", None, [document_of_text(text, title, "text", n) for n, (title, text) in enumerate(texts, 1)]
        )
    return Library(path)


def index(*arguments: object) -> int:
    return run(["index", *map(str, arguments)])


def content(path: Path) -> list[tuple[Any, ...]]:
    """All content of a library, independent of internal numbers."""
    library = Library(path)
    result = library.find("", library.num_passages, add_rest=True)
    return sorted((hit.passage, hit.title, hit.source, hit.place) for hit in result)


def test_passages_are_whole_sentences_that_overlap() -> None:
    """Five words at most, two of them again; a sentence that is too long is cut between words."""
    document = document_of(["a b", "c d", "e", "f g h i j k l", "m"], "line")
    actual = list(cut(document, PassagesConfig(words=5, overlap=2, stemming="none", accents="drop")))
    assert [document.text[each.start : each.end] for each in actual] == ["a b c d e", "e", "f g h i j", "k l m"]
    assert [(each.first, each.last) for each in actual] == [(0, 2), (2, 2), (3, 3), (3, 4)]
    text = "One two. Three  four! “Five” six?"
    split = document_of_text(text, "", "text", 1)
    assert [text[start:end] for start, end in split.sentences] == ["One two.", "Three  four!", "“Five” six?"]


def test_every_word_is_in_a_passage(documents: list[list[str]]) -> None:
    for words, overlap in ((1, 0), (7, 3), (13, 12), (1000, 50)):
        settings = PassagesConfig(words=words, overlap=overlap, stemming="none", accents="drop")
        for sentences in documents:
            document = document_of(sentences, "line")
            passages = list(cut(document, settings))
            covered = {at for each in passages for at in range(each.start, each.end)}
            assert {at for at, sign in enumerate(document.text) if sign != " "} <= covered
            assert all(len(document.text[each.start : each.end].split()) <= words for each in passages)
            starts = [each.start for each in passages]
            assert starts == sorted(set(starts))


def bm25(question: str, passages: Sequence[tuple[str, str]]) -> list[float]:
    """The equation of FTS5's documentation, as a loop."""

    def words(text: str) -> list[str]:
        return re.findall(r"[a-z0-9]+", text.lower())

    counts = [Counter(words(title) + words(text)) for title, text in passages]
    mean_length = sum(count.total() for count in counts) / len(counts)
    scores = []
    for count in counts:
        score = 0.0
        for word in dict.fromkeys(words(question)):
            num_with = sum(word in other for other in counts)
            idf = max(math.log((len(counts) - num_with + 0.5) / (num_with + 0.5)), 0) or 1e-6
            score += idf * count[word] * 2.2 / (count[word] + 1.2 * (1 - 0.75 + 0.75 * count.total() / mean_length))
        scores.append(score)
    return scores


def test_bm25_is_the_equation(tmp_path: Path) -> None:
    """Of words that few passages have and that most have, after documents went and others came."""
    texts = [(f"t{n % 3} u{n} kan", " ".join(document)) for n, document in enumerate(make_text(29))]
    path = tmp_path / "library.db"
    made_of(path, [*texts, ("gone", "kan kan lon. mir!")])
    library = made_of(path, texts)
    whole = library.find("", 10_000, add_rest=True)
    for question in (
        "kan", "kan LON, mir? kan", "t1", "t2 sor ted", "nothing here", "kan lon mir rur ted sod", "u7 u11 kan",
        "t1 u3 u4 lor",
    ):  # fmt: skip
        hits = {hit.id: hit.score for hit in library.find(question, library.num_passages, add_rest=True)}
        expected = bm25(question, [(hit.title, hit.passage) for hit in whole])
        assert any(expected) == (question != "nothing here")
        for hit, score in zip(whole, expected, strict=True):
            assert hits[hit.id] == pytest.approx(score, rel=1e-9, abs=1e-12)
        for num_hits in (1, 2, 7):  # for which not all passages need to be scored
            first = [hit.score for hit in library.find(question, num_hits)]
            assert first == pytest.approx(sorted(filter(None, hits.values()), reverse=True)[:num_hits])


HOSTILE = [
    '"', "'", "*", "a*", "NEAR(a b)", "a AND b", "NOT a", "title:kan", "^kan", "{title}: kan", "kan + lon", "(kan", "kan)",
    "kan; DROP TABLE passages", "\x00kan", "-kan", "\ud800kan", "kan\u202e", "🙂 kan", "", " ", "!?", "é\u0301" * 50, "kan " * 2500,
    " ".join(f"w{n}" for n in range(2000)),
]  # fmt: skip


def test_question_syntax_is_searched_as_words(tmp_path: Path) -> None:
    library = made_of(tmp_path / "library.db", [("AND", "kan lon not near"), ("", "other things")])
    for question in HOSTILE:
        hits = library.find(question, 1)
        assert (len(hits) == 1 and hits[0].passage.startswith("kan")) == ("kan" in question or question in (
            "a AND b", "NOT a", "NEAR(a b)")), question  # fmt: skip
    assert len(words_of(HOSTILE[-1])) == MAX_QUERY_WORDS
    assert [hit.passage for hit in library.find("lon OR things", 5)] == ["other things", "kan lon not near"]


SCRIPTS = [
    ("résumé of naïve ﬁsh", "resume", True),
    ("Ёлка", "елка", False),
    ("ＡＢＣ１２３", "abc123", True),
    ("東京都は日本の首都です", "京都", True),
    ("東京都は日本の首都です", "大阪", False),
    ("我爱猫。", "猫", True),
    ("ประเทศไทยสวย", "ไทย", True),
    ("ประเทศไทยสวย", "น้ำ", False),
    ("ดื่มน้ำทุกวัน", "น้ำ", True),
    ("ປະເທດລາວ", "ລາວ", True),
    ("ປະເທດລາວ", "ຫມາ", False),
    ("ប្រទេសកម្ពុជា", "កម្ពុជា", True),
    ("ប្រទេសកម្ពុជា", "ឆ្កែ", False),
    ("မြန်မာနိုင်ငံ", "နိုင်ငံ", True),
    ("မြန်မာနိုင်ငံ", "ခွေး", False),
    ("ᦅᦲᧃᧁᦑᦱ", "ᦲᧃ", True),
    ("हिन्दी भाषा", "हिन्दी", True),
    ("हिन्दी भाषा", "हिन", False),
    ("İstanbul'da güneş", "gunes", True),
    ("tiếng Việt", "tieng viet", True),
]


@pytest.mark.parametrize(("text", "question", "is_found"), SCRIPTS)
def test_words_of_any_script_are_found(text: str, question: str, is_found: bool, tmp_path: Path) -> None:
    library = made_of(tmp_path / "library.db", [("", text), ("", "another")])
    assert bool(library.find(question, 1)) == is_found


UNSPACED = [("tha", 0.87), ("khm", 0.88), ("mya", 0.88), ("jpn", 0.94), ("cmn_hans", 0.97)]


@pytest.mark.parametrize(("language", "share"), UNSPACED)
def test_words_in_text_without_spaces(language: str, share: float, tmp_path: Path) -> None:
    """Five letters from a paragraph of the declaration of human rights find it, or another one that contains them."""
    text = real_data("text", "udhr", f"{language}.txt").read_text(encoding="utf-8")
    paragraphs = [line for line in text.splitlines() if len(line) > 40]
    library = made_of(
        tmp_path / "library.db", [("", each) for each in paragraphs], PassagesConfig(999, 0, "none", "drop")
    )
    letters = [re.findall(r"\w[^\w\s]*", words) for each in paragraphs for words in each.split()]
    questions = ["".join(row[at : at + 5]) for row in letters for at in range(0, len(row) - 5, 13)]
    actual = [question in hit.passage for question in questions for hit in library.find(question, 1)]
    assert len(questions) > 50
    assert sum(actual) / len(questions) > share


def test_a_long_sentence_is_cut_between_letters() -> None:
    """Not before a vowel sign or a tone mark."""
    sentence = "น้ำกินที่นี่" * 20
    for passage in cut(document_of([sentence], "line"), PLAIN):
        assert unicodedata.category(sentence[passage.start])[0] == "L"


def test_stems_and_accents_are_settings(tmp_path: Path) -> None:
    for stemming, accents, actual in (("none", "drop", [0, 1]), ("english", "drop", [1, 1]), ("none", "keep", [0, 0])):
        settings = PassagesConfig(13, 5, stemming, accents)  # type: ignore[arg-type]
        texts = [("", "an invention with a résumé"), ("", "nothing")]
        library = made_of(tmp_path / f"{stemming}-{accents}.db", texts, settings)
        assert [len(library.find(question, 1)) for question in ("invented", "resume")] == actual


# a word of a passage, and one of a question, in another form
STEMS = [
    ("german", "Häuser", "Haus"),
    ("spanish", "canciones", "canción"),
    ("russian", "книгами", "книга"),
    ("finnish", "taloissa", "talo"),
]


@pytest.mark.parametrize(("stemming", "word", "asked"), STEMS)
def test_snowball_finds_other_forms_of_a_word(stemming: Any, word: str, asked: str, tmp_path: Path) -> None:
    for chosen, found in ((stemming, [1, 1, 0]), ("none", [0, 1, 0])):
        settings = PassagesConfig(13, 5, chosen, "drop")
        path = tmp_path / f"{chosen}.db"
        library = made_of(path, [("", f"1905 {word}, und"), ("", "nothing")], settings)
        assert [len(library.find(question, 1)) for question in (asked.upper(), word, "xyz")] == found
        with opened_for_writing(path, settings) as writer:
            writer.remove_others(())  # the index holds stems, which it must be given again to delete them
            assert writer.finish() == {"file": 0, "document": 0, "passage": 0}
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
            assert connection.execute("SELECT count(*) FROM words WHERE words MATCH 'nothing OR und'").fetchone() == (
                0,
            )


def test_a_stemmer_without_its_package_is_said_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capsys
) -> None:
    monkeypatch.setitem(sys.modules, "nltk.stem.snowball", None)
    passages.stemmer_of.cache_clear()
    code = index(f"corpus.path={tmp_path}", f"output={tmp_path / 'library.db'}", "passages.stemming=german")
    refused(code, "passages.stemming=german needs nltk: pip install '.[search]'", capsys)
    assert list(tmp_path.iterdir()) == []


FILES = {
    "a.txt": "One line.\nTwo lines.\n\n\nAnother document\nof three\nlines.\n",
    "b.jsonl": '{"text": "A record. It has two sentences.", "title": "Record"}\n\n{"text": "Another record."}\n',
    "c.json": json.dumps({"version": "1.1", "data": [{"title": "Town", "paragraphs": [
        {"context": "  Ada lives here.  Bob too. ", "qas": []}, {"context": "Nobody.", "qas": []},
        {"context": "Nobody.", "qas": []}]}]}),
    "f": '<doc id="1" title="Wiki">\nWiki\n\nA page. Of two.\n</doc>\n',
}  # fmt: skip
PLACED = [
    ("A page. Of two.", "Wiki", "f", "from line 1, characters 0-15"),
    ("A record. It has two sentences.", "Record", "b.jsonl", "from line 1, characters 0-31"),
    ("Ada lives here.  Bob too.", "Town", "c.json", "paragraph 1, characters 2-27"),
    ("Another document of three lines.", "", "a.txt", "lines 5-7"),
    ("Another record.", "", "b.jsonl", "from line 3, characters 0-15"),
    ("Nobody.", "Town", "c.json", "paragraph 2, characters 0-7"),
    ("One line. Two lines.", "", "a.txt", "lines 1-2"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def test_every_format_has_its_places(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "library.db"
    assert index(f"corpus.path={folder}", f"output={output}") == 0
    assert content(output) == PLACED


def test_half_a_surrogate_pair_is_indexed_and_counted(tmp_path: Path, capsys: Capsys) -> None:
    texts = [r"kan \ud83d", r"lor \ud83d\ude00", "mir"]
    rows = [f'{{"text": "{text}", "title": "T"}}\n' for text in texts] + [r'{"text": "ran", "by": "\ude00"}']
    (tmp_path / "a.jsonl").write_text("".join(rows))
    squad = r'{"data": [{"title": "\ud83d", "paragraphs": [{"context": "One town.", "qas": []}]}]}'
    (tmp_path / "b.json").write_text(squad)
    command = [f"corpus.path={tmp_path}", f"output={tmp_path / 'library.db'}"]
    assert index(*command) == 0
    assert capsys.readouterr().err.count("warning: 3 new documents with U+FFFD, which ") == 1
    (tmp_path / "a.jsonl").write_text("".join([*rows, '\n{"text": "new"}']))
    assert index(*command) == 0
    assert "U+FFFD" not in capsys.readouterr().err


def test_a_library_follows_its_files(folder: Path, tmp_path: Path, capsys: Capsys) -> None:
    """What is new, changed and gone; after each change it is what a new library is."""
    output = tmp_path / "library.db"
    arguments = [f"corpus.path={folder}", "passages.words=7", "passages.overlap=3"]

    def check(*more: str) -> str:
        capsys.readouterr()
        assert index(*arguments, f"output={output}", *more) == 0
        printed = capsys.readouterr().out
        fresh = tmp_path / "fresh.db"
        fresh.unlink(missing_ok=True)
        assert index(*arguments, f"output={fresh}") == 0
        if "remove=true" in more:
            assert content(output) == content(fresh)
        else:
            assert {hit[:2] for hit in content(fresh)} <= {hit[:2] for hit in content(output)}
        scores = [sorted(hit.score for hit in Library(path).find("another line bob", 99)) for path in (output, fresh)]
        assert scores[0] == pytest.approx(scores[1]) or "remove=true" not in more
        return printed

    check()
    before = output.read_bytes()
    assert "done already" in check()
    assert output.read_bytes() == before
    (folder / "a.txt").write_text("A new first line.\n\n" + FILES["a.txt"].replace("Two", "2"))
    assert re.search(r"a\.txt: documents: 2 new, 1 [\w ]+, 1 \w+", check())
    shutil.copy(folder / "c.json", folder / "again.json")  # the same documents by another name, which comes first
    check()
    assert {hit[2] for hit in content(output) if hit[1] == "Town"} == {"again.json"}
    (folder / "again.json").unlink()
    (folder / "f").unlink()
    check()
    assert any(hit[1] == "Wiki" for hit in content(output))
    assert "2 missing files" in check("remove=true")
    assert not any(hit[1] == "Wiki" for hit in content(output))
    assert {hit[2] for hit in content(output) if hit[1] == "Town"} == {"c.json"}


KILLED = """
import os, signal, sys
from bertkit.cli import run
from bertkit.apps.retrieval import library_writer as library

written, searchable = [], library.searchable
def counted(text, stemming):
    written.append(1)
    if len(written) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return searchable(text, stemming)

library.TRANSACTION_SECONDS = 0.002
library.searchable = counted
sys.exit(run(sys.argv[2:]))
"""


def test_a_killed_index_goes_on(python: Path, tmp_path: Path) -> None:
    """Killed in the midst of a document, three times: what was committed stays, and the end is that of one run."""
    texts = make_text(450)
    for number in range(3):
        write_text(tmp_path / f"{number}.txt", texts[number * 150 : number * 150 + 170])
    arguments = [f"corpus.path={tmp_path}/*.txt", "passages.words=23", "passages.overlap=11"]
    output, whole = tmp_path / "killed.db", tmp_path / "whole.db"
    counts = [0]
    for moment in (3, 805, 6):
        assert subprocess.run([python, "-c", KILLED, str(moment), "index", *arguments, f"output={output}"]).returncode
        assert not output.exists()
        with sqlite3.connect(tmp_path / "killed.db.partial" / ".unfinished" / "library.db") as connection:
            counts.append(connection.execute("SELECT count(*) FROM documents").fetchone()[0])
    assert counts == sorted(counts)
    assert 50 < counts[2] <= counts[3] < 450
    assert index(*arguments, f"output={output}") == index(*arguments, f"output={whole}") == 0
    assert content(output) == content(whole)
    assert sorted(path.name for path in tmp_path.glob("*.db*")) == ["killed.db", "whole.db"]
    scores = [{hit.passage: hit.score for hit in Library(path).find("kan lon mir", 50)} for path in (output, whole)]
    assert scores[0] == pytest.approx(scores[1])


def test_a_full_disk_is_said_and_what_was_there_stays(tmp_path: Path, capsys: Capsys) -> None:
    """The limit of a file's size stands for it: SQLite is refused the same way in the midst of a transaction."""
    small = write_text(tmp_path / "a.txt", make_text(5))
    output = tmp_path / "library.db"
    assert index(f"corpus.path={small}", f"output={output}") == 0
    before = content(output)
    write_text(tmp_path / "b.txt", make_text(700, seed=1))
    capsys.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        assert index(f"corpus.path={tmp_path}/*.txt", f"output={output}") == 4
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    printed = capsys.readouterr().err
    assert str(output) in printed
    assert printed.count("\n") == 1
    assert set(before) <= set(content(output))
    assert index(f"corpus.path={tmp_path}/*.txt", f"output={output}") == 0
    assert len(content(output)) > 400


def test_files_of_sqlite_beside_a_library_are_the_users(tmp_path: Path) -> None:
    """Also a journal with which SQLite would change the library; in a folder whose name has to be quoted."""
    folder = tmp_path / "a?b#c%41 é"
    folder.mkdir()
    text, output = folder / "a.txt", folder / "library.db"
    mine = {folder / f"library.db-{ending}": b"mine" for ending in ("journal", "wal", "shm")}
    for path, content in mine.items():
        path.write_bytes(content)
    for num_documents in (7, 11):
        write_text(text, make_text(num_documents))
        assert index(f"corpus.path='{text}'", f"output='{output}'") == 0
        output.chmod(0o640)
        assert run(["search", f"index='{output}'", "question=kan"]) == 0
        assert {path: path.read_bytes() for path in mine} == mine
    assert sorted(folder.iterdir()) == sorted([text, output, *mine])
    assert output.stat().st_mode & 0o777 == 0o640

    other = shutil.copy(output, tmp_path / "other.db")
    with contextlib.closing(sqlite3.connect(other, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")  # else the header comes later
        connection.execute("BEGIN")
        connection.execute("UPDATE passages SET text = upper(text)")
        connection.execute("PRAGMA cache_size = 1")
        shutil.copy(f"{other}-journal", f"{output}-journal")
        connection.execute("COMMIT")
    library_file.seal(other)
    shutil.copy(other, output)
    before = output.read_bytes()
    assert run(["search", f"index='{output}'", "question=kan"]) == 0
    assert output.read_bytes() == before


ENDLESS = "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) SELECT id, id AS document FROM n"
CHANGES = [
    (f"DROP TABLE passages; CREATE VIEW passages AS {ENDLESS}", [2, 2]),
    ("DROP TABLE passages", [2, 2]),
    ("CREATE TRIGGER t AFTER INSERT ON passages BEGIN SELECT 1; END", [2, 2]),
    ("UPDATE passages SET text = CAST(text AS BLOB)", [0, 2]),
    ("UPDATE passages SET start = 'a'", [0, 2]),
    ("UPDATE settings SET value = '[1]'", [2, 2]),
    ("DELETE FROM settings", [2, 2]),
    ("DELETE FROM postings", [2, 2]),
    ("UPDATE postings SET passages = 'a'", [2, 2]),
    ("UPDATE postings SET passages = zeroblob(7)", [2, 2]),
    ("UPDATE postings SET passages = zeroblob(80)", [2, 2]),
    ("INSERT INTO postings VALUES ('kan', 'a')", [0, 2]),
    ("INSERT INTO postings VALUES ('kan', zeroblob(800))", [0, 2]),  # more passages than there are
    ("INSERT INTO postings VALUES ('kan', x'ffffffff01000000')", [0, 2]),  # a passage behind the last
]


@pytest.mark.parametrize(("change", "codes"), CHANGES)  # of index, which has nothing to do, and of search
def test_foreign_or_changed_library_is_refused(change: str, codes: list[int], tmp_path: Path, capsys: Capsys) -> None:
    text, output = write_text(tmp_path / "a.txt", make_text(7)), tmp_path / "library.db"
    arguments = (f"corpus.path={text}", f"output={output}")
    assert index(*arguments) == 0
    with contextlib.closing(sqlite3.connect(output, isolation_level=None)) as connection:
        connection.executescript(change)
    for expected in ([2, 2], codes):
        before = output.read_bytes()
        assert [index(*arguments), run(["search", f"index={output}", "question=kan"])] == expected
        printed = capsys.readouterr().err.splitlines()
        assert [str(output) in line for line in printed] == [True] * expected.count(2), printed
        assert (output.read_bytes(), sorted(tmp_path.iterdir())) == (before, [text, output])
        library_file.seal(output)  # somebody who writes checksums, too


def flipped(data: bytearray, place: int) -> None:
    data[place] ^= 1 << place % 8


DAMAGES: list[Callable[[bytearray, int], object]] = [
    flipped,
    lambda data, place: data.pop(place),
    lambda data, place: data.insert(place, 7),
    lambda data, place: data.extend(bytes(5000)),
    lambda data, place: data.__delitem__(slice(place, None)),
    lambda data, place: data.__setitem__(slice(place, place + 100), bytes(100)),
]


def test_random_damages_of_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    """All are found; of a library of more than CHECKED_BYTES, a search finds those that change its size."""
    text, output = write_text(tmp_path / "a.txt", make_text(11)), tmp_path / "library.db"
    commands = [["index", f"corpus.path={text}", f"output={output}"], ["search", f"index={output}", "question=kan"]]
    assert [run(command) for command in commands] == [0, 0]
    whole, rng = output.read_bytes(), random.Random(0)
    for number in range(42):
        data = bytearray(whole)
        DAMAGES[number % len(DAMAGES)](data, rng.randrange(100, len(whole)))
        if data != whole:
            output.write_bytes(data)
            capsys.readouterr()
            assert [run(command) for command in commands] == [2, 2]
            printed = capsys.readouterr().err.splitlines()
            assert [f"error: {output}: damaged library (" in line for line in printed] == [True, True]
    monkeypatch.setattr(library_file, "CHECKED_BYTES", len(whole) - 1)
    for damaged, codes in ((whole[:-1], [2, 2]), (whole + b"x", [2, 2])):
        output.write_bytes(damaged)
        assert [run(command) for command in commands] == codes
    data = bytearray(whole)
    flipped(data, len(whole) - 9)
    output.write_bytes(data)
    assert [run(command) for command in commands] == [2, 0]


def test_slow_search_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = made_of(tmp_path / "library.db", [("", "kan")])
    monkeypatch.setattr(library_file, "READ_SECONDS", -1)
    monkeypatch.setattr(library_file, "STEPS", 1)
    with pytest.raises(InputError, match=r"library.db: no result in "):
        library.find("kan", 3)


REFUSED = [
    (lambda path: path.write_text("years of work"), (), "library.db "),
    (lambda path: sqlite3.connect(path).execute("CREATE TABLE thesis (text)"), (), "library.db "),
    (lambda path: path.mkdir(), (), "library.db "),
    (lambda path: path.symlink_to("/dev/null"), (), "library.db "),
    (os.mkfifo, (), "library.db "),
    (lambda path: None, ("passages.overlap=100",), "passages.overlap=100: expected 0 to 99"),
    (lambda path: path.with_name("a.txt").write_text(" \n"), (), "no text in it"),
    (lambda path: path.with_name("caf\udcff.txt").write_text("kan\n"), (), "xff.txt: this name is not UTF-8"),
    (lambda path: path.with_name("b.json").write_text('{"data": 3}'), (), "b.json: paragraph 0"),
    (lambda path: path.with_name("b.json").write_text('{"data": [{"context": 3}]}'), (), "b.json: paragraph 1"),
]


@pytest.mark.parametrize(("make", "more", "line"), REFUSED)
def test_bad_index_settings_are_refused(
    make: Any, more: Sequence[str], line: str, tmp_path: Path, capsys: Capsys
) -> None:
    output = tmp_path / "library.db"
    (tmp_path / "a.txt").write_text("a b\nc\n")
    make(output)
    before = {path: path.read_bytes() if path.is_file() else None for path in tmp_path.iterdir()}
    refused(index(f"corpus.path={tmp_path}", f"output={output}", *more), line, capsys)
    assert {path: path.read_bytes() if path.is_file() else None for path in tmp_path.iterdir()} == before
    assert not list(Path("/dev").glob("null-*"))


def test_other_settings_are_refused(tmp_path: Path, capsys: Capsys) -> None:
    text, output = write_text(tmp_path / "a.txt", make_text(61)), tmp_path / "library.db"
    assert index(f"corpus.path={text}", f"output={output}") == 0
    assert index(f"corpus.path={text}", f"output={output}", "passages.words=50", "passages.overlap=5") == 2
    assert "was made with other passages (words: 100, overlap: 50," in capsys.readouterr().err
    refused(run(["search", f"index={tmp_path / 'none.db'}", "question=kan"]), f"index={tmp_path / 'none.db'}: ", capsys)


def test_readers_see_what_was_committed_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "library.db"
    library = made_of(path, [("", "kan lon")])
    counts: list[int] = []

    def documents() -> Iterator[LibraryDocument]:
        for number in range(2):
            yield document_of_text(f"kan {number}", "", "text", number)
            counts.append(len(library.find("kan", 9)))

    with opened_for_writing(path, PLAIN) as writer:
        writer.sync("more", None, documents())
    assert counts == [1, 1]
    assert len(library.find("kan", 9)) == 3
