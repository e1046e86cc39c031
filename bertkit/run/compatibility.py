"""Whether a model, a tokenizer, a dataset and the settings fit together."""

from pathlib import Path

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import differences, refuse, to_mapping
from bertkit.data.batches.instances import has_instances, stored_settings
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.data.data_config import InstancesConfig, MaskingConfig, SegmentsConfig
from bertkit.interop.load import load_tokenizer
from bertkit.model.bert_config import BertConfig, too_long
from bertkit.settings.evaluate import EvaluateSettings
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings


def settings_of_instances(
    settings: PretrainSettings | EvaluateSettings, dataset: PreparedDataset
) -> tuple[InstancesConfig, MaskingConfig]:
    """Give the settings that the fixed instances of a dataset were made with.

    Raises:
        InputError: there are no instances, or the command line or its experiment sets other values.
    """
    if not has_instances(dataset):
        raise InputError(
            f"data_dir={dataset.directory}: no fixed instances; prepare it with segments=google, or take segments=pairs"
        )
    segments, masking = stored_settings(dataset)
    stored = {"segments": to_mapping(segments), "masking": to_mapping(masking)}
    ours = {"segments": to_mapping(settings.segments), "masking": to_mapping(settings.masking)}
    changed = [
        f"{key}={new!r} here, {old!r} there"
        for key, old, new in differences(stored, ours)
        if key in settings.given or (key.startswith("masking.") and "masking" in settings.given)
    ]
    if changed:
        raise InputError(
            f"data_dir={dataset.directory} holds fixed instances, already cut and masked ({'; '.join(changed)}); leave these "
            "settings out or set them to the same values, or prepare another dataset with them"
        )
    return segments, masking


def check_dataset(
    config: BertConfig,
    dataset: PreparedDataset,
    segments: SegmentsConfig | InstancesConfig,
    setting: str = "segments.max_seq_length",
) -> None:
    """Refuse a model and a dataset that do not fit together; `setting` is the name of the sequence length.

    Raises:
        InputError: another vocabulary size, sequences longer than the model's positions, or pairs for one segment type.
    """
    refuse(
        config.vocab_size != dataset.tokenizer.vocab_size
        and f"the model has a vocabulary of {config.vocab_size}, {dataset.directory} one of {dataset.tokenizer.vocab_size}; "
        "prepare the text with tokenizer.path= set to the model's directory",
        too_long("max_seq_length", segments.max_seq_length, config.max_position_embeddings, setting),
        segments.has_pairs
        and config.type_vocab_size < 2
        and f"the model has type_vocab_size={config.type_vocab_size}, pairs need 2; take segments=full_sentences",
    )


def check_task(settings: FinetuneSettings, config: BertConfig, has_pairs: bool) -> None:
    """Refuse sequences or pairs that a model cannot take.

    Raises:
        InputError: a length exceeds the model's positions, or there are pairs for one segment type.
    """
    limit, generation = config.max_position_embeddings, settings.task.generation
    lengths = {"task.max_seq_length": settings.task.max_seq_length}
    if generation is not None:
        lengths["task.generation.max_target_length"] = generation.max_target_length
    refuse(
        *(too_long(name, length, limit, name) for name, length in lengths.items()),
        has_pairs
        and config.type_vocab_size < 2
        and f"model_dir={settings.model_dir}: type_vocab_size={config.type_vocab_size}, pairs need 2",
    )


def check_vocabulary(model_dir: Path, dataset: PreparedDataset) -> None:
    """Refuse a model whose tokenizer gives the tokens other numbers than the dataset's; it may have no tokenizer.

    Raises:
        InputError: naming the first token that differs.
    """
    folder = model_dir if model_dir.is_dir() else model_dir.parent  # of a TensorFlow checkpoint's prefix
    if not any((folder / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        return
    theirs, ours = load_tokenizer(folder).vocab, dataset.tokenizer.vocab
    if theirs != ours:
        place = next((n for n, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), None)
        first = f"token {place} is {theirs[place]!r} and {ours[place]!r}" if place is not None else "one is longer"
        raise InputError(
            f"{folder} and {dataset.directory} have vocabularies of {len(theirs)} and {len(ours)} ({first}); prepare the text "
            f"with tokenizer.path={folder}"
        )


def check_tokenizer(model_dir: str, tokenizer: Tokenizer, config: BertConfig) -> None:
    """Refuse a tokenizer with another number of tokens than its model, or other first and last tokens of a text.

    Raises:
        InputError: with both numbers.
    """
    if tokenizer.vocab_size != config.vocab_size:
        raise InputError(
            f"model_dir={model_dir}: the tokenizer has {tokenizer.vocab_size} tokens, the model {config.vocab_size}; "
            "restore the tokenizer that the model was trained with"
        )
    decoder, facts = config.decoder, tokenizer.facts
    if decoder is not None and (decoder.start_token_id, decoder.end_token_id) != (facts.cls, facts.sep):
        raise InputError(
            f"model_dir={model_dir}: its texts begin with token {decoder.start_token_id} and end with {decoder.end_token_id}; "
            f"expected [CLS] and [SEP], {facts.cls} and {facts.sep}: set decoder_start_token_id and eos_token_id of its config.json"
        )
