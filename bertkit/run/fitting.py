"""Checks that a model fits its tokenizer, the data and the settings."""

from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import refuse
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.data.data_config import AnySegments
from bertkit.interop.load import load_tokenizer
from bertkit.interop.model_dir import folder_of, has_tokenizer
from bertkit.model.bert_config import BertConfig
from bertkit.settings.finetune import FinetuneSettings


def check_dataset(
    config: BertConfig,
    dataset: PreparedDataset,
    segments: AnySegments,
    source: Path | None = None,
    longest: int | None = None,
) -> None:
    """Raise InputError if vocabularies differ, a length exceeds the model's positions, or pairs need a second segment type.

    `source` is the model's directory, `longest` the length of a final phase.
    """
    refuse(
        not dataset.tokenizer.fits(config.vocab_size)
        and f"the model has a vocabulary of {config.vocab_size} tokens, {dataset.directory} has {dataset.tokenizer.vocab_size}; "
        "prepare the text with tokenizer.path= set to the model's directory",
        config.too_long("max_seq_length", segments.max_seq_length, "segments.max_seq_length"),
        config.too_long("max_seq_length", longest or 0, "final_phase.max_seq_length"),
        segments.has_pairs
        and config.type_vocab_size == 1
        and f"the model has type_vocab_size={config.type_vocab_size}, pairs need 2; set segments=full_sentences",
    )
    if source is not None:
        _check_vocabulary(source, dataset)


def _check_vocabulary(model_dir: Path, dataset: PreparedDataset) -> None:
    """Raise InputError if the model and the dataset have different vocabularies; a model without a tokenizer is accepted."""
    folder = folder_of(model_dir)
    if not has_tokenizer(folder):
        return
    theirs, ours = load_tokenizer(folder).vocab, dataset.tokenizer.vocab
    if theirs != ours:
        index = next((n for n, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), None)
        first = f"token {index} is {theirs[index]!r} and {ours[index]!r}" if index is not None else "one is longer"
        raise InputError(
            f"{folder} and {dataset.directory} have different vocabularies of {len(theirs)} and {len(ours)} tokens ({first}); "
            f"prepare the text with tokenizer.path={folder}"
        )


def check_tokenizer(named: str, tokenizer: Tokenizer, config: BertConfig) -> None:
    """Raise InputError if the tokenizer does not fit the model's token embeddings, or a decoder does not use [CLS] and [SEP]; `named` is the model."""
    if not tokenizer.fits(config.vocab_size):
        raise InputError(
            f"{named}: the tokenizer has {tokenizer.vocab_size} tokens, the model {config.vocab_size}; "
            "restore the tokenizer that the model was trained with"
        )
    decoder = config.decoder
    if decoder is None:
        return
    facts = tokenizer.facts
    if (decoder.start_token_id, decoder.end_token_id) != (facts.cls, facts.sep):
        raise InputError(
            f"{named}: its texts begin with token {decoder.start_token_id} and end with {decoder.end_token_id}; "
            f"expected [CLS] and [SEP], {facts.cls} and {facts.sep}: set decoder_start_token_id and eos_token_id of its config.json"
        )


def check_task(settings: FinetuneSettings, config: BertConfig, tokenizer: Tokenizer, has_pairs: bool) -> None:
    """Raise InputError if a length exceeds the model's positions, or there are pairs for a model with one segment type."""
    refuse(
        settings.task.length_problems(config),
        has_pairs
        and 0 < config.type_vocab_size <= tokenizer.largest_type
        and f"model_dir={settings.model_dir}: type_vocab_size={config.type_vocab_size}, pairs need 2",
    )
