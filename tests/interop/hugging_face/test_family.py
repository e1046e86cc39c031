"""BERT's family: every class of each type beside `transformers`, both ways, over random shapes."""

import dataclasses
import json
import random
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import transformers
from conftest import small_config
from family_tokenizers import TEXTS, save_tokenizer
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers.activations import ACT2FN

import bertkit
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face.architecture import Architecture, find_architecture
from bertkit.interop.hugging_face.config_json import config_json
from bertkit.interop.hugging_face.directory import tensors_of, write_model
from bertkit.interop.load import load_directory
from bertkit.interop.parity.comparison import certify, load_reference
from bertkit.interop.parity.tokenizers import tokenizer_fault
from bertkit.kernels.linear import ACTIVATIONS
from bertkit.model.bert_config import Activation, DecoderConfig
from bertkit.model.heads import BertWithHeads

CONFIGS: dict[str, Any] = {
    "roberta": transformers.RobertaConfig,
    "xlm-roberta": transformers.XLMRobertaConfig,
    "camembert": transformers.CamembertConfig,
    "distilbert": transformers.DistilBertConfig,
    "ernie": transformers.ErnieConfig,
    "electra": transformers.ElectraConfig,
    "albert": transformers.AlbertConfig,
    "deberta": transformers.DebertaConfig,
    "deberta-v2": transformers.DebertaV2Config,
    "eurobert": transformers.EuroBertConfig,
    "mpnet": transformers.MPNetConfig,
    "gte": transformers.GteConfig,
    "nomic_bert": transformers.NomicBertConfig,
    "jina_embeddings_v3": transformers.JinaEmbeddingsV3Config,
}


def architecture(kind: str) -> Architecture:
    found = find_architecture(kind)
    assert found is not None
    return found


