"""Pretraining as a user meets it: the run directory, stops and resumes, and what comes out at the end."""

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from conftest import Capsys, Page, make_text, refused, strike, weights_of, write_text
from forks import KILL

from bertkit import load_model
from bertkit.base.files import locked, sha256_file, to_json
from bertkit.cli import run
from bertkit.jobs import run_length
from bertkit.run import trainer
from bertkit.train.checkpoint_files import all_checkpoints, fault_of
from bertkit.train.log import read_metrics

SMALL = [  # model=medium: with BERT's own settings, which tiny to small replace (conf/from_scratch)
    "device=cpu", "model=medium", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=32",
    "model.intermediate_size=64", "model.max_position_embeddings=48", "segments.max_seq_length=40", "batch.sequences=12", "batch.micro_sequences=5",
    "optimizer.peak_learning_rate=1e-3", "log.every_steps=1",
]  # fmt: skip


def pretrain(data: Path, output: Path, *more: str) -> int:
    return run(["pretrain", f"data_dir={data}", f"output_dir={output}", *SMALL, *more])


def start(data: Path, output: Path, *more: str, python: Path = Path(sys.executable)) -> subprocess.Popen[str]:
    command = [python, "-m", "bertkit", "pretrain", f"data_dir={data}", f"output_dir={output}", *SMALL, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rows_without_pace(run_dir: Path) -> list[dict[str, float]]:
    return [row | {"tokens_per_second": 0} for row in read_metrics(run_dir / "metrics.jsonl")]


TWELVE = [
    "steps=12", "checkpoint.every_steps=3", "checkpoint.keep_last=2", "evaluation.every_steps=6", "optimizer.peak_learning_rate=3e-4",
]  # fmt: skip


@pytest.fixture(scope="module")
def twelve_steps(prepared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run and its output; tests that change the run take a copy."""
    run_dir, output = tmp_path_factory.mktemp("run") / "run", io.StringIO()
    with contextlib.redirect_stdout(output):
        assert pretrain(prepared_dir, run_dir, *TWELVE) == 0
    return run_dir, output.getvalue()


def test_a_short_run_prints_a_line_per_tenth_and_keeps_every_row(
    prepared_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    assert pretrain(prepared_dir, tmp_path / "run", "steps=43", "log.every_steps=auto") == 0
    printed = re.findall(r"^step (\d+)/43", capsys.readouterr().out, re.MULTILINE)
    assert [*map(int, printed)] == [1, *range(4, 43, 4), 43]
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 43


@pytest.mark.parametrize(
    ("change", "named"),
    [("attention.positions=rotary", "rotary"), ("attention.pattern=causal", None), ("norm=pre", "pre")],
)
def test_a_model_without_an_export_is_announced(
    change: str, named: str | None, prepared_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """Before the first step, by what `bertkit export` itself asks."""
    assert pretrain(prepared_dir, tmp_path / "run", "steps=2", "segments=full_sentences", change) == 0
    start = capsys.readouterr().out.partition("\nstep 1/")[0]
    assert start.count("transformers has no BERT with") == (named is not None)
    assert str(named or "") in start
    code = run(["export", str(tmp_path / "run"), f"output_dir={tmp_path / 'out'}", "head=encoder"])
    assert ("transformers 5 has no BERT with" in capsys.readouterr().err, code) == ((True, 2) if named else (False, 0))


@pytest.fixture
def finished(twelve_steps: tuple[Path, str]) -> Path:
    return twelve_steps[0]


@pytest.fixture
def a_finished_run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_what_a_run_prints_and_leaves(twelve_steps: tuple[Path, str]) -> None:
    finished, output = twelve_steps
    assert "by counting tokens (at [MASK] alone " in output
    assert "NSP accuracy" in output
    assert re.search("\nmasked LM has (not )?learned .* next sentence prediction has (not )?learned: ", output)
    assert len(lines := re.findall("masked LM has.*", output)) == len({*lines}) == 2
    assert (
        "try model.scale_outputs=true; optimizer.peak_learning_rate=0.0002; attention.positions=rotary with norm=pre, as in model=modern_mini; "
        in output
    )
    assert "; masking.probability=0.3" in output
    assert "model.attention_probs_dropout_prob=0); model.initializer_range=0.18" in output
    assert "? left" not in output
    page = "\n".join(Page((finished / "report.html").read_text()).text)
    shown = page[page.index("Held-out text") : page.index("Last metrics")]
    assert shown.count("[CLS]") == 5
    guesses = re.findall(r"\[\S+ (?:✓|✗ \S+)\]", shown)[2:]  # those in the head of the table explain the others
    assert len(guesses) == len(re.findall(r"\S+ \d+%, \S+ \d+%, \S+ \d+%", shown)) > 3
    assert "batch" not in page[page.index("Last metrics") : page.index("Settings")].split("\n")
    assert yaml.safe_load((finished / "config.yaml").read_text())["steps"] == 12
    assert set(json.loads((finished / "manifest.json").read_text())) >= {
        "packages", "git_revision", "data_fingerprint", "tokenizer_sha256", "world_size", "command_line",
    }  # fmt: skip
    rows = read_metrics(finished / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert set(rows[0]) >= {"loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "learning_rate",
                            "grad_norm", "tokens_per_second"}  # fmt: skip
    assert rows[0]["loss"] == pytest.approx(rows[0]["mlm_loss"] + rows[0]["nsp_loss"])
    assert [row["step"] for row in rows if "eval_mlm_loss" in row] == [6, 12]
    assert json.loads((finished / "eval.json").read_text())["mlm_loss"] == rows[-1]["eval_mlm_loss"]
    assert [path.name for path in all_checkpoints(finished)] == ["step-00000012", "step-00000009"]


def test_a_finished_run_is_done_already_but_not_with_other_settings(
    prepared_dir: Path, finished: Path, tmp_path: Path, capsys: Capsys
) -> None:
    before = sha256_file(finished / "metrics.jsonl"), weights_of(finished)
    for data_dir in (prepared_dir, tmp_path / "gone"):
        assert pretrain(data_dir, finished, *TWELVE) == 0
        assert capsys.readouterr().out.startswith("done already")
    code = pretrain(prepared_dir, finished, *TWELVE, "seed=7", "masking.probability=0.2")
    refused(code, "seed: 0 there, 7 here; masking.probability: 0.15 there, 0.2 here", capsys)
    assert (sha256_file(finished / "metrics.jsonl"), weights_of(finished)) == before


def test_a_checkpoint_the_run_and_the_model_load_alike(finished: Path) -> None:
    models = [load_model(path) for path in (finished, all_checkpoints(finished)[0], finished / "model")]
    states = [model.state_dict() for model in models]
    assert all((states[0][name] == other[name]).all() for other in states[1:] for name in states[0])


def test_full_sentences_train_a_masked_lm_alone(prepared_dir: Path, tmp_path: Path) -> None:
    assert pretrain(prepared_dir, tmp_path / "run", "steps=3", "segments=full_sentences") == 0
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    assert "nsp_loss" not in read_metrics(tmp_path / "run" / "metrics.jsonl")[0]


RATES = {  # of 4 steps with a warm-up of 2, by hand
    "schedule=linear": [0, 0.5, 1, 0.5],
    "schedule=google": [0, 0.5, 0.5, 0.25],
    "schedule=constant": [0, 0.5, 1, 1],
    "schedule.power=2": [0, 0.5, 1, 0.25],
}


def test_a_run_has_the_schedule_optimizer_and_clipping_it_was_asked_for(prepared_dir: Path, tmp_path: Path) -> None:
    made: dict[str, str] = {}
    # LAMB's numbers are AdamW's with bias correction, so that these two differ by the optimizer alone
    others = ("optimizer=lamb", "optimizer.bias_correction=true", "optimizer.max_grad_norm=1e-4")
    for option in (*RATES, *others):
        run_dir = tmp_path / str(len(made))
        more = ["optimizer.peak_learning_rate=1e-3", "steps=4", "schedule.warmup_steps=2", "evaluation.every_steps=9"]
        assert pretrain(prepared_dir, run_dir, option, *more) == 0
        rates = [row["learning_rate"] for row in read_metrics(run_dir / "metrics.jsonl")]
        expected = RATES.get(option, RATES["schedule=linear"])
        assert rates == pytest.approx([1e-3 * rate for rate in expected]), option
        made[option] = weights_of(run_dir)
    assert len(set(made.values())) == len(made)


def test_logged_values_are_means_since_the_line_before_and_survive_a_stop(
    prepared_dir: Path, finished: Path, tmp_path: Path
) -> None:
    """Of the run that logs every step; and the run that goes on from step 9, within a window, writes the same rows."""
    every = {row["step"]: row for row in read_metrics(finished / "metrics.jsonl")}
    more = [*TWELVE, "log.every_steps=5", "checkpoint.keep_last=9"]
    assert pretrain(prepared_dir, tmp_path / "run", *more) == 0
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    windows = {1: [1], 5: [2, 3, 4, 5], 6: [6], 10: [7, 8, 9, 10], 12: [11, 12]}  # 6: evaluated
    assert [row["step"] for row in rows] == list(windows)
    for row in rows:
        for name in ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "grad_norm"):
            values = [every[step][name] for step in windows[row["step"]]]
            assert row[name] == pytest.approx(sum(values) / len(values), rel=1e-12), (row["step"], name)
        assert row["learning_rate"] == every[row["step"]]["learning_rate"]
    for gone in ("checkpoints/step-00000012", "model", "report.html"):
        path = tmp_path / "run" / gone
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (tmp_path / "run" / "eval.json").unlink()
    assert pretrain(prepared_dir, tmp_path / "run", *more) == 0
    assert rows_without_pace(tmp_path / "run") == [row | {"tokens_per_second": 0} for row in rows]


def test_a_run_stopped_before_it_is_measured_has_a_report(prepared_dir: Path, tmp_path: Path) -> None:
    @contextlib.contextmanager
    def asked() -> Iterator[Callable[[], bool]]:
        yield lambda: True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "stop_on_signal", asked)
        assert pretrain(prepared_dir, tmp_path / "run", *TWELVE, "log.every_steps=1") == 75
    assert "<svg" in (report := (tmp_path / "run" / "report.html").read_text())
    assert "step 1<" in report.replace(".", "<")


def test_steps_follow_the_text_and_the_time(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    """The run keeps its chosen number of steps, and the same command finds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_length, "MOST_EPOCHS", 1)
        assert pretrain(prepared_dir, tmp_path / "text") == 0
        printed = capsys.readouterr().out
        chosen = re.search(r"^steps=(\d+): 1 epochs of the text, about \S+ on this CPU at \S+ s a step", printed, re.M)
        assert chosen, printed
        length = int(re.search(r"([\d,]+) examples an epoch", printed)[1])  # type: ignore[index]
        steps = int(chosen[1])
        assert steps == run_length._rounded(length / 12) > 3
        assert yaml.safe_load((tmp_path / "text" / "config.yaml").read_text())["steps"] == steps
        patch.setattr(run_length, "MOST_SECONDS", 1e-9)
        assert pretrain(prepared_dir, tmp_path / "text") == 0
        assert capsys.readouterr().out.startswith("done already")
        assert pretrain(prepared_dir, tmp_path / "time") == 0
        an_hour = rf"^steps=1: about an hour on this CPU at .*; steps={steps}, 1 epochs of the text, would be"
        assert re.search(an_hour, capsys.readouterr().out, re.M)
        refused(pretrain(prepared_dir, tmp_path / "late", "schedule.warmup_steps=2"), "warmup_steps=2 ", capsys)
        assert not (tmp_path / "late").exists()


def test_the_epochs_of_both_lengths_count(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_length, "MOST_EPOCHS", 2)
        longer = ["final_phase.max_seq_length=48", "final_phase.share=0.5"]
        assert pretrain(prepared_dir, tmp_path / "run", *longer) == 0
    printed = capsys.readouterr().out
    assert "2 epochs of the text" in printed
    assert "warning" not in printed


def test_a_text_seen_too_often_and_hours_on_a_cpu_are_said_before_training(
    prepared_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    wanted = ["steps=7", "evaluation.every_steps=99"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_length, "MOST_EPOCHS", 0.1)
        patch.setattr(run_length, "SLOW_CPU", 0)
        patch.setattr(run_length, "_seconds_of_steps", lambda *_: [900.0])
        assert pretrain(prepared_dir, tmp_path / "run", *wanted) == 0
        printed = capsys.readouterr().out
        before = printed[: printed.index("step 1/7")]
        often = re.search(r"warning: \d+ epochs, .* 0.1; set steps=(\d+)", before)
        hours = r"warning: about 1h45m on this CPU.* steps=4"
        assert often, printed
        assert re.search(hours, before), printed
        fewer = min(int(often[1]), 4)
        assert pretrain(prepared_dir, tmp_path / "fewer", *wanted, f"steps={fewer}") == 0
        assert "warning" not in capsys.readouterr().out


def test_a_trial_leaves_model_and_chance_as_they_were(prepared_dir: Path, tmp_path: Path, finished: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_length, "SLOW_CPU", 0)
        assert pretrain(prepared_dir, tmp_path / "run", *TWELVE) == 0
    assert weights_of(tmp_path / "run") == weights_of(finished)


def test_skipped_step_is_counted_without_its_batch(prepared_dir: Path, tmp_path: Path) -> None:
    """The step counts, its batch does not; and leaving one out is not another run."""
    assert pretrain(prepared_dir, tmp_path / "run", "steps=4", "data.skip_steps=[3]", "log.every_steps=100") == 0
    rows = {row["step"]: row for row in read_metrics(tmp_path / "run" / "metrics.jsonl")}
    assert set(rows) == {1, 3, 4}
    assert "loss" not in rows[3]
    assert pretrain(prepared_dir, tmp_path / "run", "steps=4", "data.skip_steps=[2]") == 0


STRUCK = (3, 4, 8)


def test_a_step_that_is_not_finite_is_skipped_and_logged(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    """The state is that of a run that leaves these steps out; the log names the examples, and every step once."""
    more = ["steps=9", "checkpoint.every_steps=4", "log.every_steps=3", "checkpoint.keep_last=9"]
    with pytest.MonkeyPatch.context() as patch:
        strike(patch, STRUCK)
        assert pretrain(prepared_dir, tmp_path / "struck", *more) == 0
    printed = capsys.readouterr().out
    assert (
        printed.count("skipped: mlm_loss nan, nsp_loss nan, grad_norm nan (its 12 examples are in metrics.jsonl)") == 3
    )
    assert "skipped 3 steps because" in printed
    assert pretrain(prepared_dir, tmp_path / "left_out", *more, f"data.skip_steps={list(STRUCK)}") == 0
    struck, left_out = (all_checkpoints(tmp_path / name) for name in ("struck", "left_out"))
    assert [path.name[-1] for path in struck] == ["9", "8", "4"]
    for ours, theirs in zip(struck, left_out, strict=True):
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert sha256_file(ours / name) == sha256_file(theirs / name)
        states = [json.loads((path / "state.json").read_text()) for path in (ours, theirs)]
        assert states[0]["num_updates"] == states[1]["num_updates"]
    assert states[0]["standing"]["skips"] == {"total": 2, "in_a_row": 2}  # of the checkpoint of step 4
    rows = read_metrics(tmp_path / "struck" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 3, 4, 6, 8, 9]
    for row in rows:
        assert ("skipped" in row) == ("loss" not in row) == (row["step"] in STRUCK)
        assert len(row.get("examples", [])) == 12 * ("skipped" in row)
    assert len({tuple(example) for row in rows for example in row.get("examples", [])}) == 36  # within the first epoch
    others = read_metrics(tmp_path / "left_out" / "metrics.jsonl")
    rates = [[row["learning_rate"] for row in of_run if row["step"] in (3, 8)] for of_run in (rows, others)]
    assert rates[0] == rates[1]


def test_a_run_that_does_not_recover_ends_with_its_last_good_checkpoint(
    prepared_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    more = ["steps=30", "checkpoint.every_steps=2", "numerics.max_skips_in_a_row=3", "log.every_steps=100"]
    with pytest.MonkeyPatch.context() as patch:
        strike(patch, range(6, 31))
        assert pretrain(prepared_dir, tmp_path / "run", *more) == 5
    assert "error: step 8: the loss or the gradient was not finite in 3 steps in a row" in capsys.readouterr().err
    newest = all_checkpoints(tmp_path / "run")[0]
    assert (newest.name[-1], fault_of(newest)) == ("6", None)
    assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1, 6, 7, 8]
    # the same command goes on from there, and the steps skipped before it still count
    assert pretrain(prepared_dir, tmp_path / "run", *more) == 0
    assert "skipped 1 step because" in capsys.readouterr().out


def test_a_finished_run_is_done_for_its_own_data_and_start_alone(
    prepared_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """Other text, damaged or missing files, other weights to start from: none of them is this run."""
    text = write_text(tmp_path / "text.txt", make_text(17, seed=1))
    arguments = [f"corpus.path={text}", f"tokenizer.path={prepared_dir / 'tokenizer'}"]
    assert run(["prepare", *arguments, f"output_dir={tmp_path / 'other'}"]) == 0
    assert pretrain(prepared_dir, tmp_path / "run", "steps=2") == 0
    assert pretrain(prepared_dir, tmp_path / "next", "steps=2", f"init_from={tmp_path / 'run'}") == 0
    capsys.readouterr()
    assert pretrain(prepared_dir, tmp_path / "next", "steps=2", f"init_from={tmp_path / 'run'}") == 0
    assert capsys.readouterr().out.startswith("done already")
    (tmp_path / "empty").mkdir()
    for data, more, line in (
        (tmp_path / "other", ["steps=2"], "holds another run (data_fingerprint: "),
        (tmp_path / "empty", ["steps=2"], "no manifest.json"),
        (prepared_dir, ["steps=2", f"init_from={tmp_path / 'next'}"], "holds another run (starting_weights: None"),
        (prepared_dir, ["steps=2", "segments=google"], "no fixed instances"),
    ):
        refused(pretrain(data, tmp_path / "run", *more), line, capsys)
    refused(pretrain(prepared_dir, tmp_path / "next", "steps=2"), "another run (starting_weights: ", capsys)


def test_checkpoint_files_follow_umask(prepared_dir: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert pretrain(prepared_dir, tmp_path / "run", "steps=1") == 0
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*.safetensors")}
    assert modes == {0o640}


def test_continuing_from_a_model(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    """The first loss of a continued run is that of the model it starts from, and its shape replaces model=, which is said."""
    assert pretrain(prepared_dir, tmp_path / "first", "steps=5") == 0
    more = [f"init_from={tmp_path / 'first'}", "model=mini", "steps=2", "schedule.warmup_steps=1"]
    capsys.readouterr()
    assert pretrain(prepared_dir, tmp_path / "second", *more, "model.hidden_dropout_prob=0.4") == 0
    (warning,) = (line for line in capsys.readouterr().out.splitlines() if "no effect with model_dir=" in line)
    assert warning.startswith("warning: model.")
    assert "model.hidden_dropout_prob: no effect with" in warning
    manifest = json.loads((tmp_path / "second" / "manifest.json").read_text())
    assert " tensors" in manifest["init_from"]["summary"]
    assert load_model(tmp_path / "second").config.hidden_size == 32


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_half_precision_trains_alike(half: str, prepared_dir: Path, tmp_path: Path) -> None:
    losses = []
    for precision in ("fp32", half):
        assert pretrain(prepared_dir, tmp_path / precision, "steps=4", f"precision={precision}") == 0
        losses.append([row["loss"] for row in read_metrics(tmp_path / precision / "metrics.jsonl")])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)


def test_a_live_run_is_left_alone(prepared_dir: Path, a_finished_run: Path, capsys: Capsys) -> None:
    (a_finished_run / "eval.json").unlink()
    with locked(a_finished_run):
        assert pretrain(prepared_dir, a_finished_run, *TWELVE) == 3
    assert f"in use by process {os.getpid()}" in capsys.readouterr().err


def set_platform(run_dir: Path, **changed: object) -> None:
    """Change the platform that the newest checkpoint records."""
    newest = all_checkpoints(run_dir)[0]
    path, manifest = newest / "state.json", json.loads((newest / "manifest.json").read_text())
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "platform": {**state["platform"], **changed}}))
    manifest["files"][path.name] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
    (newest / "manifest.json").write_text(to_json(manifest))
    assert fault_of(newest) is None


@pytest.mark.parametrize("mode", ["default", "strict"])
@pytest.mark.parametrize("is_asked_for", [False, True])
def test_resume_keeps_thread_count(
    prepared_dir: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch, mode: str, is_asked_for: bool
) -> None:
    """A run keeps its number of threads; another one that the user asks for is refused when every bit must be the same."""
    run_dir, more = tmp_path / "run", ["steps=3", f"reproducibility={mode}"]
    here = torch.get_num_threads()
    assert pretrain(prepared_dir, run_dir, *more) == 0
    (run_dir / "eval.json").unlink()
    set_platform(run_dir, num_threads=here + 1)
    monkeypatch.setenv("OMP_NUM_THREADS", str(here)) if is_asked_for else monkeypatch.delenv(
        "OMP_NUM_THREADS", raising=False
    )
    capsys.readouterr()
    code, printed, after = pretrain(prepared_dir, run_dir, *more), capsys.readouterr(), torch.get_num_threads()
    torch.set_num_threads(here)
    line = f"{here + 1} threads before, {here} here"
    if not is_asked_for:
        assert (code, after, line in printed.out) == (0, here + 1, False)
    elif mode == "default":
        assert (code, after, f"warning: {line}" in printed.out) == (0, here, True)
    else:
        assert code == 2
        assert re.search(f"{re.escape(line)}: reproducibility=strict .*; set OMP_NUM_THREADS={here + 1}", printed.err)


@pytest.mark.parametrize("mode", ["default", "strict"])
def test_other_torch_version_is_refused_in_strict_mode(
    prepared_dir: Path, tmp_path: Path, capsys: Capsys, mode: str
) -> None:
    run_dir, more = tmp_path / "run", ["steps=3", f"reproducibility={mode}"]
    assert pretrain(prepared_dir, run_dir, *more) == 0
    (run_dir / "eval.json").unlink()
    set_platform(run_dir, torch="1.2.3")
    capsys.readouterr()
    assert pretrain(prepared_dir, run_dir, *more) == (2 if mode == "strict" else 0)
    printed, line = capsys.readouterr(), re.escape(f"torch 1.2.3 before, {torch.__version__} here: ")
    assert re.search(line + "reproducibility=strict .*; install torch 1.2.3", printed.err) or mode == "default"
    assert re.search("warning: " + line, printed.out) or mode == "strict"


def interrupt(process: subprocess.Popen[str], run_dir: Path, rng: random.Random) -> int:
    """Stop a run: by a signal after a random number of logged steps, or by SIGKILL in the middle of a save."""
    metrics, how = run_dir / "metrics.jsonl", rng.choice([signal.SIGTERM, signal.SIGINT, KILL, "save"])
    rows_before = len(read_metrics(metrics))
    wanted = rows_before + rng.randrange(1, 9)
    while process.poll() is None:
        if how == "save":
            if any((run_dir / "checkpoints").glob("*.partial")):
                process.send_signal(KILL)
        elif len(read_metrics(metrics)) >= wanted:
            process.send_signal(how)  # once: the second signal would end it without a save
            return process.wait()
        time.sleep(0.002 if how == "save" else 0.02)
    return process.wait()


def stop_and_resume(python: Path, data: Path, run_dir: Path, stops: int, rng: random.Random, *more: str) -> list[int]:
    """Interrupt a run up to `stops` times, then let it end; give the exit codes."""
    codes: list[int] = []
    while not codes or codes[-1] != 0:
        process = start(data, run_dir, *more, python=python)
        if len(codes) < stops:
            codes.append(interrupt(process, run_dir, rng))
        else:
            _, output = process.communicate(timeout=120)
            assert process.returncode == 0, output
            codes.append(0)
        # -KILL: it came before there was a fork to hand it on to
        assert codes[-1] in (0, 75, -signal.SIGKILL, -KILL), codes
        for path in all_checkpoints(run_dir):
            assert fault_of(path) is None
    return codes


MANY_STEPS = ["steps=60", "checkpoint.every_steps=4", "checkpoint.keep_last=2", "evaluation.every_steps=25"]


def test_layers_cannot_be_compiled_without_a_compiler(
    prepared_dir: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pretrain(prepared_dir, tmp_path / "run", "steps=1", "schedule.warmup_steps=1", "compile=true") == 2
    error = "error: compile=true needs a C++ compiler on cpu; install it, or set compile=auto\n"
    assert capsys.readouterr().err == error
    assert not (tmp_path / "run").exists()
    assert pretrain(prepared_dir, tmp_path / "run", "steps=1", "schedule.warmup_steps=1") == 0


@pytest.fixture(scope="module")
def whole(prepared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    assert pretrain(prepared_dir, run_dir, *MANY_STEPS) == 0
    return run_dir


@pytest.mark.parametrize("trial", [3, *(pytest.param(trial, marks=pytest.mark.slow) for trial in range(100, 110))])
def test_stopped_and_resumed_is_bit_for_bit_the_same(
    prepared_dir: Path, whole: Path, tmp_path: Path, python: Path, trial: int
) -> None:
    codes = stop_and_resume(python, prepared_dir, tmp_path / "stopped", 3, random.Random(trial), *MANY_STEPS)
    assert any(codes), "no stop came in time"
    assert weights_of(tmp_path / "stopped") == weights_of(whole)
    assert rows_without_pace(whole) == rows_without_pace(tmp_path / "stopped")
    ends = [all_checkpoints(run_dir)[0] for run_dir in (whole, tmp_path / "stopped")]
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        assert sha256_file(ends[0] / name) == sha256_file(ends[1] / name), name


def test_a_stop_saves_first_and_says_so(prepared_dir: Path, tmp_path: Path, python: Path) -> None:
    process = start(prepared_dir, tmp_path / "run", "steps=100000", "checkpoint.every_steps=100000", python=python)
    while len(read_metrics(tmp_path / "run" / "metrics.jsonl")) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)  # torchrun and Slurm say it more than once
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 75
    assert errors == ""
    newest = all_checkpoints(tmp_path / "run")[0]
    assert f"stopped at step {int(newest.name[5:])} of 100000, " in output


def is_loading(process: subprocess.Popen[str], run_dir: Path) -> bool:
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def is_finishing(process: subprocess.Popen[str], run_dir: Path) -> bool:
    return (run_dir / "model.partial").is_dir()


@pytest.mark.parametrize(("moment", "number"), [
    (is_loading, signal.SIGTERM),
    (is_finishing, signal.SIGUSR1),
    pytest.param(is_loading, signal.SIGUSR1, marks=pytest.mark.slow),
    pytest.param(is_finishing, signal.SIGTERM, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_stop_while_there_is_nothing_to_save(
    prepared_dir: Path,
    a_finished_run: Path,
    moment: Callable[[subprocess.Popen[str], Path], bool],
    number: int,
    python: Path,
) -> None:
    """Before the first step and after the last one; the same command then finishes the run."""
    codes = []
    while 75 not in codes and len(codes) < 5:  # the run may end before the signal comes
        (a_finished_run / "eval.json").unlink(missing_ok=True)
        interpreter = Path(sys.executable) if moment is is_loading else python  # a fork has nothing to load
        process = start(prepared_dir, a_finished_run, *TWELVE, python=interpreter)
        while process.poll() is None and not moment(process, a_finished_run):
            time.sleep(0.0005)
        process.send_signal(number)
        output, errors = process.communicate(timeout=120)
        assert errors == ""
        codes.append(process.returncode)
    assert set(codes) <= {0, 75}
    assert codes[-1] == 75
    assert output.splitlines()[-1] == "stopped; checkpoint 12 is saved, and the same command resumes"
    assert pretrain(prepared_dir, a_finished_run, *TWELVE) == 0
    assert (a_finished_run / "eval.json").is_file()
