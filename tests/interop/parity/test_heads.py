"""Every head, both ways, over random configurations: bertkit and `transformers` agree, and no byte changes on the way."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import small_model
from safetensors.torch import load_file, save_file

from bertkit import export_model, load_model
from bertkit.base import plugins
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.interop.hugging_face.bert import BertArchitecture
from bertkit.interop.hugging_face.config_json import config_json
from bertkit.interop.load import load_directory
from bertkit.interop.parity import comparison as parity
from bertkit.kernels.linear import ACTIVATIONS
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.head.head import any_pooled

# pairs of BERTs are in tests/interop/test_pairs.py
KINDS = {
    "_".join(heads) or "encoder": (heads, name)
    for heads, name in BertArchitecture.classes.items()
    if heads != ("generation",)
}


def kind_options(kind: str) -> dict[str, Any]:
    heads, _ = KINDS[kind]
    more = {"attention": AttentionConfig(pattern="causal")} if kind == "next_token" else {}
    return {"heads": heads, "with_pooler": heads not in BertArchitecture.without_pooler, **more}


def random_shape(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    head_size, heads = rng.choice([3, 5, 8, 16]), rng.choice([1, 2, 3, 4])
    return {
        "vocab_size": rng.randint(11, 301),
        "hidden_size": head_size * heads,
        "num_attention_heads": heads,
        "num_hidden_layers": rng.randint(1, 4),
        "intermediate_size": rng.randint(1, 90),
        "hidden_act": rng.choice(["gelu", "gelu_new", "relu", "swish"]),
        "max_position_embeddings": rng.choice([16, 17, 64, 128, 512, 2048] if number % 6 else [2048]),
        "type_vocab_size": rng.randint(1, 16),
        "layer_norm_eps": rng.choice([1e-12, 1e-5]),
    }


def test_the_shapes_are_thirty_and_cover_the_ranges() -> None:
    shapes = [random_shape(number) for number in range(30)]
    assert {shape["hidden_act"] for shape in shapes} == {"gelu", "gelu_new", "relu", "swish"}
    assert {1, 16} <= {shape["type_vocab_size"] for shape in shapes}
    assert {16, 2048} <= {shape["max_position_embeddings"] for shape in shapes}


def some_or_all() -> list[Any]:
    """Every class with each of thirty shapes; by default one shape a class."""
    return [
        pytest.param(kind, number, marks=() if number == place else pytest.mark.slow)
        for place, kind in enumerate(KINDS, 1)  # the 6th has 2048 positions
        for number in range(30)
    ]


@pytest.mark.parametrize(("kind", "number"), some_or_all())
def test_hugging_face_to_bertkit_to_hugging_face(kind: str, number: int, tmp_path: Path) -> None:
    """Values and gradients within 1e-10 in float64, and no byte of a tensor changed."""
    torch.manual_seed(number)
    labels = {"id2label": {n: f"class {n}" for n in range(1 + number % 5)}} if kind in ("sequence", "token") else {}
    config = transformers.BertConfig(**random_shape(number), attn_implementation="eager", **labels)
    config.is_decoder = kind == "next_token"
    more = {} if kind != "encoder" or number % 2 else {"add_pooling_layer": False}
    theirs = getattr(transformers, KINDS[kind][1])(config, **more)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    theirs.save_pretrained(tmp_path / "theirs")

    model, report = load_directory(tmp_path / "theirs")
    assert (report.skipped, report.new) == ({}, [])
    assert tuple(sorted(model.heads)) == KINDS[kind][0]
    (tmp_path / "ours").mkdir()
    ours_files = config_json(model)
    (tmp_path / "ours" / "config.json").write_text(ours_files)
    tensors = {name: tensor.contiguous() for name, tensor in huggingface.tensors_of(model).items()}
    save_file(tensors, tmp_path / "ours" / "model.safetensors", {"format": "pt"})

    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "ours"))
    assert set(before) == set(after)
    assert all(before[name].numpy().tobytes() == after[name].numpy().tobytes() for name in before)
    parity.load_reference(tmp_path / "ours", model)  # cleanly; the next test compares values of what bertkit writes
    result = parity.certify(tmp_path / "theirs", num_sequences=2)
    exact = [row for row in result["comparisons"] if row["dtype"] == "float64"]
    assert len(exact) > 20
    assert [row for row in exact if not row["within_tolerance"]] == []
    again = json.loads((tmp_path / "ours" / "config.json").read_text())
    loaded = transformers.AutoConfig.from_pretrained(tmp_path / "theirs")
    assert {key: again[key] for key in random_shape(number)} == random_shape(number)
    if labels:
        assert loaded.id2label == {int(key): value for key, value in again["id2label"].items()}


@pytest.mark.parametrize("kind", KINDS)
def test_bertkit_to_hugging_face_to_bertkit(kind: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = small_model(tokenizer.vocab_size, labels=("no", "maybe", "yes"), **kind_options(kind))
    export_model(model, tokenizer, tmp_path / "ours")
    assert parity.certify(tmp_path / "ours")["within_tolerance"] is True
    theirs = getattr(transformers, KINDS[kind][1]).from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    again = load_model(tmp_path / "theirs").model
    assert list(again.heads) == list(model.heads)
    labels = model.config.labels if kind in ("sequence", "token") else again.config.labels  # elsewhere they say nothing
    assert again.config == dataclasses.replace(model.config, labels=labels)
    expected = model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in again.state_dict().items())
    export_model(again, tokenizer, tmp_path / "again")
    for file in (tmp_path / "ours").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


@pytest.mark.parametrize(("problem_type", "labels"), [
    ("regression", ("score",)),
    (None, ("score",)),
    ("multi_label_classification", ("a", "b", "c")),
    ("regression", ("x", "y")),
])  # fmt: skip
def test_sequence_losses_of_every_problem_type(
    problem_type: str | None, labels: tuple[str, ...], tmp_path: Path, tokenizer: Tokenizer
) -> None:
    model = small_model(tokenizer.vocab_size, heads=("sequence",), labels=labels, problem_type=problem_type)
    export_model(model, tokenizer, tmp_path / "model")
    assert parity.certify(tmp_path / "model")["within_tolerance"] is True


def test_shapes_of_the_logits() -> None:
    """(B, T) = (5, 7); for choices, (3, 2, 7)."""
    ids = torch.randint(1, 131, (5, 7), generator=torch.Generator().manual_seed(0))
    shapes = {
        "masked_lm": (5, 7, 131), "next_token": (5, 7, 131), "next_sentence": (5, 2), "sequence": (5, 3), "token": (5, 7, 3), "span": (5, 7, 2),
        "replaced_token": (5, 7, 1),
    }  # fmt: skip
    assert {*shapes, "choice", "generation"} == set(plugins.built_in("model_head"))
    from bertkit.interop.padded import PaddedBert

    for head, shape in shapes.items():
        model = PaddedBert(small_model(heads=(head,), with_pooler=any_pooled([head]), labels=("a", "b", "c"))).eval()
        assert model(ids).logits[head].shape == shape
    model = PaddedBert(small_model(heads=("choice",))).eval()
    choices = torch.randint(1, 131, (3, 2, 7), generator=torch.Generator().manual_seed(0))
    assert model(choices).logits["choice"].shape == (3, 2)
    one = model(choices[1:2, 1:]).logits["choice"]
    torch.testing.assert_close(one, model(choices).logits["choice"][1:2, 1:])
    with pytest.raises(ValueError, match=r"shape \(5, 7\), expected \(questions, choices, tokens\)"):
        model(ids)


def test_which_head_a_classifier_is(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """`architectures` tells; without it, a pooler means a sequence head, no pooler a token head; rows number the labels."""
    for kind, guess in (("sequence", "sequence"), ("token", "token"), ("choice", "sequence")):
        directory = export_model(
            small_model(tokenizer.vocab_size, labels=("a", "b", "c"), **kind_options(kind)), tokenizer, tmp_path / kind
        )
        assert list(load_model(directory).model.heads) == [kind]
        content = json.loads((directory / "config.json").read_text())
        for key in ("architectures", "id2label", "label2id"):
            content.pop(key, None)
        (directory / "config.json").write_text(json.dumps(content))
        model = load_model(directory).model
        assert list(model.heads) == [guess]
        assert model.config.labels == tuple(f"LABEL_{n}" for n in range(1 if kind == "choice" else 3))


def test_dropout_of_a_task_head() -> None:
    assert small_model(dropout=0.1, heads=("sequence",)).heads["sequence"].dropout.prob == 0.1
    assert small_model(dropout=0.1, heads=("token",), classifier_dropout=0.3).heads["token"].dropout.prob == 0.3
    assert small_model(dropout=0.1, heads=("span",), with_pooler=False).heads["span"].dropout.prob == 0.0


def test_activations_are_those_of_the_configuration() -> None:
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    for name, function in ACTIVATIONS.items():
        torch.testing.assert_close(function(x), transformers.activations.ACT2FN[name](x), rtol=0, atol=1e-15)
