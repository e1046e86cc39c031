"""Labels in an order, such as one to five stars: a head with other logits, its loss, and its task; README.md shows how to use it."""

import numpy as np
import torch
import torch.nn.functional as F

import bertkit
from bertkit.model.head.head import Head
from bertkit.tasks.label_kinds import OneLabel


@bertkit.model_head("ratings")
class RatingsHead(Head):
    """A logit for each step between neighbouring labels: whether the right one is above it (Frank and Hall 2001)."""

    task, has_label_names = "ratings", True

    def num_outputs(self, config):
        """Return the number of labels minus one."""
        return len(config.labels) - 1


@bertkit.head_loss("ratings")
def ratings_loss(model, batch, target, logits):
    """Return the sum of the binary cross-entropies of the steps."""
    labels = torch.from_numpy(target.labels).to(logits.device)
    above = (labels[:, None] > torch.arange(logits.shape[1], device=logits.device)).float()
    by_text = F.binary_cross_entropy_with_logits(logits.float(), above, reduction="none").sum(1)
    weights = np.ones(len(labels)) if target.weights is None else target.weights[target.labels]  # class_weights=
    weights = torch.as_tensor(weights, dtype=by_text.dtype, device=logits.device)
    is_right = (logits > 0).sum(1) == labels
    return bertkit.LossTerm((weights * by_text).sum(), target.count, (weights * is_right).sum())


@bertkit.task("ratings")
class RatingsTask(OneLabel):
    """Texts with one of several labels, in the order of `task.labels`."""

    kind = head = "ratings"

    def outputs(self, logits):
        """Return the probability of each label: how likely it is reached, but not the next one."""
        reached = np.minimum.accumulate(1 / (1 + np.exp(-np.asarray(logits, np.float64))), axis=1)
        ends = np.ones((len(reached), 1))
        return np.abs(np.diff(np.hstack([ends, reached, 0 * ends]), axis=1))
