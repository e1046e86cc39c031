"""The bench: the ways of both libraries here in one process; and by its command, real systems in processes of their own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Page, minilm_dir, small_config

from bertkit.bench import bertkit_way, hugging_face
from bertkit.bench.attention import config_with
from bertkit.bench.rounds import check_same, held, measure, one_round, started
from bertkit.bench.run import systems_of, systems_that_write
from bertkit.bench.scaling import curves_of, exponent, plan
from bertkit.bench.workload import BERTKIT, HUGGING_FACE, Ready, System, Workload, make_workload
from bertkit.bench.writing import Pairs, make_writing_workload
from bertkit.cli import run
from bertkit.config import build
from bertkit.data.tokenizer import load_tokenizer
from bertkit.errors import InputError, ParityError
from bertkit.settings.bench import BenchSettings
from bertkit.settings.compose import compose
from bertkit.view.bench_page import Result, rates_found

SMALL = ["model=tiny", "rounds=1", "steps_per_round=1", "batch_sequences=3", "max_seq_length=48", "device=cpu"]
DEFAULT, AT_BEST = System("Hugging Face", HUGGING_FACE), System("grouped", HUGGING_FACE, is_grouped=True)
OURS = System("bertkit", BERTKIT)


def settings_of(*arguments: str) -> BenchSettings:
    return build(BenchSettings, compose("bench", list(arguments)))


def bench(output: Path, *arguments: str) -> list[dict[str, Any]]:
    assert run(["bench", *arguments, f"output={output}"]) == 0
    found: list[dict[str, Any]] = json.loads(output.read_text())["results"]
    return found


def small_workload(what: str, data_dir: Path, scratch: Path, *more: str) -> Workload:
    arguments = [f"what={what}", f"data_dir={data_dir}", *SMALL, "vocab_size=300", "num_texts=5", *more]
    if what in ("translate", "generate"):
        return make_writing_workload(settings_of(*arguments), scratch)
    return make_workload(settings_of(*arguments), what, scratch)


@pytest.mark.parametrize(
    ("what", "way"), [("pretrain", "train"), ("finetune", "train"), ("translate", "train"), ("predict", "predict")]
)
def test_first_losses_and_answers_agree(what: str, way: str, prepared_dir: Path, tmp_path: Path) -> None:
    workload, systems = small_workload(what, prepared_dir, tmp_path), (DEFAULT, AT_BEST, OURS)
    theirs, ours = getattr(hugging_face, way), getattr(bertkit_way, way)
    ready: list[Ready] = [(ours if each is OURS else theirs)(workload, each) for each in systems]
    firsts = [each.first_result() for each in ready]
    check_same(what, systems, firsts)
    worked = [each.work(0) for each in ready]
    assert worked[2] == worked[0] > 0  # the same tokens
    if what == "predict":
        firsts[2][3]["random"] += 2e-6
    else:
        firsts[2][0] *= 1 + 2e-4
    with pytest.raises(ParityError, match="bertkit and Hugging Face did not do the same work"):
        check_same(what, systems, firsts)


def test_vectors_agree_or_are_not_compared(prepared_dir: Path, tmp_path: Path) -> None:
    workload = small_workload("embed", prepared_dir, tmp_path)
    systems = systems_of(settings_of("what=embed", *SMALL))
    assert [(each.library, each.is_grouped) for each in systems] == [
        (HUGGING_FACE, False), (HUGGING_FACE, True), (BERTKIT, False), (BERTKIT, True)
    ]  # fmt: skip
    ready = [(bertkit_way if each.library == BERTKIT else hugging_face).embed(workload, each) for each in systems]
    firsts = [each.first_result() for each in ready]
    assert {first.shape for first in firsts} == {(5, 128)}
    check_same("embed", systems, firsts)
    assert len({each.work(0) for each in ready}) == 1  # the same tokens
    firsts[3][4, 7] += 2e-5
    with pytest.raises(ParityError, match=r"one call and sentence-transformers .* did not do the same work"):
        check_same("embed", systems, firsts)
    for arguments in (["what=predict", "model_dir=x"], ["what=pretrain", "model_dir=x"]):
        with pytest.raises(InputError, match="model_dir=x: has no effect with what=p"):
            settings_of(*arguments)


def test_texts_agree_or_are_not_compared(prepared_dir: Path, tmp_path: Path) -> None:
    workload = small_workload("generate", prepared_dir, tmp_path, "num_texts=11", "max_target_length=13")
    groups = systems_that_write(settings_of("what=generate", *SMALL))
    assert [(each.library, each.num_beams, each.is_grouped) for group in groups for each in group] == [
        (library, beams, calls) for beams in (1, 4) for calls in (False, True) for library in (HUGGING_FACE, BERTKIT)
    ]
    for systems in groups:
        ways = [bertkit_way if each.library == BERTKIT else hugging_face for each in systems]
        ready = [way.generate(workload, each) for way, each in zip(ways, systems, strict=True)]
        firsts = [each.first_result() for each in ready]
        assert [len(first) for first in firsts] == 2 * [11 if systems[0].is_grouped else 2]
        check_same("generate", systems, firsts)
        assert len({each.work(0) for each in ready}) == 1  # the same tokens
    greedy = hugging_face.generate(workload, groups[1][0]).first_result()
    assert min(map(len, greedy)) <= 6 < 13 == max(map(len, greedy))  # half of them have ended half-way
    firsts[1][7] = [*firsts[1][7][:-1], 3]
    with pytest.raises(ParityError, match=r"bertkit, 4 beams, 3 texts a call and Hugging Face.* by 9\.1e-02"):
        check_same("generate", systems, firsts)


def test_pairs_of_a_file(tmp_path: Path) -> None:
    """The first two columns, whatever they are called; words of their own, with their capitals; a step as `finetune` cuts it."""
    file = tmp_path / "pairs.tsv"
    rows = [f"a {'b ' * (n % 5)}c\tAb {'Ba ' * (n % 7)}" for n in range(31)]
    file.write_text("\n".join(["one\ttwo", *rows]) + "\n", encoding="utf-8")
    settings = settings_of("what=translate", f"text={file}", *SMALL, "vocab_size=61")
    workload = make_writing_workload(settings, tmp_path)
    assert len(workload.pairs) == 31
    tokenizer = load_tokenizer(workload.model_dir)
    assert (tokenizer.vocab_size, workload.config.vocab_size) == (61, 61)
    assert tokenizer.decode(workload.pairs[2].input_ids) == "[CLS] a b b c [SEP]"
    assert tokenizer.decode(workload.pairs[8].label) == "[CLS] Ab Ba [SEP]"
    pairs = Pairs(workload)
    whole, parts = pairs.of_step(4), [batch for _, batch in pairs.micro_batches(4)]
    assert len(parts) == 2
    assert sum(len(part.sequence_lengths) for part in parts) == len(whole.sequence_lengths) == 3
    assert sum(part.num_tokens for part in parts) == whole.num_tokens


def test_a_model_that_transformers_cannot_write_with_is_refused(prepared_dir: Path, tmp_path: Path) -> None:
    bare = small_workload("embed", prepared_dir, tmp_path).model_dir
    given = ["what=generate", f"data_dir={prepared_dir}", *SMALL]
    with pytest.raises(InputError, match=r"model_dir=.*: no decoder, which transformers' EncoderDecoderModel is not"):
        make_writing_workload(settings_of(*given, f"model_dir={bare}"), tmp_path)
    writer = small_workload("generate", prepared_dir, tmp_path, "max_target_length=5").model_dir
    settings = settings_of(*given, f"model_dir={writer}", "max_target_length=513")
    with pytest.raises(InputError, match=r"max_target_length=513: model_dir=.* takes at most 512 tokens"):
        make_writing_workload(settings, tmp_path)


@pytest.mark.slow
def test_the_table_of_texts(prepared_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["what=generate", f"data_dir={prepared_dir}", *SMALL, "vocab_size=300", "num_texts=7"]
    results = bench(tmp_path / "bench.json", *arguments, "num_beams=2", "max_target_length=5")
    assert [each["name"].split(", ")[0] for each in results] == 4 * [HUGGING_FACE, BERTKIT]
    for theirs, ours in zip(results[::2], results[1::2], strict=True):
        assert theirs["ratio"] == 1
        assert ours["ratio"] == pytest.approx(ours["rate"] / theirs["rate"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert lines[0] == "| | tokens/s | ratio (lowest - highest) | peak memory |"
    assert [line.count("|") for line in lines] == 10 * [5]


@pytest.mark.slow
def test_embedding_as_a_service_does_it_is_twice_as_fast(tmp_path: Path) -> None:
    arguments = ["what=embed", f"model_dir={minilm_dir()}", "num_texts=64", "rounds=3", "device=cpu"]
    results = {each["name"]: each for each in bench(tmp_path / "bench.json", *arguments)}
    assert results["bertkit fp32, 16 texts a call"]["ratio"] >= 2
    assert results["bertkit fp32, one call"]["ratio_to_best"] > 1


@pytest.mark.parametrize("what", ["finetune", "translate"])
def test_grouped_batches_are_the_same_sequences_with_less_padding(
    what: str, prepared_dir: Path, tmp_path: Path
) -> None:
    workload = small_workload(what, prepared_dir, tmp_path, "model.num_hidden_layers=1")
    default, at_best = (hugging_face.train(workload, each) for each in (DEFAULT, AT_BEST))
    rounds = range(hugging_face.WINDOW)  # of one step each
    assert sum(map(at_best.work, rounds)) == sum(map(default.work, rounds))


def test_both_prepare_the_same_tokens(prepared_dir: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Return the list.\nIt may be EMPTY, or not!\n\nAnother document.\nIs it?\n", encoding="utf-8")
    workload = small_workload("prepare", prepared_dir, tmp_path, "text_megabytes=1", f"text={text}")
    workload = dataclasses.replace(workload, text_file=text)
    ours = bertkit_way.prepare(workload, OURS).first_result()
    assert hugging_face.prepare(workload, DEFAULT).first_result() == ours > 20


def test_batches_in_processes(prepared_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same tokens by both; the collator's work is the smaller one, as its pairs are ready."""
    theirs, ours = bench(tmp_path / "bench.json", "what=batches", f"data_dir={prepared_dir}", *SMALL)
    assert theirs["name"].startswith("Hugging Face: ")
    assert ours["ratio"] == pytest.approx(ours["rate"] / theirs["rate"])
    assert theirs["peak_megabytes"] > ours["peak_megabytes"] > 50
    assert f"| {ours['name']} |" in capsys.readouterr().out


