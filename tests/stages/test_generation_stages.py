"""Texts that are written, through every command: finetune, resume, predict, evaluate, export, serve, and Python."""

import json
import math
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml
from conftest import Capsys, output_of, refused, small_model, weights_of
from forks import KILL

from bertkit import load_embedder, load_model, load_predictor, load_tokenizer
from bertkit.apps.server.models import open_models
from bertkit.base.errors import InputError
from bertkit.base.typed_settings import build
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.inference.forward import Running
from bertkit.inference.predictor import read_inputs
from bertkit.settings.reading.compose import compose, compose_from_run
from bertkit.settings.serve import ServeSettings
from bertkit.train.log import read_metrics

WORDS = ("kan", "lon", "mir", "rur", "ten", "sod")
SMALL = ["task=translation", "task.max_seq_length=11", "task.generation.max_target_length=7", "device=cpu",
         "task.metrics=[exact_match_text]", "task.best_metric=exact", "batch.sequences=8", "num_epochs=1",
         "log.every_steps=1", "optimizer.peak_learning_rate=1e-2", "evaluation.every_steps=99"]  # fmt: skip
ANEW = ["model=tiny", "tokenizer=wordpiece", "tokenizer.vocab_size=100", "model.hidden_size=26", "model.num_hidden_layers=2",
        "model.num_attention_heads=2", "model.intermediate_size=37", "model.max_position_embeddings=23"]  # fmt: skip
# of every decoder, and of every score of a recurrent one
DECODERS: dict[str, list[str]] = {
    "transformer": ["decoder=transformer", *ANEW],
    "pre": ["decoder=transformer", "decoder.norm=pre", *ANEW],
    **{score: ["decoder=rnn", f"decoder.score={score}", *ANEW] for score in ("additive", "dot", "general", "location", "none")},
    # all that can be combined
    "published": ["decoder=rnn", "decoder.cell=lstm", "decoder.score=local_p", "decoder.window=2", "decoder.input_feeding=true",
                  "decoder.num_layers=2", "decoder.bidirectional=false", "decoder.reverse_source=true", *ANEW],
    "before": ["decoder=rnn", "decoder.reset_gate=before", "decoder.num_layers=2", "decoder.reverse_source=true", *ANEW],
    "relative": ["decoder=transformer", "attention.positions=relative", "attention.max_distance=3", "attention.score=general",
                 "norm=pre", "norm.kind=rms", *ANEW],
    "bert": ["decoder=bert"],
    "shared": ["decoder=bert", "decoder.share=true"],
}  # fmt: skip


