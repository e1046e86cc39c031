"""What a message tells the user to do ends the complaint: each remedy is taken from the message and followed."""

import re
import shlex
from pathlib import Path

import pytest
from conftest import Capsys

from bertkit.cli import run
from bertkit.run.resume_rules import FINETUNE as FINETUNE_RULES
from bertkit.run.resume_rules import PRETRAIN as PRETRAIN_RULES
from bertkit.run.resume_rules import Change, refused, remedies

PRETRAIN = "pretrain data_dir=no/data output_dir=no/run"
FINETUNE = "finetune task=classification model_dir=no/such/model data_dir=no/data output_dir=no/run"
TAGS = "finetune task=ner model_dir=no/such/model data_dir=no/data output_dir=no/run"

# a command; what is wrong in it; where the message says what to do; what then takes the place of the wrong words
FOLLOWED = [
    (FINETUNE, "optimizer.lr=3e-4", r"here it is (\S+)", "{}"),
    (FINETUNE, "task=sentiment", r"here it is (\S+)", "{}"),
    (FINETUNE, "fp16=false", r"(leave) it out", ""),
    (FINETUNE, "gradient_accumulation_steps=4", r"here it is (\S+);", "{}"),
    (FINETUNE, "gradient_accumulation_steps=4", r"global batch is (\S+),", "{}"),
    (PRETRAIN, "precision=float16", r"here it is (\S+)", "{}"),
    (PRETRAIN, "precision=mixed", r"set (\S+),", "{}"),
    (PRETRAIN, "report_to=none", r"here it is (\S+)", "{}"),
    (PRETRAIN, "scheduler=warmup_stable_decay", r"here it is (\S+)", "{}"),
    ("evaluate model_dir=no/such/model data_dir=no/data", "task=blimp", r"here it is (\S+)", "{}"),
    ("prepare corpus.path=no/text segments=google output_dir=no/data", "max_predictions_per_seq=20", r"here it is (\S+)", "{}"),
    (FINETUNE, "num_epoch=2", r"did you mean '(.*)'", "{}=2"),
    (FINETUNE, "task.labels=regression", r"set (task.metrics=\S+ task.best_metric=\S+)$", "task.labels=regression {}"),
    (FINETUNE, "optimizer.name=lamb", r"choose (\S+)", "{}"),
    (FINETUNE, "freeze=layers", r"such as (\S+)", "freeze={}"),
    (FINETUNE, "class_weights=often", r"expected (balanced)", "task.labels=[a,b] class_weights={}"),
    (FINETUNE, "seed=1,2", r"add (-m)", "seed=1,2 {} --cfg job"),
    ("finetune model_dir=no/such/model data_dir=x output_dir=no/run", "task=seqence", r"did you mean '(.*)'", "task={}"),
    (TAGS, "task.metrics=[f1]", r"set (task.metrics=\S+)", "{}"),
    (PRETRAIN, "model=bert-base", r"one of (\w+)", "model={}"),
    (PRETRAIN, "steps=0", r"expected at least (1)", "steps={}"),
    (PRETRAIN, "init_moments=true", r"without (\S+);", "init_moments=true {}no/such/model"),
    (PRETRAIN, "steps=50 schedule.warmup_steps=100", r"exceeds steps=50; (lower) the warm-up", "steps=50 schedule.warmup_steps=5"),
    (f"{PRETRAIN} model=base", "final_phase.share=0.2", r"(leave) it out", ""),
    (PRETRAIN, "batch.micro_sequences=2 batch.micro_tokens=99", r"set (one) of them", "batch.micro_tokens=99"),
    ("prepare corpus.path=no/text output_dir=no/data", "segments.max_seq_length=64", r"add (segments=google)", "segments.max_seq_length=64 {}"),
    ("prepare corpus.path=no/text output_dir=no/data", "masking.probability=0.2", r"add (segments=google)", "masking.probability=0.2 {}"),
    ("prepare output_dir=no/data", "num_workers=1", r"set (corpus.path=) to files", "{}no/text"),
    ("export output_dir=no/out checkpoint=no/a", "model_dir=no/b", r"set (model_dir=) once", ""),
    ("verify", "seed=3", r"missing value: set (model_dir=)", "{}no/such/model"),
]  # fmt: skip
# settings of another command: whose
GIVEN_ON = [
    (PRETRAIN, "corpus.path=no/text", "prepare output_dir=no/data"),
    (PRETRAIN, "corpus=files", "prepare corpus.path=no/text output_dir=no/data"),
    (PRETRAIN, "+corpus=files", "prepare corpus.path=no/text output_dir=no/data"),
    (PRETRAIN, "train_file=no/a.txt", "prepare output_dir=no/data"),
    ("prepare corpus.path=no/text output_dir=no/data", "model=tiny", PRETRAIN),
    ("prepare corpus.path=no/text output_dir=no/data", "lr=1e-4", PRETRAIN),
]


