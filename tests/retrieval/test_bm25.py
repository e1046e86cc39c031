"""BM25: the same passages as by FTS5's own function, in the same order."""

import contextlib
import itertools
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import real_data
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.apps.retrieval import bm25
from bertkit.apps.retrieval.library import Library
from bertkit.apps.retrieval.library_writer import opened_for_writing
from bertkit.apps.retrieval.passages import LibraryDocument, document_of_text, words_of
from bertkit.apps.retrieval.questions import read_questions
from bertkit.data.data_config import PassagesConfig, Stemming
from bertkit.stages.index import _squad_documents


def add(path: Path, stemming: Stemming, name: str, documents: Sequence[LibraryDocument]) -> None:
    with opened_for_writing(path, PassagesConfig(20, 5, stemming, "drop")) as library:
        library.sync(name, None, documents)


def check(path: Path, stemming: Stemming, questions: Sequence[str], num_hits: int) -> None:
    """Compare a library's answers with those of FTS5."""
    library = Library(path)
    best = "SELECT rowid, -bm25(words) FROM words WHERE words MATCH ? ORDER BY bm25(words), rowid LIMIT ?"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for question in questions:
            asked = " OR ".join(f'"{word}"' for word in words_of(question, (), stemming))
            expected = connection.execute(best, (asked, num_hits)).fetchall() if asked else []
            hits = library.find(question, num_hits)
            assert [hit.id for hit in hits] == [passage for passage, _ in expected], question
            assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], rel=1e-13)


WORDS = ["the", "a", "résumé", "resume", "running", "runs", "Ёж", "日本", "7", "x", "y", "z"]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(" ".join), min_size=1, max_size=12)


@settings(max_examples=10, deadline=None)
@given(
    TEXTS, TEXTS, TEXTS, TEXTS, st.sampled_from([1, 5, 1000]), st.integers(1, 9), st.sampled_from(["none", "english"])
)
def test_the_ranking_is_that_of_fts5(
    first: list[str],
    second: list[str],
    changed: list[str],
    questions: list[str],
    frequent: int,
    num_hits: int,
    stemming: Stemming,
) -> None:
    """With all, some or no words stored as frequent, and after documents went and others came."""
    with tempfile.TemporaryDirectory() as folder, patch.object(bm25, "FREQUENT", frequent):
        path = Path(folder) / "library.db"
        for name, texts in (("a", first), ("b", second), ("a", changed)):
            title, unit = texts[0], "text"
            add(path, stemming, name, [document_of_text(text, title, unit, n) for n, text in enumerate(texts, 1)])
            check(path, stemming, questions, num_hits)


@pytest.mark.parametrize(("language", "stemming"), [("en", "english"), ("ar", "none")])
def test_real_questions_have_the_ranking_of_fts5(
    language: str, stemming: Stemming, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bm25, "FREQUENT", 50)
    source, path = real_data("xquad", f"xquad.{language}.json"), tmp_path / "library.db"
    add(path, stemming, "xquad", _squad_documents(source))
    questions = [question.text for question in itertools.islice(read_questions(str(source)), 200)]
    check(path, stemming, questions, 20)
