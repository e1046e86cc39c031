"""What `bertkit index` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertkit.config import refuse, unused
from bertkit.data.config import CorpusConfig, PassagesConfig


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
        is_files = self.corpus.source == "files"
        refuse(
            self.corpus.source != "python_docs"
            and not self.corpus.path
            and "missing value: set corpus.path= to files, folders or globs (or take corpus=python_docs)",
            unused(
                self,
                "",
                ("format", not is_files, f"with corpus={self.corpus.source}"),
                ("format", is_files and self.corpus.format != "auto", "with corpus.format"),
            ),
            self.output in ("", "-") and f"output={self.output}: a library is a file; choose a name such as library.db",
        )
