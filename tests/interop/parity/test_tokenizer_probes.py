"""The certificate of a tokenizer: it finds what bertkit once dropped of a model's files, and no fault in a sound model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import Capsys
from interop.test_published_tokenizers import EXTRA, ROWS, VOCAB, model_of, saved

import bertkit
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer, wordpiece
from bertkit.interop.load import load_tokenizer
from bertkit.interop.parity import comparison, tokenizers

# the rows that are BERT's tokenizer, and nothing else
PLAIN = {"plain", "vocab.txt alone", "a mask that takes the space", "cleanly decoded"}
BEYOND = {
    "truncation_side",
    "truncation in tokenizer.json",
    "model_input_names",
    "the general class",
    "a class of its own",
}


def rebuilt(ours: Tokenizer, has_settings: bool) -> Tokenizer:
    """BERT's tokenizer with the vocabulary, as bertkit once read every WordPiece."""
    names = {"<s>": "[CLS]", "</s>": "[SEP]", "<unk>": "[UNK]"}
    vocab = {names.get(token, token): number for number, token in enumerate(ours.vocab[: len(VOCAB)])}
    return wordpiece(vocab, True, config=ours.words_by.config if has_settings else None)


@pytest.mark.parametrize("name", ROWS)
def test_what_is_dropped_of_a_tokenizer_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_of(tmp_path, ROWS[name])
    assert tokenizers.tokenizer_fault(folder) is None
    planted = rebuilt(load_tokenizer(folder), name not in BEYOND)
    monkeypatch.setattr(tokenizers, "load_tokenizer", lambda _: planted)
    fault = tokenizers.tokenizer_fault(folder)
    assert (fault is None) == (name in PLAIN), fault


def test_verify_says_which_text_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    """And in a model whose `pad_token_id` is that of [UNK], as that of `BertConfig()` often is, it finds no fault."""
    swapped = {"[PAD]": "[UNK]", "[UNK]": "[PAD]"}
    vocab = {swapped.get(token, token): number for number, token in enumerate(VOCAB)}
    fast = transformers.BertTokenizer(vocab=vocab, truncation_side="left")
    fast.add_special_tokens(EXTRA)
    fast.save_pretrained(tmp_path)
    torch.manual_seed(1)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 13}
    config = transformers.BertConfig(vocab_size=len(fast) + 19, max_position_embeddings=61, pad_token_id=0, **sizes)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    assert run(["verify", f"model_dir={tmp_path}"]) == 0
    capsys.readouterr()
    real = load_tokenizer(tmp_path)
    monkeypatch.setattr(tokenizers, "load_tokenizer", lambda _: rebuilt(real, has_settings=True))
    result: dict[str, Any] = comparison.certify(tmp_path, num_sequences=2)
    assert "the tokenizers have different sizes" in str(result["tokenizer_fault"])
    assert result["within_tolerance"] is False


def test_an_export_keeps_what_the_files_say(tmp_path: Path) -> None:
    saved(
        tmp_path, EXTRA, truncation_side="left", padding_side="left", model_input_names=["input_ids", "attention_mask"]
    )
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    config = json.loads(load_tokenizer(tmp_path).files(64)["tokenizer_config.json"])
    assert config["truncation_side"] == config["padding_side"] == "left"
    assert config["model_input_names"] == ["input_ids", "attention_mask"]


def test_the_pipeline_of_an_export_answers_as_predict_does(tmp_path: Path) -> None:
    """Added tokens, the side of truncation and token types decide about these labels."""
    source, out = tmp_path / "model", tmp_path / "out"
    source.mkdir()
    settings = {"truncation_side": "left", "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 31}
    saved(source, EXTRA, **settings)
    torch.manual_seed(2)
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 13}
    config = transformers.BertConfig(
        vocab_size=len(VOCAB) + 21, max_position_embeddings=31, initializer_range=0.9, num_labels=3, **sizes
    )
    transformers.BertForSequenceClassification(config).save_pretrained(source)
    bertkit.export(checkpoint=str(source), head="task", output_dir=str(out))
    classify = transformers.pipeline("text-classification", model=str(out), device="cpu", top_k=None)
    texts = ["the cat [E1] dog [/E1] sat", f"[E1] cat{' dog' * 40} sat [/E1]", "cat", "Amsterdam [E1]."]
    for rows in (texts, [{"text": text, "text_pair": texts[0]} for text in texts]):
        answers = classify(rows, truncation=True)
        predicted = bertkit.predict(input=rows, model_dir=str(source), device="cpu")
        for answer, row in zip(answers, predicted, strict=True):
            expected = {one["label"]: one["score"] for one in answer}
            assert row["probabilities"] == pytest.approx(expected, abs=1e-5)
