"""Model directories of every age load; anything unexpected is an error that lists the names, whose table is total both ways."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import HIDDEN, LAYERS, small_config, small_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.interop.hugging_face.config_json import config_json, read_config
from bertkit.interop.hugging_face.names import CLASSIFIERS, HUGGING_FACE, from_hugging_face, to_hugging_face
from bertkit.interop.load import load_directory
from bertkit.model.bert_config import DecoderConfig
from bertkit.model.head.head import is_of_task
from bertkit.model.heads import BertWithHeads

Tensors = dict[str, Tensor]
WORDS = "bert.embeddings.word_embeddings.weight"
NORM = "bert.embeddings.LayerNorm"


def write(directory: Path, tensors: Tensors, **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    content = json.loads(config_json(small_model()))
    (directory / "config.json").write_text(json.dumps({**content, **config}))
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return directory


@pytest.fixture
def tensors() -> Tensors:
    return dict(huggingface.tensors_of(small_model()))


def assert_same_weights(model: BertWithHeads, *, encoder_only: bool = False) -> None:
    expected = small_model().state_dict()
    result = model.state_dict()
    assert set(result) == {name for name in expected if not encoder_only or name.startswith("bert.")}
    assert all(torch.equal(result[name], expected[name]) for name in result)


def old_norms(tensors: Tensors) -> Tensors:
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }


SPELLINGS: dict[str, Callable[[Tensors], Tensors]] = {
    "as today": lambda tensors: tensors,
    "gamma and beta": old_norms,
    "module.": lambda tensors: {f"module.{name}": tensor for name, tensor in tensors.items()},
    "position_ids": lambda tensors: {**tensors, "bert.embeddings.position_ids": torch.arange(41)[None]},
    "tied decoder": lambda tensors: {**tensors, "cls.predictions.decoder.weight": tensors[WORDS]},
    "tied decoder and its bias": lambda tensors: {
        **tensors,
        "cls.predictions.decoder.weight": tensors[WORDS],
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
    },
    "decoder bias alone": lambda tensors: {
        name.replace("cls.predictions.bias", "cls.predictions.decoder.bias"): tensor for name, tensor in tensors.items()
    },
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_old_parameter_names_are_loaded(tmp_path: Path, tensors: Tensors, spelling: str) -> None:
    written = SPELLINGS[spelling](tensors)
    assert (spelling == "as today") == (written is tensors)
    assert len(written) >= len(tensors)
    model, report = load_directory(write(tmp_path / "model", written))
    assert_same_weights(model)
    assert len(report.loaded) == len(tensors)
    assert len(report.skipped) == len(written) - len(tensors) + (spelling == "decoder bias alone")
    assert report.new == []
    assert str(report).startswith(f"loaded {len(tensors)} tensors")


def test_an_encoder_without_prefix(tmp_path: Path, tensors: Tensors) -> None:
    bare = {name.removeprefix("bert."): tensor for name, tensor in tensors.items() if name.startswith("bert.")}
    model, report = load_directory(write(tmp_path / "model", bare))
    assert_same_weights(model, encoder_only=True)
    assert (len(report.loaded), report.skipped, report.new) == (len(bare), {}, [])


def test_half_precision_files_load_as_float32(tmp_path: Path, tensors: Tensors) -> None:
    model, _ = load_directory(write(tmp_path / "model", {name: t.bfloat16() for name, t in tensors.items()}))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.bert.embeddings.token.weight, tensors[WORDS].bfloat16().float())


def split(directory: Path, index_name: str, save: Callable[[Tensors, Path], object]) -> None:
    """Replace the weights by two shards and an index."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    stem, suffix = index_name.removesuffix(".index.json").split(".")
    names = sorted(tensors)
    weight_map = {}
    for number, chosen in enumerate((names[::2], names[1::2])):
        shard = f"{stem}-{number}.{suffix}"
        save({name: tensors[name] for name in chosen}, directory / shard)
        weight_map |= dict.fromkeys(chosen, shard)
    (directory / index_name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize(
    ("index_name", "save"),
    [("model.safetensors.index.json", save_file), ("pytorch_model.bin.index.json", torch.save)],
)
def test_sharded_weights_are_loaded(
    tmp_path: Path, tensors: Tensors, index_name: str, save: Callable[[Tensors, Path], object]
) -> None:
    directory = write(tmp_path / "model", tensors)
    split(directory, index_name, save)
    assert_same_weights(load_directory(directory)[0])
    missing = next(path for path in directory.iterdir() if "-1." in path.name)
    missing.unlink()
    with pytest.raises(InputError, match=rf"{index_name}: {missing.name}"):
        load_directory(directory)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    directory = write(tmp_path / "model", tensors)
    split(directory, "model.safetensors.index.json", save_file)
    second = load_file(directory / "model-1.safetensors")
    first_name = next(iter(load_file(directory / "model-0.safetensors")))
    save_file({**second, first_name: torch.ones(2)}, directory / "model-1.safetensors")
    with pytest.raises(InputError, match=f"{first_name} "):
        load_directory(directory)


OUTSIDE = ["../secret.safetensors", "/etc/model.safetensors", "sub/model.safetensors"]
INDEXES = [
    *((json.dumps({"weight_map": {WORDS: shard}}), "names a file outside") for shard in OUTSIDE),
    *((content, r"index\.json: no weight_map") for content in ("[]", "{}", '{"weight_map": []}')),
]


@pytest.mark.parametrize(("content", "message"), INDEXES)
def test_a_broken_index_is_refused(tmp_path: Path, tensors: Tensors, content: str, message: str) -> None:
    directory = write(tmp_path / "model", tensors)
    (directory / "model.safetensors").rename(tmp_path / "secret.safetensors")
    (directory / "model.safetensors.index.json").write_text(content)
    with pytest.raises(InputError, match=message):
        load_directory(directory)


def test_pickled_weights(tmp_path: Path, tensors: Tensors) -> None:
    directory = write(tmp_path / "model", tensors)
    (directory / "model.safetensors").unlink()
    torch.save(old_norms(tensors), directory / "pytorch_model.bin")
    assert_same_weights(load_directory(directory)[0])


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return exec, ("raise SystemExit('code in a weight file was run')",)


@pytest.mark.parametrize(
    "content", ["code", "cut short", "cut late", "empty", "no mapping", "nested", "numbers", "sparse"]
)
def test_a_damaged_or_hostile_pickle_is_refused(tmp_path: Path, tensors: Tensors, content: str) -> None:
    directory = write(tmp_path / "model", tensors)
    (directory / "model.safetensors").unlink()
    path = directory / "pytorch_model.bin"
    others = {
        "code": {"a": Evil()}, "no mapping": [1, 2], "nested": {"state_dict": tensors}, "numbers": {1: torch.ones(2)},
        "sparse": {"a": torch.eye(3).to_sparse()},
    }  # fmt: skip
    torch.save(others.get(content, tensors), path)
    kept = {"cut short": 1000, "cut late": 20_000, "empty": 0}
    path.write_bytes(path.read_bytes()[: kept.get(content)])
    with pytest.raises(InputError, match=r"pytorch_model\.bin: ") as error:
        load_directory(directory)
    assert "weights_only" not in str(error.value)  # torch's own advice is to run the code
    assert ("it needs exec" in str(error.value)) == (content == "code")


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


MISFITS = [
    (without(WORDS), {}, [f"1 weights do not fit config.json: {WORDS}: missing"]),
    (without("cls.predictions.bias"), {}, ["cls.predictions.bias: missing"]),
    (without("bert.pooler.dense.bias"), {}, ["bert.pooler.dense.bias: missing"]),
    (lambda t: {**t, f"{NORM}.scale": torch.ones(2)}, {}, [f"{NORM}.scale: this model has no such"]),
    (lambda t: {**t, f"{NORM}.weight": torch.ones(3)}, {}, [rf"{NORM}.weight: shape \(3,\), expected"]),
    (
        lambda t: {**without(WORDS)(t), "extra": torch.ones(1), f"{NORM}.bias": torch.ones(2, 2)},
        {},
        ["2 weights do not fit", f"{WORDS}: missing", f"{NORM}.bias: shape"],
    ),
    (lambda t: t, {"num_hidden_layers": LAYERS - 1}, ["16 weights do not fit", "no such weight", "and 8 more"]),
    (lambda t: t, {"num_hidden_layers": LAYERS + 1}, ["16 weights do not fit", f"layer.{LAYERS}", "missing"]),
    (lambda t: t, {"vocab_size": 127}, [f"{WORDS}: shape \\(131, {HIDDEN}\\), expected \\(127, {HIDDEN}\\)"]),
    (lambda t: {**t, "cls.predictions.decoder.weight": t[WORDS] + 1}, {}, [f"decoder.weight differs from {WORDS}"]),
    (lambda t: {**t, WORDS: (100 * t[WORDS]).long()}, {}, [f"{WORDS}: int64, expected float32, float16"]),
    (lambda t: {n: v.double() + 1e-12 for n, v in t.items()}, {}, ["float64 values"]),
    (
        lambda t: {n: v.to(torch.float8_e4m3fn) for n, v in t.items()},
        {},
        ["LayerNorm.bias: float8_e4m3fn, expected float32"],
    ),
    (lambda t: {n: v for n, v in t.items() if "pooler" not in n}, {}, ["bert.pooler.dense.weight: missing"]),
    (lambda t: t, {"num_hidden_layers": 2000}, ["num_hidden_layers=2000, but .* 3 layers"]),
    (lambda t: t, {"num_hidden_layers": 20_000}, ["num_hidden_layers=20000: expected 1 to 10,000"]),
    (lambda t: t, {"hidden_size": 2_000_000}, [r"shape \(131, 26\), expected \(131, 2000000\)"]),
    (lambda t: t, {"layer_norm_eps": float("inf")}, ["Infinity is no number"]),
    (lambda t: t, {"layer_norm_eps": 10**400}, ["config.json: layer_norm_eps=1000.*: expected a number"]),
    (lambda t: t, {"vocab_size": -3}, ["vocab_size=-3: expected at least 1"]),
    (lambda t: t, {"pad_token_id": 10**6}, ["pad_token_id=1000000: expected an id below vocab_size=131"]),
    (lambda t: t, {"architectures": 5}, ["architectures=5: expected a list of names"]),
    (lambda t: t, {"max_position_embeddings": 2}, ["max_position_embeddings=2: expected at least 3"]),
    (lambda t: t, {"id2label": {"0": None, "1": "b"}}, ["id2label=.*: expected names"]),
    (lambda t: t, {"id2label": None, "num_labels": 10**9}, ["num_labels=1000000000: expected a whole number"]),
    (lambda t: {**t, f"{NORM}.bias": t[f"{NORM}.bias"] / 0}, {}, [f"{NORM}.bias: {HIDDEN} of {HIDDEN} values are not"]),
    (lambda t: {**t, f"module.{WORDS}": t[WORDS]}, {}, [f"{WORDS} is there twice"]),
    (lambda t: t, {"hidden_act": "maxout"}, ["config.json: hidden_act='maxout': expected gelu or gelu_new or"]),
    (lambda t: t, {"position_embedding_type": "relative_key_query"}, ["position_embedding_type='relative_key_query'"]),
    (lambda t: t, {"position_embedding_type": "relative_key"}, ["relative.key.weight: missing"]),
    (lambda t: t, {"is_decoder": "false"}, ["is_decoder='false': expected true or false"]),
    (
        lambda t: t,
        {"is_decoder": True},
        ["pooling=first with attention.pattern=causal: .CLS.*in config.json set is_decoder to false"],
    ),
    (lambda t: t, {"tie_word_embeddings": False}, ["decoder.weight: missing, and tie_word_embeddings=False"]),
    (lambda t: t, {"per_layer_config": {"0": {"hidden_act": "relu"}}}, ["per_layer_config=.* is not supported"]),
    (lambda t: t, {"model_type": "gpt2"}, ["config.json: model_type 'gpt2'"]),
    (lambda t: t, {"pruned_heads": {"1": [0]}}, ["config.json: pruned_heads"]),
    (lambda t: t, {"quantization_config": {"bits": 8}}, ["config.json: quantization_config"]),
    (lambda t: t, {"id2label": {"1": "a"}}, ["config.json: id2label"]),
    (lambda t: t, {"num_attention_heads": 4}, ["config.json: .*26 is not a multiple of"]),
    (lambda t: t, {"hidden_size": "26"}, ["config.json: hidden_size='26': expected a whole number"]),
]


@pytest.mark.parametrize(("change", "config", "messages"), MISFITS)
def test_missing_and_misshapen_tensors_are_listed(
    tmp_path: Path, tensors: Tensors, change: Callable[[Tensors], Tensors], config: dict, messages: list[str]
) -> None:
    directory = write(tmp_path / "model", change(tensors), **config)
    for message in messages:
        with pytest.raises(InputError, match=message):
            load_directory(directory)


@pytest.mark.parametrize(("name", "is_there", "message"), [
    ("model.safetensors", True, r"model\.safetensors: damaged"),
    ("model.safetensors", False, "no model.safetensors or pytorch_model.bin"),
    ("config.json", False, "no such file"),
])  # fmt: skip
def test_a_missing_or_damaged_file(tmp_path: Path, tensors: Tensors, name: str, is_there: bool, message: str) -> None:
    path = write(tmp_path / "model", tensors) / name
    path.write_bytes(path.read_bytes()[:-4]) if is_there else path.unlink()
    with pytest.raises(InputError, match=message):
        load_directory(path.parent)


def test_config_without_optional_keys(tmp_path: Path, tensors: Tensors) -> None:
    directory = write(tmp_path / "model", tensors)
    content = json.loads((directory / "config.json").read_text())
    for key in ("model_type", "layer_norm_eps", "type_vocab_size", "hidden_act", "pad_token_id", "initializer_range"):
        del content[key]
    (directory / "config.json").write_text(json.dumps(content))
    config = read_config(directory / "config.json")
    assert (config.layer_norm_eps, config.type_vocab_size, config.pad_token_id) == (1e-12, 2, 0)
    del content["hidden_size"]
    (directory / "config.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"config\.json: no hidden_size"):
        read_config(directory / "config.json")


def test_heads_that_the_file_lacks_are_new_and_seeded(tmp_path: Path, tensors: Tensors) -> None:
    encoder = {name: tensor for name, tensor in tensors.items() if name.startswith("bert.")}
    directory = write(tmp_path / "model", encoder)
    loads = [load_directory(directory, ("masked_lm", "next_sentence"), seed=seed) for seed in (0, 0, 1)]
    models, report = [model for model, _ in loads], loads[0][1]
    assert {name.split(".")[1] for name in report.new} == {"masked_lm", "next_sentence"}
    assert len(report.new) == 7
    weights = [model.heads["masked_lm"].dense.weight for model in models]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert float(weights[0].detach().std()) > 0
    assert all(torch.isfinite(p).all() for p in models[0].parameters())
    assert "initialised 7 new tensors (masked_lm, next_sentence)" in str(report)


def test_config_is_read_back_as_written(tmp_path: Path, tensors: Tensors) -> None:
    assert read_config(write(tmp_path / "model", tensors) / "config.json") == small_config()


def their_names() -> set[str]:
    from transformers import BertConfig, BertForPreTraining

    shape = {"hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 3, "vocab_size": 7}
    model = BertForPreTraining(BertConfig(num_hidden_layers=LAYERS, max_position_embeddings=5, **shape))
    return {name for name, _ in model.named_parameters()}  # tied weights once


def test_every_parameter_has_one_hugging_face_name() -> None:
    ours, theirs = {name for name, _ in small_model().named_parameters()}, their_names()
    assert len(ours) == len(theirs) == 5 + 16 * LAYERS + 2 + 5 + 2
    assert {to_hugging_face(name) for name in ours} == theirs
    back = from_hugging_face(theirs)
    assert set(back) == theirs
    assert set(back.values()) == ours
    assert {to_hugging_face(name): name for name in ours} == back


def test_the_table_is_one_to_one_and_every_row_is_used() -> None:
    assert len(HUGGING_FACE) == 5 + 16 + 2 + 2 * 5 + 2 + 2 + 3 * 2 + (5 + 16 + 10 + 5)
    assert (
        len(set(HUGGING_FACE.values())) == len(HUGGING_FACE) - 2 * 2 - 5
    )  # three heads are called classifier, two cls.predictions
    decoder = DecoderConfig(kind="bert")
    models = [
        small_model(),
        *(small_model(heads=(head,), decoder=decoder) for head in plugins.built_in("model_head") if is_of_task(head)),
    ]
    used = {to_hugging_face(name).replace("layer.0.", "layer.{}.") for m in models for name, _ in m.named_parameters()}
    assert set(HUGGING_FACE.values()) <= used


@pytest.mark.parametrize("head", CLASSIFIERS)
def test_classifier_belongs_to_the_given_head(head: str) -> None:
    names = ["classifier.weight", "classifier.bias"]
    assert list(from_hugging_face(names, head).values()) == [f"heads.{head}.dense.weight", f"heads.{head}.dense.bias"]


def test_unknown_parameter_names_are_left_out() -> None:
    assert from_hugging_face(["bert.encoder.layer.0.output.scale", "lm_head.weight", "bert.embeddings.norm.bias"]) == {}
    with pytest.raises(KeyError):
        to_hugging_face("bert.encoder.layers.0.attention.rotary")
