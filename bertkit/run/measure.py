"""What a model measures on prepared text, and whether a model, a tokenizer and a dataset fit together."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from torch import nn

from bertkit.base.batch import PretrainBatch
from bertkit.base.errors import InputError
from bertkit.base.typed_settings import differences, to_mapping
from bertkit.data.batches.instances import has_instances, stored_settings
from bertkit.data.batches.sampling import ExampleSource
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.data.data_config import InstancesConfig, MaskingConfig, SegmentsConfig
from bertkit.interop.load import load_tokenizer
from bertkit.model.bert_config import BertConfig, too_long
from bertkit.run.objective import pretraining_losses
from bertkit.settings.evaluate import EvaluateSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train import loop
from bertkit.train.processes import Accelerator


def measure_split(
    accelerator: Accelerator,
    model: nn.Module,
    sampler: ExampleSource,
    max_sequences: int | None,
    batch_sequences: int,
    precision: str = "fp32",
) -> dict[str, tuple[float, int]]:
    """Give `mlm_loss`, `mlm_accuracy`, `nsp_loss` and `nsp_accuracy` of a split, each with its number of predictions.

    The sequences are the same every time; each process takes a range of its own.
    """
    total = sampler.epoch_length if max_sequences is None else min(max_sequences, sampler.epoch_length)
    rank, size = accelerator.process_index, accelerator.num_processes
    first, last = total * rank // size, total * (rank + 1) // size

    def batches() -> Iterator[PretrainBatch]:
        for start in range(first, last, batch_sequences):
            yield sampler.in_order(start, min(start + batch_sequences, last))

    results = loop.evaluate(accelerator, model, functools.partial(pretraining_losses, precision=precision), batches())
    return {
        f"{name}_{kind}": (value, result.count)
        for name, result in results.items()
        for kind, value in (("loss", result.loss), ("accuracy", result.accuracy))
    }


def as_stored(
    settings: PretrainSettings | EvaluateSettings, dataset: PreparedDataset
) -> tuple[InstancesConfig, MaskingConfig]:
    """Give the settings of the stored instances.

    Raises:
        InputError: there are none, or the command line or its experiment asks for something else than what is stored.
    """
    if not has_instances(dataset):
        raise InputError(
            f"data_dir={dataset.directory}: no fixed instances for segments=google; make them with bertkit prepare "
            "segments=google, or take segments=pairs"
        )
    segments, masking = stored_settings(dataset)
    wanted = {"segments": to_mapping(settings.segments), "masking": to_mapping(settings.masking)}
    stored = {"segments": to_mapping(segments), "masking": to_mapping(masking)}
    changed = [
        f"{key}={new!r} here, {old!r} there"
        for key, old, new in differences(stored, wanted)
        if key in settings.given or (key.startswith("masking.") and "masking" in settings.given)
    ]
    if changed:
        raise InputError(
            f"data_dir={dataset.directory} holds fixed instances, cut and masked already ({'; '.join(changed)}); leave these "
            "settings out or set them as there, or prepare another dataset with them"
        )
    return segments, masking


def check_fit(
    config: BertConfig,
    dataset: PreparedDataset,
    segments: SegmentsConfig | InstancesConfig,
    setting: str = "segments.max_seq_length",
) -> None:
    """Refuse a model and a dataset that do not belong together; `setting` is what the caller calls the length.

    Raises:
        InputError: another vocabulary size, sequences longer than the model's positions, or pairs for one segment type.
    """
    problems = []
    if config.vocab_size != dataset.tokenizer.vocab_size:
        problems.append(
            f"the model has a vocabulary of {config.vocab_size}, {dataset.directory} one of {dataset.tokenizer.vocab_size}; "
            "prepare the text with tokenizer.path= set to the model's directory"
        )
    problems += too_long("max_seq_length", segments.max_seq_length, config.max_position_embeddings, setting)
    if segments.has_pairs and config.type_vocab_size < 2:
        problems.append(
            f"the model has type_vocab_size={config.type_vocab_size}, pairs need 2; take segments=full_sentences"
        )
    if problems:
        raise InputError(*problems)


def check_vocabulary(source: Path, dataset: PreparedDataset) -> None:
    """Refuse a model whose own tokenizer numbers the tokens otherwise than the dataset's; a model may come without one.

    Raises:
        InputError: naming the first token that differs.
    """
    folder = source if source.is_dir() else source.parent  # of a TensorFlow checkpoint's prefix
    if not any((folder / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        return
    theirs, ours = load_tokenizer(folder).vocab, dataset.tokenizer.vocab
    if theirs != ours:
        place = next((n for n, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), None)
        what = f"token {place} is {theirs[place]!r} and {ours[place]!r}" if place is not None else "one is longer"
        raise InputError(
            f"{folder}: its vocabulary of {len(theirs)} is not that of {dataset.directory}, {len(ours)} ({what}); prepare "
            f"the text with tokenizer.path={folder}"
        )


def check_tokenizer(model_dir: str, tokenizer: Tokenizer, config: BertConfig) -> None:
    """Refuse a model directory whose tokenizer has another number of tokens than its model, or other ends of texts.

    Raises:
        InputError: it has.
    """
    if tokenizer.vocab_size != config.vocab_size:
        raise InputError(
            f"model_dir={model_dir}: the tokenizer has {tokenizer.vocab_size} tokens, the model {config.vocab_size}; they "
            "do not belong together"
        )
    decoder, facts = config.decoder, tokenizer.facts
    if decoder is not None and (decoder.start_token_id, decoder.end_token_id) != (facts.cls, facts.sep):
        raise InputError(
            f"model_dir={model_dir}: its texts begin with token {decoder.start_token_id} and end with {decoder.end_token_id}; "
            f"expected [CLS] and [SEP], {facts.cls} and {facts.sep}: set decoder_start_token_id and eos_token_id of its config.json"
        )
