"""The documentation bundled with Python, as a corpus.

It comes from the user's own Python: the language reference of `pydoc help`, one document per topic, and the docstrings of the
standard library, one document per file. Only sentences of prose are kept. The text differs a little between Python versions
and is under the PSF licence.
"""

import ast
import functools
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertkit.data.texts.sources import split_sentences

SKIPPED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__", "turtledemo"}
MIN_WORDS = 8


@functools.cache
def python_documents() -> Sequence[list[str]]:
    """Return the documents of corpus=python_docs, about 1.5 MB; they are collected once."""
    seen: set[str] = set()
    documents = []
    for texts in _python_texts():
        sentences = dict.fromkeys(sentence for text in texts for sentence in _prose(text))
        document = [sentence for sentence in sentences if sentence not in seen]
        seen.update(document)
        if len(document) >= 2:
            documents.append(document)
    return tuple(documents)


def _python_texts() -> Iterator[list[str]]:
    """Yield the texts of each document, before they are reduced to prose."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield [topics[name]]
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if not SKIPPED_FOLDERS.intersection(path.relative_to(library).parts):
            yield _docstrings(path)


def _docstrings(path: Path) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, OSError, RecursionError):
        return []
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [ast.get_docstring(node) or "" for node in _statements(tree) if isinstance(node, owners)]


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield what may hold a docstring, in the order of `ast.walk`, without the many expressions."""
    level: list[ast.AST] = [tree]
    while level:
        yield from level
        children = (child for node in level for child in ast.iter_child_nodes(node))
        level = [child for child in children if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)]


_MARKUP = [
    (re.compile(r":[a-z:]+:`~?([^`<]*?)(?:\s*<[^>]*>)?`"), r"\1"),  # :class:`Name`
    (re.compile(r"``?([^`]*)``?"), r"\1"),
    (re.compile(r"(?<!\w)\*{1,2}(\w[^*]*)\*{1,2}(?!\w)"), r"\1"),  # *emphasis*
    (re.compile(r"\s*\[\d+\]_?"), ""),  # footnote marks
    (re.compile(r'"([\w.()\[\]]+)"'), r"\1"),  # the topics quote code
]


# what is in a paragraph of code or grammar, and how one begins that is code, a table, or a bullet alone in its line
_NO_PROSE = re.compile(r">>>|::=|--|\A(?: {4}|[\t@#|+=]|\s*[-*•][^\S\n]*(?:\n|\Z))")


def _prose(text: str) -> Iterator[str]:
    """Yield the sentences of the paragraphs that are prose."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.strip("\n").splitlines()
        if _NO_PROSE.search("\n".join(lines)):
            continue
        joined = " ".join(line.strip() for line in lines)
        joined = re.sub(r"^[-*•]\s+", "", joined)
        for pattern, replacement in _MARKUP:
            joined = pattern.sub(replacement, joined)
        for sentence in split_sentences(joined):
            words = sentence.split()
            letters = sum(character.isalpha() or character.isspace() for character in sentence)
            if len(words) >= MIN_WORDS and letters >= 0.8 * len(sentence) and sentence[-1] in ".!?:":
                yield sentence
