"""The work, which systems do it, and what they start from: prepared text, a new model, raw text."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.batch import PretrainBatch, TaskBatch
from bertkit.data.config import CorpusConfig, MaskingConfig, SegmentsConfig
from bertkit.data.corpus import Corpus
from bertkit.data.prepared import PreparedDataset, Split, check_unchanged, open_prepared
from bertkit.data.sampling import Sampler
from bertkit.data.tokenizer import Tokenizer, load_tokenizer
from bertkit.errors import InputError
from bertkit.files import require_space
from bertkit.interop.hugging_face.directory import write_model
from bertkit.interop.load import load_packed, resolve_model_dir
from bertkit.launch.world import own_command
from bertkit.lines import is_blank, read_lines
from bertkit.model.bert import init_weights
from bertkit.model.config import PRETRAINING_HEADS, BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.run.memory import check_size
from bertkit.settings.bench import BenchSettings
from bertkit.tasks.task import Feature
from bertkit.train.processes import choose_device

BERTKIT, HUGGING_FACE = "bertkit", "Hugging Face"


@dataclass(frozen=True)
class System:
    """One way to do the work."""

    name: str
    library: str
    precision: str = "fp32"
    is_grouped: bool = (
        False  # Hugging Face at its best: by length, with little padding; of embed: all texts in one call; of generate:
        # `batch_sequences` texts a call, else one
    )
    is_compiled: bool = False  # Hugging Face's model, by `torch.compile`; bertkit's layers are compiled on CUDA
    without: tuple[str, ...] = ()  # fast ways that bertkit leaves out
    num_beams: int = 1  # of generate


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What all systems do."""

    what: str  # "pretrain", "finetune", "translate", "generate", "predict", "embed", "serve", "prepare" or "batches"
    data_dir: Path
    model_dir: Path  # where all models start
    config: BertConfig  # of that model
    device: str
    max_seq_length: int
    batch_sequences: int
    steps_per_round: int
    num_threads: int
    texts: tuple[str, ...] = ()  # of predict, embed and generate
    pairs: tuple[Feature, ...] = ()  # of translate
    max_target_length: int = 1  # of generate: tokens of a text, with the one that ends it
    text_file: Path | None = None  # of prepare
    is_full: bool = False  # sequences of exactly `max_seq_length` tokens, cut from the text wherever they end

    def steps_of(self, number: int) -> range:
        """Number the steps of a round."""
        return range(number * self.steps_per_round, (number + 1) * self.steps_per_round)


class Ready(NamedTuple):
    """A system that has loaded what it needs."""

    # the losses of the first batch without dropout, in float32 and in its precision; probabilities; vectors; or a number of
    # tokens
    first_result: Callable[[], Any]
    work: Callable[[int], int]  # does the round of a number; gives its number of tokens


def embedding(workload: Workload, system: System, embed: Callable[[list[str]], NDArray[np.float32]]) -> Ready:
    """Embed all texts, in one call where a system is grouped, else `batch_sequences` of them a call, as they come."""
    texts, size = list(workload.texts), len(workload.texts) if system.is_grouped else workload.batch_sequences
    ids = load_tokenizer(workload.model_dir)(texts)["input_ids"]
    num_tokens = sum(min(len(each), workload.max_seq_length) for each in ids)

    def answer() -> NDArray[np.float32]:
        return np.concatenate([embed(texts[start : start + size]) for start in range(0, len(texts), size)])

    return Ready(answer, lambda number: len(answer()) and num_tokens)


