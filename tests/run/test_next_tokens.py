"""Causal models that predict the next token: batches, the loss, runs, what they write, and their export."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import Capsys, output_of, refused, weights_of

import bertkit
from bertkit.base.batch import Batch
from bertkit.cli import run
from bertkit.data.batches.sampling import Sampler
from bertkit.data.corpus.prepared import open_prepared
from bertkit.data.data_config import SegmentsConfig
from bertkit.interop.load import load_packed
from bertkit.objectives.losses import batch_losses
from bertkit.train.checkpoint_files import all_checkpoints

SMALL = [
    "device=cpu", "model=medium", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=32", "model.intermediate_size=64", "model.max_position_embeddings=48",
    "attention.pattern=causal", "segments.max_seq_length=24", "batch.sequences=8", "batch.micro_sequences=2", "steps=4",
    "checkpoint.every_steps=2", "reproducibility=strict", "schedule.warmup_steps=0", "model.initializer_range=0.2",
]  # fmt: skip
BLOCKS = SegmentsConfig("full_sentences", max_seq_length=24, short_seq_prob=0.0, next_sentence="none")
PROMPTS = ["kan lon ten", "mir", "kan lon ten mir rur kan lon"]


def command(data: Path, output: Path, *more: str) -> list[str]:
    return ["pretrain", f"data_dir={data}", f"output_dir={output}", *SMALL, *more]


@pytest.fixture(scope="module")
def writer(prepared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests do not change it."""
    run_dir = tmp_path_factory.mktemp("writer") / "run"
    assert run(command(prepared_dir, run_dir)) == 0
    return run_dir


def batch_of(prepared_dir: Path) -> Batch:
    dataset = open_prepared(prepared_dir)
    return Sampler(dataset.splits["held_out"], dataset.tokenizer.facts, BLOCKS, None, 0).in_order(0, 3)


def test_next_token_loss_equals_numpy(prepared_dir: Path, writer: Path) -> None:
    """The loss of packed sequences is that of each alone, computed with numpy from the logits at all of its positions."""
    batch, model = batch_of(prepared_dir), load_packed(writer)[0].eval().double()
    padded, total, count = bertkit.load_model(writer).double(), 0.0, 0
    for ids in np.split(batch.input_ids, np.cumsum(batch.sequence_lengths)[:-1]):
        with torch.no_grad():
            logits = padded(torch.from_numpy(ids)[None]).logits["next_token"][0].numpy()
        for place in range(len(ids) - 1):
            highest = logits[place].max()
            total += highest + np.log(np.exp(logits[place] - highest).sum()) - logits[place, ids[place + 1]]
            count += 1
    with torch.no_grad():
        term = batch_losses(model, batch)["lm"]
    assert (batch.loss_counts, term.count) == ({"lm": count}, count)
    assert float(term.sum) == pytest.approx(total, rel=1e-10)


