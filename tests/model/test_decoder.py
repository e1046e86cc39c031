"""Every decoder: those of the Transformer beside torch's own, and for all of them what must hold between their parts.

tests/interop/test_pairs.py has pairs of BERTs beside those of `transformers`, test_recurrent.py recurrent ones beside loops.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_config
from loops import sinusoid, translate
from torch import Tensor, nn

from bertkit.kernels.fast import ALL, PLAIN
from bertkit.kernels.layout import Layout
from bertkit.kernels.linear import Dropout
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import BertConfig, DecoderConfig, NormConfig
from bertkit.model.geometry import Geometry
from bertkit.model.head.head import Targets
from bertkit.model.heads import BertWithHeads
from bertkit.model.patterns import CAUSAL

TRANSFORMERS = ("bert", "shared", "post", "pre")
VARIANTS: dict[str, dict[str, Any]] = {  # settings of self-attention, on both sides
    "post relative": {"positions": "relative", "max_distance": 3},
    "pre rms rotary": {"positions": "rotary", "score": "general"},
    "post alibi": {"positions": "alibi", "score": "additive", "additive_size": 5},
    "post bias": {"positions": "relative_bias", "max_distance": 9, "distance_buckets": 4, "also_learned": True},
    "pre learned": {"positions": "learned", "score": "location"},
    "post none": {"positions": "none", "score": "dot"},
}
PUBLISHED: dict[str, Any] = {"cell": "lstm", "num_layers": 2}
RECURRENT: dict[str, dict[str, Any]] = {
    **{f"rnn {score}": {} for score in ("additive", "dot", "general", "location", "none")},
    "rnn none reversed": {**PUBLISHED, "bidirectional": False, "reverse_source": True},  # Sutskever et al. 2014
    "rnn local_p fed": {**PUBLISHED, "bidirectional": False, "window": 2, "input_feeding": True},  # Luong et al. 2015
    "rnn local_m": {**PUBLISHED, "window": 2},
    "rnn dot fed": {"input_feeding": True},
    "rnn additive before": {"reset_gate": "before", "num_layers": 2},  # Bahdanau et al. 2015
    "rnn additive lstm": {**PUBLISHED, "bidirectional": False},
    "rnn general before": {"reset_gate": "before", "num_layers": 2, "reverse_source": True},
}
KINDS = (*TRANSFORMERS, *VARIANTS, *RECURRENT)
SOURCES, TARGETS = (5, 11, 3, 11, 1, 7), (4, 1, 13, 13, 2, 3)  # tokens of each; one alone is the [CLS] of an empty text
HIDDEN, NUM_HEADS, INTERMEDIATE, POSITIONS, VOCAB, LAYERS = 26, 2, 37, 17, 31, 3
PLACES = 7  # that `location` knows; texts are longer
Texts = list[list[int]]


def config_of(kind: str, dropout: float) -> BertConfig:
    if kind in RECURRENT:
        decoder = DecoderConfig(kind="rnn", score=kind.split()[1], **RECURRENT[kind])  # type: ignore[arg-type]
        positions = AttentionConfig(positions="none")
        return small_config(VOCAB, dropout, max_position_embeddings=PLACES, attention=positions, decoder=decoder)
    is_bert = kind in ("bert", "shared")
    placement: Any = "post" if is_bert else kind.split()[0]
    attention = AttentionConfig(**VARIANTS.get(kind, {"positions": "learned" if is_bert else "sinusoidal"}))
    return small_config(
        VOCAB, dropout, hidden_act="gelu" if is_bert else "relu", max_position_embeddings=POSITIONS, layer_norm_eps=1e-3,
        attention=attention, norm=NormConfig(placement=placement, kind="rms" if "rms" in kind else "layer_norm"),
        num_attention_heads=1 if attention.positions == "rotary" else NUM_HEADS,
        decoder=DecoderConfig(kind="bert" if is_bert else "transformer", norm=placement, share=kind == "shared"),
    )  # fmt: skip


def model_of(kind: str, dropout: float = 0.0) -> BertWithHeads:
    model = BertWithHeads(config_of(kind, dropout), ("generation",), with_pooler=False).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def texts(lengths: Sequence[int], seed: int) -> Texts:
    rng = np.random.default_rng(seed)
    return [rng.permutation(VOCAB)[:length].tolist() for length in lengths]


def packed(value: Texts, num_slack: int = 0) -> tuple[Tensor, Layout]:
    ids = [token for text in value for token in text] + [3 + place for place in range(num_slack)]
    return torch.tensor(ids), Layout.from_lengths(torch.tensor([len(text) for text in value]), num_slack=num_slack)


def encode(model: BertWithHeads, sources: Texts, num_slack: int = 0) -> tuple[Tensor, Layout]:
    ids, layout = packed(sources, num_slack)
    return model(ids, torch.zeros_like(ids), layout).last_hidden_state, layout


def logits_of(model: BertWithHeads, sources: Texts, targets: Texts, slack: tuple[int, int] = (0, 0)) -> Tensor:
    ids, layout = packed(sources, slack[0])
    out = model(ids, torch.zeros_like(ids), layout, targets=Targets(*packed(targets, slack[1])))
    logits: Tensor = out.logits["generation"]
    assert logits.shape == (sum(map(len, targets)) + slack[1], VOCAB)
    assert bool(logits.isfinite().all())
    return logits[: sum(map(len, targets))]


def same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


# beside torch.nn


class Reference(nn.Module):
    """The Transformer of Vaswani et al. 2017 by torch's layers, of one table of embeddings, over padded texts."""

    def __init__(self, is_pre: bool) -> None:
        super().__init__()
        shape: dict[str, Any] = {
            "d_model": HIDDEN, "nhead": NUM_HEADS, "dim_feedforward": INTERMEDIATE, "dropout": 0.0, "batch_first": True,
            "layer_norm_eps": 1e-3, "norm_first": is_pre,
        }  # fmt: skip
        norms = [nn.LayerNorm(HIDDEN, eps=1e-3) if is_pre else None for _ in range(2)]
        self.table = nn.Parameter(torch.empty(VOCAB, HIDDEN))
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**shape), LAYERS, norms[0], enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**shape), LAYERS, norms[1])

    def embed(self, ids: Tensor) -> Tensor:
        places = torch.tensor(np.array([sinusoid(place, HIDDEN).real for place in range(ids.shape[1])]))
        return self.table[ids] * math.sqrt(HIDDEN) + places

    def forward(self, sources: Texts, targets: Texts) -> Tensor:
        (source, source_pad), (target, target_pad) = padded(sources), padded(targets)
        memory = self.encoder(self.embed(source), src_key_padding_mask=source_pad)
        later = torch.ones(target.shape[1], target.shape[1]).triu(1).bool()
        hidden = self.decoder(
            self.embed(target), memory, tgt_mask=later, tgt_key_padding_mask=target_pad,
            memory_key_padding_mask=source_pad,
        )  # fmt: skip
        return (hidden @ self.table.T)[~target_pad]


