"""The vectors of a library: one for each passage from any encoder, kept as the files change, searched exactly, by no other model."""

import shutil
import signal
import sqlite3
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import HIDDEN, POSITIONS, Capsys, make_text, refused, small_model, write_text

import bertkit
from bertkit import export_model, load_embedder
from bertkit.apps.retrieval import vectors
from bertkit.apps.retrieval.encoders import PassageEncoder
from bertkit.apps.retrieval.library import Library
from bertkit.apps.retrieval.library_file import seal
from bertkit.apps.retrieval.ranking import Searcher, in_order
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.sentence_transformers.folder import Pooling
from bertkit.interop.sentence_transformers.layout import layout_files

ORDERS = ("search", "vectors", "hybrid")
PASSAGES = ("passages.words=23", "passages.overlap=0")


def encoder_of(tokenizer: Tokenizer, path: Path, seed: int) -> Path:
    model = small_model(tokenizer.vocab_size, heads=(), with_pooler=False, seed=seed, max_position_embeddings=97)
    return export_model(model, tokenizer, path)


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_of(tokenizer, tmp_path_factory.mktemp("encoder") / "model", 0)


@pytest.fixture(scope="module")
def other(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_of(tokenizer, tmp_path_factory.mktemp("other") / "model", 1)


@pytest.fixture(scope="module")
def library(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    text = write_text(folder / "text.txt", make_text(47))
    assert index(f"corpus.path={text}", f"model_dir={encoder}", f"output={folder / 'library.db'}", *PASSAGES) == 0
    return folder / "library.db"


def index(*arguments: object) -> int:
    return run(["index", *map(str, arguments)])


def vectors_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """The text and the vector of each passage, in the order of their ids."""
    with sqlite3.connect(path) as connection:
        yield from connection.execute("SELECT text, vector FROM passages LEFT JOIN vectors ON passage = id ORDER BY id")


def test_order_by_vectors_is_that_of_all_cosines(library: Path, encoder: Path) -> None:
    texts = [text for text, _ in vectors_of(library)]
    assert len(texts) > 29
    embed = load_embedder(encoder, device="cpu")
    matrix, (query,) = embed(texts), embed(["kan lon mir"])
    expected = sorted(zip((matrix @ query).tolist(), texts, strict=True), reverse=True)[:7]
    (found,) = bertkit.search(
        index=library, question="kan lon mir", order="vectors", top_k=7, candidates=7, device="cpu"
    )
    assert [row["passage"] for row in found["answers"]] == [text for _, text in expected]
    assert [row["score"] for row in found["answers"]] == pytest.approx([cosine for cosine, _ in expected], abs=1e-5)
    assert [row["score_vectors"] for row in found["answers"]] == [row["score"] for row in found["answers"]]


def test_the_order_is_by_the_similarity_and_the_prompts_of_the_folder(
    library: Path, encoder: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """As with `encode_query`, `encode_document` and `similarity` of sentence-transformers."""
    package = pytest.importorskip("sentence_transformers")
    shutil.copytree(encoder, tmp_path / "dot")
    prompts = {"query": "lon: ", "document": "min "}
    pooling = Pooling(similarity="dot", prompts=prompts, default_prompt="document")
    for name, text in layout_files(pooling, HIDDEN, POSITIONS).items():
        (tmp_path / "dot" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "dot" / name).write_text(text)
    output = tmp_path / "dot.db"
    command = (f"corpus.path={library.parent / 'text.txt'}", f"model_dir={tmp_path / 'dot'}", *PASSAGES)
    assert index(*command, f"output={output}") == 0
    texts = [text for text, _ in vectors_of(output)]
    model = package.SentenceTransformer(str(tmp_path / "dot"), device="cpu")
    scores = model.similarity(model.encode_query(["kan lon mir"]), model.encode_document(texts))[0].tolist()
    expected = sorted(zip(scores, texts, strict=True), reverse=True)[:7]
    options: dict[str, object] = {"order": "vectors", "top_k": 7, "candidates": 7, "device": "cpu"}
    (found,) = bertkit.search(index=output, question="kan lon mir", **options)
    assert [row["passage"] for row in found["answers"]] == [text for _, text in expected]
    assert [row["score"] for row in found["answers"]] == pytest.approx([score for score, _ in expected], rel=1e-4)
    assert expected[0][0] > 1.5  # no cosine
    (tmp_path / "dot" / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "manhattan"}')
    refused(index(*command, f"output={tmp_path / 'b.db'}"), "similarity_fn_name='manhattan' is not supported", capsys)


def test_hybrid_is_the_sum_of_scaled_scores_of_both_lists(library: Path, encoder: Path) -> None:
    searcher = Searcher(Library(library), None, encoder=PassageEncoder(str(encoder), "encoder", "cpu"))
    candidates = searcher.matches("kan lon mir", 11).candidates
    lists = {
        order: {candidate.hit.id: score for candidate, score in in_order(candidates, order, searcher.both)}
        for order in ORDERS
    }
    assert [len(scores) for scores in lists.values()] == [11, len(candidates), len(candidates)]
    words, nearest = lists["search"], dict([*lists["vectors"].items()][:11])
    assert lists["hybrid"].keys() == words.keys() | nearest.keys()
    assert 11 < len(candidates) < 22  # the lists differ, and share passages
    found = Library(library).find("kan lon mir", 11)
    assert list(words.items()) == [(hit.id, hit.score) for hit in found]
    scaled = []
    for scores in (words, lists["vectors"]):
        all_scores = np.array([scores.get(number, 0.0) for number in lists["hybrid"]])
        scaled.append((all_scores - all_scores.min()) / (all_scores.max() - all_scores.min()))
    assert list(lists["hybrid"].values()) == pytest.approx(sum(scaled))
    assert list(lists["hybrid"].values()) == sorted(lists["hybrid"].values(), reverse=True)


def test_questions_have_every_order_that_the_library_allows(library: Path, tmp_path: Path, capsys: Capsys) -> None:
    (one,) = bertkit.search(index=library, question="kan lon")
    assert one["order"] == "hybrid"  # the best one in recipes/search_qa
    (many,) = bertkit.search(index=library, input=["kan lon"])
    assert [key for key in many if key in (*ORDERS, "bert", "both")] == list(ORDERS)
    plain = tmp_path / "plain.db"
    assert index(f"corpus.path={write_text(tmp_path / 'a.txt', make_text(5))}", f"output={plain}") == 0
    (one,) = bertkit.search(index=plain, question="kan lon")
    assert (one["order"], one["answers"][0]["score_vectors"]) == ("search", None)
    refused(run(["search", f"index={plain}", "question=kan", "order=hybrid"]), "order=hybrid: needs vectors; ", capsys)


def test_vectors_of_eight_bits_are_those_of_32_within_half_a_step(
    library: Path, encoder: Path, tmp_path: Path, capsys: Capsys
) -> None:
    command = (f"corpus.path={library.parent / 'text.txt'}", f"output={tmp_path / 'small.db'}", *PASSAGES)
    assert index(*command, f"model_dir={encoder}", "vectors=int8") == 0
    exact, small = Library(library), Library(tmp_path / "small.db")
    query, is_cut = PassageEncoder(str(encoder), "encoder", "cpu").of_question("kan lon mir")
    assert not is_cut
    cosines, others = (
        {hit.passage: hit.score_vectors or 0.0 for hit in one.add_nearest([], query, one.num_passages)}
        for one in (exact, small)
    )
    assert len(cosines) > 29
    step = 1 / 127  # of the largest number, which is at most 1
    assert others == pytest.approx(cosines, abs=step / 2 * float(np.abs(query).sum()))
    assert others != cosines
    sizes = [len(next(vectors_of(path))[1]) for path in (library, tmp_path / "small.db")]
    assert sizes == [4 + 4 * len(query), 4 + len(query)]
    (found,) = bertkit.search(index=tmp_path / "small.db", question="kan lon", order="hybrid", device="cpu")
    assert len(found["answers"]) == 10
    refused(index(*command, f"model_dir={encoder}"), f"output={tmp_path / 'small.db'} has vectors=int8; set", capsys)
    refused(index(*command, "vectors=int8"), "vectors=int8: has no effect without model_dir=", capsys)


def test_products_of_many_blocks_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    matrix, query = random.normal(size=(53, 17)).astype(np.float32), random.normal(size=17).astype(np.float32)
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    monkeypatch.setattr(vectors, "BLOCK", 7)
    assert vectors.products(vectors.records_of(matrix, "float32"), query) == pytest.approx(matrix @ query, abs=1e-6)
    records = vectors.records_of(matrix, "int8")
    assert np.abs(records["numbers"]).max(axis=1).tolist() == [127] * 53
    with warnings.catch_warnings(action="error"):
        assert vectors.products(vectors.records_of(0 * matrix, "int8"), query).tolist() == [0] * 53
    assert vectors.products(records, query) == pytest.approx(matrix @ query, abs=0.02)


def test_another_model_is_refused(library: Path, encoder: Path, other: Path, tmp_path: Path, capsys: Capsys) -> None:
    question = ["search", f"index={library}", "question=kan"]
    refused(
        run([*question, f"encoder={other}"]), f"index={library}: its vectors are not from the model {other}", capsys
    )
    moved = tmp_path / "moved"
    shutil.copytree(encoder, moved)
    assert run([*question, f"encoder={moved}"]) == 0
    refused(run([*question, f"encoder={tmp_path / 'none'}"]), f"encoder={tmp_path / 'none'}: no such directory", capsys)
    again = [f"corpus.path={library.parent / 'text.txt'}", f"output={library}", *PASSAGES]
    for model in ((), (f"model_dir={other}",)):
        refused(index(*again, *model), f"output={library} has vectors of another model, {encoder}; ", capsys)


def test_vectors_follow_the_files(encoder: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Also those of a passage that has the id of a deleted one; a library without vectors gets them."""
    texts, output, whole = make_text(31), tmp_path / "library.db", tmp_path / "whole.db"
    source = write_text(tmp_path / "a.txt", texts[:17])
    command = (f"corpus.path={source}", f"output={output}", *PASSAGES)
    assert index(*command) == index(*command, f"model_dir={encoder}") == 0
    for some in (texts[:11], texts[:11] + texts[19:]):  # the last documents go, then others come
        write_text(source, some)
        assert index(*command, f"model_dir={encoder}") == 0
    assert index(f"corpus.path={source}", f"output={whole}", *PASSAGES, f"model_dir={encoder}") == 0
    actual, expected = (
        {text: np.frombuffer(vector, "<f4") for text, vector in vectors_of(path)} for path in (output, whole)
    )
    assert actual.keys() == expected.keys()
    for text, vector in actual.items():
        assert vector == pytest.approx(expected[text], abs=1e-5)
    capsys.readouterr()
    assert index(*command, f"model_dir={encoder}") == 0
    assert "done already" in capsys.readouterr().out


KILLED = """
import os, signal, sys
from bertkit.cli import run
from bertkit.apps.retrieval import library_writer

blocks, add_vectors = [], library_writer.LibraryWriter.add_vectors

class Killing(list):  # after two passages of a block
    def __iter__(self):
        yield from self[:2]
        os.kill(os.getpid(), signal.SIGKILL)

def counted(self, ids, vectors, numbers):
    blocks.append(1)
    add_vectors(self, Killing(ids) if len(blocks) == int(sys.argv[1]) else ids, vectors, numbers)

library_writer.VECTORS_AT_ONCE = 5
library_writer.LibraryWriter.add_vectors = counted
sys.exit(run(sys.argv[2:]))
"""


def test_a_killed_index_goes_on_with_the_same_vectors(python: Path, encoder: Path, tmp_path: Path) -> None:
    """Killed in the midst of a block, twice: what was committed stays, and the end is that of one run, bit by bit."""
    source = write_text(tmp_path / "a.txt", make_text(47))
    arguments = ["index", f"corpus.path={source}", f"model_dir={encoder}", *PASSAGES]
    output, counts = tmp_path / "killed.db", [0]
    for moment in (3, 2):
        killed = subprocess.run([python, "-c", KILLED, str(moment), *arguments, f"output={output}"])
        assert killed.returncode == -signal.SIGKILL
        assert not output.exists()
        with sqlite3.connect(tmp_path / "killed.db.partial" / ".unfinished" / "library.db") as connection:
            counts.append(connection.execute("SELECT count(*) FROM vectors").fetchone()[0])
    assert counts == [0, 10, 15]
    for path in (output, tmp_path / "whole.db"):
        subprocess.run([python, "-c", KILLED, "0", *arguments, f"output={path}"], check=True)
    assert list(vectors_of(output)) == list(vectors_of(tmp_path / "whole.db"))
    assert len(list(vectors_of(output))) > 20


def test_damaged_vectors_are_refused(library: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Also by somebody who writes checksums; other orders need no vectors."""
    for change in (
        "DELETE FROM vectors WHERE passage = 3",
        "UPDATE vectors SET vector = x'00000000' || vector WHERE passage = 3",
        "UPDATE vectors SET vector = 'text' WHERE passage = 3",
        "UPDATE settings SET value = '[]' WHERE name = 'encoder'",
    ):
        path = tmp_path / "damaged.db"
        path.write_bytes(library.read_bytes())
        with sqlite3.connect(path) as connection:
            connection.execute(change)
        connection.close()
        seal(path)
        refused(run(["search", f"index={path}", "question=kan"]), f"{path}: damaged library (", capsys)
