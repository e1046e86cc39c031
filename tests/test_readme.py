"""Every command of the README and the recipes is run; training is shortened.

The recipes run in a copy that needs no installation; as they are installed: pytest -m slow tests/test_readme.py
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pictures
import pytest
from conftest import free_port, make_text, minilm_dir, output_of, small_model, write_text

import bertkit
from bertkit import export_model
from bertkit.base.typed_settings import build
from bertkit.data.corpus.tokenizer import train_wordpiece
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose
from bertkit.train.log import read_metrics

ROOT = Path(__file__).resolve().parents[1]
FEWER_STEPS = ["steps=12", "schedule.warmup_steps=2", "evaluation.every_steps=12", "checkpoint.every_steps=12"]


GUIDES = (
    "step_by_step",
    "own_data",
    "reproducibility",
    "how_fast",
    "extend",
    "what_is_shown",
    "from_other_tools",
)  # without a run.sh
ELSEWHERE = ("prepare_on_dask", "speedrun")  # run in tests/stages/test_prepare_workers.py and tests/test_speedrun.py
INSTALLING = {"recipes/quickstart/run.sh", "tests/run.sh"}  # what the README prints beside commands of bertkit
# what stands between `bertkit` as it is printed and as it is run here: training is shortened
SHIM = """#!/bin/sh
case "$1" in
  pretrain) exec {python} -m bertkit "$@" steps=12 schedule.warmup_steps=2 evaluation.every_steps=12 checkpoint.every_steps=12 \\
    evaluation.max_sequences=64 batch.sequences=16 ;;
  finetune) exec {python} -m bertkit "$@" num_epochs=1 ;;
  serve) {python} -m bertkit "$@" port=0 > served.txt & server=$!
    until grep -q ^serving served.txt; do kill -0 $server || exit 1; sleep 0.2; done; kill -TERM $server; wait $server; exit $? ;;
