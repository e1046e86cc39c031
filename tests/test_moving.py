"""The guide for those who come from other tools: each row of its tables is run, and agrees with what bertkit does with these words."""

import os
import re
import shlex
from pathlib import Path

import pytest
import transformers
from conftest import Capsys, small_model

import bertkit
from bertkit import COMMANDS, export_model
from bertkit.cli import _parse, run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.settings.reading.overrides import read_words
from bertkit.settings.reading.synonyms import command_meant

PAGE = Path(__file__).resolve().parents[1] / "recipes/from_other_tools/README.md"
ROWS = re.findall(r"^\| `(.*?)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
SCRIPTS = [row for row in ROWS if row[0].endswith(".py")]
PYTHON = [row for row in ROWS if row[0].endswith(")")]
WORDS = [row for row in ROWS if row not in (*SCRIPTS, *PYTHON)]
NEEDED = {  # what a command needs, unless a row sets it
    "prepare": "corpus.path=x output_dir=o",
    "pretrain": "data_dir=d output_dir=o",
    "finetune": "task=sst2 model_dir=m output_dir=o",
    "glue": "data_dir=d model_dir=m output_dir=o",
    "embed": "model_dir=m input=i output=o",
}
CONTEXT = ("task=", "segments=", "corpus=")  # options on which the meaning of the other words depends


def composed(command: str, words: list[str], capsys: Capsys, absent: str = "") -> tuple[int, str, list[str]]:
    """Compose the settings of a command with its needs; return its code, the settings, and the errors."""
    needed = [word for word in NEEDED[command].split() if f"{word.partition('=')[0]}=" not in absent]
    code = run([command, *needed, *words, "--cfg", "job"])
    printed = capsys.readouterr()
    return code, printed.out, [line for line in printed.err.splitlines() if line.startswith("error: ")]


def test_the_guide_has_rows_of_every_kind() -> None:
    assert (len(SCRIPTS), len(WORDS), len(PYTHON)) == (13, 100, 5)


@pytest.mark.parametrize(("script", "meant"), SCRIPTS)
def test_the_command_of_a_script(script: str, meant: str, capsys: Capsys) -> None:
    commands = [shlex.split(words) for words in re.findall(r"`(.*?)`", meant)]
    assert command_meant(script) in [f"here it is bertkit {command}" for command, *_ in commands]
    for command, *words in commands:
        assert composed(command, words, capsys, absent=" ".join(words))[0] == 0


@pytest.mark.parametrize(("theirs", "ours"), WORDS)
def test_the_words_of_another_tool(theirs: str, ours: str, capsys: Capsys) -> None:
    """They set what our words set, or are refused with our words, or with the answer that the guide gives."""
    code, advice = re.findall(r"`(.*?)`", ours)[0].replace("$PWD", os.getcwd()), re.findall(r"\*(.*)\*$", ours)
    command, *words = shlex.split(code)
    assert command in COMMANDS
    ours_composed = composed(command, words, capsys, absent=code)
    assert ours_composed[0] == 0, ours_composed
    keys = {one.key for one in read_words(command, _parse([command, *shlex.split(theirs)]).words)}
    context = [word for word in words if word.startswith(CONTEXT) and word.partition("=")[0] not in keys]
    theirs_composed = composed(command, [*context, *shlex.split(theirs)], capsys, absent=code)
    if advice or theirs_composed[0] != 0:
        assert theirs_composed[0] == 2
        errors = theirs_composed[2]
        expected = advice or [word for word in words if word not in context]
        assert all(any(text in line for line in errors) for text in expected), errors
        assert all(any(text in line for text in expected) for line in errors), errors
    else:
        assert theirs_composed[1] == ours_composed[1]


@pytest.mark.slow  # importing pipelines takes seconds
def test_the_functions_of_transformers(tmp_path: Path, tokenizer: Tokenizer) -> None:
    directory = export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path / "model")
    for number, (left, right) in enumerate(PYTHON):
        theirs = {
            name: getattr(transformers, name) for name in re.findall(r"^\w+", left) if hasattr(transformers, name)
        }
        theirs |= {
            "DIR": str(directory),
            "OUT": str(tmp_path / f"theirs{number}"),
            "tokenizer": transformers.AutoTokenizer.from_pretrained(directory),
            "model": transformers.AutoModelForMaskedLM.from_pretrained(directory),
        }
        eval(left, theirs)
        eval(right.strip("`"), {"bertkit": bertkit, "DIR": directory, "OUT": tmp_path / f"ours{number}"})
    assert (tmp_path / "ours3/model.safetensors").exists()
    assert (tmp_path / "theirs3/model.safetensors").exists()
