"""Every command of the README and the recipes is run; training is shortened.

The recipes run in a copy that needs no installation; as they are installed: pytest -m slow tests/test_readme.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import make_text, small_config, write_text

from bertkit import export_model
from bertkit.config import build
from bertkit.data.tokenizer import train_wordpiece
from bertkit.model.heads import BertWithHeads
from bertkit.settings.compose import compose
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train.log import read_metrics

ROOT = Path(__file__).resolve().parents[1]
FEWER_STEPS = ["steps=12", "schedule.warmup_steps=2", "evaluation.every_steps=12", "checkpoint.every_steps=12"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_tour(tmp_path: Path, python: Path) -> None:
    commands = [shlex.split(line) for block in blocks("bash") for line in block.splitlines()]
    tour = [command for command in commands if command[0] == "bertkit"]
    assert [command[1] for command in tour] == ["prepare", "pretrain", "evaluate", "export", "verify"]
    for _, stage, *arguments in tour:
        more = FEWER_STEPS if stage == "pretrain" else []
        command = [python, "-m", "bertkit", stage, *arguments, *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    (snippet,) = blocks("python")
    done = subprocess.run([python, "-c", snippet], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("torch.Size([2, ")
    for name in ("runs/tiny", "runs/tiny-mlm", "runs/tiny-parity.json"):
        assert (tmp_path / name).exists()


def test_the_two_commands_exist_and_nothing_else_is_promised() -> None:
    commands = [line for block in blocks("bash") for line in block.splitlines()]
    assert [line for line in commands if not line.startswith("bertkit")] == [
        "recipes/quickstart/run.sh",
        "tests/run.sh",
    ]
    assert all(os.access(ROOT / name, os.X_OK) for name in ("recipes/quickstart/run.sh", "tests/run.sh", ".ci/run"))


# name -> what the environment needs beside RUN_DIR, the last of them asked for first; the arguments that shorten training; how
# often it says that something is done already; what it gives
TINY = ["steps=10", "batch.sequences=8", "evaluation.max_sequences=8", "device=cpu"]
SHORT = ["num_epochs=1", "batch.sequences=4", "device=cpu"]
WINDOWS = ["task.max_seq_length=32", "task.spans.window_step=8", "task.spans.max_query_length=8"]
PARITY = "*/parity.json"
RECIPES: dict[str, tuple[tuple[str, ...], list[str], int, str]] = {
    "quickstart": ((), FEWER_STEPS, 3, PARITY),
    "pretrain_base": (("CORPUS",), [*TINY, "model=tiny", "schedule.warmup_steps=2"], 3, PARITY),
    "pretrain_large_lamb": (("CORPUS",), [*TINY, "model=tiny"], 4, PARITY),
    "multi_host": (("CORPUS",), [*TINY, "model=tiny", "schedule.warmup_steps=2"], 3, PARITY),
    "continue_pretraining": (("CORPUS", "MODEL_DIR"), [*TINY, "schedule.warmup_steps=2"], 3, PARITY),
    "glue": (("DATA_DIR", "MODEL_DIR"), ["tasks=[rte]", "seeds=[0,1]", *SHORT], 2, "glue.md"),
    "squad": (("DATA_DIR", "MODEL_DIR"), [*WINDOWS, *SHORT], 2, PARITY),
    "ner": (("DATA_DIR", "MODEL_DIR"), ["task.max_seq_length=32", *SHORT], 2, PARITY),
}


def test_every_recipe_is_known_and_says_what_it_takes() -> None:
    assert sorted(path.name for path in (ROOT / "recipes").iterdir()) == sorted([*RECIPES, "prepare_on_dask"])
    for name in [*RECIPES, "prepare_on_dask"]:  # the last is in tests/stages/test_prepare_workers.py
        text = (ROOT / "recipes" / name / "README.md").read_text(encoding="utf-8")
        assert all(word.lower() in text.lower() for word in ("**run**", "hardware", "time", "disk", "metrics")), name
        assert 10 <= len((ROOT / "recipes" / name / "run.sh").read_text(encoding="utf-8").splitlines()) <= 30
        more = {"multi_host": ["slurm.sh"], "prepare_on_dask": ["prepare.py"]}.get(name, [])
        assert {path.name for path in (ROOT / "recipes" / name).iterdir()} == {"README.md", "run.sh", *more}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the recipes ask the user for: text, a model with its tokenizer, and the files of a task of each shape."""
    folder = tmp_path_factory.mktemp("inputs")
    corpus = write_text(folder / "text.txt", make_text(61))
    model = folder / "model"
    documents = make_text(61)
    tokenizer = train_wordpiece(lambda: (s for d in documents for s in d), 131, lowercase=True, min_frequency=2)
    config = dataclasses.replace(small_config(tokenizer.vocab_size), max_position_embeddings=128)
    export_model(BertWithHeads(config), tokenizer, model)
    return {"CORPUS": str(corpus), "MODEL_DIR": str(model), "DATA_DIR": str(write_tasks(folder / "tasks"))}


