"""Every option of attention, norm and pooling beside loops of numpy, and what must hold between them."""

import doctest
import functools
import importlib
import itertools
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import loops
import numpy as np
import pytest
import torch
from conftest import Capsys, refused
from torch import Tensor, nn

import bertkit.model
from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.cli import run
from bertkit.kernels.layout import Layout
from bertkit.model import bert
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert import Bert
from bertkit.model.bert_config import BertConfig, ConvolutionConfig, FeedForwardConfig, NormConfig
from bertkit.model.geometry import Geometry
from bertkit.model.heads import BertWithHeads
from bertkit.model.patterns import CAUSAL, bigbird_blocks
from bertkit.model.positions import rotate, rotate_halves, sinusoidal
from bertkit.model.slots import make_pattern

LENGTHS = (5, 13, 13, 29, 28, 1, 2)  # two run together; the longest has as many as there are positions, and many blocks
OPTIONS = {slot: plugins.names_of(slot) for slot in ("score", "positions", "pattern")}
SMALL = {"window": 4, "block_size": 3, "random_blocks": 1, "compressed_size": 7, "max_distance": 3, "additive_size": 11}
GRADIENT_STEP = 1e-30


def config_of(
    norm: NormConfig = NormConfig(),  # noqa: B008
    pooling: Any = "first",
    layers: int = 2,
    heads: int = 3,
    **attention: Any,
) -> BertConfig:
    return BertConfig(
        hidden_size=12, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=17, hidden_act="silu",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=29, type_vocab_size=2,
        initializer_range=0.2, layer_norm_eps=1e-3, vocab_size=19, attention=AttentionConfig(**{**SMALL, **attention}),
        norm=norm, pooling=pooling,
    )  # fmt: skip


def fill(model: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.2 * values if name.endswith("norm.weight") else 0.4 * values)


def model_of(config: BertConfig) -> Bert:
    model = Bert(config).double().eval()
    fill(model)
    return model


def batch(lengths: Sequence[int] = LENGTHS, vocab_size: int = 19) -> tuple[Tensor, Tensor, Layout]:
    generator = torch.Generator().manual_seed(1)
    ids, types = (torch.randint(high, (sum(lengths),), generator=generator) for high in (vocab_size, 2))
    return ids, types, Layout.from_lengths(torch.tensor(lengths))


def outputs(config: BertConfig, weights: dict[str, Tensor] | None = None, lengths: Sequence[int] = LENGTHS) -> Tensor:
    """The outputs of a model in one tensor, with the weights of another model where the names match."""
    model = model_of(config)
    if weights is not None:
        left = model.load_state_dict({k: v for k, v in weights.items() if k in model.state_dict()}, strict=False)
        assert all(".slots." in name for name in left.missing_keys)
    hidden, pooled = model(*batch(lengths))
    assert pooled is not None
    return torch.cat([hidden[-1], pooled])


def same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


# beside the loops


def test_docstring_examples_hold() -> None:
    counts = {}
    for module in pkgutil.walk_packages(bertkit.model.__path__, "bertkit.model."):
        page = importlib.import_module(module.name)
        counts[module.name.removeprefix("bertkit.model.")] = doctest.testmod(page, extraglobs={"torch": torch})
    assert all(count.failed == 0 for count in counts.values())
    with_examples = {name: count.attempted for name, count in counts.items() if count.attempted}
    of_distances = {"distances.bias": 2, "distances.shaw": 4, "distances.tables": 4}
    assert with_examples == {"patterns": 4, "poolers": 2, "positions": 3, "scores": 5, "slots": 3, **of_distances}


