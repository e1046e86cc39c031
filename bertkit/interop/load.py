"""Load a model and its tokenizer from any model directory."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from bertkit.base import plugins
from bertkit.base.errors import InputError, counted, warn
from bertkit.base.hub_ids import path_of
from bertkit.base.processors import check_precision
from bertkit.base.typed_settings import refuse
from bertkit.data.corpus.tokenizer import Rules, Tokenizer
from bertkit.data.corpus.tokenizer import load_tokenizer as load_tokenizer_files
from bertkit.interop.hugging_face.config_json import changed_from_bert
from bertkit.interop.hugging_face.tokenizer_classes import built_by_class
from bertkit.interop.model_dir import folder_of, resolve_model_dir
from bertkit.interop.padded import PaddedBert
from bertkit.interop.sentence_transformers.folder import max_length_of
from bertkit.interop.sentence_transformers.modules import encoder_dir
from bertkit.interop.stored import Stored, fit, read_stored, relabel
from bertkit.model.bert_config import (
    DecoderConfig,
    HeadConfig,
    ProblemType,
    head_problems,
)
from bertkit.model.head.head import any_pooled, head_of, is_of_task
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights
from bertkit.train.checkpoint_files import checkpoints_dir


@dataclass(frozen=True)
class LoadReport:
    """What happened to every parameter and tensor."""

    loaded: list[str]  # parameters of the model taken from the directory
    skipped: dict[str, str]  # tensors of the directory that were left out, with the reason
    new: list[str]  # newly initialised parameters, which the directory does not contain

    def __str__(self) -> str:
        parts = [f"loaded {counted(len(self.loaded), 'tensor')}"]
        parts += [f"left out {number} ({rule})" for rule, number in sorted(Counter(self.skipped.values()).items())]
        if self.new:
            heads = sorted({name.split(".")[1] for name in self.new})
            parts.append(f"initialised {counted(len(self.new), 'new tensor')} ({', '.join(heads)})")
        return ", ".join(parts)


class Loaded(NamedTuple):
    """A model that was loaded."""

    model: BertWithHeads
    report: LoadReport


def load_model(model_dir: str | Path, heads: Sequence[str] | None = None) -> PaddedBert:
    """Load any model directory, in evaluation mode, for padded (B, T) tensors.

    Args:
        model_dir: a run directory, a checkpoint, a Hugging Face directory, a TensorFlow checkpoint, or a hub id.
        heads: the heads to load, such as `["masked_lm"]`; None for all heads in the directory.

    Raises:
        InputError: the directory cannot be loaded, or lacks one of `heads`.
    """
    directory = resolve_model_dir(model_dir)
    if heads is not None:
        _check_heads(heads)
    model, report = load_directory(directory, heads)
    missing = sorted({name.split(".")[1] for name in report.new})
    if missing:
        raise InputError(
            f"{directory}: no weights for the {' and the '.join(missing)}; choose other heads, or heads=None for all in it"
        )
    try:
        check_precision("bf16", "auto")  # whoever loads it may compute in bfloat16
    except InputError as error:
        warn(error)
    return PaddedBert(model).eval()


def _check_heads(heads: object) -> None:
    chosen, known = list(heads) if isinstance(heads, (list, tuple)) else [heads], plugins.names_of("model_head")
    if any(head not in known or chosen.count(head) > 1 for head in chosen):
        raise InputError(f"heads={heads!r}: expected a list of heads, each once, among {', '.join(known)}")


def load_packed(model_dir: str | Path, heads: Sequence[str] | None = None, with_pooler: bool | None = None) -> Loaded:
    """Load any model directory as the model for packed batches that training uses."""
    return load_directory(resolve_model_dir(model_dir), heads, with_pooler)


def load_tokenizer(model_dir: str | Path, rules: Rules | None = None, lowercase: bool | None = None) -> Tokenizer:
    """Load the tokenizer of any model directory, a prepared dataset, or a vocabulary file.

    `rules` split text into words as Google's code or Hugging Face's does; None for the rules of a prepared dataset, or else
    Hugging Face's. `lowercase` overrides what the files of a BERT say.

    Raises:
        InputError: there is no tokenizer, or BERT cannot use it.
    """
    refuse(
        not (lowercase is None or isinstance(lowercase, bool))
        and f"lowercase={lowercase!r:.80}: expected true or false"
    )
    path = path_of(model_dir)
    if (path / "tokenizer").is_dir():
        return load_tokenizer_files(path / "tokenizer", lowercase, rules)
    if checkpoints_dir(path).is_dir() or not path.exists():
        path = resolve_model_dir(model_dir)
    folder = path if path.is_file() else encoder_dir(folder_of(path))
    tokenizer = load_tokenizer_files(folder, lowercase, rules, build=built_by_class)
    if not path.is_file():
        tokenizer.max_length = max_length_of(folder)
    return tokenizer


def load_directory(
    directory: Path,
    heads: Sequence[str] | None = None,
    with_pooler: bool | None = None,
    seed: int = 0,
    labels: Sequence[str] = (),
    problem_type: ProblemType | None = None,
    decoder: DecoderConfig | None = None,
    head: HeadConfig | None = None,
) -> Loaded:
    """Build the model in a directory from `resolve_model_dir`, and load its weights.

    What is None, or no label, comes from the directory: all its heads, their labels and settings, and a pooler, which there is also if the
    heads need it. The rows of a sequence or token head with the same `labels` are put into this order; a head with other ones
    is newly initialised. If the directory has no decoder, `decoder` starts as a copy of the encoder and the masked LM head,
    with newly initialised cross-attention. Raises InputError, which lists all tensors that are left over, are missing or have
    another shape.
    """
    stored = read_stored(directory)
    needs_pooler = any_pooled(stored.heads)
    chosen = stored.heads if heads is None else heads
    if with_pooler is None:
        is_free = "bert.pooler" in stored.parts and tuple(chosen) != ("generation",)  # a decoder does not use it
        with_pooler = is_free or any_pooled(chosen)
    config = dataclasses.replace(
        stored.config,
        decoder=_own_decoder(stored, chosen) if decoder is None else _added_decoder(stored, decoder),
        head=head or stored.config.head if any(map(is_of_task, chosen)) else HeadConfig(),
    )
    if labels:
        config = dataclasses.replace(config, labels=tuple(labels), problem_type=problem_type, score_activation=None)
    relabel(stored, chosen, config)
    refuse(
        [
            f"{stored.config_path}: {each}"
            for each in head_problems(
                config.attention, config.pooling, [head for head in chosen if head_of(head).is_pooled]
            )
        ]
    )
    with torch.device("meta"):
        model = BertWithHeads(config, chosen, with_pooler)
    expected = dict(model.named_parameters())
    new = fit(stored, expected, needs_pooler, is_new_decoder=decoder is not None and stored.config.decoder is None)
    # not `to_empty`, which imports sympy; a weight with two names stays one
    empty = {each: nn.Parameter(torch.empty(each.shape)) for each in expected.values()}
    model.source = directory
    named = model.named_parameters(remove_duplicate=False)
    model.load_state_dict({name: empty[each] for name, each in named}, assign=True)
    if new:
        init_weights(model, config.initializer_range, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in stored.weights:
                parameter.copy_(stored.weights[name])
    return Loaded(model, LoadReport(sorted(expected.keys() - new), stored.skipped, new))


def _own_decoder(stored: Stored, heads: Sequence[str]) -> DecoderConfig | None:
    """Return the directory's decoder if the generation head is loaded; None if there is none."""
    own = stored.config.decoder
    if own is None:
        advice = "finetune with decoder=bert adds one"
        refuse("generation" in heads and f"{stored.directory}: a model without a decoder; {advice}")
        return None
    if own.is_from_scratch:
        return own  # the encoder depends on it, too
    share = own.share and not stored.has_decoder_apart  # transformers may have trained shared weights separately
    return dataclasses.replace(own, share=share) if "generation" in heads else None


def _added_decoder(stored: Stored, decoder: DecoderConfig) -> DecoderConfig:
    """Return the decoder with which the directory's model is trained on; raise InputError if it cannot have this one."""
    own = stored.config.decoder
    if stored.config.variant and (own is None or own.kind != decoder.kind):
        raise InputError(
            f"{stored.config_path}: decoder={decoder.kind} with {', '.join(changed_from_bert(stored.config))}: a decoder starts as a "
            "copy of a standard BERT; start from another model"
        )
    if decoder.share and stored.has_decoder_apart:
        raise InputError(f"{stored.directory}: decoder and encoder have different weights; set decoder.share=false")
    return decoder
