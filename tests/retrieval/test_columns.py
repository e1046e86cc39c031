"""Conditions on the columns of records: the ranking of what is left is exact, by words, by vectors and with a reader."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Capsys, make_text, refused, small_model

import bertkit
from bertkit import export_model
from bertkit.apps.retrieval.encoders import PassageEncoder
from bertkit.apps.retrieval.library import Library
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer

LANGUAGES = ("de", "en", "fr")


@pytest.fixture(scope="module")
def library(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    encoder = small_model(tokenizer.vocab_size, heads=(), with_pooler=False, max_position_embeddings=97)
    export_model(encoder, tokenizer, folder / "encoder")
    records = [
        {
            "text": " ".join(document),
            "lang": LANGUAGES[n % 3],
            "year": 2000 + n % 2,
            "is new": n < 9,
            "long": "x" * 201,
            "list": [1],
        }
        for n, document in enumerate(make_text(37))
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    arguments = [
        f"corpus.path={folder / 'a.jsonl'}",
        f"model_dir={folder / 'encoder'}",
        "passages.words=31",
        "passages.overlap=0",
    ]
    assert run(["index", *arguments, f"output={folder / 'library.db'}"]) == 0
    return folder / "library.db"


def of(hit: object, where: list[str]) -> bool:
    number = int(str(hit).rpartition("#")[2]) - 1
    columns = {
        "lang": LANGUAGES[number % 3],
        "year": str(2000 + number % 2),
        "is new": "true" if number < 9 else "false",
    }
    return all(columns[name] == value for name, value in (condition.split("=") for condition in where))


@pytest.mark.parametrize("where", [["lang=de"], ["lang=fr", "year=2001"], ["is new=true"], ["year=1999"], []])
def test_a_condition_leaves_the_ranking_of_the_others(where: list[str], library: Path) -> None:
    opened, encoder = Library(library), PassageEncoder(str(library.parent / "encoder"), "encoder", "cpu")
    total = opened.num_passages
    for num_hits in (3, total):
        found = opened.find("kan lon mir", total)
        expected = [(hit.id, hit.score) for hit in found if of(hit.document, where)][:num_hits]
        actual = opened.find("kan lon mir", num_hits, where=where)
        assert [(hit.id, hit.score) for hit in actual] == expected
        query, _ = encoder.of_question("kan lon mir")
        nearest = sorted(opened.add_nearest([], query, total), key=lambda hit: -(hit.score_vectors or 0))
        by_vectors = opened.add_nearest([], query, num_hits, where)
        assert {hit.id for hit in by_vectors} == {
            hit.id for hit in [h for h in nearest if of(h.document, where)][:num_hits]
        }
        assert all(np.isfinite(hit.score_vectors or 0) for hit in by_vectors)
    rest = opened.find("xyz", total, where=where, add_rest=True)
    assert len(rest) == sum(of(hit.document, where) for hit in opened.find("xyz", total, add_rest=True))


def test_conditions_from_the_command_line_and_from_python(library: Path, capsys: Capsys) -> None:
    (one,) = bertkit.search(index=library, question="kan", where="lang=de", order="search")
    (many,) = bertkit.search(index=library, input=["kan"], where=["lang=de"], order="search")
    assert one["answers"] == many["search"]
    assert all(of(row["document"], ["lang=de"]) for row in one["answers"])
    arguments = ["search", f"index={library}", "question=kan", "order=search"]
    assert run([*arguments, "where=[lang=de,year=2001]", "top_k=50"]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith(f"{len(Library(library).find('kan', 50, where=['lang=de', 'year=2001']))} ")
    )
    assert run([*arguments, "where=[lang=xx,year=2001]"]) == 0
    assert capsys.readouterr().out.startswith("no document has where=lang=xx and year=2001\n")
    assert run(["search", f"index={library}", "question=xyzzy", "order=search", "where=lang=de"]) == 0
    assert capsys.readouterr().out.startswith("no passage contains a word of the question\n")
    many = f"where=[{','.join(['lang=de'] * 1200)}]"
    refused(run([*arguments, many]), "where: 1,200 conditions; expected at most 100", capsys)
    refused(run([*arguments, "where=lang"]), "where=lang: expected a column and its value", capsys)
    line = "where=long=: no document has this column; they have: 'is new', 'lang', 'year'"
    refused(run([*arguments, "where=long=x"]), line, capsys)


def test_whole_numbers_with_a_decimal_point_are_the_same(tmp_path: Path) -> None:
    """A column of whole numbers with a gap is written so by pandas; an id is the one of the judgements."""
    values: list[object] = [2020, 2020.0, "2020", 2020.5, 1e300, None]
    records = [{"text": "kan lon", "id": float(n), "year": value} for n, value in enumerate(values, 1)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    library = tmp_path / "library.db"
    assert run(["index", f"corpus.path={tmp_path / 'a.jsonl'}", f"output={library}"]) == 0
    for value, documents in (("2020", ["1", "2", "3"]), ("2020.5", ["4"]), ("1e+300", ["5"])):
        hits = Library(library).find("kan", 9, where=[f"year={value}"])
        assert sorted(hit.document for hit in hits) == documents
