"""The scripts of recipes/how_fast, each once at a tiny size: both sides do the same work, and are measured.

The systems run in one process here, and nothing is compiled; with `-m slow` the scripts run as they are.
"""

import functools
import importlib.util
import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import headed_model, output_of

from bertkit import export_model
from bertkit.cli import run as run_command
from bertkit.data.corpus.tokenizer import Tokenizer

FOLDER = Path(__file__).resolve().parents[1] / "recipes" / "how_fast"
HERE = """
import contextlib, importlib, json, sys
sys.path.insert(0, sys.argv[1])
import rounds, torch
torch.compile = lambda called, **options: called  # its work would be torch's, on models of transformers, for ten seconds

@contextlib.contextmanager
def here(system, num_threads, seconds=None):
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
    "modern": ("pretraining", [*STEPS, "--model", "modern_tiny"], 2, 1),
    "finetuning": ("finetuning", STEPS, 2, 1),
    "translation": ("translation", STEPS, 2, 1),
    "writing": ("writing", [*TEXTS, "--num-beams", "2", "--max-target-length", "5"], 4, 4),
    "prediction": ("prediction", TEXTS, 2, 1),
    "embedding": ("embedding", TEXTS, 2, 2),
    "batches": ("preparing", ["batches"], 1, 1),
}

ROWS_TRIED = ["spans-base-384", "vectors-base-128"]  # of gpu.py, in their order


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


@pytest.mark.slow
def test_each_script_measures_both_sides(prepared_dir: Path, tmp_path: Path, python: Path) -> None:
    shared = ["--data-dir", str(prepared_dir), "--rounds", "1", "--output"]
    runs = [(script, [*inputs, *shared, str(tmp_path / name)]) for name, (script, inputs, *_) in SCRIPTS.items()]
    sizes = ["--curves", "length", "batch", "input", "--lengths", "16", "32", "--batch-sizes", "1", "2"]
    runs.append(("scaling", [*STEPS, *sizes, *shared, str(tmp_path / "scaling")]))
    runs.append(("attention", [*STEPS, "--lengths", "16", "32", *shared, str(tmp_path / "attention")]))
    ways = ["--busy", "0", "1", "--waits", "bertkit", "100", "passive", "one thread", "--round-seconds", "0.02"]
    runs.append(("searching", ["--sizes", "7", "50", "--num-questions", "9"]))
    runs.append(("sharing", [*TEXTS, "--work", "training", "prediction", *ways, *shared, str(tmp_path / "sharing")]))
    gpu = [*ROWS_TRIED, "--device", "cpu", "--data-dir", str(prepared_dir)]
    runs += [("gpu", [*gpu, *more, "--output-dir", str(tmp_path)]) for more in ([], ["--again"])]
    output = output_of([python, "-c", HERE, FOLDER, json.dumps(runs)])
    check_gpu(tmp_path, output)
    for name, (_, _, *counts) in SCRIPTS.items():
        check(measured(tmp_path / name), *counts)
    assert output.count("| bertkit fp32 |") == 4
    assert re.findall(r"^(\d+) passages: \d+ MB, .*; p50 \d+\.\d ms, p99 \d", output, re.MULTILINE) == ["7", "50"]
    curves = measured(tmp_path / "scaling")
    assert [len(each["points"]) for each in curves] == [2, 2, 2]
    assert all(value > 0 for curve in curves for point in curve["points"] for value in point.values())
    sharing = measured(tmp_path / "sharing")
    assert len(sharing) == 2 * 4 * 2
    assert all(len(each["rates"]) == 1 and each["rates"][0] > 0 for each in sharing)
    patterns = measured(tmp_path / "attention")
    assert len(patterns) == 4
    assert all(point["seconds"] > 0 for each in patterns for point in each["points"])


PACKAGES = {"Hugging Face": "torch", "onnxruntime": "onnxruntime", "OpenVINO": "openvino", "CTranslate2": "ctranslate2"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engines", "options"), [(("Hugging Face", "CTranslate2"), []), (tuple(PACKAGES), ["onnx=int8"])]
)
def test_engines_that_are_installed_are_scored_on_each_task(
    engines: tuple[str, ...], options: list[str], tokenizer: Tokenizer, tmp_path: Path, python: Path
) -> None:
    words = [word for word in tokenizer.vocab if word.isalpha()]
    for task, folder, header in (("sst2", "SST-2", "sentence"), ("qqp", "QQP", "question1\tquestion2")):
        labels = {"sst2": ("negative", "positive"), "qqp": ("not_duplicate", "duplicate")}[task]
        model = headed_model(tokenizer, "sequence", scale=3, labels=labels, max_position_embeddings=128)
        export_model(model, tokenizer, tmp_path / f"{task}-in")
        made = [
            "export",
            f"model_dir={tmp_path / task}-in",
            "head=task",
            *options,
            f"output_dir={tmp_path / 'all' / task}",
        ]
        assert run_command(made) == 0
        columns = header.count("\t") + 1
        texts = ["\t".join(" ".join(words[n + k : 2 * n + 3]) for k in range(columns)) for n in range(13)]
        rows = [f"{text}\t{n % 2}" for n, text in enumerate(texts)]
        (tmp_path / folder).mkdir()
        label = "label" if task == "sst2" else "is_duplicate"
        (tmp_path / folder / "dev.tsv").write_text("\n".join([f"{header}\t{label}", *rows, ""]))
    words = ["--exports", str(tmp_path / "all"), "--tasks", "sst2", "qqp", "--data-dir", str(tmp_path), "--rounds", "1"]
    words += ["--num-texts", "11", "--engines", *engines, "--output", str(tmp_path / "figures")]
    output = output_of([python, "-c", HERE, FOLDER, json.dumps([("engines", words)])])
    missing = [name for name in engines if importlib.util.find_spec(PACKAGES[name]) is None]
    assert {line.split(" fp32")[0] for line in output.splitlines() if "fp32 is left out: " in line} == set(missing)
    results = measured(tmp_path / "figures")
    kinds = [1 if name == "Hugging Face" else 2 for name in engines if name not in missing]
    assert [each["task"] for each in results] == ["sst2"] * (1 + sum(kinds)) + ["qqp"] * (1 + sum(kinds))
    for each in results:
        metric, score, difference, error = each["quality"].replace("(", "").replace(")", "").replace(",", "").split()
        assert metric == {"sst2": "accuracy", "qqp": "f1"}[each["task"]]
        assert 0 <= float(score) <= 100
        assert each["rate"] > 0
        assert "int8" in each["name"] or (float(difference), float(error)) == (0, 0), each


def check_gpu(folder: Path, message: str) -> None:
    """Every system has its figures, and the second start measured bertkit alone."""
    results = json.loads((folder / "results.json").read_text())
    assert [len(row["systems"]) for row in results["rows"].values()] == [4, 4]
    for row in results["rows"].values():
        assert all(len(each["rounds"]) == 5 and each["notes"] == [] for each in row["systems"].values()), row
    lines = [line for line in message.splitlines() if ": measured after" in line]
    assert [line.split(": ")[0] for line in lines[8:]] == [f"{name}, bertkit bf16" for name in ROWS_TRIED]
    table = (folder / "results.md").read_text()
    assert table in message
    assert len(re.findall(r"^\| .* \| [\d.,]+ \| .* MB \| [\d.]+% \| \d+ s \|  \|$", table, re.MULTILINE)) == 8
    assert all("aten::" in (folder / f"{name}.profile.txt").read_text() for name in ROWS_TRIED)


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, FOLDER / f"{script}.py", *arguments], capture_output=True, text=True)


def test_systems_in_processes_of_their_own(prepared_dir: Path, python: Path) -> None:
    code = f"""
