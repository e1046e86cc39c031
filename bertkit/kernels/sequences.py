"""Attention with dropout on a CPU, one sequence at a time: nothing is padded, and the scores stay in the cache.

Axes: as in model/attention.py; C keys of a sequence.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertkit.kernels.layout import Group
from bertkit.kernels.linear import Kept, random_mask


class SequenceAttention(torch.autograd.Function):
    """The equation of `attend` with dropout, with one graph node for all sequences of a layer, since nodes for each take longer.

    Its gradient is derived by hand. In float32: in bfloat16 oneDNN compiles a program for each length.
    """

    @staticmethod
    def forward(ctx: Kept, prob: float, groups: Sequence[Group], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Queries (S, N, H), keys and values (n, N, H), in the order of the groups: (S, N, H), with zeros for slack."""
        saved, context = [], torch.zeros_like(query)
        for mask, rows, columns in _places(groups):
            q, k, v = _by_head(query[rows], key[columns], value[columns])
            scores = _product(q, k.transpose(1, 2), q.shape[-1] ** -0.5)  # (N, T, C)
            if mask is not None:
                scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
            weights = torch.softmax(scores, -1)
            is_kept, ctx.scale = random_mask(weights.shape, prob)
            context[rows] = _product(weights * is_kept, v, ctx.scale).transpose(0, 1)
            saved += [weights, is_kept]
        ctx.groups = groups
        ctx.save_for_backward(query, key, value, *saved)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Kept, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Of queries, of keys and of values."""
        query, key, value, *saved = ctx.saved_tensors
        of_query, of_key, of_value = (torch.zeros_like(each) for each in (query, key, value))
        for weights, is_kept, (_, rows, columns) in zip(saved[::2], saved[1::2], _places(ctx.groups), strict=True):
            q, k, v, g = _by_head(query[rows], key[columns], value[columns], gradient[rows])
            of_weights = _product(g, v.transpose(1, 2), ctx.scale).mul_(is_kept)
            of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_query[rows] = _product(of_scores, k, q.shape[-1] ** -0.5).transpose(0, 1)
            of_key[columns] = _product(of_scores.transpose(1, 2), q, q.shape[-1] ** -0.5).transpose(0, 1)
            of_value[columns] = _product((weights * is_kept).transpose(1, 2), g, ctx.scale).transpose(0, 1)
        return None, None, of_query, of_key, of_value


def _places(groups: Sequence[Group]) -> Iterator[tuple[Tensor | None, slice, slice]]:
    """Yield the mask (1 or T, C), the rows of queries and those of keys of each sequence."""
    row = column = 0
    for group in groups:
        count, length, num_keys = group.shape
        mask = None if group.mask is None else group.mask[0, 0]
        for _ in range(count):
            yield mask, slice(row, row := row + length), slice(column, column := column + num_keys)


def _by_head(*vectors: Tensor) -> Iterator[Tensor]:
    """Yield the vectors of a sequence by head: (T, N, H) -> (N, T, H)."""
    return (each.transpose(0, 1) for each in vectors)


def _product(first: Tensor, second: Tensor, scale: float) -> Tensor:
    """Multiply (N, a, b) and (N, b, c), and scale, in one pass: (N, a, c)."""
    return torch.baddbmm(first.new_empty(1, 1, 1), first, second, beta=0, alpha=scale)
