"""What pretraining minimises: the masked LM loss and the next sentence loss of a packed batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.batch import PretrainBatch
from bertkit.model.layout import Layout
from bertkit.train.losses import LossTerm, cross_entropy


def pretraining_losses(model: nn.Module, batch: PretrainBatch, precision: str = "fp32") -> dict[str, LossTerm]:
    """Run the model over a packed batch: "mlm" and, with pairs and a next sentence head, "nsp".

    The total loss is the sum of the two means (Devlin et al. 2019, A.2). With precision "bf16" matrix products are in
    bfloat16; weights, LayerNorm, softmax of the losses and gradients stay in float32.
    """
    device = next(model.parameters()).device

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

    layout = Layout.from_lengths(torch.from_numpy(batch.sequence_lengths), device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        out = model(
            tensor(batch.input_ids),
            tensor(batch.token_type_ids),
            layout,
            masked_positions=tensor(batch.masked_positions),
        )
    terms = {"mlm": cross_entropy(out.logits["masked_lm"], tensor(batch.masked_labels))}
    if batch.next_sentence_labels is not None and "next_sentence" in out.logits:
        terms["nsp"] = cross_entropy(out.logits["next_sentence"], tensor(batch.next_sentence_labels))
    return terms
