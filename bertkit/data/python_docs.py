"""The embedded corpus: the documentation that ships with every Python, cleaned to prose.

Two sources, read from the user's own Python at run time: the language reference of `pydoc help`, one document per topic,
and the docstrings of the standard library, one document per file. The text changes a little with the Python
version and is under the PSF licence.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from bertkit.data.text_files import split_sentences

SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__", "turtledemo"}
WITHOUT_SOURCES = ("argparse", "asyncio", "collections", "logging", "os", "re", "string", "subprocess", "unittest")
MIN_WORDS = 8


@functools.cache
def python_documents() -> tuple[list[str], ...]:
    """Give the documents, each a list of sentences; about 1.5 MB, gathered once."""
    seen: set[str] = set()
    documents = []
    for texts in _sources():
        sentences = dict.fromkeys(sentence for text in texts for sentence in _prose(text))
        document = [sentence for sentence in sentences if sentence not in seen]
        seen.update(document)
        if len(document) >= 2:
            documents.append(document)
    return tuple(documents)


def _sources() -> Iterator[list[str]]:
    """The raw texts of each document."""
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        topics = {}
    for name in sorted(topics):
        yield [topics[name]]
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = [
        path for path in sorted(library.rglob("*.py")) if not SKIPPED.intersection(path.relative_to(library).parts)
    ]
    for path in paths:
        yield _docstrings(path)
    if not paths:  # a Python without its sources, zipped or compiled
        for name in WITHOUT_SOURCES:
            module = importlib.import_module(name)
            members = [member for _, member in inspect.getmembers(module) if inspect.getmodule(member) is module]
            yield [inspect.getdoc(member) or "" for member in [module, *members]]


def _docstrings(path: Path) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, OSError, RecursionError):
        return []
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, owners)]


_MARKUP = [
    (re.compile(r":[a-z:]+:`~?([^`<]*?)(?:\s*<[^>]*>)?`"), r"\1"),  # :class:`Name`
    (re.compile(r"``?([^`]*)``?"), r"\1"),
    (re.compile(r"(?<!\w)\*{1,2}(\w[^*]*)\*{1,2}(?!\w)"), r"\1"),  # *emphasis*
    (re.compile(r"\s*\[\d+\]_?"), ""),  # footnote marks
    (re.compile(r'"([\w.()\[\]]+)"'), r"\1"),  # the topics quote code
]


def _prose(text: str) -> Iterator[str]:
    """The sentences of the paragraphs that read as prose."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.strip("\n").splitlines()
        if not lines or ">>>" in paragraph or "::=" in paragraph or "--" in paragraph:
            continue
        first = lines[0]
        if first.startswith(("    ", "\t", "@", "#", "|", "+", "=")) or re.match(r"\s*[-*•]\s*$", first):
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
