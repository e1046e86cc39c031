"""Pairs of BERTs, of which the second one writes, in the format of `transformers`: the same numbers both ways."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from conftest import Capsys, minilm_dir, refused, small_config, small_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import EncoderDecoderModel

from bertkit import export_model, load_model, load_tokenizer
from bertkit.base.errors import InputError
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face.directory import text_files, write_model
from bertkit.interop.load import load_directory
from bertkit.interop.parity import comparison as parity
from bertkit.interop.parity.certificate import check_certificate, full_tensors
from bertkit.interop.parity.results import their_parameters
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import DecoderConfig, NormConfig
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights

SHAPE = {
    "vocab_size": 61, "hidden_size": 26, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 37,
    "max_position_embeddings": 23, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
START, END, LAYERS = 5, 7, 3
B, T, OF_TARGETS = 5, 13, 11
MASK = (torch.arange(T) < torch.tensor([13, 7, 5, 11, 2])[:, None]).long()
TARGET_MASK = (torch.arange(OF_TARGETS) < torch.tensor([3, 11, 7, 1, 5])[:, None]).long()


def write_pair(directory: Path, **changes: Any) -> Path:
    torch.manual_seed(0)
    encoder = transformers.BertConfig(**SHAPE)
    decoder = transformers.BertConfig(**SHAPE, is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.update({"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": 0, **changes})
    theirs = EncoderDecoderModel(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    theirs.save_pretrained(directory)
    return directory


def load_pair(directory: Path) -> Any:
    theirs, info = EncoderDecoderModel.from_pretrained(directory, output_loading_info=True, dtype=torch.float64)
    assert {key: value for key, value in info.items() if value} == {}
    return theirs.eval()


@pytest.fixture(scope="module")
def pair_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair") / "theirs")


def random_ids(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randint(8, SHAPE["vocab_size"], shape, generator=torch.Generator().manual_seed(seed))  # type: ignore[call-overload, no-any-return]


def inputs_of(is_padded: bool) -> dict[str, Tensor]:
    options = {"input_ids": random_ids((B, T), 1), "decoder_input_ids": random_ids((B, OF_TARGETS), 2)}
    options["token_type_ids"] = (torch.arange(T) > 4).long().expand(B, T)
    masks = {"attention_mask": MASK, "decoder_attention_mask": TARGET_MASK} if is_padded else {}
    return options | masks


def small_pair(tokenizer: Tokenizer, share: bool = False, seed: int = 0) -> BertWithHeads:
    facts = tokenizer.facts
    decoder = DecoderConfig(kind="bert", share=share, start_token_id=facts.cls, end_token_id=facts.sep)
    return small_model(tokenizer.vocab_size, seed=seed, heads=("generation",), with_pooler=False, decoder=decoder)


def same(ours: Tensor | None, theirs: Tensor | None, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


# from transformers


def test_loading_takes_every_tensor(pair_dir: Path) -> None:
    model, report = load_directory(pair_dir)
    poolers = {f"encoder.pooler.dense.{which}" for which in ("weight", "bias")}
    assert set(report.skipped) == poolers
    assert report.new == []
    num_tensors = len(load_file(pair_dir / "model.safetensors")) - 2
    assert len(report.loaded) == num_tensors == 5 + 16 * LAYERS + 5 + 26 * LAYERS + 5
    assert model.config.decoder == DecoderConfig(kind="bert", start_token_id=START, end_token_id=END)
    assert model.config.variant == {}
    assert model.bert.pooler is None


@pytest.mark.parametrize("is_padded", [True, False])
def test_values_of_transformers(pair_dir: Path, is_padded: bool) -> None:
    """Logits, weights of attention, the loss of labels, and the gradient of every parameter."""
    ours, theirs, inputs = load_model(pair_dir).double(), load_pair(pair_dir), inputs_of(is_padded)
    with torch.no_grad():
        actual = ours(**inputs, output_attentions=True)
        theirs.set_attn_implementation("eager")
        expected = theirs(**inputs, output_attentions=True)
    is_target = TARGET_MASK.bool() if is_padded else torch.ones(B, OF_TARGETS).bool()
    same(actual.logits["generation"][is_target], expected.logits[is_target])
    assert not actual.logits["generation"][~is_target].any()
    assert len(actual.alignments) == LAYERS
    for one, other in zip(actual.alignments, expected.cross_attentions, strict=True):
        assert one.shape == (B, 2, OF_TARGETS, T)
        same(one, other * is_target[:, None, :, None])
    tokens = MASK.bool() if is_padded else ...
    same(actual.last_hidden_state[tokens], expected.encoder_last_hidden_state[tokens])

    labels = random_ids((B, OF_TARGETS), 3).masked_fill(~is_target, -100)
    shifted = theirs.prepare_decoder_input_ids_from_labels(labels)
    assert torch.equal(shifted[:, 0], torch.full((B,), ours.config.decoder.start_token_id))
    with pytest.warns(FutureWarning, match="Version v4.12.0"):
        of_theirs = theirs(**(inputs | {"decoder_input_ids": shifted}), labels=labels)
    logits = ours(**(inputs | {"decoder_input_ids": shifted})).logits["generation"]
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    same(loss, of_theirs.loss)
    loss.backward()
    of_theirs.loss.backward()
    parameters = their_parameters(ours.model, theirs)
    assert len(parameters) == len(list(ours.parameters()))
    tensors = full_tensors(ours.model)
    gradients = {name: (tensors[name].grad, sum(each.gradient for each in both)) for name, both in parameters.items()}
    assert all(gradient.any() for gradient, _ in gradients.values())
    for name, (one, other) in gradients.items():
        if "word_embeddings" in name:  # they keep back that of [PAD]
            assert not other[0].any() or "decoder" in name
        rows = slice(1, None) if name.endswith("word_embeddings.weight") else slice(None)
        same(one[rows], other[rows])


def test_a_pair_is_certified(pair_dir: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    result = parity.certify(pair_dir, num_sequences=3)
    assert result["architecture"] == "EncoderDecoderModel"
    assert result["within_tolerance"] is True
    assert result["rewritten_because"] is None
    exact = {row["what"] for row in result["comparisons"] if row["dtype"] == "float64"}
    assert {"logits.generation", "hidden_states.0", f"hidden_states.{LAYERS}"} <= exact
    assert len(exact) == 1 + LAYERS + 1 + 5 + 16 * LAYERS + 5 + 26 * LAYERS + 5
    (tmp_path / "certificate.json").write_text(json.dumps(result))
    model = load_model(pair_dir)
    check_certificate(model, tmp_path / "certificate.json")
    with torch.no_grad():
        model.model.heads["generation"].layers[1].cross_attention.key.bias[3] += 1e-3  # type: ignore[index, union-attr]
    with pytest.raises(Exception, match=r"decoder\.bert\.encoder\.layer\.1\.crossattention\.self\.key\.bias"):
        check_certificate(model, tmp_path / "certificate.json")


BROKEN = {
    "an encoder": (("decoder", "add_cross_attention"), False, "decoder.add_cross_attention: expected two BERTs"),
    "no decoder": (("decoder", "is_decoder"), False, "decoder.is_decoder: expected two BERTs"),
    "wider": (("decoder", "hidden_size"), 28, "hidden_size: expected two BERTs"),
    "deeper": (("encoder", "num_hidden_layers"), 4, "num_hidden_layers: expected two BERTs"),
    "another": (("decoder", "model_type"), "gpt2", "decoder.model_type: expected two BERTs"),
    "no start": (("decoder_start_token_id",), None, "no decoder_start_token_id and eos_token_id; set them to the ids"),
    "no end": (("eos_token_id",), None, "no decoder_start_token_id and eos_token_id; set them to the ids of"),
    "no encoder": (("encoder",), None, "expected two BERTs"),
    "sharing": (("decoder_shares_encoder",), "half", "share"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_pair_is_refused(pair_dir: Path, tmp_path: Path, name: str) -> None:
    keys, value, message = BROKEN[name]
    content = json.loads((pair_dir / "config.json").read_text())
    inner = content[keys[0]] if len(keys) == 2 else content
    inner[keys[-1]] = value
    (tmp_path / "config.json").write_text(json.dumps(content))
    (tmp_path / "model.safetensors").symlink_to(pair_dir / "model.safetensors")
    with pytest.raises(InputError) as error:
        load_model(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'config.json'}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# to transformers and back


@pytest.mark.parametrize("share", [False, True])
def test_pair_is_exported_and_loaded_exactly(share: bool, tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = small_pair(tokenizer, share)
    export_model(model, tokenizer, tmp_path / "ours")
    again = load_model(tmp_path / "ours")
    assert again.config == model.config
    assert all(torch.equal(tensor, again.model.state_dict()[name]) for name, tensor in model.state_dict().items())
    theirs = load_pair(tmp_path / "ours")
    assert type(transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")) is EncoderDecoderModel
    inputs = inputs_of(is_padded=True)
    with torch.no_grad():
        expected = again.double()(**inputs).logits["generation"]
        same(theirs(**inputs).logits * TARGET_MASK[..., None], expected)
    theirs.float().save_pretrained(tmp_path / "theirs")
    back = load_model(tmp_path / "theirs")
    assert back.config == model.config
    assert all(torch.equal(tensor, back.model.state_dict()[name]) for name, tensor in model.state_dict().items())
    result = parity.certify(tmp_path / "ours")
    assert (result["within_tolerance"], result["rewritten_because"]) == (True, None)


def test_what_transformers_trained_further_is_shared_no_more(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Hugging Face cannot store shared weights and trains two sets; neither is lost."""
    export_model(small_pair(tokenizer, share=True), tokenizer, tmp_path / "ours")
    theirs = EncoderDecoderModel.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        theirs.decoder.bert.encoder.layer[1].output.dense.weight[3, 5] += 1
    theirs.save_pretrained(tmp_path / "theirs")
    back, inputs = load_model(tmp_path / "theirs").double(), inputs_of(is_padded=False)
    assert back.config.decoder is not None
    assert back.config.decoder.share is False
    with torch.no_grad():
        same(back(**inputs).logits["generation"], theirs.double().eval()(**inputs).logits)
    with pytest.raises(InputError, match=r"decoder\.share=false"):
        load_directory(tmp_path / "theirs", decoder=DecoderConfig(kind="bert", share=True))


