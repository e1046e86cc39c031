"""`bertkit embed` as a user meets it: every format in and out, in order, whole or as far as it came."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import HIDDEN, Capsys, small_model
from pyarrow import parquet

from bertkit import export_model, load_embedder
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.reading import readers

TEXTS = ["kan lon", "", "mir " * 60, "kar, lor", "Ünï \u2028 日本"]


@pytest.fixture(scope="module")
def model_dir(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def expected(model_dir: Path) -> np.ndarray:
    return load_embedder(model_dir, device="cpu").embed(TEXTS)[0]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "READ_AT_ONCE", 2)


def embed(model_dir: Path, arguments: Path | str, output: Path | str, *more: str) -> int:
    return run(["embed", f"model_dir={model_dir}", f"input={arguments}", f"output={output}", "device=cpu", *more])


def read(path: Path) -> tuple[list[str] | None, np.ndarray]:
    if path.suffix == ".npy":
        return None, np.load(path, mmap_mode="r")
    if path.suffix == ".parquet":
        table = parquet.read_table(path)
        vectors = np.stack(table.column("embedding").to_pandas().to_list())
        return table.column("text").to_pylist(), vectors
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert all(list(row) == ["text", "embedding"] for row in rows)
    return [row["text"] for row in rows], np.array([row["embedding"] for row in rows], np.float32)


@pytest.mark.parametrize("name", ["vectors.npy", "vectors.parquet", "vectors.jsonl"])
def test_every_format_has_the_same_vectors(
    name: str, model_dir: Path, expected: np.ndarray, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    output = tmp_path / "new" / name
    assert embed(model_dir, tmp_path / "in.txt", output) == 0
    texts, vectors = read(output)
    assert (vectors.dtype, vectors.shape) == (np.float32, (5, HIDDEN))
    assert np.abs(vectors - expected).max() <= 1e-6
    assert texts in (None, TEXTS)
    assert [path.name for path in output.parent.iterdir()] == [name]
    printed = capsys.readouterr().err
    assert f"5 vectors of {HIDDEN} numbers in {output}\n" in printed
    assert "warning: 1 of 5 texts have more than max_seq_length=41" in printed


TABLES = {
    "in.csv": "id,review,label\n" + "".join(f'{n},"{text}",x\n' for n, text in enumerate(TEXTS)),
    "in.tsv": "id\treview\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(TEXTS)),
    "in.jsonl": "".join(json.dumps({"review": text, "label": [1]}) + "\n" for text in TEXTS),
}


@pytest.mark.parametrize("name", TABLES)
def test_embed_takes_a_column_of_a_table(name: str, model_dir: Path, expected: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / name).write_text(TABLES[name], encoding="utf-8")
    assert embed(model_dir, tmp_path / name, tmp_path / "out.npy", "column=review") == 0
    assert np.abs(read(tmp_path / "out.npy")[1] - expected).max() <= 1e-6


def test_settings_reach_the_vectors(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    more = ["pooling=max", "normalize=false", "max_seq_length=9", "batch_tokens=11"]
    assert embed(model_dir, tmp_path / "in.txt", tmp_path / "out.npy", *more) == 0
    embedder = load_embedder(model_dir, "max", False, max_seq_length=9, device="cpu")
    with pytest.warns(UserWarning, match="max_seq_length=9"):
        wanted = embedder(TEXTS)
    vectors = read(tmp_path / "out.npy")[1]
    assert np.abs(vectors - wanted).max() <= 1e-6
    assert np.linalg.norm(vectors, axis=1).min() > 1.5


def test_from_standard_input_to_standard_output(
    model_dir: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    stream = io.BufferedReader(io.BytesIO("\n".join(TEXTS).encode()))  # type: ignore[arg-type]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=stream))
    assert embed(model_dir, "-", "-") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [row["text"] for row in rows] == TEXTS
    assert np.abs(np.array([row["embedding"] for row in rows]) - expected).max() <= 1e-6


@pytest.mark.parametrize("ending", ["npy", "parquet", "jsonl"])
def test_what_came_before_an_error_is_kept_and_can_be_read(
    ending: str, model_dir: Path, expected: np.ndarray, tmp_path: Path, capsys: Capsys
) -> None:
    lines = [json.dumps({"text": text}) for text in TEXTS]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines[:4], '{"text": 3}']), encoding="utf-8")
    output = tmp_path / f"out.{ending}"
    assert embed(model_dir, tmp_path / "in.jsonl", output) == 2
    printed = capsys.readouterr().err
    assert "in.jsonl:5: 'text' is " in printed
    assert f"4 vectors before it are in {output}.partial" in printed
    assert not output.exists()
    Path(f"{output}.partial").rename(output)
    assert np.abs(read(output)[1] - expected[:4]).max() <= 1e-6
    output.unlink()
    (tmp_path / "in.jsonl").write_text('{"text": 3}\n')
    assert embed(model_dir, tmp_path / "in.jsonl", output) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]  # nothing came of it


def test_empty_input_gives_empty_output(model_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "in.txt").write_text("")
    for ending in ("npy", "parquet", "jsonl"):
        assert embed(model_dir, tmp_path / "in.txt", tmp_path / f"out.{ending}") == 0
        assert "in.txt has no texts" in capsys.readouterr().err
    assert read(tmp_path / "out.npy")[1].shape == (0, HIDDEN)
    assert parquet.read_table(tmp_path / "out.parquet").num_rows == 0
    assert (tmp_path / "out.jsonl").read_text() == ""


def test_bad_embed_arguments_are_refused(model_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    table, folder = tmp_path / "in.csv", tmp_path / "folder"
    table.write_text("title,body\na,b\n")
    folder.mkdir()
    cases: list[tuple[Any, Any, list[str], str]] = [
        (table, "out.txt", [], "output=out.txt: "),
        (table, table.with_suffix(".npy"), [], "column="),
        (table, table.with_suffix(".npy"), ["column=bdy"], "did you mean 'body'?"),
        (table, table.with_suffix(".npy"), ["column=5"], "no column 5 "),
        (table, table.with_suffix(".npy"), ["pooling=sum"], "pooling='sum': "),
        (table, table.with_suffix(".npy"), ["normalise=true"], "did you mean 'normalize'?"),
        (table, table.with_suffix(".npy"), ["column=a", "format=text"], "column=a: has no effect"),
        (tmp_path / "none.txt", tmp_path / "out.npy", [], "none.txt"),
        (tmp_path / "a.jsonl", tmp_path / "a.jsonl", [], "output="),
        (tmp_path / "folder/../a.jsonl", tmp_path / "a.jsonl", [], "a.jsonl"),
        (folder, tmp_path / "out.npy", [], f"input={folder} "),
    ]  # fmt: skip
    for value, output, more, message in cases:
        assert embed(model_dir, value, output, *more) == 2
        error = capsys.readouterr().err
        assert message in error, error
        assert "task." not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "in.csv"]
    assert embed(model_dir, table, table.with_suffix(".npy"), "column=body") == 0  # as the message says
