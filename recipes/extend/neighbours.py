"""Vectors of texts from plain text: neighbouring segments are alike; README.md shows how to use it."""

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F

import bertkit
from bertkit.inference.pooling import pooled


@bertkit.objective("neighbours")
class Neighbours(bertkit.Objective):
    """The vector of a segment is nearer to that of its neighbour than to those of the other texts in its micro-batch.

    Source: van den Oord et al. 2018, equation 4, with the cosine at a temperature in both directions, as Radford et al. 2021 have it.
    Vectors are means over the tokens, as `export sentence_transformers=true` and `embed` compute them.
    """

    heads = ()
    takes_pairs = True

    def __init__(self, *, temperature: float = 0.05):
        self.temperature = temperature

    def prepare(self, batch, moment):
        """Cut each pair, `[CLS] A [SEP] B [SEP]`, into the sequences `[CLS] A [SEP]` and `[CLS] B [SEP]`, unmasked."""
        ids, ends = batch.original_ids, np.cumsum(batch.sequence_lengths)
        seconds = np.add.reduceat(batch.token_type_ids, ends - batch.sequence_lengths)  # tokens of B [SEP]
        return dataclasses.replace(
            batch,
            input_ids=np.insert(ids, ends - seconds, ids[:1].repeat(len(ends))),
            token_type_ids=np.zeros(len(ids) + len(ends), np.int64),
            sequence_lengths=np.stack([batch.sequence_lengths - seconds, seconds + 1], 1).reshape(-1),
            targets={
                "neighbours": bertkit.Target(batch.targets["next_sentence"].labels == 0)
            },  # others: from another document
        )

    def counts(self, batch):
        """Return the number of segments, each of which looks for its neighbour."""
        return {"neighbours": 2 * int(batch.targets["neighbours"].labels.sum())}

    def losses(self, model, batch, precision):
        """Compare the first segments with all second ones, and the second ones with all first ones."""
        hidden = bertkit.outputs(model, batch, precision).last_hidden_state
        lengths = torch.from_numpy(batch.sequence_lengths).to(hidden.device)
        vectors = F.normalize(pooled(hidden.float(), lengths, ("mean",)), dim=-1)
        cosines = vectors[::2] @ vectors[1::2].T / self.temperature
        numbers = torch.from_numpy(np.flatnonzero(batch.targets["neighbours"].labels)).to(hidden.device)
        there, back = (bertkit.cross_entropy(scores[numbers], numbers) for scores in (cosines, cosines.T))
        return {"neighbours": bertkit.LossTerm(there.sum + back.sum, 2 * len(numbers), there.correct + back.correct)}
