"""How much memory a training step needs, before it is taken: arithmetic over the shape of the model, no torch.

    peak = what the process holds anyway, with the weights and the optimizer's moments
         + the highest point of a step: what autograd keeps of the forward pass, and what is computed from it on the way back
         + what the allocator and the libraries take besides

What autograd keeps, layer by layer, was read off `bertkit/model`; tests/run/test_memory.py compares it with what torch's
own hooks say that it keeps, and the peak with that of real steps.

Axes: S packed tokens, T tokens of the longest sequence, D hidden_size, N heads, F intermediate_size, V vocab_size,
M masked positions, L layers. All sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from bertkit.model.config import POOLED_HEADS, BertConfig

FP32, BF16 = 4, 2
MASKED_SHARE = 0.15  # of the tokens are predicted (Devlin et al. 2019, A.1)
# Of the process on a CPU, beyond the tensors: what oneDNN and torch take on first use, and freed memory that glibc keeps.
# Fitted to `bertkit bench what=memory`: mini at 128 with 4 to 64 sequences, base at 512 with 2 and 4, fp32 and bf16; 1 thread, glibc.
FIRST_USE, SHARE_KEPT_BY_ALLOCATOR = 80_000_000, 0.25


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """What a training step is, but for its number of tokens.

    Attributes:
        config: of the model.
        heads: that are trained.
        max_seq_length: T.
        precision: "fp32" or "bf16".
        device: "cpu" or "cuda".
        kernels: those in use (`bertkit.model.kernels`).
        optimizer: "adamw" or "lamb".
        accumulates: whether a step adds the gradients of several micro-batches.
        num_processes: that train together.
        is_strict: whether gradients are added in one order (`reproducibility=strict`).
        frozen_depth: how much of the model is not trained, as `bertkit.model.depth` counts it.
    """

    config: BertConfig
    heads: tuple[str, ...]
    max_seq_length: int
    precision: str
    device: str = "cpu"
    kernels: tuple[str, ...] = ()
    optimizer: str = "adamw"
    accumulates: bool = False
    num_processes: int = 1
    is_strict: bool = False
    frozen_depth: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """What a step needs.

    Attributes:
        weights: of the model.
        moments: of the optimizer.
        gradients: when all of them are there.
        activations: what autograd keeps of a forward pass; in bf16 with the narrowed copies of the weights.
        working: at the highest point of a step: the gradients and activations that are there, and what is being computed.
        overhead: of allocator and libraries.
    """

    weights: int
    moments: int
    gradients: int
    activations: int
    working: int
    overhead: int

    @property
    def of_step(self) -> int:
        """What a step takes beyond what a process holds that has the model and the optimizer."""
        return self.working + self.overhead


def plan_step(shape: StepShape, num_tokens: int) -> MemoryPlan:
    """Say what a step needs whose micro-batches have `num_tokens` tokens, S.

    It takes every sequence for as long as the longest one, and so errs on the safe side.
    """
    count, kept = _Parameters(shape), _Kept(shape, num_tokens)
    gradients = FP32 * count.trained
    of_embeddings = FP32 * count.embedded * (shape.frozen_depth == 0)
    # there all the time: of earlier micro-batches; what processes exchange; the sums of parts, and one part in one piece
    standing = gradients * (shape.accumulates + (shape.num_processes > 1) + 3 * shape.is_strict)
    activations = kept.by_embeddings + count.trained_layers * kept.by_layer + kept.by_head
    # at the loss, in each layer, from the last to the first, where gradients take the place of what was kept, and at the end
    points = [activations + kept.working_of_head]
    done, left = FP32 * count.of_heads, activations - kept.by_head
    if "masked_lm" in shape.heads:
        done += of_embeddings
    for _ in range(count.trained_layers):
        points.append(done + left + kept.working_of_layer)
        done, left = done + FP32 * count.of_layer, left - kept.by_layer
    points.append(gradients + of_embeddings + left)  # the gradients of decoder and embeddings are added
    updating = 4 * of_embeddings if shape.optimizer == "lamb" else 0  # AdamW's kernel makes no copy
    working = max(standing + max(points), gradients * (1 + (shape.num_processes > 1)) + updating)
    return MemoryPlan(
        weights=FP32 * count.all,
        moments=2 * gradients,
        gradients=gradients,
        activations=activations,
        working=working,
        overhead=_overhead(shape, working),
    )


def plan_evaluation(shape: StepShape, num_tokens: int) -> int:
    """Say what the forward pass of an evaluation needs, beyond what the process holds: one layer at a time, and the logits."""
    config = shape.config
    row, inner_row = num_tokens * config.hidden_size, num_tokens * config.intermediate_size
    logits = round(MASKED_SHARE * num_tokens) * config.vocab_size * ("masked_lm" in shape.heads)
    # input, query, key, value, context and output of a layer
    working = 6 * FP32 * row + max(2 * FP32 * logits, 2 * FP32 * inner_row)
    if shape.precision == "bf16":
        working += BF16 * _Parameters(shape).in_products
    return working + _overhead(shape, working)


def largest_micro_batch(shape: StepShape, num_bytes: int) -> int:
    """Say how many sequences of T tokens a micro-batch may have for a step to fit into so many bytes; 0 where none does."""

    def fits(num_sequences: int) -> bool:
        return plan_step(shape, num_sequences * shape.max_seq_length).of_step <= num_bytes

    most = 1
    while fits(most):
        most *= 2
    fitting = most // 2
    while most - fitting > 1:
        middle = (fitting + most) // 2
        fitting, most = (middle, most) if fits(middle) else (fitting, middle)
    return fitting


def _overhead(shape: StepShape, working: int) -> int:
    if shape.device != "cpu":
        return 0
    return FIRST_USE + round(SHARE_KEPT_BY_ALLOCATOR * working)


class _Parameters:
    """How many parameters there are: of all, of those that are trained, and of the parts."""

    def __init__(self, shape: StepShape) -> None:
        config = shape.config
        hidden, inner = config.hidden_size, config.intermediate_size
        positions = config.max_position_embeddings + config.type_vocab_size
        has_masked_lm, is_pooled = "masked_lm" in shape.heads, bool(set(shape.heads) & set(POOLED_HEADS))
        self.embedded = config.vocab_size * hidden
        self.of_layer = 4 * hidden**2 + 2 * hidden * inner + 9 * hidden + inner
        self.of_heads = has_masked_lm * (hidden**2 + 3 * hidden + config.vocab_size) + is_pooled * (hidden**2 + hidden)
        for head, num_labels in (("next_sentence", 2), ("span", 2), ("choice", 1)):
            self.of_heads += (head in shape.heads) * num_labels * (hidden + 1)
        self.of_heads += bool({"sequence", "token"} & set(shape.heads)) * len(config.labels) * (hidden + 1)
        of_embeddings = self.embedded + (positions + 2) * hidden
        self.trained_layers = config.num_hidden_layers - max(0, shape.frozen_depth - 1)
        self.all = of_embeddings + config.num_hidden_layers * self.of_layer + self.of_heads
        self.trained = (shape.frozen_depth == 0) * of_embeddings + self.trained_layers * self.of_layer + self.of_heads
        self.in_products = self.all - positions * hidden - (0 if has_masked_lm else self.embedded)


class _Kept:
    """What autograd keeps of each part, and what its way back needs besides.

    On a CPU the attention weights are kept, N * S * T of them after the softmax and after dropout, and dropout keeps a mask.
    On CUDA the fused attention makes its weights anew; that has not been measured.
    """

    def __init__(self, shape: StepShape, num_tokens: int) -> None:
        config = shape.config
        is_narrow, on_cpu = shape.precision == "bf16", shape.device == "cpu"
        width = BF16 if is_narrow else FP32  # of what goes into matrix products and comes out
        hidden, inner = config.hidden_size, config.intermediate_size
        row, inner_row = num_tokens * hidden, num_tokens * inner
        has_dropout = config.hidden_dropout_prob > 0
        has_short_masks = not on_cpu or "short_dropout" in shape.kernels  # a byte an element
        mask = has_dropout * row * (1 if has_short_masks else width)

        attention, attention_working = 4 * width * row, 0  # query, key, value, context
        if on_cpu and config.attention_probs_dropout_prob > 0:
            is_own = "own_attention" in shape.kernels
            inside = width if is_own else FP32  # torch's own widens
            weights = config.num_attention_heads * num_tokens * shape.max_seq_length
            attention = 3 * inside * row + (2 * inside + (1 if is_own and has_short_masks else inside)) * weights
            attention_working = 3 * inside * weights
        inputs = 3 * BF16 * row if is_narrow else FP32 * row  # narrowed for query, for key and for value
        inner_kept = (1 if config.hidden_act == "relu" else 2) * width * inner_row
        feed_forward = width * row + inner_kept + mask + FP32 * row  # to the sum that LayerNorm gets
        self.by_layer = inputs + attention + width * row + mask + FP32 * row + feed_forward
        # attention comes after the feed-forward part has freed what it kept
        self.working_of_layer = max(2 * width * inner_row + 2 * FP32 * row, attention_working - feed_forward)
        embedded_mask = has_dropout * row * (1 if has_short_masks else FP32)
        self.by_embeddings = (FP32 * row + embedded_mask) if shape.frozen_depth == 0 else 0
        self.by_head, self.working_of_head = 0, 0
        if "masked_lm" in shape.heads:
            masked = round(MASKED_SHARE * num_tokens)
            is_in_place = on_cpu and "loss_in_place" in shape.kernels
            # the logits, where their gradient will be; else the log-probabilities, and on the way back twice as much
            logits = (width if is_in_place else FP32) * masked * config.vocab_size
            self.by_head = logits + 4 * width * masked * hidden
            self.working_of_head = max(0 if is_in_place else 2 * logits, FP32 * config.vocab_size * hidden)
        if {"token", "span"} & set(shape.heads):
            self.by_head += width * row
        if is_narrow:  # the copies of the weights
            self.by_layer += BF16 * (4 * hidden**2 + 2 * hidden * inner)
            self.by_head += ("masked_lm" in shape.heads) * BF16 * (hidden**2 + config.vocab_size * hidden)