def shape(kind: str, number: int) -> dict[str, Any]:
    """A random shape, by the keys of the type."""
    draw = random.Random(f"{kind} {number}")
    head_size, heads = draw.choice([3, 5, 8]), draw.choice([1, 2, 3])
    sizes: dict[str, Any] = {
        "vocab_size": draw.randint(11, 101), "hidden_size": head_size * heads, "num_attention_heads": heads,
        "num_hidden_layers": draw.randint(2, 3), "intermediate_size": draw.randint(1, 50),
        "hidden_act": draw.choice(["gelu", "gelu_new", "relu", "silu"]),
        "max_position_embeddings": draw.choice([23, 40]), "type_vocab_size": draw.randint(1, 3),
        "layer_norm_eps": draw.choice([1e-12, 1e-5]), "pad_token_id": draw.choice([0, 1, 3]),
        "classifier_dropout": draw.choice([None, 0.0, 0.3]), "bos_token_id": None,
        "embedding_size": draw.choice([head_size * heads, 7]), "use_task_id": draw.choice([True, False]),
    }  # fmt: skip
    if kind == "distilbert":
        names = architecture(kind).names_in_file
        return {names.get(key, key): value for key, value in sizes.items() if key in names or key not in ABSENT} | {
            "seq_classif_dropout": 0.25, "qa_dropout": 0.15,
        }  # fmt: skip
    if kind == "eurobert":
        names = architecture(kind).names_in_file
        size, of_keys = 2 * draw.randint(2, 4), draw.choice([1, 2])
        return {names.get(key, key): value for key, value in sizes.items() if key not in ONLY_BERTS} | {
            "hidden_size": size * 2 * of_keys, "num_attention_heads": 2 * of_keys, "num_key_value_heads": of_keys, "rms_norm_eps": 1e-5,
            "attention_bias": draw.choice([True, False]), "mlp_bias": draw.choice([True, False]), "rope_theta": draw.choice([500.0, 1e4]),
            "eos_token_id": None, "mask_token_id": 4, "classifier_pooling": ("bos", "mean", "late")[number % 3],
        }  # fmt: skip
    if kind == "mpnet":
        return {key: value for key, value in sizes.items() if key not in ONLY_BERTS} | {"pad_token_id": 1}
    if kind in ("gte", "nomic_bert", "jina_embeddings_v3"):
        base, stretched = draw.choice([500.0, 1e4]), {"rope_type": "linear", "factor": draw.choice([1.06, 4.0])}
        rope = {"rope_theta": base, **draw.choice([{}, stretched])}
        types = draw.randint(int(kind != "gte"), 3)  # without segments the others cannot be computed
        return {key: value for key, value in sizes.items() if key not in ("embedding_size", "use_task_id")} | {
            "hidden_size": 2 * head_size * heads, "type_vocab_size": types, "rope_parameters": rope, "eos_token_id": None,
        }  # fmt: skip
    if kind in ("albert", "deberta", "deberta-v2"):
        del sizes["classifier_dropout"]
    if kind == "deberta":
        del sizes["use_task_id"]
        is_relative = number % 5 != 2
        sizes |= {
            "type_vocab_size": draw.randint(0, 2), "cls_dropout": draw.choice([None, 0.0, 0.3]), "relative_attention": is_relative,
            "max_relative_positions": draw.choice([-1, 12]), "position_biased_input": draw.choice([True, False]),
            "pooler_dropout": draw.choice([0.0, 0.2]), "pooler_hidden_act": draw.choice(["gelu", "tanh", "gelu_new"]),
            "pos_att_type": draw.choice(["p2c|c2p", ["c2p", "p2c"], "c2p", ["p2c"]]) if is_relative else [],
        }  # fmt: skip
    if kind == "deberta-v2":
        del sizes["use_task_id"]
        sizes |= {
            "type_vocab_size": draw.randint(0, 2), "cls_dropout": draw.choice([None, 0.0, 0.3]), "relative_attention": number % 6 != 2,
            "position_buckets": draw.choice([-1, 6, 7]), "max_relative_positions": draw.choice([-1, 12]),
            "norm_rel_ebd": draw.choice(["none", "layer_norm"]), "share_att_key": draw.choice([True, False]),
            "pooler_dropout": draw.choice([0.0, 0.2]), "pooler_hidden_act": draw.choice(["gelu", "tanh", "gelu_new"]),
        }  # fmt: skip
        if draw.choice([True, False]):
            groups = draw.choice([1, heads])
            sizes |= {
                "conv_kernel_size": draw.choice([1, 3, 5]),
                "conv_groups": groups,
                "conv_act": draw.choice(["tanh", "gelu"]),
            }
        is_relative = sizes["relative_attention"]
        sizes["norm_rel_ebd"] = sizes["norm_rel_ebd"] if is_relative else "none"  # else its norm is left out
        sizes["position_biased_input"] = draw.choice([True, False])
        sizes["norm_rel_ebd"] = sizes["norm_rel_ebd"] if is_relative else "none"
        sizes["pos_att_type"] = draw.choice(["p2c|c2p", ["c2p", "p2c"], "c2p", ["p2c"]]) if is_relative else []
    return sizes


ONLY_BERTS = ("type_vocab_size", "classifier_dropout", "embedding_size", "use_task_id")
ABSENT = ("type_vocab_size", "layer_norm_eps", "embedding_size", "use_task_id")


