"""The bench through its command: real contestants in processes of their own, a table and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Page

from bertkit.bench.compare import Result, findings, table
from bertkit.bench.scaling import curves_of, exponent
from bertkit.cli import compose, run
from bertkit.config import build
from bertkit.settings.schemas import BenchSettings

SMALL = ["model=tiny", "rounds=1", "steps_per_round=1", "batch_sequences=3", "max_seq_length=48", "device=cpu"]


@pytest.mark.parametrize("what", ["pretrain", "finetune", "predict"])
def test_contestants_do_the_same_work(
    what: str, prepared_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "bench.json"
    code = run(
        [
            "bench",
            f"what={what}",
            f"data_dir={prepared_dir}",
            *SMALL,
            "vocab_size=300",
            "num_texts=5",
            f"output={output}",
        ]
    )
    assert code == 0
    results = json.loads(output.read_text())["results"]
    assert [each["name"].split()[0] for each in results] == ["Hugging", "Hugging", "bertkit"]
    assert all(each["rate"] > 0 and each["peak_megabytes"] > 50 for each in results)
    assert results[0]["ratio"] == results[1]["ratio_to_best"] == 1
    assert (results[-1]["peak_share"] is not None) == (what == "pretrain")
    assert "| bertkit fp32 |" in capsys.readouterr().out


def test_batches_of_an_epoch(prepared_dir: Path, tmp_path: Path) -> None:
    """The same tokens by both; the collator's work is the smaller one, as its pairs are ready."""
    output = tmp_path / "bench.json"
    assert run(["bench", "what=batches", f"data_dir={prepared_dir}", *SMALL, f"output={output}"]) == 0
    theirs, ours = json.loads(output.read_text())["results"]
    assert theirs["rate"] > 0
    assert ours["rate"] > 0


def test_bfloat16_beside_bfloat16(prepared_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    arguments = ["what=pretrain", f"data_dir={prepared_dir}", *SMALL, "vocab_size=300", "precision=bf16"]
    assert run(["bench", *arguments, f"output={output}"]) == 0
    results = json.loads(output.read_text())["results"]
    assert [each["name"].split(",")[0] for each in results] == [
        *2 * ["Hugging Face fp32"],
        *2 * ["Hugging Face bf16"],
        "bertkit bf16",
    ]
    assert results[-2]["ratio_to_best"] == 1


def test_preparing_gives_the_same_tokens_and_startup_the_right_codes(
    prepared_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Return the list.\nIt may be EMPTY, or not!\n\nAnother document.\nIs it?\n", encoding="utf-8")
    arguments = [f"data_dir={prepared_dir}", "text_megabytes=1", "rounds=1"]
    assert run(["bench", "what=prepare", *arguments, f"text={text}", f"output={tmp_path / 'bench.json'}"]) == 0
    theirs, ours = json.loads((tmp_path / "bench.json").read_text())["results"]
    assert ours["rate"] > theirs["rate"] > 0
    assert run(["bench", "what=startup", "rounds=1"]) == 0
    assert "a refused configuration" in capsys.readouterr().out


def test_work_that_differs_is_refused(
    prepared_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bertkit.bench.compare.SAME_LOSS", -1.0)
    assert run(["bench", "what=pretrain", f"data_dir={prepared_dir}", *SMALL, "vocab_size=300"]) == 1
    assert "did not do the same work" in capsys.readouterr().err


def test_the_table() -> None:
    results = [
        Result("first", 1234.4, 1.0, 1.0, 1.0, 10.4, 0.251),
        Result("second", 2.5, 2.0, 1.5, 2.25, 0.0, None, 1.25),
    ]
    assert table("tokens/s", results).markdown().splitlines()[2:] == [
        "| first | 1,234 | 1.00 (1.00 - 1.00) |  | 10 MB | 25% |",
        "| second | 2.50 | 2.00 (1.50 - 2.25) | 1.25 |  |  |",
    ]


def settings_of(*arguments: str) -> BenchSettings:
    return build(BenchSettings, compose("bench", list(arguments)))


def test_the_effect_of_each_trick() -> None:
    rates = [
        ("Hugging Face", 2.0),
        ("bertkit bf16", 8.0),
        ("bertkit bf16, without x", 6.0),
        ("bertkit bf16, plain", 4.0),
    ]
    results = [Result(name, rate, rate / 2, rate / 4, rate, 0.0, None) for name, rate in rates]
    found = findings(settings_of("what=pretrain", "precision=bf16", "tricks=true"), "tokens/s", results)
    assert [table.rows for table in found.tables[1:]] == [[("without x", "0.75"), ("plain", "0.50")]]
    assert found.charts[0].bars[1] == ("bertkit bf16", 4.0, 2.0, 8.0)  # type: ignore[union-attr]
    assert len(found.charts) == 1  # no memory was measured


def test_exponents() -> None:
    assert exponent([64, 128, 2048], [3 * size**1.5 for size in (64, 128, 2048)]) == pytest.approx(1.5)
    assert exponent([1, 2], [5.0, 5.0]) == pytest.approx(0.0)
    assert exponent([7], [1.0]) is None


def test_the_sizes_of_scaling(prepared_dir: Path, tmp_path: Path) -> None:
    settings = settings_of(
        "what=scaling", "model=tiny", f"data_dir={prepared_dir}", "vocab_size=300", "lengths=[16,64,700]", "device=cpu",
        "batch_sizes=[3,5]", "corpus_megabytes=[1,2]", "batch_sequences=8", "max_seq_length=32", "steps_per_round=2",
    )  # fmt: skip
    by_length, by_batch, by_corpus, by_input = curves_of(settings, tmp_path)
    counts = [(point.job.max_seq_length, point.job.batch_sequences, point.shares) for point in by_length.points]
    assert counts == [(16, 16, 32), (64, 4, 8), (700, 1, 2)]
    assert [(point.job.max_seq_length, point.job.batch_sequences, point.shares) for point in by_batch.points] == [
        (32, 3, 2),
        (32, 5, 2),
    ]
    assert [round(point.job.files[0].stat().st_size / 1e6, 1) for point in by_corpus.points] == [1.0, 2.0]
    assert [(point.job.max_seq_length, len(point.job.texts)) for point in by_input.points] == [
        (16, 16),
        (64, 4),
        (700, 1),
    ]
    words = [len(point.job.texts[0].split()) for point in by_input.points]
    assert words[0] < words[1] < words[2]
    config = json.loads((by_length.points[0].job.model_dir / "config.json").read_text())
    assert config["max_position_embeddings"] == 700


def test_peak_memory_is_as_planned(prepared_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        (["what=startup", "output=x.txt"], "output=x.txt: expected a name that ends in .json or .html"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err