def write_split(path: Path, num_rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = ["source\ttarget"]
    for _ in range(num_rows):
        words = rng.choice(WORDS, rng.integers(1, 4)).tolist()
        rows.append(f"{' '.join(words)}\t{' '.join(words[::-1])}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reversal")
    write_split(folder / "train.tsv", 37, 0)
    write_split(folder / "dev.tsv", 13, 1)
    return folder


def settings_of(name: str, start: Path) -> list[str]:
    return [*DECODERS[name], *([f"model_dir={start}"] if "decoder=bert" in DECODERS[name] else [])]


def finetune(data: Path, output: Path, *more: str) -> int:
    return run(["finetune", f"data_dir={data}", f"output_dir={output}", *SMALL, *more])


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def runs(data: Path, start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in DECODERS:
        assert finetune(data, folder / name, *settings_of(name, start)) == 0
    return folder


def test_every_decoder_writes_predictions_and_scores(runs: Path, data: Path, start: Path, capsys: Capsys) -> None:
    assert len(DECODERS) == 12
    for name in DECODERS:
        rows = rows_of(runs / name / "predictions.jsonl")
        sources = [line.split("\t") for line in (data / "dev.tsv").read_text().splitlines()[1:]]
        assert [row["reference"] for row in rows] == [target for _, target in sources]
        result = json.loads((runs / name / "eval.json").read_text())
        assert result["exact"] == pytest.approx(np.mean([row["text"] == row["reference"] for row in rows]))
        assert read_metrics(runs / name / "metrics.jsonl")[-1]["step"] == 5
        assert finetune(data, runs / name, *settings_of(name, start)) == 0
        assert capsys.readouterr().out.startswith("done already")
    models = [load_model(runs / name) for name in ("shared", "bert")]
    shared, apart = (sum(parameter.numel() for parameter in model.parameters()) for model in models)
    assert shared < 0.7 * apart


@pytest.mark.parametrize("name", DECODERS)
def test_predictions_are_scored_as_the_model_says(name: str, runs: Path, data: Path, tmp_path: Path) -> None:
    """As the run left them; the score is that of the text, token by token, by the padded model."""
    out = tmp_path / "out.jsonl"
    assert run(["predict", f"model_dir={runs / name}", f"input={data / 'dev.tsv'}", f"output={out}", "device=cpu"]) == 0
    actual, left = rows_of(out), rows_of(runs / name / "predictions.jsonl")
    assert [row["text"] for row in actual] == [row["text"] for row in left]
    assert [row["score"] for row in actual] == pytest.approx([row["score"] for row in left], abs=1e-5)
    predictor, model = load_predictor(runs / name, device="cpu")._predictor, load_model(runs / name)
    sources = [line.split("\t")[0] for line in (data / "dev.tsv").read_text().splitlines()[1:]]
    (read,) = read_inputs(predictor, sources)
    texts = Running(predictor, read.task.head).texts(read.features, read.task.search)
    facts = predictor.tokenizer.facts
    for feature, (best, *_), row in zip(read.features, texts, actual, strict=True):
        ids = best[0] if len(best[0]) == 7 else [*best[0], facts.sep]  # cut, or ended
        assert row["text"] == predictor.tokenizer.decode(best[0], skip_special_tokens=True)
        before = torch.tensor([[facts.cls, *ids[:-1]]])
        with torch.no_grad():
            logits = model(torch.tensor([feature.input_ids]), decoder_input_ids=before).logits["generation"][0]
        shares = torch.log_softmax(logits.double(), -1)[torch.arange(len(ids)), ids]
        assert row["score"] == pytest.approx(shares.mean().item(), abs=1e-5)


def test_evaluate_gives_the_metrics_of_the_run(runs: Path, data: Path, capsys: Capsys) -> None:
    for name in ("transformer", "additive", "bert"):
        evaluate = ["evaluate", f"model_dir={runs / name}", f"data_dir={data}", "device=cpu"]
        capsys.readouterr()
        assert run(evaluate) == 0
        left, actual = (json.loads(text) for text in ((runs / name / "eval.json").read_text(), capsys.readouterr().out))
        assert actual["exact"] == left["exact"]
        assert actual["perplexity"] == pytest.approx(left["perplexity"], rel=1e-6)
        assert run([*evaluate, "task.generation.num_beams=1"]) == 0
        capsys.readouterr()


def test_predict_takes_beam_settings_without_task(runs: Path, capsys: Capsys) -> None:
    predict = ["predict", f"model_dir={runs / 'general'}", "text=kan lon", "device=cpu"]
    assert run([*predict, "task.generation.num_beams=8", "task.generation.num_candidates=3"]) == 0
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert row["candidates"][0]["text"] == row["text"]
    assert len({each["text"] for each in row["candidates"]}) == 3
    scores = [each["score"] for each in row["candidates"]]
    assert scores == sorted(scores, reverse=True)
    refused(run([*predict, "task.generation.num_beam=8"]), "did you mean 'num_beams'?", capsys)
    for more, message in (
        ("task.spans.n_best=3", "task.spans: has no effect"),
        ("task.generation.max_target_length=24", "task.generation.max_target_length=24"),
        ("text_pair=a", "takes single texts"),
    ):
        refused(run([*predict, more]), message, capsys)


@pytest.mark.parametrize(
    ("name", "content"), [("in.txt", "kan lon\nmir\n"), ("in.csv", "text,score\nkan lon,7\nmir,8\n")]
)
def test_the_fields_of_an_input_do_not_replace_its_translations(
    name: str, content: str, runs: Path, tmp_path: Path
) -> None:
    """`text` is the source in the input, and the translation in a prediction."""
    (tmp_path / name).write_text(content)
    arguments = [
        "predict",
        f"model_dir={runs / 'transformer'}",
        f"input={tmp_path / name}",
        "device=cpu",
        "overwrite=true",
    ]
    arguments += ["task.columns.source=text", f"output={tmp_path / 'out.jsonl'}"]
    assert run(arguments) == 0
    alone = rows_of(tmp_path / "out.jsonl")
    assert run([*arguments, "carry_input=true"]) == 0
    rows = rows_of(tmp_path / "out.jsonl")
    assert [row["input_text"] for row in rows] == ["kan lon", "mir"]
    assert [{key: row[key] for key in alone[0]} for row in rows] == alone


def test_predictor_writes_texts_from_python(runs: Path) -> None:
    for name in ("transformer", "none", "shared"):
        predictor = load_predictor(runs / name, device="cpu")
        one, many = predictor("kan lon"), predictor(["kan lon", "mir"])
        assert set(one) == {"id", "text", "score", "at_limit", "truncated"}
        assert [row["text"] for row in many] == [one["text"], predictor({"source": "mir"})["text"]]
        assert predictor([{"source": "mir", "id": "x"}])[0]["id"] == "x"
        assert predictor([]) == []
        for call, message in (
            (lambda p=predictor: p.logits("kan"), "decoder_input_ids"),
            (lambda p=predictor: p(("kan", "lon")), "inputs: row 1: .*source"),
            (lambda p=predictor: p([{"text_b": "kan", "a": "b"}]), "'source'"),
        ):
            with pytest.raises(InputError, match=message):
                call()
        vectors = load_embedder(runs / name, device="cpu")(["kan lon", "mir"])
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
        assert not np.allclose(vectors[0], vectors[1], atol=1e-3)


def test_texts_that_end_at_the_largest_length_are_marked_and_counted(
    runs: Path, data: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """On every road: with room for one more token, texts that were not cut are the same."""
    sources = [line.split("\t")[0] for line in (data / "train.tsv").read_text().splitlines()[1:]]
    (tmp_path / "in.txt").write_text("".join(f"{source}\n" for source in sources))
    rows, printed = dict[int, list[dict[str, Any]]](), dict[int, str]()
    changes: dict[str, Any] = {"task.generation.num_beams": 1, "task.generation.sample": True}
    for length in (3, 4):
        changes["task.generation.max_target_length"] = length
        more = [f"{name}={str(value).lower()}" for name, value in changes.items()]
        capsys.readouterr()
        arguments = [f"input={tmp_path / 'in.txt'}", f"output={tmp_path / str(length)}.jsonl", "device=cpu"]
        assert run(["predict", f"model_dir={runs / 'transformer'}", *arguments, *more]) == 0
        rows[length], printed[length] = rows_of(tmp_path / f"{length}.jsonl"), capsys.readouterr().err
    was_cut = [row["at_limit"] for row in rows[3]]
    assert 0 < sum(row["at_limit"] for row in rows[4]) < sum(was_cut) < len(was_cut)
    for short, longer in zip(rows[3], rows[4], strict=True):
        assert (short["at_limit"], longer["at_limit"]) != (False, True)
        assert short["at_limit"] or short["text"] == longer["text"]
    count = f"{sum(was_cut)} of 37 texts were cut at task.generation.max_target_length=3, before the model ended them; raise it"
    assert f"warning: {count}\n" in printed[3]
    changes["task.generation.max_target_length"] = 3
    with pytest.warns(UserWarning, match=count):
        assert load_predictor(runs / "transformer", device="cpu", **changes)(sources) == rows[3]
    model = served(runs, *(f"{name}={value}" for name, value in changes.items()))["transformer"]
    (answered,) = model.predict_requests([sources], 10**6).results
    assert [row["at_limit"] for row in answered] == was_cut
    capsys.readouterr()
    files = [f"data_dir={data}", "split=train", "device=cpu", *(f"{name}={value}" for name, value in changes.items())]
    assert run(["evaluate", f"model_dir={runs / 'transformer'}", *files]) == 0
    assert f"warning: {count}\n" in capsys.readouterr().err


def test_exported_directory_writes_same_texts(runs: Path, data: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Of a pair the exported one is that of transformers; it writes what the run does."""
    out, rows = tmp_path / "exported", tmp_path / "rows.jsonl"
    assert run(["export", f"model_dir={runs / 'bert'}", f"output_dir={out}"]) == 0
    theirs, info = transformers.EncoderDecoderModel.from_pretrained(out, output_loading_info=True)
    assert {key: value for key, value in info.items() if value} == {}
    assert theirs.config.decoder_start_token_id == load_tokenizer(out).facts.cls
    shutil.copytree(runs / "additive" / "model", tmp_path / "alone")
    for name, folder in (("bert", out), ("additive", tmp_path / "alone")):
        capsys.readouterr()
        more = ["task.max_seq_length=11", "task.generation.max_target_length=7", "task.columns.source=source"]
        arguments = [f"input={data / 'dev.tsv'}", f"output={rows}", "overwrite=true", "device=cpu", *more]
        assert run(["predict", f"model_dir={folder}", *arguments]) == 0
        actual, left = rows_of(rows), rows_of(runs / name / "predictions.jsonl")
        assert [row["text"] for row in actual] == [row["text"] for row in left]
        # 23 or 41 tokens are the most
        assert run(["predict", f"model_dir={folder}", "text=kan lon", "device=cpu"]) == 0
    for name in ("transformer", "dot"):
        capsys.readouterr()
        refused(run(["export", f"model_dir={runs / name}", f"output_dir={tmp_path / name}"]), "", capsys)
        assert not (tmp_path / name).exists()


def served(runs: Path, *more: str) -> Mapping[str, Any]:
    listed = ",".join(str(runs / name) for name in ("transformer", "additive", "bert"))
    return open_models(build(ServeSettings, compose("serve", [f"model_dir=[{listed}]", "device=cpu", *more])))


def test_requests_in_one_batch_do_not_cross(runs: Path) -> None:
    models = served(runs, "task.generation.num_candidates=2")
    requests: list[Any] = [["kan lon"], ["mir", {"source": "ten", "id": "x"}], [""], [5], ["sod " * 30], [{"a": "b"}]]
    for name, model in models.items():
        batch = model.predict_requests(requests, max_tokens=99)
        answers, alone = batch.results, [model.predict_requests([each], max_tokens=99).results[0] for each in requests]
        assert [isinstance(each, Exception) for each in answers] == [False] * 3 + [True, False, True]
        assert re.search(r"inputs\[0\]: .*'source'", str(answers[5]))
        for ours, theirs in zip(answers, alone, strict=True):
            if isinstance(ours, Exception):
                assert str(ours) == str(theirs)
                continue
            assert [row["id"] for row in ours] == [row["id"] for row in theirs]
            assert [row["text"] for row in ours] == [row["text"] for row in theirs]
            assert [row["score"] for row in ours] == pytest.approx([row["score"] for row in theirs], abs=1e-5)
            assert [len(row["candidates"]) for row in ours] == [2] * len(ours)
        assert [row["id"] for row in answers[1]] == ["0", "x"]
        assert batch.num_sequences == 5
        # what may be written counts: 4 and 7 tokens of an input
        refused = model.predict_requests([["kan lon"]], max_tokens=10)
        assert re.search(r"\b11 tokens; expected at most 10\b", str(refused.results[0]))
        assert refused.num_sequences == refused.num_tokens == 0
        vectors = model.embed_requests([["kan lon"], ["mir"]], max_tokens=99).results
        assert np.allclose(vectors[0].vectors, load_embedder(runs / name, device="cpu")(["kan lon"]), atol=1e-6)


def test_settings_of_a_server_go_to_the_models_that_have_them(runs: Path, tiny_runs: Path, capsys: Capsys) -> None:
    more = ["device=cpu", "task.generation.num_beams=1", "task.max_seq_length=9"]
    listed = f"model_dir=[{runs / 'dot'},{tiny_runs / 'fine'}]"
    models = open_models(build(ServeSettings, compose("serve", [listed, *more])))
    tasks = [model.predictor.task.config for model in models.values()]
    assert [task.max_seq_length for task in tasks] == [9, 9]
    assert [task.generation and task.generation.num_beams for task in tasks] == [1, None]
    refused(run(["serve", f"model_dir={tiny_runs / 'fine'}", *more]), "task.generation: has no effect on fine", capsys)


def test_decoder_learns_to_reverse_unseen_sentences(tmp_path: Path) -> None:
    """The other way round, of words that were not trained on in this order."""
    write_split(tmp_path / "train.tsv", 307, 0)
    write_split(tmp_path / "dev.tsv", 31, 1)
    more = ["model.num_hidden_layers=1", "model.hidden_dropout_prob=0", "batch.sequences=32", "num_epochs=9"]
    settings = ["task.generation.label_smoothing=0", "task.generation.num_beams=1", *more]
    assert finetune(tmp_path, tmp_path / "run", *DECODERS["general"], *settings) == 0
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["exact"] > 0.5


@pytest.mark.slow  # as in tests/stages/test_finetune.py, whose run is stopped in the quick tests
@pytest.mark.parametrize("name", ["published", "transformer", "additive", "bert", "before", "relative"])
def test_a_killed_run_ends_as_one_that_was_not(
    name: str, data: Path, start: Path, tmp_path: Path, python: Path
) -> None:
    more = [*settings_of(name, start), "num_epochs=5", "checkpoint.every_steps=2"]  # 25 steps
    assert finetune(data, tmp_path / "whole", *more) == 0
    places = [f"data_dir={data}", f"output_dir={tmp_path / 'killed'}"]
    command = [python, "-m", "bertkit", "finetune", *places, *SMALL, *more]
    for number in range(10):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and len(read_metrics(tmp_path / "killed" / "metrics.jsonl")) < 5 + 2 * number:
            time.sleep(0.01)
        process.send_signal(KILL)
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (-signal.SIGKILL, "")
    assert finetune(data, tmp_path / "killed", *more) == 0
    assert weights_of(tmp_path / "killed") == weights_of(tmp_path / "whole")
    rows = [read_metrics(tmp_path / each / "metrics.jsonl") for each in ("whole", "killed")]
    losses = [[row["loss"] for row in of_run] for of_run in rows]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 25
    assert rows_of(tmp_path / "whole" / "predictions.jsonl") == rows_of(tmp_path / "killed" / "predictions.jsonl")


@pytest.mark.slow  # as in tests/stages/test_finetune.py, whose two processes are in the quick tests
@pytest.mark.parametrize("name", ["published", "transformer", "additive", "relative"])
def test_two_processes_give_the_bits_of_one(
    name: str, data: Path, start: Path, tmp_path: Path, torchrun: list[str]
) -> None:
    more = [*settings_of(name, start), "reproducibility=strict", "model.hidden_dropout_prob=0.1"]
    assert finetune(data, tmp_path / "1", *more) == 0
    places = [f"data_dir={data}", f"output_dir={tmp_path / '2'}"]
    output_of([*torchrun, "finetune", *SMALL, *more, *places], timeout=120)
    assert weights_of(tmp_path / "1") == weights_of(tmp_path / "2")
    texts = [[row["text"] for row in rows_of(tmp_path / each / "predictions.jsonl")] for each in ("1", "2")]
    assert texts[0] == texts[1]


def test_the_activation_of_the_transformer_is_relu_unless_it_is_set(runs: Path, tmp_path: Path) -> None:
    for name, act in (("transformer", "relu"), ("relative", "relu"), ("dot", "gelu")):
        assert yaml.safe_load((runs / name / "config.yaml").read_text())["model"]["hidden_act"] == act
        assert json.loads((runs / name / "model" / "config.json").read_text())["hidden_act"] == act
    start = ["task=translation", "output_dir=x", "decoder=transformer", "model=tiny"]
    for more, act in (([], "relu"), (["model.hidden_act=gelu"], "gelu"), (["model.hidden_act=silu"], "silu")):
        assert compose("finetune", [*start, *more])["model"]["hidden_act"] == act
    saved = yaml.safe_load((runs / "transformer" / "config.yaml").read_text())
    saved["model"]["hidden_act"] = "gelu"  # a run from before
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(saved))
    assert compose_from_run("finetune", str(tmp_path / "old.yaml"), [])["model"]["hidden_act"] == "gelu"


OLD = {
    "task": ("generation",),
    "task.columns": ("source", "target"),
    "schedule": ("decay",),
    "": ("decoder", "model", "tokenizer"),
}


def without_new(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out of settings, or of what identifies a run, the keys that came with models that write."""
    for place, names in OLD.items():
        inside = settings
        for part in filter(None, place.split(".")):
            inside = inside[part]
        for name in names:
            del inside[name]
    return settings


def test_a_run_from_before_opens_and_predicts_and_is_not_resumed(
    tiny_runs: Path, tmp_path: Path, capsys: Capsys
) -> None:
    task = ["task=sequence", "num_epochs=2", "batch.sequences=8", "device=cpu", "task.max_seq_length=32"]
    more = [f"model_dir={tiny_runs / 'pre'}", f"data_dir={tiny_runs / 'task'}", *task, "checkpoint.keep_last=9"]
    assert run(["finetune", *more, f"output_dir={tmp_path / 'whole'}"]) == 0
    old = tmp_path / "old"
    shutil.copytree(tmp_path / "whole", old)
    (old / "config.yaml").write_text(yaml.safe_dump(without_new(yaml.safe_load((old / "config.yaml").read_text()))))
    manifest = json.loads((old / "manifest.json").read_text())
    without_new(manifest["identity"])
    (old / "manifest.json").write_text(json.dumps(manifest))
    capsys.readouterr()
    assert run(["predict", f"model_dir={old}", "text=kan lon", "device=cpu"]) == 0
    assert "probabilities" in json.loads(capsys.readouterr().out)
    refused(run(["finetune", *more, f"output_dir={old}"]), "holds another run (schedule.decay: None there, ", capsys)


WRONG: dict[str, tuple[list[str], str]] = {
    "a decoder for labels": (DECODERS["transformer"], "decoder=transformer: has no effect with task=sequence"),
    "neither decoder nor model": ([], "missing value: set decoder= (one of bert, rnn, transformer)"),
    "a model to start from": ([*DECODERS["dot"], "model_dir=x"], "model_dir=x with decoder=rnn"),
    "no model to start from": (["decoder=bert"], "missing value: set model_dir="),
    "no sizes": (["decoder=transformer", "tokenizer=wordpiece"], "missing value: set model= (such as mini)"),
    "no vocabulary": (["decoder=rnn", "model=tiny"], "missing value: set tokenizer= (wordpiece, bpe or unigram)"),
    "sizes of a model that has its own": (["decoder=bert", "model_dir=x", "model=tiny"], "model: has no effect with model_dir="),
    "targets too long": ([*DECODERS["dot"], "task.generation.max_target_length=24"],
                         "task.generation.max_target_length=24 exceeds the model's max_position_embeddings=23"),
    "sources too long": ([*DECODERS["pre"], "task.max_seq_length=24"], "task.max_seq_length=24 exceeds the model's"),
    "an odd size": ([*DECODERS["none"], "model.hidden_size=25", "model.num_attention_heads=1"],
                    "model.hidden_size=25: decoder=rnn needs an even number"),
    "an odd size of sinusoids": ([*DECODERS["pre"], "model.hidden_size=25", "model.num_attention_heads=1"],
                                 "model.hidden_size=25: attention.positions=sinusoidal needs an even number"),
    "no such source": ([*DECODERS["dot"], "task.columns.source=en"], "no column 'en' (it has: 'source', 'target')"),
    "no such target": ([*DECODERS["dot"], "task.columns.target=de"], "no column 'de' (it has: 'source', 'target')"),
    "a gate that is not there": ([*DECODERS["before"], "decoder.cell=lstm"], "decoder.reset_gate=before: has no effect with decoder.cell=lstm"),
    "what is fed already": (["decoder=rnn", "decoder.input_feeding=true", *ANEW], "decoder.input_feeding=true: has no effect with decoder.score=additive"),
    "a window of all": ([*DECODERS["dot"], "decoder.window=3"], "decoder.window=3: has no effect with decoder.score=dot"),
    "no layers": ([*DECODERS["dot"], "decoder.num_layers=0"], "decoder.num_layers=0: expected 1 to 10,000"),
    "a cell for a Transformer": ([*DECODERS["pre"], "decoder.cell=lstm"], "unknown key 'decoder.cell'"),
    "positions without self-attention": ([*DECODERS["dot"], "attention.positions=rotary"],
                                         "'attention.positions': only for decoder=transformer"),
    "attention without self-attention": ([*DECODERS["dot"], "attention=bert"], "attention: has no effect with decoder=rnn"),
    "attention of a model that has its own": (["decoder=bert", "model_dir=x", "attention=bert"], "attention: has no effect with model_dir="),
    "frequencies": ([*DECODERS["relative"], "model.frequency_biases=true"], "model.frequency_biases=true: only for masked LM"),
    "a range that the decoder sets": ([*DECODERS["pre"], "model.initializer_range=0.1"],
                                      "model.initializer_range: has no effect with decoder=transformer; leave it out"),
    "a norm of embeddings without one": ([*DECODERS["relative"], "norm.of_embeddings=false"], "norm.of_embeddings: has no effect with decoder=transformer"),
    "an activation of layers that have none": ([*DECODERS["dot"], "model.hidden_act=silu"], "model.hidden_act: has no effect with decoder=rnn; leave it out"),
    "norms in two places": ([*DECODERS["relative"], "decoder.norm=post"], "decoder.norm=post: has no effect with norm.placement=pre; set one of them"),
    "a pattern": ([*DECODERS["relative"], "attention.pattern=window"], "attention.pattern=window: not with decoder=transformer"),
    "distances of nothing": ([*DECODERS["pre"], "attention.max_distance=3"],
                             "attention.max_distance: has no effect without attention.positions=relative"),
    "positions of a score without keys": ([*DECODERS["relative"], "attention.score=location"],
                                          "attention.positions=relative with attention.score=location"),
    "a kind of no norm": ([*DECODERS["pre"], "norm.kind=rms"], "'norm.kind': only for decoder=transformer, with norm=post or norm=pre"),
    "layers that are not computed twice": ([*DECODERS["dot"], "recompute=layers"], "recompute=layers: has no effect with a recurrent model"),
    "no such score": (["decoder=rnn", "decoder.score=cosine"], "decoder.score='cosine': expected additive or dot"),
    "no such decoder": (["decoder=lstm"], "unknown option decoder=lstm"),
    "a metric of labels": ([*DECODERS["dot"], "task.metrics=[accuracy]"], "task.metrics: accuracy cannot measure texts"),
    "more texts than beams": ([*DECODERS["dot"], "task.generation.num_candidates=9"], "task.generation.num_candidates=9: expected 1 to 4"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_a_line(case: str, data: Path, tmp_path: Path, capsys: Capsys) -> None:
    more, message = WRONG[case]
    own = [f"data_dir={data}", f"output_dir={tmp_path / 'run'}", "device=cpu"]
    settings = ["task=sequence"] if case == "a decoder for labels" else SMALL
    refused(run(["finetune", *own, *settings, *more]), message, capsys)
    assert not (tmp_path / "run").exists()


def test_a_decoder_of_another_kind_is_refused(runs: Path, data: Path, tmp_path: Path, capsys: Capsys) -> None:
    for name in ("transformer", "additive"):
        code = finetune(data, tmp_path / "run", "decoder=bert", f"model_dir={runs / name}")
        refused(code, "start from another model", capsys)


def test_a_run_goes_on_from_a_model_that_writes(runs: Path, data: Path, tmp_path: Path) -> None:
    """Without decoder= the model keeps its own, of every kind; nothing in it is made anew."""
    for name in ("pre", "location", "shared", "published", "relative"):
        out = tmp_path / name
        assert finetune(data, out, f"model_dir={runs / name}", "optimizer.peak_learning_rate=1e-9") == 0
        ours, theirs = (load_model(each).state_dict() for each in (out, runs / name))
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert torch.allclose(ours[key], value, atol=1e-6), key
        assert load_model(out).config.decoder == load_model(runs / name).config.decoder


def test_sources_and_texts_at_their_limits(runs: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """An empty source, one of 512 tokens, and a text that never ends."""
    for name in ("transformer", "additive", "none", "bert"):
        empty, blank = load_predictor(runs / name, device="cpu")(["", "   "])
        assert math.isfinite(empty["score"])
        assert empty["text"] == blank["text"]
    from bertkit.interop.hugging_face.directory import write_model
    from bertkit.model.attention_config import AttentionConfig
    from bertkit.model.bert_config import DecoderConfig

    facts = tokenizer.facts
    for kind, positions in (("transformer", "sinusoidal"), ("rnn", "none"), ("bert", "learned")):
        decoder = DecoderConfig(kind=kind, start_token_id=facts.cls, end_token_id=facts.sep)  # type: ignore[arg-type]
        model = small_model(
            tokenizer.vocab_size, heads=("generation",), with_pooler=False, max_position_embeddings=512, decoder=decoder,
            attention=AttentionConfig(positions=positions),  # type: ignore[arg-type]
        )  # fmt: skip
        with torch.no_grad():  # [SEP] never comes first
            head: Any = model.heads["generation"]
            if kind == "transformer":  # tokens are scored by their embeddings: against the last norm's bias
                head.layers[-1].feed_forward_norm.bias.fill_(1)
                head.embeddings.token.weight[facts.sep] = -9
            else:
                (head.vocabulary.bias if kind == "rnn" else head.score.bias)[facts.sep] = -1e4
        (tmp_path / kind).mkdir()
        write_model(model, tokenizer, tmp_path / kind)
        long, longer = "kan " * 510, "kan " * 900
        assert len(tokenizer(long)["input_ids"]) == 512
        options = {"task.generation.max_target_length": 11, "device": "cpu"}
        one, cut = load_predictor(tmp_path / kind, **options)([long, longer])
        assert (one.pop("truncated"), cut.pop("truncated")) == (False, True)
        assert {**one, "id": ""} == {**cut, "id": ""}
        predictor = load_predictor(tmp_path / kind, **options)._predictor
        (read,) = read_inputs(predictor, [long])
        ((written, *_),) = Running(predictor, read.task.head).texts(read.features, read.task.search)
        assert len(written[0]) == 11
        assert facts.sep not in written[0]
        assert math.isfinite(one["score"])
