"""Text generation: greedy, by beam search, or by sampling. A source is removed from the batch once its texts are finished.

A text's score is the sum of its tokens' log probabilities, [SEP] included, divided by their number to the power of
`length_penalty`. A beam search ends when the best unfinished text scores no better, at its length, than the worst of `num_beams`
finished ones, as in `generate` of transformers, which writes the same texts.

Axes: B sources, W rows of each, V vocab_size.

Source: Graves 2012, section 2.4; Wu et al. 2016, section 7; transformers generation/utils.py `_beam_search`.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.base.batch import TaskBatch
from bertkit.kernels.linear import forget_packed, pack
from bertkit.model.bert_config import DecoderConfig
from bertkit.run.objective import DeviceInputs
from bertkit.tasks.task_config import GenerationConfig

Written = list[tuple[list[int], float]]  # a source's texts, without [CLS] and [SEP], and their scores; best first
ROWS_AT_ONCE = 256  # written together; more rows take memory and are no faster
CHUNK = 128  # tokens of the vocabulary; `largest` looks only into the best chunks
NEVER = -1e9


@dataclass
class _Row:
    """An unfinished text."""

    ids: list[int]
    total: float  # the sum of its log probabilities


@dataclass
class _Source:
    """A source with its unfinished and finished texts."""

    place: int  # index in the batch
    rows: list[_Row]
    ended: Written = field(default_factory=list)

    def end(self, ids: list[int], total: float, search: GenerationConfig, length: int) -> None:
        """Keep a text among the best finished ones; `length` counts its [SEP]."""
        most = len(self.rows) if search.sample else search.num_beams
        self.ended.append((ids, total / length**search.length_penalty))
        self.ended.sort(key=lambda text: -text[1])
        del self.ended[most:]


@torch.no_grad()
def write_texts(model: nn.Module, batch: TaskBatch, search: GenerationConfig, precision: str = "fp32") -> list[Written]:
    """Write texts for a packed batch of sources: for every source as many as the search keeps, best first."""
    bare: Any = getattr(model, "module", model)  # data-parallel training wraps the model
    device_inputs = DeviceInputs.of(model, precision)
    decoder, config = bare.heads["generation"], bare.config.decoder
    if bare.fast.packed_weights and device_inputs.device.type == "cpu" and precision == "fp32":
        pack(decoder)
    with device_inputs.autocast():
        input_ids, token_type_ids, layout = device_inputs.tokens(batch)
        state = decoder.start(bare(input_ids, token_type_ids, layout).last_hidden_state, layout)
        width = num_rows(search)
        sources = [_Source(place, [_Row([], 0.0)] * width) for place in range(len(batch.sequence_lengths))]
        if width > 1:
            state.select(torch.arange(len(sources), device=device_inputs.device).repeat_interleave(width), None)
        choose = _Draws(search, batch).choose if search.sample else _beams if width > 1 else _greedy
        written: list[Written] = [[] for _ in sources]
        tokens = torch.full((len(sources) * width,), config.start_token_id, device=device_inputs.device)
        for length in range(1, search.max_target_length + 1):
            logits = decoder.step(tokens, state).float()
            parents = choose(logits, sources, _Step(search, config, length))
            left = [number for number, source in enumerate(sources) if source.rows]
            for source in sources:
                written[source.place] = source.ended
            if not left:
                break
            newest = [row.ids[-1] for number in left for row in sources[number].rows]
            rows = [number * width + parent for number in left for parent in parents[number]]
            tokens = torch.tensor(newest, device=device_inputs.device)
            if rows != list(range(len(sources) * width)):  # some rows move
                taken = None if len(left) == len(sources) else torch.tensor(left, device=device_inputs.device)
                state.select(torch.tensor(rows, device=device_inputs.device), taken)
            sources = [sources[number] for number in left]
    return written


@dataclass(frozen=True)
class _Step:
    search: GenerationConfig
    config: DecoderConfig
    length: int  # of the texts, with the next token

    def ends(self, token: int) -> bool:
        return token == self.config.end_token_id or self.length == self.search.max_target_length

    def ids(self, before: list[int], token: int) -> list[int]:
        """The ids of a finished text, without [SEP]."""
        return before if token == self.config.end_token_id else [*before, token]


def num_rows(search: GenerationConfig) -> int:
    """Give the rows of a source, W: beams, or sampled texts."""
    return search.num_candidates if search.sample else search.num_beams


def forget_weights(model: nn.Module) -> None:
    """Free the packed weights of the decoder, so that its model can be trained further."""
    bare: Any = getattr(model, "module", model)
    forget_packed(bare.heads["generation"])


def _greedy(logits: Tensor, sources: Sequence[_Source], step: _Step) -> list[list[int]]:
    """Take the most probable token of each row."""
    best, tokens = logits.max(-1)
    shares = (best - logits.logsumexp(-1)).tolist()
    for source, token, share in zip(sources, tokens.tolist(), shares, strict=True):
        row = source.rows[0]
        source.rows = _go_on(source, [(row, token, row.total + share)], step)
    return [[0]] * len(sources)


def _go_on(source: _Source, chosen: Sequence[tuple[_Row, int, float]], step: _Step) -> list[_Row]:
    """Finish the texts whose next token ends them; give the others with their next token."""
    rows = []
    for row, token, total in chosen:
        if step.ends(token):
            source.end(step.ids(row.ids, token), total, step.search, step.length)
        else:
            rows.append(_Row([*row.ids, token], total))
    return rows


def _beams(logits: Tensor, sources: Sequence[_Source], step: _Step) -> list[list[int]]:
    """Keep every source's W best unfinished texts, and the finished ones among its W best continuations."""
    width = step.search.num_beams
    best, tokens = largest(logits, 2 * width)  # (R, 2 W), or (R, V) of a smaller vocabulary
    of_row = best.shape[1]
    totals = [
        row.total if row.ids or number == 0 else NEVER for source in sources for number, row in enumerate(source.rows)
    ]
    sums = best - logits.logsumexp(-1, keepdim=True) + torch.tensor(totals, device=logits.device)[:, None]
    sums, places = sums.view(len(sources), -1).topk(2 * width)
    tokens = tokens.view(len(sources), -1).gather(1, places)
    all_parents = []
    for source, *candidates in zip(sources, sums.tolist(), places.tolist(), tokens.tolist(), strict=True):
        rows: list[_Row] = []
        parents: list[int] = []
        for rank, (total, place, token) in enumerate(zip(*candidates, strict=True)):
            row = source.rows[place // of_row]
            if step.ends(token):
                if rank < width:
                    source.end(step.ids(row.ids, token), total, step.search, step.length)
            elif len(rows) < width:
                rows.append(_Row([*row.ids, token], total))
                parents.append(place // of_row)
        is_full = len(source.ended) == width
        if is_full and rows and rows[0].total / step.length**step.search.length_penalty <= source.ended[-1][1]:
            rows = []
        source.rows = rows
        all_parents.append(parents)
    return all_parents


def largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Give the largest numbers of every row, in order, and their columns: (R, V) -> twice (R, count).

    They lie in the chunks of the row with the largest maxima.

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
    among = chunks.gather(1, chosen[..., None].expand(-1, -1, CHUNK)).flatten(1)
    places = (chosen[..., None] * CHUNK + torch.arange(CHUNK, device=logits.device)).flatten(1)
    among = torch.cat([among, logits[:, whole:]], 1)
    rest = torch.arange(whole, size, device=logits.device).expand(num_rows, -1)
    values, best = among.topk(count)
    return values, torch.cat([places, rest], 1).gather(1, best)


class _Draws:
    """Sampling; each source has its own random generator, so samples do not depend on the rest of the batch."""

    def __init__(self, search: GenerationConfig, batch: TaskBatch) -> None:
        parts = np.split(batch.input_ids, batch.sequence_lengths.cumsum()[:-1])
        keys = [zlib.crc32(part.tobytes()) for part in parts]
        self.generators = [torch.Generator().manual_seed(key) for key in keys]

    def choose(self, logits: Tensor, sources: Sequence[_Source], step: _Step) -> list[list[int]]:
        """Draw a token for every row; a finished row stays, unused, until all rows of its source are finished."""
        shares = torch.softmax(_limited(logits / step.search.temperature, step.search), -1)
        sums = shares.double().cumsum(-1)
        width = len(sources[0].rows)
        drawn = torch.cat([torch.rand(width, generator=self.generators[s.place], dtype=torch.float64) for s in sources])
        drawn = drawn.to(sums.device)[:, None] * sums[:, -1:]
        tokens = torch.searchsorted(sums, drawn, right=True).clamp(max=logits.shape[1] - 1)
        logs = torch.log_softmax(logits, -1).gather(1, tokens)[:, 0].tolist()
        of_rows = zip(tokens[:, 0].tolist(), logs, strict=True)
        for source in sources:
            rows = []
            for row, (token, log) in zip(source.rows, of_rows, strict=False):
                has_ended = row.ids[-1:] == [step.config.end_token_id]
                if not has_ended and step.ends(token):
                    source.end(step.ids(row.ids, token), row.total + log, step.search, step.length)
                    token = step.config.end_token_id
                rows.append(row if has_ended else _Row([*row.ids, token], row.total + log))
            source.rows = rows if len(source.ended) < width else []
        return [list(range(width))] * len(sources)


def _limited(logits: Tensor, search: GenerationConfig) -> Tensor:
    """Keep only the `top_k` most probable tokens, and of these the fewest whose probabilities sum to `top_p`."""
    if search.top_k is not None:
        least = logits.topk(min(search.top_k, logits.shape[1]))[0][:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if search.top_p is not None:
        ordered, places = logits.sort(descending=True)
        shares = torch.softmax(ordered, -1)
        is_out = shares.cumsum(-1) - shares >= search.top_p
        logits = logits.masked_fill(is_out.gather(1, places.argsort(1)), -torch.inf)
    return logits
