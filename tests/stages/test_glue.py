"""The GLUE suite as a user meets it, on a folder in the official layout that is made here."""

import json
import signal
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Capsys, refused, small_model
from forks import KILL

from bertkit import export_model
from bertkit.base.files import LOCK
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.display.report import glue_table
from bertkit.stages.glue import ARCHIVE
from bertkit.tasks.scoring.benchmark import LEFT_OUT, SeedRun, best_of, check_archive, summarise

WORDS = ("kan", "lon", "min", "kar", "lor", "mir")
ROWS = {"train": 13, "dev": 7, "test": 5}
# task -> its folder, the columns of train and dev, those of test, its labels; {n} is the number, {a} and {b} are texts
LAYOUT: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "cola": ("CoLA", "", "index\tsentence", ("0", "1")),
    "sst2": ("SST-2", "sentence\tlabel", "index\tsentence", ("0", "1")),
    "mrpc": ("MRPC", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "index\t#1 ID\t#2 ID\t#1 String\t#2 String", ("0", "1")),
    "stsb": ("STS-B", "index\tgenre\tsentence1\tsentence2\tscore", "index\tgenre\tsentence1\tsentence2", ("0.250", "4.800", "3.000")),
    "qqp": ("QQP", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "id\tquestion1\tquestion2", ("0", "1")),
    "mnli": ("MNLI", "index\tsentence1\tsentence2\tlabel1\tgold_label", "index\tsentence1\tsentence2", ("neutral", "entailment", "contradiction")),
    "qnli": ("QNLI", "index\tquestion\tsentence\tlabel", "index\tquestion\tsentence", ("entailment", "not_entailment")),
    "rte": ("RTE", "index\tsentence1\tsentence2\tlabel", "index\tsentence1\tsentence2", ("entailment", "not_entailment")),
    "wnli": ("WNLI", "index\tsentence1\tsentence2\tlabel", "index\tsentence1\tsentence2", ("0", "1")),
}  # fmt: skip
SMALL = ["device=cpu", "num_epochs=1", "task.max_seq_length=24", "batch.sequences=8", "log.every_steps=1",
         "optimizer.peak_learning_rate=1e-2"]  # fmt: skip
NUMBER_COLUMNS = ("index", "id", "qid1", "qid2", "#1 ID", "#2 ID")


