"""The outputs and losses of a packed batch.

A total loss is the sum of the means of the losses (Devlin et al. 2019, A.2). With precision "bf16" or "fp16" matrix products are
computed in bfloat16 or float16; weights, LayerNorm, gradients and the softmax in the losses are computed in float32, and on a GPU what
BERT's norms return is rounded (`FastWays.half_residuals`).

Axes: B sequences, S packed tokens, T tokens per sequence, C labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertkit.base import plugins
from bertkit.base.batch import IGNORED, TOKEN_HEADS, Batch, Target, loss_name
from bertkit.base.typed_settings import refuse
from bertkit.kernels.layout import Layout, Wanted, on_device
from bertkit.kernels.linear import HALVES
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

    def arguments(
        self,
        batch: Batch,
        positions: NDArray[np.int64] | None = None,
        is_causal: bool = False,
        wanted: NDArray[np.int64] | None = None,
    ) -> dict[str, Any]:
        """Return the arguments of the model's `forward` for a batch.

        `positions` are those at which the vocabulary is scored; `wanted` those whose last vectors are read, in order; None: all.
        """
        ids, types, layout = self.tokens(batch, is_causal)
        if positions is not None and wanted is not None:
            positions = np.searchsorted(wanted, positions)
        return {
            "input_ids": ids, "token_type_ids": types, "layout": layout, "targets": self.targets(batch),
            "masked_positions": None if positions is None else self.rows(positions),
            "wanted": None if wanted is None else self.wanted(batch, wanted),
        }  # fmt: skip

    def wanted(self, batch: Batch, rows: NDArray[np.int64]) -> Wanted:
        """Move the positions of wanted tokens, which are in order, and make their layout."""
        ends = batch.sequence_lengths.cumsum()
        lengths = np.diff(np.searchsorted(rows, ends), prepend=0)
        return Wanted(self.rows(rows), self._layout(rows, lengths), are_first=len(rows) == len(ends))

    def tokens(self, batch: Batch, is_causal: bool = False) -> tuple[Tensor, Tensor, Layout]:
        """Move the ids, segment ids and layout of a batch; with `is_causal` no token attends to a later one."""
        layout = self._layout(batch.input_ids, batch.sequence_lengths)
        layout.is_causal = is_causal
        return self.rows(batch.input_ids), self.rows(batch.token_type_ids), layout

    def targets(self, batch: Batch) -> Targets | None:
        """Move the target texts of a batch; None if it has none."""
        ids, lengths = batch.decoder_ids, batch.decoder_lengths
        return None if ids is None or lengths is None else Targets(self.rows(ids), self._layout(ids, lengths))

    def _layout(self, ids: NDArray[np.generic], lengths: NDArray[np.int64]) -> Layout:
        num_slack, slack_length = self.num_slack(len(ids)), self.round_to or 1
        return Layout.from_lengths(torch.from_numpy(lengths), self.device, None, num_slack, slack_length)

    def autocast(self) -> torch.autocast:
        """Return a context manager that selects the precision."""
        return torch.autocast(self.device.type, HALVES.get(self.precision), enabled=self.precision in HALVES)


def _tensor(array: NDArray[np.generic], device: torch.device) -> Tensor:
    return on_device(torch.from_numpy(np.ascontiguousarray(array)), device)


def outputs(
    model: nn.Module,
    batch: Batch,
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
        positions: the tokens, from 0 to S - 1, whose vocabulary is scored by a masked LM or next token head; None: those that the
            batch predicts, or all.
        is_causal: whether no token attends to a later one.
        hidden_states: whether to return the vectors of all layers.

    Returns:
        `last_hidden_state` (S, D), `pooled_output` (B, D), `logits` by head, and `hidden_states`, L + 1 times (S, D).
    """
    inputs = DeviceInputs.of(model, precision)
    places = _positions(model, batch) if positions is None else positions
    with inputs.autocast():
        out: BertOutput = model(**inputs.arguments(batch, places, is_causal), output_hidden_states=hidden_states)
    size = len(batch.input_ids)
    layers = out.hidden_states and tuple(layer[:size] for layer in out.hidden_states)
    logits = {name: rows[: _num_rows(name, batch, places)] for name, rows in out.logits.items()}  # drops slack rows
    return replace(out, last_hidden_state=out.last_hidden_state[:size], logits=logits, hidden_states=layers)