def saved(folder: Path, kind: str, heads: tuple[str, ...], number: int, **more: Any) -> torch.nn.Module:
    """Save a model with random weights by `transformers`."""
    torch.manual_seed(number)
    labels = (
        {"id2label": {n: f"class {n}" for n in range(1 + number % 4)}} if heads in (("sequence",), ("token",)) else {}
    )
    config = CONFIGS[kind](**shape(kind, number) | labels | more)
    config.is_decoder = heads == ("next_token",)
    theirs: torch.nn.Module = getattr(transformers, architecture(kind).classes[heads])(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    theirs.save_pretrained(folder)  # type: ignore[operator]
    return theirs.eval()


CASES = [(kind, heads) for kind in CONFIGS for heads in architecture(kind).classes]
AS_ROBERTA = (
    "xlm-roberta",
    "camembert",
)  # the same classes under other names: the masked LM of each is quick, and the tokenizer of one


@pytest.mark.parametrize(("kind", "heads"), [
    pytest.param(
        kind, heads, id=architecture(kind).classes[heads],
        marks=[pytest.mark.slow] if kind in AS_ROBERTA and heads != ("masked_lm",) else [],
    )
    for kind, heads in CASES
])  # fmt: skip
def test_each_class_both_ways(kind: str, heads: tuple[str, ...], tmp_path: Path) -> None:
    """Outputs and gradients within 1e-10 in float64; the weights that are used are written again, bit for bit."""
    number = CASES.index((kind, heads))
    saved(tmp_path / "theirs", kind, heads, number)
    model, report = load_directory(tmp_path / "theirs")
    assert (report.skipped, report.new, tuple(model.heads)) == ({}, [], heads)
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "config.json").write_text(config_json(model))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors_of(model).items()},
        tmp_path / "ours" / "model.safetensors",
        {"format": "pt"},
    )
    before, after = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "ours"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        used = slice(-model.config.max_position_embeddings if "position_embeddings" in name else None, None)
        assert torch.equal(tensor[used], after[name][used]), name
        assert tensor.shape == after[name].shape
    load_reference(tmp_path / "ours", model)
    assert load_directory(tmp_path / "ours").model.config == model.config
    result = certify(tmp_path / "theirs", num_sequences=2)
    exact = [row for row in result["comparisons"] if row["dtype"] == "float64"]
    assert [row for row in exact if row["max_rel"] > 1e-10 and row["max_abs"] > 1e-10] == []
    assert (result["within_tolerance"], result["rewritten_because"]) == (True, None)


def with_tokenizer(folder: Path, kind: str, **more: Any) -> None:
    """A small masked LM with the tokenizer of its type."""
    size = save_tokenizer(kind, folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    own = {"vocab_size": size, "pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": 70}
    pairs = {} if kind in ("distilbert", "mpnet") else {"type_vocab_size": 2}
    saved(folder, kind, ("masked_lm",), 1, **own | pairs | more)


ROWS = [
    {"text": "The committee met.", "text_pair": "It has decided.", "label": "yes"},
    {"text": "Naïve café owners paid.", "text_pair": "Sie sprach leise.", "label": "no"},
]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind == "camembert" else []) for kind in CONFIGS]
)
def test_from_its_directory_to_a_task_and_back(kind: str, tmp_path: Path) -> None:
    """Tokens, fine-tuning on pairs, predictions beside a pipeline of `transformers`, vectors beside sentence-transformers."""
    with_tokenizer(tmp_path / "model", kind)
    draw = random.Random(0)
    words = [word for text in TEXTS for word in text.split()]
    texts = [" ".join(draw.choices(words, k=draw.randint(0, 9))) for _ in range(200)]
    theirs, ours = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / "model"),
        bertkit.load_tokenizer(tmp_path / "model"),
    )
    for seconds in (None, texts[::-1]):
        assert ours(texts, seconds)["input_ids"] == theirs(texts, seconds)["input_ids"]
    assert tokenizer_fault(tmp_path / "model") is None
    sequence = theirs("a", "b")["input_ids"]
    assert sequence[-1] == theirs.sep_token_id
    run = bertkit.finetune(
        task="sequence", train=ROWS * 3, dev=ROWS, model_dir=tmp_path / "model", output_dir=tmp_path / "run", num_epochs=1,
        **{"task.max_seq_length": 60},
    )  # fmt: skip
    predicted = bertkit.load_predictor(run)(ROWS)
    bertkit.export(model_dir=run, head="task", output_dir=tmp_path / "exported")
    pipe = transformers.pipeline("text-classification", str(tmp_path / "exported"), device="cpu")
    expected = [pipe({"text": row["text"], "text_pair": row["text_pair"]}) for row in ROWS]
    for own, other in zip(predicted, expected, strict=True):
        assert own["probabilities"][other["label"]] == pytest.approx(other["score"], abs=1e-5)
    bertkit.export(
        model_dir=tmp_path / "model", head="encoder", sentence_transformers="mean", output_dir=tmp_path / "vectors"
    )
    expected_vectors = SentenceTransformer(str(tmp_path / "vectors"), device="cpu").encode(texts[:9])
    vectors = bertkit.embed(model_dir=tmp_path / "vectors", input=texts[:9])
    assert np.abs(vectors - expected_vectors).max() < 1e-5


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_tokenizer_whose_class_no_file_names_is_that_of_the_type(kind: str, tmp_path: Path) -> None:
    """Also where the class has other rules than the file, of which it takes the vocabulary alone."""
    with_tokenizer(tmp_path, kind)
    path, file = tmp_path / "tokenizer_config.json", tmp_path / "tokenizer.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in settings.items() if key != "tokenizer_class"}))
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"normalizer": {"type": "Prepend", "prepend": "e"}}))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), bertkit.load_tokenizer(tmp_path)
    texts = [*TEXTS, "two  spaces", " before", "after ", "a\nb\tc"]
    assert ours(texts)["input_ids"] == theirs(texts)["input_ids"]
    assert ours(texts, texts[::-1])["input_ids"] == theirs(texts, texts[::-1])["input_ids"]


