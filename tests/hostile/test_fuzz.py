"""Good files with changes by fixed seeds, to every reader: each is read or refused in one line, soon, in little memory."""

import bz2
import contextlib
import dataclasses
import gzip
import json
import lzma
import multiprocessing
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_config
from task_configs import task_config

from bertkit import commands, export_model
from bertkit.apps.retrieval.library import Library
from bertkit.apps.retrieval.library_writer import opened_for_writing, stored_files
from bertkit.apps.retrieval.passages import document_of_text
from bertkit.base.errors import BertkitError, InputError
from bertkit.base.tensor_files import read_tensors, write_tensors
from bertkit.data.batches.sampling import EpochCache
from bertkit.data.batches.segments import select
from bertkit.data.corpus.prepared import open_prepared
from bertkit.data.corpus.tokenizer import Tokenizer, load_tokenizer
from bertkit.data.data_config import CorpusConfig, PassagesConfig, SegmentsConfig
from bertkit.data.texts.documents import open_corpus
from bertkit.display.report import comparison_page, scores_table, write_report
from bertkit.interop.google.bundle import read_index, write_checkpoint
from bertkit.interop.load import load_directory
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.interop.parity.certificate import read_certificate
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights
from bertkit.run.comparison import find_divergence, read_run
from bertkit.run.directory import read_manifest, read_settings
from bertkit.tasks.reading.readers import read_examples
from bertkit.train.checkpoint_files import newest_valid, read_state
from bertkit.train.log import MetricsLog

SECONDS = 10  # for one file
MEMORY_BYTES = 200_000_000  # more than before, beside three times the file

TABLE = "id{0}text{0}label\n" + "".join(f"{n}{{0}}Rain fell {n} times.{{0}}{'ab'[n % 2]}\n" for n in range(6))
ROWS = [{"id": str(n), "text": f"Rain fell {n} times.", "label": "ab"[n % 2]} for n in range(6)]
CONLL = "-DOCSTART- -X- O O\n\n" + "EU NNP I-NP B-ORG\nrejects VBZ I-VP O\n. . O O\n\nBonn NNP I-NP B-LOC\n\n" * 2
CONTEXT = "Normandy is in France. 😀 é France"
SQUAD = {
    "version": "1.1",
    "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": [
        {"id": "1", "question": "Where?", "answers": [{"text": "France", "answer_start": 15}]},
        {"id": "2", "question": "What?", "answers": [{"text": "é", "answer_start": 25}]},
    ]}]}],
}  # fmt: skip
CERTIFICATE = {
    "format": "bertkit parity certificate 2",
    "tensor_sha256": {"a": "0f"},
    "file_sha256": {"config.json": "0f"},
    "config": {"hidden_size": 8, "labels": []},
    "within_tolerance": True,
}
PASSAGES = PassagesConfig(words=13, overlap=5, stemming="none", accents="drop")
TEXT = "One two, A. B. three.\nFour 5 six.\n\nA second one, Mr. Last.\n"
WORDS = (  # that were made to hurt somebody's reader
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\x1b[31m", b"\r", b"\n\n", b"\t", b'"', b"'", b",",
    b"{", b"}", b"[", b"]", b":", b"null", b"true", b"NaN", b"Infinity", b"-1", b"0", b"1e999", b"99999999999999999999999",
    b"18446744073709551615", b"../../etc/passwd", b"/etc/passwd", b"[" * 3000, b'{"a":' * 3000, b"A. " * 500, b"a" * 5000,
    b"\xe2\x80\xae", b"\xc2\x85", b"&a [*a]", b"*a", b"!!python/object/apply:os.system [ls]", b"${oc.env:HOME}", b"<script>",
)  # fmt: skip


def changed(good: bytes, rng: random.Random) -> bytes:
    data = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice((1, 2, 8, 64, 1000)))
        other = rng.randrange(len(data) + 1)
        match rng.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.randrange(256)
            case 2:
                del data[at:to]
            case 3:
                data[other:other] = data[at:to] * rng.choice((1, 1, 2, 50))
            case 4:
                del data[at:]
            case 5:
                data[at : at + rng.choice((0, 0, 1, 8))] = rng.randbytes(rng.choice((1, 4, 8)))
            case _:
                data[at : at + rng.choice((0, 0, 1, 4))] = rng.choice(WORDS)
    return bytes(data)


