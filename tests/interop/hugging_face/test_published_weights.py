"""Published files as `transformers` reads them: names that torch adds, dtypes, ties, extra weights; and every key of config.json.

The keys are those of the installed classes, so that a key of a new release fails a test here.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import Capsys, small_model
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor

import bertkit
from bertkit import export_model
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face import config_keys
from bertkit.interop.hugging_face.bert import BertArchitecture
from bertkit.interop.hugging_face.modern_bert import ModernBertArchitecture
from bertkit.interop.load import load_directory

Tensors = dict[str, Tensor]
CONFIGS = {
    "bert": transformers.BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=44,
        max_position_embeddings=30, num_labels=3, initializer_range=0.3,
    ),
    "modernbert": transformers.ModernBertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=44, num_labels=3,
        max_position_embeddings=30, local_attention=4, pad_token_id=0, bos_token_id=None, eos_token_id=None,
        cls_token_id=None, sep_token_id=None, initializer_range=0.3,
    ),
}  # fmt: skip
IDS = torch.arange(2, 24)[None]


def saved(
    directory: Path, kind: str, task: str = "SequenceClassification", **changes: Any
) -> transformers.PreTrainedModel:
    """Save a random model of `transformers`, then change its config.json, in which None removes a key."""
    torch.manual_seed(0)
    family = {"bert": "Bert", "modernbert": "ModernBert"}[kind]
    model = getattr(transformers, f"{family}For{task}")(CONFIGS[kind]).eval()
    model.save_pretrained(directory)
    change_config(directory, changes)
    return model


def change_config(directory: Path, changes: dict[str, Any]) -> None:
    path = directory / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(
        json.dumps({key: value for key, value in content.items() if value is not None or key not in changes})
    )


def change_weights(directory: Path, change: Callable[[Tensors], Tensors]) -> None:
    path = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in change(load_file(path)).items()}
    save_file(tensors, path, {"format": "pt"})


@torch.no_grad()
def difference(directory: Path, theirs: transformers.PreTrainedModel, head: str = "sequence") -> float:
    ours = bertkit.load_model(directory)(input_ids=IDS).logits[head]
    return float((ours - theirs(input_ids=IDS).logits).abs().max())


def renamed(prefix: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


WRAPPED: dict[str, Callable[[Tensors], Tensors]] = {
    "torch.compile": renamed("_orig_mod."), "both": renamed("module._orig_mod."), "Lightning": renamed("model."),
    "layers compiled": lambda t: {n.replace(".0.", ".0._orig_mod."): v for n, v in t.items()},
    "FSDP": lambda t: {f"_fsdp_wrapped_module.{n.replace('.1.', '.1._fsdp_wrapped_module.')}": v for n, v in t.items()},
    "norms in float32": lambda t: {n: v if "orm" in n else v.half().float().half() for n, v in t.items()},
    "bfloat16, its head in float32": lambda t: {n: v if "classifier" in n else v.bfloat16() for n, v in t.items()},
    "a loss with weights, another head": lambda t: t | {"criterion.weight": torch.ones(3), "classifier2.bias": torch.ones(2)},
}  # fmt: skip


@pytest.mark.parametrize("kind", CONFIGS)
def test_weights_of_wrapped_models_and_in_several_dtypes(kind: str, tmp_path: Path, capsys: Capsys) -> None:
    theirs = saved(tmp_path, kind)
    whole = load_file(tmp_path / "model.safetensors")
    for name, change in WRAPPED.items():
        capsys.readouterr()
        change_weights(tmp_path, lambda _, change=change: change(whole))
        exact = {key: tensor.float() for key, tensor in load_file(tmp_path / "model.safetensors").items()}
        theirs.load_state_dict(exact if "float32" in name else whole)  # which computes in float32 what the file holds
        assert difference(tmp_path, theirs) < 1e-5, name
        said = capsys.readouterr().err
        assert ("left out, as no part of the model: c" in said and "classifier2.bias" in said) == ("loss" in name), name


@pytest.mark.parametrize(
    ("kind", "tied"), [("bert", "cls.predictions.decoder.weight"), ("modernbert", "decoder.weight")]
)
def test_tied_weights_by_either_name(kind: str, tied: str, tmp_path: Path) -> None:
    """`save_model` of safetensors keeps the first name of two; without a tie both are needed, and may be equal."""
    theirs = saved(tmp_path, kind, "MaskedLM")
    whole = load_file(tmp_path / "model.safetensors")
    (words,) = (name for name in whole if name.endswith(("word_embeddings.weight", "tok_embeddings.weight")))
    save_model(theirs, str(tmp_path / "model.safetensors"))
    assert len({words, tied} & load_file(tmp_path / "model.safetensors").keys()) == 1
    assert difference(tmp_path, theirs, "masked_lm") < 1e-5
    both = whole | {tied: whole[words]}
    for weights, is_tied, fault in [
        ({n: t for n, t in both.items() if n != words}, True, None),
        (both, False, None),
        (whole, False, f"{tied}: missing, and tie_word_embeddings=False"),
        (both | {tied: whole[words] + 1}, False, f"{tied} differs from {words}"),
    ]:
        change_weights(tmp_path, lambda _, weights=weights: weights)
        change_config(tmp_path, {"tie_word_embeddings": is_tied})
        if fault is None:
            assert difference(tmp_path, theirs, "masked_lm") < 1e-5
        else:
            with pytest.raises(InputError, match=fault):
                load_directory(tmp_path)
    change_weights(tmp_path, lambda _: {n: t for n, t in whole.items() if n.startswith(("bert.", "model."))})
    load_directory(tmp_path)  # an encoder alone has nothing to tie


def test_faults_name_what_is_in_the_file(tmp_path: Path) -> None:
    """The encoder alone is saved without a prefix, and `Wqkv` in one matrix."""
    transformers.ModernBertModel(CONFIGS["modernbert"]).save_pretrained(tmp_path)
    change_weights(
        tmp_path, lambda t: t | {"layers.0.attn.Wqkv.weight": torch.ones(96, 31), "layers.9.x": torch.ones(1)}
    )
    with pytest.raises(InputError) as error:
        load_directory(tmp_path)
    expected = "layers.0.attn.Wqkv.weight (query): shape (32, 31), expected (32, 32)"
    assert f": {expected}" in str(error.value)
    assert "; layers.9.x: this model has no such weight" in str(error.value)


TABLES = {
    "bert": (transformers.BertConfig, BertArchitecture.keys),
    "modernbert": (transformers.ModernBertConfig, ModernBertArchitecture.keys),
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_key_of_the_class_has_one_treatment(kind: str) -> None:
    config, keys = TABLES[kind]
    names = {field.name for field in dataclasses.fields(config)} | config().to_dict().keys()
    assert len(names) > 30
    assert names - {*keys.honoured, *keys.only, *keys.no_effect, *keys.usual} == set()
    assert not (keys.honoured | keys.only.keys()) & (keys.no_effect - {"model_type", "eos_token_id"})


# no effect: other values than those that were saved
UNUSED: dict[str, dict[str, Any]] = {
    "bert": {
        "_name_or_path": "x", "bos_token_id": 3, "chunk_size_feed_forward": 2, "dtype": "float32", "eos_token_id": 4,
        "is_encoder_decoder": True, "label2id": None, "output_attentions": False, "output_hidden_states": True,
        "return_dict": True, "transformers_version": "9.0", "use_cache": False, "hidden_dropout_prob": None,
        "attention_probs_dropout_prob": None, "pad_token_id": -1, "hidden_act": "gelu_python", "initializer_range": 0.4,
        "tie_word_embeddings": False, "gradient_checkpointing": True, "add_cross_attention": None,
    },
    "modernbert": {
        "embedding_dropout": 0.2, "mlp_dropout": 0.3, "initializer_cutoff_factor": 3.0, "deterministic_flash_attn": True,
        "sparse_prediction": True, "sparse_pred_ignore_index": -3, "cls_token_id": 7, "sep_token_id": 5,
        "decoder_bias": False, "tie_word_embeddings": False, "partial_rotary_factor": 1.0, "hidden_activation": "gelu_python",
        "classifier_activation": "gelu_python", "rope_scaling": {"rope_type": "default"}, "pad_token_id": -1,
        "layer_norm_eps": 3.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", UNUSED)
def test_keys_without_effect_are_read_past(kind: str, tmp_path: Path, capsys: Capsys) -> None:
    """All at once, and one line for those that nobody reads."""
    saved(tmp_path, kind, **UNUSED[kind], my_own_key=3)
    theirs = getattr(transformers, f"Auto{'ModelForSequenceClassification'}").from_pretrained(tmp_path).eval()
    assert difference(tmp_path, theirs) < 1e-5
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning:")]
    more = "initializer_cutoff_factor=3.0, " if kind == "modernbert" else ""
    assert lines == [
        f"warning: {tmp_path / 'config.json'}: no effect, since transformers does not compute with them either: "
        f"{more}my_own_key=3"
    ]


# honoured: values that change the output, as in `transformers`
CHANGED: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"hidden_act": "gelu_accurate"}), ("bert", {"hidden_act": "gelu_fast"}), ("bert", {"layer_norm_eps": 0.5}),
    ("bert", {"num_attention_heads": 4}), ("bert", {"hidden_act": "relu"}),
    ("modernbert", {"local_attention": 7}), ("modernbert", {"norm_eps": 0.5}), ("modernbert", {"classifier_pooling": "mean"}),
    ("modernbert", {"layer_types": ["full_attention"] * 3}), ("modernbert", {"classifier_activation": "relu"}),
    ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 40.0}, "sliding_attention": {}}}),
    ("modernbert", {"layer_types": None, "global_attn_every_n_layers": 2}),
]  # fmt: skip


def test_keys_that_change_the_output_are_honoured(tmp_path: Path) -> None:
    plain = {kind: saved(tmp_path / kind, kind) for kind in CONFIGS}
    for kind, changes in CHANGED:
        saved(tmp_path / "changed", kind, **changes)
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "changed").eval()
        assert difference(tmp_path / "changed", theirs) < 2e-5, changes
        assert difference(tmp_path / kind, theirs) > 1e-4, changes  # another output
        assert theirs.config.model_type == plain[kind].config.model_type


@pytest.mark.parametrize("kind", CONFIGS)
def test_keys_with_other_values_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    saved(tmp_path, kind, "MaskedLM")
    others: dict[str, object] = {
        "per_layer_config": {"0": {}},
        "pruned_heads": {"0": [1]},
        "quantization_config": {"bits": 8},
    }
    keys = TABLES[kind][1]
    before = (tmp_path / "config.json").read_text()
    for key in keys.only:
        change_config(tmp_path, {key: others.get(key, not keys.only[key])})
        with pytest.raises(InputError, match=rf"config\.json: {key}="):
            load_directory(tmp_path)
        (tmp_path / "config.json").write_text(before)
    change_config(tmp_path, {"id2label": {"0": "a"}, "problem_type": "single_label_classification"})
    with pytest.raises(InputError, match="problem_type='single_label_classification' with one label"):
        load_directory(tmp_path)


@pytest.mark.parametrize("problem_type", [None, "regression", "multi_label_classification"])
def test_one_label_has_the_score_of_the_pipeline(
    problem_type: str | None, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = small_model(tokenizer.vocab_size, heads=("sequence",), labels=("LABEL_0",))
    for parameter in model.heads["sequence"].parameters():
        parameter.data.mul_(30)  # scores that a sigmoid changes
    export_model(model, tokenizer, tmp_path)
    content = json.loads((tmp_path / "config.json").read_text()) | {"problem_type": problem_type}
    del content["sentence_transformers"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    texts = ["kan lon.", "min", "A river rose."]
    scores = [row["score"] for row in transformers.pipeline("text-classification", str(tmp_path), device="cpu")(texts)]
    rows = bertkit.predict(tmp_path, input=texts, device="cpu")
    ours = [row["probabilities"]["LABEL_0"] if row.get("probabilities") else row["label"] for row in rows]
    assert ours == pytest.approx(scores, abs=1e-5)


def test_the_names_of_an_activation_are_known_to_transformers() -> None:
    from transformers.activations import ACT2FN

    rows = torch.linspace(-5, 5, 101)
    for name, ours in config_keys.ACTIVATIONS.items():
        assert torch.allclose(ACT2FN[name](rows), ACT2FN[ours](rows), atol=1e-6), name