EVERYTHING = config_of(
    NormConfig(placement="pre", kind="rms"), "feed_forward", score="general", positions="rotary", pattern="window"
)
CASES = {
    "bert": config_of(),
    "dot": config_of(score="dot"),
    "general": config_of(score="general"),
    "additive": config_of(score="additive"),
    "location": config_of(score="location"),
    "sinusoidal": config_of(positions="sinusoidal"),
    "relative": config_of(positions="relative"),
    "relative_keys": config_of(positions="relative", relative_to=("keys",)),
    "relative_values": config_of(positions="relative", relative_to=("values",)),
    "rotary": config_of(positions="rotary"),
    "rotary_halves": config_of(positions="rotary", rotary_pairs="halves", rotary_base=700.0),
    "rotary_stretched": config_of(positions="rotary", rotary_factor=2.5),
    "alibi": config_of(positions="alibi"),
    "disentangled": config_of(positions="disentangled"),
    "disentangled_buckets": config_of(positions="disentangled", max_distance=11, distance_buckets=6, distance_norm=True),
    "disentangled_own_maps": config_of(positions="disentangled", max_distance=40, distance_maps="own"),
    "disentangled_keys": config_of(positions="disentangled", distance_terms=("p2c",), pattern="window"),
    "disentangled_queries": config_of(positions="disentangled", distance_terms=("c2p",), pattern="bigbird", distance_maps="own"),
    "relative_bias": config_of(positions="relative_bias"),
    "relative_bias_buckets": config_of(positions="relative_bias", max_distance=11, distance_buckets=6, also_learned=True),
    "general_bias_bigbird": config_of(score="general", positions="relative_bias", max_distance=9, distance_buckets=5, pattern="bigbird"),
    "additive_bias_window": config_of(score="additive", positions="relative_bias", max_distance=2, pattern="window"),
    "rotary_and_learned": config_of(positions="rotary", also_learned=True),
    "projected_first": replace(config_of(positions="disentangled", distance_norm=True), embedding_size=7, projects_first=True),
    "convolution": replace(config_of(), convolution=ConvolutionConfig(kernel_size=3, act="silu")),
    "convolution_in_groups": replace(config_of(positions="disentangled"), convolution=ConvolutionConfig(kernel_size=5, groups=3)),
    "none": config_of(positions="none"),
    "causal": config_of(pattern="causal", pooling="mean"),
    "window": config_of(pattern="window"),
    "alternating": config_of(pattern="alternating", full_every=2),
    "two_bases": config_of(layers=4, pattern="alternating", positions="rotary", rotary_base=700.0, rotary_local_base=30.0),
    "bigbird": config_of(pattern="bigbird"),
    **{f"linformer_{shared}": config_of(pattern="linformer", compression_shared=shared) for shared in ("none", "heads", "key_value", "layers")},
    "pre": config_of(NormConfig(placement="pre")),
    "rms": config_of(NormConfig(kind="rms")),
    "no_norm_before_first": config_of(NormConfig(placement="pre", before_first=False)),
    "glu": replace(config_of(), feed_forward=FeedForwardConfig(kind="glu")),
    "no_biases": replace(config_of(NormConfig(bias=False), bias=False), feed_forward=FeedForwardConfig(bias=False)),
    "no_segments": replace(config_of(pooling="plain_mean"), type_vocab_size=0),
    "modern": replace(
        config_of(
            NormConfig(placement="pre", bias=False, before_first=False), "cls", layers=4, positions="rotary", rotary_pairs="halves",
            rotary_base=700.0, rotary_local_base=30.0, pattern="alternating", bias=False,
        ),
        feed_forward=FeedForwardConfig(kind="glu", bias=False), type_vocab_size=0,
    ),
    "eurobert": replace(
        config_of(
            NormConfig(placement="pre", kind="rms", of_embeddings=False), "late_mean", heads=6, positions="rotary", rotary_pairs="halves",
            bias=False, key_value_heads=2,
        ),
        feed_forward=FeedForwardConfig(kind="two_map_glu", bias=False), type_vocab_size=0,
    ),
    "gte": replace(
        config_of(positions="rotary", rotary_pairs="halves", rotary_base=700.0, rotary_factor=1.07),
        feed_forward=FeedForwardConfig(kind="two_map_glu", bias=False, output_bias=True),
    ),
    "factorised": replace(config_of(), embedding_size=7, pooler_act="relu", task_type_vocab_size=3),
    "shared_layers": replace(config_of(layers=3, positions="sinusoidal"), shared_layers=True),
    "mean": config_of(pooling="mean"),
    "feed_forward": config_of(pooling="feed_forward"),
    "everything": EVERYTHING,
    "general_relative_bigbird": config_of(score="general", positions="relative", pattern="bigbird"),
    "additive_alibi_causal": config_of(pooling="mean", score="additive", positions="alibi", pattern="causal"),
    "location_alibi_window": config_of(score="location", positions="alibi", pattern="window"),
    "location_bigbird": config_of(score="location", pattern="bigbird"),
    "dot_relative_window": config_of(score="dot", positions="relative", pattern="window"),
    "additive_linformer": config_of(score="additive", positions="none", pattern="linformer"),
}  # fmt: skip


