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
from bertkit.model.bert_config import DecoderConfig
from bertkit.model.head.head import Targets
from bertkit.model.recurrent.encoder import Steps

GRADIENT_STEP = 1e-30


def sigmoid(x: Numbers) -> Numbers:
    return 1 / (1 + np.exp(-x))


def cell(
    w: Weights, config: DecoderConfig, name: str, which: str, x: Numbers, state: tuple[Numbers, Numbers]
) -> tuple[Numbers, Numbers]:
    """The next h and, for an LSTM, c.

    Cho et al. 2014, equations 5 to 8, with the z of torch; Graves 2013, equations 7 to 11, without peepholes.
    """
    w_x, w_h, b_x, b_h = (w[f"{name}.{each}{which}"] for each in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    (h, c), n = state, len(state[0])
    of_x, of_h = w_x @ x + b_x, w_h @ h + b_h
    if config.cell == "lstm":
        i, f, g, o = np.split(of_x + of_h, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    r, z = sigmoid(of_x[:n] + of_h[:n]), sigmoid(of_x[n : 2 * n] + of_h[n : 2 * n])
    inner = r * of_h[2 * n :] if config.reset_gate == "after" else w_h[2 * n :] @ (r * h) + b_h[2 * n :]
    return (1 - z) * np.tanh(of_x[2 * n :] + inner) + z * h, c


def encode(w: Weights, config: DecoderConfig, ids: list[int]) -> list[list[Numbers]]:
    """The states before the first layer and after each: L + 1 of (T, D), each at the place of its token."""
    states, size = [[w["bert.embeddings.token.weight"][token] for token in ids]], HIDDEN
    order = list(range(len(ids)))
    if config.reverse_source:
        order[1:-1] = order[1:-1][::-1]
    ways = [("_l0", order)]
    if config.bidirectional:
        ways, size = [*ways, ("_l0_reverse", order[::-1])], HIDDEN // 2
    for layer in range(LAYERS):
        results: list[list[Numbers]] = []
        for which, of_way in ways:
            state, outputs = (np.zeros(size, complex), np.zeros(size, complex)), [np.empty(0, complex)] * len(ids)
            for j in of_way:
                state = cell(w, config, f"bert.encoder.layers.{layer}", which, states[-1][j], state)
                outputs[j] = state[0]
            results.append(outputs)
        states.append([np.concatenate(each) for each in zip(*results, strict=True)])
    return states


def look(w: Weights, config: DecoderConfig, s: Numbers, hidden: list[Numbers], t: int) -> tuple[list[Numbers], Numbers]:
    name, scores, score, seen = "head.attention", {}, config.score, list(range(len(hidden)))
    factor = {j: 1.0 for j in seen}
    if score in ("local_m", "local_p"):  # Luong et al. 2015, section 3.2, equations 9 and 10
        centre = np.array(min(t, len(hidden) - 1), complex)
        if score == "local_p":
            of_s = np.tanh(w[f"{name}.of_state.weight"] @ s)
            centre = len(hidden) * sigmoid((w[f"{name}.of_centre.weight"][0] * of_s).sum())
            factor = {j: np.exp(-((j - centre) ** 2) / (2 * (config.window / 2) ** 2)) for j in seen}
        seen = [j for j in seen if centre.real - config.window <= j <= centre.real + config.window]
    for j in seen:
        match score:
            case "dot":
                scores[j] = (s * hidden[j]).sum()
            case "location":
                scores[j] = (w[f"{name}.matrix.weight"][min(j, PLACES - 1)] * s).sum()
            case "additive":
                both = w[f"{name}.of_query.weight"] @ s + w[f"{name}.of_key.weight"] @ hidden[j]
                scores[j] = (w[f"{name}.of_sum.weight"][0] * np.tanh(both)).sum()
            case _:
                scores[j] = (s * (w[f"{name}.matrix.weight"] @ hidden[j])).sum()
    result = dict(zip(seen, softmax(np.array(list(scores.values()))), strict=True))
    shares = [result.get(j, 0) * factor[j] for j in range(len(hidden))]
    return shares, sum(share * h for share, h in zip(shares, hidden, strict=True))


def decode(
    w: Weights, config: DecoderConfig, ids: list[int], hidden: list[Numbers]
) -> tuple[list[Numbers], list[list[Numbers]]]:
    half, logits, shares, score = HIDDEN // 2, [], [], config.score
    by_step, cells = score == "additive" or config.input_feeding, ["recurrence"]
    cells += [f"upper.{number}" for number in range(config.num_layers - 1)]
    which = "" if by_step and config.reset_gate == "after" else "_l0"
    both = ([] if score == "additive" else [hidden[-1][:half]]) + [hidden[0][half:]]
    last = np.concatenate(both) if config.bidirectional else hidden[-1]
    parts = np.split(np.tanh(linear(w, "head.first", last)),
                     config.num_layers * (2 if config.cell == "lstm" else 1))  # fmt: skip
    if config.cell == "lstm":
        states = [(parts[2 * n + 1], parts[2 * n]) for n in range(config.num_layers)]
    else:
        states = [(part, part) for part in parts]
    fed = np.zeros(HIDDEN, complex)

    def move(x: Numbers) -> Numbers:
        for number, name in enumerate(cells):
            states[number] = cell(w, config, f"head.{name}", which, x, states[number])
            x = states[number][0]
        return x

    for t, token in enumerate(ids):
        y = w["head.token.weight"][token]
        if score == "additive":
            s = states[-1][0]
            share, c = look(w, config, s, hidden, t)
            u_o, v_o, c_o = np.split(w["head.combined.weight"], 3, axis=1)
            of_all = u_o @ s + v_o @ y + c_o @ c + w["head.combined.bias"]
            out = np.array([a if a.real > b.real else b for a, b in of_all.reshape(-1, 2)])
            move(np.concatenate([y, c]))
        else:
            s = move(np.concatenate([y, fed]) if config.input_feeding else y)
            share, c = ([], s[:0]) if score == "none" else look(w, config, s, hidden, t)
            out = fed = np.tanh(linear(w, "head.combined", np.concatenate([c, s])))
        logits.append(linear(w, "head.vocabulary", out))
        shares.append(share)
    return logits, shares


# beside the loops


def near(ours: torch.Tensor, theirs: object) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), np.real(np.array(theirs)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("is_by_parameter", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", RECURRENT)
def test_states_logits_and_gradients_are_those_of_loops(kind: str, is_by_parameter: bool) -> None:
    """The gradients along one direction, which has all parameters in it, or along one for each parameter."""
    model, score, rng = model_of(kind), kind.split()[1], np.random.default_rng(3)
    config = model.config.decoder
    assert config is not None
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
    of_attention = {"additive": 3, "dot": 0, "none": 0, "local_p": 3}.get(score, 1)
    of_layers = (8 if config.bidirectional else 4) * LAYERS + 4 * config.num_layers
    assert len(w) == 1 + of_layers + 1 + 2 + 4 + of_attention

    states = [encode(w, config, source) for source in sources]
    assert len(out.hidden_states) == LAYERS + 1
    for layer, state in enumerate(out.hidden_states):
        near(state, [row for of_text in states for row in of_text[layer]])
    of_all = {name: rng.normal(size=weight.shape) for name, weight in parameters.items()}
    of_gradients = {name: gradient.numpy() for name, gradient in zip(parameters, gradients, strict=True)}
    assert all(gradient.any() for gradient in gradients)
    for directions in [{name: one} for name, one in of_all.items()] if is_by_parameter else [of_all]:
        moved = w | {name: w[name] + 1j * GRADIENT_STEP * one for name, one in directions.items()}
        actual = [
            decode(moved, config, target, encode(moved, config, source)[-1])
            for source, target in zip(sources, targets, strict=True)
        ]
        theirs = np.array([row for rows, _ in actual for row in rows])
        near(logits, theirs)
        derivative = (theirs * of_logits).sum().imag / GRADIENT_STEP
        assert abs(derivative) > 1e-6
        products = sum((of_gradients[name] * one).sum() for name, one in directions.items())
        assert products == pytest.approx(derivative, rel=1e-10, abs=1e-10), [*directions]

    assert len(out.alignments) == (score != "none")
    for shares in out.alignments:
        expected = np.zeros((len(SOURCES), 1, max(TARGETS), max(SOURCES)), complex)
        for number, (_, of_pair) in enumerate(actual):
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
    config = model.config.decoder
    assert config is not None
    expected[layout.starts, HIDDEN // 2 :] = config.bidirectional
    if config.score != "additive" or not config.bidirectional:
        expected[torch.tensor(SOURCES).cumsum(0) - 1, : HIDDEN // 2 if config.bidirectional else HIDDEN] = True
    assert torch.equal(of_hidden != 0, expected)
    assert (state.source is None) == (config.score == "none")
