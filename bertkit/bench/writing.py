"""What encoder-decoders learn from and write of, for both libraries: pairs of texts, sources, a new model of two BERTs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertkit.batch import TaskBatch
from bertkit.bench.workload import (
    Ready,
    System,
    Workload,
    prepared_text,
    sentences,
    some_lines,
    unmasked,
    with_fillers,
)
from bertkit.data.config import MaskingConfig, SegmentsConfig
from bertkit.data.prepared import check_unchanged, open_prepared
from bertkit.data.sampling import Sampler
from bertkit.data.tokenizer import Tokenizer, load_tokenizer, train_wordpiece
from bertkit.errors import InputError
from bertkit.interop.hugging_face.directory import write_model
from bertkit.interop.load import load_packed, resolve_model_dir
from bertkit.model.bert import init_weights
from bertkit.model.config import BertConfig, DecoderConfig
from bertkit.model.heads import BertWithHeads
from bertkit.run.generating import NEVER, write_texts
from bertkit.run.memory import check_size
from bertkit.run.objective import Entrance
from bertkit.run.task_model import general_task
from bertkit.settings.bench import BenchSettings
from bertkit.tasks.batching import Cut, FeatureBatches, TrainingOrder
from bertkit.tasks.config import GenerationConfig
from bertkit.tasks.files.readers import read_file
from bertkit.tasks.generation import GenerationExample
from bertkit.tasks.shapes import make_features
from bertkit.tasks.task import Feature
from bertkit.train.processes import choose_device
from bertkit.train.shares import TOKENS_AT_ONCE

NUM_STEPS = 50  # whose pairs are all others: as many as Hugging Face sorts by length together
SHARE_ALONE = 8  # one text a call is written of every eighth text, so that these rounds are not much longer than others
WORDS = 8192  # of the vocabulary of a text that comes without a model
NUM_TRIED = 64  # texts by which a new model's ends are set
SURE = 1e-3  # more than rounding, where there is one text


class Pairs:
    """The batches of every step, as `finetune` makes them."""

    def __init__(self, workload: Workload) -> None:
        batches = FeatureBatches(workload.pairs, "generation")
        cut = Cut(TOKENS_AT_ONCE[workload.device], None, 2)
        self.order = TrainingOrder(batches, workload.batch_sequences, 0, cut)

    def of_step(self, step: int, num_steps: int = 1) -> TaskBatch:
        """Give the batch of a step, or of several together: packed, the shortest source first."""
        items = np.concatenate([self.order.items(step + number) for number in range(num_steps)])
        return self.order.batches.take(self.order.batches.shortest_first(items))

    def micro_batches(self, step: int) -> list[tuple[int, TaskBatch]]:
        """Give the batch of a step as its micro-batches, numbered."""
        return self.order.micro_batches(step, 0, 1)


def writing(workload: Workload, system: System, write: Callable[[list[str]], list[list[int]]]) -> Ready:
    """Write of all texts, `batch_sequences` a call, as they come, or of some of them, one a call.

    `write` gives the ids of the text of each source, without those that begin and end it; tokens are counted with the end.
    """
    size, longest = workload.batch_sequences if system.is_grouped else 1, workload.max_target_length
    texts = list(workload.texts if system.is_grouped else workload.texts[::SHARE_ALONE])

    def answer() -> list[list[int]]:
        return [ids for start in range(0, len(texts), size) for ids in write(texts[start : start + size])]

    return Ready(answer, lambda number: sum(min(len(ids) + 1, longest) for ids in answer()))


def make_writing_workload(settings: BenchSettings, scratch: Path) -> Workload:
    """Make in `scratch` what the user does not give: prepared text, pairs or sources, and a new model."""
    is_training, data_dir = settings.what == "translate", scratch
    if settings.text is None:
        data_dir = prepared_text(settings, scratch)
        check_unchanged(open_prepared(data_dir))
    examples = (_pairs if is_training else _sources)(settings, data_dir)
    device = choose_device(settings.device).type
    if settings.model_dir is None:
        model_dir = scratch / f"model-{settings.what}"
        config = _write_new_model(settings, examples, _tokenizer_of(settings, data_dir, examples), model_dir)
    else:
        model_dir, config = _given_model(settings, settings.model_dir)
    pairs = _features(settings, examples, load_tokenizer(model_dir)) if is_training else ()
    return Workload(
        what=settings.what, data_dir=data_dir, model_dir=model_dir, config=config, device=device,
        max_seq_length=settings.max_seq_length, batch_sequences=settings.batch_sequences,
        steps_per_round=settings.steps_per_round, num_threads=settings.num_threads, pairs=pairs,
        texts=() if is_training else tuple(each.source for each in examples), max_target_length=settings.max_target_length,
    )  # fmt: skip


def _given_model(settings: BenchSettings, name: str) -> tuple[Path, BertConfig]:
    """Find the user's model of two BERTs.

    Raises:
        InputError: it is another one, or takes fewer tokens.
    """
    model_dir = resolve_model_dir(name)
    config = load_packed(model_dir)[0].config
    if config.decoder is None or config.decoder.kind != "bert":
        kind = "no decoder" if config.decoder is None else f"decoder={config.decoder.kind}"
        raise InputError(
            f"model_dir={name}: {kind}, which transformers' EncoderDecoderModel is not; give one of finetune decoder=bert"
        )
    most = config.max_position_embeddings
    for setting in ("max_seq_length", "max_target_length"):
        if getattr(settings, setting) > most:
            raise InputError(
                f"{setting}={getattr(settings, setting)}: model_dir={name} takes at most {most} tokens; lower it"
            )
    return model_dir, config


def _pairs(settings: BenchSettings, data_dir: Path) -> list[GenerationExample]:
    """Pairs of the user's file, from the whole of it, or of neighbouring or random parts of the prepared text."""
    count = NUM_STEPS * settings.batch_sequences
    if settings.text is not None:
        task = general_task("generation")
        columns: Any = {"id": None, "source": 0, "target": 1}
        task = dataclasses.replace(task, header=True, columns=dataclasses.replace(task.columns, **columns))
        examples = read_file(task, Path(settings.text), True).examples
        places = np.linspace(0, len(examples) - 1, min(count, len(examples))).astype(int)
        return [examples[place] for place in places.tolist()]
    dataset = open_prepared(data_dir)
    segments, masking = (
        SegmentsConfig("pairs", settings.max_seq_length, 1.0, "nsp"),
        MaskingConfig(0.15, False, 0.8, 0.1),
    )
    sampler = Sampler(dataset.splits["train"], dataset.tokenizer.facts, segments, masking, seed=0)
    batch = sampler.take(np.arange(min(count, sampler.epoch_length)))
    borders = np.cumsum(batch.sequence_lengths)[:-1]
    parts = zip(np.split(unmasked(batch), borders), np.split(batch.token_type_ids, borders), strict=True)
    decode = dataset.tokenizer.decode
    texts = [(decode(ids[types == 0][1:-1].tolist()), decode(ids[types == 1][:-1].tolist())) for ids, types in parts]
    return [GenerationExample(str(number), *pair) for number, pair in enumerate(texts)]