def test_there_is_a_case_of_every_option() -> None:
    for slot, options in OPTIONS.items():
        assert {getattr(case.attention, slot) for case in CASES.values()} == set(options)
    assert {len(options) for options in OPTIONS.values()} == {5, 6, 8}
    assert {case.pooling for case in CASES.values()} == set(plugins.names_of("pooler"))
    assert {case.feed_forward.kind for case in CASES.values()} == set(plugins.names_of("feed_forward"))
    assert len({(case.norm.placement, case.norm.kind) for case in CASES.values()}) == 4


def beside_the_loops(config: BertConfig, only: str | None = None) -> None:
    """Compare outputs, and their derivative in a random direction of all weights, or of one of them; also of padded groups."""
    model, rng = model_of(config), np.random.default_rng(2)
    parameters = dict(model.named_parameters())
    ids, types, layout = batch()
    of_hidden, of_pooled = (rng.normal(size=(length, config.hidden_size)) for length in (len(ids), len(LENGTHS)))
    direction = {name: rng.normal(size=weight.shape) for name, weight in parameters.items()}
    if only is not None:
        direction = {name: one * (name == only) for name, one in direction.items()}
    w = {
        name: weight.detach().numpy() + 1j * GRADIENT_STEP * direction[name] for name, weight in parameters.items()
    }  # what layers share is there once
    parts = zip(ids.split(LENGTHS), types.split(LENGTHS), strict=True)
    result = [loops.encode(w, config, own_ids.tolist(), own_types.tolist()) for own_ids, own_types in parts]
    their_hidden, their_pooled = np.concatenate([each for each, _ in result]), np.stack([each for _, each in result])
    theirs = ((their_hidden * of_hidden).sum() + (their_pooled * of_pooled).sum()).imag / GRADIENT_STEP

    for is_padded in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if is_padded:
                patch.setattr(bert, "Geometry", functools.partial(Geometry, is_padded=True))
            hidden, pooled = model(ids, types, layout)
        assert pooled is not None
        np.testing.assert_allclose(hidden[-1].detach().numpy(), their_hidden.real, rtol=0, atol=1e-10)
        np.testing.assert_allclose(pooled.detach().numpy(), their_pooled.real, rtol=0, atol=1e-10)
        loss = (hidden[-1] * torch.tensor(of_hidden)).sum() + (pooled * torch.tensor(of_pooled)).sum()
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        products = [own.numpy() * one for own, one in zip(gradients, direction.values(), strict=True)]
        size = sum(float(np.abs(each).sum()) for each in products)
        assert size > 0 or only is not None
        assert sum(float(each.sum()) for each in products) == pytest.approx(theirs, rel=0, abs=1e-10 * max(1.0, size))


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_loops(name: str) -> None:
    beside_the_loops(CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_each_parameter_is_that_of_loops(name: str) -> None:
    for parameter, _ in Bert(CASES[name]).named_parameters():
        beside_the_loops(CASES[name], parameter)


# identities


def test_products_of_positions_depend_on_their_distance_alone() -> None:
    places = torch.arange(83)
    like = torch.zeros((), dtype=torch.float64)
    waves = sinusoidal(places, 26, like)
    query, key = torch.randn(2, 26, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = [rotate(vector.expand(83, 1, 26), places)[:, 0] for vector in (query, key)]
    for products, at_once in ((waves @ waves.T, 13), (turned[0] @ turned[1].T, float(query @ key))):
        for distance in range(-82, 83):
            diagonal = products.diagonal(distance)
            same(diagonal, diagonal[:1].expand_as(diagonal), 1e-11)
        assert float(products[0, 0]) == pytest.approx(at_once, abs=1e-12)
        assert products[0].std() > 0.1
    same(turned[0].norm(dim=1), query.norm().expand(83))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("turn", [rotate, rotate_halves])
def test_rotations_late_in_a_text_are_as_precise_as_the_dtype(turn: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """In autocast, queries and keys are in half precision; bfloat16 has no number between 256 and 258."""
    places = torch.tensor([1, 257, 8191])
    vectors = torch.randn(3, 2, 26, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = turn(vectors, places, 160_000.0)
    assert (turn(vectors.to(dtype), places, 160_000.0) - exact).abs().max() < 32 * torch.finfo(dtype).eps
    waves = sinusoidal(places, 26, vectors.to(dtype)) - sinusoidal(places, 26, vectors)
    assert waves.abs().max() < 4 * torch.finfo(dtype).eps


# patterns


def seen_by_rule(config: AttentionConfig, length: int, layer: int) -> Tensor:
    rows = loops.sees(config_of(**vars(config)), layer, length)
    return torch.tensor([[j in seen for j in range(length)] for seen in map(set, rows)])


def computed(config: AttentionConfig, length: int, layer: int) -> Tensor:
    """Say how often each pair of tokens is computed by the blocks of a plan: (T, T)."""
    counts = torch.zeros(length + 64, length + 64, dtype=torch.int64)
    for block in make_pattern(config).of_layer(layer).blocks(length):
        pairs = torch.broadcast_tensors(block.queries[..., None], block.keys[:, None])
        counts.index_put_(pairs, block.allowed.long(), accumulate=True)
    return counts[:length, :length]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_what_is_computed_is_what_is_allowed(size: int) -> None:
    plans = 0
    for length in (1, 2, 3, 4, 5, 6, 11, 16, 20, 21, 31, 48, 49, 53):
        settings = [{"pattern": "window", "window": size}, {"pattern": "alternating", "window": size}]
        settings += [
            {"pattern": "bigbird", "block_size": size, "random_blocks": random, "random_seed": random}
            for random in (0, 1, 3)
        ]
        for each in settings:
            config = AttentionConfig(**each)  # type: ignore[arg-type]
            for layer in (0,) if each["pattern"] == "window" or each.get("random_blocks") == 0 else (0, 2):
                expected = make_pattern(config).of_layer(layer).allowed(length)
                assert torch.equal(computed(config, length, layer), expected.long()), (each, length, layer)
                if length < 32:
                    assert torch.equal(expected, seen_by_rule(config, length, layer))
                plans += 1
    assert plans == 14 * 8
    assert torch.equal(CAUSAL.allowed(31), torch.ones(31, 31).tril().bool())


@pytest.mark.parametrize("name", OPTIONS["pattern"])
def test_a_range_of_keys_is_what_is_allowed(name: Any) -> None:
    patterns = [make_pattern(AttentionConfig(pattern=name, **SMALL)).of_layer(layer) for layer in (0, 1)]
    places = torch.arange(13)
    distances = places - places[:, None]
    for pattern in patterns:
        if pattern.key_range is None:
            assert name == "bigbird"
            continue
        before, after = (13 if number == -1 else number for number in pattern.key_range)
        assert torch.equal(pattern.allowed(13), (distances >= -before) & (distances <= after))


@pytest.mark.parametrize("pattern", ["window", "bigbird"])
def test_what_is_computed_grows_with_the_length(pattern: Any) -> None:
    config = AttentionConfig(pattern=pattern, window=16, block_size=16, random_blocks=2)
    pairs = [
        sum(blocks.allowed.numel() for blocks in make_pattern(config).blocks(16 * blocks)) / blocks
        for blocks in (64, 128)
    ]
    assert pairs[1] == pytest.approx(pairs[0], rel=0.02)


def test_random_blocks_are_drawn_from_seed_layer_and_number_alone() -> None:
    state = torch.get_rng_state()
    fixed = {n: bigbird_blocks(n, 0) for n in range(1, 24)}
    seen = set()
    for blocks, random, seed, layer in itertools.product(
        (1, 2, 4, 5, 6, 7, 11, 23), (0, 1, 3, 5), (0, 1, 2**64), (0, 3)
    ):
        drawn = bigbird_blocks(blocks, random, seed, layer)
        torch.manual_seed(seed % 7)
        assert torch.equal(drawn, bigbird_blocks(blocks, random, seed, layer))
        near = torch.ones(blocks, blocks).tril(1).triu(-1).bool()
        near[[0, -1]], near[:, [0, -1]] = True, True
        assert torch.equal(fixed[blocks], near)
        assert bool((drawn | ~near).all())
        assert torch.equal(drawn.sum(1), (near.sum(1) + random).clamp(max=blocks))
        if blocks == 23 and random:
            seen.add((random, drawn.numpy().tobytes()))
    torch.set_rng_state(state)
    assert len(seen) == 3 * 3 * 2
    bigbird_blocks(23, 3)
    assert torch.equal(torch.get_rng_state(), state)


# what goes with what

SHORT = (5, 23, 23, 2)


def is_refused(score: str, positions: str, pattern: str) -> bool:
    if positions in ("relative", "rotary") and score in ("additive", "location"):
        return True
    if positions == "disentangled" and score != "scaled_dot":
        return True
    return pattern == "linformer" and (
        score == "location" or positions in ("relative", "disentangled", "relative_bias", "rotary", "alibi")
    )


def test_the_table_of_what_goes_with_what() -> None:
    """Every combination of score, positions and pattern: 68 are refused, all others train, beside any neighbours."""
    num_refused = num_run = 0
    ids, types, layout = batch(SHORT)
    for score, positions, pattern in itertools.product(*OPTIONS.values()):
        named = {"score": score, "positions": positions, "pattern": pattern}
        if is_refused(score, positions, pattern):
            num_refused += 1
            with pytest.raises(InputError) as error:
                AttentionConfig(**named)
            for line in str(error.value).split("\n"):
                assert line.count("attention.") == 2
                assert sum(f"attention.{slot}={option}" in line for slot, option in named.items()) == 2
                assert line.endswith("; change one of them")
            continue
        num_run += 1
        config = config_of(layers=1, pooling="mean" if pattern == "causal" else "first", **named)
        model = BertWithHeads(config).double().eval()
        fill(model)
        output = model(ids, types, layout)
        sum(logits.square().sum() for logits in output.logits.values()).backward()  # type: ignore[union-attr]
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, (named, name)
            assert parameter.grad.isfinite().all(), (named, name)
            assert parameter.grad.any() or name.endswith("key.bias"), (named, name)
        with torch.no_grad():
            for number, (own_ids, own_types) in enumerate(zip(ids.split(SHORT), types.split(SHORT), strict=True)):
                if SHORT[number] != SHORT[number - 1]:
                    alone = model(own_ids, own_types, Layout.from_lengths(torch.tensor([SHORT[number]])))
                    same(alone.last_hidden_state, output.last_hidden_state.split(SHORT)[number])
                    same(alone.pooled_output[0], output.pooled_output[number])
            check_kept_weights(model, output.last_hidden_state)
    assert (num_refused, num_run) == (68, 172)


def check_kept_weights(model: BertWithHeads, hidden: Tensor) -> None:
    ids, types, layout = batch(SHORT)
    if model.config.attention.pattern == "linformer":
        with pytest.raises(ValueError, match="linformer"):
            model(ids, types, layout, output_attentions=True)
        return
    kept = model(ids, types, layout, output_attentions=True)
    same(kept.last_hidden_state, hidden)
    assert len(kept.attentions) == model.config.num_hidden_layers
    for layer, weights in enumerate(kept.attentions):
        assert weights.shape == (4, 3, 23, 23)
        for each, length in zip(weights, SHORT, strict=True):
            same(each.sum(-1)[:, :length], torch.ones(3, length, dtype=torch.float64))
            is_seen = torch.zeros(23, 23, dtype=torch.bool)
            is_seen[:length, :length] = seen_by_rule(model.config.attention, length, layer)
            assert torch.equal(each > 0, is_seen.expand(3, 23, 23))


def test_kept_weights_are_those_of_their_layer() -> None:
    model = BertWithHeads(config_of(pattern="bigbird", block_size=2)).double().eval()
    fill(model)
    ids, types, layout = batch(SHORT)
    check_kept_weights(model, model(ids, types, layout).last_hidden_state)
    assert not torch.equal(*(seen_by_rule(model.config.attention, 23, layer) for layer in (0, 1)))


@pytest.mark.parametrize("name", ["bert", "causal", "window", "bigbird", "linformer_none", "everything"])
def test_another_sequence_changes_nothing(name: str) -> None:
    """Not one bit while the runs of equal lengths stay the same; earlier and later sequences change nothing either."""
    config = CASES[name]
    model, (ids, types, layout) = model_of(config), batch()
    other = ids.clone()
    other[5:18] = (ids[5:18] + 1) % 19  # the first of the two with 13 tokens
    first, second = (model(each, types, layout)[0][-1].split(LENGTHS) for each in (ids, other))
    assert [torch.equal(*pair) for pair in zip(first, second, strict=True)] == [
        place != 1 for place in range(len(LENGTHS))
    ]


@pytest.mark.parametrize(("more", "message"), [
    (["attention.positions=sinusoidal", "model.hidden_size=27", "model.num_attention_heads=3"],
     "model.hidden_size=27: attention.positions=sinusoidal needs an even number"),
    (["attention.positions=rotary", "model.hidden_size=26", "model.num_attention_heads=2"],
     "model.hidden_size / model.num_attention_heads=13: attention.positions=rotary needs an even number"),
    (["attention.pattern=causal", "objective=masked_lm"], "pooling=first with attention.pattern=causal: [CLS]"),
    (["attention.score=location", "attention.positions=rotary"],
     "attention.positions=rotary with attention.score=location: "),
    (["attention.relative_to=[]", "attention.positions=relative"], "attention.relative_to=[]: expected keys, values or both"),
    *(
        ([f"attention.{name}={value}"], f"attention.{name}: has no effect without attention.{needs}; leave it out")
        for name, value, needs in (
            ("additive_size", 7, "score=additive"), ("max_distance", 7, "positions=relative or disentangled or relative_bias"), ("distance_buckets", 7, "positions=disentangled or relative_bias"),
            ("also_learned", "true", "positions=relative or disentangled or relative_bias or rotary or alibi"),
            ("distance_terms", "[c2p]", "positions=disentangled"), ("distance_maps", "own", "positions=disentangled"), ("distance_norm", "true", "positions=disentangled"),
            ("relative_to", "[keys]", "positions=relative"), ("window", 7, "pattern=window or alternating"),
            ("full_every", 2, "pattern=alternating"), ("rotary_base", 7, "positions=rotary"), ("rotary_factor", 2, "positions=rotary"),
            ("rotary_pairs", "halves", "positions=rotary"), ("rotary_local_base", 7, "pattern=alternating"),
            ("block_size", 7, "pattern=bigbird"), ("random_blocks", 7, "pattern=bigbird"),
            ("random_seed", 7, "pattern=bigbird"), ("compressed_size", 7, "pattern=linformer"),
            ("compression_shared", "none", "pattern=linformer"),
        )
    ),
    (["segments=full_sentences", "segments.short_seq_prob=0.5"], "segments.short_seq_prob=0.5: has no effect on blocks of full sentences; leave it out"),
    (["model.shared_layers=true", "norm=modern"],
     "model.shared_layers=true: the first layer cannot differ from the others; set norm.before_first=true"),
    (["model.shared_layers=true", "attention=modern"],
     "model.shared_layers=true: the first layer cannot differ from the others; set attention.rotary_local_base=null"),
    (["attention.rotary_local_base=7", "attention.pattern=alternating"],
     "attention.rotary_local_base: has no effect without attention.positions=rotary; leave it out"),
    (["attention.key_bias=false", "attention.score=location"],
     "attention.key_bias=false: has no effect with attention.score=location, which uses no keys; leave it out"),
    (["attention.distance_terms=[p2c,p2c]", "attention.positions=disentangled"], "attention.distance_terms=[p2c,p2c]: expected c2p, p2c or both"),
    (["attention.distance_buckets=32", "attention.positions=disentangled"], "attention.distance_buckets=32 with attention.max_distance=16: "),
    (["attention.distance_buckets=32", "attention.positions=relative_bias"], "attention.distance_buckets=32 with attention.max_distance=16: "),
    (["attention.max_distance=0", "attention.positions=relative_bias"], "attention.distance_buckets=0 with attention.max_distance=0: "),
    (["attention.positions=relative_bias", "attention.pattern=linformer"], "attention.positions=relative_bias with attention.pattern=linformer: "),
    (["attention.pattern=windo"], "attention.pattern"),
    (["attention.score=scaled"], "attention.score"),
    (["attention.widow=7"], "unknown key 'attention.widow'; did you mean 'window'?"),
    (["norm.kind=rmsnorm"], "norm.kind"),
    (["norm=before"], "norm"),
    (["norm.before_first=false"], "norm.before_first=false: has no effect without norm=pre"),
    (["norm.bias=false", "norm.kind=rms"], "norm.bias=false: has no effect with norm.kind=rms"),
    (["pooling=clss"], "pooling"),
    (["feed_forward=glue"], "feed_forward"),
])  # fmt: skip
def test_what_has_no_meaning_is_refused_in_one_line(more: list[str], message: str, capsys: Capsys) -> None:
    refused(run(["pretrain", "data_dir=x", "output_dir=y", *more]), message, capsys, alone=True)


def test_a_causal_model_has_no_head_on_its_first_token() -> None:
    config = config_of(pattern="causal")
    BertWithHeads(config, ("masked_lm",), with_pooler=False)
    BertWithHeads(config, ("token",), with_pooler=False)
    for head in ("next_sentence", "sequence", "choice"):
        with pytest.raises(InputError, match=rf"{head} .*pooling=mean"):
            BertWithHeads(config, (head,))
