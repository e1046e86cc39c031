"""Plug-ins that the table tries: two feed-forward parts, rotary positions of normed vectors, an attention gate, sums of layers, an average of
weights, a causal phase before masked LM, and masks where the model errs.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bertkit
from bertkit.kernels.linear import Linear
from bertkit.model.bert import Encoder, EncoderLayer, FeedForward, GatedFeedForward
from bertkit.model.geometry import Geometry
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


class GatedLayer(EncoderLayer):
    """A layer whose contexts are multiplied by sigmoid(W x), with x the input of attention (Qiu et al. 2025, arXiv 2505.06708)."""

    def __init__(self, config, *others):
        super().__init__(config, *others)
        self.gate = Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden, geometry, attentions=None, rows=None):
        """As a layer's, with the gate."""
        normed = self.attention_norm(hidden) if self.is_pre_norm else hidden
        query, key, value = self.attention.vectors(normed, normed, geometry.keys.position_ids)
        context = self.attention.context(query, key, value, geometry, attentions)
        return self.after_attention(hidden, context * self.gate(normed).sigmoid().view_as(context))


@bertkit.encoder("gated")
class Gated(Encoder):
    """An encoder of gated layers."""

    layer_class = GatedLayer


@bertkit.encoder("dense_former")
class DenseFormer(Encoder):
    """Every layer reads a weighted sum of the embeddings and of the outputs of all layers before it (Pagliardini et al. 2024, equation 1).

    The weights begin with 1 for the last output and 0 for the others, so as an encoder without them.
    """

    def __init__(self, config):
        super().__init__(config)
        self.weights = nn.ParameterList(torch.eye(n + 1)[n] for n in range(1, len(self.layers) + 1))

    def forward(self, hidden, layout, output_hidden_states=False, attentions=None, wanted=None):
        """As an encoder's."""
        outputs, read = [hidden], hidden
        for layer, pattern, weights in zip(self.layers, self.patterns, self.weights, strict=True):
            outputs.append(
                layer(read, Geometry(layout, layout, pattern.over(layout), is_whole=attentions is not None), attentions)
            )
            read = weighted_sum(weights, outputs)
        hidden_states = [*outputs[:-1], self.norm(read)]
        return hidden_states if output_hidden_states else hidden_states[-1:]


def weighted_sum(weights: Tensor, outputs: list[Tensor]) -> Tensor:
    """Return the sum of n outputs, each (S, D), with weights (n,)."""
    made = weights[-1] * outputs[-1]
    for weight, output in zip(weights, outputs[:-1], strict=False):
        made = torch.addcmul(made, weight, output)
    return made


@bertkit.optimizer("averaged_adamw")
class AveragedAdamW(torch.optim.AdamW):
    """AdamW that leaves, after step `last`, the mean of the weights after the steps from `first` on (Izmailov et al. 2018, section 3.2).

    With a constant rate the mean can take the place of its fall to 0 (Hägele et al. 2024, arXiv 2405.18392, section 4.1).
    """

    def __init__(self, groups: list[dict[str, Any]], config: Any, *, first: int = 481, last: int = 600) -> None:
        super().__init__(groups, lr=config.peak, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)
        self.first, self.last = first, last

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient, and the averages."""
        super().step(closure)
        for parameter, state in self.state.items():
            number = int(state["step"]) - self.first + 1
            if number > 0:
                average = state.setdefault("average", torch.zeros_like(parameter)).lerp_(parameter, 1 / number)
                if number == self.last - self.first + 1:
                    parameter.copy_(average)


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


@bertkit.objective("hard_masks")
class HardMasks(bertkit.Objective):
    """Masked LM that keeps a share of the drawn masks, and prefers tokens that the model often gets wrong, as in AMLM (Edman and Fraser 2025).

    A token is kept in proportion to the share of its last predictions that were wrong, in all sentences together, but to at least `least`.
    """

    def __init__(self, *, kept: float = 1 / 3, memory: float = 0.99, least: float = 0.1):
        self.kept, self.memory, self.least = kept, memory, least

    def begin(self, model):
        """Make the table of errors, which is in checkpoints."""
        self.table = nn.Module()
        self.table.register_buffer("errors", torch.ones(model.config.vocab_size))
        return self.table

    def prepare(self, batch, moment):
        """Draw what decides between tokens of the same errors; the table is read when the batch is trained, since it changes until then."""
        waits = moment.random().exponential(size=len(batch.masked_labels))
        return dataclasses.replace(batch, targets={**batch.targets, "waits": bertkit.Target(waits)})

    def counts(self, batch):
        """Return the number of masks that are kept."""
        return {"mlm": math.ceil(self.kept * len(batch.masked_labels))}

    def losses(self, model, batch, precision):
        """Choose the masks, predict them, and note which were wrong."""
        positions, labels, waits = batch.masked_positions, batch.masked_labels, batch.targets["waits"].labels
        rates = self.table.errors[labels].clamp(min=self.least).numpy(force=True)
        is_kept = np.zeros(len(labels), bool)
        is_kept[np.argsort(waits / rates)[: self.counts(batch)["mlm"]]] = (
            True  # as drawn one by one in proportion to the rates
        )
        ids = batch.input_ids.copy()
        ids[positions[~is_kept]] = labels[~is_kept]
        target = bertkit.Target(labels[is_kept], positions[is_kept])
        chosen = dataclasses.replace(batch, input_ids=ids, targets={"masked_lm": target})
        out = bertkit.outputs(model, chosen, precision)
        self.note(
            torch.from_numpy(target.labels), out.logits["masked_lm"].argmax(-1).cpu() != torch.from_numpy(target.labels)
        )
        return bertkit.head_losses(model, chosen, out.logits)

    @torch.no_grad()
    def note(self, labels, are_wrong):
        """Update the error rate of every predicted token: an exponential mean over its predictions."""
        size = len(self.table.errors)
        seen = labels.bincount(minlength=size)
        wrong = labels.bincount(are_wrong.float(), minlength=size) / seen.clamp(min=1)
        self.table.errors.lerp_(wrong.to(self.table.errors), 1 - self.memory ** seen.to(self.table.errors))
