"""Plug-ins that the table tries: two feed-forward parts, rotary positions of normed vectors, and a causal phase before masked LM."""

import dataclasses

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

import bertkit
from bertkit.model.bert import FeedForward, GatedFeedForward
from bertkit.model.positions import Rotary


@bertkit.feed_forward("normed_glu")
class NormedGatedFeedForward(GatedFeedForward):
    """A gated linear unit with a LayerNorm, without weights, before its last map, as in LTG-BERT (Samuel et al. 2023, section 3)."""

    def __init__(self, config):
        super().__init__(config, bias=False)
        self.norm = nn.LayerNorm(config.intermediate_size, config.layer_norm_eps, elementwise_affine=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """(S, D) -> two of (S, F) -> (S, D)."""
        activated, gate = self.intermediate(hidden).chunk(2, -1)
        return self.output(self.norm(self.activation(activated) * gate))


@bertkit.feed_forward("squared_relu")
class SquaredReLU(FeedForward):
    """Two linear maps with the square of a ReLU between them (So et al. 2021, Primer)."""

    def __init__(self, config):
        super().__init__(config, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """(S, D) -> (S, F) -> (S, D)."""
        return self.output(F.relu(self.intermediate(hidden)).square())


@bertkit.positions("normed_rotary")
class NormedRotary(Rotary):
    """Queries and keys of length sqrt(H), rotated as in ModernBERT (Henry et al. 2020; here with a fixed scale)."""

    def __init__(self, config):
        super().__init__(config, rotary_base=160_000.0, rotary_local_base=10_000.0, rotary_pairs="halves")

    def rotate(self, vectors: Tensor, position_ids: Tensor) -> Tensor:
        """Norm and rotate queries or keys (S, N, H)."""
        return super().rotate(F.rms_norm(vectors, vectors.shape[-1:]), position_ids)


@bertkit.objective("causal_first")
class CausalFirst(bertkit.Objective):
    """Next tokens with causal attention in the first `share` of the steps, then masked tokens (Gisserot-Boukhlef et al. 2025)."""

    heads = ("masked_lm",)

    def __init__(self, *, share: float = 0.25):
        self.share = share

    def prepare(self, batch, moment):
        """In the first phase every token but the last of its sequence predicts the next one."""
        if moment.share >= self.share:
            return batch
        ids = batch.original_ids
        places = np.setdiff1d(np.arange(len(ids)), np.cumsum(batch.sequence_lengths) - 1)
        return dataclasses.replace(batch, input_ids=ids, targets={"next": bertkit.Target(ids[places + 1], places)})

    def counts(self, batch):
        """Return the number of predictions, by the name of masked LM in both phases."""
        (target,) = batch.targets.values()
        return {"mlm": target.count}

    def losses(self, model, batch, precision):
        """Run the model as the phase wants it."""
        if "next" not in batch.targets:
            return super().losses(model, batch, precision)
        target = batch.targets["next"]
        out = bertkit.outputs(model, batch, precision, positions=target.positions, is_causal=True)
        return bertkit.head_losses(model, dataclasses.replace(batch, targets={"masked_lm": target}), out.logits)
