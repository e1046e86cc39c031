"""The door for padded tensors, beside the Hugging Face implementation."""

from typing import Any

import pytest
import torch
from conftest import HEADS, LAYERS, POSITIONS, small_model

from bertkit import export_model
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.padded import PaddedBert
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import ConvolutionConfig
from bertkit.model.heads import BertOutput

B, T = 5, 13
RIGHT = (torch.arange(T) < torch.tensor([13, 7, 2, 11, 7])[:, None]).long()
HOLES = (torch.rand(B, T, generator=torch.Generator().manual_seed(5)) < 0.6).long()
HOLES[:, 3] = 1
MASKS = {"right padding": RIGHT, "left padding": RIGHT.flip(1), "holes": HOLES, "no mask": None}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> tuple[PaddedBert, Any]:
    """The same random weights in both libraries, in float64."""
    from transformers import BertForPreTraining

    model = small_model(tokenizer.vocab_size)
    with torch.no_grad():  # biases of zero would hide that they are used
        for index, parameter in enumerate(model.parameters()):
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
    directory = export_model(model, tokenizer, tmp_path_factory.mktemp("model") / "exported")
    reference = BertForPreTraining.from_pretrained(directory, dtype=torch.float64).eval()
    return PaddedBert(model.double()).eval(), reference


def compare(out: BertOutput, reference: Any, poolers: torch.Tensor, is_token: torch.Tensor) -> dict[str, float]:
    logits = reference["prediction_logits"], out.logits["masked_lm"]
    pairs = {"masked_lm": logits, "last_hidden_state": (reference["hidden_states"][-1], out.last_hidden_state)}
    assert len(out.hidden_states) == len(reference["hidden_states"]) == LAYERS + 1
    pairs |= {
        f"hidden_states.{n}": pair
        for n, pair in enumerate(zip(reference["hidden_states"], out.hidden_states, strict=True))
    }
    differences = {name: float((a - b)[is_token].abs().max()) for name, (a, b) in pairs.items()}
    differences["pooled_output"] = float((poolers - out.pooled_output).abs().max())
    return differences


@torch.no_grad()
@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("name", MASKS)
def test_padded_outputs_equal_transformers(models: tuple[PaddedBert, Any], name: str, segments: bool) -> None:
    ours, theirs = models
    generator = torch.Generator().manual_seed(0)
    ids, types = (torch.randint(high, (B, T), generator=generator) for high in (ours.config.vocab_size, 2))
    mask = MASKS[name]
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types if segments else None}
    out = ours(**inputs, output_hidden_states=True)
    reference = theirs(**inputs, output_hidden_states=True)
    is_token = torch.ones(B, T).bool() if mask is None else mask.bool()
    # transformers pools the first column, padding or not; bertkit pools the first token
    last, first = reference.hidden_states[-1], is_token.int().argmax(1)
    poolers = theirs.bert.pooler(last[torch.arange(B), first][:, None])
    differences = compare(out, reference, poolers, is_token)
    assert len(differences) == LAYERS + 4
    assert max(differences.values()) <= 1e-10, differences
    rows = first == 0
    assert rows.any()
    nsp = (out.logits["next_sentence"] - reference.seq_relationship_logits)[rows].abs().max()
    assert float(nsp) <= 1e-10
    assert out.attentions is None
    assert not out.last_hidden_state[~is_token].any()
    assert not out.logits["masked_lm"][~is_token].any()


