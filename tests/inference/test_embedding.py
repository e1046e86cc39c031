"""Vectors of texts, beside the package sentence_transformers: real weights, every pooling, texts of all lengths."""

import doctest
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import HIDDEN, POSITIONS, minilm_dir, small_model

import bertkit
from bertkit import export_model, load_embedder
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.inference import embedding
from bertkit.interop.sentence_transformers.folder import Pooling
from bertkit.interop.sentence_transformers.layout import layout_files

TEXTS = [
    "A cat sits on the mat.", "", "Ünïcödé: 日本語, emoji 🙂 and \u200b nothing", "[SEP] and [MASK] are special here too",
    " \t\n ", "one " * 700, *("word " * count for count in (1, 2, 3, 5, 8, 13, 40, 80)),
]  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> Callable[[Path], Any]:
    package = pytest.importorskip("sentence_transformers")
    return lambda path: package.SentenceTransformer(str(path), device="cpu")


def embed(path: Path, *more: Any) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return load_embedder(path, *more, device="cpu")(TEXTS)


def test_a_real_model_and_what_version_6_saves_of_it(theirs: Callable[[Path], Any], tmp_path: Path) -> None:
    model = theirs(minilm_dir())
    expected = model.encode(TEXTS)
    vectors = embed(minilm_dir())
    assert (vectors.shape, vectors.dtype) == ((len(TEXTS), 384), np.float32)
    assert float(np.abs(vectors - expected).max()) <= 1e-5
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-5)
    assert np.abs(vectors[0] - vectors[2]).max() > 0.05  # texts are told apart
    model.save(str(tmp_path / "saved"))  # the files of the installed version
    assert load_embedder(tmp_path / "saved").pooling == Pooling(("mean",), True, 256)
    assert np.array_equal(embed(tmp_path / "saved"), vectors)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_every_pooling_equals_sentence_transformers(
    mode: str, normalize: bool, theirs: Callable[[Path], Any], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    plain = export_model(small_model(tokenizer.vocab_size, heads=(), with_pooler=True), tokenizer, tmp_path / "plain")
    stored = export_model(small_model(tokenizer.vocab_size, heads=()), tokenizer, tmp_path / "stored")
    for name, text in layout_files(Pooling((mode,), normalize, 17), HIDDEN, POSITIONS).items():
        (stored / name).parent.mkdir(exist_ok=True)
        (stored / name).write_text(text)
    model = theirs(stored)
    assert float(np.abs(embed(stored) - model.encode(TEXTS)).max()) <= 1e-5
    model.max_seq_length = POSITIONS
    expected = model.encode(TEXTS)
    assert float(np.abs(embed(plain, mode, normalize) - expected).max()) <= 1e-5
    assert np.abs(embed(stored) - expected).max() > 1e-3  # of 17 tokens and of all


@pytest.fixture(scope="module")
def small_dir(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(small_model(tokenizer.vocab_size), tokenizer, tmp_path_factory.mktemp("model") / "small")


def test_shapes_order_and_batches(small_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embed = load_embedder(small_dir, device="cpu")
    texts = TEXTS[:5] + TEXTS[6:10]
    vectors = embed(texts)
    assert vectors.shape == (9, embed.dimension) == (9, HIDDEN)
    assert embed(texts[0]).shape == (HIDDEN,)
    assert embed([]).shape == (0, HIDDEN)
    monkeypatch.setattr(embedding, "TEXTS_AT_ONCE", 2)
    for value in (iter(texts), tuple(texts), np.array(texts)):
        again = load_embedder(small_dir, device="cpu", batch_tokens=1)(value)
        assert np.abs(again - vectors).max() <= 1e-6
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(9), abs=1e-5)  # of a plain directory, by default
    assert embed.max_seq_length == POSITIONS
    near = load_embedder(small_dir, device="cpu", precision="bf16")(texts)
    assert 0 < np.abs(near - vectors).max() < 0.03


def test_encode_is_a_second_name(small_dir: Path) -> None:
    embed = load_embedder(small_dir)
    assert np.array_equal(embed.encode(["ka lo"]), embed(["ka lo"]))


def test_embedder_cuts_long_texts_with_warning(small_dir: Path) -> None:
    embed = load_embedder(small_dir, max_seq_length=7, device="cpu")
    with pytest.warns(UserWarning, match=r"1 of 2 .*max_seq_length=7"):
        cut = embed(["ka lo mi ru te so ka lo", "ka"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short = embed(["ka", "ka lo"])
    assert np.abs(cut[1] - short[0]).max() <= 1e-6


@pytest.mark.parametrize(("arguments", "message"), [
    ({"pooling": "median"}, "pooling='median': "),
    ({"precision": "fp8"}, "precision='fp8': "),
    ({"max_seq_length": 2}, "max_seq_length=2: "),
    ({"max_seq_length": 600}, f"max_seq_length=600.*={POSITIONS}"),
    ({"batch_tokens": 0}, "batch_tokens=0: "),
])  # fmt: skip
def test_embedder_refuses_bad_arguments(arguments: dict[str, Any], message: str, small_dir: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_embedder(small_dir, **arguments)


@pytest.mark.parametrize(("text", "message"), [(3, "is 3; expected"), ("a\ud800", "surrogate")])
def test_embedder_refuses_values_that_are_no_text(text: Any, message: str, small_dir: Path) -> None:
    with pytest.raises(InputError, match=rf"texts\[1\]: .*{message}"):
        load_embedder(small_dir)(["ka", text])


def test_a_row_without_the_texts_column_is_named(small_dir: Path) -> None:
    with pytest.raises(InputError, match="texts: row 2: no field 'text'"):
        load_embedder(small_dir)([{"text": "kan"}, {"txt": "lon"}])


def test_the_texts_are_those_of_the_column_text_whatever_is_in_it(small_dir: Path) -> None:
    """With a number or nothing in it the only other column of texts was embedded."""
    embed = load_embedder(small_dir)
    with pytest.raises(InputError, match=r"no column 'text' \(of texts: 'title'\)"):
        embed([{"title": "kan", "text": 7}])
    assert np.array_equal(embed({"title": "kan", "text": None}), embed(""))


def test_the_example_of_its_docstring() -> None:
    names = {"bertkit": bertkit, "model_dir": minilm_dir()}
    (example,) = doctest.DocTestFinder().find(load_embedder, "load_embedder", globs=names)
    assert len(example.examples) == 5
    assert doctest.DocTestRunner().run(example) == doctest.TestResults(failed=0, attempted=5)
    assert bertkit.load_embedder is load_embedder
    assert "load_embedder" in bertkit.__all__
