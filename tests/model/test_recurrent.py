"""The recurrent encoder-decoder beside loops of numpy, written from the papers, and what must hold between its parts.

The loops hold for complex numbers, whose imaginary parts are derivatives, as in loops.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertkit.kernels.fast import ALL, PLAIN
from bertkit.kernels.layout import Layout
from bertkit.model.config import BertConfig, DecoderConfig
from bertkit.model.recurrent import RecurrentDecoder, RecurrentEncoder, RecurrentState, Steps

Numbers = NDArray[np.complex128]
Weights = dict[str, Numbers]

SCORES = ("additive", "dot", "general", "location", "none")
SOURCES = (5, 11, 3, 11, 1, 7)  # tokens of each text; the longest are longer than places that `location` knows
TARGETS = (4, 1, 13, 13, 2, 3)
SIZE, VOCAB, PLACES = 14, 19, 7
GRADIENT_STEP = 1e-30


def config_of(score: Any, dropout_prob: float = 0.0, layers: int = 2) -> BertConfig:
    return BertConfig(
        hidden_size=SIZE, num_hidden_layers=layers, num_attention_heads=7, intermediate_size=17, hidden_act="gelu",
        hidden_dropout_prob=dropout_prob, attention_probs_dropout_prob=0.0, max_position_embeddings=PLACES,
        type_vocab_size=2, initializer_range=0.2, layer_norm_eps=1e-3, vocab_size=VOCAB,
        decoder=DecoderConfig(kind="rnn", score=score),
    )  # fmt: skip


class Both(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = RecurrentEncoder(config)
        self.head = RecurrentDecoder(config)

    def encode(self, ids: Tensor, layout: Layout) -> Tensor:
        states, pooled = self.bert(ids, torch.zeros_like(ids), layout)
        assert pooled is None
        assert len(states) == 1
        return states[0]  # type: ignore[no-any-return]

    def forward(self, pairs: Pairs, kept: list[Tensor] | None = None) -> Tensor:
        hidden = self.encode(pairs.source_ids, pairs.source)
        return self.head(pairs.target_ids, pairs.target, hidden, pairs.source, kept)  # type: ignore[no-any-return]


class Pairs:
    """Texts and what is written from them, packed; slack, where there is some, has ids of its own."""

    def __init__(self, sources: list[list[int]], targets: list[list[int]], slack: tuple[int, int] = (0, 0)) -> None:
        self.sources, self.targets = sources, targets
        self.source_ids, self.source = packed(sources, slack[0])
        self.target_ids, self.target = packed(targets, slack[1])


def packed(texts: list[list[int]], num_slack: int = 0) -> tuple[Tensor, Layout]:
    ids = [token for text in texts for token in text] + [3 + place for place in range(num_slack)]
    return torch.tensor(ids), Layout.from_lengths(torch.tensor([len(text) for text in texts]), num_slack=num_slack)


def model_of(config: BertConfig) -> Both:
    model = Both(config).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def texts(lengths: Sequence[int], seed: int) -> list[list[int]]:
    """No token twice in a text."""
    rng = np.random.default_rng(seed)
    return [rng.permutation(VOCAB)[:length].tolist() for length in lengths]


def pairs_of(slack: tuple[int, int] = (0, 0)) -> Pairs:
    return Pairs(texts(SOURCES, 1), texts(TARGETS, 2), slack)


def same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


# the loops


def sigmoid(x: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-x))


def gru(w: Weights, name: str, which: str, x: Numbers, h: Numbers) -> Numbers:
    """Cho et al. 2014, equations 5 to 8, with the reset gate and the z of torch."""
    of_x = w[f"{name}.weight_ih{which}"] @ x + w[f"{name}.bias_ih{which}"]
    of_h = w[f"{name}.weight_hh{which}"] @ h + w[f"{name}.bias_hh{which}"]
    n = len(h)
    reset, update = sigmoid(of_x[:n] + of_h[:n]), sigmoid(of_x[n : 2 * n] + of_h[n : 2 * n])
    return (1 - update) * np.tanh(of_x[2 * n :] + reset * of_h[2 * n :]) + update * h


def linear(w: Weights, name: str, x: Numbers) -> Numbers:
    return w[f"{name}.weight"] @ x + w[f"{name}.bias"]


def encode(w: Weights, config: BertConfig, ids: list[int]) -> list[list[Numbers]]:
    """The states before the first layer and after each: L + 1 of (T, D)."""
    states = [[w["bert.embeddings.token.weight"][token] for token in ids]]
    for layer in range(config.num_hidden_layers):
        found: list[list[Numbers]] = []
        for which, order in (("_l0", range(len(ids))), ("_l0_reverse", reversed(range(len(ids))))):
            h, of_way = np.zeros(SIZE // 2, complex), [np.empty(0, complex)] * len(ids)
            for j in order:
                h = of_way[j] = gru(w, f"bert.encoder.layers.{layer}", which, states[-1][j], h)
            found.append(of_way)
        states.append([np.concatenate(both) for both in zip(*found, strict=True)])
    return states


def look(w: Weights, score: str, s: Numbers, hidden: list[Numbers]) -> tuple[list[Numbers], Numbers]:
    """The share of each source token, and the context."""
    name, scores = "head.attention", []
    for j, h in enumerate(hidden):
        match score:
            case "dot":
                scores.append((s * h).sum())
            case "general":
                scores.append((s * (w[f"{name}.matrix.weight"] @ h)).sum())
            case "location":
                scores.append((w[f"{name}.matrix.weight"][min(j, PLACES - 1)] * s).sum())
            case "additive":
                both = w[f"{name}.of_query.weight"] @ s + w[f"{name}.of_key.weight"] @ h
                scores.append((w[f"{name}.of_sum.weight"][0] * np.tanh(both)).sum())
    total = sum(np.exp(each) for each in scores)
    shares = [np.exp(each) / total for each in scores]
    return shares, sum(share * h for share, h in zip(shares, hidden, strict=True))


def decode(w: Weights, score: str, ids: list[int], hidden: list[Numbers]) -> tuple[list[Numbers], list[list[Numbers]]]:
    """The logits after each token, and the shares of its source."""
    half, logits, shares = SIZE // 2, [], []
    backward = hidden[0][half:]
    s = np.tanh(
        linear(w, "head.first", backward if score == "additive" else np.concatenate([hidden[-1][:half], backward]))
    )
    for token in ids:
        y = w["head.token.weight"][token]
        if score == "additive":
            share, c = look(w, score, s, hidden)
            u_o, v_o, c_o = np.split(w["head.combined.weight"], 3, axis=1)
            t = u_o @ s + v_o @ y + c_o @ c + w["head.combined.bias"]
            out = np.array([a if a.real > b.real else b for a, b in t.reshape(-1, 2)])
            s = gru(w, "head.recurrence", "", np.concatenate([y, c]), s)
        else:
            s = gru(w, "head.recurrence", "_l0", y, s)
            share, c = ([], s[:0]) if score == "none" else look(w, score, s, hidden)
            out = np.tanh(linear(w, "head.combined", np.concatenate([c, s])))
        logits.append(linear(w, "head.vocabulary", out))
        shares.append(share)
    return logits, shares


# beside the loops


@pytest.mark.parametrize("score", SCORES)
def test_logits_and_gradients_are_those_of_loops(score: str) -> None:
    model, pairs, rng = model_of(config_of(score)), pairs_of(), np.random.default_rng(3)
    kept: list[Tensor] = []
    logits = model(pairs, kept)
    of_logits = rng.normal(size=logits.shape)
    parameters = dict(model.named_parameters())
    loss = (logits * torch.tensor(of_logits)).sum()
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    w = {name: weight.detach().numpy().astype(complex) for name, weight in parameters.items()}
    assert len(w) == 1 + 2 * 8 + 1 + 2 + 4 + 4 + {"additive": 3, "general": 1, "location": 1}.get(score, 0)

    for (name, weight), gradient in zip(parameters.items(), gradients, strict=True):
        direction = rng.normal(size=weight.shape)
        moved = w | {name: w[name] + 1j * GRADIENT_STEP * direction}
        found = [
            decode(moved, score, target, encode(moved, model.config, source)[-1])
            for source, target in zip(pairs.sources, pairs.targets, strict=True)
        ]
        theirs = np.array([row for rows, _ in found for row in rows])
        np.testing.assert_allclose(logits.detach().numpy(), theirs.real, rtol=0, atol=1e-10)
        derivative = (theirs * of_logits).sum().imag / GRADIENT_STEP
        assert abs(derivative) > 1e-6
        assert (gradient.numpy() * direction).sum() == pytest.approx(derivative, rel=1e-10, abs=1e-10), name

    assert len(kept) == (score != "none")
    for shares in kept:
        expected = np.zeros((len(SOURCES), 1, max(TARGETS), max(SOURCES)))
        for number, (_, of_pair) in enumerate(found):
            for i, row in enumerate(of_pair):
                expected[number, 0, i, : len(row)] = np.real(row)
        np.testing.assert_allclose(shares.detach().numpy(), expected, rtol=0, atol=1e-10)


def test_every_state_of_the_encoder_is_that_of_loops() -> None:
    model, pairs = model_of(config_of("dot", layers=3)), pairs_of()
    w = {name: weight.detach().numpy().astype(complex) for name, weight in model.named_parameters()}
    states, _ = model.bert(pairs.source_ids, pairs.source_ids, pairs.source, output_hidden_states=True)
    theirs = [encode(w, model.config, source) for source in pairs.sources]
    assert len(states) == 4
    for layer, state in enumerate(states):
        expected = np.array([row for of_text in theirs for row in of_text[layer]]).real
        np.testing.assert_allclose(state.detach().numpy(), expected, rtol=0, atol=1e-10)


# what must hold


def test_steps_are_time_major_and_longest_first() -> None:
    steps = Steps.of(Layout.from_lengths(torch.tensor([2, 3, 1, 3]), num_slack=2))
    assert steps.sequences.tolist() == [1, 3, 0, 2]
    assert steps.sizes.tolist() == [4, 3, 2]
    assert steps.tokens.tolist() == [2, 6, 0, 5, 3, 7, 1, 4, 8]
    assert steps.packed(10 * steps.tokens + 1, 11).tolist() == [1, 11, 21, 31, 41, 51, 61, 71, 81, 0, 0]


@pytest.mark.parametrize("score", SCORES)
def test_a_pair_alone_gives_the_same_and_another_changes_nothing(score: str) -> None:
    model, pairs = model_of(config_of(score)), pairs_of()
    together = model(pairs).split(TARGETS)
    for number, (source, target) in enumerate(zip(pairs.sources, pairs.targets, strict=True)):
        same(model(Pairs([source], [target])), together[number])
    others = Pairs(
        [[1 + token % 7 for token in text] if place == 1 else text for place, text in enumerate(pairs.sources)],
        [[18, *text] if place == 4 else text for place, text in enumerate(pairs.targets)],
    )
    changed = model(others).split([len(text) for text in others.targets])
    for number, (one, other) in enumerate(zip(together, changed, strict=True)):
        if number in (1, 4):
            assert (one - other[: len(one)]).abs().max() > 1e-3
        else:
            same(one, other)


@pytest.mark.parametrize("score", SCORES)
def test_no_gradient_comes_from_later_tokens_nor_from_other_pairs(score: str) -> None:
    model, pairs = model_of(config_of(score)), pairs_of()
    hidden = model.encode(pairs.source_ids, pairs.source).detach().requires_grad_()
    logits = model.head(pairs.target_ids, pairs.target, hidden, pairs.source)
    for number, place in ((0, 3), (2, 0), (2, 7), (3, 12), (5, 1)):
        of_row = logits[int(pairs.target.starts[number]) + place].square().sum()
        of_table, of_hidden = torch.autograd.grad(of_row, [model.head.token.weight, hidden], retain_graph=True)
        seen = set(of_table.abs().sum(1).nonzero()[:, 0].tolist())
        assert seen == set(pairs.targets[number][: place + 1])  # no text has a token twice
        own = torch.arange(len(SOURCES)).repeat_interleave(torch.tensor(SOURCES)) == number
        assert not of_hidden[~own].any()
        if score != "none":
            assert bool((of_hidden[own].abs().sum(1) > 0).all())


@pytest.mark.parametrize("score", SCORES)
def test_the_way_from_the_source_without_attention_is_its_last_state(score: str) -> None:
    """Both ends of it, or with the decoder of Bahdanau et al. the end of the way back."""
    model, pairs = model_of(config_of(score)), pairs_of()
    hidden = model.encode(pairs.source_ids, pairs.source).detach().requires_grad_()
    state = model.head.start(hidden, pairs.source)
    (of_hidden,) = torch.autograd.grad(state.last.sum(), hidden)
    expected = torch.zeros_like(of_hidden, dtype=torch.bool)
    expected[pairs.source.starts, SIZE // 2 :] = True
    if score != "additive":
        expected[torch.tensor(SOURCES).cumsum(0) - 1, : SIZE // 2] = True
    assert torch.equal(of_hidden != 0, expected)
    assert (state.source is None) == (score == "none")


@pytest.mark.parametrize("score", SCORES)
def test_step_by_step_is_the_same_as_all_at_once(score: str) -> None:
    model, pairs = model_of(config_of(score)), Pairs(texts(SOURCES, 1), texts([5] * len(SOURCES), 2))
    state = model.head.start(model.encode(pairs.source_ids, pairs.source), pairs.source)
    columns = torch.tensor(pairs.targets).unbind(1)
    stepped = torch.stack([model.head.step(column, state) for column in columns], 1)
    same(stepped.flatten(0, 1), model(pairs))


@pytest.mark.parametrize("score", SCORES)
def test_rows_are_widened_reordered_and_dropped(score: str) -> None:
    """As a beam search does: each row's logits are those of what it has read, from its source."""
    model, sources = model_of(config_of(score)), texts(SOURCES, 1)
    ids, layout = packed(sources)
    state: RecurrentState = model.head.start(model.encode(ids, layout), layout)
    written: list[list[int]] = [[] for _ in sources]
    of_source, rng = list(range(len(sources))), np.random.default_rng(5)

    def step() -> None:
        tokens = rng.integers(VOCAB, size=len(written))
        for text, token in zip(written, tokens.tolist(), strict=True):
            text.append(token)
        logits = model.head.step(torch.tensor(tokens), state)
        for row, (text, source) in enumerate(zip(written, of_source, strict=True)):
            same(logits[row], model(Pairs([sources[source]], [text]))[-1])

    def select(rows: list[int], kept: list[int] | None) -> None:
        nonlocal written, of_source
        written, of_source = [list(written[row]) for row in rows], [of_source[row] for row in rows]
        state.select(torch.tensor(rows), None if kept is None else torch.tensor(kept))

    step()
    select([row for row in range(6) for _ in range(3)], None)  # three rows for each source
    step()
    select([2, 0, 0, 3, 4, 5, 8, 7, 6, 9, 9, 9, 14, 12, 13, 15, 17, 16], None)
    step()
    select([1, 1, 0, 12, 13, 14, 11, 9, 10], [0, 4, 3])  # sources 1, 2 and 5 are done
    step()
    before = state.last.clone()
    state.select(None, None)
    assert torch.equal(before, state.last)
    assert len(of_source) == 9
    assert sorted(set(of_source)) == [0, 3, 4]


