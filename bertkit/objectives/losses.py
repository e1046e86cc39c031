"""The losses and outputs of a packed batch: masked or next tokens and next sentence prediction, or the head of a task.

Axes: B sequences, S packed tokens, T tokens per sequence, C labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertkit.base import plugins
from bertkit.base.batch import IGNORED, PretrainBatch, TaskBatch
from bertkit.kernels.layout import Layout, on_device
from bertkit.model.head.head import Targets, head_of
from bertkit.model.heads import BertOutput, bare
from bertkit.model.label_scale import label_scale
from bertkit.model.recorded import STEP
from bertkit.train.losses import LossTerm, binary_cross_entropy, cross_entropy, cross_entropy_in_place, squared_error


@dataclass(frozen=True)
class DeviceInputs:
    """Moves batches to a model's device, and selects the autocast precision.

    oneDNN compiles a kernel for every new number of rows (`FastWays.even_rows`), and a recorded pass has one number of rows
    (`model.recorded`). If the model uses them, the numbers of tokens and of masked positions are rounded up, so that
    they repeat often. The added rows are called slack; they come last, and their outputs are not used.
    """

    device: torch.device
    precision: str
    round_to: int | None  # the number of rows is a multiple of this, and of about 1/32 of itself; None: any number

    @classmethod
    def of(cls, model: nn.Module, precision: str) -> DeviceInputs:
        """Return the inputs for a model, on the device of its weights."""
        unwrapped, weight = bare(model), next(model.parameters())
        if weight.is_cuda:
            is_recorded = unwrapped.records_passes and unwrapped.training and precision != "fp32"
            return cls(weight.device, precision, STEP if is_recorded else None)
        fast = unwrapped.fast
        is_by_onednn = precision == "bf16" or (fast.onednn_linear and weight.dtype == torch.float32)
        return cls(weight.device, precision, 1 if fast.even_rows and is_by_onednn else None)

    def num_slack(self, num_rows: int) -> int:
        """Return the number of slack rows: less than `round_to`, or than 1/32 of the rows, so that few numbers of rows occur."""
        return 0 if self.round_to is None else -num_rows % max(self.round_to, 1 << max(0, num_rows.bit_length() - 6))

    def rows(self, array: NDArray[np.generic], slack_value: int = 0) -> Tensor:
        """Move an array with one number per row, and append the slack rows."""
        padded = np.pad(array, (0, self.num_slack(len(array))), constant_values=slack_value)
        return _tensor(padded, self.device)

    def tokens(self, batch: PretrainBatch | TaskBatch, is_causal: bool = False) -> tuple[Tensor, Tensor, Layout]:
        """Move the ids, segment ids and layout of a batch; with `is_causal` no token attends to a later one."""
        layout = self._layout(batch.input_ids, batch.sequence_lengths)
        layout.is_causal = is_causal
        return self.rows(batch.input_ids), self.rows(batch.token_type_ids), layout

    def targets(self, batch: TaskBatch) -> Targets | None:
        """Move the target texts of a batch; None if it has none."""
        ids, lengths = batch.target_ids, batch.target_lengths
        return None if ids is None or lengths is None else Targets(self.rows(ids), self._layout(ids, lengths))

    def _layout(self, ids: NDArray[np.generic], lengths: NDArray[np.int64]) -> Layout:
        num_slack, slack_length = self.num_slack(len(ids)), self.round_to or 1
        return Layout.from_lengths(torch.from_numpy(lengths), self.device, None, num_slack, slack_length)

    def autocast(self) -> torch.autocast:
        """Return a context manager that selects the precision."""
        dtype = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype, enabled=self.precision != "fp32")


def _tensor(array: NDArray[np.generic], device: torch.device) -> Tensor:
    return on_device(torch.from_numpy(np.ascontiguousarray(array)), device)


def outputs(
    model: nn.Module,
    batch: PretrainBatch | TaskBatch,
    precision: str = "fp32",
    *,
    positions: NDArray[np.int64] | None = None,
    is_causal: bool = False,
    hidden_states: bool = False,
) -> BertOutput:
    """Run the model on a packed batch, for an objective.

    Args:
        model: the model, as an objective gets it, or another one.
        batch: the tokens.
        precision: as an objective gets it.
        positions: the tokens, from 0 to S - 1, whose vocabulary is scored by a masked LM or next token head; None: all.
        is_causal: whether no token attends to a later one.
        hidden_states: whether to return the vectors of all layers.

    Returns:
        `last_hidden_state` (S, D), `pooled_output` (B, D), `logits` by head, and `hidden_states`, L + 1 times (S, D).
    """
    inputs, size = DeviceInputs.of(model, precision), len(batch.input_ids)
    places = None if positions is None else inputs.rows(positions)
    with inputs.autocast():
        out: BertOutput = model(*inputs.tokens(batch, is_causal), places, output_hidden_states=hidden_states)
    num_predicted = size if positions is None else len(positions)
    layers = out.hidden_states and tuple(layer[:size] for layer in out.hidden_states)
    sizes = {name: num_predicted if head_of(name).is_of_vocabulary else size for name in out.logits}
    logits = {name: rows[: sizes[name]] for name, rows in out.logits.items()}  # drops slack rows
    return replace(out, last_hidden_state=out.last_hidden_state[:size], logits=logits, hidden_states=layers)


def pretraining_losses(model: nn.Module, batch: PretrainBatch, precision: str = "fp32") -> dict[str, LossTerm]:
    """Run the model on a packed batch; return the loss terms "mlm" or "lm" and, with pairs and a next sentence head, "nsp".

    The total loss is the sum of the two means (Devlin et al. 2019, A.2). With precision "bf16" or "fp16" matrix products are
    computed in bfloat16 or float16; weights, LayerNorm, gradients and the softmax in the losses are computed in float32, and on a GPU
    what BERT's norms return is rounded (`FastWays.half_residuals`).
    """
    device_inputs = DeviceInputs.of(model, precision)
    with device_inputs.autocast():
        logits = model(*device_inputs.tokens(batch), device_inputs.rows(batch.masked_positions)).logits
    token_loss = cross_entropy_in_place if bare(model).fast.loss_in_place else cross_entropy
    labels = device_inputs.rows(batch.masked_labels, IGNORED)
    scores = logits["next_token" if batch.objective == "lm" else "masked_lm"]
    terms: dict[str, LossTerm] = {batch.objective: token_loss(scores, labels, count=len(batch.masked_labels))}
    if batch.next_sentence_labels is not None and "next_sentence" in logits:
        terms["nsp"] = cross_entropy(logits["next_sentence"], _tensor(batch.next_sentence_labels, device_inputs.device))
    return terms


class BestTokens(NamedTuple):
    """The most probable tokens at each masked position, the best first."""

    tokens: NDArray[np.int64]  # (M, top_k)
    probs: NDArray[np.float32]


@torch.no_grad()
def best_tokens(model: nn.Module, batch: PretrainBatch, top_k: int, precision: str = "fp32") -> BestTokens:
    """Return the most probable tokens at each masked position."""
    probabilities = torch.softmax(_logits_at_masks(model, batch, "masked_lm", precision), -1)
    best = probabilities.topk(min(top_k, probabilities.shape[-1]), -1)
    return BestTokens(best.indices.cpu().numpy(), best.values.cpu().numpy())


@torch.no_grad()
def log_probabilities(
    model: nn.Module, batch: PretrainBatch, head: str, tokens: NDArray[np.int64], precision: str = "fp32"
) -> NDArray[np.float64]:
    """Return the log-probability of `tokens`, one for each masked position, (M,), by the head "masked_lm" or "next_token"."""
    logits = _logits_at_masks(model, batch, head, precision)
    chosen = logits.gather(1, _tensor(tokens, logits.device)[:, None]).squeeze(1)
    return (chosen.double() - logits.logsumexp(-1).double()).cpu().numpy()


def _logits_at_masks(model: nn.Module, batch: PretrainBatch, head: str, precision: str) -> Tensor:
    """Return the logits at each masked position, (M, V)."""
    device_inputs = DeviceInputs.of(model, precision)
    with device_inputs.autocast():
        logits = model(*device_inputs.tokens(batch), device_inputs.rows(batch.masked_positions)).logits[head]
    return logits[: len(batch.masked_positions)].float()  # type: ignore[no-any-return]


def task_losses(
    model: nn.Module, batch: TaskBatch, precision: str = "fp32", label_smoothing: float = 0.0
) -> dict[str, LossTerm]:
    """Run the model on a labelled packed batch; return the loss of its head, keyed by the head's name.

    sequence: cross-entropy over the labels; for multi-label tasks binary cross-entropy of each label; for a regression
        squared error, in the units of `label_scale`.
    token: cross-entropy of every labelled token. This loss and the cross-entropy of "sequence" use the batch's class weights.
    choice: cross-entropy over the endings.
    span: the mean of the cross-entropies of start and end, each over the tokens of its sequence (google-research/bert
        run_squad.py, lines 642-662); Hugging Face's softmax includes the padding.
    generation: cross-entropy of every target token, with label smoothing.
    """
    if batch.target_ids is not None:
        return {batch.head: _generation_loss(model, batch, precision, label_smoothing)}
    return {batch.head: task_loss(model, batch, head_logits(model, batch, precision))}


def _generation_loss(model: nn.Module, batch: TaskBatch, precision: str, label_smoothing: float) -> LossTerm:
    assert batch.labels is not None, "no texts to learn from"
    device_inputs = DeviceInputs.of(model, precision)
    with device_inputs.autocast():
        logits = model(*device_inputs.tokens(batch), targets=device_inputs.targets(batch)).logits[batch.head]
    loss = cross_entropy_in_place if bare(model).fast.loss_in_place else cross_entropy
    labels = device_inputs.rows(batch.labels, IGNORED)
    return loss(logits, labels, count=len(batch.labels), label_smoothing=label_smoothing)


def task_loss(model: nn.Module, batch: TaskBatch, logits: Tensor) -> LossTerm:
    """Return the loss of the logits of a labelled batch, as `task_losses` describes it."""
    assert batch.labels is not None, "no labels to learn from"
    term: LossTerm = plugins.get("head_loss", batch.head)(model, batch, logits)
    return term


@plugins.option("head_loss", "sequence")
@plugins.option("head_loss", "token")
def label_loss(model: nn.Module, batch: TaskBatch, logits: Tensor) -> LossTerm:
    """Return the loss of labels, of numbers, or of several labels at once."""
    assert batch.labels is not None
    device = logits.device
    if batch.labels.dtype.kind != "f":
        labelled = np.flatnonzero(batch.labels != IGNORED)  # on the host, to avoid waiting for the device
        weights = None if batch.class_weights is None else _tensor(batch.class_weights, device)
        labels = _tensor(batch.labels[labelled], device)
        return cross_entropy(logits[_tensor(labelled, device)], labels, weights, batch.loss_counts[batch.head])
    labels = _tensor(batch.labels, device)
    if batch.labels.ndim == 1:
        scale = label_scale(model)
        return squared_error(logits.squeeze(1) / scale, labels / scale)
    return binary_cross_entropy(logits, labels)


@plugins.option("head_loss", "choice")
def choice_loss(model: nn.Module, batch: TaskBatch, logits: Tensor) -> LossTerm:
    """Return the cross-entropy over the endings of each example."""
    assert batch.labels is not None
    return cross_entropy(logits.view(-1, batch.num_choices), _tensor(batch.labels, logits.device))


@dataclass(frozen=True)
class HeadOutput:
    """What a head computes for a batch."""

    logits: list[NDArray[np.float32]]  # of each sequence
    loss: LossTerm | None  # None if the batch has no labels


@torch.no_grad()
def task_logits(model: nn.Module, batch: TaskBatch, precision: str = "fp32") -> HeadOutput:
    """Run the model on a packed batch; return the logits of each sequence, and the loss if the batch has labels.

    Shapes of the logits: sequence (C,), token (T, C), span (T, 2), choice (1,).
    """
    packed = head_logits(model, batch, precision, only_pooled=head_of(batch.head).is_pooled)
    loss = None if batch.labels is None else task_loss(model, batch, packed)
    logits = packed.float().cpu()
    if not head_of(batch.head).is_pooled:
        return HeadOutput([part.numpy() for part in _by_sequence(logits, batch.sequence_lengths)], loss)
    return HeadOutput(list(logits.numpy()), loss)


def head_logits(model: nn.Module, batch: TaskBatch, precision: str = "fp32", only_pooled: bool = False) -> Tensor:
    """Run the model on a packed batch; return the logits of its head: (B, C), (S, C) for tags, (S, 2) for spans, (B, 1) for choices."""
    device_inputs = DeviceInputs.of(model, precision)
    with device_inputs.autocast():
        logits: Tensor = model(*device_inputs.tokens(batch), only_pooled=only_pooled).logits[batch.head]
    return logits[: batch.num_tokens]  # drops slack rows; has no effect for heads with one row per sequence


@plugins.option("head_loss", "span")
def span_loss(model: nn.Module, batch: TaskBatch, logits: Tensor) -> LossTerm:
    """Return the loss of logits (S, 2), given the first and last token of each answer, (B, 2)."""
    assert batch.labels is not None
    rows, labels = _by_sequence(logits, batch.sequence_lengths), _tensor(batch.labels, logits.device)
    by_sequence = pad_sequence(rows, batch_first=True, padding_value=-torch.inf)  # (B, T, 2)
    start, end = (cross_entropy(by_sequence[:, :, side], labels[:, side]) for side in (0, 1))
    is_correct = by_sequence.detach().argmax(1) == labels  # (B, 2)
    return LossTerm((start.sum + end.sum) / 2, len(labels), is_correct.all(1).sum())


def _by_sequence(packed: Tensor, sequence_lengths: NDArray[np.int64]) -> list[Tensor]:
    return list(torch.split(packed, sequence_lengths.tolist()))