esac
exec {python} -m bertkit "$@"
"""


def code_of(name: str) -> list[tuple[str, str]]:
    """The language and text of each block of code that a document prints."""
    return re.findall(r"```(\w+)\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


def run_document(name: str, root: Path, python: Path) -> str:
    """Run the code blocks of a document in order; return their standard output."""
    environment = {**os.environ, "PATH": f"{root / '.venv' / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    output = []
    for language, code in code_of(name):
        if language == "text":
            continue
        lines = [line for line in code.splitlines() if line not in INSTALLING]
        command: list[str | Path] = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [python, "-c"]}[language]
        code = "\n".join(lines)
        code += f"\n{code}" if language == "python" else ""  # a cell is run twice
        done = subprocess.run([*command, code], cwd=root, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, code + done.stderr
        output.append(done.stdout)
    return "\n".join(output)


def test_readme_commands_run(quickstarted: Path, python: Path) -> None:
    output = run_document("README.md", quickstarted, python)
    runs = quickstarted / "runs"
    for made in ("my_bert/report.html", "reviews/eval.json", "reviews/report.html", "reviews-hf/config.json"):
        assert (runs / made).is_file(), made
    assert len((quickstarted / "predictions.csv").read_text().splitlines()) == 1 + 40
    assert json.loads((quickstarted / "parity.json").read_text())
    assert "'label': '" in output
    assert "torch.Size([1, " in output
    assert re.search(r"^20 \d\.\d+$", output, re.MULTILINE)  # the last step of a job
    assert np.load(quickstarted / "vectors.npy").shape == (40, 128)
    assert "multi_host/README.md, line" in output  # what search finds
    assert json.loads((runs / "py" / "eval.json").read_text())["num_examples"] == 16


@pytest.mark.slow
@pytest.mark.parametrize("name", [*GUIDES[:5], "multi_host"])
def test_guide_commands_run(name: str, quickstarted: Path, python: Path) -> None:
    output = run_document(f"recipes/{name}/README.md", quickstarted, python)
    if name == "own_data":
        made = re.findall(r"finetune .*output_dir=(\S+)", (ROOT / "recipes/own_data/README.md").read_text())
        assert len(made) == 7
        assert all((quickstarted / run / "eval.json").is_file() for run in made)
        assert json.loads(output.splitlines()[-1])
    if name == "reproducibility":
        hashes = re.findall(r"^([0-9a-f]{64})  ", output, re.MULTILINE)
        assert len(hashes) == 2
        assert len(set(hashes)) == 1
    if name == "how_fast":
        assert output.count("| Hugging Face") >= 9


def test_what_the_quickstart_says_is_what_the_readme_prints(quickstarted: Path) -> None:
    """Apart from numbers and paths, every printed line of the README appears, in this order."""
    (printed,) = (code for language, code in code_of("README.md") if language == "text")
    lines = [alike(line) for line in printed.splitlines() if line != "..."]
    output = (alike(line) for line in (quickstarted / "said.txt").read_text().splitlines())
    assert len(lines) >= 10
    assert [line for line in lines if line not in output] == []  # each search goes on behind the last one


def alike(line: str) -> str:
    """A line without what a shorter run in another folder says otherwise: numbers, time left, folders, names, words, verdicts."""
    line = re.sub(r'"token": "[^"]*"', "W", line)
    line = re.sub(r"\d+m?\d*s left|\? left", "T", line)
    line = re.sub(r"\S*/(\S+)", r"\1", re.sub(r"\d[\d.,e+-]*", "#", line))
    return re.sub(r"\(hidden_states.*?\)|(?<=has )not (?=learned)|(?<=is )not (?=below)", "", line)


def test_the_quickstart_again_says_that_it_is_done(quickstarted: Path) -> None:
    output = (quickstarted / "said.txt").read_text()
    again = subprocess.run([quickstarted / "recipes/quickstart/run.sh"], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert (output.count("done already"), again.stdout.count("done already")) == (0, 3)


def test_the_readme_is_short_and_leads_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    assert len(text.split()) <= 1400
    printed = "".join(code for language, code in code_of("README.md") if language == "bash").replace("\\\n", "")
    assert {line for line in printed.splitlines() if not line.startswith("bertkit ")} == INSTALLING
    assert all(os.access(ROOT / name, os.X_OK) for name in ("recipes/quickstart/run.sh", "tests/run.sh", ".ci/run"))
    recipes = [str(path.relative_to(ROOT)) for path in ROOT.glob("recipes/*/*.md")]
    documents = ["README.md", ".github/CONTRIBUTING.md", ".github/CHANGELOG.md", *recipes]
    assert len(documents) == len(RECIPES) + len(GUIDES) + len(ELSEWHERE) + 3
    for name in documents:
        text = (ROOT / name).read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)", text, re.MULTILINE)
        }
        for target in re.findall(r"\]\(([^)]*)\)", text):
            place, _, anchor = target.partition("#")
            assert target.startswith("https://") or ((ROOT / name).parent / place).exists(), f"{name}: {target}"
            assert place or anchor in headings, f"{name}: {target}"


def test_every_test_that_a_claim_names_is_there() -> None:
    text = (ROOT / "recipes/what_is_shown/README.md").read_text(encoding="utf-8")
    commands = re.findall(r"`((?:\S+=\S+ )?(?:pytest|python) [^`]+)`", text)
    assert len(commands) > 20
    for command in commands:
        words = shlex.split(command)
        named = [ROOT / word for word in words if word.startswith(("tests/", "recipes/"))]
        files = [file for path in named for file in (sorted(path.glob("test_*.py")) if path.is_dir() else [path])]
        assert files, command
        content = "".join(file.read_text(encoding="utf-8") for file in files)
        if "-k" in words:
            assert re.search(rf"def test_\w*{words[words.index('-k') + 1]}", content), command
        if words[0] == "pytest" and "slow" in command:
            assert "mark.slow" in content, command
        if words[0] == "pytest" and "gpu" in command:
            assert "mark.gpu" in content, command


def test_the_pictures_show_the_code_and_a_report(quickstarted: Path) -> None:
    kept = {path.stem: path.read_text(encoding="utf-8") for path in pictures.PICTURES.glob("*.svg")}
    assert kept["architecture"] == pictures.architecture()
    assert kept["house"] == pictures.house()
    made = {"speedrun": pictures.record(), "speedrun_grammar": pictures.grammar(), "speedrun_worth": pictures.worth()}
    assert {name: kept[name] for name in made} == made
    drawn = pictures.report((quickstarted / "runs/quickstart/tiny/report.html").read_text(encoding="utf-8"))
    titles = [re.findall(r'class="title">(.*?)<', picture) for picture in (kept["report"], drawn)]
    assert titles[0] == titles[1]
    assert len(titles[0]) == pictures.NUM_CHARTS
    for picture in (*kept.values(), drawn):
        assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_a_clone_has_what_the_readme_starts(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no repository to clone")
    subprocess.run(["git", "clone", "-q", ROOT, tmp_path / "clone"], check=True)
    assert all(os.access(tmp_path / "clone" / script, os.X_OK) for script in INSTALLING)


# name -> what the environment needs beside RUN_DIR, the last of them asked for first; the arguments that shorten training; how
# often it says that something is done already; what it gives
TINY = ["steps=10", "batch.sequences=8", "evaluation.max_sequences=8", "device=cpu"]
SHORT = ["num_epochs=1", "batch.sequences=4", "device=cpu"]
WINDOWS = ["task.max_seq_length=32", "task.spans.window_step=8", "task.spans.max_query_length=8"]
TEXTS = ["task.max_seq_length=32", "task.generation.max_target_length=16"]
PARITY = "*/parity.json"
RECIPES: dict[str, tuple[tuple[str, ...], list[str], int, str]] = {
    "quickstart": ((), FEWER_STEPS, 3, PARITY),
    "pretrain_base": (("CORPUS",), [*TINY, "model=tiny", "schedule.warmup_steps=2"], 3, PARITY),
    "attention_zoo": (("SEEDS", "CORPUS"), [*TINY, "model=tiny"], 17, "zoo.html"),
    "language_model": (("VOCAB_SIZE", "CORPUS"), TINY, 4, PARITY),
    "pretrain_large_lamb": (("CORPUS",), [*TINY, "model=tiny"], 4, PARITY),
    "multi_host": (("CORPUS",), [*TINY, "model=tiny", "schedule.warmup_steps=2"], 3, PARITY),
    "continue_pretraining": (("CORPUS", "MODEL_DIR"), [*TINY, "schedule.warmup_steps=2"], 3, PARITY),
    "glue": (("DATA_DIR", "MODEL_DIR"), ["tasks=[rte]", "seeds=[0,1]", *SHORT], 2, "glue.md"),
    "squad": (("DATA_DIR", "MODEL_DIR"), [*WINDOWS, *SHORT], 2, PARITY),
    "search_qa": (("DATA_DIR", "MODEL_DIR"), [*WINDOWS, *SHORT], 2, "found.jsonl"),
    "ner": (("DATA_DIR", "MODEL_DIR"), ["task.max_seq_length=32", *SHORT], 2, PARITY),
    "look": (("TASK", "DATA_DIR", "MODEL_DIR"), SHORT, 1, "attention.html"),
    "translate": (("SEEDS", "STEPS", "VOCAB_SIZE", "DATA_DIR"), ["task.max_seq_length=32", *SHORT], 7, "alignment.svg"),
    "summarise": (("DATA_DIR", "MODEL_DIR"), [*TEXTS, *SHORT], 2, PARITY),
    "serve": (("STAY", "PORT", "MODEL_DIR"), [], 0, "predictions.json"),
}


def test_every_recipe_is_known_and_says_what_it_takes() -> None:
    folders = {path.name for path in (ROOT / "recipes").iterdir()}
    assert folders == {*RECIPES, *GUIDES, *ELSEWHERE}
    for name in GUIDES:
        files = {path.name for path in (ROOT / "recipes" / name).iterdir() if path.suffix in (".md", ".sh", ".py")}
        text = (ROOT / "recipes" / name / "README.md").read_text(encoding="utf-8")
        assert files == {"README.md"} or (
            name in ("how_fast", "extend", "own_data") and all(file in text for file in files - {"README.md"})
        )
    for name in [*RECIPES, *ELSEWHERE]:
        text = (ROOT / "recipes" / name / "README.md").read_text(encoding="utf-8")
        assert all(word.lower() in text.lower() for word in ("**run**", "hardware", "time", "disk", "metrics")), name
        assert 10 <= len((ROOT / "recipes" / name / "run.sh").read_text(encoding="utf-8").splitlines()) <= 35
        more = {
            "multi_host": ["slurm.sh", "skypilot.yaml", "trainjob.yaml"],
            "prepare_on_dask": ["prepare.py"],
            "language_model": ["bigrams.py"],
            "search_qa": ["catalogues.py"],
            "speedrun": [
                "speedrun.py",
                "rows.py",
                "hugging_face.py",
                "muon.py",
                "parts.py",
                "leaderboard.py",
                "speed.json",
                "runs.jsonl",
                "grammar.jsonl",
            ],
        }.get(name, [])
        files = {path.name for path in (ROOT / "recipes" / name).iterdir()} - {"__pycache__"}
        assert files == {"README.md", "run.sh", *more}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The inputs that the recipes need: text, a model with its tokenizer, and files for each shape of task."""
    folder = tmp_path_factory.mktemp("inputs")
    corpus = write_text(folder / "text.txt", make_text(61))
    model = folder / "model"
    documents = make_text(61)
    tokenizer = train_wordpiece(lambda: (s for d in documents for s in d), 131, lowercase=True, min_frequency=2)
    export_model(small_model(tokenizer.vocab_size, max_position_embeddings=128), tokenizer, model)
    places = {"CORPUS": str(corpus), "MODEL_DIR": str(model), "DATA_DIR": str(write_tasks(folder / "tasks"))}
    numbers = {"SEEDS": "1", "STEPS": "10", "VOCAB_SIZE": "300", "PORT": str(free_port())}
    return {**places, **numbers, "TASK": "rte", "STAY": "no"}


