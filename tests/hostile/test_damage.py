"""Files of a run, a model or a dataset that are damaged, endless or cut short: one line, never other weights in silence."""

import json
import os
import random
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import TINY_PRETRAIN, Capsys, make_text, mounted, write_text
from safetensors.torch import load_file

from bertkit.cli import run


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


def scramble(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(path.stat().st_size))


def log_a_word(path: Path) -> None:
    path.write_text(path.read_text().replace('"mlm_loss": ', '"mlm_loss": "x", "old": ', 1))


def make_sparse(path: Path) -> None:
    size = 40 * 10**9
    facts = {"dtype": "F32", "shape": [size // 104, 26], "data_offsets": [0, size // 104 * 104]}
    header = json.dumps({"bert.embeddings.word_embeddings.weight": facts}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + facts["data_offsets"][1])  # type: ignore[index]


def pickled(tensor: torch.Tensor, kind: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        tensors = {**load_file(path), "bert.embeddings.word_embeddings.weight": tensor}
        path.unlink()
        torch.save(tensors, path)
        with zipfile.ZipFile(path) as stored, zipfile.ZipFile(path.with_name("pytorch_model.bin"), "w", kind) as packed:
            for name in stored.namelist():
                packed.writestr(name, stored.read(name))
        path.unlink()

    return write


WEIGHTS = "model/model.safetensors"
STRIDE_0 = pickled(torch.zeros(1, 26).expand(60_000_000, 26), zipfile.ZIP_STORED)
DAMAGES: list[tuple[str, Callable[[Path], None], str, int, str]] = [
    ("cache/*/piece_start", scramble, "pretrain", 4, "cache/epoch-00000-"),
    ("cache/*/piece_start", flip, "pretrain", 4, "cache/epoch-00000-"),
    ("cache/*/piece_start", lambda path: os.truncate(path, 8), "pretrain", 4, "cache/epoch-00000-"),
    ("metrics.jsonl", log_a_word, "pretrain", 2, "metrics.jsonl:1: mlm_loss='x'"),
    ("metrics.jsonl", log_a_word, "compare", 2, "metrics.jsonl:1: mlm_loss='x'"),
    ("eval.json", lambda path: path.write_text("[1]") and None, "compare", 2, "eval.json"),
    (WEIGHTS, flip, "predict", 4, WEIGHTS),
    (WEIGHTS, make_sparse, "predict", 2, "40.0 GB of memory"),
    (WEIGHTS, STRIDE_0, "predict", 2, "pytorch_model.bin"),
    (WEIGHTS, pickled(torch.zeros(72, 26000), zipfile.ZIP_DEFLATED), "predict", 2, "pytorch_model.bin"),
    ("checkpoints", lambda path: (path / "step-٣²").mkdir(), "pretrain", 0, ""),
]


@pytest.mark.parametrize(("name", "damage", "command", "code", "words"), DAMAGES)
def test_damaged_run_files_are_refused_in_one_line(
    name: str, damage: Callable[[Path], None], command: str, code: int, words: str,
    tiny_runs: Path, tmp_path: Path, capsys: Capsys,
) -> None:  # fmt: skip
    copy = shutil.copytree(tiny_runs / "pre", tmp_path / "run")
    damage(next(copy.glob(name)))
    options = {
        "pretrain": [f"data_dir={tiny_runs / 'data'}", f"output_dir={copy}", *TINY_PRETRAIN, "steps=3"],
        "compare": [f"runs=[{copy},{tiny_runs / 'pre'}]", f"output={tmp_path / 'page.html'}"],
        "predict": [f"model_dir={copy / 'model'}", "text=kan [MASK]", "device=cpu"],
    }
    capsys.readouterr()
    assert run([command, *options[command]]) == code
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == (code > 0)
    assert all(words in error and len(error) < 400 for error in errors)


def test_a_token_file_that_is_cut_short_while_training(python: Path, prepared_dir: Path, tmp_path: Path) -> None:
    data = shutil.copytree(prepared_dir, tmp_path / "data")
    more = ["steps=100000", "log.every_steps=100", "checkpoint.every_steps=100000", "evaluation.every_steps=100000"]
    command = [
        python,
        "-m",
        "bertkit",
        "pretrain",
        f"data_dir={data}",
        f"output_dir={tmp_path / 'run'}",
        *TINY_PRETRAIN,
    ]
    with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("step 1/"))
        os.truncate(data / "train" / "tokens-00000.bin", 0)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 4
    assert errors.splitlines() == [
        f"error: cut short while in use: {data}/train/tokens-00000.bin; restore it, and repeat the command"
    ]


def test_a_disk_that_fills_while_a_dataset_is_made(tmp_path: Path, capsys: Capsys) -> None:
    corpus = write_text(tmp_path / "text.txt", make_text(199))
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=160k", "tmpfs") as disk:
        arguments = [f"corpus.path={corpus}", f"output_dir={disk / 'data'}", "tokenizer.vocab_size=131"]
        assert run(["prepare", *arguments]) == 4
        assert f"error: {disk}/data" in capsys.readouterr().err
        assert list(disk.iterdir()) == []
