"""Strict loading with `transformers`: models and tokenizers that load without any message. The only file that imports it."""

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

# settings of a config.json that change the way of computing or the output format, but no value
PLAIN = {"attn_implementation": "sdpa", "return_dict": True, "chunk_size_feed_forward": 0}


def load_in_transformers(directory: Path, architecture: str, dtype: torch.dtype, with_pooler: bool = True) -> Any:
    """Load a directory with `transformers`, strictly.

    Raises:
        InputError: a tensor is missing or left over, or loading logged or warned anything.
    """
    import transformers

    bare = {"add_pooling_layer": False} if architecture == "BertModel" and not with_pooler else {}
    with _strictly(directory, f"the model as {architecture}"):
        model, info = getattr(transformers, architecture).from_pretrained(
            directory, dtype=dtype, output_loading_info=True, local_files_only=True, **PLAIN, **bare
        )
        problems = {key: sorted(map(str, value)) for key, value in info.items() if value}
        if problems:
            raise InputError(f"{directory}: transformers does not load the model as {architecture} cleanly: {problems}")
    return model.eval()


@contextlib.contextmanager
def _strictly(directory: Path, what: str) -> Iterator[None]:
    """Refuse a directory if loading it raises, logs, warns or prints anything."""
    import transformers

    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    transformers.logging.disable_progress_bar()
    handlers, logger.handlers = logger.handlers, [handler]  # recorded, and not printed
    printed = io.StringIO()
    try:
        with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(printed):
            warnings.simplefilter("default")
            yield
    except InputError:
        raise
    except Exception as error:  # transformers raises errors of every kind
        raise InputError(f"{directory}: transformers does not load {what}: {' '.join(str(error).split())}") from None
    finally:
        logger.handlers = handlers
        transformers.logging.set_verbosity(verbosity)
    messages += [str(warning.message) for warning in caught if "transformers" in str(warning.filename)]
    messages += [line for line in printed.getvalue().splitlines() if line.strip()]
    if messages:
        raise InputError(f"{directory}: transformers does not load {what} cleanly: {messages}")


def same_ids(directory: Path, texts: Sequence[tuple[str, str]]) -> None:
    """Check that `AutoTokenizer` gives the same ids as bertkit."""
    import transformers

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with _strictly(directory, "the tokenizer"):
        theirs = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    ours = load_tokenizer(directory)
    for first, second in texts:
        encoded, reference = ours(first, second), theirs(first, second)
        if any(encoded[key] != list(reference[key]) for key in encoded):
            raise InputError(f"{directory}: the tokenizers differ on {first!r}, {second!r}")