@dataclass(frozen=True)
class Reader:
    make: Callable[[Path], Path]  # makes the file in an empty folder, with what belongs to it; gives the one to change
    read: Callable[[Path], Any]
    share: float = 1.0  # of the number of changes; less where one takes long
    is_packed: bool = False  # what is in the gzip file is changed
    change: Callable[[bytes, random.Random], bytes] = changed


def table(name: str, content: str, task: str) -> Reader:
    def make(folder: Path) -> Path:
        (folder / name).write_text(content)
        return folder / name

    config = task_config(task)

    def read(path: Path) -> None:
        source = read_examples(config, str(path.parent), "train")
        assert source.examples is not None

    return Reader(make, read)


def corpus(name: str, content: str | bytes) -> Reader:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder / name

    def read(path: Path) -> None:
        config = CorpusConfig("files", str(path), "auto", "text", "auto", "utf-8", None, "train")
        for _ in open_corpus(config):
            pass

    return Reader(make, read, is_packed=name.endswith(".gz"))


def parquet(folder: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "train.parquet")
    return folder / "train.parquet"


def arrow() -> bytes:
    import pyarrow

    table, made = pyarrow.Table.from_pylist(ROWS), pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(made, table.schema) as file:
        file.write_table(table)
    return made.getvalue().to_pybytes()  # type: ignore[no-any-return]


def of_model(name: str, tokenizer: Tokenizer) -> Reader:
    def make(folder: Path) -> Path:
        model = BertWithHeads(small_config(tokenizer.vocab_size), ("masked_lm",))
        init_weights(model, 0.1, torch.Generator().manual_seed(0))
        export_model(model, tokenizer, folder / "m")
        if name == "vocab.txt":
            (folder / "m" / "tokenizer.json").unlink()  # else they are compared
        return folder / "m" / name

    def read(path: Path) -> None:
        if name in ("config.json", "model.safetensors"):
            load_directory(resolve_model_dir(path.parent))
        else:
            load_tokenizer(path.parent)(["A river rose 12 times."])

    return Reader(make, read, 0.25)


def tensors(folder: Path) -> Path:
    write_tensors(folder / "x.safetensors", {name: torch.ones(3, 2) for name in ("a", "b", "c")})
    return folder / "x.safetensors"


def tensorflow(folder: Path) -> Path:
    write_checkpoint(folder / "bert.ckpt", {"bert/pooler/dense/kernel": torch.ones(3, 2), "b": torch.ones(2)})
    return folder / "bert.ckpt.index"


def of_run(run_dir: Path, name: str, read: Callable[[Path], Any], share: float = 1.0) -> Reader:
    def make(folder: Path) -> Path:
        shutil.copytree(run_dir, folder / "run")
        return next((folder / "run").rglob(name))

    return Reader(make, read, share)


def compare(path: Path) -> None:
    record = read_run(path.parent)
    assert record is not None
    find_divergence(record, record)
    comparison_page([("a", [record.rows])], [], [scores_table([("a", "1", [record.scores, record.scores])])])
    write_report(path.parent, {"guessing": 0.5, "chance": 0.6})
    MetricsLog(path.parent / "metrics.jsonl", 1).close()


def of_cache(tiny_runs: Path, name: str) -> Reader:
    pairs = SegmentsConfig("pairs", 32, 0.1, "nsp")
    split = open_prepared(tiny_runs / "data").splits["train"]

    def make(folder: Path) -> Path:
        EpochCache(folder, split, pairs, seed=0).open(0)
        return next(folder.rglob(name))

    def read(path: Path) -> None:
        examples = EpochCache(path.parents[1], split, pairs, seed=0).open(0)
        select(examples, np.arange(len(examples)))

    return Reader(make, read)


def newest(path: Path) -> None:
    for fault in newest_valid(path.parents[2])[1]:
        raise InputError(fault)


