"""Models and tokenizers of `transformers`, loaded strictly. No other file imports it."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import load_tokenizer

# settings of a config.json that change how a model computes, and not the result
PLAIN = {"attn_implementation": "sdpa", "return_dict": True, "chunk_size_feed_forward": 0}


def load_in_transformers(directory: Path, architecture: str, dtype: torch.dtype, with_pooler: bool = True) -> Any:
    """Load a directory with `transformers`, strictly.

    Raises:
        InputError: a tensor is missing or left over, or there was a log message or a warning.
    """
    import transformers

    bare = {"add_pooling_layer": False} if architecture == "BertModel" and not with_pooler else {}
    with _recorded() as messages:
        try:
            model, info = getattr(transformers, architecture).from_pretrained(
                directory, dtype=dtype, output_loading_info=True, local_files_only=True, **PLAIN, **bare
            )
        except Exception as error:  # transformers raises many kinds
            raise InputError(f"{directory}: transformers does not load it: {' '.join(str(error).split())}") from None
    left = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if left or messages:
        raise InputError(f"{directory}: transformers does not load it cleanly as {architecture}: {left or messages}")
    return model.eval()


@contextlib.contextmanager
def _recorded() -> Iterator[list[str]]:
    """Collect log messages, warnings and output."""
    import transformers

    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    transformers.logging.disable_progress_bar()
    handlers, logger.handlers = logger.handlers, [handler]  # recorded instead of printed
    printed = io.StringIO()
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(printed):
            warnings.simplefilter("default")
            yield messages
        messages += [str(warning.message) for warning in caught if "transformers" in str(warning.filename)]
        messages += [line for line in printed.getvalue().splitlines() if line.strip()]
    finally:
        logger.handlers = handlers
        transformers.logging.set_verbosity(verbosity)


def same_ids(directory: Path, texts: Sequence[tuple[str, str]]) -> None:
    """Check that `AutoTokenizer` and bertkit return the same ids."""
    import transformers

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with _recorded() as messages:
        try:
            theirs = transformers.AutoTokenizer.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # transformers raises many kinds
            reason = " ".join(str(error).split())
            raise InputError(f"{directory}: transformers does not load the tokenizer: {reason}") from None
    if messages:
        raise InputError(f"{directory}: transformers does not load the tokenizer cleanly: {messages}")
    ours = load_tokenizer(directory)
    for first, second in texts:
        encoded, reference = ours(first, second), theirs(first, second)
        if any(encoded[key] != list(reference[key]) for key in encoded):
            raise InputError(f"{directory}: the tokenizers differ on {first!r}, {second!r}")