def _sources(settings: BenchSettings, data_dir: Path) -> list[GenerationExample]:
    """Texts to write of: lines of the user's file, or sentences of the prepared text."""
    if settings.text is not None:
        texts = some_lines(settings.text, settings.num_texts)
    else:
        texts = sentences(open_prepared(data_dir), settings.num_texts)
    return [GenerationExample(str(number), text, None) for number, text in enumerate(texts)]


def _tokenizer_of(settings: BenchSettings, data_dir: Path, examples: Sequence[GenerationExample]) -> Tokenizer:
    """That of the prepared text, or one that is learned from the user's."""
    if settings.text is None:
        return open_prepared(data_dir).tokenizer
    return train_wordpiece(
        lambda: (text for each in examples for text in (each.source, each.target or "")), WORDS, False, 1
    )


def _features(
    settings: BenchSettings, examples: Sequence[GenerationExample], tokenizer: Tokenizer
) -> tuple[Feature, ...]:
    """Cut sources and targets to `max_seq_length` tokens each."""
    task = general_task("generation")
    assert task.generation is not None, "it has its settings"
    search = dataclasses.replace(task.generation, max_target_length=settings.max_seq_length)
    task = dataclasses.replace(task, max_seq_length=settings.max_seq_length, generation=search)
    return tuple(make_features(task, examples, tokenizer, ()))


