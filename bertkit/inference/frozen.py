"""The vectors of the model that a fine-tuning starts from, for a baseline where there are few rows: a linear head on them.

With few rows such a head is often better than a fine-tuned model; recipes/own_data has the measurement.
"""

import contextlib
import functools

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import build
from bertkit.inference.embedding import Embedder, open_embedder
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.interop.sentence_transformers.folder import read_pooling
from bertkit.settings.embed import EmbedSettings
from bertkit.settings.finetune import FinetuneSettings
from bertkit.tasks.trainable import Embed

MOST_ROWS = 1000  # training rows: their vectors take as long as a third of an epoch


def frozen_vectors(settings: FinetuneSettings, num_rows: int) -> Embed | None:
    """Return the starting model as a function from texts to vectors; None for many rows, none held out, or no embedding model."""
    model_dir = settings.model_dir
    if model_dir is None or num_rows > MOST_ROWS or settings.dev_share == 0:
        return None
    with contextlib.suppress(InputError):  # the model may be gone when a run is resumed
        if read_pooling(resolve_model_dir(model_dir)) is not None:
            opened = functools.cache(functools.partial(_opened, model_dir, settings))
            return lambda texts: opened().embed(texts, normalize=True).vectors
    return None


def _opened(model_dir: str, settings: FinetuneSettings) -> Embedder:
    from bertkit.settings.reading.compose import compose_values

    own = {"model_dir": model_dir, "device": settings.device, "precision": settings.precision}
    return open_embedder(build(EmbedSettings, compose_values("embed", {"input": "-", "output": "-", **own})))
