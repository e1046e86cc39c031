"""Text generation by a decoder or a causal model: greedy search, beam search or sampling. The first two write the same texts as `generate` of transformers.

For each source (input text), the decoder writes W rows: its beams, or the sampled texts. A text is finished at [SEP] or at the
largest length. The score of a text is the sum of its tokens' log probabilities, with [SEP], divided by (number of tokens) **
length_penalty. Beam search ends for a source when `num_beams` texts are finished and none of them has a lower score than the
best unfinished text at its present length. The source is then removed from the batch.

Axes: B sources, W rows of each source, R = B * W, V vocab_size.

Source: Graves 2012, section 2.4; Wu et al. 2016, section 7; transformers generation/utils.py `_beam_search`.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.base.batch import Batch
from bertkit.kernels.layout import Layout
from bertkit.kernels.packed import forget_packed, pack
from bertkit.model.heads import BertWithHeads, bare
from bertkit.objectives.losses import DeviceInputs
from bertkit.tasks.task import Written
from bertkit.tasks.task_config import GenerationConfig

ROWS_AT_ONCE = 256  # rows in a batch; more rows take more memory and are not faster
CHUNK = 128  # vocabulary entries; `largest` sorts only the chunks with the largest maxima
NEVER = -1e9  # a log probability so low that a row is never chosen


@dataclass
class _TextRow:
    """An unfinished text."""

    ids: list[int]
    log_prob: float  # the sum over its tokens


@dataclass
class _SourceTexts:
    """A source with its unfinished and finished texts."""

    index: int  # in the batch
    rows: list[_TextRow]
    finished: Written = field(default_factory=list)

    def finish(self, ids: list[int], log_prob: float, search: GenerationConfig, length: int) -> None:
        """Add a finished text, and keep only the best finished texts; `length` counts its [SEP]."""
        num_kept = len(self.rows) if search.sample else search.num_beams
        self.finished.append((ids, log_prob / length**search.length_penalty))
        self.finished.sort(key=lambda text: -text[1])
        del self.finished[num_kept:]


class _TextWriter(Protocol):
    """A model that writes texts, with its state for R rows."""

    tokens: Tensor  # the first token of each source's text, (B,)
    end: int | None  # the token that ends a text

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to each row, and score the next one: (R,) -> (R, V)."""

    def select(self, rows: Tensor | None, sources: Tensor | None) -> None:
        """Reorder, repeat or drop rows, and keep only some sources; None for all."""


class _Continuation:
    """Continues the texts of a causal model, (R,) of them; the whole text is computed again for each token."""

    def __init__(self, model: BertWithHeads, device_inputs: DeviceInputs, batch: Batch) -> None:
        ids, _, _ = device_inputs.tokens(batch)
        texts = torch.split(ids[: batch.num_tokens], batch.sequence_lengths.tolist())
        self.model, self.texts = model, [text[:-1] for text in texts]  # each text without its last token
        self.tokens, self.end = torch.stack([text[-1] for text in texts]), model.config.eos_token_id

    def select(self, rows: Tensor | None, _: Tensor | None) -> None:
        """Reorder, repeat or drop texts."""
        self.texts = self.texts if rows is None else [self.texts[row] for row in rows.tolist()]

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to each text, and score the next one: (R,) -> (R, V)."""
        self.texts = [torch.cat([text, token[None]]) for text, token in zip(self.texts, tokens, strict=True)]
        ids = torch.cat(self.texts)
        layout = Layout.from_lengths(torch.tensor([len(text) for text in self.texts]), ids.device)
        ends = layout.bounds[1:].long() - 1
        logits: Tensor = self.model(ids, torch.zeros_like(ids), layout, ends).logits["next_token"]
        return logits


class _Decoding:
    """Decodes encoded sources."""

    def __init__(self, model: BertWithHeads, device_inputs: DeviceInputs, batch: Batch) -> None:
        ids, types, layout = device_inputs.tokens(batch)
        config = model.config.decoder
        assert config is not None
        self.decoder = _decoder_of(model)
        self.state = self.decoder.start(model(ids, types, layout).last_hidden_state, layout)
        self.tokens = ids.new_full(batch.sequence_lengths.shape, config.start_token_id)
        self.end: int | None = config.end_token_id
        self.select = self.state.select

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to each row, and score the next one: (R,) -> (R, V)."""
        logits: Tensor = self.decoder.step(tokens, self.state)
        return logits


