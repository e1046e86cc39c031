"""The recurrent encoder-decoder beside loops of numpy, written from the papers; test_decoder.py has what must hold of it.

The loops hold for complex numbers, whose imaginary parts are derivatives, as in loops.py.
"""

import numpy as np
import pytest
import torch
from loops import Numbers, Weights, linear, softmax
from test_decoder import HIDDEN, LAYERS, PLACES, RECURRENT, SOURCES, TARGETS, model_of, packed, texts
from test_decoder import encode as encoded

from bertkit.kernels.layout import Layout
from bertkit.model.heads import Targets
from bertkit.model.recurrent import Steps

GRADIENT_STEP = 1e-30


def sigmoid(x: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-x))


def gru(w: Weights, name: str, which: str, x: Numbers, h: Numbers) -> Numbers:
    """Cho et al. 2014, equations 5 to 8, with the reset gate and the z of torch."""
    of_x = w[f"{name}.weight_ih{which}"] @ x + w[f"{name}.bias_ih{which}"]
    of_h = w[f"{name}.weight_hh{which}"] @ h + w[f"{name}.bias_hh{which}"]
    n = len(h)
    reset, update = sigmoid(of_x[:n] + of_h[:n]), sigmoid(of_x[n : 2 * n] + of_h[n : 2 * n])
    return (1 - update) * np.tanh(of_x[2 * n :] + reset * of_h[2 * n :]) + update * h


def encode(w: Weights, ids: list[int]) -> list[list[Numbers]]:
    """The states before the first layer and after each: L + 1 of (T, D)."""
    states = [[w["bert.embeddings.token.weight"][token] for token in ids]]
    for layer in range(LAYERS):
        found: list[list[Numbers]] = []
        for which, order in (("_l0", range(len(ids))), ("_l0_reverse", reversed(range(len(ids))))):
            h, of_way = np.zeros(HIDDEN // 2, complex), [np.empty(0, complex)] * len(ids)
            for j in order:
                h = of_way[j] = gru(w, f"bert.encoder.layers.{layer}", which, states[-1][j], h)
            found.append(of_way)
        states.append([np.concatenate(both) for both in zip(*found, strict=True)])
    return states


def look(w: Weights, score: str, s: Numbers, hidden: list[Numbers]) -> tuple[list[Numbers], Numbers]:
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
    shares = list(softmax(np.array(scores)))
    return shares, sum(share * h for share, h in zip(shares, hidden, strict=True))


def decode(w: Weights, score: str, ids: list[int], hidden: list[Numbers]) -> tuple[list[Numbers], list[list[Numbers]]]:
    half, logits, shares = HIDDEN // 2, [], []
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


def near(ours: torch.Tensor, theirs: object) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), np.real(np.array(theirs)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", RECURRENT)
def test_states_logits_and_gradients_are_those_of_loops(kind: str) -> None:
    model, score, rng = model_of(kind), kind.split()[1], np.random.default_rng(3)
    sources, targets = texts(SOURCES, 1), texts(TARGETS, 2)
    ids, layout = packed(sources)
    out = model(
        ids, 0 * ids, layout, targets=Targets(*packed(targets)), output_hidden_states=True, output_attentions=True
    )
    logits = out.logits["generation"]
    of_logits = rng.normal(size=logits.shape)
    parameters = {name.replace("heads.generation", "head"): each for name, each in model.named_parameters()}
    loss = (logits * torch.tensor(of_logits)).sum()
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    w = {name: weight.detach().numpy().astype(complex) for name, weight in parameters.items()}
    of_attention = {"additive": 3, "general": 1, "location": 1}.get(score, 0)
    assert len(w) == 1 + 8 * LAYERS + 1 + 2 + 4 + 4 + of_attention

    states = [encode(w, source) for source in sources]
    assert len(out.hidden_states) == LAYERS + 1
    for layer, state in enumerate(out.hidden_states):
        near(state, [row for of_text in states for row in of_text[layer]])
    for (name, weight), gradient in zip(parameters.items(), gradients, strict=True):
        direction = rng.normal(size=weight.shape)
        moved = w | {name: w[name] + 1j * GRADIENT_STEP * direction}
        found = [
            decode(moved, score, target, encode(moved, source)[-1])
            for source, target in zip(sources, targets, strict=True)
        ]
        theirs = np.array([row for rows, _ in found for row in rows])
        near(logits, theirs)
        derivative = (theirs * of_logits).sum().imag / GRADIENT_STEP
        assert abs(derivative) > 1e-6
        assert (gradient.numpy() * direction).sum() == pytest.approx(derivative, rel=1e-10, abs=1e-10), name

    assert len(out.alignments) == (score != "none")
    for shares in out.alignments:
        expected = np.zeros((len(SOURCES), 1, max(TARGETS), max(SOURCES)), complex)
        for number, (_, of_pair) in enumerate(found):
            for i, row in enumerate(of_pair):
                expected[number, 0, i, : len(row)] = row
        near(shares, expected)


def test_steps_are_time_major_and_longest_first() -> None:
    steps = Steps.of(Layout.from_lengths(torch.tensor([2, 3, 1, 3]), num_slack=2))
    assert steps.sequences.tolist() == [1, 3, 0, 2]
    assert steps.sizes.tolist() == [4, 3, 2]
    assert steps.tokens.tolist() == [2, 6, 0, 5, 3, 7, 1, 4, 8]
    assert steps.packed(10 * steps.tokens + 1, 11).tolist() == [1, 11, 21, 31, 41, 51, 61, 71, 81, 0, 0]


@pytest.mark.parametrize("kind", RECURRENT)
def test_the_way_from_the_source_without_attention_is_its_last_state(kind: str) -> None:
    """Both ends of it, or with the decoder of Bahdanau et al. the end of the way back."""
    model = model_of(kind)
    hidden, layout = encoded(model, texts(SOURCES, 1))
    hidden = hidden.detach().requires_grad_()
    state = model.heads["generation"].start(hidden, layout)  # type: ignore[operator, union-attr]
    (of_hidden,) = torch.autograd.grad(state.last.sum(), hidden)
    expected = torch.zeros_like(of_hidden, dtype=torch.bool)
    expected[layout.starts, HIDDEN // 2 :] = True
    if kind != "rnn additive":
        expected[torch.tensor(SOURCES).cumsum(0) - 1, : HIDDEN // 2] = True
    assert torch.equal(of_hidden != 0, expected)
    assert (state.source is None) == (kind == "rnn none")
