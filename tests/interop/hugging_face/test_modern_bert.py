"""ModernBERT: every class beside `transformers`, checkpoints that it wrote, and what bertkit refuses of its settings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import Capsys, options_so_far
from torch import Tensor

import bertkit
from bertkit.base import plugins
from bertkit.base.batch import Batch
from bertkit.base.errors import InputError
from bertkit.cli import run
from bertkit.data.batches.sampling import Sampler
from bertkit.data.corpus.prepared import open_prepared
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.data.data_config import MaskingConfig, SegmentsConfig
from bertkit.interop.hugging_face.bert import VariantArchitecture
from bertkit.interop.hugging_face.config_json import not_in_transformers
from bertkit.interop.hugging_face.directory import write_model
from bertkit.interop.hugging_face.modern_bert import ModernBertArchitecture, modern_attention
from bertkit.interop.load import load_directory
from bertkit.interop.padded import PaddedBert
from bertkit.interop.parity.comparison import certify
from bertkit.model.bert_config import BertConfig, FeedForwardConfig, HeadConfig, NormConfig
from bertkit.model.head.head import any_pooled
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights
from bertkit.objectives.losses import batch_losses
from bertkit.run.memory_plan import num_weights
from bertkit.train import loop
from bertkit.train.accelerator import make_accelerator
from bertkit.train.loop import Course, Learner
from bertkit.train.optimizer import AdamW, parameter_groups
from bertkit.train.train_config import OptimizerConfig

CLASSES = {heads: name for heads, name in ModernBertArchitecture.classes.items() if heads}
WINDOW = 8
SHAPE: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 2, "intermediate_size": 44,
    "max_position_embeddings": 300, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None, "cls_token_id": None,
    "sep_token_id": None,
}  # fmt: skip


def config_of(vocab_size: int, bias: bool = False, pooling: str = "cls") -> BertConfig:
    return BertConfig(
        hidden_size=32, num_hidden_layers=5, num_attention_heads=2, intermediate_size=44, hidden_act="gelu",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=300, type_vocab_size=0,
        initializer_range=0.3, layer_norm_eps=1e-5, scale_outputs=True, task_transform=True, vocab_size=vocab_size,
        attention=modern_attention(bias=bias, window=WINDOW, rotary_base=160_000.0), pooling=pooling,
        norm=NormConfig(placement="pre", bias=bias, before_first=False), feed_forward=FeedForwardConfig(kind="glu", bias=bias),
    )  # fmt: skip


def model_of(config: BertConfig, heads: tuple[str, ...]) -> BertWithHeads:
    model = BertWithHeads(config, heads, with_pooler=any_pooled(heads))
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("heads", ModernBertArchitecture.classes, ids=ModernBertArchitecture.classes.values())
def test_each_class_computes_what_transformers_does(
    heads: tuple[str, ...], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """In float64 within 1e-10: hidden states, logits, losses and gradients; also in sequences much longer than a window."""
    has_more = heads == ("sequence",)  # the rarer settings
    config = config_of(tokenizer.vocab_size, has_more, "plain_mean" if has_more else "cls")
    model = model_of(config, heads)
    write_model(model, tokenizer, tmp_path)
    loaded, report = load_directory(tmp_path)
    assert replace(loaded.config, labels=config.labels) == config
    assert not report.new
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    certificate = certify(tmp_path)
    assert (certificate["within_tolerance"], certificate["rewritten_because"]) == (True, None)
    of_float64 = [row for row in certificate["comparisons"] if row["dtype"] == "float64"]
    assert {row["what"].partition(".")[0] for row in of_float64} >= {"hidden_states", "gradient"}
    assert all(row["max_rel"] < 1e-10 for row in of_float64)


def saved_by_transformers(folder: Path, class_name: str, **settings: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(**{**SHAPE, "local_attention": 2 * WINDOW, **settings})
    theirs: torch.nn.Module = getattr(transformers, class_name)(config).eval()
    for name, parameter in theirs.named_parameters():
        if name.endswith("norm.weight") or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    theirs.save_pretrained(folder)  # type: ignore[operator]
    return theirs


def logits_of(out: Any, head: str) -> Tensor:
    return torch.stack([out.start_logits, out.end_logits], -1) if head == "span" else out.logits


@pytest.mark.parametrize("heads", CLASSES, ids=CLASSES.values())
def test_what_transformers_saved_has_its_logits(heads: tuple[str], tmp_path: Path) -> None:
    theirs = saved_by_transformers(
        tmp_path, CLASSES[heads], classifier_pooling="mean", norm_bias=True, global_attn_every_n_layers=2
    )
    ours = bertkit.load_model(tmp_path)
    ids = torch.randint(1, 40, (6, 50), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(50) < torch.tensor([50, 3, 17, 50, 33, 9])[:, None]).long()
    if heads == ("choice",):
        ids, mask = ids.view(2, 3, 50), mask.view(2, 3, 50)
    with torch.no_grad():
        expected = logits_of(theirs(input_ids=ids, attention_mask=mask), heads[0])
        actual = ours(ids, mask).logits[heads[0]]
    is_token = mask.bool() if expected.dim() == 3 else ...
    torch.testing.assert_close(actual[is_token], expected[is_token], rtol=0, atol=2e-5)
    assert expected[is_token].std() > 0.01


@pytest.mark.parametrize("head", ["sequence", "token"])
@pytest.mark.parametrize("num_labels", [3, SHAPE["hidden_size"]])
def test_labels_in_another_order_change_the_order_of_the_logits_alone(
    head: str, num_labels: int, tmp_path: Path
) -> None:
    """Also with as many labels as the transform before the last map has rows, which keep their order."""
    names = [f"label {number}" for number in range(num_labels)]
    theirs = saved_by_transformers(tmp_path, CLASSES[head,], id2label=dict(enumerate(names)))
    ours, report = load_directory(tmp_path, [head], labels=names[::-1])
    assert (report.new, ours.config.labels) == ([], tuple(names[::-1]))
    ids = torch.randint(1, 40, (3, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        actual, expected = PaddedBert(ours).eval()(ids).logits[head], theirs(input_ids=ids).logits
    torch.testing.assert_close(actual, expected.flip(-1), rtol=0, atol=2e-5)


def test_a_config_of_transformers_4_is_read(tmp_path: Path) -> None:
    """With the settings by their old names, as in the published config.json."""
    saved_by_transformers(tmp_path, "ModernBertForMaskedLM")
    before = bertkit.load_model(tmp_path).config
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    for name in ("layer_types", "rope_parameters"):
        del content[name]
    path.write_text(
        json.dumps(
            content | {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
        )
    )
    assert bertkit.load_model(tmp_path).config == before
    path.write_text(
        json.dumps(content | {"global_attn_every_n_layers": 2, "global_rope_theta": 500.0, "local_rope_theta": 20.0})
    )
    other = bertkit.load_model(tmp_path).config.attention
    assert (other.full_every, other.rotary_base, other.rotary_local_base) == (2, 500.0, 20.0)
    rope = {"sliding_attention": {"rope_type": "default"}, "full_attention": {"rope_theta": 600.0}}
    path.write_text(
        json.dumps(content | {"global_rope_theta": 500.0, "local_rope_theta": 20.0, "rope_parameters": rope})
    )
    mixed = bertkit.load_model(tmp_path).config.attention
    assert (mixed.rotary_base, mixed.rotary_local_base) == (600.0, 20.0)  # as transformers 5 reads both


@pytest.mark.parametrize(("layers", "heads"), [("silu", None), ("gelu", "silu")])
def test_heads_may_have_their_own_activation(layers: str, heads: str | None, tmp_path: Path) -> None:
    """GELU in `transformers` where a config lacks it; published models have SiLU in one place or the other."""
    saved_by_transformers(tmp_path, "ModernBertForMaskedLM", hidden_activation=layers)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    del content["classifier_activation"]
    path.write_text(json.dumps(content if heads is None else content | {"classifier_activation": heads}))
    certificate = certify(tmp_path)
    assert (certificate["within_tolerance"], certificate["rewritten_because"]) == (True, None)
    loaded, _ = load_directory(tmp_path)
    again = ModernBertArchitecture().content(loaded.config, "ModernBertForMaskedLM", torch.float32)
    assert (again["hidden_activation"], again["classifier_activation"]) == (layers, heads or "gelu")
    own = VariantArchitecture()
    variant = own.settings(own.content(loaded.config, "ModernBertForMaskedLM", torch.float32), {})
    assert variant["head_act"] == loaded.config.head_act != layers


def test_a_classifier_without_the_name_of_its_class_is_refused(tmp_path: Path) -> None:
    """The weights of a tagger have the names of a sequence classifier's; those of a masked LM head are its own."""
    for class_name in ("ModernBertForTokenClassification", "ModernBertForMaskedLM"):
        saved_by_transformers(tmp_path / class_name, class_name)
        path = tmp_path / class_name / "config.json"
        content = json.loads(path.read_text())
        del content["architectures"]
        path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r'add the model\'s class, such as "architectures": \["ModernBertForTokenCl'):
        bertkit.load_model(tmp_path / "ModernBertForTokenClassification")
    assert list(bertkit.load_model(tmp_path / "ModernBertForMaskedLM").model.heads) == ["masked_lm"]