def write_tasks(folder: Path) -> Path:
    """RTE, SQuAD and CoNLL-2003 as they are written, and pairs of texts, some ten examples each."""
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
        for version in ("1.1", "2.0"):
            (folder / "squad" / f"{split}-v{version}.json").write_text(json.dumps(content))
        tagged = ["".join(f"{w} {('O', 'I-PER')[n == 0]}\n" for n, w in enumerate(s.split())) for s in sentences]
        (folder / "conll2003" / conll).write_text("\n".join(tagged))
        pairs = ["\t".join((s, " ".join(s.split()[::-1]), s, s.split()[0])) for s in sentences]
        (folder / f"{split}.tsv").write_text("\n".join(["en\tde\tdocument\tsummary", *pairs, ""]))
    return folder


def make_checkout(root: Path, python: Path, shim: str = '#!/bin/sh\nexec {python} -m bertkit "$@"\n') -> Path:
    """The recipes beside an installation that starts at once."""
    shutil.copytree(ROOT / "recipes", root / "recipes")
    for path, text in (
        (root / ".venv" / "bin" / "bertkit", shim.format(python=python)),
        (root / "docker" / "install.sh", ""),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    return root


@pytest.fixture
def checkout(tmp_path: Path, python: Path) -> Path:
    return make_checkout(tmp_path / "checkout", python)


@pytest.fixture(scope="module")
def quickstarted(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Path:
    """A checkout in which the quickstart was run, with files such as the README's walkthroughs and the guides read."""
    root = make_checkout(tmp_path_factory.mktemp("readme") / "bertkit", python, SHIM)
    (root / "said.txt").write_text(output_of([root / "recipes/quickstart/run.sh"]))
    (root / ".venv/bin/python").write_text(
        f'#!/bin/sh\nexec {python} "$@" --model tiny --vocab-size 2048 --rounds 1\n'
    )  # of how_fast
    (root / ".venv/bin/python").chmod(0o755)
    write_own_data(root)
    hub = root / "sentence-transformers"  # an existing directory comes before the hub's model of this name
    hub.mkdir()
    (hub / "all-MiniLM-L6-v2").symlink_to(root / "runs/quickstart/tiny-mlm")  # the real one: see `-m slow`
    return root


def test_the_model_on_the_package_index_is_where_the_readme_says() -> None:
    (printed,) = re.findall(r"model_dir=runs/minilm/(\S+)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert minilm_dir().parts[-2:] == Path(printed).parts


@pytest.mark.slow
def test_the_quickstart_learns_from_context_and_fills_masks(tmp_path: Path) -> None:
    """With all its steps: clearly better than counting, and the words of its five sentences are sensible."""
    script = (ROOT / "recipes/quickstart/run.sh").read_text()
    texts = script[script.index("<<TEXTS") + 8 : script.index("\nTEXTS")].splitlines()
    data, run_dir = [f"data_dir={tmp_path / 'data'}"], tmp_path / "tiny"
    command = [sys.executable, "-m", "bertkit"]
    corpus = ["corpus=python_docs", "tokenizer.vocab_size=2048", "held_out_prob=0.05"]
    output_of([*command, "prepare", *corpus, f"output_dir={tmp_path / 'data'}"])
    output_of([*command, "pretrain", "experiment=quickstart", *data, f"output_dir={run_dir}"])
    assert json.loads((run_dir / "eval.json").read_text())["mlm_gain_on_counting"] > 0.7
    rows = bertkit.predict(input=texts, model_dir=str(run_dir), top_k=2)
    best = {row["masks"][0][0]["token"] for row in rows}
    assert len(best & {"true", "false", "none", "list", "tuple", "of", "is", "are"}) >= 3


@pytest.mark.slow
def test_the_reviews_of_the_readme_are_learned(tmp_path: Path) -> None:
    """As printed, with all epochs: at most two more mistakes in 40 than the README says."""
    start = [f"model_dir={minilm_dir()}", "data_dir=recipes/own_data/reviews", f"output_dir={tmp_path / 'run'}"]
    command = [sys.executable, "-m", "bertkit"]
    output_of([*command, "finetune", "task=classification", "dev_share=0.1", "num_epochs=10", *start], cwd=ROOT)
    scores = output_of([*command, "evaluate", f"model_dir={tmp_path / 'run'}", start[1], "split=test"], cwd=ROOT)
    assert json.loads(scores)["accuracy"] >= 0.85


def write_own_data(root: Path) -> None:
    """What a user brings: text, and a folder for each shape of task."""
    sentences = [sentence.rstrip(".") for document in make_text(7) for sentence in document]
    tables = {
        "prices": ["text,label", *(f"{s},{n % 7}.5" for n, s in enumerate(sentences))],
        "feelings": ["text,label", *(f'{s},"{("joy", "anger", "joy,anger")[n % 3]}"' for n, s in enumerate(sentences))],
    }
    texts = {f"{name}/train.csv": "\n".join(lines) for name, lines in tables.items()}
    texts["replies/train.tsv"] = "\n".join(["source\ttarget", *(f"{s}\t{s.split()[-1]}" for s in sentences)])
    tagged = ["".join(f"{w} {('O', 'B-PER')[n == 0]}\n" for n, w in enumerate(s.split())) for s in sentences]
    texts["names/train.conll"] = "\n".join(tagged)
    words = [(s, *s.split()[:2]) for s in sentences]
    answers = [{"text": [second], "answer_start": [s.index(second)]} for s, _, second in words]
    questions = [
        {"question": first, "context": s, "answers": a} for (s, first, _), a in zip(words, answers, strict=True)
    ]
    texts["questions/train.json"] = "\n".join(json.dumps({"id": str(n), **row}) for n, row in enumerate(questions))
    endings = [{"context": s, "endings": [s[:9], s[-9:]], "label": n % 2} for n, s in enumerate(sentences)]
    texts["endings/train.jsonl"] = "\n".join(map(json.dumps, endings))
    texts["grammar/dev.jsonl"] = "\n".join(json.dumps({"good": s, "bad": s[::-1]}) for s in sentences)
    for name, content in texts.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(content + "\n")
    (root / "my_text").mkdir()
    write_text(root / "my_text" / "some.txt", make_text(31))


def check_recipe(recipe: str, root: Path, run_dir: Path, inputs: dict[str, str]) -> None:
    needs, arguments, num_done, value = RECIPES[recipe]
    environment = {**os.environ, "RUN_DIR": str(run_dir), **{name: inputs[name] for name in needs}}
    outputs = []
    for _ in range(2):  # again: done already
        outputs.append(output_of([root / "recipes" / recipe / "run.sh", *arguments], env=environment))
    assert "done already" not in outputs[0]
    assert outputs[1].count("done already") == num_done
    (path,) = run_dir.glob(value)
    assert path.is_file()


@pytest.mark.slow  # the quickstart, by default, and the README go the same ways
@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "quickstart"])
def test_recipes_run_and_resume(recipe: str, checkout: Path, tmp_path: Path, inputs: dict[str, str]) -> None:
    check_recipe(recipe, checkout, tmp_path / "run", inputs)


@pytest.mark.slow
def test_pretraining_goes_on_without_held_out_documents(checkout: Path, tmp_path: Path, inputs: dict[str, str]) -> None:
    small = {"CORPUS": str(write_text(tmp_path / "text.txt", make_text(3)))}
    check_recipe("continue_pretraining", checkout, tmp_path / "run", {**inputs, **small})


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_run_from_installed_package(recipe: str, tmp_path: Path, inputs: dict[str, str]) -> None:
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
    [(signal.SIGUSR1, 0, 1, 75), (signal.SIGTERM, 1, 2, 143)],  # the second while it waits for host 0, which prepares
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
        [script, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        until = time.monotonic() + 120
        while rank == 0 and len(read_metrics(tmp_path / "run" / "model" / "metrics.jsonl")) < 2:
            assert time.monotonic() < until
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        time.sleep(0.5 * rank)
        process.send_signal(number)
        try:
            output, _ = process.communicate(timeout=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code, output
    assert ("which is saved" in output) is (code == 75)


def test_the_multi_host_recipe_prepares_apart_and_continues_from_a_model(python: Path, tmp_path: Path) -> None:
    script = make_checkout(tmp_path, python, '#!/bin/sh\necho "$@"\n') / "recipes" / "multi_host" / "run.sh"
    environment = {**os.environ, "CORPUS": "text", "RUN_DIR": "run"}

    def commands(**more: str) -> list[str]:
        lines = output_of([script, "seed=3"], env=environment | more).splitlines()
        return [line for line in lines if not line.startswith("==")]

    prepare = "prepare corpus.path=text output_dir=run/data"
    assert commands(STEP="prepare") == [prepare]
    new, continued = commands(), commands(MODEL_DIR="bert")
    assert (new[0], continued[0]) == (prepare, prepare.replace("output", "tokenizer.path=bert output"))
    for line, expected in ((new[1], "bert_base data"), (continued[1], "continue_pretraining model_dir=bert data")):
        assert line.startswith(f"pretrain experiment={expected}_dir=run/data output_dir=run/model ")
        assert line.endswith(" seed=3")
    assert new[2] == continued[2] == "export model_dir=run/model output_dir=run/exported"


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
def test_slurm_script_starts_the_recipe(tmp_path: Path, inputs: dict[str, str]) -> None:
    """With two tasks on this machine in place of two hosts, and an srun and scontrol that are made here."""
    script = installed() / "recipes" / "multi_host" / "slurm.sh"
    for name, text in (("srun", FAKE_SRUN), ("scontrol", "#!/usr/bin/env bash\necho 127.0.0.1\necho other\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"SUBMIT_DIR": str(ROOT), "JOB_NODELIST": "x", "JOB_ID": str(os.getpid()), "NNODES": "2"}
    ours = {"RUN_DIR": str(tmp_path / "run"), "NPROC": "1", "CORPUS": inputs["CORPUS"]}
    environment = {**os.environ, **{f"SLURM_{name}": value for name, value in slurm.items()}, **ours}
    environment["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    output = output_of([script, *RECIPES["multi_host"][1]], env=environment)
    assert "2 processes" in output
    assert output.count("== prepare") == output.count("== export") == 1
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
    section = (
        (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## The house")[1].split("`python ")[0]
    )
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", section)
    assert len(named) > 30
    folders = (ROOT, ROOT / "bertkit", ROOT / "bertkit" / "model")
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []
