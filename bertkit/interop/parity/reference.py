"""How `transformers` is asked: strictly, so that nothing that it says is missed."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

from bertkit.base.errors import InputError


class UncleanError(InputError):
    """`transformers` cannot load a directory, or not without a warning."""


@contextlib.contextmanager
def strictly(directory: Path, what: str) -> Iterator[None]:
    """Raise UncleanError if loading a directory raises, logs, warns or prints anything."""
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
        raise UncleanError(f"{directory}: transformers does not load {what}: {' '.join(str(error).split())}") from None
    finally:
        logger.handlers = handlers
        transformers.logging.set_verbosity(verbosity)
    messages += [str(warning.message) for warning in caught if "transformers" in str(warning.filename)]
    messages += [line for line in printed.getvalue().splitlines() if line.strip()]
    if messages and "make sure `config.is_decoder=False`" not in messages[0]:  # it is causal on purpose
        raise UncleanError(f"{directory}: transformers does not load {what} cleanly: {messages}")
