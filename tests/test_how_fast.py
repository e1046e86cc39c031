"""The scripts of recipes/how_fast, each once at a tiny size: both sides do the same work, and are measured.

The systems run in one process here; with `-m slow` the scripts run as they are.
"""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import output_of

FOLDER = Path(__file__).resolve().parents[1] / "recipes" / "how_fast"
HERE = """
import contextlib, importlib, json, sys
sys.path.insert(0, sys.argv[1])
import rounds

@contextlib.contextmanager
def here(system, num_threads):
    ready = system.load()
    yield lambda what, *arguments: what(ready, *arguments)

rounds.started = here
for name, arguments in json.loads(sys.argv[2]):
    importlib.import_module(name).main(arguments)
"""
MODEL = [
    "--model", "tiny", "--vocab-size", "300", "--max-seq-length", "48", "--batch-sequences", "3", "--device", "cpu",
]  # fmt: skip
STEPS = [*MODEL, "--steps-per-round", "1"]
TEXTS = [*MODEL, "--num-texts", "9"]
# name of the figures -> script, arguments, and how many systems of Hugging Face and of bertkit are measured
SCRIPTS: dict[str, tuple[str, list[str], int, int]] = {
    "pretraining": ("pretraining", [*STEPS, "--precision", "bf16", "--plain"], 4, 2),
    "finetuning": ("finetuning", STEPS, 2, 1),
    "translation": ("translation", STEPS, 2, 1),
    "writing": ("writing", [*TEXTS, "--num-beams", "2", "--max-target-length", "5"], 4, 4),
    "prediction": ("prediction", TEXTS, 2, 1),
    "embedding": ("embedding", TEXTS, 2, 2),
    "batches": ("preparing", ["batches"], 1, 1),
}


def measured(path: Path) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = json.loads(path.read_text())["results"]
    return results


def check(results: list[dict[str, Any]], num_theirs: int, num_ours: int) -> None:
    names = [each["name"] for each in results]
    assert len(names) == num_theirs + num_ours
    assert sum(name.startswith("bertkit") for name in names) == num_ours
    for each in results:
        assert all(math.isfinite(each[key]) and each[key] > 0 for key in each if key != "name"), each
    assert results[0]["ratio"] == 1


def test_each_script_measures_both_sides(prepared_dir: Path, tmp_path: Path, python: Path) -> None:
    shared = ["--data-dir", str(prepared_dir), "--rounds", "1", "--output"]
    runs = [(script, [*given, *shared, str(tmp_path / name)]) for name, (script, given, *_) in SCRIPTS.items()]
    sizes = ["--curves", "length", "batch", "input", "--lengths", "16", "32", "--batch-sizes", "1", "2"]
    runs.append(("scaling", [*STEPS, *sizes, *shared, str(tmp_path / "scaling")]))
    runs.append(("attention", [*STEPS, "--lengths", "16", "32", *shared, str(tmp_path / "attention")]))
    said = output_of([python, "-c", HERE, FOLDER, json.dumps(runs)])
    for name, (_, _, *counts) in SCRIPTS.items():
        check(measured(tmp_path / name), *counts)
    assert said.count("| bertkit fp32 |") == 3
    curves = measured(tmp_path / "scaling")
    assert [len(each["points"]) for each in curves] == [2, 2, 2]
    assert all(value > 0 for curve in curves for point in curve["points"] for value in point.values())
    patterns = measured(tmp_path / "attention")
    assert len(patterns) == 4
    assert all(point["seconds"] > 0 for each in patterns for point in each["points"])


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, FOLDER / f"{script}.py", *arguments], capture_output=True, text=True)


def test_systems_in_processes_of_their_own(prepared_dir: Path, python: Path) -> None:
    code = f"""
import argparse, functools, sys
sys.path.insert(0, {str(FOLDER)!r})
import preparing, rounds
from pathlib import Path
from training import Pairs
args = argparse.Namespace(rounds=1, num_threads=1)
for name in ("data", "none"):
    pairs = Pairs(Path({str(prepared_dir.parent)!r}) / name, 31, 3)
    (found,) = rounds.measure(args, [rounds.System(name, functools.partial(preparing.our_batches, pairs))]).values()
    print(found[0].amount > 1000, found[0].megabytes > 50, rounds.held(None) > 50)
"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "True True True"), done.stderr
    assert "none: no such directory" in done.stderr
    assert "error: none failed; " in done.stderr


def test_different_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    import rounds

    rounds.check_same(["a", "b"], [[1.0, 2.0], [1.05, 2.0]], [0.0, (0.1, 0.0)])
    with pytest.raises(SystemExit, match=r"^error: b and a .* 1\.0e-01; "):
        rounds.check_same(["a", "b"], [[1.0, 2.0], [1.0, 2.1]], [0.0, (0.1, 0.0)])
    with pytest.raises(SystemExit, match=r"^error: b and a "):
        rounds.check_same(["a", "b"], [1.0, math.nan], [0.0, 0.0])


@pytest.mark.slow
def test_text_and_servers_are_measured(prepared_dir: Path, tmp_path: Path) -> None:
    given = ["--data-dir", prepared_dir, "--rounds", "1", "--output"]
    assert run("preparing", "text", "--text-megabytes", "1", *given, tmp_path / "text").returncode == 0
    check(measured(tmp_path / "text"), 1, 1)
    again = run("preparing", "batches", "--output", tmp_path / "text")
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    load = [*TEXTS, "--num-clients", "3", "--round-seconds", "0.5", "--num-threads", "2"]
    done = run("serving", *load, *given, tmp_path / "serving")
    assert done.returncode == 0, done.stderr
    check(measured(tmp_path / "serving"), 4, 2)


@pytest.mark.slow
def test_attentions_grow_as_they_should(prepared_dir: Path, tmp_path: Path) -> None:
    sizes = "--model tiny --vocab-size 300 --lengths 512 2048 4096 --rounds 2 --device cpu"
    done = run("attention", *sizes.split(), "--data-dir", prepared_dir, "--output", tmp_path / "attention")
    assert done.returncode == 0, done.stderr
    full, *sparse = measured(tmp_path / "attention")
    assert min(full["seconds_exponent"], full["megabytes_exponent"]) > 1.2
    assert len(sparse) == 3
    for each in sparse:
        assert max(each["seconds_exponent"], each["megabytes_exponent"]) < 1.15, each["option"]
        assert each["points"][-1]["seconds"] < full["points"][-1]["seconds"]