def test_nothing_is_said_of_causal_attention_that_a_modernbert_does_not_have(tmp_path: Path, capsys: Capsys) -> None:
    saved_by_transformers(tmp_path, "ModernBertForMaskedLM", is_decoder=True)
    assert json.loads((tmp_path / "config.json").read_text())["is_decoder"]
    bertkit.load_model(tmp_path)
    assert "causal" not in capsys.readouterr().err


@pytest.mark.parametrize(("settings", "message"), [
    ({"classifier_bias": True}, "classifier_bias=True with mlp_bias=False is not supported"),
    ({"decoder_bias": False}, "decoder_bias=False is not supported; bertkit loads True only"),
    ({"local_attention": 1}, "local_attention=1: expected a whole number from 2"),
    ({"mlp_bias": True}, "classifier_bias=False with mlp_bias=True is not supported"),
    ({"mlp_dropout": 1.5}, ": mlp_dropout=1.5: expected"),
    ({"classifier_activation": "maxout"}, ": classifier_activation='maxout': expected"),
    ({"global_attn_every_n_layers": 0, "layer_types": None}, ": global_attn_every_n_layers=0: expected"),
    ({"head_dim": 4}, "head_dim=4 is not supported"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
    ({"classifier_pooling": "max"}, "classifier_pooling='max': expected cls or mean"),
    ({"layer_types": ["sliding_attention"] * 5}, "expected full_attention in the first layer, and then at equal distances"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "expected one for each of num_hidden_layers=5"),
    ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type='yarn' is not supported; bertkit loads 'default' only"),
    ({"rope_parameters": {"sliding_attention": {"type": "linear", "factor": 2.0}}}, "type='linear', factor=2.0 is not supported"),
    ({"rope_parameters": {"rope_type": "linear"}}, "{'rope_type': 'linear'}: expected settings for full_attention and sliding_attention"),
    ({"rope_scaling": {"rope_type": "linear"}}, "rope_type='linear' is not supported; bertkit loads 'default' only"),
])  # fmt: skip
def test_settings_that_bertkit_lacks_are_refused_in_one_line(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    saved_by_transformers(tmp_path, "ModernBertForMaskedLM")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(InputError) as error:
        bertkit.load_model(tmp_path)
    assert message in str(error.value)
    assert str(error.value).count("\n") == 0


def test_a_new_task_head_begins_with_the_masked_lm_head(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """As in `transformers`, where both are called `head`."""
    model = model_of(config_of(tokenizer.vocab_size), ("masked_lm",))
    write_model(model, tokenizer, tmp_path)
    tuned, report = load_directory(tmp_path, ("token",), labels=("O", "B"))
    assert report.new == ["heads.token.dense.weight", "heads.token.dense.bias"]
    theirs = transformers.ModernBertForTokenClassification.from_pretrained(tmp_path)
    for ours, name in (("transform.dense.weight", "dense.weight"), ("transform.norm.weight", "norm.weight")):
        expected = theirs.head.get_parameter(name)
        assert torch.equal(tuned.heads["token"].get_parameter(ours), expected)
        assert torch.equal(model.heads["masked_lm"].get_parameter(name), expected)


class AlmostLinear(torch.nn.Module):
    """A plug-in's head, which computes in evaluation what a linear map does."""

    is_exported = True

    def __init__(self, config: BertConfig, num_outputs: int) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(config.hidden_size, num_outputs)

    def forward(self, vectors: Tensor) -> Tensor:
        return self.dense(vectors)  # type: ignore[no-any-return]


def test_a_linear_head_of_a_plug_in_is_saved_as_such(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ModernBERT's own has a transform before it; the error about an export names the head alone."""
    monkeypatch.setattr(plugins, "_options", {**options_so_far(), ("head", "almost_linear"): AlmostLinear})
    config = replace(config_of(tokenizer.vocab_size), head=HeadConfig(kind="almost_linear"))
    model = model_of(config, ("sequence",))
    write_model(model, tokenizer, tmp_path)
    assert load_directory(tmp_path).model.config.head == config.head
    assert not_in_transformers(model) == ["head.kind=almost_linear"]


def test_output_matrices_begin_smaller() -> None:
    """Shoeybi et al. 2019: by 1 / sqrt(2 L)."""
    model = model_of(config_of(40), ("masked_lm",))
    layer = model.bert.encoder.layers[1]
    full = float(layer.attention.query.weight.detach().std())
    for matrix in (layer.attention.output, layer.feed_forward.output, model.heads["masked_lm"].dense):
        assert float(matrix.weight.detach().std()) / full == pytest.approx(10**-0.5, rel=0.1)
    unscaled = model_of(replace(config_of(40), scale_outputs=False), ("masked_lm",))
    assert float(unscaled.bert.encoder.layers[1].attention.output.weight.detach().std()) / full == pytest.approx(
        1, rel=0.1
    )


@pytest.mark.parametrize("has_bias", [True, False])
def test_weights_are_counted_before_the_model_is_made(has_bias: bool) -> None:
    """For the check of memory."""
    config = config_of(40, has_bias)
    for each in (config, replace(config, type_vocab_size=3), replace(config, feed_forward=FeedForwardConfig())):
        model = BertWithHeads(each, (), with_pooler=False)
        assert num_weights(each) == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.slow
def test_onnx_computes_windows_too(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """For every token; a padding whose window has padding alone has any value."""
    pytest.importorskip("onnxruntime")
    write_model(model_of(config_of(tokenizer.vocab_size), ("token",)), tokenizer, tmp_path)
    assert run(["export", f"model_dir={tmp_path}", f"output_dir={tmp_path / 'out'}", "onnx=true"]) == 0
    rows = json.loads((tmp_path / "out" / "parity.json").read_text())["onnx"]
    assert max(row["shape"][1] for row in rows) > 4 * WINDOW
    assert max(row["max_abs"] for row in rows) < 1e-5


@pytest.mark.slow
def test_onnx_may_round_large_logits(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """By more than 1e-4, as `transformers` does itself."""
    pytest.importorskip("onnxruntime")
    model = model_of(config_of(tokenizer.vocab_size), ("masked_lm",))
    with torch.no_grad():
        model.bert.embeddings.token.weight.mul_(300)
    write_model(model, tokenizer, tmp_path)
    assert run(["export", f"model_dir={tmp_path}", f"output_dir={tmp_path / 'out'}", "onnx=true"]) == 0
    rows = json.loads((tmp_path / "out" / "parity.json").read_text())["onnx"]
    assert max(row["max_abs"] for row in rows) > 1e-4
    assert max(row["max_abs"] / row["largest"] for row in rows) < 1e-5


def test_steps_of_training_are_those_of_transformers(prepared_dir: Path, tmp_path: Path) -> None:
    """The same weights, batches and rates: losses and weights of six steps, beside torch's AdamW with the Trainer's settings."""
    dataset, length, size = open_prepared(prepared_dir), 31, 5
    masking, segments = MaskingConfig(0.3, 0.8, 0.1), SegmentsConfig("full_sentences", length, 0.0, "none")
    sampler = Sampler(dataset.splits["train"], dataset.tokenizer.facts, segments, masking, seed=0)
    ours = model_of(config_of(dataset.tokenizer.vocab_size), ("masked_lm",)).train()
    write_model(ours, dataset.tokenizer, tmp_path / "start")
    theirs = transformers.ModernBertForMaskedLM.from_pretrained(tmp_path / "start", sparse_prediction=True).train()
    before = {name: parameter.detach().clone() for name, parameter in theirs.named_parameters()}
    groups = [
        {"params": [each for each in theirs.parameters() if (each.ndim > 1) == is_matrix], "weight_decay": decay}
        for is_matrix, decay in ((True, 0.01), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
    config = OptimizerConfig("adamw", 1e-3, 0.9, 0.999, 1e-8, 0.01, True, 1.0)
    learner = Learner(make_accelerator("cpu", 1), ours, AdamW(parameter_groups(ours, 0.01), config), batch_losses)

    def batch_of(step: int) -> Batch:
        return sampler.take(np.arange(size) + step * size)

    course = Course(lambda step: [(0, batch_of(step))], lambda step: 1e-3 / (1 + step), 0, 6, max_grad_norm=1.0, seed=0)
    for step, report in enumerate(loop.train(learner, course)):
        batch = batch_of(step)
        mask = torch.arange(length) < torch.from_numpy(batch.sequence_lengths)[:, None]
        inputs, labels = torch.zeros(mask.shape, dtype=torch.long), torch.full(mask.shape, -100)
        targets = torch.full((len(batch.input_ids),), -100)
        targets[batch.masked_positions] = torch.from_numpy(batch.masked_labels)
        inputs[mask], labels[mask] = torch.from_numpy(batch.input_ids), targets
        loss = theirs(input_ids=inputs, attention_mask=mask.long(), labels=labels).loss
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0) > 1  # the gradient is cut
        assert sum(report.losses.values()) == pytest.approx(float(loss.detach()), rel=1e-5)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 / (1 + step)
        optimizer.step()
        optimizer.zero_grad()
    write_model(ours, dataset.tokenizer, tmp_path / "end")
    ended = dict(transformers.ModernBertForMaskedLM.from_pretrained(tmp_path / "end").named_parameters())
    for name, parameter in theirs.named_parameters():
        assert (parameter - ended[name]).norm() < 1e-3 * (parameter - before[name]).norm(), name
