"""Replaced tokens: a generator, and the model as discriminator, as in ELECTRA; README.md shows how to use it."""

import dataclasses

import numpy as np
import torch
from torch import nn

import bertkit
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights
from bertkit.train.losses import binary_cross_entropy


@bertkit.objective("replaced_tokens")
class ReplacedTokens(bertkit.Objective):
    """A small masked LM fills the gaps, and an ELECTRA says of every token whether it was replaced (Clark et al. 2020, section 2).

    Both share their embeddings (section 3.2). The generator is trained beside the model, and not exported.
    """

    heads = ("replaced_token",)

    def __init__(self, *, generator_layers: int = 1, weight: float = 50.0):
        self.generator_layers, self.weight = generator_layers, weight

    def begin(self, model):
        """Make the generator, with the embeddings of the model."""
        config = dataclasses.replace(model.config, num_hidden_layers=self.generator_layers)
        self.generator = BertWithHeads(config, ["masked_lm"], with_pooler=False)
        init_weights(self.generator, config.initializer_range, torch.Generator().manual_seed(torch.initial_seed()))
        self.generator.bert.embeddings = model.bert.embeddings
        return nn.ModuleDict({"generator": self.generator})

    def counts(self, batch):
        """Return the number of masked tokens, and that of all tokens."""
        return {"generator": len(batch.masked_labels), "replaced": batch.num_tokens}

    def losses(self, model, batch, precision):
        """Sample a token for every gap; no gradient flows through the samples."""
        places, original = batch.masked_positions, batch.original_ids
        logits = bertkit.outputs(self.generator, batch, precision, positions=places).logits["masked_lm"]
        labels = torch.from_numpy(batch.masked_labels).to(logits.device)
        ids = original.copy()
        ids[places] = torch.multinomial(logits.detach().float().softmax(-1), 1)[:, 0].cpu().numpy()
        is_replaced = torch.from_numpy((ids != original).astype(np.float32)).to(logits.device)
        answers = bertkit.outputs(model, dataclasses.replace(batch, input_ids=ids), precision).logits["replaced_token"]
        replaced = binary_cross_entropy(answers[:, 0], is_replaced)
        return {
            "generator": bertkit.cross_entropy(logits, labels),
            "replaced": dataclasses.replace(replaced, sum=self.weight * replaced.sum),
        }