def write_table(path: Path, columns: str, num_rows: int, labels: tuple[str, ...], rng: np.random.Generator) -> None:
    """A file with these columns; CoLA's of train and dev have none, and no header."""
    rows = [columns] if columns else []
    for number in range(num_rows):
        label = labels[number % len(labels)]
        cells = []
        for name in columns.removeprefix("\ufeff").split("\t") if columns else ["genre", "label", "label1", "sentence"]:
            if name in NUMBER_COLUMNS:
                cells.append(str(number))
            elif name in ("label", "gold_label", "is_duplicate", "score", "Quality"):
                cells.append(label)
            elif name in ("genre", "label1"):
                cells.append("x")
            else:
                cells.append(" ".join(rng.choice(WORDS, 3)))
        rows.append("\t".join(cells))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_glue(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    for task, (name, columns, test_columns, labels) in LAYOUT.items():
        suffixes = {"train": [""], "dev": [""], "test": [""]}
        if task == "mnli":
            suffixes |= {"dev": ["_matched", "_mismatched"], "test": ["_matched", "_mismatched"]}
        for split, ends in suffixes.items():
            for end in ends:
                path = folder / name / f"{split}{end}.tsv"
                write_table(path, test_columns if split == "test" else columns, ROWS[split], labels, rng)
    write_table(folder / "diagnostic" / "diagnostic.tsv", "index\tsentence1\tsentence2", ROWS["test"], ("",), rng)
    return folder


@pytest.fixture(scope="module")
def glue_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_glue(tmp_path_factory.mktemp("glue"))


def arguments(glue_dir: Path, start: Path, output: Path, *more: str) -> list[str]:
    return ["glue", f"model_dir={start}", f"data_dir={glue_dir}", f"output_dir={output}", "seeds=[0,1]", *SMALL, *more]


@pytest.mark.usefixtures("quick")
@pytest.mark.skipif(torch.cuda.is_available(), reason="device=cuda is refused only where there is none")
def test_debug_reaches_the_processes_of_its_runs(glue_dir: Path, start: Path, tmp_path: Path, capfd: Capsys) -> None:
    more = ["tasks=[rte]", "device=cuda", "launch.num_processes=2", "--debug"]
    assert run(arguments(glue_dir, start, tmp_path / "glue", *more)) == 2
    assert "in choose_device" in capfd.readouterr().err  # where a worker was


def state_of(directory: Path) -> dict[str, tuple[int, int]]:
    """Every file below a directory with its time and inode, which change if the file is written again."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.stat().st_ino) for path in files}


def kill_half_way(command: list[str | Path], half_way: Path) -> None:
    """Start the command, and kill it when a file of the second half of its work appears."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not half_way.exists():
        time.sleep(0.001)
    process.send_signal(KILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def check_resumed(command: list[str], output: Path, done: list[Path]) -> None:
    """Run the command twice more: finished files keep their inodes."""
    before = [state_of(path) for path in done]
    assert all("eval.json" in state for state in before)
    assert run(command) == 0
    after = [state_of(path) for path in done]
    for old, new in zip(before, after, strict=True):
        assert old == {name: new[name] for name in old}
        assert {name for name in new if name not in old} <= {
            *(f"{name}.tsv" for name in ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX"))
        }  # fmt: skip
    files = {name: state for name, state in state_of(output).items() if "/" in name}
    archive = (output / "submission.zip").read_bytes() if (output / "submission.zip").exists() else None
    assert run(command) == 0
    assert {name: state for name, state in state_of(output).items() if "/" in name} == files
    if archive is not None:
        assert (output / "submission.zip").read_bytes() == archive


def test_two_tasks_killed_half_way(glue_dir: Path, start: Path, tmp_path: Path, python: Path, capsys: Capsys) -> None:
    output = tmp_path / "glue"
    command = arguments(glue_dir, start, output, "tasks=[rte,mnli,ax]")
    mnli = output / "mnli" / "seed-0"
    kill_half_way([python, "-m", "bertkit", *command], mnli / "metrics.jsonl")
    assert not (mnli / "eval.json").exists()
    check_resumed(command, output, [output / "rte" / "seed-0", output / "rte" / "seed-1"])
    capsys.readouterr()
    summary = json.loads((output / "glue.json").read_text())
    assert list(summary["tasks"]) == ["rte", "mnli"]
    for seed in (0, 1):
        run_dir = output / "mnli" / f"seed-{seed}"
        matched, mismatched = (json.loads((run_dir / f"eval{end}.json").read_text()) for end in ("", "_mismatched"))
        actual = summary["tasks"]["mnli"]["runs"][seed]
        assert actual["accuracy"] == matched["accuracy"]
        assert actual["accuracy_mismatched"] == mismatched["accuracy"]
        assert mismatched["num_examples"] == ROWS["dev"]
    best = summary["tasks"]["mnli"]["best_seed"]
    answered = sorted(path.name for path in (output / "mnli" / f"seed-{best}").glob("*.tsv"))
    assert answered == ["AX.tsv", "MNLI-m.tsv", "MNLI-mm.tsv"]
    assert not list((output / "mnli" / f"seed-{1 - best}").glob("*.tsv"))
    lines = (output / "mnli" / f"seed-{best}" / "AX.tsv").read_text().split("\n")
    assert [line.split("\t")[0] for line in lines] == ["index", *map(str, range(ROWS["test"])), ""]
    assert {line.split("\t")[1] for line in lines[1:-1]} <= {"entailment", "neutral", "contradiction"}
    assert summary["submission"] is None
    assert summary["missing"] == ["CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "QNLI.tsv", "WNLI.tsv"]
    assert "No submission.zip: predictions are missing for CoLA.tsv, SST-2.tsv" in (output / "glue.md").read_text()

    refused(run(arguments(glue_dir, start, output, "tasks=[rte]", "num_epochs=2")), "num_epochs: 1.0 there", capsys)


@pytest.mark.slow
def test_every_run_has_processes_of_its_own(
    glue_dir: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    output = tmp_path / "glue"
    command = arguments(glue_dir, start, output, "tasks=[rte]", "seeds=[0]", "launch.num_processes=2")
    assert run([text for text in command if text != "seeds=[0,1]"]) == 0
    assert json.loads((output / "rte" / "seed-0" / "manifest.json").read_text())["world_size"] == 2
    assert json.loads((output / "glue.json").read_text())["tasks"]["rte"]["runs"][0]["seed"] == 0
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(run(command), "set launch.num_processes=", capsys)


def test_another_launcher_is_refused_before_a_file_is_read(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(run(arguments(tmp_path, start, tmp_path / "glue")), "glue starts its own processes", capsys)


def test_another_model_is_refused(
    glue_dir: Path, start: Path, tokenizer: Tokenizer, tmp_path: Path, capsys: Capsys
) -> None:
    other = export_model(small_model(tokenizer.vocab_size, seed=7), tokenizer, tmp_path / "other")
    more = ["tasks=[rte]", "seeds=[0]"]
    assert run(arguments(glue_dir, start, tmp_path / "glue", *more)) == 0
    refused(
        run(arguments(glue_dir, other, tmp_path / "glue", *more)),
        "rte/seed-0 holds another run (starting_weights",
        capsys,
    )


def test_a_missing_task_is_refused_before_anything_is_trained(
    start: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # short names, since a message is at most 400 characters long
    glue_dir = write_glue(Path("glue"))
    (glue_dir / "WNLI" / "dev.tsv").unlink()
    # of the labels; and of a file that is only read after training
    for folder, name in (("SST-2", "dev"), ("MNLI", "test_mismatched")):
        path = glue_dir / folder / f"{name}.tsv"
        path.write_text(path.read_text().rstrip("\n") + "x\ty\n")
    assert run(arguments(glue_dir, start, tmp_path / "runs", "tasks=[sst2,rte,mnli,wnli,cola,ax]")) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: 3 of 6 tasks cannot run: sst2: ")
    assert f"; mnli: {glue_dir}/MNLI/test_mismatched.tsv:6: too many cells" in printed
    assert "finetune needs a dev split" in printed
    assert printed.endswith("; or set tasks=[rte,cola], which would run\n")
    assert printed.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_all_of_glue_killed_half_way(start: Path, tmp_path: Path, python: Path, capsys: Capsys) -> None:
    glue_dir = write_glue(tmp_path / "data")
    output = tmp_path / "glue"
    command = arguments(glue_dir, start, output)
    kill_half_way([python, "-m", "bertkit", *command], output / "mnli" / "seed-1" / "metrics.jsonl")
    first_half = [f"{task}/seed-{seed}" for task in ("cola", "sst2", "mrpc", "stsb", "qqp") for seed in (0, 1)]
    check_resumed(command, output, [output / name for name in first_half])
    counts = check_archive(output / "submission.zip")
    assert list(counts.values()) == [ROWS["test"]] * 11
    capsys.readouterr()
    assert run(["glue", f"check={output / 'submission.zip'}", f"data_dir={glue_dir}"]) == 0
    assert "valid; 11 files, 55 predictions" in capsys.readouterr().out
    with zipfile.ZipFile(output / "submission.zip") as archive:
        assert archive.read("STS-B.tsv").decode().count(".") == ROWS["test"]
    summary = json.loads((output / "glue.json").read_text())
    assert list(summary["tasks"]) == list(LAYOUT)
    assert all(len(task["runs"]) == 2 for task in summary["tasks"].values())
    assert "wnli" not in summary["average"]["tasks"]

    (glue_dir / "RTE" / "test.tsv").write_text("index\tsentence1\tsentence2\n0\ta\tb\n")
    refused(run(["glue", f"check={output / 'submission.zip'}", f"data_dir={glue_dir}"]), "RTE.tsv:3: ", capsys)


def runs_of(*scores: tuple[dict[str, float], str | None]) -> list[SeedRun]:
    return [SeedRun(seed, Path(f"out/x/seed-{seed}"), metrics, fault) for seed, (metrics, fault) in enumerate(scores)]


SAME = "the same answer to every example"
RUNS = {
    "wnli": runs_of(({"accuracy": 0.25}, None), ({"accuracy": 0.25}, None)),
    "cola": runs_of(({"matthews_correlation": 0.5}, None), ({"matthews_correlation": 0.0}, SAME), ({"matthews_correlation": 0.6}, None)),
    "mrpc": runs_of(({"accuracy": 0.8, "f1": 0.9}, None)),
    "rte": runs_of(({"accuracy": 0.5}, SAME), ({}, "gradient not finite")),
}  # fmt: skip


def test_summary_over_seeds_is_as_by_hand() -> None:
    summary: dict[str, Any] = {"model_dir": "m", "missing": ["RTE.tsv"], **summarise(RUNS, Path("out"))}
    tasks = summary["tasks"]
    assert tasks["cola"]["score"] == pytest.approx({"mean": 0.55, "deviation": 0.0707107}, abs=1e-7)
    assert (tasks["cola"]["num_seeds"], tasks["cola"]["best_seed"]) == (2, 2)
    assert tasks["mrpc"]["score"] == {"mean": pytest.approx(0.85), "deviation": None}
    assert (tasks["rte"]["score"], tasks["rte"]["best_seed"]) == (None, 0)
    assert tasks["wnli"]["best_seed"] == 0  # the first of equal ones
    assert summary["average"] == {"score": pytest.approx(0.7), "tasks": ["cola", "mrpc"], "left_out": ["wnli", "rte"]}
    assert glue_table(summary, LEFT_OUT, ARCHIVE).split("\n")[2:] == [
        "| task | metrics | score | seeds | BERT-base, dev | BERT-base, test |",
        "|---|---|---|---|---|---|",
        "| cola | matthews_correlation 55.00 ± 7.07 | 55.00 ± 7.07 | 2 of 3 | 56.53 | 52.1 |",
        "| mrpc | accuracy 80.00, f1 90.00 | 85.00 | 1 | 84.07, F1 88.85 | F1 88.9 |",
        "| rte | - | - | 0 of 2 | 65.70 | 66.4 |",
        "| wnli | accuracy 25.00 ± 0.00 | 25.00 ± 0.00 | 2 | 56.34 | - |",
        "",
        "Average: 70.00, over the scores of cola, mrpc.",
        "Not in the average: wnli (as in Devlin et al. 2019).",
        "Not in the average: rte (none of its runs counts).",
        "A score is the mean of a task's metrics.",
        "BERT-base: on dev sets, transformers' run_glue.py (cased, one seed); on test sets, Devlin et al. 2019, table 1.",
        "",
        "- cola, seed 1: not counted: the same answer to every example",
        "- rte, seed 0: not counted: the same answer to every example",
        "- rte, seed 1: not counted: gradient not finite",
        "",
        "No submission.zip: predictions are missing for RTE.tsv.",
        "",
    ]


def test_best_run_has_highest_score_without_fault() -> None:
    assert best_of([]) is None
    assert best_of(runs_of(({}, "gradient not finite"))) is None
    best = best_of(runs_of(({"accuracy": 0.9}, SAME), ({"accuracy": 0.2}, None)))
    assert best is not None
    assert best.seed == 1