@pytest.mark.parametrize("score", SCORES)
def test_slack_changes_nothing(score: str) -> None:
    model, kept, beside_slack = model_of(config_of(score)), [], []  # type: ignore[var-annotated]
    plain, slack = pairs_of(), pairs_of((5, 3))
    assert [len(slack.source_ids), len(slack.target_ids)] == [sum(SOURCES) + 5, sum(TARGETS) + 3]
    logits, found = model(plain, kept), model(slack, beside_slack)
    assert bool(found.isfinite().all())
    same(found[: len(logits)], logits, 1e-14)
    for one, other in zip(kept, beside_slack, strict=True):
        same(one, other, 1e-14)
    first, second = (
        torch.autograd.grad(each[: len(logits)].square().sum(), list(model.parameters())) for each in (logits, found)
    )
    for one, other in zip(first, second, strict=True):
        same(one, other)


@pytest.mark.parametrize("score", SCORES)
def test_fast_ways_give_the_same_and_dropout_is_of_training_alone(score: str) -> None:
    model, pairs = model_of(config_of(score, dropout_prob=0.3)).float(), pairs_of((3, 3))
    logits = []
    for fast in (PLAIN, ALL):
        for module in model.modules():
            if hasattr(module, "fast"):
                module.fast = fast  # type: ignore[assignment]
        logits.append(model(pairs))
    torch.testing.assert_close(*logits, rtol=0, atol=1e-5)
    model.train()
    assert not torch.allclose(model(pairs), model(pairs), atol=1e-2)
    (model(pairs).square().sum()).backward()
    assert all(each.grad is not None and bool(each.grad.isfinite().all()) for each in model.parameters())
