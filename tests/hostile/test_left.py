"""Nothing is left behind: no folder after a refusal, no half of a file on a full disk, no process."""

import resource
from pathlib import Path

import pytest
from cases import Case, check
from conftest import Capsys

from bertkit.base.errors import InputError
from bertkit.base.files import building_dir
from bertkit.cli import run
from bertkit.run.opening import lock_run
from bertkit.run.resume_rules import PRETRAIN

CASES = [
    Case("pretrain without data", ["pretrain", "data_dir=none", "output_dir=runs/a/b", "steps=2", "device=cpu"],
         "none: no such directory"),
    Case("pretrain of too many processes", ["pretrain", "data_dir={shared}/data", "output_dir=runs/a", "steps=2", "model=tiny",
         "batch.sequences=1", "launch.num_processes=2", "schedule.warmup_steps=1", "device=cpu"], "batch.sequences"),
    Case("finetune on nothing", ["finetune", "task=sequence", "data_dir={here}", "model_dir={shared}/run",
                                 "output_dir=runs/a", "device=cpu"], "no train file"),
    Case("export of a head that is not there", ["export", "model_dir={shared}/run", "head=task", "output_dir=a/b"],
         "has no task head"),
    Case("prepare of nothing", ["prepare", "corpus.path=empty.txt", "output_dir=a/b"], "no text", files={"empty.txt": ""}),
    Case("predict of a broken row", ["predict", "model_dir={shared}/tuned", "input=in.jsonl", "output=a/b/o.jsonl",
                                     "device=cpu"], "in.jsonl:1", files={"in.jsonl": "{\n"}),
    Case("embed of a broken row", ["embed", "model_dir={shared}/run", "input=in.jsonl", "output=a/b/o.npy", "device=cpu"],
         "in.jsonl:1", files={"in.jsonl": "{\n"}),
    Case("evaluate of nothing", ["evaluate", "model_dir={shared}/run", "data_dir=none", "device=cpu"], "no such directory"),
]  # fmt: skip
QUICK = ("prepare of nothing", "predict of a broken row", "embed of a broken row")


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=[] if case.name in QUICK else [pytest.mark.slow]) for case in CASES]
)
def test_refused_commands_leave_no_files(case: Case, python: Path, tmp_path: Path, shared: Path) -> None:
    check(case, python, tmp_path, shared)


def test_a_run_that_is_refused_after_its_folder_was_made_leaves_none(tmp_path: Path) -> None:
    def begin(directory: Path, with_checkpoint: bool) -> None:
        with lock_run(directory, {}, {"steps": 1}, {}, PRETRAIN, []):
            (directory / "cache").mkdir()
            if with_checkpoint:
                (directory / "checkpoints" / "step-00000001").mkdir(parents=True)
            raise InputError("refused")

    for name, is_there in (("a/b", False), ("c", True)):
        with pytest.raises(InputError, match="refused"):
            begin(tmp_path / name, is_there)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]
    assert (tmp_path / "c" / "manifest.json").is_file()
    (tmp_path / "d").mkdir()  # was there before
    with pytest.raises(InputError, match="refused"):
        begin(tmp_path / "d", False)
    assert list((tmp_path / "d").iterdir()) == []


def test_a_build_that_fails_takes_the_folders_above_with_it(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()

    def fail(final: Path) -> None:
        with building_dir(final):
            raise InputError("refused")

    for final in (tmp_path / "a" / "b" / "c", tmp_path / "there" / "b" / "c"):
        with pytest.raises(InputError, match="refused"):
            fail(final)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["there"]


def test_a_file_that_may_not_grow_leaves_no_half(shared: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "in.txt").write_text("kan lon\n" * 400)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for command, model, name in (("predict", "tuned", "o.jsonl"), ("embed", "run", "o.npy"), ("embed", "run", "o.parquet")):  # fmt: skip
        arguments = [f"model_dir={shared / model}", f"input={tmp_path / 'in.txt'}", f"output={tmp_path / 'out' / name}"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            code = run([command, *arguments, "device=cpu"])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        printed = capsys.readouterr().err.splitlines()[-1]
        assert (code, printed) == (4, f"error: {tmp_path / 'out' / name}: File too large")
        assert not (tmp_path / "out").exists()