def _decoder_of(model: BertWithHeads) -> Any:
    """Return the `Decoder` or `RecurrentDecoder`."""
    return model.heads["generation"]


@torch.no_grad()
def write_texts(model: BertWithHeads, batch: Batch, search: GenerationConfig, precision: str = "fp32") -> list[Written]:
    """Generate texts for a packed batch of sources; return the texts of each source, the best first."""
    inner = bare(model)
    device_inputs = DeviceInputs.of(model, precision)
    has_decoder, device = inner.config.decoder is not None, device_inputs.device
    if inner.fast.packed_weights and device.type == "cpu" and precision == "fp32":
        pack(inner.heads["generation"] if has_decoder else inner)
    with device_inputs.autocast():
        open_writer: Callable[..., _TextWriter] = _Decoding if has_decoder else _Continuation
        writer = open_writer(inner, device_inputs, batch)
        width = num_rows(search)
        sources = [_SourceTexts(index, [_TextRow([], 0.0)] * width) for index in range(len(batch.sequence_lengths))]
        if width > 1:
            writer.select(torch.arange(len(sources), device=device).repeat_interleave(width), None)
        choose = _TokenSampler(search, batch).choose if search.sample else _beams if width > 1 else _greedy
        tokens, unfinished = writer.tokens.repeat_interleave(width), sources
        for length in range(1, search.max_target_length + 1):
            logits = writer.step(tokens).float()
            parents = choose(logits, unfinished, _Step(search, writer.end, length))
            kept = [number for number, source in enumerate(unfinished) if source.rows]
            if not kept:
                break
            tokens = torch.tensor([row.ids[-1] for number in kept for row in unfinished[number].rows], device=device)
            rows = [number * width + parent for number in kept for parent in parents[number]]
            if rows != list(range(len(unfinished) * width)):  # the writer's state must be reordered
                remaining = None if len(kept) == len(unfinished) else torch.tensor(kept, device=device)
                writer.select(torch.tensor(rows, device=device), remaining)
            unfinished = [unfinished[number] for number in kept]
    return [source.finished for source in sources]


@dataclass(frozen=True)
class _Step:
    search: GenerationConfig
    end: int | None  # the token that ends a text
    length: int  # length of the texts, with the next token

    def is_last(self, token: int) -> bool:
        return token == self.end or self.length == self.search.max_target_length

    def ids(self, before: list[int], token: int) -> list[int]:
        """Return the ids of a finished text, without [SEP]."""
        return before if token == self.end else [*before, token]


def num_rows(search: GenerationConfig) -> int:
    """Return the number of rows of a source, W."""
    return search.num_candidates if search.sample else search.num_beams


def forget_weights(model: nn.Module) -> None:
    """Free the decoder's packed copies of its weights, so that the model can be trained further."""
    forget_packed(model)


def _greedy(logits: Tensor, sources: Sequence[_SourceTexts], step: _Step) -> list[list[int]]:
    """Append the most probable token to each row."""
    best, tokens = logits.max(-1)
    log_probs = (best - logits.logsumexp(-1)).tolist()
    for source, token, log_prob in zip(sources, tokens.tolist(), log_probs, strict=True):
        (row,) = source.rows
        log_prob += row.log_prob
        if step.is_last(token):
            source.finish(step.ids(row.ids, token), log_prob, step.search, step.length)
        source.rows = [] if step.is_last(token) else [_TextRow([*row.ids, token], log_prob)]
    return [[0]] * len(sources)


