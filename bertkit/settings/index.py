"""The settings of `bertkit index`."""

from dataclasses import dataclass
from typing import Literal

from bertkit.base.typed_settings import refuse, unused
from bertkit.data.data_config import CorpusConfig, PassagesConfig
from bertkit.settings.command import Command, CommandSettings


@dataclass(frozen=True)
class IndexSettings(CommandSettings):
    """`bertkit index`."""

    corpus: CorpusConfig
    passages: PassagesConfig
    model_dir: str | None  # the encoder that makes a vector for each passage; None for a library without vectors
    vectors: Literal["float32", "int8"]
    output: str
    remove: bool  # whether to remove documents whose file is no longer in the corpus

    def __post_init__(self) -> None:
        refuse(
            unused(self, "", ("vectors", self.model_dir is None, "without model_dir=", "float32")),
            unused(
                self.corpus, "corpus.", ("deduplicate", True, "on a library, which keeps every document by its name")
            ),
            self.corpus.source != "python_docs"
            and not self.corpus.path
            and "missing value: set corpus.path= to files, folders or globs (or use corpus=python_docs)",
            self.output in ("", "-") and f"output={self.output}: expected a file name, such as library.db",
        )

    @property
    def computes(self) -> bool:
        """Whether passages get vectors; the device is chosen as with device=auto."""
        return self.model_dir is not None


COMMAND = Command(
    "index",
    IndexSettings,
    stage="bertkit.stages.index",
    needs="text",
    gives="a library of passages for full-text search, and search by vectors",
)
