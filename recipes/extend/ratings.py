"""Labels in an order, such as one to five stars: a head with other logits, its loss, and its task; README.md shows how to use it."""

import numpy as np
import torch

import bertkit
from bertkit.model.head.head import Head
from bertkit.tasks.label_kinds import OneLabel
from bertkit.train.losses import binary_cross_entropy


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
    labels = torch.from_numpy(target.labels).to(logits.device)[:, None]
    steps = binary_cross_entropy(logits, (labels > torch.arange(logits.shape[1], device=logits.device)).float())
    is_right = ((logits > 0).sum(1, keepdim=True) == labels).sum()
    return bertkit.LossTerm(steps.sum, target.count, is_right)


@bertkit.task("ratings")
class RatingsTask(OneLabel):
    """Texts with one of several labels, in the order of `task.labels`."""

    kind = head = "ratings"

    def outputs(self, logits):
        """Return the probability of each label: how likely it is reached, but not the next one."""
        reached = np.minimum.accumulate(1 / (1 + np.exp(-np.asarray(logits, np.float64))), axis=1)
        ends = np.ones((len(reached), 1))
        return np.abs(np.diff(np.hstack([ends, reached, 0 * ends]), axis=1))
