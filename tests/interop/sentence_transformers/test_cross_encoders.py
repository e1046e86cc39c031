"""Cross-encoders: the scores that sentence-transformers gives, from the files of its versions, and those of an export."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import small_model

import bertkit
from bertkit import export_model
from bertkit.base.errors import InputError
from bertkit.cli import run
from bertkit.data.corpus.tokenizer import Tokenizer

sentence_transformers = pytest.importorskip("sentence_transformers")

PAIRS = [("kan lon.", "min"), ("A river rose.", "It fell again, slowly."), ("x", "y")]
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
OLD = "sbert_ce_default_activation_function"


def made(folder: Path, tokenizer: Tokenizer, labels: tuple[str, ...] = ("LABEL_0",), **changes: Any) -> Path:
    """Export a model, and change its config.json, in which None removes a key."""
    model = small_model(tokenizer.vocab_size, heads=("sequence",), labels=labels)
    for parameter in model.heads["sequence"].parameters():
        parameter.data.mul_(30)  # scores that a sigmoid changes
    export_model(model, tokenizer, folder)
    content = json.loads((folder / "config.json").read_text()) | changes
    kept = {key: value for key, value in content.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def their_scores(folder: Path) -> np.ndarray:
    logging.disable(logging.ERROR)
    try:
        return np.asarray(
            sentence_transformers.CrossEncoder(str(folder), device="cpu", local_files_only=True).predict(PAIRS)
        )
    finally:
        logging.disable(logging.NOTSET)


def our_scores(folder: Path) -> list[float]:
    return [row["label"] for row in bertkit.load_predictor(folder)(PAIRS)]


CASES: dict[str, dict[str, Any]] = {
    "version 4": {"sentence_transformers": {"activation_fn": SIGMOID, "version": "4.1.0"}},
    "version 4, the logit": {"sentence_transformers": {"activation_fn": IDENTITY}},
    "version 4, by default": {"sentence_transformers": {"version": "4.1.0"}},
    "version 3": {"sentence_transformers": None, OLD: "torch.nn.modules.activation.Sigmoid"},
    "version 3, the logit": {"sentence_transformers": None, OLD: "torch.nn.modules.linear.Identity"},
    "code that is not run": {"sentence_transformers": {"activation_fn": "my.code.Softplus"}},
}


@pytest.mark.parametrize("name", [*CASES, "version 6", "version 6, the logit"])
def test_one_label_has_the_score_of_the_package(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Also after an export, which says which function it is."""
    folder = made(tmp_path / "in", tokenizer, **CASES.get(name, {"sentence_transformers": None}))
    if name not in CASES:
        activation = None if name == "version 6" else sentence_transformers.cross_encoder.model.nn.Identity()
        model = sentence_transformers.CrossEncoder(str(folder), device="cpu", activation_fn=activation)
        model.save(str(folder / "saved"))
        folder = folder / "saved"
    expected = their_scores(folder)
    is_logit = "logit" in name
    assert (expected.min() < 0) == is_logit  # not a probability
    assert our_scores(folder) == pytest.approx(expected.tolist(), abs=1e-5)
    if "4" in name:
        assert run(["export", f"checkpoint={folder}", "head=task", f"output_dir={tmp_path / 'out'}"]) == 0
        assert their_scores(tmp_path / "out") == pytest.approx(expected, abs=1e-5)
        assert our_scores(tmp_path / "out") == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("changes", [CASES["version 4"], CASES["version 4, the logit"], {"problem_type": "regression"}])
def test_the_snippet_of_a_card_prints_the_score(
    changes: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It printed the name of the only label."""
    folder = made(tmp_path / "in", tokenizer, **changes)
    assert run(["export", f"checkpoint={folder}", "head=task", f"output_dir={tmp_path / 'out'}"]) == 0
    (snippet,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text(), flags=re.DOTALL)
    capsys.readouterr()
    exec(snippet.replace("DIRECTORY", str(tmp_path / "out")), {})
    (row,) = bertkit.load_predictor(folder)(["A text to read."])
    assert float(capsys.readouterr().out) == pytest.approx(row["label"], abs=1e-5)


def test_other_functions_are_refused_by_name(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tanh = {"activation_fn": "torch.nn.modules.activation.Tanh"}
    three = ("a", "b", "c")
    for number, (labels, changes, fault) in enumerate([
        (("LABEL_0",), {"sentence_transformers": tanh}, "activation_fn='torch.nn.modules.activation.Tanh' with 1 label"),
        (three, {"sentence_transformers": {"activation_fn": SIGMOID}}, "Sigmoid' with 3 labels is not supported"),
        (three, {"sentence_transformers": {"activation_fn": IDENTITY}}, None),
        (three, {"sentence_transformers": {"activation_fn": SIGMOID}, "problem_type": "multi_label_classification"}, None),
        (("LABEL_0",), {"problem_type": "single_label_classification", "sentence_transformers": None}, "whose probability is always 1"),
    ]):  # fmt: skip
        folder = made(tmp_path / str(number), tokenizer, labels, **changes)
        if fault is None:
            bertkit.load_predictor(folder)
        else:
            with pytest.raises(InputError, match=fault):
                bertkit.load_predictor(folder)
    model = sentence_transformers.CrossEncoder(str(made(tmp_path / "a", tokenizer)), device="cpu")
    model.save(str(tmp_path / "b"))
    with pytest.raises(InputError, match="model_type='CrossEncoder' is not supported"):
        bertkit.load_embedder(tmp_path / "b")
    for name, changes, fault in [
        ("config_sentence_transformers.json", {"prompts": {"q": "ka "}, "default_prompt_name": "q"}, "default_prompt_name='q'"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case=True is not supported for a cross-encoder"),
    ]:  # fmt: skip
        path = tmp_path / "b" / name
        before = path.read_text()
        path.write_text(json.dumps(json.loads(before) | changes))
        with pytest.raises(InputError, match=fault):
            bertkit.load_predictor(tmp_path / "b")
        path.write_text(before)


def test_a_model_that_is_trained_on_has_its_own_scale(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The sigmoid belongs to the weights that were trained with it."""
    from bertkit.interop.load import load_directory

    folder = made(tmp_path, tokenizer, **CASES["version 4"])
    assert load_directory(folder).model.config.score_activation == "sigmoid"
    tuned = load_directory(folder, labels=("score",), problem_type="regression").model
    assert tuned.config.score_activation is None
