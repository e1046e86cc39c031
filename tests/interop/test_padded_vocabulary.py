"""A model whose embeddings were padded for GPUs beyond its vocabulary: trained further, fine-tuned, predicted and exported."""

import json
from pathlib import Path

import pytest
import torch
from conftest import Capsys, refused, small_model
from safetensors.torch import load_file, save_file
from transformers import BertForPreTraining

import bertkit
from bertkit import load_tokenizer
from bertkit.cli import run


def padded(directory: Path, prepared_dir: Path, rows: int | None = None) -> int:
    """Write a model with unused embeddings, whose ids are the most probable everywhere; return the first of them."""
    tokenizer = load_tokenizer(prepared_dir)
    size = rows or -(-(tokenizer.vocab_size + 1) // 8) * 8
    bertkit.export_model(small_model(tokenizer.vocab_size), tokenizer, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        if len(tensor) == tokenizer.vocab_size:
            more = torch.full((size - len(tensor), *tensor.shape[1:]), 9.0 if "bias" in name else 0.01)
            tensors[name] = torch.cat([tensor, more])
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return tokenizer.vocab_size


def test_unused_embeddings_are_kept(prepared_dir: Path, tmp_path: Path) -> None:
    first = padded(tmp_path / "model", prepared_dir)
    short = {"segments.max_seq_length": 24, "steps": 1, "batch.sequences": 3}
    further = bertkit.pretrain(
        model_dir=str(tmp_path / "model"), data_dir=str(prepared_dir), output_dir=str(tmp_path / "run"), **short
    )
    out = tmp_path / "exported"
    bertkit.export(checkpoint=further.model_dir, output_dir=out)
    assert json.loads((out / "config.json").read_text())["vocab_size"] > first
    assert run(["verify", f"model_dir={out}", f"output={tmp_path / 'parity.json'}"]) == 0
    (masks,) = bertkit.predict(model_dir=tmp_path / "model", input=["kam [MASK] lom"])
    assert masks["masks"][0][0]["token"] == f"[{first}]"
    rows = [{"text": "one", "label": "a"}, {"text": "two", "label": "b"}]
    own = {"task.max_seq_length": 16, "num_epochs": 1}
    tuned = bertkit.finetune(model_dir=tmp_path / "model", train=rows, dev=rows, output_dir=tmp_path / "tuned", **own)
    assert len(bertkit.predict(model_dir=tuned, input=["one"])) == 1


@pytest.mark.parametrize("more", [1, 6, 35, 1000, 19_479])
def test_any_number_of_unused_embeddings_is_read_and_written_again(
    more: int, prepared_dir: Path, tmp_path: Path
) -> None:
    """35 has multilingual-e5-small, 1,000 an Italian BERT, and 19,479 IndoBERT."""
    size = load_tokenizer(prepared_dir).vocab_size + more
    padded(tmp_path / "model", prepared_dir, size)
    ours, theirs = bertkit.load_model(tmp_path / "model"), BertForPreTraining.from_pretrained(tmp_path / "model").eval()
    inputs = load_tokenizer(tmp_path / "model")("kam lom", return_tensors="pt")
    with torch.no_grad():
        logits, expected = ours(**inputs).logits["masked_lm"], theirs(**inputs).prediction_logits
    assert logits.shape == (1, len(inputs["input_ids"][0]), size)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    bertkit.export_model(ours, load_tokenizer(tmp_path / "model"), tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors")["bert.embeddings.word_embeddings.weight"].shape[0] == size


def test_fewer_embeddings_than_tokens_are_refused(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    padded(tmp_path / "model", prepared_dir)
    with (tmp_path / "model" / "vocab.txt").open("a") as file:
        file.write("".join(f"more{number}\n" for number in range(9)))
    (tmp_path / "model" / "tokenizer.json").unlink()
    command = ["export", f"checkpoint={tmp_path / 'model'}", f"output_dir={tmp_path / 'out'}"]
    refused(run(command), "the tokenizer has", capsys, alone=True)