@pytest.mark.slow
def test_a_system_that_fails_is_named(prepared_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    workload = dataclasses.replace(small_workload("pretrain", prepared_dir, tmp_path), model_dir=tmp_path / "none")
    with pytest.raises(InputError, match="bench: bertkit failed; its error stands above"):
        measure(workload, [OURS], 1)
    assert "InputError" in capfd.readouterr().err


def test_peak_memory_is_as_planned(prepared_dir: Path, tmp_path: Path) -> None:
    """Bertkit's alone; `-m slow` measures Hugging Face's too, through the command."""
    settings = settings_of("what=memory", "model=mini", f"data_dir={prepared_dir}", "batch_sizes=[4]", "device=cpu")
    workload = dataclasses.replace(make_workload(settings, "pretrain", tmp_path), batch_sequences=4, is_full=True)
    with started(workload, OURS) as ask:
        before = ask(held)
        measured = [ask(one_round, number).megabytes for number in range(2)][-1]
    (planned,), gigabytes, largest = plan(settings, workload, before)
    assert planned == pytest.approx(measured, rel=0.15)
    assert gigabytes > 0
    assert largest > 4


@pytest.mark.slow
@pytest.mark.parametrize("what", ["pretrain", "finetune", "translate", "predict"])
def test_the_tables(what: str, prepared_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"what={what}", f"data_dir={prepared_dir}", *SMALL, "vocab_size=300", "num_texts=5"]
    results = bench(tmp_path / "bench.json", *arguments)
    assert [each["name"].split()[0] for each in results] == ["Hugging", "Hugging", "bertkit"]
    assert all(each["rate"] > 0 and each["peak_megabytes"] > 50 for each in results)
    assert results[0]["ratio"] == results[1]["ratio_to_best"] == 1
    assert "| bertkit fp32 |" in capsys.readouterr().out


@pytest.mark.slow
def test_bfloat16_beside_bfloat16(prepared_dir: Path, tmp_path: Path) -> None:
    arguments = ["what=pretrain", f"data_dir={prepared_dir}", *SMALL, "vocab_size=300", "precision=bf16"]
    results = bench(tmp_path / "bench.json", *arguments)
    names = [*2 * ["Hugging Face fp32"], *2 * ["Hugging Face bf16"], "bertkit bf16"]
    assert [each["name"].split(",")[0] for each in results] == names
    assert results[-2]["ratio_to_best"] == 1


@pytest.mark.slow
def test_each_trick_is_left_out_in_turn(prepared_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["what=pretrain", f"data_dir={prepared_dir}", *SMALL, "vocab_size=300", "tricks=true"]
    assert run(["bench", *arguments]) == 0
    tables = capsys.readouterr().out
    for name in (*(f"without {each}" for each in bertkit_way.fast_ways("cpu")), "plain"):
        assert f"| {name} |" in tables.partition("Fast ways")[2]


@pytest.mark.slow
def test_the_rates_of_preparing_and_startup(
    prepared_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["what=prepare", f"data_dir={prepared_dir}", "text_megabytes=1", "rounds=1"]
    theirs, ours = bench(tmp_path / "bench.json", *arguments)
    assert ours["rate"] > theirs["rate"] > 0
    assert run(["bench", "what=startup", "rounds=1"]) == 0
    assert "a refused configuration" in capsys.readouterr().out


@pytest.mark.slow
def test_work_that_differs_is_refused(
    prepared_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bertkit.bench.rounds.SAME_LOSS", -1.0)
    assert run(["bench", "what=pretrain", f"data_dir={prepared_dir}", *SMALL, "vocab_size=300"]) == 1
    assert "did not do the same work" in capsys.readouterr().err


def test_the_table() -> None:
    results = [Result("first", 1234.4, 1.0, 1.0, 1.0, 10.4), Result("second", 2.5, 2.0, 1.5, 2.25, 0.0, 1.25)]
    (table,) = rates_found("tokens/s", results).tables
    assert table.markdown().splitlines()[2:] == [
        "| first | 1,234 | 1.00 (1.00 - 1.00) |  | 10 MB |",
        "| second | 2.50 | 2.00 (1.50 - 2.25) | 1.25 |  |",
    ]


def test_the_effect_of_each_trick() -> None:
    names = ("Hugging Face", "bertkit bf16", "bertkit bf16, without x", "bertkit bf16, plain")
    rates = zip(names, (2.0, 8.0, 6.0, 4.0), strict=True)
    found = rates_found("tokens/s", [Result(name, rate, rate / 2, rate / 4, rate, 0.0) for name, rate in rates])
    assert [table.rows for table in found.tables[1:]] == [[("without x", "0.75"), ("plain", "0.50")]]
    assert found.charts[0].bars[1] == ("bertkit bf16", 4.0, 2.0, 8.0)  # type: ignore[union-attr]
    assert len(found.charts) == 1  # no memory was measured


def test_exponents() -> None:
    assert exponent([(size, 3 * size**1.5) for size in (64, 128, 2048)]) == pytest.approx(1.5)
    assert exponent([(1, 5.0), (2, 5.0)]) == pytest.approx(0.0)
    assert exponent([(7, 1.0)]) is None


@pytest.mark.slow
def test_the_sizes_of_scaling(prepared_dir: Path, tmp_path: Path) -> None:
    settings = settings_of(
        "what=scaling", "model=tiny", f"data_dir={prepared_dir}", "vocab_size=300", "lengths=[16,64,700]", "device=cpu",
        "batch_sizes=[3,5]", "corpus_megabytes=[1,2]", "batch_sequences=8", "max_seq_length=32", "steps_per_round=2",
    )  # fmt: skip
    by_length, by_batch, by_corpus, by_input = (list(curve.points.values()) for curve in curves_of(settings, tmp_path))
    counts = [(work.max_seq_length, work.batch_sequences, shares) for work, shares in (*by_length, *by_batch)]
    assert counts == [(16, 16, 32), (64, 4, 8), (700, 1, 2), (32, 3, 2), (32, 5, 2)]
    files = [work.text_file for work, _ in by_corpus]
    assert [round(file.stat().st_size / 1e6, 1) for file in files if file is not None] == [1.0, 2.0]
    assert [(work.max_seq_length, len(work.texts), shares) for work, shares in by_input] == [
        (16, 16, 16),
        (64, 4, 4),
        (700, 1, 1),
    ]
    words = [len(work.texts[0].split()) for work, _ in by_input]
    assert words[0] < words[1] < words[2]
    config = json.loads((by_length[0][0].model_dir / "config.json").read_text())
    assert config["max_position_embeddings"] == 700


def test_options_of_attention_are_read() -> None:
    config = config_with("attention.pattern=window attention.window=7 norm.kind=rms", small_config())
    assert (config.attention.pattern, config.attention.window, config.norm.kind) == ("window", 7, "rms")
    with pytest.raises(InputError, match=r"unknown key 'attention\.windw' in"):
        config_with("attention.windw=7", small_config())
    with pytest.raises(InputError, match="pattern='wide': expected full or causal"):
        config_with("attention.pattern=wide", small_config())


@pytest.mark.slow
def test_attentions_grow_as_they_should(prepared_dir: Path, tmp_path: Path) -> None:
    """`pytest -m slow tests/bench/test_bench.py -k attentions`: some two minutes."""
    output = tmp_path / "attention.json"
    arguments = [
        "model=tiny",
        "vocab_size=300",
        "lengths=[512,2048,4096]",
        "rounds=2",
        "device=cpu",
        f"output={output}",
    ]
    assert run(["bench", "what=attention", f"data_dir={prepared_dir}", *arguments]) == 0
    full, window, bigbird, linformer = json.loads(output.read_text())["results"]
    assert full["seconds_exponent"] > 1.2
    assert full["megabytes_exponent"] > 1.2
    for sparse in (window, bigbird, linformer):
        assert sparse["seconds_exponent"] < 1.15, sparse["option"]
        assert sparse["megabytes_exponent"] < 1.15, sparse["option"]
        assert sparse["points"][-1]["seconds"] < full["points"][-1]["seconds"]


@pytest.mark.slow
def test_peak_memory_beside_hugging_face_is_as_planned(
    prepared_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "memory.json"
    arguments = ["model=mini", f"data_dir={prepared_dir}", "batch_sizes=[4]", "memory_gigabytes=2", "device=cpu"]
    assert run(["bench", "what=memory", *arguments, f"output={output}"]) == 0
    measured, fitting = json.loads(output.read_text())["results"]
    assert measured["planned_megabytes"] == pytest.approx(measured["megabytes"], rel=0.15)
    assert measured["megabytes"] < measured["hugging_face_megabytes"]
    assert 4 < fitting["largest_micro_batch"] < 200
    assert "planned / measured" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_peak_memory_of_base_at_512_is_as_planned(prepared_dir: Path, tmp_path: Path, precision: str) -> None:
    """`pytest -m slow tests/bench/test_bench.py -k base`: some five minutes each."""
    output = tmp_path / "memory.json"
    arguments = ["model=base", "max_seq_length=512", f"data_dir={prepared_dir}", "batch_sizes=[2,4]", "device=cpu"]
    assert run(["bench", "what=memory", *arguments, f"precision={precision}", f"output={output}"]) == 0
    *measured, _ = json.loads(output.read_text())["results"]
    assert len(measured) == 2
    for each in measured:
        assert each["planned_megabytes"] == pytest.approx(each["megabytes"], rel=0.15)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_peak_memory_on_cuda_is_as_planned(prepared_dir: Path, tmp_path: Path, precision: str) -> None:
    output = tmp_path / "memory.json"
    arguments = ["model=base", "max_seq_length=512", f"data_dir={prepared_dir}", "batch_sizes=[8,32]", "device=cuda"]
    assert run(["bench", "what=memory", *arguments, f"precision={precision}", f"output={output}"]) == 0
    *measured, _ = json.loads(output.read_text())["results"]
    for each in measured:
        assert each["planned_megabytes"] == pytest.approx(each["megabytes"], rel=0.15)


@pytest.mark.slow
def test_scaling_makes_a_page(prepared_dir: Path, tmp_path: Path) -> None:
    """`pytest -m slow tests/bench/test_bench.py -k scaling`: some two minutes."""
    output = tmp_path / "scaling.html"
    sizes = ["batch_sizes=[1,2]", "lengths=[16,32]", "corpus_megabytes=[1]"]
    assert run(["bench", "what=scaling", f"data_dir={prepared_dir}", *SMALL, *sizes, f"output={output}"]) == 0
    page = Page(output.read_text())
    assert page.tags.count("svg") == 4
    assert page.text.count("exponent") == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["what=memory", "batch_sizes=[4,2]"], "batch_sizes=[4, 2]: expected numbers from 1 up"),
        (["what=scaling", "lengths=[]"], "lengths=[]: expected numbers from 1 up"),
        (["what=scaling", "lengths=[2,8]"], "lengths=[2, 8]: expected 4 tokens or more"),
        (["what=memory", "memory_gigabytes=0"], "memory_gigabytes=0.0: expected a positive number"),
        (["what=memory", "tricks=true"], "tricks=true: has no effect with what=memory"),
        (["what=generate", "tricks=true"], "tricks=true: has no effect with what=generate"),
        (["what=generate", "precision=bf16"], "precision=bf16: rounding changes texts"),
        (["what=generate", "max_target_length=1"], "max_target_length=1: expected at least 2"),
        (["what=translate", "num_beams=2"], "num_beams=2: has no effect with what=translate"),
        (["what=predict", "max_target_length=8"], "max_target_length=8: has no effect with what=predict"),
        (["what=startup", "output=x.txt"], "output=x.txt: expected a name that ends in .json or .html"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err
