"""Python's door: the examples of its docstrings run, and it takes and refuses what the command line does."""

import doctest
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Capsys, make_text, write_text

import bertkit
from bertkit import commands
from bertkit.base.errors import InputError
from bertkit.cli import run as command_line
from bertkit.run.trainer import stop_on_signal
from bertkit.settings.compose import compose, to_overrides


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The files that the examples of the docstrings create, in the order of the steps."""
    folder = tmp_path_factory.mktemp("python")
    write_text(folder / "books.txt", make_text(61))
    names: dict[str, Any] = {"bertkit": bertkit}
    steps = [commands.prepare, commands.pretrain, commands.finetune, commands.evaluate, commands.export]
    num_compared = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for step in (*steps, bertkit.load_predictor):
            for example in doctest.DocTestParser().get_examples(step.__doc__ or ""):
                if example.want:
                    assert repr(eval(example.source, names)) == example.want.strip(), example.source
                    num_compared += 1
                else:
                    exec(example.source, names)
    assert num_compared == 6
    return names


def test_the_examples_of_the_docstrings_run(made: dict[str, Any]) -> None:
    assert {"data", "run", "rows", "stars", "predictor"} <= set(made)


def test_a_run_shows_its_report(made: dict[str, Any]) -> None:
    run = made["run"]
    assert run.metrics[0].keys() >= {"step", "mlm_loss", "nsp_loss"}
    shown = run._repr_html_()
    assert shown.startswith("<iframe")
    assert "&lt;svg" in shown
    assert "<svg" not in shown
    assert bertkit.Run(None, None, {"accuracy": 1.0})._repr_html_().startswith("<pre>Run(")
    with pytest.raises(InputError, match="has no directory"):
        bertkit.load_predictor(bertkit.Run(None, None, {}))


def test_it_says_what_the_command_line_says(made: dict[str, Any], capsys: Capsys) -> None:
    with pytest.raises(InputError, match=r"^unknown key 'model.hiden_size'; did you mean 'hidden_size'\?$"):
        bertkit.pretrain(data_dir="books", output_dir="x", model={"hiden_size": 32})
    with pytest.raises(InputError, match="steps='many': expected a whole number"):
        bertkit.pretrain(data_dir="books", output_dir="x", steps="many")
    with pytest.raises(InputError, match=r"launch\.num_processes: "):
        bertkit.evaluate(model_dir="x", data_dir="y", launch={"num_processes": 2})
    run = made["stars"]
    command = json.loads((run.directory / "manifest.json").read_text())["command_line"]
    assert command[0] == "finetune"
    assert "task=sequence" in command
    assert sys.argv[1:] != command
    capsys.readouterr()
    predicted = made["predictor"](["a good day", "a bad day"])
    (run.directory / "texts.txt").write_text("a good day\na bad day\n")
    assert command_line(["predict", f"model_dir={run.directory}", f"input={run.directory}/texts.txt", "output=-"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["label"] for row in predicted] == [row["label"] for row in rows]
    for mine, theirs in zip(predicted, rows, strict=True):
        assert mine["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-6)


def test_every_form_of_rows(made: dict[str, Any]) -> None:
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    rows, run = made["rows"], made["stars"]
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    numbered = [{"text": row["text"], "label": ["bad", "good"].index(row["label"])} for row in rows]
    file = run.directory / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    forms = [rows, tuple(rows), datasets.Dataset.from_list(numbered, features=features), pandas.DataFrame(rows), file]
    found = [bertkit.evaluate(model_dir=run, data=form).scores for form in forms]
    assert found[1:] == found[:-1]
    assert found[0]["num_examples"] == 2
    predictor = made["predictor"]
    alike = [predictor(form) for form in (rows, pandas.DataFrame(rows), [row["text"] for row in rows])]
    assert [[row["label"] for row in each] for each in alike] == [[row["label"] for row in alike[0]]] * 3
    assert predictor([]) == []
    assert predictor.logits([]).shape == (0, 2)
    for wrong, message in (
        ("rows", "data=rows: no such file"),
        (["a text"], "data:1: str: expected a mapping"),
        ([{"text": "a", "label": object()}], "data:1: "),
    ):
        with pytest.raises(InputError, match=message):
            bertkit.evaluate(model_dir=run, data=wrong)


def test_logits_give_the_probabilities(made: dict[str, Any]) -> None:
    predictor, texts = made["predictor"], ["a good day", "a bad day", "a"]
    shares = torch.softmax(torch.from_numpy(predictor.logits(texts)), -1).numpy()
    said = [[row["probabilities"][label] for label in predictor.labels] for row in predictor(texts)]
    np.testing.assert_allclose(shares, said, atol=1e-6)
    with pytest.raises(InputError, match=r"inputs:2: 3: "):
        predictor(["a", 3])
    masked = bertkit.load_predictor(made["run"], top_k=2)
    assert len(masked("a [MASK] day")["masks"][0]) == 2
    with pytest.raises(InputError, match="logits: "):
        masked.logits("a [MASK] day")


VALUES = ["it's", "a\\", "a\\'b", "${oc.env:HOME}", "a=b,c", "[1,2]", "null", "1e3", " spaced ", 'say "x"', "", "é\n"]


@pytest.mark.parametrize("value", VALUES)
def test_any_text_reaches_a_setting_as_it_is(value: str) -> None:
    settings = {"model_dir": value, "data_dir": Path("glue"), "tasks": ["rte"], "output_dir": value, "seeds": (0, 1)}
    composed = compose("glue", to_overrides(settings))
    assert (composed["model_dir"], composed["output_dir"], composed["data_dir"]) == (value, value, "glue")
    assert (composed["tasks"], composed["seeds"]) == (["rte"], [0, 1])


def test_it_lists_its_names() -> None:
    assert set(dir(bertkit)) == set(bertkit.__all__)
    assert len(bertkit.__all__) >= 12
    for name in bertkit.__all__:
        assert getattr(bertkit, name) is not None


def test_another_thread_than_the_main_one_may_train() -> None:
    """Only the main thread may handle signals."""

    def ask() -> bool:
        with stop_on_signal() as is_requested:
            return is_requested()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(ask).result() is False
