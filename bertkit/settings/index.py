"""What `bertkit index` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertkit.data.config import CorpusConfig, PassagesConfig
from bertkit.errors import InputError


@dataclass(frozen=True)
class IndexSettings:
    """`bertkit index`.

    Attributes:
        format: of all files, where neither their endings nor their beginnings say that they are of one of these.
        remove: take out what is in the library of files that the corpus no longer has.
    """

    corpus: CorpusConfig
    passages: PassagesConfig
    output: str
    format: Literal["squad", "conll", "conllu"] | None
    remove: bool

    def __post_init__(self) -> None:
        problems = []
        if self.corpus.source != "python_docs" and not self.corpus.path:
            problems.append("missing value: set corpus.path= to files, folders or globs (or take corpus=python_docs)")
        if self.format is not None and (self.corpus.source != "files" or self.corpus.format != "auto"):
            given = "corpus.format" if self.corpus.source == "files" else f"corpus={self.corpus.source}"
            problems.append(f"format={self.format}: has no effect with {given}; leave one of them out")
        if self.output in ("", "-"):
            problems.append(f"output={self.output}: a library is a file; choose a name such as library.db")
        if problems:
            raise InputError(*problems)
