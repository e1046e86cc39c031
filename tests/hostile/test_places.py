"""Places where nothing can be written, signals before a command has begun, and marks that editors put into files."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Capsys, refused
from tokenizer_files import saved_model

from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer, load_tokenizer


@pytest.mark.parametrize(("name", "line"), [
    ("/", "output_dir=/: the root of all folders"), ("circle", "output_dir=circle: a link to itself"), ("~", "output_dir={home} is not"),
])  # fmt: skip
def test_output_directories_that_cannot_be(
    name: str, line: str, prepared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mine").write_text("mine")
    (tmp_path / "circle").symlink_to("circle")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for command in (
        ["pretrain", f"data_dir={prepared_dir}", "model=tiny", "steps=1", "schedule.warmup_steps=0"],
        ["export", "model_dir=m"],
    ):
        if command[0] == "pretrain" or name != "~":
            refused(run([*command, f"output_dir={name}"]), line.format(home=tmp_path / "home"), capsys)
    if name == "circle":
        refused(run(["predict", "model_dir=m", "text=kan", "output=circle"]), "output=circle: a link to itself", capsys)
    assert sorted(os.listdir(tmp_path)) == ["circle", "home"]


def test_a_read_only_file_system_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    for output in ("output=o.jsonl", f"output={tmp_path / 'o.jsonl'}"):
        assert run(["predict", "model_dir=m", "text=kan", output]) == 4
        assert capsys.readouterr().err == f"error: {output}: Read-only file system\n"


def test_sigterm_in_the_first_second_has_a_line(prepared_dir: Path, tmp_path: Path) -> None:
    command = ["pretrain", f"data_dir={prepared_dir}", "model=tiny", "steps=9", f"output_dir={tmp_path / 'run'}"]
    with subprocess.Popen([sys.executable, "-m", "bertkit", *command], stderr=subprocess.PIPE, text=True) as process:
        status = Path(f"/proc/{process.pid}/status")
        while (
            not int(status.read_text().split("SigCgt:")[1].split()[0], 16) >> (signal.SIGTERM - 1) & 1
        ):  # not handled yet
            time.sleep(0.001)
        process.terminate()
        assert process.stderr is not None
        assert process.stderr.read() == "error: interrupted before there was anything to save\n"
        assert process.wait() == 130
    assert not (tmp_path / "run").exists()


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = saved_model(tmp_path / "bpe", "byte_level")
    right = load_tokenizer(folder)(["Kan lon"])
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    assert load_tokenizer(folder)(["Kan lon"]) == right
    (tmp_path / "vocab.txt").write_bytes(b"\xef\xbb\xbf" + "".join(f"{token}\n" for token in tokenizer.vocab).encode())
    assert load_tokenizer(tmp_path / "vocab.txt").vocab == tokenizer.vocab


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="it is a folder in which nobody may make another")
def test_a_folder_that_cannot_be_made_is_named_with_its_place(start: Path, tmp_path: Path, capsys: Capsys) -> None:
    """For root, who may write everywhere, the error was "/proc/x: No such file or directory"."""
    (tmp_path / "text.txt").write_text("kan lon.\n")
    commands = (
        ["prepare", f"corpus.path={tmp_path / 'text.txt'}", f"tokenizer.path={start}", "output_dir=/proc/x/y"],
        ["export", f"model_dir={start}", "head=encoder", "output_dir=/proc/x/y"],
        ["embed", f"model_dir={start}", f"input={tmp_path / 'text.txt'}", "output=/proc/x/y.npy"],
    )
    for words in commands:
        code, lines = run(words), capsys.readouterr().err.splitlines()
        assert (code, len(lines)) == (2, 1) or words[0] == "prepare", lines
        pattern = (
            r"error: (/proc/x.*: no folder can be made in /proc|.*: /proc is not writable); choose another (one|folder)"
        )
        assert re.fullmatch(pattern, lines[-1]), lines
