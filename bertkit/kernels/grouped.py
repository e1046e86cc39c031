"""Attention with dropout over groups of sequences, for training on a CPU.

Axes: as in model/attention.py; C keys for each query of a group.
"""

import torch
from torch import Tensor

from bertkit.kernels.linear import Kept, random_mask

GROUP_SIZE = 4  # sequences, sorted by length: a larger group has more padding, and exceeds the cache


class GroupedAttention(torch.autograd.Function):
    """The equation of `attend` with dropout, with one graph node for all groups of a layer, since nodes for each take longer.

    Products in the dtype of the vectors, and the softmax at least in float32; its gradient is derived by hand.
    """

    @staticmethod
    def forward(ctx: Kept, prob: float, masks: list[Tensor | None], *vectors: Tensor) -> tuple[Tensor, ...]:
        """The queries of all groups (B, N, T, H), their keys, and their values (B, N, C, H): contexts (B, N, T, H)."""
        number, wide = len(masks), torch.promote_types(vectors[0].dtype, torch.float32)
        queries = [query * query.shape[-1] ** -0.5 for query in vectors[:number]]
        contexts, saved = [], []
        with torch.autocast("cpu", enabled=False):
            for query, key, value, mask in zip(queries, vectors[number:-number], vectors[-number:], masks, strict=True):
                scores = (query @ key.transpose(2, 3)).to(wide)
                if mask is not None:
                    scores.masked_fill_(~mask, torch.finfo(wide).min)
                weights = torch.softmax(scores, -1)
                is_kept, ctx.scale = random_mask(weights.shape, prob)
                contexts.append(((weights * is_kept).to(value.dtype) @ value).mul_(ctx.scale))
                saved += [query, key, value, weights, is_kept]
        ctx.save_for_backward(*saved)
        return tuple(contexts)

    @staticmethod
    def backward(ctx: Kept, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Of queries, of keys and of values."""
        found, saved = [], ctx.saved_tensors
        for number, gradient in enumerate(gradients):
            query, key, value, weights, is_kept = saved[5 * number : 5 * number + 5]
            gradient = gradient * ctx.scale
            of_weights = (gradient @ value.transpose(2, 3) * is_kept).to(weights.dtype)
            of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype).to(query.dtype)
            of_query = (of_scores @ key).mul_(query.shape[-1] ** -0.5)
            of_value = (weights * is_kept).to(value.dtype).transpose(2, 3) @ gradient
            found.append((of_query, of_scores.transpose(2, 3) @ query, of_value))
        return None, None, *(each for tensors in zip(*found, strict=True) for each in tensors)
