"""Words of other tools: each is the setting that it means, dashed or not and from Python, or is answered with what to set."""

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import yaml
from conftest import Capsys, refused
from task_files import write

from bertkit import COMMANDS
from bertkit.base.typed_settings import dotted_keys
from bertkit.cli import _parse, run
from bertkit.settings.reading import synonyms
from bertkit.settings.reading.names import settings_of, settings_of_tasks, usual_keys
from bertkit.settings.reading.overrides import read_words
from bertkit.settings.reading.values import read_values

PRETRAIN = "pretrain data_dir=d output_dir=o"
FINETUNE = "finetune task=sst2 model_dir=m output_dir=o"
TAKEN = [  # a command; a word of another tool and its value; what is set
    (PRETRAIN, "learning_rate", 3e-4, ("optimizer.peak_learning_rate", 3e-4)),
    (PRETRAIN, "num_train_epochs", 3, ("num_epochs", 3)),
    (FINETUNE, "num_train_epochs", 3, ("num_epochs", 3)),
    (PRETRAIN, "max_steps", 70, ("steps", 70)),
    (PRETRAIN, "do_whole_word_mask", True, ("masking", "whole_word")),
    (PRETRAIN, "wandb", True, ("log.trackers", "wandb")),
    (PRETRAIN, "lr_scheduler_type", "cosine", ("schedule", "cosine")),
    (PRETRAIN, "mixed_precision", "fp16", ("precision", "fp16")),  # and not bf16
    (FINETUNE, "bf16", "yes", ("precision", "bf16")),
    (FINETUNE, "train_file", "a.tsv", ("task.files.train", f"{Path.cwd()}/a.tsv")),
    (PRETRAIN, "init_checkpoint", "m", ("model_dir", "m")),
    (PRETRAIN, "checkpoint", "m", ("model_dir", "m")),  # although there are settings checkpoint.*
    ("prepare corpus.path=x output_dir=o", "vocab_size", 5000, ("tokenizer.vocab_size", 5000)),
    ("predict model_dir=m input=i", "max_length", 64, ("task.max_seq_length", 64)),
    ("embed model_dir=m input=i output=-", "column", "c", ("text_column", "c")),
    ("evaluate model_dir=m data_dir=d", "batch_size", 8, ("batch_sequences", 8)),
    ("export model_dir=m", "out", "o", ("output_dir", "o")),
]
ANSWERED = [  # words whose meaning depends on other settings, or that are no setting here
    (f"{PRETRAIN} gradient_accumulation_steps=4", "'gradient_accumulation_steps'; here it is batch.micro_sequences=8; the "
     "global batch is batch.sequences=32, over 1 process"),
    (f"{FINETUNE} gradient_accumulation_steps=4", "batch.micro_sequences=8; the global batch is batch.sequences=32, over 1 process"),
    (f"{FINETUNE} batch.sequences=30 gradient_accumulation_steps=4 launch.num_processes=2",
     "batch.micro_sequences=4; the global batch is batch.sequences=30, over 2 processes"),
    (f"{FINETUNE} max_steps=500", "'max_steps'; here it is num_epochs=16000/N for N training examples"),
    (f"{FINETUNE} fp16=false", "'fp16'; it is so unless precision=fp16 is set; leave it out"),
    (f"{FINETUNE} resume_from_checkpoint=true", "repeat its command with the same output_dir="),
    (f"{FINETUNE} do_train=true", "leave it out"),
    (f"{PRETRAIN} max_predictions_per_seq=20", "masking.probability= of them; only the instances of `bertkit prepare segments=google`"),
    (f"{PRETRAIN} bert_config_file=bert/bert_config.json", "here it is model.hidden_size=32 model.num_hidden_layers=3; for a "
     "model with weights set model_dir=bert"),
    (f"{PRETRAIN} precision=float16", "precision=float16; here it is precision=fp16"),
    (f"{PRETRAIN} precision=tf32", "precision=tf32; fp32 is full precision here, without TF32"),
    (f"{PRETRAIN} precision=mixed", "precision=mixed; set precision=bf16, or precision=fp16 on a GPU without bfloat16"),
    ("evaluate model_dir=m data_dir=d task=blimp", "task=blimp; here it is task=minimal_pairs"),
    ("embed model_dir=m text=hello", "text=hello: the column of a file, which is missing; set input=, or pass texts on standard input"),
    ("embed model_dir=m output=- 'How are you?'", "'How are you?': pass texts on standard input"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "word", "value", "settings"), TAKEN)
def test_a_word_of_another_tool_is_the_setting_in_all_its_forms(
    command: str, word: str, value: str | float | bool, settings: tuple[str, object]
) -> None:
    name, option = command.split()[0], f"--{word.replace('_', '-')}"
    text = f"{word}={str(value).lower()}"
    for typed in ([f"{option}={str(value).lower()}"], [option] if value is True else [option, str(value)]):
        assert _parse([*command.split(), *typed]).words == [*command.split()[1:], text]
    for taken in (
        read_words(name, [text]),
        read_words(name, [f"{word.upper()}={str(value).lower()}"]),
        read_values(name, {word: value}),
    ):
        assert [(one.key, one.value) for one in taken] == [settings]


@pytest.mark.parametrize(("command", "answer"), ANSWERED)
def test_a_word_that_is_no_setting_has_an_answer(
    command: str, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        "bert/bert_config.json",
        '{"hidden_size": 32, "num_hidden_layers": 3, "hidden_act": "gelu", "vocab_size": 9}',
    )
    refused(run(shlex.split(command)), answer, capsys)
    *words, last = shlex.split(command)
    if (found := re.fullmatch("([a-z0-9_]+)=(.*)", last)) and "unknown key" in answer:
        refused(run([*words, f"--{found[1]}", found[2]]), answer, capsys)


def test_batches_on_one_device_make_a_global_batch(capsys: Capsys) -> None:
    words = "--per_device_train_batch_size 7 --gradient_accumulation_steps 3 --launch.num_processes=2"
    assert run(shlex.split(f"{PRETRAIN} {words}")) == 2
    lines = capsys.readouterr().err.splitlines()
    answer = "here it is batch.micro_sequences=7; the global batch is batch.sequences=42, over 2 processes"
    assert len(lines) == 2 == sum(line.endswith(answer) for line in lines), lines


def test_every_row_of_the_table_is_a_setting_of_ours() -> None:
    table = yaml.safe_load(Path(synonyms.__file__).with_name("hints.yaml").read_text(encoding="utf-8"))
    rows = [
        (setting, name) for row, names in table["settings"].items() for setting in row.split() for name in names.split()
    ]
    keys = {key for command in COMMANDS for key in (*usual_keys(command), *settings_of(command))}
    keys |= {f"task.{key}" for key in dotted_keys(settings_of_tasks())} | {
        "segments.next_sentence",
        "segments.dupe_factor",
    }
    assert len(rows) > 150
    assert {setting.partition("=")[0] for setting, _ in rows} - keys == set()
    assert {*table["commands"]} <= {*COMMANDS}
    for section in ("settings", "commands"):  # a name that is in two rows would have one of the meanings only
        count = Counter(name for names in table[section].values() for name in names.split())
        assert [name for name in count if count[name] > 1] == []
