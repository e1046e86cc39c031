"""Initial weights, heads, ties, and the shapes that the docstrings promise."""

import dataclasses
import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from conftest import HIDDEN, LAYERS, options_so_far, small_config, small_model
from torch import nn

from bertkit.base import plugins
from bertkit.base.batch import Batch, Target
from bertkit.base.errors import InputError
from bertkit.kernels.layout import Layout, Wanted
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import BertConfig, NormConfig
from bertkit.model.head.built_in import MaskedToken
from bertkit.model.head.head import Encoded, Head
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights
from bertkit.model.slots import scaled_dot
from bertkit.objectives.losses import batch_losses, head_losses, label_loss, outputs, task_logits, token_loss

LENGTHS = torch.tensor([5, 7, 3])
# the standard deviation of a normal cut at two of its own
CUT = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))


def batch() -> tuple[torch.Tensor, torch.Tensor, Layout]:
    generator = torch.Generator().manual_seed(1)
    ids, types = (torch.randint(high, (15,), generator=generator) for high in (131, 2))
    return ids, types, Layout.from_lengths(LENGTHS)


def test_every_parameter_is_initialised() -> None:
    config = BertConfig(**{**vars(small_config()), "hidden_size": 122, "intermediate_size": 251})
    model = BertWithHeads(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    init_weights(model, 0.02, torch.Generator().manual_seed(0))
    kinds = {"ones": 0, "zeros": 0, "normal": 0}
    for name, parameter in model.named_parameters():
        if "norm.weight" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
            kinds["ones"] += 1
        elif name.endswith("bias"):
            assert torch.equal(parameter, torch.zeros_like(parameter)), name
            kinds["zeros"] += 1
        else:
            assert float(parameter.detach().abs().max()) <= 0.04, name
            assert abs(float(parameter.detach().mean())) < 4 * 0.02 / parameter.numel() ** 0.5, name
            assert float(parameter.detach().std()) == pytest.approx(0.02 * CUT, rel=4 / parameter.numel() ** 0.5), name
            kinds["normal"] += 1
    assert kinds == {"ones": 2 + 2 * LAYERS, "zeros": 1 + 8 * LAYERS + 1 + 3 + 1, "normal": 3 + 6 * LAYERS + 1 + 1 + 1}
    everything = torch.cat([p.detach().flatten() for n, p in model.named_parameters() if p.dim() == 2])
    assert float(everything.std()) == pytest.approx(0.02 * CUT, rel=0.005)
    assert float(everything.abs().max()) > 0.0399


def test_the_same_seed_gives_the_same_weights() -> None:
    first, again, other = small_model(seed=3), small_model(seed=3), small_model(seed=4)
    for name, parameter in first.state_dict().items():
        assert torch.equal(parameter, again.state_dict()[name])
        assert torch.equal(parameter, other.state_dict()[name]) == (parameter.dim() == 1)


def test_a_parameter_of_another_name_keeps_its_values() -> None:
    class Odd(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.scale, self.gate, self.mix = (
                nn.Parameter(value) for value in (torch.tensor(2.0), torch.ones(3), torch.eye(4))
            )

    odd = Odd()
    init_weights(odd, 0.02, torch.Generator())
    assert odd.scale == 2
    assert torch.equal(odd.gate, torch.ones(3))
    assert torch.equal(odd.mix, torch.eye(4))
    assert odd.bias.eq(0).all()
    assert odd.weight.abs().max() <= 0.04


def test_masked_positions_select_from_all_positions() -> None:
    model, (ids, types, layout) = small_model().double().eval(), batch()
    positions = torch.tensor([1, 4, 5, 14])
    everywhere = model(ids, types, layout).logits
    selected = model(ids, types, layout, masked_positions=positions).logits
    torch.testing.assert_close(selected["masked_lm"], everywhere["masked_lm"][positions], rtol=0, atol=1e-12)
    assert torch.equal(selected["next_sentence"], everywhere["next_sentence"])


VARIANTS = [  # settings of a model; whether its last layer may compute [CLS] alone, and [CLS] and some other tokens
    ({}, True, True),
    ({"pooling": "cls", "norm": NormConfig(placement="pre")}, True, True),
    ({"attention": AttentionConfig(positions="relative")}, True, False),
    ({"attention": AttentionConfig(score="additive")}, True, True),
    ({"num_attention_heads": 1, "attention": AttentionConfig(positions="rotary")}, True, True),
    ({"attention": AttentionConfig(pattern="window", window=2)}, False, False),
    ({"pooling": "mean"}, False, False),
]


@pytest.mark.parametrize("places", [[], [2, 6, 14]])
@pytest.mark.parametrize(("settings", "may_skip", "may_skip_others"), VARIANTS)
@pytest.mark.parametrize("num_slack", [0, 2])
def test_wanted_tokens_have_the_same_logits_and_others_are_skipped(
    settings: dict[str, Any], may_skip: bool, may_skip_others: bool, num_slack: int, places: list[int]
) -> None:
    heads = ("masked_lm", "sequence")
    model, (ids, types, _) = small_model(heads=heads, labels=("a", "b"), **settings).double().eval(), batch()
    layout = Layout.from_lengths(LENGTHS, num_slack=num_slack)
    ids, types = (torch.cat([tensor, tensor.new_zeros(num_slack)]) for tensor in (ids, types))
    rows = torch.tensor(sorted({*layout.starts.tolist(), *places}))
    lengths = torch.bincount(torch.bucketize(rows, LENGTHS.cumsum(0), right=True), minlength=len(LENGTHS))
    own = Layout.from_lengths(lengths, num_slack=num_slack)
    wanted = Wanted(torch.cat([rows, rows.new_zeros(num_slack)]), own, are_first=not places)
    num_rows: list[int] = []
    model.bert.encoder.layers[-1].feed_forward.register_forward_hook(lambda *_: num_rows.append(len(_[2])))
    whole, some = model(ids, types, layout), model(ids, types, layout, wanted=wanted)
    torch.testing.assert_close(some.logits["sequence"], whole.logits["sequence"], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        some.logits["masked_lm"][: len(rows)], whole.logits["masked_lm"][rows], rtol=0, atol=1e-12
    )
    skips = may_skip_others if places else may_skip
    assert num_rows == [15 + num_slack, (len(rows) if skips else 15) + num_slack]


class OverTokens(nn.Module):
    """A norm over the tokens of a batch."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return (hidden - hidden.mean(0)) / hidden.std(0)


class SecondToken(Head):
    """A head of whole texts that reads the token after [CLS]."""

    def logits(self, module: nn.Module, encoded: Encoded) -> torch.Tensor:
        return module(encoded.last[encoded.layout.starts + 1])  # type: ignore[no-any-return]


class FromBefore(MaskedToken):
    """A head that predicts a token from the vector before it."""

    def logits(self, module: nn.Module, encoded: Encoded) -> torch.Tensor:
        assert encoded.masked_positions is not None
        return module(encoded.last[encoded.masked_positions - 1], encoded.token_embedding)  # type: ignore[no-any-return]


def near(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A score that takes the n-th query for the n-th token."""
    return scaled_dot(query, key) - (torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])).abs()


