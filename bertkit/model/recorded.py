"""Forward and backward passes of training on a GPU, recorded as CUDA graphs.

To launch hundreds of kernels one by one takes the host longer than a small batch takes the GPU. A graph launches them all at
once, but its shapes and addresses are fixed: inputs are copied into its own tensors, and there is one for each number of
sequences, of tokens and of masked tokens, and each length of the longest sequence. `objectives.losses` rounds the numbers of tokens
and of masked tokens up, so that they repeat; rare ones are computed as usual, with the same results.

Axes: as in attention.py; S with slack.
"""

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from bertkit.base import plugins
from bertkit.kernels.fast import fits_packed
from bertkit.kernels.layout import Layout
from bertkit.model.bert import Encoder, EncoderLayer
from bertkit.model.bert_config import READING_FIRST
from bertkit.model.heads import BertOutput, BertWithHeads

OFTEN = 2  # a pass is recorded when its shapes come the second time
STEP = 64  # the numbers of tokens, and the longest length, are rounded up to multiples of this one
# record no more passes if less of the GPU's memory is free: the graphs keep theirs, and a usual pass needs as much again
FREE = 0.5


def record_passes(model: BertWithHeads) -> None:
    """Let a model record its passes in training with autocast, if attention is one kernel in all layers (`packed_attention`)."""
    query = torch.empty(0, 1, model.config.head_size, dtype=torch.float16, device="cuda")
    if model.fast.recorded_passes and can_record(model) and fits_packed(query):
        model.forward = _Recorder(model)  # type: ignore[method-assign, assignment]
        model.records_passes = True


def forget_passes(model: BertWithHeads) -> None:
    """Give back the memory of the recorded passes, and compute later ones as usual."""
    model.__dict__.pop("forward", None)
    model.records_passes = False


def can_record(model: BertWithHeads) -> bool:
    """Whether a pass depends on the shapes of its inputs alone, and attention is one kernel in every layer."""
    config, encoder = model.config, model.bert.encoder
    chosen = {
        "score": config.attention.score, "positions": config.attention.positions, "pattern": config.attention.pattern,
        "feed_forward": config.feed_forward.kind, "norm": config.norm.kind, "head": config.head.kind,
        "encoder": config.encoder,
    }  # fmt: skip
    has_plugins = any(plugins.is_plugin(*option) for option in chosen.items())  # which may do anything in a pass
    if not isinstance(encoder, Encoder) or config.decoder is not None or has_plugins:
        return False
    slots = [layer.attention.slots for layer in encoder.layers if isinstance(layer, EncoderLayer)]
    reads_layout = config.pooling not in READING_FIRST or config.convolution is not None
    is_bert = not any(each.has_scores or each.compress_keys for each in slots) and not reads_layout
    return is_bert and all(pattern.key_range is not None for pattern in encoder.patterns)


