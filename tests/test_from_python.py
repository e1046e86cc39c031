"""A job from Python, with the names and the arguments that users rely on: from a directory, and from a model in memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY_PRETRAIN

import bertkit
from bertkit.base.errors import InputError
from bertkit.cli import run

ROWS = [{"text": f"{'kam' if n % 2 else 'rum'} tem", "label": "yes" if n % 2 else "no"} for n in range(40)]
TINY: dict[str, Any] = {
    name: int(size) for name, _, size in (one.partition("=") for one in TINY_PRETRAIN) if name.startswith("model.")
}


SHORT: dict[str, Any] = {"batch": {"sequences": 8}, "task.max_seq_length": 16}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_settings_of_a_command_are_keys_of_its_function(tmp_path: Path) -> None:
    """Also those of a group that takes rows, whose name theirs begin with."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"kam tem {n} ." for n in range(30)))
    keys: dict[str, Any] = {"corpus.path": text, "tokenizer.vocab_size": 100, "held_out_prob": 0.1}
    assert bertkit.prepare(output_dir=tmp_path / "data", **keys).directory == tmp_path / "data"
    with pytest.raises(InputError, match=r"unknown key 'corpus.pth'; did you mean 'path'"):
        bertkit.prepare(output_dir=tmp_path / "other", **{"corpus.pth": text})


@pytest.mark.parametrize("kind", ["new", "loaded", "trained"])
def test_fine_tuning_begins_with_a_model_or_its_directory(prepared_dir: Path, tiny_runs: Path, kind: str) -> None:
    """The same numbers, from the weights of a directory, or of the same model in memory, which stays as it is."""
    data, model_dir = bertkit.open_dataset(prepared_dir), tiny_runs / "pre"
    model: Any = bertkit.new_model("tiny", data.tokenizer, **TINY) if kind == "new" else bertkit.load_model(model_dir)
    if kind == "trained":
        job = bertkit.Pretraining(model, data, bertkit.MaskedLM(probability=0.3), batch_sequences=4, max_seq_length=32)
        first, *_ = [report.loss for report in bertkit.fit(job, steps=3, learning_rate=1e-2)]
        assert first > 0
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    losses = []
    for begun in (model, bertkit.export_model(model, data.tokenizer, "written")):
        tuned = bertkit.Finetuning(begun, "sequence", train=ROWS, dev=ROWS[:10], **SHORT)
        losses.append([(report.step, report.loss) for report in bertkit.fit(tuned, steps=4, learning_rate=1e-2)])
    assert losses[0] == losses[1]
    assert [step for step, _ in losses[0]] == [1, 2, 3, 4]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_run_from_a_model_in_memory_goes_on_by_its_command(prepared_dir: Path) -> None:
    """Its directory has the rows and the model with which it began."""
    data = bertkit.open_dataset(prepared_dir)
    job = bertkit.Finetuning(
        bertkit.new_model("tiny", data.tokenizer, **TINY), "sequence", train=ROWS, dev=ROWS[:10], **SHORT
    )
    steps = bertkit.fit(job, steps=7, learning_rate=1e-3, directory="run")
    next(steps)
    del steps, job
    assert run(["finetune", "--config", "run/config.yaml"]) == 0
    assert [json.loads(line)["step"] for line in Path("run/metrics.jsonl").read_text().splitlines()][-1] == 7
    assert bertkit.load_predictor("run")(["kam tem"])


def test_what_a_job_cannot_begin_with_is_refused(prepared_dir: Path) -> None:
    model = bertkit.new_model("tiny", bertkit.open_dataset(prepared_dir).tokenizer, **TINY)
    model.tokenizer = None
    with pytest.raises(InputError, match=r"^model: has no tokenizer; pass a model from new_model or load_model"):
        bertkit.Finetuning(model, "sequence", train=ROWS)
    with pytest.raises(InputError, match=r"^model=3: "):
        bertkit.Finetuning(3, "sequence", train=ROWS)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="sequnce"):
        bertkit.Finetuning("x", "sequnce", train=ROWS)
