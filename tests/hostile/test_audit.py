"""What a whole life of a model does outside of its own files, seen by Python's own audit: nothing.

prepare, pretrain, resume, finetune, predict, evaluate, export and verify run in one process, with a hook that hears of
every connection, process and unpickled name, and with secrets in the environment. What it has imported is looked at, too.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TINY_FINETUNE, TINY_PRETRAIN, make_text, write_text

AUDITED = """
import json, sys
seen = []
WATCHED = {"socket.connect", "socket.getaddrinfo", "socket.sendto", "subprocess.Popen", "os.exec", "os.system",
           "os.posix_spawn", "os.fork", "os.forkpty", "pickle.find_class"}
def hook(event, args):
    if event in WATCHED:
        if event == "socket.connect" and isinstance(args[1], (str, bytes)):
            return  # of this machine, by a file
        seen.append([event, repr(args[:2])[:300]])
sys.addaudithook(hook)
from bertkit.cli import run
codes, compilers = [], []
for arguments in json.load(open(sys.argv[1])):
    codes.append(run(arguments))
    compilers.append(sorted({"torch._dynamo", "torch.distributed.tensor", "sympy"} & sys.modules.keys()))
sys.__stdout__.flush()
json.dump({"codes": codes, "seen": seen, "compilers": compilers}, open(sys.argv[2], "w"))
"""
CANARIES = {
    **{f"SECRET_{n}": f"canary-{n:02d}-9b1f" for n in range(40)},
    **{
        name: f"canary-{name.lower()}-9b1f"
        for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "PASSWORD",
            "DATABASE_URL", "SSH_AUTH_SOCK", "NETRC", "PGPASSWORD")
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[list[str]]], str]:
    """A folder after typical commands, the audited events, and all printed output."""
    folder = tmp_path_factory.mktemp("life")
    write_text(folder / "text.txt", make_text(61))
    for name in ("train", "dev"):
        rows = [f"{'kan lon' if n % 3 else 'mir rur'} ten\t{'ab'[n % 2]}\n" for n in range(16)]
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "".join(rows))
    pretrain = ["pretrain", "data_dir=data", "output_dir=pre", *TINY_PRETRAIN]
    commands = [
        ["prepare", "corpus.path=text.txt", "output_dir=data", "tokenizer.vocab_size=131", "held_out_prob=0.1"],
        pretrain,
        pretrain,  # done already
        ["pretrain", "data_dir=data", "model_dir=pre", "output_dir=more", *TINY_PRETRAIN[:5]],
        ["finetune", *TINY_FINETUNE, "model_dir=pre", "data_dir=.", "output_dir=fine"],
        ["predict", "model_dir=fine", "input=dev.tsv", "output=out.jsonl"],
        ["embed", "model_dir=pre", "input=text.txt", "output=out.npy"],
        ["evaluate", "model_dir=fine", "data_dir=."],
        ["evaluate", "model_dir=pre", "data_dir=data", "segments.max_seq_length=32"],
        ["export", "checkpoint=fine", "head=task", "output_dir=export"],
        ["verify", "model_dir=export", "output=parity.json"],
        ["finetune", *TINY_FINETUNE, "model_dir=runs/mini", "data_dir=.", "output_dir=no"],
        ["predict", "model_dir=mini", "input=dev.tsv", "output=-"],
    ]
    (folder / "audited.py").write_text(AUDITED)
    (folder / "commands.json").write_text(json.dumps(commands))
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "SLURM_"))}
    command = [sys.executable, "audited.py", "commands.json", "seen.json"]
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
    variables = {**plain, **CANARIES, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads((folder / "seen.json").read_text())
    assert seen["codes"] == [0] * 11 + [2, 2], done.stdout + done.stderr
    return folder, seen, done.stdout + done.stderr


def test_commands_open_no_connection(life: tuple[Path, dict[str, list[list[str]]], str]) -> None:
    assert [event for event in life[1]["seen"] if event[0].startswith("socket.")] == []


def test_commands_start_no_process_but_git(life: tuple[Path, dict[str, list[list[str]]], str]) -> None:
    """A run notes the revision of bertkit's own source; workers that encode text are forks of this process."""
    processes = [args for event, args in life[1]["seen"] if event.startswith(("subprocess", "os."))]
    assert [args for args in processes if not args.startswith("('git', ['git', '-C',") and args != "()"] == []


def test_commands_unpickle_nothing(life: tuple[Path, dict[str, list[list[str]]], str]) -> None:
    assert [event for event in life[1]["seen"] if event[0] == "pickle.find_class"] == []


def test_no_command_imports_the_compiler(life: tuple[Path, dict[str, list[list[str]]], str]) -> None:
    """torch._dynamo and sympy take seconds of every start, and seventy megabytes; on a CPU only `export` and `verify` need them, for `transformers`."""
    of_ours, of_export = life[1]["compilers"][:9], life[1]["compilers"][9]
    assert [names for names in of_ours if names] == []
    assert of_export


def test_no_secret_is_written(life: tuple[Path, dict[str, list[list[str]]], str]) -> None:
    folder, _, printed = life
    assert len(CANARIES) == 50
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 40
    assert b"9b1f" not in printed.encode()
    assert [str(path) for path in files if b"-9b1f" in path.read_bytes()] == []
