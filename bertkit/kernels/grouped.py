"""Attention with dropout over groups of sequences, for training on a CPU.

A group is too small for graph nodes of its own: all groups of a layer share one node, and one draw of random bits.

Axes: as in model/attention.py; C keys for each query of a group; n vectors: all groups, (B, N, T or C, H), flattened.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bertkit.kernels.linear import random_mask

GROUP_SIZE = 4  # sequences, sorted by length: a larger group has more padding, and exceeds the cache
Shapes = Sequence[tuple[int, int, int]]


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, shapes: Shapes, masks: Sequence[Tensor | None], prob: float
) -> Tensor:
    """Compute the equation of `attend` with dropout for groups with these shapes (B * N, T, C) and masks: (n, H) -> (n, H)."""
    return _GroupedAttention.apply(query, key, value, shapes, masks, prob)  # type: ignore[no-any-return, no-untyped-call]


class _GroupedAttention(torch.autograd.Function):
    """Products in the dtype of the vectors, and the softmax at least in float32; its gradient is derived by hand."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, shapes: Any, masks: Any, prob: float) -> Tensor:
        query, wide = query * query.shape[1] ** -0.5, torch.promote_types(query.dtype, torch.float32)
        is_kept, ctx.scale = random_mask(sum(b * t * c for b, t, c in shapes), prob)
        ctx.shapes, contexts, weights_of_groups = shapes, torch.empty_like(query), []
        with torch.autocast("cpu", enabled=False):
            for mask, (kept, q, context, k, v) in zip(
                masks, _groups(shapes, is_kept, (query, contexts), (key, value)), strict=True
            ):
                scores = torch.bmm(q, k.transpose(1, 2)).to(wide)
                if mask is not None:
                    lowest = scores.new_zeros(mask.shape).masked_fill_(~mask, torch.finfo(wide).min)
                    scores.view(len(mask), -1, *scores.shape[1:]).add_(lowest)
                weights = torch.softmax(scores, -1)
                torch.bmm((weights * kept).to(v.dtype), v, out=context)
                weights_of_groups.append(weights)
        ctx.save_for_backward(query, key, value, is_kept, *weights_of_groups)
        return contexts.mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, is_kept, *weights_of_groups = ctx.saved_tensors
        of_query, of_key, of_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        queries, keys = (query, gradient * ctx.scale, of_query), (key, value, of_key, of_value)
        for weights, (kept, q, d_context, d_q, k, v, d_k, d_v) in zip(
            weights_of_groups, _groups(ctx.shapes, is_kept, queries, keys), strict=True
        ):
            torch.bmm((weights * kept).to(v.dtype).transpose(1, 2), d_context, out=d_v)
            d_weights = (torch.bmm(d_context, v.transpose(1, 2)) * kept).to(weights.dtype)
            d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype).to(q.dtype)
            torch.bmm(d_scores, k, out=d_q)
            torch.bmm(d_scores.transpose(1, 2), q, out=d_k)
        return of_query.mul_(query.shape[1] ** -0.5), of_key, of_value, None, None, None


def _groups(
    shapes: Shapes, is_kept: Tensor, queries: Sequence[Tensor], keys: Sequence[Tensor]
) -> Iterator[tuple[Tensor, ...]]:
    """Cut a mask of weights (b, t, c), tensors of queries (b, t, H) and tensors of keys (b, c, H) into their groups."""
    num_queries, num_keys = [b * t for b, t, _ in shapes], [b * c for b, _, c in shapes]
    kept = torch.split(is_kept, [b * t * c for b, t, c in shapes])
    by_query, by_key = ([torch.split(x, n) for x in all_] for all_, n in ((queries, num_queries), (keys, num_keys)))
    for number, (b, t, c) in enumerate(shapes):
        of_queries, of_keys = (
            [x[number].view(b, -1, x[number].shape[1]) for x in parts] for parts in (by_query, by_key)
        )
        yield kept[number].view(b, t, c), *of_queries, *of_keys
