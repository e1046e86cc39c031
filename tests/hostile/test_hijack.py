"""No code and no file of the current directory or of a model takes part: what is started imports its own modules alone."""

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import TINY_PRETRAIN, Capsys, refused

from bertkit.cli import run
from bertkit.launch.world import PACKAGE

# of bertkit, of what it imports first and last, and of what Python needs to start another process
NAMES = ("yaml", "torch", "numpy", "hydra", "json", "socket", "pickle", "struct", "selectors", "tokenizers", "accelerate",
         "multiprocessing", "random")  # fmt: skip
PATHS = {**os.environ, "PYTHONPATH": str(PACKAGE.parents[1])}


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A current directory full of modules that leave a file behind when they are imported."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'hit')!r}, 'a').write({name!r})\n")
    (tmp_path / "bertkit").mkdir()
    (tmp_path / "bertkit" / "__init__.py").write_text(f"open({str(tmp_path / 'hit')!r}, 'a').write('bertkit')\n")
    (tmp_path / "start").mkdir()  # as the command `bertkit`, whose folder comes first
    (tmp_path / "start" / "bertkit.py").write_text(
        "import sys\nif __name__ == '__main__':\n    sys.path.pop(0)\n    from bertkit.cli import main\n    main()\n"
    )
    return tmp_path


def started(trap: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(trap / "start" / "bertkit.py"), *arguments]
    (trap / "tmp").mkdir()
    variables = {**PATHS, "TMPDIR": str(trap / "tmp")}
    done = subprocess.run(command, cwd=trap, env=variables, capture_output=True, text=True, timeout=300)
    assert not list((trap / "tmp").iterdir())  # such as a folder for compiled code, where nothing is compiled
    return done


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [
    ["pretrain", "data_dir={shared}/data", "output_dir=out", *TINY_PRETRAIN, "launch.num_processes=2"],
    ["pretrain", "-m", "data_dir={shared}/data", "output_dir=out/${{seed}}", "seed=1,2", *TINY_PRETRAIN],
    ["prepare", "corpus.path={shared}/in.txt", "output_dir=out", "tokenizer.vocab_size=100", "num_workers=2"],
], ids=["workers", "a sweep", "prepare"])  # fmt: skip
def test_what_is_started_imports_nothing_of_the_current_directory(
    trap: Path, shared: Path, arguments: list[str]
) -> None:
    done = started(trap, *(argument.format(shared=shared) for argument in arguments))
    assert done.returncode == 0, done.stderr
    assert (trap / "out").is_dir()
    assert not (trap / "hit").exists(), (trap / "hit").read_text()


@pytest.mark.slow
def test_python_m_imports_nothing_of_the_current_directory_but_the_package(trap: Path) -> None:
    """Python itself takes a `bertkit` that lies there; everything else comes from where it is installed."""
    shutil.rmtree(trap / "bertkit")
    for name in NAMES:
        if name in sys.stdlib_module_names:  # Python may need them before any line of bertkit
            (trap / f"{name}.py").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "bertkit", "predict", "model_dir=none", "input=-", "output=-"],
        cwd=trap, env=PATHS, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert not (trap / "hit").exists(), (trap / "hit").read_text()


@pytest.mark.slow
def test_a_checkout_starts_workers_of_its_own(tmp_path: Path) -> None:
    """Neither installed nor in PYTHONPATH: found by `-m` in the current directory alone."""
    for name in ("bertkit", "conf"):
        (tmp_path / name).symlink_to(PACKAGE.parents[1] / name)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    prepare = ["prepare", "-m", "corpus.path=none,nothing", "output_dir=out/${corpus.path}"]
    command = [sys.executable, "-m", "bertkit", *prepare]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stderr.count("error: ") == 2, done.stderr
    assert "No module" not in done.stderr


@functools.cache
def _opens() -> list[str]:
    results: list[str] = []  # a hook cannot be taken away, so there is one
    sys.addaudithook(lambda event, values: results.append(str(values[0])) if event == "open" else None)
    return results


def watched_opens() -> list[str]:
    """The names of all files that this process opens from now on."""
    result = _opens()
    result.clear()
    return result


HOSTILE_TASKS = {
    "an absolute file": {"files": {"dev": "/etc/passwd"}},
    "a file above": {"files": {"dev": "../secret.jsonl"}},
    "one of several": {"files": {"dev": ["none.jsonl", "/etc/hostname"]}},
    "a folder elsewhere": {"folders": ["/etc", ".."], "files": {"dev": "passwd"}},
    "a dataset of the hub": {"hub": {"path": "stranger/data", "dev": "validation"}},
    "a file of the current directory": {"files": {"dev": "secret.jsonl"}},
}


@pytest.mark.parametrize("with_data", [False, True], ids=["alone", "with data_dir"])
@pytest.mark.parametrize("name", HOSTILE_TASKS)
def test_a_run_names_nothing_that_is_opened_outside_of_data_dir(
    name: str, with_data: bool, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
) -> None:  # fmt: skip
    shutil.copytree(shared / "tuned", tmp_path / "tuned")
    settings = yaml.safe_load((shared / "tuned" / "config.yaml").read_text())
    for group, change in HOSTILE_TASKS[name].items():
        settings["task"][group] = {**settings["task"][group], **change} if isinstance(change, dict) else change
    (tmp_path / "tuned" / "config.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "secret.jsonl").write_text(json.dumps({"text": "kan", "label": "a"}) + "\n")
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    opened = watched_opens()
    monkeypatch.setattr(socket.socket, "connect", lambda *_: opened.append("a connection"))
    capsys.readouterr()
    code = run(["evaluate", "model_dir=tuned", "device=cpu", *(["data_dir=data"] if with_data else [])])
    refused(code, "task.files.dev=" if with_data else "set data_dir= to a folder with dev.*", capsys)
    assert opened
    assert not {path for path in opened if path.startswith("/etc/") or "secret" in path or "connection" in path}
    monkeypatch.undo()
    mine = [f"model_dir={tmp_path / 'tuned'}", f"task.files.dev={tmp_path / 'secret.jsonl'}", "device=cpu"]
    assert run(["evaluate", *mine]) == 0  # what the user names is read


def test_what_a_user_names_is_no_matter_of_the_run(shared: Path, capsys: Capsys) -> None:
    arguments = [f"model_dir={shared / 'tuned'}", "device=cpu"]
    assert run(["evaluate", *arguments, f"data_dir={shared / 'task'}", "task.files.dev=dev.tsv"]) == 0
    assert run(["predict", *arguments, f"input={shared / 'in.txt'}", "output=-"]) == 0
