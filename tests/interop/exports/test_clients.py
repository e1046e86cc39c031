"""Exports in the hands of others: onnxruntime and its quantisation, sentence-transformers, the snippets of the cards."""

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Capsys, small_model

from bertkit import export_model, load_model, load_tokenizer
from bertkit.base.files import sha256_file
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.sentence_transformers.folder import Pooling, read_pooling
from bertkit.model.bert_config import PRETRAINING_HEADS
from bertkit.model.head.head import any_pooled

PAIRS = [("kan lon.", "min"), ("A river rose.", "It fell again, slowly."), ("x", "y")]


def exported(tokenizer: Tokenizer, folder: Path, heads: tuple[str, ...], *options: str, **config: object) -> Path:
    pooled = not heads or any_pooled(heads)
    export_model(small_model(tokenizer.vocab_size, heads=heads, with_pooler=pooled, **config), tokenizer, folder / "in")
    assert run(["export", f"checkpoint={folder / 'in'}", *options, f"output_dir={folder / 'out'}"]) == 0
    return folder / "out"


def test_onnxruntime_and_its_quantisation(tokenizer: Tokenizer, tmp_path: Path, capsys: Capsys) -> None:
    import onnx
    import onnxruntime

    shape = {"max_position_embeddings": 64, "num_hidden_layers": 1}
    output = exported(tokenizer, tmp_path, PRETRAINING_HEADS, "head=pretraining", "onnx=int8", **shape)
    assert re.search(
        r"^onnx/model_quantized.onnx: .* 0\.\d+; on random tokens (all|at least [\d.]+ % of the) vectors have",
        capsys.readouterr().out,
        flags=re.MULTILINE,
    )
    graph = onnx.load(output / "onnx" / "model.onnx")
    assert graph.ir_version <= 9  # onnxruntime 1.17
    axes = [[axis.dim_param for axis in value.type.tensor_type.shape.dim] for value in graph.graph.input]
    assert axes == [["batch", "sequence"]] * 3
    assert graph.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    weights = {weight.name for weight in graph.graph.initializer}
    assert not weights & {value.name for value in graph.graph.value_info}
    rows = [row for row in json.loads((output / "parity.json").read_text())["onnx"] if row["file"] == "model.onnx"]
    assert {tuple(row["shape"]) for row in rows} == {(1, 7), (3, 61), (2, 64)}
    assert {row["output"] for row in rows} == {"prediction_logits", "seq_relationship_logits"}
    assert max(row["max_abs"] for row in rows) < 1e-5
    batch = load_tokenizer(output)([a for a, _ in PAIRS], [b for _, b in PAIRS], padding=True, return_tensors="np")
    plain, quantised = (
        onnxruntime.InferenceSession(output / "onnx" / name).run(None, batch)[0]
        for name in ("model.onnx", "model_quantized.onnx")
    )
    is_token = batch["attention_mask"].astype(bool)
    assert 0 < np.abs(plain - quantised)[is_token].max() < 0.2
    with torch.no_grad():
        ours = load_model(output)(**{name: torch.from_numpy(array) for name, array in batch.items()})
    np.testing.assert_allclose(plain[is_token], ours.logits["masked_lm"].numpy()[is_token], atol=1e-5)
    machine = [str(tmp_path).encode(), b"site-packages", b"/work"]
    assert not any(place in (output / "onnx" / "model.onnx").read_bytes() for place in machine)
    assert "transformers.js_config" not in json.loads((output / "config.json").read_text())


def test_cross_encoders_give_the_number_itself(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    output = exported(tokenizer, tmp_path, ("sequence",), "head=task", labels=("LABEL_0",), problem_type="regression")
    batch = load_tokenizer(output)([a for a, _ in PAIRS], [b for _, b in PAIRS], padding=True, return_tensors="pt")
    with torch.no_grad():
        ours = load_model(output)(**batch).logits["sequence"][:, 0].numpy()
    np.testing.assert_allclose(CrossEncoder(str(output), device="cpu").predict(PAIRS), ours, atol=1e-6)


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_what_sentence_transformers_saves_is_read(mode: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The keys of its version 6; those of older ones are what bertkit writes."""
    from sentence_transformers import SentenceTransformer

    output = exported(tokenizer, tmp_path, (), "head=encoder", f"sentence_transformers={mode}")
    assert read_pooling(output) == Pooling((mode,), normalize=False, max_length=41)
    SentenceTransformer(str(output), device="cpu").save(str(tmp_path / "saved"))
    assert "pooling_mode_mean_tokens" not in (tmp_path / "saved" / "1_Pooling" / "config.json").read_text()
    actual = read_pooling(tmp_path / "saved")
    assert actual is not None
    assert (actual.modes, actual.normalize) == ((mode,), False)


@pytest.mark.parametrize(("heads", "option"), [
    (("masked_lm", "next_sentence"), "head=pretraining"),
    (("masked_lm",), "head=masked_lm"),
    ((), "head=encoder"),
    (("sequence",), "head=task"),
    (("token",), "head=task"),
    (("span",), "head=task"),
    (("choice",), "head=task"),
    ((), "sentence_transformers=mean"),
])  # fmt: skip
def test_the_snippet_of_a_card_predicts_and_prints(
    heads: tuple[str, ...], option: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    labels = ("no", "yes")
    option = option if "=mean" not in option else f"{option} head=encoder"
    output = exported(tokenizer, tmp_path, heads, *option.split(), labels=labels, max_position_embeddings=64)
    (snippet,) = re.findall(r"```python\n(.*?)```", (output / "README.md").read_text(), flags=re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), torch.no_grad():
        exec(snippet.replace("DIRECTORY", str(output)), {})
    assert printed.getvalue().endswith("\n")
    before = sha256_file(output / "README.md")
    assert run(["export", f"checkpoint={tmp_path / 'in'}", *option.split(), f"output_dir={output}"]) == 0
    assert sha256_file(output / "README.md") == before
