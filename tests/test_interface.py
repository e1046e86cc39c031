"""The lines of Python that users rely on, written as users write them: names, arguments, shapes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertkit
from bertkit.base import plugins

TEXTS = ["kan lon ten", "mir rur ten", "kan"]
ROWS = [{"text": text, "label": label} for text, label in zip(TEXTS[:2] * 8, ["a", "b"] * 8, strict=True)]
# the decorators of plug-ins that have a name for users
DECORATORS = ["objective", "masking", "head", "score", "positions", "schedule", "optimizer", "metric", "task"]
NAMES = [
    "pretrain",
    "finetune",
    "load_model",
    "load_tokenizer",
    "export_model",
    "open_dataset",
    "new_model",
    "Pretraining",
    "MaskedLM",
    "Finetuning",
    "fit",
    "load_predictor",
    "load_embedder",
    "BertClassifier",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_dir_lists_every_name() -> None:
    assert {*NAMES, *DECORATORS} <= {*dir(bertkit)}


def test_a_plug_in_has_the_shown_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_options", dict(plugins._options))

    @bertkit.masking("block")
    def block(ids, special, rng, policy): ...  # type: ignore[no-untyped-def]

    assert plugins._options["masking", "block"]


def test_a_loaded_model(tiny_runs: Path) -> None:
    model, tokenizer = bertkit.load_model(tiny_runs / "pre"), bertkit.load_tokenizer(tiny_runs / "pre")
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    encoded = tokenizer(TEXTS[:2], ["kan", "ten"], padding=True, return_tensors="pt")
    assert {*encoded} == {"input_ids", "attention_mask", "token_type_ids"}
    ids, mask, segments = encoded["input_ids"], encoded["attention_mask"], encoded["token_type_ids"]
    B, T = ids.shape
    out = model(input_ids=ids, attention_mask=mask, token_type_ids=segments, output_attentions=True)
    assert out.last_hidden_state.shape == (B, T, 26)
    assert out.pooled_output.shape == (B, 26)
    assert [weights.shape for weights in out.attentions] == [(B, 2, T, T)]
    assert out.hidden_states is None
    vocab_size = out.logits["masked_lm"].shape[2]
    assert out.logits["masked_lm"].shape == (B, T, vocab_size)
    assert out.logits["next_sentence"].shape == (B, 2)
    plain = model(input_ids=ids, output_hidden_states=True)
    assert plain.attentions is None
    assert isinstance(plain.hidden_states, tuple)
    assert len(plain.hidden_states) == 2
    masked_lm = bertkit.load_model(tiny_runs / "pre", heads=["masked_lm"])
    assert [*masked_lm(input_ids=ids).logits] == ["masked_lm"]
    assert Path(bertkit.export_model(model, tokenizer, "OUT"), "config.json").is_file()
    assert bertkit.load_model(tiny_runs / "fine")(input_ids=ids).logits["sequence"].shape == (B, 2)


def test_jobs_and_fit(prepared_dir: Path) -> None:
    data = bertkit.open_dataset(prepared_dir)
    model = bertkit.new_model("modern_tiny", data.tokenizer)
    job: Any = bertkit.Pretraining(model, data, bertkit.MaskedLM(probability=0.3), batch_sequences=2, max_seq_length=16)
    reports = [*bertkit.fit(job, steps=1, learning_rate=1e-3)]
    job = bertkit.Finetuning(model, "sequence", train=ROWS, dev=ROWS)
    reports += [*bertkit.fit(job, steps=1, learning_rate=1e-3)]
    assert [report.step for report in reports] == [1, 1]
    assert min(report.loss for report in reports) > 0


def test_a_predictor_and_an_embedder_take_any_iterable_of_texts(tiny_runs: Path) -> None:
    import pandas as pd

    predictor = bertkit.load_predictor(tiny_runs / "fine")
    embed = bertkit.load_embedder(tiny_runs / "pre", pooling="mean", normalize=True)
    for texts in (TEXTS, pd.Series(TEXTS), np.array(TEXTS), (text for text in TEXTS)):
        assert [{"label", "probabilities"} <= {*prediction} for prediction in predictor(texts)] == [True] * 3
    for texts in (TEXTS, pd.Series(TEXTS), np.array(TEXTS), (text for text in TEXTS)):
        vectors = embed(texts)
        assert (vectors.dtype, vectors.shape) == (np.float32, (3, 26))
        assert np.linalg.norm(vectors, axis=1) == pytest.approx([1.0] * 3, abs=1e-5)
    assert predictor(ROWS[:1])[0]["label"] in "ab"


def test_a_classifier(tiny_runs: Path) -> None:
    texts, labels = [row["text"] for row in ROWS], [row["label"] for row in ROWS]
    small = {"num_epochs": 1, "max_seq_length": 16}
    classifier = bertkit.BertClassifier(tiny_runs / "pre", **small).fit(texts, labels)
    assert classifier.predict_proba(texts).shape == (16, 2)
    assert {*classifier.predict(texts)} <= {"a", "b"}
    assert 0 <= classifier.score(texts, labels) <= 1
