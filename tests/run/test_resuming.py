"""Resumed, changed, interrupted by the disk: what a run does with its checkpoints."""

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Capsys, mounted, output_of, refused

from bertkit.base.files import sha256_file
from bertkit.base.tensor_files import read_tensors
from bertkit.cli import run
from bertkit.display import console
from bertkit.train import checkpoint
from bertkit.train.checkpoint_files import (
    MANIFEST,
    STATE,
    all_checkpoints,
    fault_of,
    manifest_of,
    read_state,
    size_and_hash,
)
from bertkit.train.log import read_metrics

SMALL = [
    "device=cpu", "model=medium", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=32", "model.intermediate_size=64", "model.max_position_embeddings=48",
    "segments.max_seq_length=24", "batch.sequences=6", "log.every_steps=1", "checkpoint.every_steps=1", "steps=4",
    "evaluation.every_steps=2", "evaluation.max_sequences=16", "optimizer.peak_learning_rate=1e-3",
    "schedule.warmup_steps=0",
]  # fmt: skip


def pretrain(data: Path, output: Path, *more: str) -> int:
    return run(["pretrain", f"data_dir={data}", f"output_dir={output}", *SMALL, *more])


@pytest.fixture(scope="module")
def four_steps(prepared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests take a copy."""
    run_dir = tmp_path_factory.mktemp("run") / "run"
    assert pretrain(prepared_dir, run_dir) == 0
    return run_dir


@pytest.fixture
def finished(four_steps: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(four_steps, tmp_path / "run"))


def rows(run_dir: Path) -> dict[int, dict[str, Any]]:
    return {row["step"]: row for row in read_metrics(run_dir / "metrics.jsonl")}


def names(run_dir: Path) -> list[int]:
    return [int(path.name[5:]) for path in all_checkpoints(run_dir)]


def test_a_finished_run_trains_longer(prepared_dir: Path, finished: Path, capsys: Capsys) -> None:
    before = rows(finished)
    assert pretrain(prepared_dir, finished, "steps=6") == 0
    assert "warning: steps: 4 up to step 4, 6 from here on\n" in capsys.readouterr().out
    after = rows(finished)
    assert list(after) == [1, 2, 3, 4, 5, 6]
    assert {step: after[step] for step in before} == before
    assert [after[step]["learning_rate"] for step in (5, 6)] == pytest.approx([1e-3 * 2 / 6, 1e-3 / 6])
    assert json.loads((finished / "eval.json").read_text())["steps"] == 6
    assert yaml.safe_load((finished / "config.yaml").read_text())["steps"] == 6
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["changes"] == [{"step": 4, "key": "steps", "old": 4, "new": 6}]
    assert pretrain(prepared_dir, finished, "steps=6") == 0
    assert capsys.readouterr().out.startswith("done already")
    refused(pretrain(prepared_dir, finished, "steps=5"), "steps=5: the run in ", capsys)
    assert json.loads((finished / "eval.json").read_text())["steps"] == 6


def test_a_run_goes_on_from_its_stable_part_as_if_it_had_been_long_from_the_start(
    prepared_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """Warm-up of one step; of 6 steps the last two decay, the first of them still at the peak, so steps 1 to 5 are shared with a longer run."""
    more = [
        "schedule=wsd",
        "schedule.options.decay_share=0.34",
        "schedule.warmup_steps=1",
        "checkpoint.every_steps=100",
    ]
    assert pretrain(prepared_dir, tmp_path / "long", *more, "steps=12") == 0
    assert pretrain(prepared_dir, tmp_path / "run", *more, "steps=6") == 0
    assert names(tmp_path / "run") == [6, 5]
    shutil.copytree(tmp_path / "run", tmp_path / "linear")
    capsys.readouterr()
    assert pretrain(prepared_dir, tmp_path / "run", *more, "steps=12") == 0
    printed = capsys.readouterr().out
    assert "step-00000006: deleted; the run goes on from step 5, the last one before the decay began\n" in printed
    assert "warning: steps: 6 up to step 5, 12 from here on\n" in printed
    assert "resumed from step 5 of 12\n" in printed
    assert names(tmp_path / "run") == [12, 9, 5]
    weights, moments = ("model/model.safetensors", "checkpoints/step-00000012/optimizer.safetensors")
    for file in (weights, moments):
        assert sha256_file(tmp_path / "run" / file) == sha256_file(tmp_path / "long" / file)
    ours, theirs = (
        [{name: value for name, value in row.items() if name != "tokens_per_second"} for row in rows(run_dir).values()]
        for run_dir in (tmp_path / "run", tmp_path / "long")
    )
    assert ours == theirs
    # the stable part is lost: the run goes on from what there is
    shutil.rmtree(tmp_path / "linear" / "checkpoints" / "step-00000005")
    assert pretrain(prepared_dir, tmp_path / "linear", *more, "steps=7") == 0
    assert "resumed from step 6 of 7\n" in capsys.readouterr().out


def test_a_log_file_has_one_kind_of_progress_lines(
    prepared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    """Of 15 rows every other one is printed; all of them, if a line is overdue."""
    words = ["steps=15", "log.every_steps=auto", "checkpoint.every_steps=99", "evaluation.every_steps=99"]

    def steps_of(seconds: float) -> list[int]:
        monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", seconds)
        assert pretrain(prepared_dir, tmp_path / f"{seconds}", *words, "batch.sequences=2") == 0
        printed = capsys.readouterr().out
        assert "pretraining:" not in printed
        return [int(line.split()[1].partition("/")[0]) for line in printed.splitlines() if line.startswith("step ")]

    assert steps_of(99) == [1, 2, 4, 6, 8, 10, 12, 14, 15]
    assert steps_of(0) == [*range(1, 16)]


def test_epochs_are_converted_to_steps(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    def printed_by(*more: str) -> str:
        words = [word for word in SMALL if not word.startswith("steps=")]
        assert run(["pretrain", f"data_dir={prepared_dir}", f"output_dir={tmp_path / 'run'}", *words, *more]) == 0
        return capsys.readouterr().out

    printed = printed_by("num_epochs=0.5", "batch.sequences=16")
    length = int(re.search(r"([\d,]+) examples an epoch", printed)[1].replace(",", ""))  # type: ignore[index]
    steps = round(0.5 * length / 16)
    assert f"\nsteps={steps}: 0.5 epochs of the text\n" in printed
    assert json.loads((tmp_path / "run" / "eval.json").read_text())["steps"] == steps
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (saved["steps"], saved["num_epochs"]) == (steps, None)
    assert printed_by("num_epochs=0.5", "batch.sequences=16").startswith("done already")
    assert printed_by("batch.sequences=16").startswith("done already")
    printed = printed_by("num_epochs=1", "batch.sequences=16")
    assert f"warning: steps: {steps} up to step {steps}, {round(length / 16)} from here on\n" in printed
    both = run(["pretrain", f"data_dir={prepared_dir}", "output_dir=x", "steps=9", "num_epochs=2"])
    refused(both, "num_epochs=2 and steps=9 are both set; set one of them", capsys)


def test_continued_pretraining_with_frozen_lower_layers(
    prepared_dir: Path, four_steps: Path, tmp_path: Path, capsys: Capsys
) -> None:
    more = [f"model_dir={four_steps}", "steps=1", "freeze=layers:1"]
    model = [word for word in SMALL if not word.startswith("model")]
    words = ["pretrain", f"data_dir={prepared_dir}", f"output_dir={tmp_path / 'run'}", *model, *more]
    assert run(words) == 0
    before, after = (read_tensors(place / "model" / "model.safetensors") for place in (four_steps, tmp_path / "run"))
    lower = ("bert.embeddings.", "bert.encoder.layer.0.")
    same = {name for name in before if bool((before[name] == after[name]).all())}
    assert same == {name for name in before if name.startswith(lower)} != set()
    trained = sum(tensor.numel() for name, tensor in after.items() if name not in same)
    assert f"frozen: layers:1; {trained / 1e6:.1f} M parameters are trained\n" in capsys.readouterr().out
    other = run([*words, "steps=2", "freeze=embeddings"])
    refused(other, "freeze: 'layers:1' there, 'embeddings' here", capsys)
    refused(run([*words, "freeze=layers:3"]), "freeze=layers:3: the model has 2 layers", capsys)
    from_scratch = pretrain(prepared_dir, tmp_path / "other", "freeze=encoder")
    refused(from_scratch, "freeze=encoder: has no effect without model_dir=; leave it out", capsys)


def test_a_fixed_setting_takes_effect_when_it_is_allowed(prepared_dir: Path, finished: Path, capsys: Capsys) -> None:
    more = ["steps=6", "optimizer.peak_learning_rate=5e-4"]
    refused(pretrain(prepared_dir, finished, *more), "optimizer.peak_learning_rate: 0.001 there, 0.0005 here", capsys)
    other_model = ["steps=6", "model.intermediate_size=62", "resume.allow=[model]"]  # never allowed
    refused(pretrain(prepared_dir, finished, *other_model), "model.intermediate_size", capsys)
    assert names(finished) == [4, 3, 2]
    assert (finished / "eval.json").exists()
    assert pretrain(prepared_dir, finished, *more, "resume.allow=[optimizer.peak_learning_rate]") == 0
    assert "optimizer.peak_learning_rate: 0.001 up to step 4, 0.0005 from here on" in capsys.readouterr().out
    assert rows(finished)[5]["learning_rate"] == pytest.approx(5e-4 * 2 / 6)
    changes = json.loads((finished / "manifest.json").read_text())["changes"]
    assert {(change["step"], change["key"]) for change in changes} == {
        (4, "steps"),
        (4, "optimizer.peak_learning_rate"),
    }


def test_micro_batches_are_chosen_anew_only_when_they_are_asked_for(prepared_dir: Path, finished: Path) -> None:
    assert pretrain(prepared_dir, finished, "steps=5") == 0
    assert read_state(all_checkpoints(finished)[0])["chosen"]["cut"] == [3]
    assert pretrain(prepared_dir, finished, "steps=6", "batch.micro_sequences=2") == 0
    assert read_state(all_checkpoints(finished)[0])["chosen"]["cut"] == [2]


def test_a_run_whose_kernel_is_gone_goes_on_and_says_so(prepared_dir: Path, finished: Path, capsys: Capsys) -> None:
    """`grouped_attention` was a kernel of bertkit 0.2."""
    newest = all_checkpoints(finished)[0]
    state = json.loads((newest / STATE).read_text())
    state["chosen"]["kernels"].append("grouped_attention")
    (newest / STATE).write_text(json.dumps(state))
    listed = json.loads((newest / MANIFEST).read_text())["files"]
    (newest / MANIFEST).write_text(manifest_of({name: size_and_hash(newest / name) for name in listed}))
    assert pretrain(prepared_dir, finished, "steps=6") == 0
    message = "bertkit has no kernel grouped_attention any more: rounding and dropout differ from here on"
    assert message in " ".join(capsys.readouterr().out.split())
    assert "grouped_attention" not in read_state(all_checkpoints(finished)[0])["chosen"]["kernels"]


def test_a_damaged_checkpoint_is_left_aside_and_the_weights_come_out_the_same(
    prepared_dir: Path, finished: Path, capsys: Capsys
) -> None:
    whole = sha256_file(finished / "model" / "model.safetensors")
    shutil.rmtree(finished / "model")
    with (all_checkpoints(finished)[0] / "optimizer.safetensors").open("r+b") as file:
        file.seek(5000)
        file.write(b"?")
    assert pretrain(prepared_dir, finished) == 0
    printed = capsys.readouterr().out
    assert "step-00000004 is damaged and not used: optimizer.safetensors: size or SHA-256 differs" in printed
    assert "resumed from step 3 of 4" in printed
    assert sha256_file(finished / "model" / "model.safetensors") == whole
    assert [fault_of(path) for path in all_checkpoints(finished)] == [None] * 3


def test_a_run_without_any_whole_checkpoint_stops(prepared_dir: Path, finished: Path, capsys: Capsys) -> None:
    shutil.rmtree(finished / "model")
    for path in all_checkpoints(finished):
        (path / "state.json").write_text("{}")
    before = sha256_file(finished / "metrics.jsonl")
    assert pretrain(prepared_dir, finished) == 4
    printed = capsys.readouterr()
    assert "error: " + str(finished / "checkpoints") + ": 3 checkpoints" in printed.err
    assert printed.out.count("is damaged and not used: state.json") == 3
    assert sha256_file(finished / "metrics.jsonl") == before
    assert names(finished) == [4, 3, 2]


def test_leftovers_of_a_crash_are_cleaned_at_the_start(prepared_dir: Path, finished: Path) -> None:
    left = [finished / "checkpoints" / "step-00000009.partial", finished / "checkpoints" / ".step-00000001.trash",
            finished / "model.partial", finished / ".model.trash"]  # fmt: skip
    for path in left:
        path.mkdir()
    (finished / "config.yaml.partial").write_text("half")
    # every step is done, nothing more is saved
    (finished / "eval.json").unlink()
    assert pretrain(prepared_dir, finished) == 0
    assert not any(path.exists() for path in [*left, finished / "config.yaml.partial"])


def test_the_best_is_kept_besides_the_last(prepared_dir: Path, tmp_path: Path) -> None:
    """A learning rate that ruins the model: of the steps that are evaluated and saved, the last is not the best."""
    more = ["checkpoint.keep_last=1", "steps=6", "optimizer.peak_learning_rate=0.3", "schedule=constant"]
    assert pretrain(prepared_dir, tmp_path / "run", *more) == 0
    measured = {step: row for step, row in rows(tmp_path / "run").items() if "eval_mlm_loss" in row}
    losses = {step: row["eval_mlm_loss"] + row["eval_nsp_loss"] for step, row in measured.items()}
    assert list(losses) == [2, 4, 6]
    best = min(losses, key=lambda step: losses[step])
    assert best != 6
    assert names(tmp_path / "run") == [6, best]
    assert read_state(all_checkpoints(tmp_path / "run")[0])["standing"]["best"] == {
        "step": best,
        "score": -losses[best],
    }
    more += ["checkpoint.keep_best=false"]
    assert pretrain(prepared_dir, tmp_path / "other", *more) == 0
    assert names(tmp_path / "other") == [6]


def test_saving_in_the_background_changes_nothing(
    prepared_dir: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even when the thread comes to write only after the next step has changed the weights."""
    save = checkpoint.save

    def late(*contents: Any, **named: Any) -> Path:
        time.sleep(0.2)
        return save(*contents, **named)

    monkeypatch.setattr(checkpoint, "save", late)
    assert pretrain(prepared_dir, tmp_path / "other", "checkpoint.background=true") == 0
    assert names(tmp_path / "other") == names(finished)
    for ours, theirs in zip(all_checkpoints(tmp_path / "other"), all_checkpoints(finished), strict=True):
        assert (ours / "manifest.json").read_bytes() == (theirs / "manifest.json").read_bytes()


@pytest.mark.parametrize("background", ["true", "false"])
def test_disk_too_small_for_checkpoint_is_a_storage_error(
    prepared_dir: Path, tmp_path: Path, capsys: Capsys, background: str
) -> None:
    """A checkpoint needs a megabyte and more, the run without it much less."""
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=1m", "tmpfs") as disk:
        run_dir, more = disk / "run", ["steps=3", f"checkpoint.background={background}"]
        assert pretrain(prepared_dir, run_dir, *more) == 4
        printed = capsys.readouterr().err
        assert f"error: step 1 is not saved: no space left on {run_dir / 'checkpoints'}: need " in printed
        assert "; no checkpoint yet\n" in printed
        assert printed.count("\n") == 1
        assert names(run_dir) == []
        assert pretrain(prepared_dir, run_dir, *more, "checkpoint.on_save_error=continue") == 0
        printed = capsys.readouterr().out
        assert [f"({n} failed save{'s' * (n > 1)} since this start)" in printed for n in (1, 2, 3, 4)] == [
            True, True, True, False,
        ]  # fmt: skip
        assert (run_dir / "model" / "model.safetensors").exists()


def test_two_processes_save_and_one_goes_on(
    prepared_dir: Path, four_steps: Path, tmp_path: Path, torchrun: list[str]
) -> None:
    arguments = [f"data_dir={prepared_dir}", f"output_dir={tmp_path / 'run'}", "steps=3", "checkpoint.background=true"]
    output_of([*torchrun, "pretrain", *SMALL, *arguments])
    files = sorted(path.name for path in all_checkpoints(tmp_path / "run")[0].glob("optimizer*"))
    assert files == ["optimizer-00001-of-00002.safetensors", "optimizer-00002-of-00002.safetensors"]
    assert pretrain(prepared_dir, tmp_path / "run", "steps=4", "schedule.warmup_steps=0") == 0
    assert list(rows(tmp_path / "run")) == [1, 2, 3, 4]
    assert [fault_of(path) for path in all_checkpoints(tmp_path / "run")] == [None] * 3
    losses = [rows(path)[1]["loss"] for path in (four_steps, tmp_path / "run")]
    assert losses[0] == pytest.approx(losses[1], abs=2e-6)


def test_two_processes_measure_while_a_thread_saves(prepared_dir: Path, tmp_path: Path, torchrun: list[str]) -> None:
    """With collectives of the same group for both, the processes end in gloo."""
    often = ["steps=25", "evaluation.every_steps=1", "checkpoint.background=true"]
    output_of([*torchrun, "pretrain", *SMALL, f"data_dir={prepared_dir}", f"output_dir={tmp_path / 'run'}", *often])
    assert list(rows(tmp_path / "run")) == [*range(1, 26)]


def test_an_allowed_reproducibility_takes_effect(prepared_dir: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert pretrain(prepared_dir, run_dir, "steps=2") == 0
    more = ["steps=4", "reproducibility=strict", "resume.allow=[reproducibility]"]
    assert pretrain(prepared_dir, run_dir, *more) == 0
    states = [read_state(path) for path in all_checkpoints(run_dir)[:3]]
    assert [(state["step"], state["chosen"]["num_parts"]) for state in states] == [(4, 4), (3, 4), (2, None)]
