"""Attention heads: how much each contributes to an output of the model, and what it does where that is plain.

Axes: L layers, N heads, T tokens of the sequence, D hidden_size.
"""

import contextlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertkit.apps.explain.attributions import ExplainedOutput, score_of
from bertkit.model.heads import BertWithHeads
from bertkit.tasks.feature import Feature

PLAIN_SHARE = 0.5  # of a head's attention; a head with more of it in places of one kind has a plain role


def head_importance(model: BertWithHeads, target: ExplainedOutput, feature: Feature) -> NDArray[np.float64]:
    """Return how strongly the score of a target depends on each head, (L, N).

        importance_h = |d score / d a| at a = 1, where a multiplies the output of head h

    Source: Michel et al. 2019, Are Sixteen Heads Really Better than One?, equation 2, with the score instead of the loss.
    """
    outputs: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor]) -> None:
        outputs.extend(inputs)  # the outputs of the heads, concatenated: (T, D)

    embeddings = model.bert.embeddings.token.weight[feature.input_ids][None].detach().requires_grad_()
    with contextlib.ExitStack() as hooks:
        for name, module in model.bert.encoder.named_modules():
            if name.endswith("attention.output"):
                hooks.enter_context(module.register_forward_pre_hook(keep))
        score = score_of(model, target, feature, embeddings).sum()
    gradients = torch.autograd.grad(score, outputs)
    products = torch.stack([output * gradient for output, gradient in zip(outputs, gradients, strict=True)])
    by_head = products.detach().double().view(*products.shape[:2], model.config.num_attention_heads, -1)  # (L, T, N, H)
    importance: NDArray[np.float64] = by_head.sum((1, 3)).abs().cpu().numpy()
    return importance


def head_roles(attentions: NDArray[np.float32], tokens: Sequence[str], special: Sequence[str]) -> list[list[str]]:
    """Return where each head looks: "previous token", "same token", "next token" or a special token, such as "[SEP]".

    A head, (T, T) of `attentions`, has a role if more than `PLAIN_SHARE` of its attention goes there, as the mean over all tokens of
    the input; otherwise "".
    """
    steps = {"previous token": -1, "same token": 0, "next token": 1}
    places = {name: np.eye(len(tokens), k=step) for name, step in steps.items()}
    names = np.array(tokens)
    places |= {name: np.broadcast_to(names == name, (len(tokens),) * 2).astype(float) for name in special}
    shares = np.tensordot(attentions, np.stack(list(places.values())), ((2, 3), (1, 2))) / len(tokens)  # (L, N, places)
    roles = [*places, ""]
    best = np.where(shares.max(-1) > PLAIN_SHARE, shares.argmax(-1), len(places))
    return [[roles[number] for number in layer] for layer in best.tolist()]
