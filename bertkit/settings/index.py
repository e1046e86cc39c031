"""What `bertkit index` accepts."""

from __future__ import annotations

from dataclasses import dataclass

from bertkit.data.config import CorpusConfig, PassagesConfig
from bertkit.errors import InputError


@dataclass(frozen=True)
class IndexSettings:
    """`bertkit index`."""

    corpus: CorpusConfig
    passages: PassagesConfig
    output: str
    remove: bool  # take out what is in the library of files that the corpus no longer has

    def __post_init__(self) -> None:
        problems = []
        if self.corpus.source != "python_docs" and not self.corpus.path:
            problems.append("missing value: set corpus.path= to files, folders or globs (or take corpus=python_docs)")
        if self.output in ("", "-"):
            problems.append(f"output={self.output}: a library is a file; choose a name such as library.db")
        if problems:
            raise InputError(*problems)
