"""Two objectives that make a task robust to small changes of its token embeddings; README.md shows how to use them."""

import contextlib
import dataclasses

import torch
import torch.nn.functional as F
from my_objectives import divergence

import bertkit
from bertkit.objectives.losses import bare


@contextlib.contextmanager
def moved(model, delta):
    """Add `delta`, (S, D), to the token embeddings while the context is open."""

    def add(_, __, embedded):
        return embedded + F.pad(delta, (0, 0, 0, len(embedded) - len(delta)))  # there may be slack rows at the end

    hook = bare(model).bert.embeddings.token.register_forward_hook(add)
    try:
        yield
    finally:
        hook.remove()


def by_text(rows, lengths, largest=False):
    """Return the Euclidean norm of the rows of each text, or their largest number, for each of its rows: (S, D) -> (S, 1)."""
    parts = [part.abs().max() if largest else part.norm() for part in rows.float().split(lengths)]
    return torch.stack(parts).clamp_min(1e-12).repeat_interleave(torch.tensor(lengths, device=rows.device))[:, None]


@bertkit.objective("freelb")
class FreeLB(bertkit.Objective):
    """The mean loss of several passes, between which the embeddings move uphill, from a random start (Zhu et al. 2020, algorithm 1)."""

    def __init__(self, *, passes: int = 2, step: float = 0.1, start: float = 0.2):
        self.passes, self.step, self.start = passes, step, start

    def losses(self, model, batch, precision):
        """Return the terms of the task, each the mean of those of the passes."""
        matrix, lengths = bare(model).bert.embeddings.token.weight, batch.sequence_lengths.tolist()
        noise = 2 * torch.rand(sum(lengths), matrix.shape[1], device=matrix.device) - 1
        sizes = torch.tensor(lengths, device=matrix.device).repeat_interleave(
            torch.tensor(lengths, device=matrix.device)
        )
        delta, terms = noise * self.start / (sizes * matrix.shape[1])[:, None].sqrt(), []
        for _ in range(self.passes):
            delta = delta.detach().requires_grad_()
            with moved(model, delta):
                terms.append(super().losses(model, batch, precision))
            slope = torch.autograd.grad(sum(term.sum for term in terms[-1].values()), delta, retain_graph=True)[0]
            delta = delta + self.step * slope / by_text(slope, lengths)
        return {
            name: dataclasses.replace(term, sum=sum(one[name].sum for one in terms) / self.passes)
            for name, term in terms[0].items()
        }


@bertkit.objective("smart")
class Smart(bertkit.Objective):
    """The task's loss, and how far its predictions change where a tiny step of the embeddings changes them most (Jiang et al. 2020, 3.1)."""

    def __init__(self, *, weight: float = 1.0, step: float = 1e-3, start: float = 1e-5):
        self.weight, self.step, self.start = weight, step, start

    def counts(self, batch):
        """Return the number of labels twice."""
        (target,) = batch.targets.values()
        return {**batch.loss_counts, "smoothness": len(target.labels)}

    def losses(self, model, batch, precision):
        """Return the task's loss and the weighted change in both directions; squared differences for a regression."""
        (head,) = batch.targets
        logits = bertkit.outputs(model, batch, precision).logits[head]
        matrix, lengths = bare(model).bert.embeddings.token.weight, batch.sequence_lengths.tolist()

        def change(delta, logits):
            with moved(model, delta):
                return divergence(batch, logits, bertkit.outputs(model, batch, precision).logits[head])

        noise = self.start * torch.randn(sum(lengths), matrix.shape[1], device=matrix.device)
        slope = torch.autograd.grad(change(noise.requires_grad_(), logits.detach()), noise)[0]
        delta = (noise + self.step * slope / by_text(slope, lengths, largest=True)).detach()
        term = bertkit.LossTerm(self.weight * change(delta, logits), self.counts(batch)["smoothness"], None)
        return {**bertkit.head_losses(model, batch, {head: logits}), "smoothness": term}
