"""MPNet: a file as it is published, buckets of distances and long texts beside `transformers`, and its tokenizers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from family_tokenizers import TEXTS, save_tokenizer
from safetensors.torch import load_file
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention

import bertkit
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.load import load_directory
from bertkit.interop.parity.comparison import certify
from bertkit.model.distances.tables import bucket_rows

# the keys of sentence-transformers/all-mpnet-base-v2, with small sizes
PUBLISHED: dict[str, Any] = {
    "_name_or_path": "microsoft/mpnet-base", "architectures": ["MPNetForMaskedLM"], "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 14,
    "initializer_range": 0.02, "intermediate_size": 23, "layer_norm_eps": 1e-5, "max_position_embeddings": 514,
    "model_type": "mpnet", "num_attention_heads": 2, "num_hidden_layers": 3, "pad_token_id": 1,
    "relative_attention_num_buckets": 32, "transformers_version": "4.8.2", "vocab_size": 67,
}  # fmt: skip


def saved(folder: Path, class_name: str = "MPNetModel", **more: Any) -> Any:
    """A model with random weights, saved by `transformers`."""
    torch.manual_seed(3)
    settings = {key: value for key, value in (PUBLISHED | more).items() if key != "model_type"}
    theirs = getattr(transformers, class_name)(transformers.MPNetConfig(**settings)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    theirs.save_pretrained(folder)
    return theirs


@pytest.mark.parametrize(("buckets", "most"), [(16, 128), (16, 40), (7, 30), (5, 9), (2, 4)])
def test_rows_of_distances_are_those_of_transformers(buckets: int, most: int) -> None:
    for reach in (0, 1, 17, 1500):
        distances = torch.arange(-reach, reach + 1)
        for theirs in (MPNetEncoder.relative_position_bucket, T5Attention._relative_position_bucket):
            expected = theirs(distances, num_buckets=2 * buckets, max_distance=most)
            assert torch.equal(bucket_rows(reach, most, buckets), expected)


def test_a_file_as_it_is_published(tmp_path: Path) -> None:
    """An encoder whose file names the class of a masked LM, with a buffer of old versions."""
    theirs = saved(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    buffer = {"embeddings.position_ids": torch.arange(514)[None]}
    torch.save(tensors | buffer, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    model, report = load_directory(tmp_path)
    assert (list(model.heads), report.skipped.keys(), report.new) == ([], buffer.keys(), [])
    assert model.config.max_position_embeddings == 512
    lengths = torch.tensor([[512], [13], [290], [1]])  # beyond the last bucket, and within the first
    ids, mask = torch.randint(2, 67, (4, 512)), (torch.arange(512) < lengths).long()
    ids[2, 5:9] = 1  # padding that is written in a text, and has no position
    ids[mask == 0] = 1
    theirs.embeddings.position_embeddings.weight.data[1] = 0  # as training leaves it
    expected = theirs(input_ids=ids, attention_mask=mask)
    actual = bertkit.load_model(tmp_path)(ids, mask)
    both = actual.last_hidden_state[mask.bool()], expected.last_hidden_state[mask.bool()]
    torch.testing.assert_close(*both, rtol=0, atol=2e-5)
    torch.testing.assert_close(actual.pooled_output, expected.pooler_output, rtol=0, atol=2e-5)
    left = bertkit.load_model(tmp_path)(ids[1:2, :13].roll(3, 1), (torch.arange(13) > 2).long()[None])
    expected_left = theirs(input_ids=ids[1:2, :10]).last_hidden_state
    torch.testing.assert_close(left.last_hidden_state[:, 3:], expected_left, rtol=0, atol=2e-5)
    assert certify(tmp_path, num_sequences=2)["within_tolerance"]


def test_dropout_before_its_heads_is_that_of_its_layers(tmp_path: Path) -> None:
    """`classifier_dropout` is BERT's key, which nothing reads here."""
    for head, name in (("sequence", "SequenceClassification"), ("token", "TokenClassification")):
        saved(tmp_path / head, f"MPNetFor{name}", hidden_dropout_prob=0.2)
        path = tmp_path / head / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"classifier_dropout": 0.45}))
        model = bertkit.load_model(tmp_path / head).model
        assert model.heads[head].dropout.prob == 0.2
        assert model.bert.pooler_dropout.prob == (0.2 if head == "sequence" else 0.0)


@pytest.mark.parametrize("names_class", [True, False])
def test_a_vocabulary_alone_is_that_of_its_class(names_class: bool, tmp_path: Path) -> None:
    """Of its [CLS] and <s>, MPNet begins a text with the second one; `transformers` 4 saved vocab.txt alone."""
    size = save_tokenizer("mpnet", tmp_path)
    vocab = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    saved(tmp_path, vocab_size=size)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(vocab, key=vocab.__getitem__)))
    if names_class:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MPNetTokenizer"}))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), bertkit.load_tokenizer(tmp_path)
    texts = [*TEXTS, "a <mask>b", "[CLS] <s>", ""]
    for seconds in (None, texts[::-1]):
        assert ours(texts, seconds)["input_ids"] == theirs(texts, seconds)["input_ids"]
    assert ours("a", "b")["input_ids"].count(vocab["</s>"]) == 3


@pytest.mark.slow
def test_onnx(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """An export in onnxruntime equals `transformers`, for texts of other lengths than the one that was traced."""
    saved(tmp_path / "theirs", "MPNetForSequenceClassification", vocab_size=tokenizer.vocab_size)
    bertkit.export_model(bertkit.load_model(tmp_path / "theirs"), tokenizer, tmp_path / "model")
    bertkit.export(model_dir=tmp_path / "model", head="task", onnx=True, output_dir=tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "parity.json").read_text())["onnx"]
    assert {tuple(row["shape"]) for row in rows} == {(1, 7), (3, 61), (2, 128)}
    assert max(row["max_abs"] for row in rows) < 1e-5
