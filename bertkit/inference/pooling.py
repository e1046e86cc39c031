"""The vectors of a text's tokens become one: what the names of `LEGACY_MODES` in sentence-transformers mean.

Axes: S tokens of all texts, one text after another; B texts.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# from the vectors (S, D) of tokens, their places (S,) in their texts, the numbers (B,) of tokens -> (B, D)
_MODES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "cls": lambda hidden, places, lengths: hidden[lengths.cumsum(0) - lengths],
    "max": lambda hidden, places, lengths: torch.segment_reduce(hidden, "max", lengths=lengths),
    "mean": lambda hidden, places, lengths: torch.segment_reduce(hidden, "mean", lengths=lengths),
    "mean_sqrt_len_tokens": lambda hidden, places, lengths: (
        torch.segment_reduce(hidden, "sum", lengths=lengths) / lengths.to(hidden.dtype).sqrt()[:, None]
    ),
    "weightedmean": lambda hidden, places, lengths: _weighted(hidden, places + 1, lengths),
    "lasttoken": lambda hidden, places, lengths: hidden[lengths.cumsum(0) - 1],
}


def pooled(hidden: Tensor, lengths: Tensor, modes: Sequence[str], num_skipped: int = 0) -> Tensor:
    """Pool the tokens of each text, without the first `num_skipped`, and concatenate the vectors of several modes: (S, D) -> (B, D * modes).

    >>> hidden = torch.tensor([[1.0], [3.0], [5.0]])
    >>> pooled(hidden, torch.tensor([2, 1]), ("mean", "lasttoken"))
    tensor([[2., 3.],
            [5., 5.]])
    """
    starts = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
    places = torch.arange(len(hidden), device=hidden.device) - starts
    if num_skipped:
        is_kept = places >= num_skipped
        hidden, places, lengths = hidden[is_kept], places[is_kept], lengths - num_skipped
    return torch.cat([_MODES[mode](hidden, places, lengths) for mode in modes], dim=1)


def _weighted(hidden: Tensor, weights: Tensor, lengths: Tensor) -> Tensor:
    """Average with weights (S,); a later token has a larger one (Muennighoff 2022, section 3.2)."""
    shares = weights.to(hidden.dtype)[:, None]
    return torch.segment_reduce(hidden * shares, "sum", lengths=lengths) / torch.segment_reduce(
        shares, "sum", lengths=lengths
    )
