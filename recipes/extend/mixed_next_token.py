"""Masked next tokens mixed with causal ones, as in GPT-BERT; README.md shows how to use it."""

import dataclasses

import numpy as np
import torch

import bertkit


@bertkit.objective("mixed_next_token")
class MixedNextToken(bertkit.Objective):
    """One model learns to fill gaps and to continue texts: GPT-BERT (Charpentier and Samuel 2024, section 2).

    In about `causal` of 16 sequences no token attends to a later one, and every token predicts the next; in the others, a masked token is
    predicted one place before it. Both means are weighted by their share of the sequences, as in the paper.
    """

    heads = ("masked_lm",)

    def __init__(self, *, causal: int = 1):
        self.share = causal / 16

    def begin(self, model):
        """Note in the model's configuration where it predicts masked tokens, for all that reads them there."""
        model.config = dataclasses.replace(model.config, masked_next_token=True)

    def prepare(self, batch, moment):
        """Choose the causal sequences."""
        is_causal = moment.random().random(len(batch.sequence_lengths)) < self.share
        return dataclasses.replace(batch, targets={**batch.targets, "is_causal": bertkit.Target(is_causal)})

    def parts(self, batch):
        """Yield name, sequences, weight, the places that predict, and what they predict, for both kinds."""
        is_causal = batch.targets["is_causal"].labels
        masked, causal = batch.part(~is_causal), batch.part(is_causal)
        yield "masked", masked, 1 - self.share, masked.masked_positions - 1, masked.masked_labels
        ids = causal.original_ids
        places = np.setdiff1d(np.arange(len(ids)), np.cumsum(causal.sequence_lengths) - 1)
        yield "causal", dataclasses.replace(causal, input_ids=ids), self.share, places, ids[places + 1]

    def counts(self, batch):
        """Return the number of predictions of both kinds."""
        return {name: len(labels) for name, _, _, _, labels in self.parts(batch)}

    def losses(self, model, batch, precision):
        """Run the model on both kinds of sequences."""
        terms = {}
        for name, part, weight, places, labels in self.parts(batch):
            labels = torch.from_numpy(labels).to(next(model.parameters()).device)
            logits = torch.zeros(0, 1, device=labels.device)
            if len(part.sequence_lengths):
                out = bertkit.outputs(model, part, precision, positions=places, is_causal=name == "causal")
                logits = out.logits["masked_lm"]
            term = bertkit.cross_entropy(logits, labels)
            terms[name] = dataclasses.replace(term, sum=weight * term.sum)
        return terms
