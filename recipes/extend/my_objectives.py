"""Two objectives; README.md shows how to use them."""

import dataclasses

import torch.nn.functional as F

import bertkit


@bertkit.objective("falling_masks")
class FallingMasks(bertkit.Objective):
    """Masked LM whose share of masks falls during the run, from `masking.probability` to `last` of it."""

    def __init__(self, *, last: float = 0.5):
        self.last = last

    def prepare(self, batch, moment):
        """Give some masked tokens back."""
        positions, labels = batch.masked_positions, batch.masked_labels
        is_kept = moment.random().random(len(positions)) < 1 - (1 - self.last) * moment.share
        ids = batch.input_ids.copy()
        ids[positions[~is_kept]] = labels[~is_kept]
        masks = bertkit.Target(labels[is_kept], positions[is_kept])
        return dataclasses.replace(batch, input_ids=ids, targets={**batch.targets, "masked_lm": masks})


def labels_of(batch):
    """Return the labels of a task: of texts, or of tokens."""
    (target,) = batch.targets.values()
    return target.labels


@bertkit.objective("r_drop")
class RDrop(bertkit.Objective):
    """The task's loss of two passes with other dropout, and how far the two differ (Liang et al. 2021, equation 3)."""

    def __init__(self, *, weight: float = 1.0):
        self.weight = weight

    def counts(self, batch):
        """Return the number of texts twice."""
        return {**batch.loss_counts, "difference": len(labels_of(batch))}

    def losses(self, model, batch, precision):
        """Return the mean of the two losses, and the weighted divergence in both directions."""
        (head,) = batch.targets
        passes = [bertkit.outputs(model, batch, precision).logits for _ in range(2)]
        terms = [bertkit.head_losses(model, batch, logits)[head] for logits in passes]
        logs = [F.log_softmax(logits[head].float(), -1) for logits in passes]
        pairs = (logs, logs[::-1])
        both = sum(F.kl_div(own, other, reduction="sum", log_target=True) for own, other in pairs) / 2
        mean = dataclasses.replace(terms[0], sum=(terms[0].sum + terms[1].sum) / 2)
        return {
            head: mean,
            "difference": bertkit.LossTerm(self.weight * both, len(labels_of(batch)), None),
        }
