"""What training minimises, of a packed batch: masked LM and next sentence in pretraining, one loss of a task's head.

Axes: B sequences, S packed tokens, T tokens per sequence, C labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertkit import signs
from bertkit.batch import IGNORED, PretrainBatch, TaskBatch
from bertkit.model import kernels
from bertkit.model.layout import Layout, on_device
from bertkit.train.losses import LossTerm, binary_cross_entropy, cross_entropy, squared_error


def pretraining_losses(model: nn.Module, batch: PretrainBatch, precision: str = "fp32") -> dict[str, LossTerm]:
    """Run the model over a packed batch: "mlm" and, with pairs and a next sentence head, "nsp".

    The total loss is the sum of the two means (Devlin et al. 2019, A.2). With precision "bf16" matrix products are in
    bfloat16; weights, LayerNorm, softmax of the losses and gradients stay in float32.
    """
    logits = _pretraining_logits(model, batch, precision)
    device, count = logits["masked_lm"].device, len(batch.masked_labels)
    padded = np.pad(batch.masked_labels, (0, len(logits["masked_lm"]) - count), constant_values=IGNORED)
    terms = {"mlm": _masked_lm_loss(logits["masked_lm"], _tensor(padded, device), count)}
    if batch.next_sentence_labels is not None and "next_sentence" in logits:
        terms["nsp"] = cross_entropy(logits["next_sentence"], _tensor(batch.next_sentence_labels, device))
    return terms


def _masked_lm_loss(logits: Tensor, labels: Tensor, count: int) -> LossTerm:
    """The cross-entropy of logits that nobody looks at any more."""
    if not kernels.takes_loss(logits):
        return cross_entropy(logits, labels, count=count)
    total, best = kernels.loss_in_place(logits, labels)
    return LossTerm(total, count, (best == labels).sum())


@torch.no_grad()
def best_tokens(
    model: nn.Module, batch: PretrainBatch, top_k: int, precision: str = "fp32"
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Give the most probable tokens at each masked position, the best first, (M, top_k), and their probabilities."""
    logits = _pretraining_logits(model, batch, precision)["masked_lm"][: len(batch.masked_positions)]
    shares = torch.softmax(logits.float(), -1)
    best = shares.topk(min(top_k, shares.shape[-1]), -1)
    return best.indices.cpu().numpy(), best.values.cpu().numpy()


def _pretraining_logits(model: nn.Module, batch: PretrainBatch, precision: str) -> dict[str, Tensor]:
    """Give the logits of both heads; those of the masked LM may have more rows (`kernels.rows_to_add`), which mean nothing."""
    signs.beat()  # a step, or an evaluation, may be many forward passes long
    device = next(model.parameters()).device
    layout = Layout.from_lengths(torch.from_numpy(batch.sequence_lengths), device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        num_more = kernels.rows_to_add(len(batch.masked_positions), next(model.parameters()))
        logits: dict[str, Tensor] = model(
            _tensor(batch.input_ids, device),
            _tensor(batch.token_type_ids, device),
            layout,
            masked_positions=_tensor(np.pad(batch.masked_positions, (0, num_more)), device),
        ).logits
    return logits


def _tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    return on_device(torch.from_numpy(np.ascontiguousarray(array)), device)


def task_losses(model: nn.Module, batch: TaskBatch, precision: str = "fp32") -> dict[str, LossTerm]:
    """Run the model over a packed batch with labels; give the loss of its head, by the head's name.

    sequence: cross-entropy over the labels; the squared error of a regression; a cross-entropy for each label where
    several may hold. token: cross-entropy of every token that has a label. choice: cross-entropy over the endings.
    span: the mean of the cross-entropies of start and end, each over the tokens of its own sequence, with no padding
    among them as Hugging Face has it (google-research/bert run_squad.py, lines 642-662). Class weights, of the batch,
    weight the cross-entropy of sequence and token.
    """
    return {batch.head: _task_loss(_head_logits(model, batch, precision), batch)}


def _task_loss(logits: Tensor, batch: TaskBatch) -> LossTerm:
    assert batch.labels is not None, "no labels to learn from"
    device = logits.device
    if batch.head in ("sequence", "token") and batch.labels.dtype.kind != "f":
        known = np.flatnonzero(batch.labels != IGNORED)  # found on the host, so that it need not wait for a device
        weights = None if batch.class_weights is None else _tensor(batch.class_weights, device)
        labels = _tensor(batch.labels[known], device)
        return cross_entropy(logits[_tensor(known, device)], labels, weights, batch.loss_counts[batch.head])
    labels = _tensor(batch.labels, device)
    if batch.head == "span":
        return _span_loss(logits, batch.sequence_lengths, labels)
    if batch.head == "choice":
        return cross_entropy(logits.view(-1, batch.num_choices), labels)
    if batch.labels.ndim == 1:
        return squared_error(logits.squeeze(1), labels)
    return binary_cross_entropy(logits, labels)


@torch.no_grad()
def task_logits(
    model: nn.Module, batch: TaskBatch, precision: str = "fp32"
) -> tuple[list[NDArray[np.float32]], LossTerm | None]:
    """Run the model over a packed batch; give the logits of each sequence, and their loss where the batch has labels.

    sequence: (C,); token: (T, C); span: (T, 2); choice: (1,).
    """
    packed = _head_logits(model, batch, precision)
    loss = None if batch.labels is None else _task_loss(packed, batch)
    logits = packed.float().cpu()
    if batch.head in ("token", "span"):
        return [part.numpy() for part in _by_sequence(logits, batch.sequence_lengths)], loss
    return list(logits.numpy()), loss


def _head_logits(model: nn.Module, batch: TaskBatch, precision: str) -> Tensor:
    signs.beat()  # a step, or an evaluation, may be many forward passes long
    device = next(model.parameters()).device
    layout = Layout.from_lengths(torch.from_numpy(batch.sequence_lengths), device)
    ids, types = _tensor(batch.input_ids, device), _tensor(batch.token_type_ids, device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        logits: Tensor = model(ids, types, layout).logits[batch.head]
    return logits


def _span_loss(logits: Tensor, sequence_lengths: NDArray[np.int64], labels: Tensor) -> LossTerm:
    """Logits (S, 2) against the first and last token of each answer, (B, 2)."""
    rows = _by_sequence(logits, sequence_lengths)
    by_sequence = pad_sequence(rows, batch_first=True, padding_value=-torch.inf)  # (B, T, 2)
    start, end = (cross_entropy(by_sequence[:, :, side], labels[:, side]) for side in (0, 1))
    both = by_sequence.detach().argmax(1) == labels  # (B, 2)
    return LossTerm((start.sum + end.sum) / 2, len(labels), both.all(1).sum())


def _by_sequence(packed: Tensor, sequence_lengths: NDArray[np.int64]) -> list[Tensor]:
    return list(torch.split(packed, sequence_lengths.tolist()))
