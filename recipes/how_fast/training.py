"""Training steps of both libraries, from the same weights on the same batches."""

import argparse
import functools
import inspect
import warnings
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import running_text
from numpy.typing import NDArray
from rounds import Ready, System
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertkit.base.batch import IGNORED, Batch, Target
from bertkit.data.batches.sampling import Sampler
from bertkit.data.corpus.prepared import open_prepared
from bertkit.data.data_config import MaskingConfig, SegmentsConfig
from bertkit.interop.load import load_packed
from bertkit.kernels import fast
from bertkit.model.layers import compile_layers, missing_for
from bertkit.model.recorded import record_passes
from bertkit.objectives.losses import batch_losses
from bertkit.tasks.batching import Cut, FeatureBatches, TrainingOrder
from bertkit.tasks.feature import Feature
from bertkit.train import loop
from bertkit.train.accelerator import make_accelerator
from bertkit.train.loop import Course, Learner
from bertkit.train.micro_batches import AUTO_MICRO_TOKENS
from bertkit.train.optimizer import AdamW, parameter_groups
from bertkit.train.train_config import OptimizerConfig

WINDOW = 50  # batches that are sorted by length together; transformers' LengthGroupedSampler, mega_batch_mult
TOLERANCE = (1e-4, 2e-2)  # relative tolerance for the first loss, in float32 and in the system's precision
Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Pairs:
    """Batches of sentence pairs: masked, or unmasked with a label that says whether B follows A."""

    data_dir: Path
    max_seq_length: int
    batch_sequences: int
    is_masked: bool = True
    _: KW_ONLY
    has_pairs: bool = True  # else blocks of sentences, of which 30 % of the tokens are masked, as in ModernBERT
    num_types: int = 2  # of tokens; RoBERTa has one

    @functools.cached_property
    def sampler(self) -> Sampler:
        """Draw pairs: long pairs, of which a tenth is shortened; for fine-tuning, pairs of all lengths."""
        dataset = open_prepared(self.data_dir)
        segments = SegmentsConfig("full_sentences", self.max_seq_length, 0.0, "none")
        if self.has_pairs:
            segments = SegmentsConfig("pairs", self.max_seq_length, 0.1 if self.is_masked else 1.0, "nsp")
        masking = MaskingConfig(0.15 if self.has_pairs else 0.3, 0.8, 0.1)
        return Sampler(dataset.splits["train"], dataset.tokenizer.facts, segments, masking, seed=0)

    def of_step(self, step: int, num_steps: int = 1) -> Batch:
        """Return the batch of a step, or of several together: packed, the shortest sequence first."""
        size = self.batch_sequences * num_steps
        batch = self.sampler.take(np.arange(size) + step * size)
        if self.is_masked:
            return batch
        labels = {"sequence": batch.targets["next_sentence"]}
        types = batch.token_type_ids.clip(max=self.num_types - 1)
        return Batch(batch.original_ids, types, batch.sequence_lengths, labels)

    def micro_batches(self, step: int) -> list[tuple[int, Batch]]:
        """Return the batch of a step as its numbered micro-batches: one."""
        return [(0, self.of_step(step))]