class Batches:
    """The batches of every step: pairs of the prepared text, masked, or whole and labelled by whether B follows A."""

    def __init__(self, workload: Workload) -> None:
        dataset = open_prepared(workload.data_dir)
        # to fine-tune on, pairs of all lengths, half of the longest on average; to pretrain, long ones, a tenth shortened
        short_seq_prob = 1.0 if workload.what == "finetune" else 0.1
        pairs = SegmentsConfig("pairs", workload.max_seq_length, short_seq_prob, "nsp")
        masking = MaskingConfig(0.15, False, 0.8, 0.1)
        self.sampler = Sampler(dataset.splits["train"], dataset.tokenizer.facts, pairs, masking, seed=0)
        self.workload = workload

    def of_step(self, step: int, num_steps: int = 1) -> PretrainBatch | TaskBatch:
        """Give the batch of a step, or of several together: packed, the shortest sequence first."""
        if self.workload.is_full:
            return self._full(step)
        size = self.workload.batch_sequences * num_steps
        (batch,) = self.sampler.micro_batches(step, size, [(0, size)])
        if self.workload.what == "pretrain":
            return batch
        ids, labels = unmasked(batch), batch.next_sentence_labels
        return TaskBatch("sequence", ids, batch.token_type_ids, batch.sequence_lengths, labels, 1, None)

    def micro_batches(self, step: int) -> list[tuple[int, PretrainBatch | TaskBatch]]:
        """Give the batch of a step as its micro-batches, numbered: one."""
        return [(0, self.of_step(step))]

    def _full(self, step: int) -> PretrainBatch:
        """Cut sequences of one length, of which three tokens in twenty are masked."""
        size, length = self.workload.batch_sequences, self.workload.max_seq_length
        ids = _running_text(self.sampler.split, size * length)
        masked = np.flatnonzero(np.arange(size * length) % 20 < 3)
        labels = ids[masked].copy()
        ids[masked] = self.sampler.vocab.mask
        types = np.tile(np.arange(length) >= length // 2, size).astype(np.int64)
        return PretrainBatch(ids, types, np.full(size, length), masked, labels, (np.arange(size) + step) % 2)


def unmasked(batch: PretrainBatch) -> NDArray[np.int64]:
    """Give the tokens of a batch as they were before they were masked."""
    ids = batch.input_ids.copy()
    ids[batch.masked_positions] = batch.masked_labels
    return ids


def make_workload(settings: BenchSettings, what: str, scratch: Path, longest: int = 0) -> Workload:
    """Make in `scratch` what the user does not give: prepared text, texts, and a new model for up to `longest` tokens."""
    data_dir = prepared_text(settings, scratch)
    dataset, model_dir = open_prepared(data_dir), scratch / f"model-{what}"
    check_unchanged(dataset)
    if settings.model_dir is not None:
        model_dir = resolve_model_dir(settings.model_dir)
        config = load_packed(model_dir)[0].config
    else:
        config = _new_model(settings, what, dataset, longest, model_dir)
    texts: tuple[str, ...] = ()
    if what == "predict":
        texts = sentences(dataset, settings.num_texts)
    elif what == "serve" and settings.text is not None:
        texts = some_lines(settings.text, settings.num_texts)
    elif what in ("embed", "serve"):
        texts = _of_mixed_lengths(dataset, settings.num_texts, settings.max_seq_length)
    return Workload(
        what=what, data_dir=data_dir, model_dir=model_dir, config=config, device=choose_device(settings.device).type,
        max_seq_length=settings.max_seq_length, batch_sequences=settings.batch_sequences,
        steps_per_round=settings.steps_per_round, num_threads=settings.num_threads, texts=texts,
        text_file=write_text(settings, settings.text_megabytes, scratch) if what == "prepare" else None,
    )  # fmt: skip


def _new_model(
    settings: BenchSettings, what: str, dataset: PreparedDataset, longest: int, model_dir: Path
) -> BertConfig:
    """Write a new model for some work, with the tokenizer of the text."""
    heads = {"finetune": ("sequence",), "predict": ("sequence",), "serve": ("sequence",), "embed": ()}.get(
        what, PRETRAINING_HEADS
    )
    shape: dict[str, Any] = asdict(settings.model)
    shape["max_position_embeddings"] = max(shape["max_position_embeddings"], settings.max_seq_length, longest)
    shape |= {"labels": ("follows", "random")} if "sequence" in heads else {}
    vocab_size, pad = max(settings.vocab_size, dataset.tokenizer.vocab_size), dataset.tokenizer.facts.pad
    config = BertConfig(**shape, vocab_size=vocab_size, pad_token_id=pad)
    device = choose_device(settings.device).type
    largest = [("batch_sequences", settings.batch_sequences)]
    largest += [("batch_sizes", max(settings.batch_sizes))] if settings.what in ("memory", "scaling") else []
    largest += [("num_texts", settings.num_texts)] if what == "embed" else []
    for name, count in largest:
        check_size(config, count, settings.max_seq_length, device, name)
    write_new_model(config, heads, dataset.tokenizer, model_dir, with_pooler=what != "embed")
    return config


def prepared_text(settings: BenchSettings, scratch: Path) -> Path:
    """Give the user's prepared dataset, or prepare Python's documentation in `scratch`."""
    if settings.data_dir is not None:
        return Path(settings.data_dir)
    command = own_command("prepare", "corpus=python_docs", "tokenizer.vocab_size=8192")
    done = subprocess.run([*command, f"output_dir={scratch / 'data'}"], capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"bench: preparing Python's documentation failed: {done.stderr.strip()}")
    return scratch / "data"


def write_new_model(
    config: BertConfig, heads: tuple[str, ...], tokenizer: Tokenizer, target: Path, with_pooler: bool = False
) -> None:
    """Write a new model, and the tokenizer of the text with as many words as the model has."""
    model = BertWithHeads(config, heads, with_pooler)
    init_weights(model, model.config.initializer_range, torch.Generator().manual_seed(0))
    target.mkdir()
    write_model(model, with_fillers(tokenizer, config.vocab_size), target)


def with_fillers(tokenizer: Tokenizer, vocab_size: int) -> Tokenizer:
    """Give a tokenizer as many words as a model has, by some that no text holds."""
    fillers = [f"[unused{number}]" for number in range(tokenizer.vocab_size, vocab_size)]
    vocab = {token: number for number, token in enumerate([*tokenizer.vocab, *fillers])}
    return Tokenizer(vocab, tokenizer.lowercase, tokenizer.strip_accents, tokenizer.rules)


def sentences(dataset: PreparedDataset, count: int) -> tuple[str, ...]:
    """Sentences from the whole of the prepared text, decoded."""
    split, starts = dataset.splits["train"], dataset.splits["train"].sentences
    places = torch.linspace(0, len(starts) - 2, min(count, len(starts) - 1)).long().tolist()
    tokens = [split.tokens(int(starts[place]), int(starts[place + 1] - starts[place])) for place in places]
    return tuple(dataset.tokenizer.decode(each.tolist()) for each in tokens)


def some_lines(name: str, count: int) -> tuple[str, ...]:
    """So many lines of a file, from the whole of it."""
    lines = [line for _, line in read_lines(Path(name)) if not is_blank(line)]
    if not lines:
        raise InputError(f"text={name}: no lines; expected a text a line")
    return tuple(lines[place] for place in np.linspace(0, len(lines) - 1, min(count, len(lines))).astype(int))


def _of_mixed_lengths(dataset: PreparedDataset, count: int, longest: int) -> tuple[str, ...]:
    """Texts of 4 to `longest` tokens with [CLS] and [SEP], as many of each order of length, in a mixed order."""
    shares = np.random.default_rng(0).permutation(count) / max(1, count - 1)
    lengths = np.rint(4 * (longest / 4) ** shares).astype(np.int64) - 2
    ids = _running_text(dataset.splits["train"], int(lengths.sum()))
    return tuple(dataset.tokenizer.decode(each.tolist()) for each in np.split(ids, lengths.cumsum()[:-1]))


def texts_of_length(data_dir: Path, length: int, count: int) -> tuple[str, ...]:
    """Texts of about so many tokens with [CLS] and [SEP], cut from the prepared text wherever they end."""
    dataset, body = open_prepared(data_dir), max(1, length - 2)
    ids = _running_text(dataset.splits["train"], count * body)
    return tuple(dataset.tokenizer.decode(each.tolist()) for each in np.split(ids, count))


def _running_text(split: Split, num_tokens: int) -> NDArray[np.int64]:
    """So many tokens of the text, again and again from its start where it is shorter."""
    return np.resize(split.tokens(0, min(split.num_tokens, num_tokens)).astype(np.int64), num_tokens)


def write_text(settings: BenchSettings, megabytes: int, scratch: Path) -> Path:
    """Write the user's text, or Python's documentation, a sentence a line, again and again up to the wanted size."""
    require_space(scratch, megabytes * 1_000_000)
    path, text = scratch / f"text-{megabytes}.txt", settings.text
    source = CorpusConfig("files" if text else "python_docs", text, "auto", "text", "auto", "utf-8", None, "train")
    documents = chain.from_iterable(repeat(Corpus(source)))
    with path.open("wb") as file:
        while file.tell() < megabytes * 1_000_000:
            file.write("\n".join([*next(documents), "", ""]).encode())
    return path
