"""Python's door: the examples of its docstrings run, and it takes and refuses what the command line does."""

import contextlib
import doctest
import functools
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import signatures
import torch
from conftest import Capsys, make_text, output_of, weights_of, write_text

import bertkit
from bertkit.base import processors
from bertkit.base.errors import InputError, StoppedError
from bertkit.cli import run as command_line
from bertkit.commands import COMMANDS
from bertkit.run import trainer
from bertkit.run.directory import read_manifest
from bertkit.run.trainer import stop_on_signal
from bertkit.settings.reading.compose import compose, compose_values


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The files that the examples of the docstrings create, in the order of the steps."""
    folder = tmp_path_factory.mktemp("python")
    write_text(folder / "books.txt", make_text(61))
    names: dict[str, Any] = {"bertkit": bertkit}
    steps = [getattr(bertkit, name) for name in COMMANDS]
    num_compared = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for step in (*steps, bertkit.load_predictor):
            examples = doctest.DocTestParser().get_examples(step.__doc__ or "")
            assert examples, step
            for example in examples:
                if doctest.SKIP in example.options:
                    continue
                if example.want:
                    assert repr(eval(example.source, names)) == example.want.strip(), example.source
                    num_compared += 1
                else:
                    exec(example.source, names)
    assert num_compared == 12
    return names


def test_the_examples_of_the_docstrings_run(made: dict[str, Any]) -> None:
    assert {"data", "run", "rows", "stars", "predictor"} <= set(made)
    assert "first choose a model that knows the tokens" in made["stars"].scores["warnings"][0]  # 67 % are unknown


def test_a_run_shows_its_report(made: dict[str, Any]) -> None:
    run = made["run"]
    assert run.metrics[0].keys() >= {"step", "mlm_loss", "nsp_loss"}
    shown = run._repr_html_()
    assert shown.startswith("<iframe")
    assert "&lt;svg" in shown
    assert "<svg" not in shown
    assert repr(bertkit.Run(None, None, {"accuracy": 1.0})) == "Run(accuracy=1)"
    assert bertkit.Run(None, None, {"accuracy": 1.0})._repr_html_().startswith("<pre>Run(")
    with pytest.raises(InputError, match="has no directory"):
        bertkit.load_predictor(bertkit.Run(None, None, {}))


def test_python_errors_equal_command_line_errors(made: dict[str, Any], tmp_path: Path, capsys: Capsys) -> None:
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
    (tmp_path / "texts.txt").write_text("a good day\na bad day\n")
    assert command_line(["predict", f"model_dir={run.directory}", f"input={tmp_path}/texts.txt", "output=-"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["label"] for row in predicted] == [row["label"] for row in rows]
    for mine, theirs in zip(predicted, rows, strict=True):
        assert mine["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-6)


def test_every_form_of_rows(made: dict[str, Any], tmp_path: Path) -> None:
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    rows, run = made["rows"], made["stars"]
    features = datasets.Features(
        {"review": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    numbered = [{"review": row["review"], "label": ["bad", "good"].index(row["label"])} for row in rows]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    forms = [rows, tuple(rows), datasets.Dataset.from_list(numbered, features=features), pandas.DataFrame(rows), file]
    actual = [bertkit.evaluate(model_dir=run, data=form).scores for form in forms]
    assert actual[1:] == actual[:-1]
    assert actual[0]["num_examples"] == 2
    predictor = made["predictor"]
    texts, dataset = [row["review"] for row in rows], datasets.Dataset.from_list(rows)
    forms = [rows, pandas.DataFrame(rows), dataset, (row for row in rows)]
    columns = [texts, pandas.Series(texts, name="review"), np.array(texts), (text for text in texts), dataset["review"]]
    expected = [row["label"] for row in predictor(rows)]
    assert [[row["label"] for row in predictor(form)] for form in [*forms, *columns]] == [expected] * 9
    columns = [texts, tuple(texts), pandas.Series(texts), np.array(texts), (text for text in texts), dataset["review"]]
    embed = bertkit.load_embedder(made["run"])
    vectors = embed(texts)
    for form in (*columns, pandas.DataFrame(rows)[["review"]], [{"n": 1, "text": text} for text in texts]):
        np.testing.assert_array_equal(embed(form), vectors)
    np.testing.assert_array_equal(embed({"text": texts[0], "label": "good"}), embed(texts[0]))
    np.testing.assert_array_equal(bertkit.embed(model_dir=made["run"], input=rows, text_column="review"), vectors)
    for unclear, message in (
        (pandas.DataFrame(rows), "of texts: 'review', 'label'"),
        ({"text": ["a"]}, "no column 'text'"),
        (3, "texts: int: "),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), "texts: two columns 'text'"),
    ):
        with pytest.raises(InputError, match=message):
            embed(unclear)
    with pytest.raises(InputError, match="texts: dict: "):
        bertkit.embed(model_dir=made["run"], input={"text": texts})
    assert predictor([]) == []
    assert predictor.logits([]).shape == (0, 2)
    for wrong, message in (
        ("rows", "data=rows: no such file"),
        (["a text"], "data: row 1: str; expected a mapping"),
        ([{"text": "a", "label": object()}], "data: row 1: "),
        (pandas.DataFrame([["a", "b", "c"]], columns=["text", "label", "label"]), "data: two columns 'label'"),
    ):
        with pytest.raises(InputError, match=message):
            bertkit.evaluate(model_dir=run, data=wrong)


def test_logits_give_the_probabilities(made: dict[str, Any]) -> None:
    predictor, texts = made["predictor"], ["a good day", "a bad day", "a"]
    shares = torch.softmax(torch.from_numpy(predictor.logits(texts)), -1).numpy()
    predictions = [[row["probabilities"][label] for label in predictor.labels] for row in predictor(texts)]
    np.testing.assert_allclose(shares, predictions, atol=1e-6)
    with pytest.raises(InputError, match="inputs: row 2: 'text' is 3; expected text"):
        predictor(["a", 3])
    masked = bertkit.load_predictor(made["run"], top_k=2)
    assert len(masked("a [MASK] day")["masks"][0]) == 2
    with pytest.raises(InputError, match="logits: "):
        masked.logits("a [MASK] day")


def test_the_natural_first_arguments_need_no_names(made: dict[str, Any], tmp_path: Path) -> None:
    """As on the command line: `predict RUN FILE`, `export RUN OUT`; a view shows itself where no file is named."""
    run, rows, texts = made["stars"], made["rows"], ["a good day", "a bad day"]
    assert bertkit.predict(run, texts) == bertkit.predict(model_dir=run, input=texts)
    assert bertkit.evaluate(run, rows) == bertkit.evaluate(model_dir=run, data=rows)
    assert bertkit.finetune(rows * 8, dev=rows, num_epochs=1, output_dir=run.directory, **made["task"]) == run
    np.testing.assert_array_equal(bertkit.embed(run, texts), bertkit.embed(model_dir=run, input=texts))
    both = (made["run"], run)
    compared = [
        bertkit.compare(*both, output=tmp_path / "a.html"),
        bertkit.compare([*both], output=tmp_path / "b.html"),
    ]
    assert compared[0].scores == compared[1].scores
    page = bertkit.view(run, "a good day", steps=0)
    assert page._repr_html_().startswith("<iframe")
    assert page == bertkit.view(run, "a good day", steps=0, output=tmp_path / "c.html").output.read_text()
    assert command_line(["export", str(run.directory), str(tmp_path / "out")]) == 0
    assert command_line(["export", str(run.directory), str(tmp_path / "out")]) == 0  # done already
    assert (tmp_path / "out" / "config.json").is_file()


def test_a_missing_text_is_an_empty_one_everywhere(made: dict[str, Any], tmp_path: Path, capsys: Capsys) -> None:
    """In a file, a data frame and a list, for the command, the predictor, the embedder and the estimator."""
    pandas = pytest.importorskip("pandas")
    predictor, embed, texts = made["predictor"], bertkit.load_embedder(made["run"]), ["a good day", None]
    frame = pandas.DataFrame({"review": texts})
    frame.to_csv(tmp_path / "in.csv", index=False)
    capsys.readouterr()
    expected = [row["label"] for row in predictor(["a good day", ""])]
    assert "warning: 1 example had an empty text" in capsys.readouterr().err
    for inputs in (
        texts,
        frame,
        [{"review": text} for text in texts],
        [*reversed(texts)],
        ["a good day", float("nan")],
    ):
        labels = [row["label"] for row in predictor(inputs)]
        assert sorted(labels) == sorted(expected)
        assert "warning: 1 example had an empty text" in capsys.readouterr().err
    assert [row["label"] for row in bertkit.predict(model_dir=made["stars"], input=tmp_path / "in.csv")] == expected
    assert "warning: 1 example had an empty text" in capsys.readouterr().err
    for inputs in (texts, frame, [{"review": "a good day"}, {"review": float("nan")}]):
        np.testing.assert_array_equal(embed(inputs), embed(["a good day", ""]))
        assert "warning: 1 text missing, the first texts[1]; treated as empty" in capsys.readouterr().err
    classifier = bertkit.BertClassifier("none")
    assert classifier._texts(texts, reset=True) == [("a good day",), ("",)]
    assert "warning: 1 text missing, the first X[1]; treated as empty" in capsys.readouterr().err


def test_the_same_cell_twice_is_done_already(made: dict[str, Any], tmp_path: Path, capsys: Capsys) -> None:
    pandas = pytest.importorskip("pandas")
    run, rows, folder = made["stars"], pandas.DataFrame(made["rows"]), made["stars"].directory
    cell: dict[str, Any] = {
        "model_dir": made["run"], "dev": rows, "output_dir": folder, "task": "sequence", "num_epochs": 1, "text_column": "review"
    }  # fmt: skip
    train = pandas.concat([rows] * 8)
    assert bertkit.finetune(train=train, **cell) == run
    assert "done already" in capsys.readouterr().out
    bertkit.evaluate(run, train)
    assert "warning: data: the model was trained on these rows" in capsys.readouterr().err
    assert sorted(path.name.split("-")[0] for path in (folder / "rows").iterdir()) == ["dev", "train"]
    saved = (folder / "config.yaml").read_text() + json.dumps(
        json.loads((folder / "manifest.json").read_text())["identity"]
    )
    assert "bertkit-" not in saved
    assert str(folder) not in json.loads((folder / "manifest.json").read_text())["identity"]["task"]["files"]["train"]
    before, fingerprint = sorted(folder.rglob("*")), read_manifest(folder).identity["data_fingerprint"]
    with pytest.raises(InputError, match=r"holds another run \(task\.files\.train"):
        bertkit.finetune(train=train[1:], **cell)
    assert sorted(folder.rglob("*")) == before
    copy = shutil.copytree(folder, tmp_path / "copy" / "run")
    bertkit.finetune(train=train[1:], **{**cell, "output_dir": copy}, overwrite=True)
    assert len(list((copy / "rows").iterdir())) == 3  # those of both runs
    assert read_manifest(copy).identity["data_fingerprint"] != fingerprint
    assert [path.name for path in copy.parent.iterdir()] == ["run"]  # nothing is kept of the first run
    shutil.rmtree(copy.parent)
    with pytest.raises(InputError, match="no column 'nothing'"):
        bertkit.finetune(train=rows, **{**cell, "output_dir": tmp_path / "new" / "run", "text_column": "nothing"})
    gap = pandas.DataFrame({"review": ["a good day", None, "a bad day"], "label": ["good", "good", "bad"]})
    bertkit.evaluate(model_dir=folder, data=gap)  # as from a CSV, where the cell is empty
    assert "warning: kept 1 example with an empty text, the first at" in capsys.readouterr().err
    with pytest.raises(InputError, match="train: no rows"):
        bertkit.finetune(train=[], **{**cell, "output_dir": tmp_path / "new" / "run"})
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_run_resumes_with_its_rows(start: Path, tmp_path: Path) -> None:
    """By the same cell, and from the command line with its settings."""
    cell: dict[str, Any] = {
        "train": [{"text": f"a good {n} day", "label": "ab"[n % 2]} for n in range(12)], "task": "sequence", "dev_share": 0.4,
        "model_dir": start, "num_epochs": 2, "batch": {"sequences": 4}, "task.max_seq_length": 32,
    }  # fmt: skip
    whole = bertkit.finetune(**{**cell, "output_dir": tmp_path / "whole"})
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "stop_on_signal", lambda: contextlib.nullcontext(stop))
        with pytest.raises(StoppedError):
            bertkit.finetune(**{**cell, "output_dir": tmp_path / "stopped"})
    assert command_line(["finetune", "--config", str(tmp_path / "stopped" / "config.yaml")]) == 0
    assert weights_of(tmp_path / "stopped") == weights_of(tmp_path / "whole") != ""
    again = bertkit.finetune(**{**cell, "output_dir": tmp_path / "stopped"})
    assert again.scores == whole.scores


def test_runs_without_a_directory_have_names_of_their_own(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    """The same cell is the same run; a changed one is another, and does not evaluate on the rows of the first."""
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"a good {n} day", "label": "ab"[n % 2]} for n in range(12)]
    cell: dict[str, Any] = {
        "train": rows,
        "text": "text",
        "model_dir": start,
        "num_epochs": 1,
        "task.max_seq_length": 32,
    }
    first = bertkit.finetune(**cell, dev=rows[:6])
    capsys.readouterr()
    assert bertkit.finetune(**cell, dev=rows[:6], output_dir=None) == first
    assert "done already" in capsys.readouterr().out
    other = bertkit.finetune(**cell, dev_share=0.4)
    assert re.search("held out of .*: 5 rows", capsys.readouterr().out)
    assert other.directory != first.directory
    assert {one.directory.parent for one in (first, other) if one.directory} == {tmp_path / "runs"}


def test_what_the_user_did_wrong_is_told_in_few_words(made: dict[str, Any]) -> None:
    """An error of the input has no frames of bertkit but its door, and a run is shown in one short line."""
    with pytest.raises(InputError, match="no such file") as caught:
        bertkit.evaluate(model_dir=made["stars"], data="missing.csv")
    assert len(caught.traceback) == 2
    assert caught.value.__suppress_context__
    assert re.fullmatch(r"Run\('[^']+/model'(, \w+=[-.\de]+)+\)", repr(made["stars"]))


def test_what_is_misplaced_or_no_setting(made: dict[str, Any], tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(made["rows"])
    for function, value, named, message in (
        (bertkit.finetune, [frame], {"train": frame}, "finetune: train is given twice; leave one out"),
        (bertkit.export, ["a", "b", 3], {}, r"export\(int\): it takes model_dir, output_dir without names"),
        (bertkit.predict, [["a text"]], {}, r"predict\(list\): expected model_dir; write input="),
        (bertkit.prepare, ["a"], {}, r"prepare\(str\): it takes no arguments without names"),
        (bertkit.finetune, [], {"trian": frame, "output_dir": tmp_path}, "unknown key 'trian'; did you mean 'train'"),
        (bertkit.finetune, [], {"dataset": frame}, "unknown key 'dataset'; pass rows as train= or dev=$"),
        (bertkit.finetune, [], {"data": frame}, "data: DataFrame: expected .*; pass rows as train= or dev=$"),
        (bertkit.evaluate, [], {"input": frame}, "unknown key 'input'; pass rows as data=$"),
        (
            bertkit.finetune,
            [],
            {"task": "sequence", "seed": frame, "output_dir": tmp_path},
            "seed: DataFrame: expected",
        ),
    ):
        with pytest.raises(InputError, match=message):
            function(*value, **named)
    with pytest.raises(InputError) as error:
        bertkit.finetune(
            task="sequence", train=frame, rate=1e-4, epoch=3, bach={"sequences": 2}, output_dir=tmp_path / "x"
        )
    assert set(error.value.args) == {
        "unknown key 'bach.sequences'; did you mean 'batch.sequences'?",
        *(f"unknown key '{key}'; see bertkit finetune --help" for key in ("rate", "epoch")),
    }
    for load in (bertkit.load_model, bertkit.load_tokenizer, bertkit.load_predictor, bertkit.load_embedder):
        for wrong in (None, 3, {"a": 1}):
            with pytest.raises(InputError, match=r"^model_dir=.*: expected a path, a run or a hub id$"):
                load(wrong)
    assert list(tmp_path.iterdir()) == []


def test_every_command_returns_what_it_makes(made: dict[str, Any], tmp_path: Path) -> None:
    run, rows = made["stars"], made["rows"]
    predictions = bertkit.predict(model_dir=run, input=rows, carry_input=True)
    assert [list(row)[:2] for row in predictions] == [["review", "input_label"]] * 2
    written = bertkit.predict(model_dir=run, input=rows, carry_input=True, output=tmp_path / "out.jsonl")
    assert [json.loads(line) for line in Path(written).read_text().splitlines()] == predictions
    (alone,) = bertkit.predict(model_dir=run, text="it's [good]")
    assert alone == made["predictor"]("it's [good]")
    texts = tmp_path / "texts.txt"
    texts.write_text("a good day\n")
    assert len(bertkit.predict(model_dir=run, input=texts)) == 1
    actual = bertkit.search(index=made["library"], input=["kan lon", "mim"])
    assert [row["question"] for row in actual] == ["kan lon", "mim"]
    page = bertkit.view(model_dir=run, input=rows, row=2, steps=0, output=tmp_path / "view.json")
    assert len(json.loads(page.output.read_text())["tokens"]) == 5
    assert set(bertkit.compare(runs=[made["run"], run], output=tmp_path / "c.html").scores) == {"tiny", "stars"}


def test_the_stub_is_what_the_settings_say(tmp_path: Path) -> None:
    """`python tests/signatures.py` writes it anew; its functions are those of Python, without torch."""
    stub = signatures.Stub()
    assert signatures.STUB.read_text(encoding="utf-8") == stub.text()
    assert [name for name in bertkit.__all__ if not re.search(rf"\b{name}\b", stub.text())] == []
    assert {name: getattr(bertkit, name).__doc__ for name in COMMANDS} == stub.docstrings
    assert len(list(signatures.DOCSTRINGS.iterdir())) == len(COMMANDS)
    code = (
        "import bertkit, inspect, sys; print(*inspect.signature(bertkit.finetune).parameters, 'torch' in sys.modules)"
    )
    names = output_of([sys.executable, "-c", code]).split()
    assert {"train", "optimizer", "text_column", "num_epochs"} < set(names)
    assert names[-1] == "False"
    parameters = (inspect.signature(getattr(bertkit, name)).parameters.values() for name in bertkit.COMMANDS)
    shown = [str(parameter) for each in parameters for parameter in each]
    assert len(shown) > 200
    assert [one for one in shown if re.search(r"Annotated|Interval|object at|\$\{", one)] == []
    program = (
        "import bertkit\n"
        "run = bertkit.finetune(train=[{}], task='sequence', output_dir='x', optimizer={'peak_learning_rate': 1e-4})\n"
        "bertkit.predict(model_dir=run, input=['a text'])[0]['label']\n"
        "bertkit.finetune(task='sequence', output_dir='x', num_epoch=3)\n"
        "bertkit.finetune(task='sequence', output_dir='x', optimizer={'peak_learning_rat': 1e-4})\n"
        "bertkit.load_predictor(run, topk=3)\n"
    )
    (tmp_path / "program.py").write_text(program)
    checkers = [[sys.executable, "-m", "mypy", "--follow-imports=skip", str(signatures.STUB)]]
    checkers += [["pyright", "--pythonpath", sys.executable]] if shutil.which("pyright") else []
    for checker in checkers:
        done = subprocess.run([*checker, tmp_path / "program.py"], capture_output=True, text=True, cwd=tmp_path)
        assert re.findall(r"program\.py:(\d+):.* error", done.stdout) == ["4", "5", "6"], done.stdout


def test_an_option_of_a_group_with_its_settings() -> None:
    steps, rates = np.int64(7), {"name": "lamb", "peak_learning_rate": np.float64(1e-3)}
    options = {"data_dir": "a", "output_dir": "b", "steps": steps, "optimizer": rates, "model": {"name": "mini"}}
    composed = compose_values("pretrain", options)
    assert composed == compose(
        "pretrain",
        ["data_dir=a", "output_dir=b", "steps=7", "optimizer=lamb", "optimizer.peak_learning_rate=1e-3", "model=mini"],
    ) | {"explicit_keys": composed["explicit_keys"]}


VALUES = ["it's", "a\\", "a\\'b", "${oc.env:HOME}", "a=b,c", "[1,2]", "null", "1e3", " spaced ", 'say "x"', "", "é\n"]


@pytest.mark.parametrize("value", VALUES)
def test_any_text_reaches_a_setting_as_it_is(value: str) -> None:
    settings = {"model_dir": value, "data_dir": Path("glue"), "tasks": ["rte"], "output_dir": value, "seeds": (0, 1)}
    composed = compose_values("glue", settings)
    assert (composed["model_dir"], composed["output_dir"], composed["data_dir"]) == (value, value, "glue")
    assert (composed["tasks"], composed["seeds"]) == (["rte"], [0, 1])


def test_dir_lists_public_names() -> None:
    assert set(dir(bertkit)) == {*bertkit.__all__, *bertkit.SLOTS}
    assert set(bertkit.__all__) > set(COMMANDS)
    assert len(bertkit.__all__) >= 12
    for name in dir(bertkit):
        assert getattr(bertkit, name) is not None
    for slot in bertkit.SLOTS:
        assert getattr(bertkit, slot).__doc__.startswith("Add a function or class as an option of the setting ")


def test_another_thread_than_the_main_one_may_train() -> None:
    """Only the main thread may handle signals."""

    def ask() -> bool:
        with stop_on_signal() as is_requested:
            return is_requested()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(ask).result() is False


def by_eight_threads(asked: Sequence[Callable[[], object]]) -> list[object]:
    """The answers of eight threads that ask the same at the same time, in turns of 10 microseconds."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as threads:
            return list(threads.map(lambda number: asked[number % len(asked)](), range(8 * len(asked))))
    finally:
        sys.setswitchinterval(interval)


