"""What users may choose instead of BERT's pooler, which is in bert.py: one vector for each sequence, for heads of whole texts.

Axes: as in attention.py.
"""

import torch
from torch import Tensor, nn

from bertkit.base import plugins
from bertkit.kernels.layout import Layout
from bertkit.kernels.linear import Linear
from bertkit.model.bert import Pooler
from bertkit.model.bert_config import BertConfig


def weighted_mean(hidden: Tensor, scores: Tensor, layout: Layout) -> Tensor:
    """Average the vectors of each sequence, weighted by the softmax of their scores: (S, D) and (S,) -> (B, D).

    >>> layout = Layout.from_lengths(torch.tensor([2, 1]))
    >>> weighted_mean(torch.tensor([[1.0], [3.0], [5.0]]), torch.zeros(3), layout)
    tensor([[2.],
            [5.]])

    Source: Raffel and Ellis 2016; with equal scores it is the mean.
    """
    sizes = [count * length for _, count, length in layout.runs]
    means = []
    runs = zip(layout.runs, torch.split(hidden, sizes), torch.split(scores, sizes), strict=True)
    for (_, count, length), *parts in runs:
        tokens, score = (part.view(count, length, *part.shape[1:]) for part in parts)  # (B, T, D), (B, T)
        means.append((torch.softmax(score, -1)[:, None] @ tokens)[:, 0])
    return torch.cat(means)[: len(layout.starts)]


def mean(hidden: Tensor, layout: Layout) -> Tensor:
    """Average the vectors of each sequence: (S, D) -> (B, D)."""
    return weighted_mean(hidden, hidden.new_zeros(len(hidden)), layout)


@plugins.option("pooler", "cls")
class Cls(nn.Module):
    """The vector of [CLS] itself."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(S, D) -> (B, D)."""
        return hidden[layout.starts]


@plugins.option("pooler", "plain_mean")
class PlainMean(Cls):
    """The mean of the token vectors of a sequence itself."""

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(S, D) -> (B, D)."""
        return mean(hidden, layout)


@plugins.option("pooler", "mean")
class MeanPooler(Pooler):
    """The mean of the token vectors of a sequence."""

    def pool(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(S, D) -> (B, D)."""
        return mean(hidden, layout)


@plugins.option("pooler", "late_mean")
class LateMean(Pooler):
    """The mean of what the linear map and the activation make of each token vector, as in EuroBERT."""

    def forward(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(S, D) -> (B, D)."""
        return mean(self.activation(self.dense(hidden)), layout)


@plugins.option("pooler", "feed_forward")
class AttentivePooler(Pooler):
    """A mean with learned weights: feed-forward attention scores a token by a(h) = tanh(w h + b)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.score = Linear(config.hidden_size, 1)

    def pool(self, hidden: Tensor, layout: Layout) -> Tensor:
        """(S, D) -> (B, D)."""
        return weighted_mean(hidden, torch.tanh(self.score(hidden))[:, 0], layout)
