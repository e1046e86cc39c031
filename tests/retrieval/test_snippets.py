"""Snippets: the words are those that the index finds, and the part that is shown has them, or the answer."""

import json
import random
import re
from pathlib import Path

import pytest
from conftest import Capsys

import bertkit
from bertkit.apps.retrieval.library import Library
from bertkit.apps.retrieval.passages import TextSpan, has_words
from bertkit.apps.retrieval.snippets import SNIPPET_CHARS, snippet_of
from bertkit.cli import run

WORDS = ["invented", "INVENTION", "inventory", "résumé", "Resume", "ｒｅｓｕｍｅ", "naïve", "Häuser", "haus", "it's", "1990s", "½", "東京都",
         "京都", "京", "नमस्ते", "नम", "ภาษาไทย", "İstanbul", "ﬁne", "x_y"]  # fmt: skip
QUESTIONS = ["Who invented it?", "a resume", "das Haus", "京都", "京", "नमस्ते", "ไทย", "istanbul fine", "1990s 2", "x"]


@pytest.mark.parametrize("settings", [("english", "drop"), ("german", "drop"), ("none", "keep")])
def test_marked_words_are_those_that_the_index_finds(settings: tuple[str, str], tmp_path: Path) -> None:
    source, output = tmp_path / "words.txt", tmp_path / "library.db"
    source.write_text("\n\n".join(WORDS), encoding="utf-8")
    stemming, accents = settings
    arguments = [f"corpus.path={source}", f"passages.stemming={stemming}", f"passages.accents={accents}"]
    assert run(["index", *arguments, f"output={output}"]) == 0
    library, num_marked = Library(output), 0
    for question in QUESTIONS:
        found = {hit.passage for hit in library.find(question, len(WORDS))}
        marked = {word for word, marks in zip(WORDS, library.marks(WORDS, question), strict=True) if marks}
        assert marked == found, question
        num_marked += len(marked)
    assert num_marked > len(QUESTIONS)


def test_a_snippet_has_the_most_different_words_or_the_answer() -> None:
    rng = random.Random(0)
    words = [f"{rng.choice(['kan', 'lon', 'supercalifragilistic'])}," for _ in range(97)]
    words[11:13], words[67], words[71] = ["ada", "ada"], "ada", "engine\n"
    passage = " ".join(words)
    marks = [TextSpan(*match.span()) for match in re.finditer("ada|engine", passage)]
    snippet = snippet_of(passage, marks, None)
    assert [snippet.text[start:end] for start, end in snippet.marks] == ["ada", "engine"]
    for start in range(0, len(passage) - 3, 7):
        answer = TextSpan(start, start + rng.choice([3, 41, 397]))
        snippet = snippet_of(passage, marks, answer)
        end = snippet.start + len(snippet.text)
        assert SNIPPET_CHARS - 50 < len(snippet.text) <= SNIPPET_CHARS
        assert snippet.text == passage[snippet.start : end].replace("\n", " ")
        assert snippet.start <= answer.start
        assert end >= min(answer.end, answer.start + SNIPPET_CHARS - 50, len(passage))
        if answer.end - answer.start == 3:  # cut at words
            assert snippet.start == 0 or passage[snippet.start - 1].isspace()
            assert end == len(passage) or passage[end].isspace()
            assert all(snippet.text[mark.start : mark.end] in ("ada", "engine") for mark in snippet.marks)


def test_snippets_of_a_text_without_spaces_and_of_one_long_word() -> None:
    assert snippet_of("語" * 997, [TextSpan(500, 502)], None).marks == [TextSpan(99, 101)]
    assert snippet_of("x" * 997, [], None).text == "x" * SNIPPET_CHARS
    assert snippet_of("short", [], None).text == "short"


def test_ten_passages_fit_two_screens(tmp_path: Path, capsys: Capsys) -> None:
    """Words that nearly all passages have are not marked."""
    source, output = tmp_path / "a.jsonl", tmp_path / "library.db"
    texts = [f"The {'engine' if number % 3 else 'machine'} " + "of the long tale " * 40 for number in range(13)]
    source.write_text("".join(json.dumps({"text": f"{text}{number}."}) + "\n" for number, text in enumerate(texts)))
    assert run(["index", f"corpus.path={source}", f"output={output}"]) == 0
    capsys.readouterr()
    assert run(["search", f"index={output}", "question=Is it the machine?"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "   The *machine* of the long tale" in lines[1]
    assert sum(-(-len(line) // 80) for line in lines) <= 48
    (found,) = bertkit.search(index=output, question="the")
    (start, end), *_ = found["answers"][0]["marks"]
    assert found["answers"][0]["snippet"][start:end] == "The"  # without other words, it is


@pytest.mark.parametrize(
    ("text", "part", "is_there"),
    [
        ("in 1914 a war began", "191", False),
        ("concatenate the cats", "cat", False),
        ("concatenate the cat.", "cat", True),
        ("a tie of 19-5", "19", True),
        ("das römische reich", "reich", True),
        ("das österreichische", "reich", False),
        ("东京是日本的首都", "日本", True),
        ("수도는 서울이다", "서울", True),
        ("c++ and c", "c++", True),
    ],
)
def test_an_answer_is_whole_words_of_a_passage(text: str, part: str, is_there: bool) -> None:
    assert has_words(text, part) == is_there