import argparse, functools, sys
sys.path.insert(0, {str(FOLDER)!r})
import preparing, rounds
from pathlib import Path
from training import Pairs
args = argparse.Namespace(rounds=1, num_threads=1, clock="wall")
for name in ("data", "none"):
    pairs = Pairs(Path({str(prepared_dir.parent)!r}) / name, 31, 3)
    (rounds_done,) = rounds.measure(args, [rounds.System(name, functools.partial(preparing.our_batches, pairs))]).values()
    print(rounds_done[0].amount > 1000, rounds_done[0].megabytes > 50, rounds.held(None) > 50)
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


@pytest.mark.parametrize(
    ("error", "reason"),
    [(torch.OutOfMemoryError("9 GiB"), "out of memory"), (SystemExit("no server"), "SystemExit: no server")],
)
def test_what_fails_in_another_process_says_why(
    error: BaseException, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    import rounds

    def load() -> Any:
        raise error

    sent = Mock()
    rounds._answer(rounds.System("x", load), torch.get_num_threads(), sent)
    assert str(sent.send.call_args.args[0]) == reason


@pytest.mark.parametrize(("load", "reason"), [(time.sleep, "did not answer within 0"), (os._exit, "exit code 60")])
def test_a_process_that_hangs_or_dies_is_given_up(load: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    import rounds

    started_at, others = time.monotonic(), multiprocessing.active_children()
    system = rounds.System("it", functools.partial(load, 60))
    with (
        pytest.raises(SystemExit, match=f"^error: it failed; .*{reason}"),
        rounds.started(system, 1, 0.1 if load is time.sleep else 60) as ask,
    ):
        ask(rounds.first_result)
    assert time.monotonic() - started_at < 50
    assert set(multiprocessing.active_children()) <= set(others)


def gpu_sh(folder: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start gpu.sh without an installation, in a process group of its own."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        [FOLDER / "gpu.sh", "--device", "cpu", "--data-dir", *arguments], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PATH": path, "INSTALL": "no", "RUN_DIR": str(folder)}, start_new_session=True,
    )  # fmt: skip


def test_what_does_not_fit_is_left_for_the_next_start(prepared_dir: Path, tmp_path: Path) -> None:
    process = gpu_sh(tmp_path, prepared_dir, "--seconds", "1", "serving-base-128")
    output, _ = process.communicate()
    assert process.returncode == 75
    assert [line.split(",")[0] for line in output.splitlines()[-3:]] == [
        "left for the next start: serving-base-128"
    ] * 3


def test_the_flops_are_those_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """MFLOP for each token of a training step, worked out by hand for BERT-base and BERT-large."""
    monkeypatch.syspath_prepend(FOLDER)
    import gpu

    for hidden, layers, length, expected in ((768, 12, 128, 545.4), (768, 12, 512, 587.9), (1024, 24, 128, 1878.8)):
        sizes = {
            "hidden_size": hidden,
            "intermediate_size": 4 * hidden,
            "num_hidden_layers": layers,
            "vocab_size": 30522,
        }
        flops = gpu.forward_flops(sizes, np.full(20, length), 0.15 * 20 * length)
        assert 3e-6 * flops / (20 * length) == pytest.approx(expected, abs=0.05)


@pytest.mark.slow
def test_every_row_is_measured_and_a_killed_start_goes_on(prepared_dir: Path, tmp_path: Path) -> None:
    with gpu_sh(tmp_path, prepared_dir) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(3)]
        os.killpg(process.pid, signal.SIGKILL)
    before = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert all(": measured after" in line for line in printed)
    process = gpu_sh(tmp_path, prepared_dir)
    process.communicate()
    assert process.returncode == 0
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [len(row["systems"]) for row in rows.values()] == [3, 3, 3, 4, 4, 4, 4, 3, 3, 3, 3, 3]
    assert all("rounds" in each for row in rows.values() for each in row["systems"].values())
    for name, row in before.items():
        assert row["systems"].items() <= rows[name]["systems"].items()