@pytest.mark.parametrize(
    ("heads", "settings"),
    [
        (("masked_lm",), {"attention": AttentionConfig(score="near")}),
        (("masked_lm",), {"norm": NormConfig(kind="over_tokens")}),
        (("masked_lm", "second_token"), {"labels": ("a", "b")}),
        (("masked_lm", "from_before"), {}),
    ],
)
def test_tokens_that_a_plugin_may_read_are_computed(
    heads: tuple[str, ...], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_options", options_so_far())
    plugins.option("score", "near")(near)
    plugins.option("norm", "over_tokens")(lambda size, eps: OverTokens())
    plugins.option("model_head", "second_token")(SecondToken)
    plugins.option("model_head", "from_before")(FromBefore)
    plugins.option("head_loss", "second_token")(label_loss)
    plugins.option("head_loss", "from_before")(token_loss)
    model, (ids, types, _) = small_model(heads=heads, **settings).double().eval(), batch()
    targets = {
        "masked_lm": Target(np.array([11, 23, 5]), np.array([2, 6, 14])),
        "second_token": Target(np.array([0, 1, 1])),
        "from_before": Target(np.array([11, 23, 5])),
    }
    own = Batch(ids.numpy(), types.numpy(), LENGTHS.numpy(), {head: targets[head] for head in heads})
    whole = head_losses(model, own, outputs(model, own).logits)
    terms = batch_losses(model, own)
    assert len(terms) == len(heads)
    for name, term in terms.items():
        torch.testing.assert_close(term.sum, whole[name].sum, rtol=0, atol=1e-6)
    if "second_token" in heads:
        predicted = task_logits(model, own, "second_token").loss
        assert predicted is not None
        torch.testing.assert_close(predicted.sum, whole["second_token"].sum, rtol=0, atol=1e-6)


def test_the_decoder_is_the_embedding() -> None:
    model, (ids, types, layout) = small_model(), batch()
    assert not any("decoder" in name for name, _ in model.named_parameters())
    unseen = next(i for i in range(131) if i not in ids.tolist())
    model(ids, types, layout).logits["masked_lm"][:, unseen].sum().backward()
    gradient = model.bert.embeddings.token.weight.grad
    assert gradient[unseen].abs().max() > 0  # only the decoder can have put it there
    with torch.no_grad():
        before = model(ids, types, layout).logits["masked_lm"]
        model.bert.embeddings.token.weight[unseen] += 1
        after = model(ids, types, layout).logits["masked_lm"]
    changed = (before != after).any(0)
    assert changed.nonzero().flatten().tolist() == [unseen]


def test_every_parameter_receives_a_gradient() -> None:
    """An unused one would stop data-parallel training."""
    model, (ids, types, layout) = small_model(), batch()
    logits = model(ids, types, layout).logits
    (logits["masked_lm"].square().sum() + logits["next_sentence"].square().sum()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


SHAPES = [
    (("masked_lm", "next_sentence"), True, {"masked_lm": (15, 131), "next_sentence": (3, 2)}),
    (("masked_lm",), False, {"masked_lm": (15, 131)}),
    (("next_sentence",), True, {"next_sentence": (3, 2)}),
    ((), True, {}),
]


@pytest.mark.parametrize(("heads", "with_pooler", "logits"), SHAPES)
def test_logits_and_outputs_have_documented_shapes(
    heads: tuple[str, ...], with_pooler: bool, logits: dict[str, tuple[int, ...]]
) -> None:
    out = BertWithHeads(small_config(), heads, with_pooler)(*batch(), output_hidden_states=True)
    assert {name: tuple(value.shape) for name, value in out.logits.items()} == logits
    assert out.last_hidden_state.shape == (15, HIDDEN)
    assert (None if out.pooled_output is None else tuple(out.pooled_output.shape)) == (
        (3, HIDDEN) if with_pooler else None
    )
    assert [tuple(state.shape) for state in out.hidden_states] == [(15, HIDDEN)] * (LAYERS + 1)
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)


@pytest.mark.parametrize(("heads", "with_pooler"), [(("masked_lm", "regression"), True), (("next_sentence",), False)])
def test_impossible_heads_are_refused(heads: tuple[str, ...], with_pooler: bool) -> None:
    with pytest.raises((AssertionError, InputError)):
        BertWithHeads(small_config(), heads, with_pooler)


def test_dropout_in_training_only() -> None:
    model, inputs = small_model(dropout=0.3), batch()
    with torch.no_grad():
        plain = small_model()(*inputs).last_hidden_state
        assert torch.equal(model.eval()(*inputs).last_hidden_state, plain)
        assert not torch.allclose(model.train()(*inputs).last_hidden_state, plain)


IMPOSSIBLE = [
    ({"num_attention_heads": 3}, "model.hidden_size=26 is not a multiple of model.num_attention_heads=3"),
]


@pytest.mark.parametrize(("changed", "message"), IMPOSSIBLE)
def test_impossible_shapes_are_refused(changed: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        BertConfig(**{**vars(small_config()), **changed})


@pytest.mark.parametrize(("placement", "scaled", "head", "is_copy"), [
    ("post", True, "masked_lm", True), ("post", False, "masked_lm", False), ("pre", True, "masked_lm", False), ("post", True, "next_token", False),
])  # fmt: skip
def test_with_scaled_outputs_a_bert_begins_by_predicting_what_is_shown(
    placement: Literal["post", "pre"], scaled: bool, head: str, is_copy: bool
) -> None:
    """What counting tokens needs in its first step: a kept token is its own label. transformers' ModernBERT does not, nor do next tokens."""
    pattern = "causal" if head == "next_token" else "full"
    config = dataclasses.replace(
        small_config(hidden_size=96, num_attention_heads=2), scale_outputs=scaled, norm=NormConfig(placement=placement),
        initializer_range=0.1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attention=AttentionConfig(pattern=pattern),
    )  # fmt: skip
    model = BertWithHeads(config, [head], with_pooler=False)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    ids, types, layout = batch()
    with torch.no_grad():
        logits = model(ids, types, layout).logits[head]
        model.heads[head].begin_with(torch.arange(config.vocab_size))
    share = torch.arange(1, config.vocab_size + 1) / sum(range(config.vocab_size + 1))
    assert torch.allclose(model.heads[head].bias, share.log())
    right = float((logits.argmax(-1) == ids).float().mean())
    assert right > 0.9 if is_copy else right < 0.5