def test_the_encoder_of_a_pair_is_a_bert(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Another head on it, or none, makes no pair."""
    model = small_pair(tokenizer)
    export_model(model, tokenizer, tmp_path / "pair")
    encoder = load_model(tmp_path / "pair", [])
    assert encoder.config == small_config(tokenizer.vocab_size, labels=encoder.config.labels)
    export_model(encoder, tokenizer, tmp_path / "encoder")
    theirs = transformers.BertModel.from_pretrained(tmp_path / "encoder", add_pooling_layer=False).eval()
    options = {key: value for key, value in inputs_of(is_padded=False).items() if not key.startswith("decoder")}
    with torch.no_grad():
        same(encoder(**options).last_hidden_state, theirs(**options).last_hidden_state, 1e-5)
    classifier, report = load_directory(tmp_path / "pair", ("sequence",))
    assert {name.split(".")[1] for name in report.new} == {"pooler", "sequence"}
    assert classifier.config.decoder is None
    bert = export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path / "bert")
    with pytest.raises(InputError, match="decoder=bert"):
        load_model(bert, ["generation"])


# beginning with a BERT


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("has_head", [False, True])
def test_a_pair_begins_with_a_bert(share: bool, has_head: bool, tmp_path: Path, tokenizer: Tokenizer) -> None:
    heads = ("masked_lm",) if has_head else ()
    export_model(small_model(tokenizer.vocab_size, heads=heads, with_pooler=False), tokenizer, tmp_path)
    decoder = DecoderConfig(kind="bert", share=share)
    model, report = load_directory(tmp_path, ("generation",), decoder=decoder)
    is_new = {"cross_attention", *(() if has_head else ("score",))}
    assert report.new
    assert all(is_new & {part.removesuffix("_norm") for part in name.split(".")} for name in report.new)
    assert len(report.new) == LAYERS * 10 + (0 if has_head else 5)
    weights, source = dict(model.named_parameters(remove_duplicate=False)), load_directory(tmp_path, heads)[0]
    for name, weight in source.named_parameters():
        for twin in (name, name.replace("heads.masked_lm", "heads.generation.score")):
            twin = twin.replace("bert.embeddings", "heads.generation.embeddings") if twin == name else twin
            twin = twin.replace("bert.encoder.layers", "heads.generation.layers")
            assert torch.equal(weights[twin] if "generation" in twin else weight, weight)
            assert "masked_lm" in name or torch.equal(weights[name], weight)
    repeated = load_directory(tmp_path, ("generation",), decoder=decoder)[0].state_dict()
    other = load_directory(tmp_path, ("generation",), decoder=decoder, seed=1)[0].state_dict()
    assert all(torch.equal(weight, repeated[name]) for name, weight in model.state_dict().items())
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, other[name])}
    assert changed == {name for name in report.new if name.endswith("weight") and "norm" not in name}


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"positions": "rotary"}, "attention.positions=rotary"), ({"pattern": "causal"}, "attention.pattern=causal")],
)
def test_no_pair_begins_with_another_model(changes: Any, named: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    config = small_config(tokenizer.vocab_size, hidden_size=28, attention=AttentionConfig(**changes))
    write_model(BertWithHeads(config, ("masked_lm",), with_pooler=False), tokenizer, tmp_path)
    message = rf"config\.json: decoder=bert with {named}: "
    with pytest.raises(InputError, match=message):
        load_directory(tmp_path, ("generation",), decoder=DecoderConfig(kind="bert"))


def test_a_pair_of_a_real_checkpoint(tmp_path: Path) -> None:
    """The same as `from_encoder_decoder_pretrained` makes of it, with the cross-attention and the head of ours."""
    source = minilm_dir()
    ids = load_tokenizer(source).facts
    decoder = DecoderConfig(kind="bert", start_token_id=ids.cls, end_token_id=ids.sep)
    model, report = load_directory(source, ("generation",), decoder=decoder)
    layers = model.config.num_hidden_layers
    assert len(report.new) == 10 * layers + 5
    assert all(".cross_attention" in name or ".score." in name for name in report.new)
    assert len(report.loaded) == 2 * (5 + 16 * layers)
    theirs = EncoderDecoderModel.from_encoder_decoder_pretrained(source, source).eval()
    own = {name: tensor for name, tensor in theirs.state_dict().items() if not name.startswith("encoder.pooler.")}
    write_model(model, load_tokenizer(source), tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    new = {name for name in own if "crossattention" in name or ".cls." in name}
    for name in own.keys() - new:
        assert torch.equal(own[name], written[name]), name
    missing, unexpected = theirs.load_state_dict({name: written[name] for name in new & written.keys()}, strict=False)
    assert not unexpected
    assert not set(missing) & new - {"decoder.cls.predictions.decoder.weight", "decoder.cls.predictions.decoder.bias"}
    texts = ["A committee has met.", "It rained all day, and the river rose over the meadows."]
    inputs = load_tokenizer(source)(texts, padding=True, return_tensors="pt")
    targets = {f"decoder_{name}": inputs[name].flip(0) for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        logits = load_model(tmp_path)(**inputs, **targets).logits["generation"]
        expected = theirs(**inputs, **targets).logits * targets["decoder_attention_mask"][..., None]
    same(logits, expected, 1e-4)


# models that no pair of transformers is


@pytest.mark.parametrize(
    ("kind", "norm", "score"),
    [("transformer", "post", "additive"), ("transformer", "pre", "additive")]
    + [("rnn", "post", score) for score in ("additive", "dot", "general", "location", "none")],
)
def test_own_decoders_are_reloaded_but_not_exported(
    kind: Any, norm: Any, score: Any, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """They are reloaded bit for bit, refused by the export, and never taken for a BERT."""
    config = small_config(
        tokenizer.vocab_size, norm=NormConfig(placement=norm), hidden_act="relu",
        attention=AttentionConfig(positions="sinusoidal" if kind == "transformer" else "none"),
        decoder=DecoderConfig(kind=kind, norm=norm, score=score, start_token_id=3, end_token_id=2),
    )  # fmt: skip
    model = BertWithHeads(config, ("generation",), with_pooler=False).eval()
    init_weights(model, 0.3, torch.Generator().manual_seed(0))
    write_model(model, tokenizer, tmp_path)
    again = load_model(tmp_path)
    assert again.config == config
    assert again.model.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, again.model.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert text_files(again, tokenizer)["config.json"] == (tmp_path / "config.json").read_text()
    inputs = inputs_of(is_padded=True)
    assert bool(again(**inputs).logits["generation"].any())
    with pytest.raises(InputError, match=rf"decoder={kind};") as error:
        export_model(model, tokenizer, tmp_path / "out")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="model type `bertkit`"):
        transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert run(["export", f"checkpoint={tmp_path}", f"output_dir={tmp_path / 'out'}"]) == 2
    assert not (tmp_path / "out").exists()


# the commands


def test_export_and_verify(tmp_path: Path, tokenizer: Tokenizer, capsys: Capsys) -> None:
    (tmp_path / "model").mkdir()
    write_model(small_pair(tokenizer), tokenizer, tmp_path / "model")
    out = tmp_path / "out"
    assert run(["export", f"checkpoint={tmp_path / 'model'}", f"output_dir={out}"]) == 0
    assert f"exported EncoderDecoderModel to {out}" in capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "parity.json", "tokenizer.json"} <= names
    assert run(["export", f"checkpoint={tmp_path / 'model'}", f"output_dir={out}"]) == 0
    assert "done already" in capsys.readouterr().out
    assert run(["verify", f"model_dir={out}", f"output={tmp_path / 'certificate.json'}"]) == 0
    assert "EncoderDecoderModel beside transformers" in capsys.readouterr().out
    card = (out / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0].replace("DIRECTORY", str(out))
    assert "AutoModelForSeq2SeqLM" in code
    exec(compile(code, "the card", "exec"), {})
    assert capsys.readouterr().out.strip()  # a text


@pytest.mark.parametrize("more", ["google=true", "onnx=true", "sentence_transformers=true", "head=masked_lm"])
def test_pair_refuses_other_export_layouts(more: str, tmp_path: Path, tokenizer: Tokenizer, capsys: Capsys) -> None:
    (tmp_path / "model").mkdir()
    write_model(small_pair(tokenizer), tokenizer, tmp_path / "model")
    code = run(["export", f"checkpoint={tmp_path / 'model'}", f"output_dir={tmp_path / 'out'}", more])
    refused(code, more.split("=")[0], capsys)
    assert not (tmp_path / "out").exists()
