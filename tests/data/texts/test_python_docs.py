"""The embedded corpus: enough prose, the same every time, and clean."""

import itertools
from collections.abc import Iterator

import pytest

from bertkit.data.data_config import CorpusConfig
from bertkit.data.texts import python_docs
from bertkit.data.texts.documents import open_corpus


@pytest.fixture
def first_documents(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only the topics and the first files of the library."""
    gather = python_docs._python_texts
    monkeypatch.setattr(python_docs, "_python_texts", lambda: itertools.islice(gather(), 90))
    python_docs.python_documents.cache_clear()
    yield
    python_docs.python_documents.cache_clear()


def check(documents: tuple[list[str], ...]) -> None:
    sentences = [sentence for document in documents for sentence in document]
    assert len(set(sentences)) == len(sentences)
    assert all(len(document) >= 2 for document in documents)
    for sentence in sentences:
        assert len(sentence.split()) >= 8
        assert sentence[-1] in ".!?:"
        assert sentence == sentence.strip()
        assert "\n" not in sentence
        assert ">>>" not in sentence
        sentence.encode()


@pytest.mark.usefixtures("first_documents")
def test_python_docs_are_prose_and_need_no_path() -> None:
    documents = python_docs.python_documents()
    assert len(documents) > 60
    check(documents)
    corpus = open_corpus(CorpusConfig("python_docs", None, "text", "text", "lines", "utf-8", None, "train"))
    assert tuple(corpus) == documents
    assert corpus.total_bytes is None
    assert not corpus.has_document_breaks


@pytest.mark.slow
def test_python_docs_are_large_enough_and_reproducible() -> None:
    documents = python_docs.python_documents()
    assert len(documents) > 200
    assert sum(len(sentence.split()) for document in documents for sentence in document) > 100_000
    check(documents)
    python_docs.python_documents.cache_clear()
    assert python_docs.python_documents() == documents


def test_prose_is_extracted_as_by_hand() -> None:
    text = """\
        The :class:`~io.Reader` reads ``bytes`` from *any* file that is open. It says "os.path" twice or even more often [1]_.

        >>> this is code that nobody should ever read as if it were prose.

        Too short.

            An indented block that is long enough to be prose but is probably code.

        - An item of a list that is long enough to be read as a sentence."""
    lines = "\n".join(line.removeprefix("        ") for line in text.split("\n"))
    assert list(python_docs._prose(lines)) == [
        "The io.Reader reads bytes from any file that is open.",
        "It says os.path twice or even more often.",
        "An item of a list that is long enough to be read as a sentence.",
    ]