def of_data(tiny_runs: Path, name: str) -> Reader:
    def make(folder: Path) -> Path:
        shutil.copytree(tiny_runs / "data", folder / "data")
        return next((folder / "data").rglob(name))

    def read(path: Path) -> None:
        dataset = open_prepared(next(folder for folder in path.parents if folder.name == "data"))
        assert dataset.tokenizer.vocab

    return Reader(make, read)


def overrides(folder: Path) -> Path:
    (folder / "words").write_text("model=mini\nsteps=5\noptimizer.peak_learning_rate=1e-4\ndata_dir=x\noutput_dir=y\n")
    return folder / "words"


def compose(path: Path) -> None:
    words = path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    commands.settings_from_words("pretrain", [word for word in words if word], None)


def group(folder: Path) -> Path:
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "model" / "own.yaml").write_text("defaults:\n  - mini\n  - _self_\nhidden_size: 64\n")
    return folder / "conf" / "model" / "own.yaml"


def compose_group(path: Path) -> None:
    commands.settings_from_words("pretrain", ["model=own", "data_dir=x", "output_dir=y"], str(path.parent.parent))


def certificate(folder: Path) -> Path:
    (folder / "parity.json").write_text(json.dumps(CERTIFICATE))
    return folder / "parity.json"


def library(folder: Path) -> Path:
    with opened_for_writing(folder / "library.db", PASSAGES) as writer:
        for name in ("a", "b"):
            documents = (document_of_text(f"{name} {n} {TEXT}", f"t{n}", "text", n) for n in range(29))
            writer.sync(name, "0f", documents)
    (folder / "library.db-journal").write_bytes(bytes.fromhex("d9d505f920a163d7") + b"\xff" * 5000)
    return folder / "library.db"


def search_library(path: Path) -> None:
    opened = Library(path)
    for question in ("a 7 three", "second", ""):
        json.dumps([dataclasses.asdict(hit) for hit in opened.find(question, 5, add_rest=True)])


def change_library(path: Path) -> None:
    stored_files(path, PASSAGES, None)
    with opened_for_writing(path, PASSAGES) as writer:
        writer.sync("c", "0f", [document_of_text(text, "t7", "text", 1) for text in (TEXT, f"a 7 {TEXT}")])
        writer.remove_others({"b", "c"})
        writer.finish()


@pytest.fixture(scope="module")
def readers(tiny_runs: Path, tokenizer: Tokenizer) -> dict[str, Reader]:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    return {
        "tsv": table("train.tsv", TABLE.format("\t"), "sequence"),
        "csv": table("train.csv", TABLE.format(","), "sequence"),
        "jsonl": table("train.jsonl", lines, "sequence"),
        "json": table("train.json", json.dumps(ROWS), "sequence"),
        "parquet": Reader(parquet, table("train.parquet", "", "sequence").read),
        "CoNLL": table("train.txt", CONLL, "conll2003"),
        "SQuAD": table("train-v1.1.json", json.dumps(SQUAD), "squad1"),
        "text": corpus("a.txt", TEXT),
        "text, packed": corpus("b.txt.gz", gzip.compress(TEXT.encode(), mtime=0)),
        "gzip": Reader(corpus("c.txt", gzip.compress(TEXT.encode() * 20, mtime=0)).make, corpus("c.txt", "").read),
        "bzip2": corpus("a.txt.bz2", bz2.compress(TEXT.encode() * 20)),
        "xz": corpus("a.txt.xz", lzma.compress(TEXT.encode() * 20)),
        "arrow": corpus("a.arrow", arrow()),
        "records": corpus("a.jsonl", lines),
        "articles": corpus("wiki_00", '<doc id="1" url="u" title="N">\nN\n\nOne. Two.\n</doc>\n' * 2),
        "vocab.txt": of_model("vocab.txt", tokenizer),
        "tokenizer.json": of_model("tokenizer.json", tokenizer),
        "tokenizer_config.json": of_model("tokenizer_config.json", tokenizer),
        "config.json": of_model("config.json", tokenizer),
        "weights": of_model("model.safetensors", tokenizer),
        "safetensors": Reader(tensors, read_tensors),
        "TensorFlow": Reader(tensorflow, lambda path: read_index(path.with_suffix(""))),
        "manifest of a run": of_run(tiny_runs / "fine", "manifest.json", lambda path: read_manifest(path.parent)),
        "settings of a run": of_run(tiny_runs / "fine", "config.yaml", lambda path: read_settings(path.parent)),
        "state of a checkpoint": of_run(tiny_runs / "fine", "state.json", lambda path: read_state(path.parent)),
        "manifest of a checkpoint": of_run(tiny_runs / "fine", "checkpoints/*/manifest.json", newest),
        "weights of a checkpoint": of_run(tiny_runs / "pre", "checkpoints/*/model.safetensors", newest),
        "metrics": of_run(tiny_runs / "pre", "metrics.jsonl", compare),
        "scores": of_run(tiny_runs / "fine", "eval.json", compare, 0.25),
        "manifest of a compared run": of_run(tiny_runs / "fine", "manifest.json", compare, 0.25),
        "settings of a compared run": of_run(tiny_runs / "fine", "config.yaml", compare, 0.25),
        "cache": of_cache(tiny_runs, "piece_start"),
        "manifest of data": of_data(tiny_runs, "manifest.json"),
        "certificate": Reader(certificate, read_certificate),
        "library, searched": Reader(library, search_library),
        "library, changed": Reader(library, change_library, 0.2),
        "overrides": Reader(overrides, compose, 0.02),
        "a group of one's own": Reader(group, compose_group, 0.02),
    }