class _Recorder:
    """The `forward` of a model whose passes are recorded."""

    def __init__(self, model: BertWithHeads) -> None:
        self.model, self.usual = model, model.forward
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.num_seen, self.recordings = Counter[Hashable](), dict[Hashable, _Recording]()
        # passes run one after another, so they may share memory; other threads may use the GPU while one is recorded
        pool = torch.cuda.graph_pool_handle()
        self.graph = functools.partial(torch.cuda.graph, pool=pool, capture_error_mode="thread_local")

    def __call__(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        layout: Layout,
        masked_positions: Tensor | None = None,
        **more: object,
    ) -> BertOutput:
        """As `BertWithHeads.forward`, but of a recorded pass only the logits have a gradient; they hold until the next pass."""
        is_training = self.model.training and torch.is_grad_enabled() and torch.is_autocast_enabled("cuda")
        if not is_training or any(more.values()):
            return self.usual(input_ids, token_type_ids, layout, masked_positions, **more)  # type: ignore[arg-type]
        num_slack = max(STEP, len(input_ids) // 32)  # at most, in sequences of STEP tokens: `DeviceInputs.num_slack`
        num_bounds = len(layout.starts) + 1 - (-num_slack // STEP)
        bounds = F.pad(layout.bounds, (0, num_bounds - len(layout.bounds)), value=len(input_ids))  # empty sequences
        masked = [] if masked_positions is None else [masked_positions]
        inputs = [input_ids, token_type_ids, layout.position_ids, layout.starts, bounds, *masked]
        longest = -(-layout.longest // STEP) * STEP
        key = longest, *(len(each) for each in inputs)
        self.num_seen[key] += 1
        if key not in self.recordings and self._should_record(key):
            run = functools.partial(self._run, longest=longest)
            self.recordings[key] = _Recording(run, inputs, self.parameters, self.graph)
        # on the same tensors, so that both drop the same elements
        return self.recordings[key].replay(inputs) if key in self.recordings else self._run(inputs, longest)

    def _should_record(self, key: Hashable) -> bool:
        if self.num_seen[key] < OFTEN:
            return False
        free, total = torch.cuda.mem_get_info()
        return free > FREE * total

    def _run(self, tensors: Sequence[Tensor], longest: int) -> BertOutput:
        ids, types, position_ids, starts, bounds, *masked = tensors
        layout = Layout(starts, bounds, position_ids, padded_indices=position_ids, runs=((0, 1, longest),))
        return self.usual(ids, types, layout, masked[0] if masked else None)


class _Recording:
    """The two graphs of a pass with fixed shapes, and the tensors that they read and write."""

    def __init__(
        self,
        run: Callable[[Sequence[Tensor]], BertOutput],
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        graph: Callable[[torch.cuda.CUDAGraph], AbstractContextManager[None]],
    ) -> None:
        self.inputs = [each.clone() for each in inputs]
        self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # afterwards dropout goes on as if nothing had been recorded
        with torch.random.fork_rng([torch.cuda.current_device()]):
            self.parameters = self._warm_up(run, parameters)
            with graph(self.forward_graph):
                output = run(self.inputs)
            torch.clear_autocast_cache()  # each graph converts the weights of its time
            self.names, self.logits = list(output.logits), list(output.logits.values())
            self.logits_gradients = [torch.zeros_like(each) for each in self.logits]
            with graph(self.backward_graph):
                self.gradients = _gradients(self.logits, self.parameters, self.logits_gradients)
        self.last_hidden_state = output.last_hidden_state.detach()

    def _warm_up(self, run: Callable[[Sequence[Tensor]], BertOutput], parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        """Let libraries set up what they cannot set up while a graph is recorded; return the parameters with a gradient."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                logits = list(run(self.inputs).logits.values())
                gradients = _gradients(logits, parameters, [torch.zeros_like(each) for each in logits])
        torch.cuda.current_stream().wait_stream(stream)
        torch.clear_autocast_cache()
        pairs = zip(parameters, gradients, strict=True)
        return [parameter for parameter, gradient in pairs if gradient is not None]

    def replay(self, inputs: Sequence[Tensor]) -> BertOutput:
        """Run the forward pass; the backward pass follows when autograd asks for it."""
        for own, tensor in zip(self.inputs, inputs, strict=True):
            own.copy_(tensor)
        logits = _Replay.apply(self, *self.parameters)  # type: ignore[no-untyped-call]
        return BertOutput(self.last_hidden_state, None, dict(zip(self.names, logits, strict=True)))


def _gradients(
    logits: Sequence[Tensor], parameters: Sequence[Tensor], gradients: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradient of each parameter, None if it is not used; without autocast, as in the usual backward pass."""
    with torch.autocast("cuda", enabled=False):
        return torch.autograd.grad(logits, parameters, gradients, allow_unused=True)


class _Context(FunctionCtx):
    recording: _Recording


class _Replay(torch.autograd.Function):
    """A recorded pass as one operation, from all parameters to the logits of all heads."""

    @staticmethod
    def forward(ctx: _Context, recording: _Recording, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.recording = recording
        recording.forward_graph.replay()
        return tuple(each.detach() for each in recording.logits)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        recording = ctx.recording
        for own, gradient in zip(recording.logits_gradients, gradients, strict=True):
            own.copy_(gradient)
        recording.backward_graph.replay()
        copies = [torch.empty_like(each) for each in recording.gradients]  # the next replay overwrites them
        torch._foreach_copy_(copies, recording.gradients)
        return None, *copies