def _beams(logits: Tensor, sources: Sequence[_SourceTexts], step: _Step) -> list[list[int]]:
    """Keep the W best unfinished texts of each source; finish the texts among its W best continuations that end.

    Returns for each source the rows of the previous step that its new rows continue.
    """
    width = step.search.num_beams
    best, tokens = largest(logits, 2 * width)  # (R, 2 W), or (R, V) for a smaller vocabulary
    num_per_row = best.shape[1]
    # in the first step all rows are equal, so only the first one is used
    before = [
        row.log_prob if row.ids or number == 0 else NEVER
        for source in sources
        for number, row in enumerate(source.rows)
    ]
    sums = best - logits.logsumexp(-1, keepdim=True) + torch.tensor(before, device=logits.device)[:, None]
    sums, places = sums.view(len(sources), -1).topk(2 * width)
    tokens = tokens.view(len(sources), -1).gather(1, places)
    all_parents = []
    for source, *candidates in zip(sources, sums.tolist(), places.tolist(), tokens.tolist(), strict=True):
        rows: list[_TextRow] = []
        parents: list[int] = []
        for rank, (log_prob, place, token) in enumerate(zip(*candidates, strict=True)):
            row = source.rows[place // num_per_row]
            if step.is_last(token):
                if rank < width:
                    source.finish(step.ids(row.ids, token), log_prob, step.search, step.length)
            elif len(rows) < width:
                rows.append(_TextRow([*row.ids, token], log_prob))
                parents.append(place // num_per_row)
        if rows and len(source.finished) == width:
            best_score = rows[0].log_prob / step.length**step.search.length_penalty
            if best_score <= source.finished[-1][1]:
                rows = []
        source.rows = rows
        all_parents.append(parents)
    return all_parents


def largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest numbers of every row of (R, V), in descending order, and their columns, (R, count) each.

    They are in the chunks with the largest maxima, so the other chunks are not sorted.

    >>> largest(torch.tensor([[1.0, 5.0, 3.0, 4.0]]), 2)
    (tensor([[5., 4.]]), tensor([[1, 3]]))
    """
    num_rows, size = logits.shape
    count = min(count, size)
    if size < 2 * CHUNK * count:
        return logits.topk(count)
    whole = size - size % CHUNK
    chunks = logits[:, :whole].view(num_rows, -1, CHUNK)
    chosen = chunks.amax(-1).topk(count)[1]  # (R, count)
    candidates = chunks.gather(1, chosen[..., None].expand(-1, -1, CHUNK)).flatten(1)
    columns = (chosen[..., None] * CHUNK + torch.arange(CHUNK, device=logits.device)).flatten(1)
    candidates = torch.cat([candidates, logits[:, whole:]], 1)
    rest = torch.arange(whole, size, device=logits.device).expand(num_rows, -1)
    values, best = candidates.topk(count)
    return values, torch.cat([columns, rest], 1).gather(1, best)


class _TokenSampler:
    """Samples tokens; each source has its own random generator, so its texts do not depend on the rest of the batch."""

    def __init__(self, search: GenerationConfig, batch: Batch) -> None:
        parts = np.split(batch.input_ids, batch.sequence_lengths.cumsum()[:-1])
        keys = [zlib.crc32(part.tobytes()) for part in parts]
        self.generators = [torch.Generator().manual_seed(key) for key in keys]

    def choose(self, logits: Tensor, sources: Sequence[_SourceTexts], step: _Step) -> list[list[int]]:
        """Append a sampled token to each row; a finished row stays, unused, until all rows of its source are finished."""
        probs = torch.softmax(_limited(logits / step.search.temperature, step.search), -1)
        sums = probs.double().cumsum(-1)
        width = len(sources[0].rows)
        drawn = torch.cat([torch.rand(width, generator=self.generators[s.index], dtype=torch.float64) for s in sources])
        drawn = drawn.to(sums.device)[:, None] * sums[:, -1:]
        tokens = torch.searchsorted(sums, drawn, right=True).clamp(max=logits.shape[1] - 1)
        log_probs = torch.log_softmax(logits, -1).gather(1, tokens)[:, 0].tolist()
        drawn_tokens = zip(tokens[:, 0].tolist(), log_probs, strict=True)
        for source in sources:
            rows = []
            for row, (token, log_prob) in zip(source.rows, drawn_tokens, strict=False):
                is_finished = row.ids[-1:] == [step.end]
                if not is_finished and step.is_last(token):
                    source.finish(step.ids(row.ids, token), row.log_prob + log_prob, step.search, step.length)
                    token = step.end
                rows.append(row if is_finished else _TextRow([*row.ids, token], row.log_prob + log_prob))
            source.rows = rows if len(source.finished) < width else []
        return [list(range(width))] * len(sources)


def _limited(logits: Tensor, search: GenerationConfig) -> Tensor:
    """Set to -inf all but the `top_k` most probable tokens, and of these all but the first that sum to `top_p`."""
    if search.top_k is not None:
        lowest = logits.topk(min(search.top_k, logits.shape[1]))[0][:, -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    if search.top_p is not None:
        ordered, places = logits.sort(descending=True)
        probs = torch.softmax(ordered, -1)
        is_excluded = probs.cumsum(-1) - probs >= search.top_p
        logits = logits.masked_fill(is_excluded.gather(1, places.argsort(1)), -torch.inf)
    return logits