def complaints(command: str, capsys: Capsys) -> list[str]:
    code = run(shlex.split(command))
    lines = capsys.readouterr().err.splitlines()
    assert code == (2 if lines else 0)
    return lines


@pytest.mark.parametrize(("command", "wrong", "message", "followed"), FOLLOWED)
def test_advice_in_error_message_removes_error(
    command: str, wrong: str, message: str, followed: str, capsys: Capsys
) -> None:
    line, remedy = next(
        (line, match[1]) for line in complaints(f"{command} {wrong}", capsys) if (match := re.search(message, line))
    )
    after = complaints(f"{command} {followed.format(remedy)}", capsys)
    assert line not in after
    after = [each for each in after if not each.startswith("error: model_dir=no/such/model: no such directory")]
    assert not [each for each in after if "unknown" in each or "expected" in each]


@pytest.mark.parametrize(("command", "wrong", "taker"), GIVEN_ON)
def test_a_setting_of_another_command_is_taken_there(command: str, wrong: str, taker: str, capsys: Capsys) -> None:
    (line,) = complaints(f"{command} {wrong}", capsys)
    value = re.search(r"pass (\S+) to bertkit (\w+)", line)
    assert value, line
    assert value[2] == taker.split()[0]
    after = complaints(f"{taker} {value[1]}", capsys)
    assert all("no/" in each for each in after), after  # nothing but the files that there are not
    if value[2] == "prepare":
        assert "whose output_dir is data_dir= here" in line


def test_what_other_commands_and_tools_take_is_taken(tmp_path: Path, capsys: Capsys) -> None:
    """Synonyms, aliases, and options with an equals sign."""
    for command in (
        "export checkpoint=no/such/model output_dir=no/out",
        "export init_from=no/such/model output_dir=no/out",
        PRETRAIN.replace("no/data", "no/data init_from=no/such/model"),
        "evaluate checkpoint=no/such/model data_dir=no/data",
        f"{FINETUNE} --config-dir={tmp_path}",
        *(f"{FINETUNE} task={task}" for task in ("ner", "qa", "classification", "regression")),
    ):
        lines = complaints(command, capsys)
        assert lines, command
        assert all(re.search("no/(such|data)", line) for line in lines), lines
    assert run(["finetune", "--config-dir", str(tmp_path / "gone"), "task=ner"]) == 2
    assert "gone: no such directory" in capsys.readouterr().err


def test_refused_change_is_not_advised() -> None:
    """What had its effect when a run began is not to be allowed on resume."""
    changed = [
        Change("model.hidden_size", 32, 64),
        Change("segments.kind", "pairs", "full_sentences"),
        Change("task.labels", "auto", ["a", "b"]),
    ]
    for change in changed:
        rules = FINETUNE_RULES if change.key.startswith("task") else PRETRAIN_RULES
        assert refused([change], rules, [change.key]) == [change]
        assert "resume.allow" not in remedies([change], rules)
