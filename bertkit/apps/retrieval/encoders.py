"""The encoder of a library: a model that makes the vectors of its passages, and then those of questions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from bertkit.apps.retrieval.library import Library
from bertkit.apps.retrieval.library_file import EncoderIdentity
from bertkit.apps.retrieval.vectors import Numbers
from bertkit.base.errors import InputError
from bertkit.base.typed_settings import refuse

if TYPE_CHECKING:
    from bertkit.inference.embedding import Embedder


class PassageEncoder:
    """A model as a function from texts to vectors, whose products are their similarity; it has its own pooling and prompts.

    The similarity is the cosine, of vectors of length 1, or the dot product, if the model's folder says so.
    """

    def __init__(
        self,
        model_dir: str,
        setting: str,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        numbers: Numbers = "float32",
    ) -> None:
        """Load any model that `bertkit embed` takes; `setting` is its name in messages, `numbers` how a library stores vectors."""
        from bertkit.inference.embedding import load_embedder  # imports torch, which takes seconds
        from bertkit.interop.model_dir import hashes_of, resolve_model_dir

        directory = resolve_model_dir(model_dir, setting)
        self.embedder: Embedder = load_embedder(directory, device=device)
        pooling = self.embedder.pooling
        refuse(
            pooling.similarity not in ("cosine", "dot")
            and f"{setting}={model_dir}: similarity_fn_name={pooling.similarity!r} is not supported; a library has cosine and dot"
        )
        self._prompts = pooling.prompts
        self._normalize = True if pooling.similarity == "cosine" else None
        files = f"({sorted(hashes_of(directory).items())!r}, {pooling.identity})"
        digest = hashlib.blake2b(files.encode(), digest_size=16).hexdigest()
        self.identity = EncoderIdentity(str(directory.absolute()), digest, self.embedder.dimension, numbers)
        self.num_cut = 0  # texts that were too long

    def of_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of passages, (n, D), with the prompt for documents."""
        vectors, num_cut = self.embedder.embed(texts, self._normalize, self._prompts.get("document", ""))
        self.num_cut += num_cut
        return vectors

    def of_question(self, text: str) -> tuple[NDArray[np.float32], bool]:
        """Return the vector of a question, (D,), with the prompt for queries, and whether the question was cut."""
        vectors, num_cut = self.embedder.embed([text], self._normalize, self._prompts.get("query", ""))
        return vectors[0], num_cut > 0

    def check(self, library: Library) -> None:
        """Raise InputError unless this model made the library's vectors."""
        if library.encoder != self.identity:
            made_by = "it has none" if library.encoder is None else f"they are from {library.encoder.model_dir}"
            raise InputError(
                f"index={library.path}: its vectors are not from the model {self.identity.model_dir} ({made_by}); "
                "set encoder= to the model that made them, or repeat bertkit index with model_dir="
            )


def encoder_of(
    library: Library, model_dir: str | None, device: Literal["auto", "cpu", "cuda"] = "auto"
) -> PassageEncoder | None:
    """Load the encoder of a library, from `model_dir` or where it was; None without vectors. Raises InputError for another model."""
    place = model_dir if library.encoder is None else model_dir or library.encoder.model_dir
    if place is None:
        return None
    encoder = PassageEncoder(place, "encoder", device)
    encoder.check(library)
    return encoder