def test_a_run_is_measured_resumed_and_split(
    writer: Path, prepared_dir: Path, tmp_path: Path, capsys: Capsys, torchrun: list[str]
) -> None:
    scores = json.loads((writer / "eval.json").read_text())
    assert scores["perplexity"] == pytest.approx(np.exp(scores["lm_loss"]))
    assert run(["evaluate", f"model_dir={writer}", f"data_dir={prepared_dir}", "segments.max_seq_length=24"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual["perplexity"] == pytest.approx(scores["perplexity"], rel=1e-5)
    assert "what the model writes" in (writer / "report.html").read_text()
    resumed = tmp_path / "resumed"
    assert run(command(prepared_dir, resumed, "steps=2", "schedule=constant")) == 0
    whole = tmp_path / "whole"
    assert run(command(prepared_dir, whole, "schedule=constant")) == 0
    assert run(command(prepared_dir, resumed, "schedule=constant")) == 0
    assert len(all_checkpoints(resumed)) > 1
    two = tmp_path / "two"
    output_of([*torchrun, *command(prepared_dir, two)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert weights_of(resumed) == weights_of(whole)
    assert weights_of(two) == weights_of(writer) != weights_of(whole)


@pytest.mark.parametrize("search", [{"num_beams": 1}, {"num_beams": 3}])
def test_transformers_writes_the_same(writer: Path, tmp_path: Path, search: dict[str, Any]) -> None:
    assert run(["export", f"model_dir={writer}", f"output_dir={tmp_path / 'hf'}"]) == 0
    certificate = json.loads((tmp_path / "hf" / "parity.json").read_text())
    assert certificate["architecture"] == "BertLMHeadModel"
    assert {"logits.next_token", "loss"} <= {row["what"] for row in certificate["comparisons"]}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ours = bertkit.load_predictor(tmp_path / "hf", task={"generation": {**search, "max_target_length": 15}})
    actual = [ours(PROMPTS)[n]["text"] for n in range(len(PROMPTS))]
    for text, prompt in zip(actual, PROMPTS, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"][:, :-1]
        written = theirs.generate(ids, max_new_tokens=15, do_sample=False, **search)[0, ids.shape[1] :]
        assert tokenizer.decode(written, skip_special_tokens=True) == text
    assert any(actual)


def test_long_prompt_keeps_its_end(writer: Path, capsys: Capsys) -> None:
    """Its end; a third of the model's 48 positions remain for the text with [CLS]."""
    arguments, long = (
        ["task.generation.max_target_length=32", "task.generation.num_beams=1"],
        "kan lon ten mir rur " * 20,
    )
    results = []
    for text in (long, "mir rur " + "kan lon ten mir rur " * 3):
        capsys.readouterr()
        assert run(["predict", f"model_dir={writer}", f"text={text}", *arguments]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert [row["truncated"] for row in results] == [True, True]
    assert results[0]["text"] == results[1]["text"]
    words = "task.generation.max_target_length=48: leaves no room"
    refused(run(["predict", f"model_dir={writer}", "text=kan", "task.generation.max_target_length=48"]), words, capsys)
    assert run(["predict", f"model_dir={writer}", f"text={'kan ' * 99}", "task.generation.max_target_length=5"]) == 0
    said = "1 of 1 texts lost their beginning: of task.max_seq_length=48 tokens task.generation.max_target_length=5 are for"
    assert said in capsys.readouterr().err


REFUSED = [
    (["attention.pattern=full", "objective=next_token"], "set attention.pattern=causal, not full"),
    (["segments=pairs"], "segments=pairs: objective=next_token predicts no next sentence; set next_sentence=none"),
    (["masking.probability=0.3"], "masking.probability: has no effect with objective=next_token"),
]


@pytest.mark.parametrize(("more", "message"), REFUSED)
def test_what_next_tokens_do_not_go_with(more: list[str], message: str, tmp_path: Path, capsys: Capsys) -> None:
    refused(run(command(tmp_path, tmp_path / "run", *more)), message, capsys)


def test_the_objective_implies_causal_attention(prepared_dir: Path, tmp_path: Path) -> None:
    """It does in ModernBERT's shape too, whose own pattern is another one."""
    settings = [each for each in SMALL if each != "attention.pattern=causal"]
    for attention in ("bert", "modern"):
        start = ["pretrain", f"data_dir={prepared_dir}", *settings, f"attention={attention}", "objective=next_token"]
        assert run([*start, f"output_dir={tmp_path / attention}"]) == 0
        model = load_packed(tmp_path / attention)[0]
        assert (set(model.heads), model.config.attention.pattern) == ({"next_token"}, "causal")


def test_a_model_goes_on_with_its_objective(writer: Path, prepared_dir: Path, tmp_path: Path) -> None:
    settings = [each for each in SMALL if not each.startswith(("model", "attention"))]
    start = [f"data_dir={prepared_dir}", f"model_dir={writer}", *settings]
    assert run(["pretrain", *start, f"output_dir={tmp_path / 'on'}"]) == 0
    assert set(load_packed(tmp_path / "on")[0].heads) == {"next_token"}
    assert "lm_loss" in json.loads((tmp_path / "on" / "eval.json").read_text())
    assert run(["pretrain", *start, "objective=masked_lm", "next_sentence=none", f"output_dir={tmp_path / 'mlm'}"]) == 0
    assert set(load_packed(tmp_path / "mlm")[0].heads) == {"masked_lm"}


def test_bigram_script_beats_unigrams(prepared_dir: Path) -> None:
    script = Path(__file__).parents[2] / "recipes" / "language_model" / "bigrams.py"
    perplexities = re.findall(
        r"(\w+): perplexity ([\d.]+)", output_of([sys.executable, script, prepared_dir, 1024, 24])
    )
    (_, unigrams), (_, bigrams) = perplexities
    assert 1 < float(bigrams) < float(unigrams) < 131
