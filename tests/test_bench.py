"""The bench through its command: real contestants in processes of their own, a table and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertkit.bench_compare import Result, table
from bertkit.cli import run

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
    assert results[0]["ratio"] == 1
    assert (results[-1]["peak_share"] is not None) == (what == "pretrain")
    assert "| bertkit fp32 |" in capsys.readouterr().out


def test_work_that_differs_is_refused(
    prepared_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bertkit.bench_compare.SAME_LOSS", {"fp32": -1.0, "bf16": -1.0})
    assert run(["bench", "what=pretrain", f"data_dir={prepared_dir}", *SMALL, "vocab_size=300"]) == 1
    assert "did not do the same work" in capsys.readouterr().err


def test_the_table() -> None:
    results = [Result("first", 1234.4, 1.0, 1.0, 1.0, 10.4, 0.251), Result("second", 2.5, 2.0, 1.5, 2.25, 0.0, None)]
    assert table("tokens/s", results).markdown().splitlines()[2:] == [
        "| first | 1,234 | 1.00 (1.00 - 1.00) | 10 MB | 25% |",
        "| second | 2.50 | 2.00 (1.50 - 2.25) |  |  |",
    ]