def write_tasks(folder: Path) -> Path:
    """RTE, SQuAD and CoNLL-2003 as they are written, some ten examples each."""
    sentences = [document[0].rstrip(".") for document in make_text(11)]
    for name in ("RTE", "squad", "conll2003"):
        (folder / name).mkdir(parents=True)
    for split, conll in (("train", "eng.train"), ("dev", "eng.testa")):
        rows = [f"{n}\t{s}\t{s}\t{('entailment', 'not_entailment')[n % 2]}" for n, s in enumerate(sentences)]
        (folder / "RTE" / f"{split}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *rows, ""]))
        questions = [
            {"context": text, "qas": [{"id": f"{split}{n}", "question": text[:9],
                                       "answers": [{"text": text.split()[0], "answer_start": 0}]}]}
            for n, text in enumerate(sentences)
        ]  # fmt: skip
        content = {"version": "1.1", "data": [{"title": "made up", "paragraphs": questions}]}
        (folder / "squad" / f"{split}-v1.1.json").write_text(json.dumps(content))
        tagged = ["".join(f"{w} {('O', 'I-PER')[n == 0]}\n" for n, w in enumerate(s.split())) for s in sentences]
        (folder / "conll2003" / conll).write_text("\n".join(tagged))
    return folder


@pytest.fixture
def checkout(tmp_path: Path, python: Path) -> Path:
    """The recipes beside an installation that starts at once."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "recipes", root / "recipes")
    for path, text in (
        (root / ".venv" / "bin" / "bertkit", f'#!/bin/sh\nexec {python} -m bertkit "$@"\n'),
        (root / "docker" / "install.sh", ""),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    return root


def check_recipe(recipe: str, root: Path, run_dir: Path, inputs: dict[str, str]) -> None:
    needs, arguments, num_done, given = RECIPES[recipe]
    environment = {**os.environ, "RUN_DIR": str(run_dir), **{name: inputs[name] for name in needs}}
    outputs = []
    for _ in range(2):  # again: done already
        command = [root / "recipes" / recipe / "run.sh", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert "done already" not in outputs[0]
    assert outputs[1].count("done already") == num_done
    (path,) = run_dir.glob(given)
    assert path.is_file()


LONG = ("continue_pretraining", "glue", "multi_host", "pretrain_base", "pretrain_large_lamb", "squad")  # alike


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in RECIPES]
)
def test_recipes(recipe: str, checkout: Path, tmp_path: Path, inputs: dict[str, str]) -> None:
    check_recipe(recipe, checkout, tmp_path / "run", inputs)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_as_they_are_installed(recipe: str, tmp_path: Path, inputs: dict[str, str]) -> None:
    check_recipe(recipe, installed(), tmp_path / "run", inputs)


def installed() -> Path:
    if not any((ROOT / ".venv").glob(".bertkit-installed*")):
        pytest.skip("recipes install into .venv, which is not there; run tests/run.sh")
    return ROOT


@pytest.mark.parametrize("recipe", [name for name, (needs, *_) in RECIPES.items() if needs])
def test_a_recipe_without_its_input_says_what_to_set(recipe: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("CORPUS", "MODEL_DIR", "DATA_DIR")}
    script = ROOT / "recipes" / recipe / "run.sh"
    environment["RUN_DIR"] = str(tmp_path / "run")
    done = subprocess.run([script], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert f": set {RECIPES[recipe][0][-1]}= to " in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("number", "rank", "num_hosts", "code"),
    [
        (signal.SIGTERM, 0, 1, 75),
        (signal.SIGUSR1, 0, 1, 75),
        (signal.SIGTERM, 1, 2, 143),  # while it waits for host 0, which prepares
    ],
)
def test_a_signal_to_the_multi_host_recipe_reaches_its_command(
    number: int, rank: int, num_hosts: int, code: int, checkout: Path, tmp_path: Path, inputs: dict[str, str]
) -> None:
    """To the script alone, as a supervisor sends it."""
    environment = {
        **os.environ, "CORPUS": inputs["CORPUS"], "RUN_DIR": str(tmp_path / "run"),
        "HOST_RANK": str(rank), "NUM_HOSTS": str(num_hosts),
    }  # fmt: skip
    script = checkout / "recipes" / "multi_host" / "run.sh"
    arguments = [*RECIPES["multi_host"][1][1:], "steps=100000", "checkpoint.every_steps=100000", "log.every_steps=1"]
    with subprocess.Popen(
        [script, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        until = time.monotonic() + 120
        while rank == 0 and len(read_metrics(tmp_path / "run" / "model" / "metrics.jsonl")) < 2:
            assert time.monotonic() < until
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        time.sleep(0.5 * rank)
        process.send_signal(number)
        try:
            said, _ = process.communicate(timeout=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code, said
    assert ("its checkpoint is saved" in said) is (code == 75)


FAKE_SRUN = """\
#!/usr/bin/env bash
while [ "${1#--}" != "$1" ]; do shift; done
for node in 0 1; do
  SLURM_NODEID=$node SLURM_PROCID=$node SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_LOCALID=0 "$@" &
done
code=0
for job in $(jobs -p); do wait "$job" || code=$?; done
exit $code
"""


@pytest.mark.slow
def test_the_slurm_script(tmp_path: Path, inputs: dict[str, str]) -> None:
    """With two tasks on this machine in place of two hosts, and an srun and scontrol that are made here."""
    script = installed() / "recipes" / "multi_host" / "slurm.sh"
    for name, text in (("srun", FAKE_SRUN), ("scontrol", "#!/usr/bin/env bash\necho 127.0.0.1\necho other\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_JOB_NODELIST": "x",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_NNODES": "2",
    }
    ours = {"RUN_DIR": str(tmp_path / "run"), "NPROC": "1", "CORPUS": inputs["CORPUS"]}
    environment = {**os.environ, **slurm, **ours, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    arguments = RECIPES["multi_host"][1]
    done = subprocess.run([script, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 process(es)" in done.stdout
    assert done.stdout.count("== prepare") == done.stdout.count("== export") == 1
    assert len(list((tmp_path / "run").glob(PARITY))) == 1


def test_the_final_phase_and_the_second_run_are_what_the_recipes_say() -> None:
    """The numbers of the paper and of NVIDIA, as the experiments compose them."""

    def experiment(name: str) -> PretrainSettings:
        return build(PretrainSettings, compose("pretrain", ["data_dir=x", "output_dir=y", f"experiment={name}"]))

    base = experiment("bert_base")
    assert (base.steps, base.batch.sequences, base.final_phase.first_step(base.steps)) == (1_000_000, 256, 900_000)
    assert (base.segments.max_seq_length, base.final_phase.max_seq_length) == (128, 512)
    assert (base.model.hidden_size, base.model.hidden_dropout_prob, base.model.num_hidden_layers) == (768, 0.1, 12)
    optimizer, schedule = base.optimizer, base.schedule
    assert (optimizer.name, optimizer.bias_correction) == ("adamw", False)
    assert (optimizer.peak_learning_rate, optimizer.weight_decay) == (1e-4, 0.01)
    assert (schedule.power, schedule.decay_from, schedule.warmup_of(base.steps)) == (1.0, "start", 10_000)
    phases = []
    for number in (1, 2):
        run = experiment(f"bert_large_lamb_phase{number}")
        assert (run.optimizer.name, run.schedule.power, run.schedule.decay_from) == ("lamb", 0.5, "start")
        rate, share = run.optimizer.peak_learning_rate, run.schedule.warmup_share
        phases.append((run.steps, run.batch.sequences, run.segments.max_seq_length, rate, share))
    assert phases == [(7038, 65_536, 128, 6e-3, 0.2843), (1563, 32_768, 512, 4e-3, 0.128)]
    assert experiment("continue_pretraining").optimizer.peak_learning_rate == 2e-5


def test_the_map_of_the_code_names_what_is_there() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## The code")[1].split("Exit codes:")[0]
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", section)
    assert len(named) > 30
    folders = (ROOT, ROOT / "bertkit", ROOT / "bertkit" / "model")
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []
