"""The variants beside the real classes of `transformers` that compute them, with random weights, in float64."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import installed_apart, output_of, small_config
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face.names import to_hugging_face
from bertkit.interop.load import load_directory
from bertkit.kernels.layout import Layout
from bertkit.model import patterns
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights

TOLERANCE = 1e-10
VOCAB, LENGTH = 131, 44


def model_of(heads: tuple[str, ...] = ("masked_lm",), **changes: Any) -> BertWithHeads:
    attention = AttentionConfig(**changes.pop("attention"))
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "max_position_embeddings": LENGTH, **changes}
    model = BertWithHeads(small_config(VOCAB, attention=attention, **sizes), heads, with_pooler=False).double()
    init_weights(model, 0.2, torch.Generator().manual_seed(0))
    return model.eval()


def their_sizes(config: BertConfig) -> dict[str, Any]:
    names = (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
        "max_position_embeddings", "type_vocab_size", "layer_norm_eps",
    )  # fmt: skip
    return {name: getattr(config, name) for name in names} | {
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attn_implementation": "eager",
    }  # fmt: skip


def their_names(model: BertWithHeads, prefix: str) -> dict[str, Tensor]:
    names = {name: to_hugging_face(name) for name, _ in model.named_parameters()}
    return {theirs.replace("bert.", prefix, 1): model.get_parameter(ours) for ours, theirs in names.items()}


def ids_of(length: int, count: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = count, length
    return torch.randint(VOCAB, shape, generator=generator), torch.randint(2, shape, generator=generator)


def compare(ours: BertWithHeads, theirs: Any, prefix: str, length: int = LENGTH) -> None:
    """Logits, and the gradient of every parameter, of sequences without padding; both ways of copying weights."""
    ids, types = ids_of(length)
    shared = their_names(ours, prefix)
    missing = theirs.load_state_dict({name: value.detach() for name, value in shared.items()}, strict=False)
    assert not missing.unexpected_keys
    assert all(any(part in name for part in ("decoder", "position", "pooler")) for name in missing.missing_keys)
    for direction in ("ours to theirs", "theirs to ours"):
        if direction == "theirs to ours":
            with torch.no_grad():
                for name, parameter in theirs.named_parameters():
                    if name in shared:
                        shared[name].copy_(parameter.mul_(1.5))
        theirs.zero_grad()
        ours.zero_grad()
        expected = theirs(input_ids=ids, token_type_ids=types).logits
        result = ours(ids.flatten(), types.flatten(), Layout.from_lengths(torch.full((len(ids),), length)))
        logits = result.logits["masked_lm"].view_as(expected)
        largest = float(expected.detach().abs().max())
        assert float((logits - expected).detach().abs().max()) <= TOLERANCE * largest, direction
        weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        (logits * weights).mean().backward()
        (expected * weights).mean().backward()
        largest = max(float(p.grad.abs().max()) for p in theirs.parameters() if p.grad is not None)
        gradients = {name: p.grad for name, p in theirs.named_parameters()}
        for name, parameter in shared.items():
            assert float((parameter.grad - gradients[name]).abs().max()) <= TOLERANCE * largest, (direction, name)
    assert len(shared) > 30


def test_rotary_is_that_of_roformer() -> None:
    ours = model_of(attention={"positions": "rotary"})
    sizes = {**their_sizes(ours.config), "rotary_value": False, "embedding_size": ours.config.hidden_size}
    theirs = transformers.RoFormerForMaskedLM(transformers.RoFormerConfig(**sizes)).double().eval()
    table = theirs.roformer.encoder.embed_positions.weight  # of sines, then cosines; made in float32
    exponents = np.arange(0, table.shape[1], 2) / table.shape[1]
    angles = torch.from_numpy(np.arange(LENGTH)[:, None] / 10_000**exponents)
    exact = torch.cat([angles.sin(), angles.cos()], 1)
    assert float((table - exact).detach().abs().max()) < 1e-6
    table.data.copy_(exact)
    compare(ours, theirs, "roformer.")


def test_causal_is_the_decoder_of_bert(tmp_path: Path) -> None:
    ours = model_of(attention={"pattern": "causal"})
    theirs = transformers.BertLMHeadModel(transformers.BertConfig(**their_sizes(ours.config), is_decoder=True))
    compare(ours, theirs.double().eval(), "bert.")


def big_bird(ours: BertWithHeads, kind: str) -> Any:
    attention = ours.config.attention
    sizes = {**their_sizes(ours.config), "hidden_act": "gelu", "block_size": attention.block_size}
    config = transformers.BigBirdConfig(**sizes, attention_type=kind, num_random_blocks=attention.random_blocks)
    return transformers.BigBirdForMaskedLM(config).double()


def test_short_sequences_of_bigbird_are_seen_in_full() -> None:
    ours = model_of(attention={"pattern": "bigbird", "block_size": 4, "random_blocks": 3})
    compare(ours, big_bird(ours, "block_sparse").eval(), "bert.", length=44)  # 11 blocks: 5 + 2 * 3


@pytest.mark.parametrize("length", [64, 68])
def test_blocks_of_bigbird_are_theirs(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their draw of random blocks, which they make in training mode alone; with one head, for theirs draw for each head."""
    changes = {"num_attention_heads": 1, "max_position_embeddings": 72}
    ours = model_of(attention={"pattern": "bigbird", "block_size": 4, "random_blocks": 1}, **changes)
    theirs = big_bird(ours, "block_sparse").train()
    num_blocks = length // 4
    tables = {}
    for number, layer in enumerate(theirs.bert.encoder.layer):
        attention = layer.attention.self
        np.random.seed(number)
        lengths, counts = attention._get_rand_attn_plan(length, 4, 1)
        (rows,) = attention._bigbird_block_rand_mask_with_head(
            from_seq_length=length, to_seq_length=length, from_block_size=4, to_block_size=4, num_heads=1,
            plan_from_length=lengths, plan_num_rand_blocks=counts,
        )  # fmt: skip
        tables[number] = patterns.bigbird_blocks(num_blocks, 0)
        for row, chosen in enumerate(rows, start=1):
            assert not tables[number][row, chosen].any()  # none that is seen anyway
            tables[number][row, chosen] = True
    assert any(not torch.equal(tables[0], other) for other in tables.values())
    monkeypatch.setattr(patterns, "bigbird_blocks", lambda *value: tables[value[3]])
    compare(ours, theirs, "bert.", length)


_THEIRS = """
import sys, torch, transformers
from safetensors.torch import load_file, save_file
assert transformers.__version__.startswith("4.57"), transformers.__version__
folder = sys.argv[1]
config = transformers.BertConfig.from_pretrained(folder)
config._attn_implementation = "eager"
model = transformers.BertForMaskedLM(config).double().eval()
given = load_file(folder + "/given.safetensors")
ids, types = given["ids"], given["types"]
if sys.argv[2] == "write":
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.float().save_pretrained(folder)
    model.double()
else:
    weights = load_file(folder + "/model.safetensors")
    model.load_state_dict({name: value.double() for name, value in weights.items()}, strict=False)
model.tie_weights()
logits = model(ids, token_type_ids=types).logits
(logits * given["weights"]).mean().backward()
found = {"gradient." + name: p.grad for name, p in model.named_parameters() if p.grad is not None}
save_file({"logits": logits.detach(), **found}, folder + "/found.safetensors")
"""


def relative_key(tmp_path: Path, folder: str, what: str) -> dict[str, Tensor]:
    ids, types = ids_of(LENGTH)
    weights = torch.randn((*ids.shape, VOCAB), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    save_file({"ids": ids, "types": types, "weights": weights}, tmp_path / "given.safetensors")
    output_of([sys.executable, "-c", _THEIRS, tmp_path, what], env={**os.environ, "PYTHONPATH": folder})
    return load_file(tmp_path / "found.safetensors")


@pytest.mark.slow
def test_relative_positions_are_relative_key_of_transformers_4(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Shaw's vectors of keys, which transformers 5 no longer has: in an environment of its own, both ways."""
    clients = Path(os.environ.get("BERTKIT_CLIENTS_DIR") or tmp_path_factory.mktemp("clients"))
    packages = ["transformers==4.57.3", "tokenizers<0.23", "huggingface-hub<1"]
    folder = installed_apart(clients / "transformers-4.57.3", packages)
    attention = {"positions": "relative", "max_distance": LENGTH - 1, "relative_to": ("keys",)}
    ours = model_of(attention=attention)
    sizes = {**their_sizes(ours.config), "position_embedding_type": "relative_key"}
    transformers.BertConfig(**sizes, architectures=["BertForMaskedLM"]).save_pretrained(tmp_path)
    expected = relative_key(tmp_path, folder, "write")
    loaded, report = load_directory(tmp_path, ("masked_lm",))
    assert loaded.config.attention == ours.config.attention
    assert not report.new
    check(loaded.double().eval(), expected)

    names = {name: to_hugging_face(name) for name, _ in ours.named_parameters()}
    tensors = {theirs: ours.get_parameter(name).detach() for name, theirs in names.items()}
    for layer in range(ours.config.num_hidden_layers):
        table = tensors.pop(f"bert.encoder.layers.{layer}.attention.slots.relative.key.weight")
        tensors[f"bert.encoder.layer.{layer}.attention.self.distance_embedding.weight"] = table.flip(0).contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    check(ours, relative_key(tmp_path, folder, "read"))


def check(ours: BertWithHeads, expected: dict[str, Tensor]) -> None:
    ids, types = ids_of(LENGTH)
    ours.zero_grad()
    result = ours(ids.flatten(), types.flatten(), Layout.from_lengths(torch.full((len(ids),), LENGTH)))
    logits = result.logits["masked_lm"].view_as(expected["logits"])
    assert float((logits - expected["logits"]).abs().max()) <= TOLERANCE * float(expected["logits"].abs().max())
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (logits * weights).mean().backward()
    largest = max(float(value.abs().max()) for name, value in expected.items() if name.startswith("gradient."))
    parameters = dict(ours.named_parameters())
    assert len(parameters) > 30
    for name, parameter in parameters.items():
        theirs, is_turned = to_hugging_face(name), ".relative.key." in name
        if is_turned:
            theirs = f"bert.encoder.layer.{name.split('.')[3]}.attention.self.distance_embedding.weight"
        gradient = parameter.grad.flip(0) if is_turned else parameter.grad
        assert float((gradient - expected[f"gradient.{theirs}"]).abs().max()) <= TOLERANCE * largest, name


REFUSED = [
    ({"positions": "rotary"}, "attention.positions=rotary"),
    ({"pattern": "bigbird"}, "attention.pattern=bigbird"),
    ({"pattern": "window", "window": 5}, "attention.pattern=window, attention.window=5"),
]


@pytest.mark.parametrize(("attention", "named"), REFUSED)
def test_what_no_class_computes_is_refused_by_name(
    tmp_path: Path, attention: dict[str, Any], named: str, tokenizer: Tokenizer
) -> None:
    from bertkit import export_model

    with pytest.raises(InputError, match=f"transformers 5 .* {named};"):
        export_model(model_of(attention=attention), tokenizer, tmp_path / "out")
