"""Tokenizers that a class of `transformers` builds from its files, such as XLMRobertaTokenizer, and those that are Python code."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

from bertkit.base.errors import InputError, in_one_line, refusing
from bertkit.base.typed_settings import refuse
from bertkit.data.library_calls import check_sizes, library_call
from bertkit.data.tokenizers.files import BERT, CONFIG, Files
from bertkit.data.tokenizers.published import Built


def built_by_class(files: Files) -> Built | None:
    """Return the tokenizer that the class named in the files builds; None if no class of its own is needed.

    Raises InputError if the class computes in Python, which the library `tokenizers` cannot do, or needs a package that is not installed.
    """
    name = files.class_name
    if name in ("", BERT):
        return None
    check_sizes(files.path, files.content)
    import transformers
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name
    from transformers.utils import is_protobuf_available, is_sentencepiece_available

    found = tokenizer_class_from_name(name)
    if found is None:  # code beside a model, which is not run: transformers takes tokenizer.json as it is
        return None
    if not issubclass(found, transformers.PreTrainedTokenizerFast):
        raise InputError(
            f"{files.path.with_name(CONFIG)}: tokenizer_class={name}: it has no fast form: transformers computes it in Python, for Japanese with the "
            "package fugashi; use transformers, or a model with a tokenizer.json that says the same"
        )
    if files.is_other:
        if files.path.name not in found.vocab_files_names.values():  # it would begin with an empty vocabulary
            return None
        has_packages = is_sentencepiece_available() and is_protobuf_available()
        refuse(
            files.path.suffix == ".model"
            and not has_packages
            and f"{files.path}: transformers reads a SentencePiece model with two more packages: pip install sentencepiece protobuf"
        )
    wrong = f"{files.path.with_name(CONFIG)}: tokenizer_class={name}: transformers cannot build it"
    failing = refusing(Exception, lambda error: f"{wrong} ({in_one_line(error):.200})")  # errors of every kind
    with failing, library_call(), _quietly():
        theirs = transformers.AutoTokenizer.from_pretrained(
            files.path.parent, local_files_only=True, trust_remote_code=False
        )
    names = {role: str(token) for role, token in theirs.special_tokens_map.items() if isinstance(token, str)}
    settings = {
        "model_input_names": [*theirs.model_input_names], "truncation_side": theirs.truncation_side,
        "padding_side": theirs.padding_side, "split_special_tokens": theirs.split_special_tokens,
    }  # fmt: skip
    library = theirs.backend_tokenizer
    library.no_padding()
    library.no_truncation()
    return Built(library, {**names, **settings})


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep `transformers` from logging and warning."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