def batch_losses(model: nn.Module, batch: Batch, precision: str = "fp32") -> dict[str, LossTerm]:
    """Run the model on a packed batch; return the losses of its heads, as `head_losses`."""
    inputs = DeviceInputs.of(model, precision)
    with inputs.autocast():
        logits = model(**_arguments_for_logits(inputs, model, batch)).logits
    return head_losses(model, batch, logits)


def _arguments_for_logits(inputs: DeviceInputs, model: nn.Module, batch: Batch) -> dict[str, Any]:
    """Return the arguments of the model's `forward`, where only logits are of interest: of the positions that the batch predicts, or all."""
    positions = _positions(model, batch)
    return inputs.arguments(batch, positions, wanted=_wanted(model, batch, positions))


def _wanted(model: nn.Module, batch: Batch, positions: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    """Return the positions of the tokens whose last vectors the heads read, the first of each sequence among them; None: all.

    On a GPU a pass is recorded for one number of tokens, so all are computed.
    """
    unwrapped = bare(model)
    reads_all = any(head.reads_all(positions is not None) for head in unwrapped.kinds.values())
    if reads_all or batch.decoder_ids is not None or next(unwrapped.parameters()).is_cuda:
        return None
    return batch.starts if positions is None else np.union1d(batch.starts, positions)


def head_losses(model: nn.Module, batch: Batch, logits: Mapping[str, Tensor]) -> dict[str, LossTerm]:
    """Return the loss of each head that has a target in the batch, by the loss's name, such as "mlm", "nsp" or "sequence".

    masked_lm, next_token, generation: cross-entropy of every predicted token.
    next_sentence: cross-entropy. sequence: cross-entropy over the labels; for multi-label tasks binary cross-entropy of each label; for a
        regression squared error, in the units of `label_scale`.
    token: cross-entropy of every labelled token.
    choice: cross-entropy over the endings.
    span: the mean of the cross-entropies of start and end, each over the tokens of its sequence (google-research/bert
        run_squad.py, lines 642-662); Hugging Face's softmax includes the padding.

    Cross-entropies over label numbers use the target's weights and smoothing; InputError if another loss is given any.
    """
    return {
        loss_name(head): plugins.get("head_loss", head)(model, batch, target, logits[head])
        for head, target in batch.targets.items()
        if head in logits
    }


def _positions(model: nn.Module, batch: Batch) -> NDArray[np.int64] | None:
    """Return the positions at which the tokens of a batch are predicted, (M,); None if it has none to predict."""
    if batch.targets.keys().isdisjoint(TOKEN_HEADS):
        return None
    return batch.masked_positions - int(batch.token_head == "masked_lm" and bare(model).config.masked_next_token)


def _num_rows(head: str, batch: Batch, positions: NDArray[np.int64] | None) -> int:
    """Return the number of rows of a head's logits, without slack; for a pooled head at least that."""
    if batch.decoder_ids is not None:
        return len(batch.decoder_ids)
    return len(positions) if positions is not None and head_of(head).is_of_vocabulary else len(batch.input_ids)


@plugins.option("head_loss", "masked_lm")
@plugins.option("head_loss", "next_token")
@plugins.option("head_loss", "generation")
def token_loss(model: nn.Module, batch: Batch, target: Target, logits: Tensor) -> LossTerm:
    """Return the loss of predicted tokens; the logits may end with slack rows."""
    if target.weights is not None:
        return label_loss(model, batch, target, logits)
    loss = cross_entropy_in_place if bare(model).fast.loss_in_place else cross_entropy
    slack = (0, len(logits) - len(target.labels))
    labels = _tensor(np.pad(target.labels, slack, constant_values=IGNORED), logits.device)
    return loss(logits, labels, count=target.count, label_smoothing=target.smoothing)


@plugins.option("head_loss", "next_sentence")
@plugins.option("head_loss", "sequence")
@plugins.option("head_loss", "token")
def label_loss(model: nn.Module, batch: Batch, target: Target, logits: Tensor) -> LossTerm:
    """Return the loss of labels, of numbers, or of several labels at once."""
    device = logits.device
    if target.labels.dtype.kind != "f":
        labelled = np.flatnonzero(target.labels != IGNORED)  # on the host, to avoid waiting for the device
        weights = None if target.weights is None else _tensor(target.weights, device)
        labels = _tensor(target.labels[labelled], device)
        rows = logits[_tensor(labelled, device)]
        return cross_entropy(rows, labels, weights, target.count, target.smoothing)
    _refuse_weights(target, "numbers or of several labels")
    labels = _tensor(target.labels, device)
    if target.labels.ndim == 1:
        scale = label_scale(model)
        return squared_error(logits.squeeze(1) / scale, labels / scale)
    return binary_cross_entropy(logits, labels)


@plugins.option("head_loss", "choice")
def choice_loss(model: nn.Module, batch: Batch, target: Target, logits: Tensor) -> LossTerm:
    """Return the cross-entropy over the endings of each example."""
    _refuse_weights(target, "choices")
    return cross_entropy(logits.view(len(target.labels), -1), _tensor(target.labels, logits.device))


@plugins.option("head_loss", "span")
def span_loss(model: nn.Module, batch: Batch, target: Target, logits: Tensor) -> LossTerm:
    """Return the loss of logits (S, 2), given the first and last token of each answer, (B, 2)."""
    _refuse_weights(target, "spans")
    rows, labels = _by_sequence(logits, batch), _tensor(target.labels, logits.device)
    by_sequence = pad_sequence(rows, batch_first=True, padding_value=-torch.inf)  # (B, T, 2)
    start, end = (cross_entropy(by_sequence[:, :, side], labels[:, side]) for side in (0, 1))
    is_correct = by_sequence.detach().argmax(1) == labels  # (B, 2)
    return LossTerm((start.sum + end.sum) / 2, len(labels), is_correct.all(1).sum())


def _refuse_weights(target: Target, what: str) -> None:
    refuse(
        (target.weights is not None or target.smoothing > 0) and f"a Target of {what} takes no weights and no smoothing"
    )


def _by_sequence(packed: Tensor, batch: Batch) -> list[Tensor]:
    """Divide logits, (S, C) and perhaps slack rows, by sequences."""
    return list(torch.split(packed[: len(batch.input_ids)], batch.sequence_lengths.tolist()))


def _vocabulary_logits(model: nn.Module, batch: Batch, head: str, precision: str) -> Tensor:
    """Return the logits of a head at the positions that a batch predicts: (M, V)."""
    inputs = DeviceInputs.of(model, precision)
    with inputs.autocast():
        logits: Tensor = model(**_arguments_for_logits(inputs, model, batch)).logits[head]
    return logits[: len(batch.masked_positions)].float()


class BestTokens(NamedTuple):
    """The most probable tokens at each masked position, the best first."""

    tokens: NDArray[np.int64]  # (M, top_k)
    probs: NDArray[np.float32]


@torch.no_grad()
def best_tokens(model: nn.Module, batch: Batch, top_k: int, precision: str = "fp32") -> BestTokens:
    """Return the most probable tokens at each masked position."""
    probabilities = torch.softmax(_vocabulary_logits(model, batch, "masked_lm", precision), -1)
    best = probabilities.topk(min(top_k, probabilities.shape[-1]), -1)
    return BestTokens(best.indices.cpu().numpy(), best.values.cpu().numpy())


@torch.no_grad()
def log_probabilities(
    model: nn.Module, batch: Batch, head: str, tokens: NDArray[np.int64], precision: str = "fp32"
) -> NDArray[np.float64]:
    """Return the log-probability of `tokens`, one for each masked position, (M,), by the head "masked_lm" or "next_token"."""
    logits = _vocabulary_logits(model, batch, head, precision)
    chosen = logits.gather(1, _tensor(tokens, logits.device)[:, None]).squeeze(1)
    return (chosen.double() - logits.logsumexp(-1).double()).cpu().numpy()


@dataclass(frozen=True)
class HeadOutput:
    """What a head computes for a batch."""

    logits: list[NDArray[np.float32]]  # of each sequence
    loss: LossTerm | None  # None if the batch has no labels


@torch.no_grad()
def task_logits(model: nn.Module, batch: Batch, head: str, precision: str = "fp32") -> HeadOutput:
    """Run the model on a packed batch; return the logits of each sequence by a head, and its loss if the batch has labels.

    Shapes of the logits: sequence (C,), token (T, C), span (T, 2), choice (1,).
    """
    inputs, kind = DeviceInputs.of(model, precision), head_of(head)
    wanted = None if kind.reads_all(has_positions=False) else batch.starts
    with inputs.autocast():
        packed = model(**inputs.arguments(batch, wanted=wanted)).logits[head]
    loss = head_losses(model, batch, {head: packed}).get(head)
    logits = packed.float().cpu()
    return HeadOutput([part.numpy() for part in (logits if kind.is_pooled else _by_sequence(logits, batch))], loss)