@torch.no_grad()
@pytest.mark.parametrize("name", MASKS)
def test_attentions_equal_to_transformers(models: tuple[PaddedBert, Any], name: str) -> None:
    """On the queries that are tokens; those of padding are zeros here, and of no use there."""
    ours, theirs = models
    theirs.set_attn_implementation("eager")
    ids, mask = torch.randint(1, 50, (B, T), generator=torch.Generator().manual_seed(1)), MASKS[name]
    out, plain = ours(ids, mask, output_attentions=True), ours(ids, mask)
    reference = theirs(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    theirs.set_attn_implementation("sdpa")
    is_token = torch.ones(B, T).bool() if mask is None else mask.bool()
    assert len(out.attentions) == len(reference) == LAYERS
    for weights, expected in zip(out.attentions, reference, strict=True):
        assert weights.shape == (B, HEADS, T, T)
        rows = weights.transpose(1, 2)[is_token]
        assert float((rows - expected.transpose(1, 2)[is_token]).abs().max()) <= 1e-10
        assert float((rows.sum(-1) - 1).abs().max()) <= 1e-10
        assert not weights.transpose(1, 2)[~is_token].any()
        assert not weights.movedim(3, 1)[~is_token].any()
    assert float((out.last_hidden_state - plain.last_hidden_state).abs().max()) <= 1e-12
    assert out.hidden_states is None


def test_attentions_carry_gradients_and_want_no_dropout() -> None:
    model = PaddedBert(small_model()).eval()
    ids = torch.randint(1, 100, (2, 5))
    model(ids, output_attentions=True).attentions[-1][0, 1, 2, 3].backward()
    assert model.model.bert.embeddings.token.weight.grad.abs().max() > 0
    with pytest.raises(ValueError, match=r"output_attentions=True: .*model\.eval\(\)"):
        model.train()(ids, output_attentions=True)


@torch.no_grad()
def test_what_stands_under_the_padding_is_never_read(models: tuple[PaddedBert, Any]) -> None:
    ids = torch.randint(1, 50, (B, T))
    out = models[0](ids, RIGHT)
    again = models[0](torch.where(RIGHT.bool(), ids, -7), RIGHT)
    assert torch.equal(out.last_hidden_state, again.last_hidden_state)


def test_too_long_is_refused(models: tuple[PaddedBert, Any]) -> None:
    ids = torch.ones(1, POSITIONS + 1).long()
    with pytest.raises(ValueError, match=f"{POSITIONS + 1} tokens exceed max_position_embeddings={POSITIONS}"):
        models[0](ids)
    models[0](ids[:, :-1])


@pytest.mark.parametrize("unknown", [-1, small_model().config.vocab_size])
def test_unknown_tokens_are_refused(unknown: int) -> None:
    with pytest.raises(
        ValueError, match=f"input_ids: {unknown}: expected 0 to {small_model().config.vocab_size - 1}; "
    ):
        PaddedBert(small_model()).eval()(torch.tensor([[3, unknown]]))


def test_masks_and_segments_of_another_shape_are_refused() -> None:
    model = PaddedBert(small_model()).eval()
    ids = torch.ones(2, 5, dtype=torch.long)
    with pytest.raises(ValueError, match="a sequence has no token"):
        model(ids, torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]))
    with pytest.raises(ValueError, match=r"attention_mask: shape \(2, 4\), expected \(2, 5\)"):
        model(ids, attention_mask=torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"token_type_ids: shape \(2, 9\), expected \(2, 5\)"):
        model(ids, token_type_ids=torch.ones(2, 9, dtype=torch.long))


DISTANCES: list[dict[str, Any]] = [
    *(
        {"attention": AttentionConfig(positions=name)}
        for name in ("relative", "alibi", "disentangled", "relative_bias")
    ),
    *({"attention": AttentionConfig(pattern=name, window=2)} for name in ("window", "alternating")),
    {"convolution": ConvolutionConfig(kernel_size=3)},
]
PLACES: list[dict[str, Any]] = [
    *({"attention": AttentionConfig(positions=name)} for name in ("learned", "sinusoidal", "rotary", "none")),
    {"attention": AttentionConfig(pattern="causal")},
]


@torch.no_grad()
@pytest.mark.parametrize("settings", DISTANCES + PLACES)
def test_a_gap_in_the_mask_is_refused_where_distances_count(settings: dict[str, Any]) -> None:
    """Elsewhere the positions are the columns of the batch, as in `transformers`."""
    model = PaddedBert(small_model(101, heads=["masked_lm"], with_pooler=False, hidden_size=24, **settings)).eval()
    ids = torch.randint(101, (B, T), generator=torch.Generator().manual_seed(0))
    for name in ("right padding", "left padding"):
        model(ids, MASKS[name])
    if settings in PLACES:
        model(ids, HOLES)
        return
    with pytest.raises(ValueError, match="attention_mask: 0 between the tokens of a text"):
        model(ids, HOLES)