def _write_new_model(
    settings: BenchSettings, examples: Sequence[GenerationExample], tokenizer: Tokenizer, target: Path
) -> BertConfig:
    """Write a new model of two BERTs, with a tokenizer of as many words; one that writes is sure of its words."""
    shape: dict[str, Any] = dataclasses.asdict(settings.model)
    longest = max(settings.max_seq_length, settings.max_target_length)
    shape["max_position_embeddings"] = max(shape["max_position_embeddings"], longest)
    facts, vocab_size = tokenizer.facts, max(settings.vocab_size, tokenizer.vocab_size)
    decoder = DecoderConfig(kind="bert", start_token_id=facts.cls, end_token_id=facts.sep)
    config = BertConfig(**shape, vocab_size=vocab_size, pad_token_id=facts.pad, decoder=decoder)
    device = choose_device(settings.device).type
    check_size(config, settings.batch_sequences, settings.max_seq_length, device, "batch_sequences")
    model, numbers = BertWithHeads(config, ("generation",), with_pooler=False), torch.Generator().manual_seed(0)
    is_training = settings.what == "translate"
    init_weights(model, config.initializer_range if is_training else config.hidden_size**-0.5, numbers)
    tokenizer = with_fillers(tokenizer, vocab_size)
    if not is_training:
        _end_half_way(model, _features(settings, examples[:NUM_TRIED], tokenizer), settings.max_target_length)
    target.mkdir()
    write_model(model, tokenizer, target)
    return config


@torch.no_grad()
def _end_half_way(model: BertWithHeads, sources: Sequence[Feature], longest: int) -> None:
    """Make a new model end half of its texts before half of the most tokens, and the others later, or never.

    Of texts that never end it is seen how much more probable than the end the other tokens are.
    """
    head: Any = model.eval().heads["generation"]
    decoder = model.config.decoder
    assert decoder is not None, "a model that writes"
    head.score.bias[decoder.end_token_id] = NEVER
    search = GenerationConfig(longest, 1, 1.0, 0.0, 1, False, 1.0, None, None)
    batch = FeatureBatches(sources, "generation").take(np.arange(len(sources)))
    texts = [found[0][0] for found in write_texts(model, batch, search)]
    labels = [[decoder.start_token_id, *ids] for ids in texts]
    written = [dataclasses.replace(source, label=label) for source, label in zip(sources, labels, strict=True)]
    batch = FeatureBatches(written, "generation").take(np.arange(len(sources)))
    entrance = Entrance.of(model, "fp32")
    head.score.bias[decoder.end_token_id] = 0.0
    logits = model(*entrance.tokens(batch), targets=entrance.targets(batch)).logits["generation"]
    logits = logits[: len(sources) * longest]
    at_end = logits[:, decoder.end_token_id].clone()
    logits[:, decoder.end_token_id] = NEVER
    lacking = (logits.amax(-1) - at_end).view(len(sources), longest)[:, : longest // 2]
    of_texts = lacking.amin(1).sort().values
    between = of_texts[(len(sources) - 1) // 2 :][:2].mean()  # of two texts, so that neither is a tie
    head.score.bias[decoder.end_token_id] = between + SURE
