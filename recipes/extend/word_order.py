"""Masked LM and the order of tokens, as in StructBERT; README.md shows how to use it."""

import dataclasses

import numpy as np
import torch

import bertkit


@bertkit.objective("word_order")
class WordOrder(bertkit.Objective):
    """Masked LM, and the original token at each place of some shuffled trigrams (Wang et al. 2019, section 2.2).

    `share` of the trigrams without a masked token, [CLS] or [SEP] are shuffled, none of them twice: the three tokens change places at
    random. The masked LM head predicts what stood there. Both losses have the same weight, as in the paper. Next sentences are
    predicted as always, if they are: the paper's other objective, the order of sentences, is not part of this one.
    """

    def __init__(self, *, share: float = 0.05):
        self.share = share

    def prepare(self, batch, moment):
        """Shuffle some trigrams."""
        rng, original, ids = moment.random(), batch.original_ids, batch.input_ids.copy()
        is_free = ~np.isin(original, original[[0, -1]])  # [CLS] and [SEP]
        is_free[batch.masked_positions] = False
        starts = np.flatnonzero(is_free[:-2] & is_free[1:-1] & is_free[2:])
        num_left, is_shuffled = round(self.share * len(starts)), np.zeros(len(ids), bool)
        for start in rng.permutation(starts):
            trigram = slice(start, start + 3)
            if num_left and not is_shuffled[trigram].any():
                ids[trigram], is_shuffled[trigram], num_left = rng.permutation(ids[trigram]), True, num_left - 1
        places = np.flatnonzero(is_shuffled)
        order = bertkit.Target(original[places], places)
        return dataclasses.replace(batch, input_ids=ids, targets={**batch.targets, "word_order": order})

    def losses(self, model, batch, precision):
        """Run the model once, and read the masked tokens first, then the shuffled ones."""
        order, num_masked = batch.targets["word_order"], len(batch.masked_labels)
        places = np.concatenate([batch.masked_positions, order.positions])
        out = bertkit.outputs(model, batch, precision, positions=places)
        masked, shuffled = out.logits["masked_lm"].tensor_split([num_masked])
        labels = torch.from_numpy(order.labels).to(shuffled.device)
        return {
            **bertkit.head_losses(model, batch, {**out.logits, "masked_lm": masked}),
            "word_order": bertkit.cross_entropy(shuffled, labels),
        }