class TooLongError(BaseException):
    """A reader took longer than it may."""


@contextlib.contextmanager
def in_time(seconds: int = SECONDS) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise TooLongError

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def attack(name: str, reader: Reader, folder: Path, count: int, says: Any) -> None:
    """Read this many changed files; return the failures, and how many files were refused."""
    path = reader.make(folder)
    good = path.read_bytes()
    reader.read(path)  # else nothing is shown
    good = gzip.decompress(good) if reader.is_packed else good
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + MEMORY_BYTES
    num_refused = 0
    for number in range(count):
        bad = reader.change(good, random.Random(f"{name} {number}"))
        bad = gzip.compress(bad, 1) if reader.is_packed else bad
        path.write_bytes(bad)
        says.send((number, "ended the process"))
        try:
            with in_time():
                reader.read(path)
        except BertkitError as error:
            num_refused += 1
            if len(error.args) == 0 or any("\n" in str(line) for line in error.args):
                says.send((number, f"more than one line: {error}"))
                return
        except OSError as error:
            num_refused += 1
            if error.errno is None:
                says.send((number, f"{type(error).__name__}: {error}"))
                return
        except BaseException as error:
            says.send((number, f"{type(error).__name__}: {str(error)[:300]}"))
            return
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > most + 3 * len(bad):
            says.send((number, "took too much memory"))
            return
    says.send((num_refused, None))


def run_all(readers: dict[str, Reader], tmp_path: Path, total: int) -> dict[str, tuple[int, int]]:
    """Run each reader on changed files, in its own process, since a file may crash it."""
    context = multiprocessing.get_context("fork")
    each = total / sum(reader.share for reader in readers.values())
    results, faults = {}, []
    for place, (name, reader) in enumerate(readers.items()):
        folder, count = tmp_path / str(place), round(each * reader.share)
        folder.mkdir()
        hears, says = context.Pipe(duplex=False)
        process = context.Process(target=attack, args=(name, reader, folder, count, says))
        process.start()
        says.close()
        last: tuple[int, str | None] = (-1, "ended the process at once")
        with contextlib.suppress(EOFError):
            while hears.poll(SECONDS + 20):
                last = hears.recv()
        process.kill()
        process.join()
        if last[1] is not None:
            faults.append(f"{name}, change {last[0]}: {last[1]}")
        results[name] = (count, last[0])
    assert not faults, "\n".join(faults)
    return results


@pytest.mark.parametrize("total", [1_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_damaged_files_are_read_or_refused(total: int, readers: dict[str, Reader], tmp_path: Path) -> None:
    actual = run_all(readers, tmp_path, total)
    print(
        *(f"{name}: {count:,} changed files, {refused:,} refused" for name, (count, refused) in actual.items()),
        sep="\n",
    )
    assert sum(count for count, _ in actual.values()) > 0.96 * total
    assert all(refused > 0 for count, refused in actual.values() if count > 50)
