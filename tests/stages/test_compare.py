"""Runs beside one another: six planted differences, each named; tables, curves, and what is no run."""

import contextlib
import io
import json
import re
import shutil
import statistics
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from conftest import Capsys, Page, make_text, refused, write_text

from bertkit.cli import run

SMALL = ["model=medium", "model.num_hidden_layers=1", "model.num_attention_heads=2", "model.hidden_size=32", "model.intermediate_size=37",
         "model.num_attention_heads=2", "steps=3", "batch.sequences=8", "batch.micro_sequences=8", "log.every_steps=1",
         "segments.max_seq_length=24", "schedule.warmup_steps=0", "evaluation.max_sequences=8", "device=cpu"]  # fmt: skip
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(prepared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Give the directory of a run of three steps with some settings; each is run once."""
    made: dict[tuple[str, ...], Path] = {}
    folder = tmp_path_factory.mktemp("runs")

    def directory(*more: str) -> Path:
        if more not in made:
            options = (
                more if any(text.startswith("data_dir=") for text in more) else (f"data_dir={prepared_dir}", *more)
            )
            output = folder / f"run{len(made)}"
            with contextlib.redirect_stdout(io.StringIO()):
                assert run(["pretrain", *SMALL, *options, f"output_dir={output}"]) == 0
            made[more] = output
        return made[more]

    return directory


def compared(capsys: Capsys, tmp_path: Path, *runs: Path | str) -> str:
    capsys.readouterr()
    assert run(["compare", *map(str, runs), f"output={tmp_path / 'page.html'}", "overwrite=true"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("change", "step", "what"), [
    ("seed=1", 1, "batch"),
    ("masking.probability=0.3", 1, "loss"),
    ("model.initializer_range=0.05", 1, "loss"),
    ("optimizer.peak_learning_rate=3e-3", 1, "learning_rate"),
    ("batch.sequences=9", 1, "batch"),
    ("optimizer.weight_decay=0.5", 2, "loss"),
])  # fmt: skip
def test_a_planted_difference_is_named(
    change: str, step: int, what: str, make: Make, tmp_path: Path, capsys: Capsys
) -> None:
    text = compared(capsys, tmp_path, make(), make(change))
    (line,) = (line for line in text.splitlines() if line.startswith("why: "))
    assert line.startswith(f"why: {change.partition('=')[0]} is ")
    assert f" diverge at step {step}" in text
    differs = next(line for line in text.splitlines() if line.startswith("different values there: "))
    assert what in differs or what == "batch"
    assert ("the examples of this step differ" in text) == (what == "batch")
    assert f"| {change.partition('=')[0]} | " in text


def test_compare_names_other_data(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    """Of the same vocabulary, so that nothing else differs."""
    corpus, other = write_text(tmp_path / "corpus.txt", make_text(61, seed=1)), tmp_path / "data"
    settings = yaml.safe_load((make() / "config.yaml").read_text())
    prepared = Path(settings["data_dir"])
    arguments = [f"corpus.path={corpus}", f"output_dir={other}", f"tokenizer.path={prepared / 'tokenizer'}"]
    assert run(["prepare", *arguments, "held_out_prob=0.1"]) == 0
    text = compared(capsys, tmp_path, make(), make(f"data_dir={other}"))
    (line,) = (line for line in text.splitlines() if line.startswith("why: "))
    assert line.startswith("why: data_fingerprint is ")
    assert " diverge at step 1\n" in text


def test_the_shape_of_a_model_that_a_run_continues_is_its_own(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    """`model.*` has no effect beside `model_dir=`, so it is no difference."""
    text = compared(capsys, tmp_path, make(), make(f"model_dir={make()}", "model.initializer_range=0.05"))
    assert "| model_dir | None | " in text
    assert "model.initializer_range" not in text


def test_the_same_run_twice_and_three_runs(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    first, second, third = make(), make("checkpoint.keep_last=1"), make("masking.probability=0.3")
    text = compared(capsys, tmp_path, first, second)
    assert "are identical at all 3 steps that both log\n" in text
    assert "| checkpoint.keep_last | 3 | 1 |" in text
    manifest = json.loads((shutil.copytree(first, tmp_path / "copy") / "manifest.json").read_text())
    (tmp_path / "copy" / "manifest.json").write_text(json.dumps(manifest | {"git_revision": "another"}))
    text = compared(capsys, tmp_path, first, tmp_path / "copy")
    assert "are identical at all 3 steps that both log, though git_revision differs\n" in text
    (tmp_path / "other").mkdir()
    text = compared(capsys, tmp_path, first, second, third, tmp_path / "other")
    assert " diverge at " not in text
    page = Page((tmp_path / "page.html").read_text())
    shown = "".join(page.text)
    for name in (first.name, second.name, third.name):
        assert f"| {name} | 3 | " in text
        assert shown.count(name) >= 4
    assert page.tags.count("polyline") == 3 * page.tags.count("svg") > 12
    (tmp_path / "unfinished").mkdir()
    for name in ("config.yaml", "manifest.json", "metrics.jsonl"):
        shutil.copy(first / name, tmp_path / "unfinished")
    text = compared(capsys, tmp_path, f"runs=[{first},{tmp_path / 'unfinished'}]")
    assert "/unfinished | 3, not finished | " in text


def test_runs_of_different_kinds_have_only_some_settings_in_common(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    tuned = tmp_path / "tuned"
    shutil.copytree(make(), tuned)
    settings = yaml.safe_load((tuned / "config.yaml").read_text())
    del settings["masking"], settings["segments"]
    settings |= {"task": {"name": "cola"}, "batch": {**settings["batch"], "sequences": 9}}
    (tuned / "config.yaml").write_text(yaml.safe_dump(settings))
    out = compared(capsys, tmp_path, make(), tuned)
    rows = [line.split(" | ")[0] for line in out.splitlines() if line.startswith("| ")]
    assert "| batch.sequences" in rows
    assert not {"| masking", "| segments", "| task"} & set(rows)
    assert re.search(r"^runs of different kinds \(.* pretraining, .* fine-tuning\): ", out, re.MULTILINE)
    assert "why: " not in out


def test_seeds_of_several_settings_are_summed_up(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    settings = [(), ("masking.probability=0.3",)]
    runs = [make(*more, *seed) for more in settings for seed in ((), ("seed=1",))]
    losses = [json.loads((each / "eval.json").read_text())["mlm_loss"] for each in runs]
    text = compared(capsys, tmp_path, *runs)
    rows = [line for line in text.splitlines() if re.match("[|] mean of 2 seeds.* [|] 3 [|] ", line)]
    for row, pair in zip(rows, (losses[:2], losses[2:]), strict=True):
        assert f"{statistics.fmean(pair):.4g} ± {statistics.stdev(pair):.4f}" in row
    assert "| masking.probability | 0.15 | 0.3 |" in text
    assert "| seed |" not in text
    page = Page((tmp_path / "page.html").read_text())
    assert page.tags.count("polyline") == 2 * page.tags.count("svg") > 12


def test_a_second_page_replaces_the_first_and_no_other_file(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    words = ["compare", str(make()), str(make("seed=1"))]
    page, other = tmp_path / "page.html", tmp_path / "other.html"
    other.write_text("<title>mine</title>")
    for _ in range(2):
        assert run([*words, f"output={page}"]) == 0
    capsys.readouterr()
    code = run([*words, f"output={other}"])
    printed = capsys.readouterr()
    assert "| mean of 2 seeds: " in printed.out  # the tables come first
    assert (code, other.read_text()) == (2, "<title>mine</title>")
    assert "is there already" in printed.err


def test_runs_of_one_setting_with_several_seeds_have_their_mean_below(
    make: Make, tmp_path: Path, capsys: Capsys
) -> None:
    runs = [make(), make("seed=1")]
    losses = [json.loads((each / "eval.json").read_text())["mlm_loss"] for each in runs]
    text = compared(capsys, tmp_path, *runs)
    (row,) = [line for line in text.splitlines() if re.match("[|] mean of 2 seeds: .* [|] 3 [|] ", line)]
    assert f"{statistics.fmean(losses):.4g} ± {statistics.stdev(losses):.4f}" in row
    assert all(f"| {each.name} | 3 | {loss:.4g}" in text for each, loss in zip(runs, losses, strict=True))
    alone = compared(capsys, tmp_path, *runs, make("masking.probability=0.3"))
    assert len(re.findall("^[|] mean of 2 seeds: .* [|] 3 [|] ", alone, re.MULTILINE)) == 1
    for name, label in (("stars-seed-{}", "mean of 2 seeds: stars"), ("seed-{}", "mean of 2 seeds")):
        copies = [shutil.copytree(each, tmp_path / name.format(n)) for n, each in enumerate(runs)]
        assert f"\n| {label} | 3 | " in compared(capsys, tmp_path, *copies)


def test_seeds_that_hold_out_other_rows_of_the_same_file_are_one_setting(
    start: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """Another file is not."""
    texts = [
        f"{word} {other}\n" for word in ("kan", "lon", "min") for other in ("kan.,a", "lon.,b", "min.,a", "kar.,b")
    ]
    for name, more in (("one.csv", ""), ("two.csv", "kan,b\n")):
        (tmp_path / name).write_text("text,label\n" + "".join(texts) + more)
    runs = [tmp_path / f"{name}-{seed}" for name in ("one", "two") for seed in (1, 2)]
    for each in runs:
        name, seed = each.name.split("-")
        sizes = ["dev_share=0.25", "num_epochs=1", "batch.sequences=4", "task.max_seq_length=16", "device=cpu"]
        words = [f"model_dir={start}", f"output_dir={each}", f"seed={seed}", "task=classification", *sizes]
        assert run(["finetune", str(tmp_path / f"{name}.csv"), *words]) == 0
    text = compared(capsys, tmp_path, *runs)
    assert re.findall("^[|] mean of 2 seeds: ([^|]*) [|] [23] [|]", text, re.MULTILINE) == [
        "one-1, one-2",
        "two-1, two-2",
    ]
    assert "| data_fingerprint |" in text


def test_control_characters_in_names_are_escaped(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    for number, name in enumerate(("red\x1b[31m", "bell\x07")):
        shutil.copytree(make(f"seed={number}"), tmp_path / name)
    compared(capsys, tmp_path, tmp_path / "red\x1b[31m", tmp_path / "bell\x07")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert {character for character in page if unicodedata.category(character) == "Cc"} == {"\n"}
    assert page.count(r"red\x1b[31m") > 3  # in tables, the legend and on hover


def test_compare_needs_two_runs(make: Make, tmp_path: Path, capsys: Capsys) -> None:
    refused(run(["compare", str(make())]), "expected at least two run directories, such as runs/a runs/b", capsys)
    assert run(["compare", str(make()), str(tmp_path)]) == 2
    actual = capsys.readouterr().err
    assert f"not a run, and left out: {tmp_path}\n" in actual
    assert "found 1" in actual
    refused(run(["compare", str(make()), str(tmp_path), "output=page.txt"]), "output=page.txt: ", capsys)
