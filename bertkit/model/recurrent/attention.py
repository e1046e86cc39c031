"""The attention of a recurrent decoder to its source text: the scores of Bahdanau et al. 2015 and Luong et al. 2015.

Axes: as in decoder.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertkit.kernels.layout import Layout
from bertkit.kernels.linear import Linear
from bertkit.model.bert_config import LOCAL_SCORES, BertConfig, DecoderShape
from bertkit.model.scores import general, location
from bertkit.model.slots import dot


@dataclass(frozen=True)
class Source:
    """Encoded source texts, padded."""

    values: Tensor  # (B, C, D)
    keys: Tensor  # (B, C, D)
    mask: Tensor  # 0 for a token, -inf in padding, (B, C)

    def select(self, sources: Tensor | slice) -> Source:
        """Select texts by their indices."""
        values = self.values[sources]
        return Source(values, values if self.keys is self.values else self.keys[sources], self.mask[sources])


class Attended(NamedTuple):
    """What decoder states find in their sources."""

    weights: Tensor  # of the source tokens, (B, W, C), or (R, C)
    contexts: Tensor  # (B, W, D), or (R, D)


class SourceAttention(nn.Module):
    """Attention of a decoder state s to its whole source: c = sum_j a_j h_j with a = softmax_j(score(s, h_j)).

    The scores are dot s . h, general s^T W h, location (W s)_j, and additive v^T tanh(W s + U h). Local attention looks only at
    the tokens at most D = `window` from a centre p, by the general score. Positions count from 0, [CLS] and [SEP] included.

        local_m   p = t, the position of the target token, or the last token of a shorter source
        local_p   p = C sigmoid(v_p^T tanh(W_p s)) for C source tokens;  a_j is multiplied by exp(-(j - p)^2 / (2 (D / 2)^2))

    Source: Bahdanau et al. 2015, appendix A.1.2; Luong et al. 2015, sections 3.1 and 3.2.
    """

    def __init__(self, config: BertConfig, decoder: DecoderShape) -> None:
        super().__init__()
        self.score, self.window, size = decoder.score, decoder.window, config.hidden_size
        if self.score == "additive":
            # not `Linear`, since the number of rows shrinks from step to step
            self.of_query = nn.Linear(size, size, bias=False)
            self.of_key = Linear(size, size, bias=False)
            self.of_sum = nn.Linear(size, 1, bias=False)
        elif self.score != "dot":
            num_outputs = config.max_position_embeddings if self.score == "location" else size
            self.matrix = nn.Linear(size, num_outputs, bias=False)
        if self.score == "local_p":
            self.of_state = nn.Linear(size, size, bias=False)  # W_p
            self.of_centre = nn.Linear(size, 1, bias=False)  # v_p

    def prepare(self, hidden: Tensor, layout: Layout) -> Source:
        """Pad the encoder's states (S, D) and compute their keys, once for all steps."""
        values = layout.pad(hidden)
        keys = layout.pad(self.of_key(hidden)) if self.score == "additive" else values
        mask = torch.zeros_like(values[..., 0]).masked_fill(~layout.is_token, -torch.inf)
        return Source(values, keys, mask)

    def forward(self, query: Tensor, source: Source, position: Tensor | int) -> Attended:
        """Attend from the states (B, W, D) of tokens at one position, or (W,)."""
        match self.score:
            case "dot":
                scores = dot(query, source.keys)
            case "general" | "local_m" | "local_p":
                scores = general(query, source.keys, self.matrix.weight)
            case "location":
                places = torch.arange(source.keys.shape[1], device=query.device)
                scores = location(query, self.matrix.weight, places)
            case "additive":
                sums = self.of_query(query)[:, :, None] + source.keys[:, None]  # (B, W, C, D)
                scores = torch.tanh(sums) @ self.of_sum.weight[0]
        scores = scores + source.mask[:, None]
        if self.score in LOCAL_SCORES:
            lengths = (source.mask == 0).sum(1, keepdim=True)  # (B, 1)
            centres = (lengths - 1).clamp(max=position)
            if self.score == "local_p":
                centres = lengths * torch.sigmoid(self.of_centre(torch.tanh(self.of_state(query)))[..., 0])
            distances = torch.arange(scores.shape[2], device=query.device) - centres[..., None]  # (B, W, C)
            scores = scores.masked_fill(distances.abs() > self.window, -torch.inf)
        weights = torch.softmax(scores, -1)
        if self.score == "local_p":
            weights = weights * torch.exp(-2 * (distances / self.window) ** 2)
        return Attended(weights, weights @ source.values)