@dataclass(frozen=True)
class FullSequences(Pairs):
    """Batches in which all sequences have exactly `max_seq_length` tokens, three in twenty of them masked."""

    def of_step(self, step: int, num_steps: int = 1) -> Batch:
        """Return a batch cut from running text."""
        size, length = self.batch_sequences * num_steps, self.max_seq_length
        dataset = open_prepared(self.data_dir)
        ids = running_text(dataset, size * length)
        masked = np.flatnonzero(np.arange(size * length) % 20 < 3)
        labels = ids[masked].copy()
        ids[masked] = dataset.tokenizer.facts.mask
        types = np.tile(np.arange(length) >= length // 2, size).astype(np.int64)
        targets = {"masked_lm": Target(labels, masked), "next_sentence": Target((np.arange(size) + step) % 2)}
        return Batch(ids, types, np.full(size, length), targets)


@dataclass(frozen=True)
class Texts(Pairs):
    """Batches for fine-tuning, with texts cut from running text; `lengths` holds evenly spaced quantiles of their lengths."""

    lengths: tuple[int, ...] = ()
    head: str = "sequence"

    def of_step(self, step: int, num_steps: int = 1) -> Batch:
        """Return the batch of a step, or of several together: packed, the shortest text first."""
        drawn = np.random.default_rng(step).random(self.batch_sequences * num_steps) * (len(self.lengths) - 1)
        lengths = np.sort(np.rint(np.interp(drawn, np.arange(len(self.lengths)), self.lengths)).astype(np.int64))
        ids = running_text(open_prepared(self.data_dir), int(lengths.sum()))
        labels = np.stack([lengths // 3, lengths // 2], 1) if self.head == "span" else np.arange(len(lengths)) % 2
        return Batch(ids, np.zeros_like(ids), lengths, {self.head: Target(labels)})


@dataclass(frozen=True)
class Translations:
    """Batches of sources and targets, as in `finetune`."""

    features: tuple[Feature, ...]
    batch_sequences: int
    device: str

    @functools.cached_property
    def order(self) -> TrainingOrder:
        """Return the numbers of the pairs in a step."""
        cut = Cut(AUTO_MICRO_TOKENS[self.device], None, 2)
        return TrainingOrder(FeatureBatches(self.features, "generation"), self.batch_sequences, 0, cut)

    def of_step(self, step: int, num_steps: int = 1) -> Batch:
        """Return the batch of a step, or of several together: packed, the shortest source first."""
        items = np.concatenate([self.order.items(step + number) for number in range(num_steps)])
        return self.order.batches.take(self.order.batches.shortest_first(items))

    def micro_batches(self, step: int) -> list[tuple[int, Batch]]:
        """Return the batch of a step as its numbered micro-batches."""
        return self.order.micro_batches(step, 0, 1)


@dataclass(frozen=True)
class Training:
    """The model and the data that both libraries train."""

    batches: Pairs | Translations
    model_dir: Path
    their_class: str  # of transformers
    device: str
    steps_per_round: int
    is_compiled: bool = False  # whether Hugging Face is really compiled on a CPU
    is_repeated: bool = (
        False  # all rounds have the batches of the first one, which are drawn and padded before the clock starts
    )

    def steps(self, number: int) -> range:
        """Number the steps of a round."""
        number = 0 if self.is_repeated else number
        return range(number * self.steps_per_round, (number + 1) * self.steps_per_round)


def systems(args: argparse.Namespace, batches: Pairs | Translations, model_dir: Path, their_class: str) -> list[System]:
    """List the compared systems: Hugging Face with its defaults, its faster variants, bertkit."""
    precision = args.precision
    training = Training(batches, model_dir, their_class, args.device, args.steps_per_round, args.compiled)
    default = "padded to max_seq_length" if isinstance(batches, Pairs) else "padded to the longest"
    theirs = [(each, way) for each in dict.fromkeys(("fp32", precision)) for way in (default, "grouped by length")]
    if args.device == "cuda" or args.compiled:  # on a CPU code for one length alone is slower
        theirs.append((precision, "compiled" if args.device == "cuda" else "grouped by length, compiled"))
    found = {
        f"Hugging Face {each}, {way}": functools.partial(hugging_face, training, each, way) for each, way in theirs
    }
    found[f"bertkit {precision}"] = functools.partial(bertkit, training, precision)
    if args.compiled and args.device == "cpu":
        found[f"bertkit {precision}, compiled"] = functools.partial(bertkit, training, precision, is_compiled=True)
    if args.plain:
        found[f"bertkit {precision}, kernels=plain"] = functools.partial(bertkit, training, precision, is_plain=True)
    return [System(name, load, TOLERANCE) for name, load in found.items()]


def bertkit(training: Training, precision: str, is_plain: bool = False, is_compiled: bool = False) -> Ready:
    """Train with the loop of `pretrain` and `finetune`."""
    accelerator = make_accelerator(training.device, 1)
    loaded, _ = load_packed(training.model_dir)
    loaded.use(fast.choose("plain" if is_plain else "auto"))
    is_on_gpu = training.device == "cuda" and not is_plain and missing_for("cuda") is None
    if is_compiled or is_on_gpu:
        compile_layers(loaded.bert.encoder)
    if is_on_gpu:
        record_passes(loaded)
    model = accelerator.prepare(loaded.train())
    config = OptimizerConfig("adamw", 1e-4, 0.9, 0.999, 1e-6, 0.01, False, 1.0)
    optimizer = AdamW(parameter_groups(loaded, config.weight_decay), config)

    def first_losses() -> list[float]:
        model.eval()
        found = [batch_losses(model, training.batches.of_step(0), each) for each in ("fp32", precision)]
        model.train()
        return [float(np.log(sum(float(term.sum.detach()) / term.count for term in terms.values()))) for terms in found]

    @functools.cache
    def micro_batches(step: int) -> Any:
        return training.batches.micro_batches(step)

    def work(number: int) -> float:
        batches = [micro_batches(step) for step in training.steps(number)]
        learner = Learner(accelerator, model, optimizer, functools.partial(batch_losses, precision=precision))
        course = Course(lambda step: batches[step], lambda step: 1e-4, 0, len(batches), max_grad_norm=1.0, seed=0)
        return sum(report.num_tokens for report in loop.train(learner, course, should_sync=lambda step: False))

    return Ready(first_losses, work)


def hugging_face(training: Training, precision: str, way: str) -> Ready:
    """Train a class of transformers in a plain loop: fused AdamW, clipping, autocast in bf16; at its best with bertkit's allocator setting."""
    if not way.startswith("padded"):
        fast.keep_freed_memory()
    batches, device = training.batches, training.device
    width = batches.max_seq_length if isinstance(batches, Pairs) else None
    loaded = getattr(transformers(), training.their_class)
    # at its best ModernBERT scores the vocabulary at masked tokens alone; BERT cannot
    best = {"sparse_prediction": not way.startswith("padded")} if training.their_class.startswith("Modern") else {}
    model = loaded.from_pretrained(training.model_dir, **best).to(device)
    names = set(inspect.signature(model.forward).parameters)
    if training.their_class == "EncoderDecoderModel":
        model.decoder.config.use_cache = False  # not needed in training
        warnings.filterwarnings("ignore", "Version v4.12.0", FutureWarning)  # a warning for models of earlier versions
    called = model
    if "compiled" in way:
        called = compiled(model, device, is_dynamic="grouped" in way, is_tried=not training.is_compiled)
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4, fused=True)

    @functools.cache
    def window() -> list[Inputs]:
        batch, size = batches.of_step(0, WINDOW), batches.batch_sequences
        return [padded(batch, None, device, slice(n, n + size)) for n in range(0, len(batch.sequence_lengths), size)]

    @functools.cache
    def inputs_of(number: int) -> tuple[list[Inputs], int]:
        steps = training.steps(number)
        if "grouped" in way:  # so every round has batches of all lengths
            inputs = [window()[(number + place * WINDOW // len(steps)) % WINDOW] for place in range(len(steps))]
        else:
            inputs = [padded(batches.of_step(step), width, device) for step in steps]
        inputs = [{name: values for name, values in each.items() if name in names} for each in inputs]
        masks = [mask for each in inputs for name, mask in each.items() if name.endswith("attention_mask")]
        return inputs, sum(int(mask.sum()) for mask in masks)

    def loss(model: Any, inputs: Inputs, precision: str) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            return model(**inputs).loss

    @torch.no_grad()
    def first_losses() -> list[float]:
        model.eval()
        inputs = {name: values for name, values in padded(batches.of_step(0), width, device).items() if name in names}
        found = [float(loss(model, inputs, each).log()) for each in ("fp32", precision)]
        model.train()
        return found

    def work(number: int) -> float:
        inputs, num_tokens = inputs_of(0 if training.is_repeated else number)
        for each in inputs:
            loss(called, each, precision).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return num_tokens

    return Ready(first_losses, work)


def compiled(model: Any, device: str, is_dynamic: bool, is_tried: bool = True) -> Any:
    """Compile a model; on a CPU, where that takes minutes, perhaps only trace it, as a trial of what a GPU does."""
    backend = "eager" if device == "cpu" and is_tried else "inductor"
    return torch.compile(model, dynamic=is_dynamic, backend=backend)


def transformers() -> Any:
    """Import transformers only where it is needed, since that takes seconds, and switch its messages off."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def padded(batch: Batch, width: int | None, device: str = "cpu", chosen: slice = slice(None)) -> Inputs:
    """Return the sequences of a packed batch padded to `width`, or to the longest, as transformers expects them."""

    def rows(values: NDArray[Any] | None, lengths: NDArray[np.int64], padding: int = 0) -> Tensor:
        tokens = list(torch.split(torch.from_numpy(np.asarray(values)), lengths.tolist()))[chosen]
        found = pad_sequence(tokens, batch_first=True, padding_value=padding)
        # on a GPU, to a multiple of 8, as its matrix units need it
        short = -found.shape[1] % (8 if device == "cuda" else 1)
        return F.pad(found, (0, max(short, (width or 0) - found.shape[1])), value=padding)

    ids, lengths = batch.input_ids, batch.sequence_lengths
    inputs = {"input_ids": rows(ids, lengths), "attention_mask": rows(np.ones_like(ids), lengths)}
    if batch.decoder_ids is not None and batch.decoder_lengths is not None:
        inputs["decoder_input_ids"] = rows(batch.decoder_ids, batch.decoder_lengths)
        inputs["decoder_attention_mask"] = rows(np.ones_like(batch.decoder_ids), batch.decoder_lengths)
        inputs["labels"] = rows(batch.targets["generation"].labels, batch.decoder_lengths, IGNORED)
        return {name: values.to(device) for name, values in inputs.items()}
    inputs["token_type_ids"] = rows(batch.token_type_ids, lengths)
    if "masked_lm" not in batch.targets:
        ((head, target),) = batch.targets.items()
        labels = torch.from_numpy(target.labels[chosen])
        span = {"start_positions": labels[..., 0], "end_positions": labels[..., -1]}
        inputs |= span if head == "span" else {"labels": labels}
    else:
        masked = np.full(len(ids), IGNORED)
        masked[batch.masked_positions] = batch.masked_labels
        inputs["labels"] = rows(masked, lengths, IGNORED)
    if "next_sentence" in batch.targets:
        inputs["next_sentence_label"] = torch.from_numpy(batch.targets["next_sentence"].labels[chosen])
    return {name: values.to(device) for name, values in inputs.items()}
