"""The script of recipes/speedrun: both sides train on the same dataset, are measured on the same masks, and stand in one table."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "recipes" / "speedrun" / "speedrun.py"


@pytest.mark.slow
def test_a_run_of_each_side_has_a_line_in_the_table(prepared_dir: Path, tmp_path: Path) -> None:
    def record(*arguments: str | Path) -> str:
        command = [sys.executable, str(SCRIPT), "--record", str(tmp_path), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    places = ["--output", tmp_path / "runs", "--steps", "2"]
    for row in ("hugging_face", "mini", "modern_mini", "muon"):
        record("train", prepared_dir, row, *places)
    assert "measured already" in record("train", prepared_dir, "mini", *places)
    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == ["hugging_face", "mini", "modern_mini", "muon"]
    for line in lines:
        assert [step for step, _ in line["losses"]] == [1, 2]
        assert all(1 < loss < 10 for _, loss in line["losses"])
    speeds = {"hugging_face": 100.0, "mini": 200.0, "modern_mini": 400.0, "muon": 800.0}
    (tmp_path / "speed.json").write_text(json.dumps(speeds))
    rows = [row.split(" | ") for row in record("table").splitlines()[2:6]]
    assert [float(row[4]) for row in rows] == [0.7, 0.3, 0.2, 0.1]  # 2 steps of 2,048 tokens
    pairs = ['{"UID": "x", "sentence_good": "the cats sleep", "sentence_bad": "the cats sleeps"}\n'] * 3
    (tmp_path / "blimp").mkdir()
    (tmp_path / "blimp" / "pairs.jsonl").write_text("".join(pairs))
    record("grammar", tmp_path / "blimp", "--output", tmp_path / "runs", "--pairs", "2")
    grammar = [json.loads(line) for line in (tmp_path / "grammar.jsonl").read_text().splitlines()]
    assert [line["row"] for line in grammar] == ["hugging_face", "mini", "modern_mini", "muon"]
    assert {score for line in grammar for _, score in line["scores"]} <= {0.0, 0.5, 1.0}
    assert [[step for step, _ in line["scores"]] for line in grammar] == [[1, 1, 2]] * 4
    record("grammar", tmp_path / "blimp", "--output", tmp_path / "runs", "--last")
    lasts = [json.loads(line) for line in (tmp_path / "grammar.jsonl").read_text().splitlines()[4:]]
    assert [(line["num_pairs"], len(line["scores"])) for line in lasts] == [(3, 1)] * 4
    assert all("(2 pairs); " in row and "(3 pairs)" in row for row in record("table").splitlines()[2:6])
    assert record("steps-in", "60").strip() == "176"