@pytest.mark.slow
def test_text_and_servers_are_measured(prepared_dir: Path, tmp_path: Path) -> None:
    arguments = ["--data-dir", prepared_dir, "--rounds", "1", "--output"]
    assert run("preparing", "text", "--text-megabytes", "1", *arguments, tmp_path / "text").returncode == 0
    check(measured(tmp_path / "text"), 1, 1)
    again = run("preparing", "batches", "--output", tmp_path / "text")
    assert (again.returncode, "exists already" in again.stderr) == (2, True)
    load = [*TEXTS, "--num-clients", "3", "--round-seconds", "0.5", "--num-threads", "2"]
    done = run("serving", *load, *arguments, tmp_path / "serving")
    assert done.returncode == 0, done.stderr
    check(measured(tmp_path / "serving"), 6, 2)


@pytest.mark.slow
def test_a_server_under_load_gives_no_wrong_answer(prepared_dir: Path, tmp_path: Path) -> None:
    load = [*TEXTS, "--data-dir", prepared_dir, "--num-clients", "3", "--minutes", "0.3"]
    done = run("load", *map(str, load), "--output", tmp_path / "load")
    (result,) = measured(tmp_path / "load")  # its memory is not compared: so short, it still grows
    assert (result["exit_code"], result["counts"]["wrong"]) == (0, 0), done.stderr
    assert result["counts"]["status 200"] > 9


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


def test_the_processor_clock_counts_the_processes_that_a_system_starts() -> None:
    """As `prepare` and the workers of `map`: without them a system that leaves its work to a child seems to need no time."""
    script = (
        "import subprocess, sys, rounds; work = lambda number: subprocess.run([sys.executable, '-c', 'sum(range(10**7))'], check=True) and 1.0\n"
        "print(rounds.one_round(rounds.Ready(lambda: 0, work), 0, counts_processor=True).seconds)"
    )
    folder = str(Path(__file__).resolve().parents[1] / "recipes" / "how_fast")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert float(done.stdout) > 0.05
