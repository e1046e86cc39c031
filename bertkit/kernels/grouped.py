"""Attention with dropout over groups of sequences, for training on a CPU.

A group is too small for graph nodes of its own: all groups of a layer share one node, and one draw of random bits.

Axes: as in model/attention.py; C keys for each query of a group; n vectors: all groups, (B, N, T or C, H), flattened.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from bertkit.kernels.linear import random_mask

GROUP_SIZE = 4  # sequences, sorted by length: a larger group has more padding, and exceeds the cache


class Group(Protocol):
    """The properties of `model.geometry.Group` that are used here."""

    shape: tuple[int, int, int]
    mask: Tensor | None


def grouped_attention(
    query: Tensor, key: Tensor, value: Tensor, groups: Sequence[Group], num_heads: int, prob: float
) -> Tensor:
    """Compute the equation of `attend` with dropout for padded groups: vectors (n, H) -> (n / N, N, 1, H)."""
    shapes = [(count * num_heads, *lengths) for group in groups for count, *lengths in [group.shape]]
    contexts = _GroupedAttention.apply(query, key, value, shapes, [group.mask for group in groups], prob)  # type: ignore[no-untyped-call]
    return contexts.view(-1, num_heads, 1, query.shape[1])  # type: ignore[no-any-return]


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


def _groups(shapes: Any, is_kept: Tensor, queries: Sequence[Tensor], keys: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Cut a mask of weights (b, t, c), tensors of queries (b, t, H) and tensors of keys (b, c, H) into their groups."""
    weights = [x.view(shape) for x, shape in zip(is_kept.split([b * t * c for b, t, c in shapes]), shapes, strict=True)]
    found = [weights]
    for tensors, axis in ((queries, 1), (keys, 2)):
        for tensor in tensors:
            parts = tensor.split([shape[0] * shape[axis] for shape in shapes])
            found.append([x.view(shape[0], shape[axis], -1) for x, shape in zip(parts, shapes, strict=True)])
    return list(zip(*found, strict=True))
