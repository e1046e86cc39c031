"""Evaluation on a prepared dataset: fixed, split by split, and refused where nothing fits."""

import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import Capsys, make_text, refused, small_model, write_text

from bertkit import export_model, load_model, load_tokenizer
from bertkit.base.files import sha256_file
from bertkit.base.typed_settings import build
from bertkit.cli import run
from bertkit.data.batches.examples import open_examples
from bertkit.data.batches.instances import open_instances
from bertkit.data.corpus.prepared import open_prepared
from bertkit.data.corpus.tokenizer import SPECIAL_TOKENS, Tokenizer
from bertkit.inference import pseudo_perplexity
from bertkit.inference.pseudo_perplexity import sample_sentences
from bertkit.interop.load import load_directory
from bertkit.jobs.phases import make_phases
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose
from bertkit.train.log import read_metrics


def evaluate(capsys: Capsys, *arguments: object) -> dict[str, Any]:
    return evaluate_task(capsys, *arguments, "segments.max_seq_length=40")


@pytest.fixture
def model_dir(prepared_dir: Path, tmp_path: Path) -> Path:
    tokenizer = load_tokenizer(prepared_dir)
    return export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path / "model")


def test_the_numbers_are_fixed_and_do_not_depend_on_the_batch(
    prepared_dir: Path, model_dir: Path, capsys: Capsys
) -> None:
    arguments = (f"model_dir={model_dir}", f"data_dir={prepared_dir}")
    first, second = evaluate(capsys, *arguments), evaluate(capsys, *arguments, "batch_sequences=7")
    assert {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"} <= set(first)
    assert first.pop("split") == second.pop("split") == "train+held_out"
    assert first == pytest.approx(second, rel=1e-5)
    assert evaluate(capsys, *arguments, "seed=1")["mlm_loss"] != first["mlm_loss"]


def test_all_is_the_weighted_mean_of_both_splits(prepared_dir: Path, model_dir: Path, capsys: Capsys) -> None:
    arguments = (f"model_dir={model_dir}", f"data_dir={prepared_dir}")
    train, held_out, both = (evaluate(capsys, *arguments, f"split={name}") for name in ("train", "held_out", "all"))
    assert evaluate(capsys, *arguments) == both
    low, high = sorted((train["mlm_loss"], held_out["mlm_loss"]))
    assert low < both["mlm_loss"] < high


def test_a_model_is_measured_on_what_it_was_not_trained_on(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    small = [
        "model=medium",
        "model.num_hidden_layers=2",
        "model.num_attention_heads=2",
        "model.hidden_size=32",
        "segments.max_seq_length=40",
        "steps=2",
        "device=cpu",
    ]
    assert run(["pretrain", f"data_dir={prepared_dir}", f"output_dir={tmp_path / 'run'}", *small]) == 0
    checkpoint = "run/checkpoints/step-00000002"
    models = [f"model_dir={tmp_path / name}" for name in ("run", "run/model", checkpoint)]
    results = [evaluate(capsys, model, f"data_dir={prepared_dir}") for model in models]
    assert results[0] == results[1] == results[2]
    result = results[0]
    assert result["split"] == "held_out"
    final = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert result["mlm_loss"] == pytest.approx(final["mlm_loss"], rel=1e-5)


def test_pseudo_perplexity_is_that_of_transformers(prepared_dir: Path, model_dir: Path, capsys: Capsys) -> None:
    """Salazar et al. 2020: each token of five held-out sentences hidden in turn."""
    theirs, facts = (
        transformers.AutoModelForMaskedLM.from_pretrained(model_dir).eval(),
        load_tokenizer(prepared_dir).facts,
    )
    split = open_prepared(prepared_dir).splits["held_out"]
    borders = split.sentences.tolist()
    known = {tuple(split.tokens(start, end - start).tolist()) for start, end in itertools.pairwise(borders)}
    sentences, losses = sample_sentences([split], 40, 5), []
    assert len(sentences) == 5
    assert {tuple(sentence) for sentence in sentences} <= known
    for sentence in sentences:
        for place in range(1, len(sentence) + 1):
            ids = torch.tensor([[facts.cls, *sentence, facts.sep]])
            ids[0, place] = facts.mask
            with torch.no_grad():
                logits = theirs(input_ids=ids).logits[0, place]
            losses.append(float(-logits.log_softmax(-1)[sentence[place - 1]]))
    arguments = (f"model_dir={model_dir}", f"data_dir={prepared_dir}", "split=held_out", "max_sequences=5")
    result = evaluate(capsys, *arguments)
    assert result["pseudo_perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    assert result["pseudo_perplexity_tokens"] == len(losses) == sum(map(len, sentences))


def test_sentences_of_all_splits_within_the_budget(prepared_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = open_prepared(prepared_dir).splits
    monkeypatch.setattr(pseudo_perplexity, "MOST_TOKENS", 10**6)
    every = sample_sentences([splits["held_out"], splits["train"]], 40, None)
    assert len(every) == sum(len(split.sentences) - 1 for split in splits.values())
    assert sum(map(len, every)) == sum(split.num_tokens for split in splits.values())
    monkeypatch.setattr(pseudo_perplexity, "MOST_TOKENS", 1000)
    few = sample_sentences([splits["train"]], 7, None)
    assert 900 < sum(len(sentence) * (len(sentence) + 2) for sentence in few) <= 1000
    assert max(map(len, few)) == 5


# ---- fixed instances


@pytest.fixture(scope="module")
def google_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared dataset with fixed instances of whole words."""
    folder = tmp_path_factory.mktemp("google")
    corpus = write_text(folder / "corpus.txt", make_text(31))
    more = [
        "segments.max_seq_length=40", "segments.dupe_factor=2", "masking.whole_word=true", "tokenizer.vocab_size=131",
    ]  # fmt: skip
    arguments = [f"corpus.path={corpus}", f"output_dir={folder / 'data'}"]
    assert run(["prepare", "segments=google", *arguments, *more]) == 0
    return folder / "data"


@pytest.fixture(scope="module")
def google_model(google_dir: Path) -> Path:
    tokenizer = load_tokenizer(google_dir)
    return export_model(small_model(tokenizer.vocab_size), tokenizer, google_dir.parent / "model")


def test_stored_instances_are_measured_as_they_are(google_dir: Path, google_model: Path, capsys: Capsys) -> None:
    arguments = (f"model_dir={google_model}", f"data_dir={google_dir}")
    result, again = evaluate(capsys, *arguments), evaluate(capsys, *arguments, "segments=google", "batch_sequences=7")
    assert result.pop("split") == again.pop("split") == "train"
    assert result == pytest.approx(again, rel=1e-5)
    assert {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"} <= set(result)

    instances = open_instances(open_prepared(google_dir))
    batch = instances.batch(np.arange(len(instances)))
    predicted, right = 0, 0
    model = load_model(google_model)
    ends = np.cumsum(batch.sequence_lengths)
    for start, end in zip(ends - batch.sequence_lengths, ends, strict=True):  # one by one, by hand
        here = (batch.masked_positions >= start) & (batch.masked_positions < end)
        ids, types = (torch.tensor(column[start:end])[None] for column in (batch.input_ids, batch.token_type_ids))
        with torch.no_grad():
            logits = model(input_ids=ids, token_type_ids=types).logits["masked_lm"][0]
        guesses = logits.argmax(-1).numpy()[batch.masked_positions[here] - start]
        predicted, right = predicted + here.sum(), right + (guesses == batch.masked_labels[here]).sum()
    assert result["mlm_accuracy"] == pytest.approx(right / predicted, abs=1e-6)


@pytest.mark.parametrize(("more", "line"), [
    (["segments.max_seq_length=32"], "(segments.max_seq_length=32 here, 40 there)"),
    (["masking=bert"], "(masking.kind='bert' here, 'whole_word' there)"),
    (["masking=ngram"], "(masking.kind='ngram' here, 'whole_word' there; masking.options={'max_ngram': 3} here, None there)"),
    (["segments=google", "segments.dupe_factor=3", "masking.probability=0.2"],
     "(segments.dupe_factor=3 here, 2 there; masking.probability=0.2 here, 0.15 there)"),
    (["split=held_out"], "split=held_out"),
    (["split=all"], "split=all"),
    (["seed=3"], "seed=3: has no effect"),
    (["segments=pairs", "segments.max_seq_length=40", "split=held_out"], "leave segments out to measure the instances"),
])  # fmt: skip
def test_what_contradicts_stored_instances_is_refused(
    google_dir: Path, google_model: Path, more: list[str], line: str, capsys: Capsys
) -> None:
    capsys.readouterr()
    refused(run(["evaluate", f"model_dir={google_model}", f"data_dir={google_dir}", *more]), line, capsys)


SMALL = [
    "device=cpu",
    "model=medium",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=2",
    "model.hidden_size=32",
    "model.intermediate_size=64",
    "batch.sequences=12",
]


def test_pretraining_on_stored_instances(google_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    """It needs none of the settings they were made with, and accepts them."""
    arguments = ["pretrain", f"data_dir={google_dir}", "segments=google", *SMALL, "steps=3"]
    same = ["segments.max_seq_length=40", "masking=whole_word"]
    weights = []
    for name, more in (("plain", []), ("named", same), ("again", ["model.max_position_embeddings=40"])):
        assert run([*arguments, f"output_dir={tmp_path / name}", *more]) == 0
        weights.append(sha256_file(tmp_path / name / "model" / "model.safetensors"))
    assert weights[0] == weights[1] != weights[2]
    printed = capsys.readouterr().out
    assert "no held-out documents, so no evaluation" in printed
    assert "tokenized by Google's rules; the tokenizer of the exported model follows Hugging Face's" in printed
    assert run([*arguments, f"output_dir={tmp_path / 'plain'}", *same]) == 0
    assert "done already" in capsys.readouterr().out
    assert run([*arguments, f"output_dir={tmp_path / 'plain'}", "segments.max_seq_length=64"]) == 2
    assert "segments.max_seq_length=64 here, 40 there" in capsys.readouterr().err
    exported = load_tokenizer(tmp_path / "plain" / "model")
    assert (exported.rules, load_tokenizer(google_dir).rules) == ("hugging_face", "google")


def test_the_seed_of_a_run_orders_the_stored_instances(google_dir: Path, tmp_path: Path) -> None:
    dataset = open_prepared(google_dir)
    arguments = ["data_dir=x", "output_dir=y", "segments=google", "segments.max_seq_length=40", "steps=100", *SMALL]
    tokens = []
    for seed in (0, 3):
        settings = build(PretrainSettings, compose("pretrain", [*arguments, f"seed={seed}"]))
        examples = open_examples(dataset, settings.segments, settings.masking, settings.explicit_keys)
        phases = make_phases(settings, 100, examples, tmp_path, [12])
        ((_, batch),) = phases.micro_batches(0, 0, 1)
        tokens.append(batch.input_ids.tolist())
    assert tokens[0] != tokens[1]


def test_pairs_of_the_text_behind_stored_instances(google_dir: Path, google_model: Path, capsys: Capsys) -> None:
    """They are cut and masked anew, with the seed that is given."""
    arguments = (f"model_dir={google_model}", f"data_dir={google_dir}")
    stored, pairs = evaluate(capsys, *arguments), evaluate(capsys, *arguments, "segments=pairs")
    assert pairs["split"] == "train+held_out"
    other_seed = evaluate(capsys, *arguments, "segments=pairs", "seed=3")
    assert len({stored["mlm_loss"], pairs["mlm_loss"], other_seed["mlm_loss"]}) == 3


def test_what_an_experiment_sets_counts_like_the_command_line(google_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    for name, lines in (
        ("longer", "segments:\n  max_seq_length: 48\n"),
        ("pieces", "defaults:\n  - override /masking: bert\n"),
        ("same", "defaults:\n  - override /masking: whole_word\nsegments:\n  max_seq_length: 40\nsteps: 2\n"),
    ):
        (tmp_path / "conf" / "experiment" / f"{name}.yaml").write_text("# @package _global_\n" + lines)
    arguments = [f"data_dir={google_dir}", "segments=google", *SMALL, "--config-dir", str(tmp_path / "conf")]
    for name, line in (("longer", "segments.max_seq_length=48 here, 40 there"), ("pieces", "masking.kind='bert'")):
        refused(run(["pretrain", *arguments, f"output_dir={tmp_path / name}", f"experiment={name}"]), line, capsys)
        assert not (tmp_path / name).exists()
    assert run(["pretrain", *arguments, f"output_dir={tmp_path / 'same'}", "experiment=same"]) == 0
    assert "explicit_keys" not in (tmp_path / "same" / "config.yaml").read_text()
    assert '"explicit_keys"' not in (tmp_path / "same" / "manifest.json").read_text()
    capsys.readouterr()
    assert run(["pretrain", *arguments, "output_dir=x", "experiment=same", "--cfg", "job"]) == 0
    printed = capsys.readouterr().out
    assert "max_seq_length: 40" in printed
    assert "explicit_keys" not in printed


def test_steps_without_masked_tokens_train_and_evaluate(tmp_path: Path, capsys: Capsys) -> None:
    """Every word but one is too long for the quota of whole words: most steps of one instance predict nothing."""
    text = write_text(tmp_path / "text.txt", [["kakakaka lololo"] * 3] * 8 + [["ka"], ["kakaka lololo"]])
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*SPECIAL_TOKENS, "k", "l", "##k", "##l", "##a", "##o"]) + "\n")
    more = ["segments=google", "segments.max_seq_length=40", "masking.whole_word=true", "segments.dupe_factor=1"]
    arguments = [f"corpus.path={text}", f"tokenizer.path={vocab}", f"output_dir={tmp_path / 'data'}"]
    assert run(["prepare", *arguments, *more, "segments.max_predictions_per_seq=2"]) == 0
    starts = open_instances(open_prepared(tmp_path / "data")).prediction_starts
    assert 0 < np.sum(np.diff(starts) == 0) < len(starts) - 1
    arguments = [f"data_dir={tmp_path / 'data'}", f"output_dir={tmp_path / 'run'}", "segments=google", *SMALL]
    steps = f"steps={len(starts) - 1}"
    assert run(["pretrain", *arguments, "batch.sequences=1", steps, "log.every_steps=1"]) == 0
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    empty = [row for row in rows if "mlm_loss" not in row]
    assert len(empty) == np.sum(np.diff(starts) == 0)
    for row in rows:
        assert row["loss"] == pytest.approx(row.get("mlm_loss", 0.0) + row["nsp_loss"])
        assert ("mlm_accuracy" in row) == ("mlm_loss" in row)
    result = evaluate(capsys, f"model_dir={tmp_path / 'run'}", f"data_dir={tmp_path / 'data'}", "max_sequences=1")
    assert ("mlm_loss" in result) == bool(starts[1])


def test_pretraining_refuses_what_does_not_fit(
    google_dir: Path, prepared_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    for data_dir, more, line in (
        (google_dir, [], "segments=pairs"),
        (google_dir, ["segments=full_sentences"], "segments=full_sentences"),
        (google_dir, ["segments=google", "segments.max_seq_length=64"], "segments.max_seq_length=64 here, 40 there"),
        (google_dir, ["segments=google", "masking.whole_word=false"], "masking.kind='bert' here, 'whole_word' there"),
        (google_dir, ["segments=google", "model.max_position_embeddings=39"], "max_seq_length=40"),
        (prepared_dir, ["segments=google"], "segments=google"),
    ):
        arguments = [f"data_dir={data_dir}", f"output_dir={tmp_path / 'run'}", *SMALL, *more]
        refused(run(["pretrain", *arguments]), line, capsys)
        assert not (tmp_path / "run").exists()


# ---- a task's labelled split


def evaluate_task(capsys: Capsys, *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["evaluate", "device=cpu", *map(str, arguments)]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def write_rows(path: Path, rows: list[tuple[str, str]], header: str = "text\tlabel") -> None:
    path.write_text("".join(f"{line}\n" for line in [header, *map("\t".join, rows)]), encoding="utf-8")


def test_what_finetuning_says_of_its_dev_split(tokenizer: Tokenizer, tmp_path: Path, capsys: Capsys) -> None:
    """The same numbers for a run, for a copy of its model, and for a copy whose labels have another order."""
    rng = np.random.default_rng(0)
    data = tmp_path / "data"
    data.mkdir()
    for name, count in (("train", 41), ("dev", 23), ("test", 7)):
        labels = rng.choice(["0", "1"], count)
        write_rows(data / f"{name}.tsv", [(" ".join(rng.choice(["kan", "lon", "min"], 7)), label) for label in labels])
    start = export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path / "start")
    task = ["task=sequence", "task.max_seq_length=20", "task.metrics=[accuracy,f1,matthews_correlation]",
            "task.labels=[low,high]", 'task.labels_in_files=["0","1"]', f"data_dir={data}"]  # fmt: skip
    run_dir = tmp_path / "run"
    more = [f"model_dir={start}", f"output_dir={run_dir}", "num_epochs=1", "device=cpu", "task.max_seq_length=16"]
    assert run(["finetune", *task, *more]) == 0
    expected = json.loads((run_dir / "eval.json").read_text())
    named = ("accuracy", "f1", "matthews_correlation", "intervals", "num_examples", "per_label")
    scores = {key: expected[key] for key in named}

    def evaluated(*arguments: object) -> dict[str, Any]:
        result = evaluate_task(capsys, *arguments)
        assert result.pop("calibration_error") == pytest.approx(expected["calibration_error"], abs=1e-6)
        return result

    capsys.readouterr()
    assert run(["evaluate", f"model_dir={run_dir}", *task, "device=cpu"]) == 0
    printed, (low, high) = capsys.readouterr(), scores["intervals"]["accuracy"]
    others = f"F1 {scores['f1']:.4f}, Matthews correlation {scores['matthews_correlation']:.4f}"
    line = f"dev: accuracy {scores['accuracy']:.4f} [{low:.4f}, {high:.4f}], {others}"
    assert (printed.err.splitlines()[-1], json.loads(printed.out)["accuracy"]) == (line, scores["accuracy"])
    assert evaluated(f"model_dir={run_dir}", *task) == {**scores, "split": "dev"}
    assert json.loads((run_dir / "manifest.json").read_text())["corpus"]["has_pairs"] is False
    own = (f"model_dir={run_dir}", f"data_dir={data}")  # the run knows its task, which task.* changes
    assert evaluated(*own) == {**scores, "split": "dev"}
    assert set(evaluated(*own, "task.metrics=[accuracy]")) == {*named, "split"} - {"f1", "matthews_correlation"}
    assert evaluate_task(capsys, *own, "split=test")["num_examples"] == 7
    assert run(["evaluate", str(run_dir), str(data / "dev.tsv"), "device=cpu"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"dev.tsv: {line.removeprefix('dev: ')}"
    shutil.copy(data / "train.tsv", tmp_path / "copy.tsv")
    for file, is_known in ((tmp_path / "copy.tsv", True), (data / "dev.tsv", False)):
        assert run(["evaluate", str(run_dir), str(file), "device=cpu"]) == 0
        known = f"warning: {file}: the model was trained on these rows, so its scores are higher than on new ones\n"
        assert (known in capsys.readouterr().err) == is_known
    refused(run(["evaluate", *own, "masking.probability=0.2"]), "masking.probability: has no effect", capsys)
    model, _ = load_directory(run_dir / "model", labels=("high", "low"), problem_type="single_label_classification")
    export_model(model, tokenizer, tmp_path / "turned")
    assert evaluate_task(capsys, f"model_dir={tmp_path / 'turned'}", *task, "split=validation")["f1"] == scores["f1"]


def test_evaluate_scores_own_predictions_as_perfect(tokenizer: Tokenizer, tmp_path: Path, capsys: Capsys) -> None:
    """Scores of the model's own predictions are perfect, and of others are not."""
    model = small_model(tokenizer.vocab_size, heads=("token",), with_pooler=False, labels=("O", "B-X", "I-X"))
    tagger = export_model(model, tokenizer, tmp_path / "tagger")
    (tmp_path / "in.txt").write_text("kan lon min\n\nkar lor\nmin kan\n")
    arguments = [f"model_dir={tagger}", "device=cpu"]
    assert run(["predict", *arguments, f"input={tmp_path / 'in.txt'}", f"output={tmp_path / 'dev.jsonl'}"]) == 0
    task = ["task=tagging", "task.max_seq_length=20", f"data_dir={tmp_path}", "task.files.dev=dev.jsonl",
            "task.scheme=none", "task.metrics=[accuracy]", "task.best_metric=accuracy"]  # fmt: skip
    result = evaluate_task(capsys, *arguments, *task)
    assert (result["accuracy"], result["num_examples"], result["split"]) == (1.0, 4, "dev")
    assert all(scores["f1"] == 1 for scores in result["per_label"].values())

    model = small_model(tokenizer.vocab_size, heads=("span",), with_pooler=False)
    finder = export_model(model, tokenizer, tmp_path / "finder")
    answers = [{"text": "kan lon min kar lor", "answer_start": 0}]
    rows = [{"id": str(n), "question": "kan", "context": "kan lon min kar lor", "answers": answers} for n in range(3)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = ["task=spans", "task.max_seq_length=40", "task.spans.max_query_length=9", "task.files.dev=q.jsonl"]
    result = evaluate_task(capsys, f"model_dir={finder}", f"data_dir={tmp_path}", *more)
    assert result["total"] == result["num_examples"] == 3
    assert 0 <= result["f1"] <= 100


@pytest.mark.parametrize(("more", "line"), [
    (["split=test"], "test.tsv (tsv): 1 of 1 examples "),
    (["split=held_out"], "split=held_out: expected train, dev, test"),
    (["task.labels=[a,c]"], "has the labels 'b', 'a'; task=sequence has 'a', 'c'"),
    (["task.labels=regression", "task.metrics=[pearson]", "task.best_metric=pearson"],
     "has the labels 'b', 'a'; task=sequence has numbers"),
    (["task.files.dev=other.tsv"], "other.tsv:2: label: unknown label 'c'; expected 'b' or 'a'"),
    (["task.metrics=[acc]"], "task.metrics: unknown acc"),
    (["task=conll2003"], "task=conll2003 is of kind tagging, but model_dir="),
    (["seed=1", "segments=pairs"], "seed, segments: has no effect with task=sequence"),
])  # fmt: skip
def test_refusals_of_a_task(more: list[str], line: str, tokenizer: Tokenizer, tmp_path: Path, capsys: Capsys) -> None:
    model = small_model(tokenizer.vocab_size, heads=("sequence",), labels=("b", "a"))
    arguments = [
        f"model_dir={export_model(model, tokenizer, tmp_path / 'model')}",
        f"data_dir={tmp_path}",
        "device=cpu",
    ]
    write_rows(tmp_path / "dev.tsv", [("kan", "a"), ("lon", "b")])
    write_rows(tmp_path / "other.tsv", [("kan", "c")])
    (tmp_path / "test.tsv").write_text("text\nkan\n")
    refused(run(["evaluate", *arguments, "task=sequence", "task.max_seq_length=20", *more]), line, capsys)


def test_the_way_to_other_names_of_labels_leads_there(tokenizer: Tokenizer, tmp_path: Path, capsys: Capsys) -> None:
    """The names that transformers gives to labels, and the numbers in a file."""
    names, rows = ("LABEL_0", "LABEL_1"), [("kan lon", "1"), ("lon", "0"), ("mir kan", "1")]
    model = small_model(tokenizer.vocab_size, heads=("sequence",), labels=names)
    export_model(model, tokenizer, tmp_path / "model")
    write_rows(tmp_path / "dev.tsv", rows)
    write_rows(tmp_path / "named.tsv", [(text, f"LABEL_{label}") for text, label in rows])
    command = [f"model_dir={tmp_path / 'model'}", f"data_dir={tmp_path}", "task=sequence", "task.max_seq_length=20"]
    refused(run(["evaluate", *command, "device=cpu"]), "unknown label '1'; expected 'LABEL_0' or 'LABEL_1'", capsys)
    way = """, or set task.labels= to these, and task.labels_in_files= to the files' names for them, in the same order, as in ["0","1"]"""
    refused(run(["evaluate", *command, "device=cpu", "task.labels=[0,1]"]), way, capsys)
    given = evaluate_task(capsys, *command, f"task.labels=[{','.join(names)}]", 'task.labels_in_files=["0","1"]')
    assert given["accuracy"] == evaluate_task(capsys, *command, "task.files.dev=named.tsv")["accuracy"]


def test_a_split_of_a_task_without_one(capsys: Capsys) -> None:
    refused(run(["evaluate", "model_dir=x", "data_dir=y", "split=dev"]), "for the split of a task, set task=", capsys)
    assert run(["evaluate", "model_dir=x"]) == 2
    assert capsys.readouterr().err == "error: missing value: set data_dir= to a prepared dataset\n"
    refused(run(["evaluate", "model_dir=x", "data_dir=y", "task.columns.text=a"]), "task.columns: has no", capsys)


def test_a_single_file_has_no_splits(tmp_path: Path, capsys: Capsys) -> None:
    write_rows(tmp_path / "new.tsv", [("kan", "a"), ("lon", "b")])
    for file in (f"{tmp_path / 'new.tsv'}", f"data_dir={tmp_path / 'new.tsv'}"):
        refused(
            run(["evaluate", "model_dir=x", file, "split=test"]), "split=test: has no effect on a single file", capsys
        )


def test_another_decimal_mark_than_in_training_is_named(start: Path, tmp_path: Path, capsys: Capsys) -> None:
    """1.500 may be 1500 where the training data has decimal commas."""
    texts = ("kan", "lon", "min", "kar")
    for name, numbers in (
        ("train", ("1000,5", "2", "3", "4")),
        ("same", ("1,5", "2", "3", "4")),
        ("other", ("1.500", "2.500", "3", "4")),
    ):
        lines = (f"{text};{number}\n" for text, number in zip(texts, numbers, strict=True))
        (tmp_path / f"{name}.csv").write_text("text;label\n" + "".join(lines))
    words = [
        f"model_dir={start}",
        f"output_dir={tmp_path / 'run'}",
        "dev_share=0.5",
        "num_epochs=1",
        "device=cpu",
        "task.max_seq_length=16",
    ]
    assert run(["finetune", str(tmp_path / "train.csv"), "task=regression", *words]) == 0
    capsys.readouterr()
    for name, named in (("same", 0), ("other", 1)):
        assert run(["evaluate", str(tmp_path / "run"), str(tmp_path / f"{name}.csv"), "device=cpu"]) == 0
        assert capsys.readouterr().err.count("labels: in the training data '1000,5' at ") == named
