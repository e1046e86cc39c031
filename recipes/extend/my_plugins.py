"""A masking, a head and a metric; README.md shows how to use them."""

import numpy as np
import torch
from sklearn.metrics import cohen_kappa_score
from torch import nn

import bertkit


@bertkit.masking("block")
def block(ids, special, rng, policy, *, length: int = 3):
    """Predict runs of `length` neighbouring tokens, about policy.probability of all; special: [CLS] and [SEP]."""
    free = np.flatnonzero(~special)
    num_runs = max(1, round(policy.probability * len(ids) / length))
    starts = rng.choice(free, min(num_runs, len(free)), replace=False)
    return np.intersect1d(free, np.add.outer(starts, np.arange(length)))


@bertkit.head("two_layers")
class TwoLayers(nn.Module):
    """A hidden layer between BERT and the labels: (n, D) -> (n, num_outputs)."""

    def __init__(self, config, num_outputs, *, hidden: int = 32):
        super().__init__()
        self.inner, self.outer = nn.Linear(config.hidden_size, hidden), nn.Linear(hidden, num_outputs)

    def forward(self, vectors):
        """Return the logits."""
        return self.outer(torch.tanh(self.inner(vectors)))


@bertkit.metric("kappa")
def kappa(predictions, references):
    """Cohen's kappa of the predicted label numbers."""
    return cohen_kappa_score(references, predictions)