def test_padding_before_a_text_does_not_shift_the_positions_of_roberta(tmp_path: Path) -> None:
    theirs = saved(tmp_path, "roberta", (), 2, vocab_size=50, pad_token_id=1, max_position_embeddings=20)
    ids = torch.tensor([[1, 1, 1, 7, 8, 9], [2, 3, 4, 5, 6, 7]])
    mask = (ids != 1).long()
    expected = theirs(input_ids=ids, attention_mask=mask).last_hidden_state
    actual = bertkit.load_model(tmp_path)(ids, mask).last_hidden_state
    torch.testing.assert_close(actual[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-5)


def test_padding_that_is_written_in_a_text_has_no_position_in_roberta(tmp_path: Path) -> None:
    theirs = saved(tmp_path, "roberta", (), 2, vocab_size=50, pad_token_id=1, max_position_embeddings=20)
    torch.nn.init.zeros_(theirs.embeddings.position_embeddings.weight[1])  # as training leaves it
    theirs.save_pretrained(tmp_path)  # type: ignore[operator]
    ids = torch.tensor([[2, 1, 1, 7, 1, 9, 8], [2, 3, 4, 5, 6, 7, 1], [1, 2, 7, 1, 3, 3, 3]])
    mask = torch.tensor([[1] * 7, [1] * 7, [1] * 4 + [0] * 3])
    expected = theirs(input_ids=ids, attention_mask=mask).last_hidden_state
    actual = bertkit.load_model(tmp_path)(ids, mask).last_hidden_state
    torch.testing.assert_close(actual[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-5)


def test_roberta_drops_before_the_map_of_its_sequence_head_alone(tmp_path: Path) -> None:
    """As RobertaClassificationHead; the head for choices has the dropout of the layers."""
    settings = {"classifier_dropout": 0.3, "hidden_dropout_prob": 0.2}
    for heads, expected in ((("sequence",), (0.3, 0.3)), (("choice",), (0.0, 0.2)), (("token",), (0.0, 0.3))):
        saved(tmp_path / heads[0], "roberta", heads, 3, **settings)
        model = bertkit.load_model(tmp_path / heads[0]).model
        assert (model.bert.pooler_dropout.prob, model.heads[heads[0]].dropout.prob) == expected


def test_an_unused_pooler_beside_the_map_of_the_head_is_left_out(tmp_path: Path) -> None:
    """As transformers 3 saved sequence classifiers."""
    saved(tmp_path, "xlm-roberta", ("sequence",), 4)
    tensors = load_file(tmp_path / "model.safetensors")
    more = {f"roberta.pooler.dense.{part}": tensors[f"classifier.dense.{part}"] + 1 for part in ("weight", "bias")}
    save_file(tensors | more, tmp_path / "model.safetensors", {"format": "pt"})
    model, report = load_directory(tmp_path)
    assert report.skipped == dict.fromkeys(more, "an unused pooler")
    assert torch.equal(model.bert.pooler.dense.weight, tensors["classifier.dense.weight"])


REFUSED = [
    ("roberta", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key' is not supported"),
    ("camembert", {"add_cross_attention": True}, "add_cross_attention=True is not supported"),
    ("xlm-roberta", {"hidden_act": "laplace"}, "hidden_act='laplace'"),
    ("distilbert", {"is_decoder": True}, "is_decoder=True is not supported"),
    ("distilbert", {"dropout": 1.5}, "dropout=1.5: expected"),
    ("distilbert", {"qa_dropout": 1.0}, "qa_dropout=1.0: expected"),
    ("electra", {"summary_last_dropout": 1.0}, "summary_last_dropout=1.0: expected"),
    ("deberta-v2", {"pooler_dropout": 1.0}, "config.json: pooler_dropout=1.0: expected"),
    ("roberta", {"pad_token_id": -1}, "pad_token_id=-1: expected at least 0"),
    ("roberta", {"max_position_embeddings": 1, "pad_token_id": 3}, "max_position_embeddings=1: expected more than 4"),
    ("ernie", {"position_embedding_type": "relative_key_query"}, "position_embedding_type='relative_key_query'"),
    ("electra", {"embedding_size": 0}, "embedding_size=0: expected"),
    ("albert", {"num_hidden_groups": 2}, "num_hidden_groups=2 is not supported"),
    ("albert", {"inner_group_num": 2}, "inner_group_num=2 is not supported"),
    ("eurobert", {"head_dim": 5}, "head_dim=5 is not supported"),
    ("eurobert", {"tie_word_embeddings": True}, "tie_word_embeddings=True is not supported"),
    (
        "eurobert",
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
        "rope_type='yarn': expected default or linear or ntk",
    ),
    ("eurobert", {"rope_scaling": {"type": "linear"}}, "rope_type='linear' with factor=None: expected a factor"),
    (
        "eurobert",
        {"rope_parameters": {"rope_theta": 5.0, "factor": 2.0}},
        "rope_type='default' with factor=2.0: expected",
    ),
    ("gte", {"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor=0.5: expected at least 1"),
    (
        "gte",
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "rope_type='dynamic': expected default or linear or ntk",
    ),
    ("gte", {"rope_parameters": {"rope_type": "ntk", "factor": 2.0, "mixed_b": 0.6}}, "unknown key 'mixed_b'"),
    ("gte", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5: expected 1"),
    ("gte", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
    ("gte", {"head_dim": 7}, "head_dim=7 is not supported"),
    ("gte", {"logn_attention_scale": True}, "logn_attention_scale=True is not supported"),
    ("gte", {"position_embedding_type": "absolute"}, "position_embedding_type='absolute' is not supported"),
    ("gte", {"is_decoder": True}, "is_decoder=True is not supported"),
    ("jina_embeddings_v3", {"head_dim": 7}, "head_dim=7 is not supported"),
    ("jina_embeddings_v3", {"is_decoder": True}, "is_decoder=True is not supported"),
    ("nomic_bert", {"head_dim": 7}, "head_dim=7 is not supported"),
    ("nomic_bert", {"rotary_scaling_factor": 2}, "rotary_scaling_factor=2 is not supported"),
    ("nomic_bert", {"moe_every_n_layers": 2}, "moe_every_n_layers=2 is not supported"),
    ("nomic_bert", {"attention_probs_dropout_prob": 1.0}, "attention_probs_dropout_prob=1.0: expected"),
    ("nomic_bert", {"rope_parameters": {"rope_theta": 0}}, "rope_theta=0.0: expected a positive number"),
    ("eurobert", {"classifier_pooling": "last"}, "classifier_pooling='last': expected bos, mean, late"),
    ("mpnet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets=64 is not supported"),
    ("mpnet", {"pad_token_id": 0}, "pad_token_id=0 is not supported; bertkit loads 1 only"),
    ("mpnet", {"max_position_embeddings": 2}, "max_position_embeddings=2: expected more than 2"),
    ("eurobert", {"num_key_value_heads": 3}, "num_key_value_heads=3: expected a divisor of num_attention_heads=2"),
]


@pytest.mark.parametrize(("kind", "settings", "message"), REFUSED)
def test_settings_that_bertkit_lacks_are_refused(
    kind: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    saved(tmp_path, kind, ("masked_lm",), 5)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(InputError, match=re.escape(message)):
        load_directory(tmp_path)


@pytest.mark.parametrize("heads", [("masked_lm",), ("sequence",), ("token",), ("choice",)])
def test_the_summary_of_an_electra_is_that_of_its_head_for_choices_alone(
    heads: tuple[str, ...], tmp_path: Path
) -> None:
    saved(tmp_path, "electra", heads, 6, summary_type="mean", summary_first_dropout=0.3)
    refused = (
        pytest.raises(InputError, match=r"summary_first_dropout=0\.3 is not") if heads == ("choice",) else nullcontext()
    )
    with refused:
        load_directory(tmp_path)


def test_activations_are_those_of_transformers() -> None:
    numbers = torch.linspace(-7, 7, 101, dtype=torch.float64)
    for name in get_args(Activation):
        torch.testing.assert_close(ACTIVATIONS[name](numbers), ACT2FN[name](numbers), rtol=0, atol=1e-12)
    assert len(ACTIVATIONS) == len(get_args(Activation)) == 13


@pytest.mark.parametrize(
    ("kind", "key"), [("bert", "hidden_act"), ("electra", "hidden_act"), ("modernbert", "hidden_activation")]
)
@pytest.mark.parametrize("name", ["tanh", "mish", "quick_gelu"])
def test_a_model_with_another_activation_is_computed_as_in_transformers(
    kind: str, key: str, name: str, tmp_path: Path
) -> None:
    sizes = {
        "vocab_size": 50,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 11,
    }
    config = transformers.AutoConfig.for_model(kind, **sizes, pad_token_id=0, **{key: name})
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    ids = torch.randint(1, 50, (3, 7), generator=torch.Generator().manual_seed(0))
    expected = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()(ids).logits
    actual = bertkit.load_model(tmp_path)(ids).logits["masked_lm"]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_file_with_an_end_of_texts_keeps_its_type(kind: str, tmp_path: Path) -> None:
    saved(tmp_path, kind, ("masked_lm",), 5, eos_token_id=4)
    model, _ = load_directory(tmp_path)
    content = json.loads(config_json(model))
    assert (content["model_type"], content["eos_token_id"]) == (kind, 4)


@pytest.mark.parametrize("name", ["roberta_mini", "albert_mini", "electra_mini", "deberta_mini", "eurobert_mini"])
def test_a_new_model_of_the_family(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """It is written as its type, and read again as it was; fewer layers and positions than it has prove as much."""
    model = bertkit.new_model(name, tokenizer, **{"model.num_hidden_layers": 2, "model.max_position_embeddings": 64})
    write_model(model, tokenizer, tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["model_type"] == model.config.family
    again, _ = load_directory(tmp_path)
    assert again.config == dataclasses.replace(model.config, scale_outputs=False)
    assert certify(tmp_path, num_sequences=1)["within_tolerance"]


@pytest.mark.parametrize("heads", [("masked_lm", "next_sentence"), ("replaced_token",), ("sequence",)])
@pytest.mark.parametrize(
    "name", ["mini", "roberta_mini", "albert_mini", "electra_mini", "deberta_mini", "eurobert_mini", "modern_tiny"]
)
def test_a_variant_is_bertkits_own_and_is_read_again(
    name: str, heads: tuple[str, ...], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """`transformers` has no class of it, so its weights keep their names where BERT has none for them."""
    small = {"model.num_hidden_layers": 2, "model.max_position_embeddings": 64, "model.embedding_size": 32}
    config = bertkit.new_model(name, tokenizer, pooling="feed_forward", **small).config
    own = {"scale_outputs": False, "task_type_vocab_size": 2, "task_transform": True, "shared_layers": True}
    model = BertWithHeads(dataclasses.replace(config, **own), heads)
    for number, parameter in enumerate(model.parameters()):
        parameter.data.fill_(number)
    write_model(model, tokenizer, tmp_path)
    again, _ = load_directory(tmp_path)
    assert again.config == model.config
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in again.state_dict().items())


@pytest.mark.parametrize("setting", ["model.embedding_size=16", "model.shared_layers=true", "feed_forward=two_map_glu"])
def test_a_variant_of_modern_bert_is_bertkits_own(setting: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    key, value = setting.split("=")
    more = {key: {"true": True, "16": 16}.get(value, value)}
    if key == "model.shared_layers":  # the first layer cannot differ from the others
        more |= {"norm.before_first": True, "attention.rotary_local_base": None}
    model = bertkit.new_model("modern_tiny", tokenizer, **more)
    write_model(model, tokenizer, tmp_path)
    again, _ = load_directory(tmp_path)
    assert again.config == dataclasses.replace(model.config, scale_outputs=False)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in again.state_dict().items())


def test_a_modern_bert_stays_one_whose_settings_are_the_usual_ones(tokenizer: Tokenizer) -> None:
    config = bertkit.new_model("modern_tiny", tokenizer).config
    modern = find_architecture("modernbert")
    assert modern is not None
    for name, value in (("classifier_dropout", 0.0), ("embedding_dropout_prob", 0.0), ("head_act", "gelu")):
        assert modern.writes(dataclasses.replace(config, **{name: value}))
    attention = dataclasses.replace(config.attention, rotary_local_base=None)
    assert not modern.writes(dataclasses.replace(config, attention=attention))


def test_a_task_without_a_class_of_the_type_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    """Its model could not be saved."""
    with_tokenizer(tmp_path / "model", "eurobert")
    rows = [{"context": "It rained.", "endings": ["They met.", "They paid."], "label": 0}]
    with pytest.raises(
        InputError, match="the heads choice: transformers has no such class of this model's type; models of the type"
    ):
        bertkit.finetune(
            task="choice", train=rows, dev=rows, model_dir=tmp_path / "model", output_dir=tmp_path / "run", **{"task.max_seq_length": 60}
        )  # fmt: skip


def test_settings_of_single_layers_are_refused_where_all_have_the_same_weights(tmp_path: Path) -> None:
    with_tokenizer(tmp_path / "model", "albert")
    given = {"task": "sequence", "train": ROWS, "dev": ROWS, "model_dir": tmp_path / "model", "task.max_seq_length": 60}
    for name, value in (("layer_decay", 0.9), ("reinit_layers", 1), ("freeze", "layers:1")):
        with pytest.raises(InputError, match=f"{name}=.*: all layers of this model have the same weights"):
            bertkit.finetune(output_dir=tmp_path / name, **given | {name: value})


@pytest.mark.parametrize("setting", [{"embedding_size": 8}, {"shared_layers": True}, {"family": "roberta"}])
def test_a_decoder_from_scratch_has_no_encoder_of_the_family(setting: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"model\.{next(iter(setting))}=.*: not with decoder=transformer"):
        small_config(decoder=DecoderConfig(kind="transformer"), **setting)


def test_deberta_drops_before_its_head_what_its_own_key_says(tmp_path: Path) -> None:
    """`classifier_dropout` is BERT's key: `transformers` has another one here, without which it drops as in the layers."""
    for own, expected in ((None, None), (0.3, 0.3)):
        saved(tmp_path / str(own), "deberta-v2", ("sequence",), 3, cls_dropout=own, classifier_dropout=0.45)
        path = tmp_path / str(own) / "config.json"
        content = json.loads(path.read_text())
        if own is None:
            del content["cls_dropout"]
        path.write_text(json.dumps(content | {"classifier_dropout": 0.45}))
        assert load_directory(path.parent).model.config.classifier_dropout == expected