def test_eight_threads_at_once_get_the_answers_of_one(made: dict[str, Any]) -> None:
    texts = ["a good day", "a bad day", "kan lon", "lon kan a day " * 9]

    def search() -> list[object]:
        (row,) = bertkit.search(index=made["library"], question="kan lon", top_k=3)
        return [row["question"], *row["answers"]]

    embedder = bertkit.load_embedder(made["run"])
    asked: list[Callable[[], object]] = [
        lambda: bertkit.predict(model_dir=made["stars"], input=texts),
        lambda: bertkit.embed(model_dir=made["run"], input=texts, pooling="mean").tolist(),
        search,
        lambda: made["predictor"](texts),
        lambda: embedder(texts).tolist(),
    ]
    assert by_eight_threads(asked) == [ask() for ask in asked] * 8


def test_eight_threads_have_their_own_settings() -> None:
    values = {"embed": {"model_dir": "m", "input": "-"}, "search": {"index": "i", "question": "q"}, "verify": {}}
    asked = [functools.partial(compose_values, command, own) for command, own in values.items()]
    assert by_eight_threads(asked) == [ask() for ask in asked] * 8


def test_only_a_command_watches_the_processors(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = list[int]()
    monkeypatch.setattr(processors, "_watch", watched.append)
    monkeypatch.setattr(processors, "_num_threads", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for name in processors.WAITS:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "in.txt").write_text("kan lon\n", encoding="utf-8")
    bertkit.load_embedder(start)
    assert bertkit.embed(start, ["kan lon"]).shape[0] == 1
    assert watched == []
    assert (
        command_line(["embed", f"model_dir={start}", f"input={tmp_path / 'in.txt'}", f"output={tmp_path / 'o.npy'}"])
        == 0
    )
    assert watched == [2]
    with processors.in_command():  # such as `index`, which imports torch late
        bertkit.load_embedder(start)
    assert watched == [2, 2]


@pytest.mark.parametrize("name", ["model", "tokenizer", "predictor", "embedder"])
def test_values_that_are_no_model_are_refused(name: str, start: Path) -> None:
    for wrong in (None, 3, {"a": 1}, [], b"x", "x" * 5000):
        with pytest.raises(InputError, match=r"^model_dir="):
            getattr(bertkit, f"load_{name}")(wrong)
    with pytest.raises(InputError, match=r"^heads=3: expected a list"):
        bertkit.load_model(start, heads=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["in.csv", "in.parquet"])
def test_a_file_with_two_columns_of_one_name(made: dict[str, Any], name: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in.csv").write_text("review,x,x\na,1,2\n")
    table = pytest.importorskip("pyarrow").Table.from_arrays([["a"], ["1"], ["2"]], names=["review", "x", "x"])
    parquet.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(InputError, match=rf"{name}(:1)?: two columns 'x'"):
        bertkit.predict(model_dir=made["stars"], input=tmp_path / name, carry_input=True)


FORMS = {
    "frame": lambda rows, _: pytest.importorskip("pandas").DataFrame(rows),
    "list": lambda rows, _: rows,
    "file": lambda _, file: file,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_task_and_the_held_out_rows_are_inferred(
    form: str, kind: str, start: Path, tmp_path: Path, capsys: Capsys
) -> None:
    labels = ["good", "bad"] if kind == "classification" else [n / 7 for n in range(40)]
    rows = [{"review": f"a {labels[n % 2]} day {n}", "stars": labels[n % len(labels)]} for n in range(40)]
    file = tmp_path / "reviews.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    cell: dict[str, Any] = {
        "text_column": "review",
        "label_column": "stars",
        "model_dir": start,
        "task.max_seq_length": 32,
    }
    cell |= {"num_epochs": 1, "output_dir": tmp_path / "run", "train": FORMS[form](rows, file)}
    run = bertkit.finetune(**cell)
    printed = capsys.readouterr().err
    assert f"task={kind}" in printed
    assert "dev_share=0.1" in printed
    assert 0 < run.scores["num_examples"] < 20
    assert bertkit.finetune(**cell) == run
    assert "done already" in capsys.readouterr().out
    with pytest.raises(
        InputError, match="1: no column 'nothing'" if form == "file" else "^train: row 1: no column 'nothing'"
    ):
        bertkit.finetune(**{**cell, "label_column": "nothing", "output_dir": tmp_path / "new" / "run"})
    assert not (tmp_path / "new").exists()
