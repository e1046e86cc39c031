"""Nothing of a user's is lost: outputs that are there, names that look like bertkit's own, links, pipes and devices."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cases import Case, Content, check, listing
from conftest import TINY_PRETRAIN, make_text, refused

from bertkit.cli import run

THERE = "is there already; choose another file, or set overwrite=true"
PREDICT = ["predict", "model_dir={shared}/tuned", "input={shared}/in.txt", "device=cpu"]
EMBED = ["embed", "model_dir={shared}/run", "input={shared}/in.txt", "device=cpu"]
PREPARE = ["prepare", "corpus.path={here}/text.txt", "output_dir=out", "tokenizer.vocab_size=100"]
EXPORT = ["export", "model_dir={shared}/run", "output_dir=out"]
TEXT = "\n\n".join("\n".join(document) for document in make_text(13))


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def folder(path: Path) -> None:
    path.mkdir()
    (path / "notes").write_text("mine")


def lines_written(path: Path, done: subprocess.CompletedProcess[str]) -> None:
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == 2


HELD: Mapping[str, Mapping[str, Content]] = {  # what a user has of the names that bertkit would take
    "a folder": {"out.partial": folder},
    "a link to a folder": {"mine": folder, "out.partial": link_to("mine")},
    "a file": {"out.partial": "mine"},
}
REFUSED = [
    Case("predict over notes", [*PREDICT, "output=notes.jsonl"], THERE, files={"notes.jsonl": "mine"}),
    Case("predict over a linked file", [*PREDICT, "output=o.jsonl", "overwrite=true"], "is a link to an existing file",
         files={"notes": "mine", "o.jsonl": link_to("notes")}),
    Case("predict over a model's file", [*PREDICT, "output={shared}/tuned/model/config.json", "overwrite=true"],
         "tuned/model is a model, whose files stay as they are"),
    Case("predict over weights", [*PREDICT, "output={shared}/tuned/model/model.safetensors"], r"output=.*model\.safetensors"),
    Case("predict beside weights", [*PREDICT, "output={shared}/tuned/model/1_Pooling/new.jsonl"], "tuned/model is a model"),
    Case("an output of view in a model", ["view", "model_dir={shared}/tuned", "text=kan", "overwrite=true",
                                          "output={shared}/tuned/model/tokenizer.json"], "tuned/model is a model"),
    Case("an export in a model", ["export", "model_dir={shared}/run", "output_dir={shared}/tuned/model/new"],
         "tuned/model is a model"),
    Case("predict over a checkpoint's file",
         [*PREDICT, "output={shared}/run/checkpoints/step-00000002/state.json", "overwrite=true"],
         "step-00000002 is a model"),
    Case("predict over a run's file, which is wanted", [*PREDICT, "output={shared}/tuned/metrics.jsonl", "overwrite=true"],
         "belongs to a run"),
    Case("predict over its input", ["predict", "model_dir={shared}/tuned", "input=in.txt", "output=./in.txt",
                                    "overwrite=true"], "is the input", files={"in.txt": "kan"}),
    Case("predict into a file as a folder", [*PREDICT, "output=notes/o.jsonl"], "notes is a file; expected a folder",
         files={"notes": "mine"}),
    Case("embed over vectors", [*EMBED, "output=v.npy"], THERE, files={"v.npy": "mine"}),
    Case("embed into a pipe that cannot be sought", [*EMBED, "output=v.npy"], r"goes into files alone; take \.jsonl",
         files={"v.npy": lambda path: (os.mkfifo(path), os.open(path, os.O_RDWR))[0]}),
    Case("verify over notes", ["verify", "model_dir={shared}/run", "output=notes.json"], "not JSON|not a certificate",
         files={"notes.json": "mine"}),
    Case("dump over notes", [*PREPARE, "segments=google", "dump=notes.json"], THERE,
         files={"notes.json": "mine", "text.txt": TEXT}),
    Case("a lock that is a link", ["pretrain", "data_dir={shared}/data", "output_dir=out", "steps=2", "device=cpu",
                                   "schedule.warmup_steps=1", "model=tiny"], r"\.bertkit\.lock was not made by bertkit",
         files={"notes": "mine", "out/.bertkit.lock": link_to("../notes")}),
    *(Case(f"prepare beside {name}", PREPARE, r"out\.partial is there already", files={**files, "text.txt": TEXT})
      for name, files in HELD.items()),
    *(Case(f"export beside {name}", EXPORT, r"out\.partial is there already", files=files, seconds=60.0)
      for name, files in HELD.items()),
    Case("predict beside a partial file", [*PREDICT, "output=o.jsonl"], THERE, files={"o.jsonl.partial": "mine"}),
    Case("predict beside a partial link", [*PREDICT, "output=o.jsonl", "overwrite=true"], THERE,
         files={"notes": "mine", "o.jsonl.partial": link_to("notes")}),
]  # fmt: skip
DONE = [
    # by links to devices: what would replace them, with the rights to, must not cost the machine its own
    Case("predict to standard output", [*PREDICT, "output=o.jsonl"], code=0, more=lines_written,
         files={"o.jsonl": link_to("/dev/stdout")}),
    Case("predict to an open file", [*PREDICT, "output=o.jsonl"], code=0, more=lines_written,
         files={"o.jsonl": link_to("/dev/fd/1")}),
    Case("predict to nowhere", [*PREDICT, "output=o.jsonl"], code=0, files={"o.jsonl": link_to("/dev/null")}),
]  # fmt: skip
QUICK = ("predict over notes", "predict over a model's file", "an output of view in a model", "an export in a model", "predict over a linked file", "prepare beside a link to a folder",
         "predict beside a partial link", "predict to standard output", "a lock that is a link")  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if case.name in QUICK else [pytest.mark.slow])
        for case in REFUSED + DONE
    ],
)
def test_refused_outputs_leave_existing_files_unchanged(case: Case, python: Path, tmp_path: Path, shared: Path) -> None:
    before = listing(shared)
    check(case, python, tmp_path, shared)
    assert listing(shared) == before


def test_output_into_named_pipe_keeps_pipe(shared: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        arguments = [f"model_dir={shared / 'tuned'}", f"input={shared / 'in.txt'}", "device=cpu"]
        assert run(["predict", *arguments, f"output={tmp_path / 'pipe'}"]) == 0
        assert len(reader.communicate(timeout=60)[0].splitlines()) == 2
    assert (tmp_path / "pipe").is_fifo()


def test_output_to_full_device_is_a_storage_error(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        f"model_dir={shared / 'tuned'}",
        f"input={shared / 'in.txt'}",
        f"output={tmp_path / 'full'}",
        "device=cpu",
    ]
    (tmp_path / "full").symlink_to("/dev/full")
    assert run(["predict", *arguments]) == 4
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {tmp_path / 'full'}: No space left on device"
    assert [path.name for path in tmp_path.iterdir() if path.is_symlink()] == ["full"]


def test_an_output_of_a_link_that_is_a_folder_stays_one(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    command = ["prepare", f"corpus.path={tmp_path / 'text.txt'}", f"output_dir={tmp_path / 'out'}"]
    assert run([*command, "tokenizer.vocab_size=100"]) == 0
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "disk" / "manifest.json").is_file()


def test_folders_of_a_run_that_are_links_are_not_followed(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("epoch-00000-0123456789ab.here-1.partial", "notes.partial"):
        (tmp_path / "mine" / name).write_text("mine")
    before = listing(tmp_path / "mine")
    shutil.copytree(shared / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "cache", ignore_errors=True)
    (tmp_path / "run" / "cache").symlink_to(tmp_path / "mine")
    again = ["pretrain", f"data_dir={shared / 'data'}", f"output_dir={tmp_path / 'run'}", *TINY_PRETRAIN]
    (tmp_path / "run" / "eval.json").unlink()  # not done yet
    capsys.readouterr()
    refused(run(again), "cache in it is a link", capsys)
    assert listing(tmp_path / "mine") == before