def padded(value: Texts) -> tuple[Tensor, Tensor]:
    longest = max(map(len, value))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in value])
    return ids, torch.tensor([[place >= len(text) for place in range(longest)] for text in value])


def as_torch(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a Transformer, or their gradients, under the names of the reference."""
    result = {"table": tensors["bert.embeddings.token.weight"]}
    for side, ours in (("encoder", "bert.encoder"), ("decoder", "heads.generation")):
        attentions = {"self_attn": "attention", **({"multihead_attn": "cross_attention"} if side == "decoder" else {})}
        parts = {"linear1": "feed_forward.intermediate", "linear2": "feed_forward.output"}
        parts |= {f"{there}.out_proj": f"{here}.output" for there, here in attentions.items()}
        parts |= {f"norm{n}": f"{here}_norm" for n, here in enumerate([*attentions.values(), "feed_forward"], 1)}
        for layer in range(LAYERS):
            own, theirs = f"{ours}.layers.{layer}", f"{side}.layers.{layer}"
            for which in ("weight", "bias"):
                for there, here in parts.items():
                    result[f"{theirs}.{there}.{which}"] = tensors[f"{own}.{here}.{which}"]
                for there, here in attentions.items():
                    thirds = [tensors[f"{own}.{here}.{name}.{which}"] for name in ("query", "key", "value")]
                    result[f"{theirs}.{there}.in_proj_{which}"] = torch.cat(thirds)
        if f"{ours}.norm.weight" in tensors:
            result |= {f"{side}.norm.{which}": tensors[f"{ours}.norm.{which}"] for which in ("weight", "bias")}
    return result


@pytest.mark.parametrize("kind", ["post", "pre"])
def test_logits_and_gradients_are_those_of_torch(kind: str) -> None:
    model, reference = model_of(kind), Reference(kind == "pre").double().train()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert len(weights) == 1 + LAYERS * (16 + 26) + (4 if kind == "pre" else 0)
    reference.load_state_dict(as_torch(weights))
    sources, targets = texts(SOURCES, 1), texts(TARGETS, 2)
    ours, theirs = logits_of(model, sources, targets), reference(sources, targets)
    same(ours, theirs, 1e-10)
    of_logits = torch.randn(ours.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for logits in (ours, theirs):
        (logits * of_logits).sum().backward()
    gradients = as_torch({name: parameter.grad for name, parameter in model.named_parameters()})  # type: ignore[misc]
    actual = dict(reference.named_parameters())
    assert actual.keys() == gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert actual[name].grad is not None
        same(gradient / largest, actual[name].grad / largest, 1e-10)  # type: ignore[operator]
        assert "in_proj_bias" in name or gradient.abs().max() > 1e-6 * largest, name


@pytest.mark.parametrize("kind", ["post", *VARIANTS])
def test_logits_and_gradients_are_those_of_loops(kind: str) -> None:
    """The gradients along one direction, which has all parameters in it."""
    model, rng = model_of(kind), np.random.default_rng(3)
    sources, targets = texts(SOURCES, 1), texts(TARGETS, 2)
    logits = logits_of(model, sources, targets)
    of_logits = rng.normal(size=logits.shape)
    gradients = torch.autograd.grad((logits * torch.tensor(of_logits)).sum(), list(model.parameters()))
    w, expected = {}, 0.0
    for (name, weight), gradient in zip(model.named_parameters(), gradients, strict=True):
        direction = rng.normal(size=weight.shape)
        own = name.removeprefix("bert.").replace("heads.generation", "decoder")
        w[own] = weight.detach().numpy() + 1e-30j * direction
        expected += (gradient.numpy() * direction).sum()
        assert gradient.any() or name.endswith("key.bias"), name
    pairs = zip(sources, targets, strict=True)
    theirs = np.concatenate([translate(w, model.config, *pair) for pair in pairs])
    np.testing.assert_allclose(logits.detach().numpy(), theirs.real, rtol=0, atol=1e-10)
    assert (theirs * of_logits).sum().imag / 1e-30 == pytest.approx(expected, rel=1e-10)


# what must hold


@pytest.mark.parametrize("kind", KINDS)
def test_a_pair_alone_gives_the_same_and_another_changes_nothing(kind: str) -> None:
    model, sources, targets = model_of(kind), texts(SOURCES, 1), texts(TARGETS, 2)
    together = logits_of(model, sources, targets).split(TARGETS)
    for source, target, logits in zip(sources, targets, together, strict=True):
        same(logits_of(model, [source], [target]), logits)
    others = [[1 + token % 7 for token in text] if place == 1 else text for place, text in enumerate(sources)]
    longer = [[18, *text] if place == 4 else text for place, text in enumerate(targets)]
    changed = logits_of(model, others, longer).split([len(text) for text in longer])
    for number, (one, other) in enumerate(zip(together, changed, strict=True)):
        if number in (1, 4):
            assert (one - other[: len(one)]).abs().max() > 1e-5
        else:
            same(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_comes_from_later_tokens_nor_from_other_pairs(kind: str) -> None:
    model, sources, targets = model_of(kind), texts(SOURCES, 1), texts(TARGETS, 2)
    decoder, embedded = model.heads["generation"], []  # type: ignore[var-annotated]
    hidden, layout = encode(model, sources)
    hidden = hidden.detach().requires_grad_()
    embeddings: Any = decoder.dropout if kind in RECURRENT else decoder.embeddings
    embeddings.register_forward_hook(lambda *value: embedded.append(value[-1]))
    ids, of_targets = packed(targets)
    logits = decoder(ids, of_targets, hidden, layout)
    of_source = torch.arange(len(SOURCES)).repeat_interleave(torch.tensor(SOURCES))
    for number, place in ((0, 3), (1, 0), (2, 0), (2, 7), (3, 12), (5, 1)):
        row = int(of_targets.starts[number]) + place
        of_written, of_hidden = torch.autograd.grad(
            logits[row].square().sum(), [embedded[0], hidden], retain_graph=True
        )
        looked_at = of_written.abs().sum(1).nonzero()[:, 0].tolist()
        assert looked_at == list(range(row - place, row + 1))
        is_seen = of_hidden.abs().sum(1) > 0
        assert not is_seen[of_source != number].any()
        assert bool(is_seen[of_source == number].all()) or kind.split()[1] in ("none", "local_m", "local_p")


def step_all(model: BertWithHeads, sources: Texts, targets: Texts, num_slack: int = 0) -> Tensor:
    decoder: Any = model.heads["generation"]
    state = decoder.start(*encode(model, sources, num_slack))
    return torch.stack([decoder.step(column, state) for column in torch.tensor(targets).unbind(1)], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_step_by_step_is_the_same_as_all_at_once(kind: str) -> None:
    model, sources, targets = model_of(kind), texts(SOURCES, 1), texts([POSITIONS] * len(SOURCES), 2)
    for value, num_slack in ((sources, 5), (texts([7] * len(SOURCES), 1), 0)):  # with padding and slack, and without
        same(step_all(model, value, targets, num_slack).flatten(0, 1), logits_of(model, value, targets))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_widened_reordered_and_dropped(kind: str) -> None:
    """As a beam search does: each row's logits are those of what it has read, from its source."""
    model, sources = model_of(kind), texts(SOURCES, 1)
    decoder: Any = model.heads["generation"]
    state = decoder.start(*encode(model, sources))
    written: Texts = [[] for _ in sources]
    of_source, rng = list(range(len(sources))), np.random.default_rng(5)

    def step() -> None:
        tokens = rng.integers(VOCAB, size=len(written))
        for text, token in zip(written, tokens.tolist(), strict=True):
            text.append(token)
        logits = decoder.step(torch.tensor(tokens), state)
        all_at_once = logits_of(model, [sources[number] for number in of_source], written)
        same(logits, all_at_once[torch.tensor([len(text) for text in written]).cumsum(0) - 1])

    def select(rows: list[int], kept: list[int] | None) -> None:
        nonlocal written, of_source
        written, of_source = [list(written[row]) for row in rows], [of_source[row] for row in rows]
        state.select(torch.tensor(rows), None if kept is None else torch.tensor(kept))

    step()
    select([row for row in range(6) for _ in range(2)], None)  # two rows for each source
    step()
    select([1, 0, 2, 2, 5, 5, 6, 7, 9, 8, 10, 10], None)
    step()
    select([1, 1, 9, 8, 7, 6], [0, 4, 3])  # sources 1, 2 and 5 are done
    step()
    state.select(None, None)
    step()
    assert of_source == [0, 0, 4, 4, 3, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_slack_changes_no_logit_and_no_gradient(kind: str) -> None:
    model, sources, targets = model_of(kind), texts(SOURCES, 1), texts(TARGETS, 2)
    plain, beside = logits_of(model, sources, targets), logits_of(model, sources, targets, (5, 3))
    same(beside, plain, 1e-13)
    of_plain, of_beside = (
        torch.autograd.grad(logits.square().sum(), list(model.parameters())) for logits in (plain, beside)
    )
    for one, other in zip(of_plain, of_beside, strict=True):
        same(one, other, 1e-13 * max(1, float(one.abs().max())))


@pytest.mark.parametrize("kind", TRANSFORMERS)
@pytest.mark.parametrize("slack", [(0, 0), (5, 3)])
def test_kept_weights_are_shares_of_the_source(kind: str, slack: tuple[int, int]) -> None:
    model, sources, targets = model_of(kind), texts(SOURCES, 1), texts(TARGETS, 2)
    ids, layout = packed(sources, slack[0])
    options = {"targets": Targets(*packed(targets, slack[1])), "output_attentions": True}
    alignments = model(ids, torch.zeros_like(ids), layout, **options).alignments
    assert len(alignments) == LAYERS
    for weights in alignments:
        assert weights.shape == (len(SOURCES), NUM_HEADS, max(TARGETS), max(SOURCES))
        for number, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
            own = weights[number, :, :target, :source]
            assert bool((own > 0).all())
            same(own.sum(-1), torch.ones(NUM_HEADS, target, dtype=torch.float64))
            assert int((weights[number] != 0).sum()) == own.numel()  # zeros elsewhere
    # they are what the contexts are made of: from one token of a source all is its value
    assert torch.equal(alignments[0][4, :, :2, 0], torch.ones(NUM_HEADS, 2, dtype=torch.float64))


def test_kept_weights_are_those_of_the_equation() -> None:
    """softmax(query key^T / sqrt(H)) of the first layer's cross-attention, written out for one pair."""
    model = model_of("post")
    layer: Any = model.heads["generation"].layers[0]  # type: ignore[index, union-attr]
    (source, layout), (ids, of_target) = encode(model, texts([11], 1)), packed(texts([5], 2))
    kept: list[Tensor] = []
    hidden = model.heads["generation"].embeddings(ids, ids * 0, of_target.position_ids)  # type: ignore[operator, union-attr]
    geometry = Geometry(of_target, of_target, CAUSAL, is_padded=True)
    layer(hidden, geometry, source, Geometry(of_target, layout, is_padded=True), kept)
    back = layer.attention_norm(hidden + layer.attention(hidden, geometry))
    size = HIDDEN // NUM_HEADS
    for head in range(NUM_HEADS):
        part = slice(head * size, (head + 1) * size)
        query, key = layer.cross_attention.query(back)[:, part], layer.cross_attention.key(source)[:, part]
        exponents = (query @ key.T / math.sqrt(size)).exp()
        same(kept[0][0, head], exponents / exponents.sum(1, keepdim=True))


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_one_and_most_positions_are_decoded(kind: str) -> None:
    model = model_of(kind)
    sources, targets = texts([POSITIONS, 1, POSITIONS, 1], 1), texts([1, POSITIONS, POSITIONS, 1], 2)
    logits = logits_of(model, sources, targets)
    for source, target, rows in zip(sources, targets, logits.split([1, POSITIONS, POSITIONS, 1]), strict=True):
        for length in {1, len(target) // 2 + 1, len(target)}:
            same(logits_of(model, [source], [target[:length]])[-1], rows[length - 1])


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_of_training_alone_and_seeded(kind: str) -> None:
    """It stands behind each sublayer: in the encoder twice a layer, in the decoder three times, and behind embeddings.

    In recurrent ones it stands behind embeddings, between layers, and before the vocabulary.
    """
    model, sources, targets = model_of(kind, dropout=0.3), texts(SOURCES, 1), texts(TARGETS, 2)
    dropped: list[int] = []
    for module in model.modules():
        if isinstance(module, Dropout) and module.prob > 0:
            module.register_forward_hook(lambda *value: dropped.append(len(value[-1])))
    same(logits_of(model, sources, targets), logits_of(model_of(kind), sources, targets), 0)
    of_sources, of_targets = (1 + 2 * LAYERS, 1 + 3 * LAYERS)
    if kind in RECURRENT:
        of_sources, of_targets = LAYERS, 1 + RECURRENT[kind].get("num_layers", 1)
    assert dropped[:of_sources] == [sum(SOURCES)] * of_sources
    assert sum(dropped[of_sources:]) == sum(TARGETS) * of_targets  # some run token by token
    model.float().train()
    for fast in (PLAIN, ALL):
        model.use(fast)
        results = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            results.append(logits_of(model, sources, targets))
        assert torch.equal(results[0], results[1])
        assert (results[0] - results[2]).abs().max() > 1e-2
        gradients = torch.autograd.grad(results[0].square().sum(), list(model.parameters()))
        assert all(bool(gradient.isfinite().all()) and bool(gradient.any()) for gradient in gradients)


@pytest.mark.parametrize("kind", KINDS)
def test_fast_ways_give_same_logits_and_gradients(kind: str) -> None:
    model, results = model_of(kind).float(), []
    for fast in (PLAIN, ALL):
        model.use(fast)
        logits = logits_of(model, texts(SOURCES, 1), texts(TARGETS, 2), (3, 3))
        results.append([logits.detach(), *torch.autograd.grad(logits.sum(), list(model.parameters()))])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * max(1.0, float(one.abs().max())))


def test_a_shared_decoder_is_the_encoder_twice() -> None:
    """One set of parameters; the same numbers as two sets of the same weights, whose gradients it sums."""
    shared, pair = model_of("shared"), model_of("bert")
    of_encoder = {name for name, _ in pair.bert.named_parameters(prefix="bert")}
    new = {name for name, _ in pair.named_parameters() if ".cross_attention" in name or ".score." in name}
    assert {name for name, _ in shared.named_parameters()} == of_encoder | new
    twins = {}
    with torch.no_grad():
        for name, parameter in pair.named_parameters():
            own = name.replace("heads.generation.embeddings", "bert.embeddings")
            if name not in new:
                own = own.replace("heads.generation.layers", "bert.encoder.layers")
            twins[name] = own
            parameter.copy_(shared.get_parameter(own))
    assert len(set(twins.values())) == len(of_encoder | new)
    logits = [logits_of(model, texts(SOURCES, 1), texts(TARGETS, 2)) for model in (shared, pair)]
    same(*logits)
    for each in logits:
        each.square().mean().backward()
    summed = {name: torch.zeros_like(parameter) for name, parameter in shared.named_parameters()}
    for name, parameter in pair.named_parameters():
        assert parameter.grad is not None
        summed[twins[name]] += parameter.grad
    for name, parameter in shared.named_parameters():
        same(parameter.grad, summed[name], 1e-11)  # type: ignore[arg-type]


def test_what_a_layout_plans_is_of_the_sources_that_it_was_made_for() -> None:
    """Other sources may be at the same address in memory later."""
    _, targets = packed(texts(TARGETS, 2))
    for number in range(50):
        lengths = [1 + (number + place) % 11 for place in range(len(TARGETS))]
        sources = torch.zeros(sum(lengths), 1, 1)
        ((group, *_),) = (
            Geometry(targets, packed(texts(lengths, number))[1], is_padded=True)
            .plan(1)
            .split(torch.zeros(sum(TARGETS), 1, 1), sources, sources)
        )
        assert group.shape[2] == max(lengths)
        assert torch.equal(group.mask[:, 0, 0].sum(1), torch.tensor(lengths))
