"""Hostile values for every parameter of Python's functions: done, or refused by an error of bertkit's, soon, in little memory."""

import contextlib
import functools
import inspect
import io
import multiprocessing
import os
import random
import resource
import shutil
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY_FINETUNE, TINY_PRETRAIN
from test_fuzz import SECONDS, in_time

import bertkit
from bertkit.base.errors import BertkitError
from bertkit.commands import COMMANDS

MEMORY_BYTES = 2_000_000_000
QUICK = (
    "prepare", "glue", "predict", "embed", "serve", "index", "search", "load_model", "load_tokenizer", "load_predictor", "load_embedder",
    "export_model", "check_certificate", "predictor0", "predictor1", "embedder", "BertClassifier.fit", "BertRegressor.predict",
    "BertTagger.predict", "BertTagger.score",
)  # fmt: skip


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else "a"


def frame(columns: list[Any], *rows: list[Any]) -> Any:
    import pandas

    return pandas.DataFrame([*rows], columns=columns)


VALUES: list[Callable[[], Any]] = [
    *(lambda value=value: value for value in (  # type: ignore[misc]
        None, True, 0, -1, 2**70, 10**400, 1.5, float("nan"), float("-inf"), 1e308, 1j, "", " ", "a", "\0", "\ud800", "caf\u00e9\n", "../x",
        "/dev/null", "null", "[MASK]", "a=b", "${oc.env:HOME}", "'", "[", "{}", "a" * 300, "a " * 200_000, "a" * 1_000_000, b"\xff", b"", (), ("a",),
        ("a", "b"), ("a", None), {}, {"text": ["a"]}, {"text": "a", "label": "b"}, {1: 2}, {"": ""}, {"name": {}}, {"a.b": [1]}, {"a"}, int, len,
        range(3), Path("x"), Ellipsis,
    )),
    *(lambda value=value: value for value in (  # type: ignore[misc]
        [], [[]], [None], [""], ["a", 1], ["a", None], ["\ud800"], [["a", "b"], ["c"]], [("a", "b")], [{}], [{"text": None}], [{"text": "a"}, {}],
        [{"text": "a", "label": "b"}] * 3, [{"text": float("nan"), "label": 2**70}], [{"text": "a", "label": n / 3} for n in range(9)],
        [b"a"], [float("nan")], [1j], [{1: 2}], [["a"] * 3] * 3, ["a " * 9_000], [{"text": {"a": [None]}, "label": ["x"]}], [Path("x")],
    )),
    object, lambda: [object()], lambda: (text for text in ["a", "b"]), lambda: iter([]), lambda: nested(900), lambda: [nested(90)],
    lambda: np.array("a"), lambda: np.array(["a", "b"]), lambda: np.zeros((2, 0)), lambda: np.zeros((2, 2, 2)), lambda: np.array([np.nan]),
    lambda: np.array([None, "a"], dtype=object), lambda: np.float32(1), lambda: np.int64(-7), lambda: io.StringIO("a"),
    lambda: frame(["text", "text"], ["a", "b"]), lambda: frame(["text", "label"]), lambda: frame([]), lambda: frame([0, 1], [None, np.nan]),
    lambda: frame(["text", "label"], ["a", "x"], ["b", "y"])["text"], lambda: frame(["text", "label"], ["a", "x"], ["b", "y"]),
    lambda: frame([("a", "b")], [object()]),
]  # fmt: skip


def mapped(overrides: tuple[str, ...]) -> dict[str, Any]:
    return {
        key: int(value) if value.isdigit() else value for key, _, value in (text.partition("=") for text in overrides)
    }


def fit(kind: Any, /, X: Any, y: Any, **more: Any) -> Any:  # noqa: N803
    return kind(**more).fit(X, y)


def targets(tiny_runs: Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Give each function with good arguments."""
    model, data, rows = (
        tiny_runs / "fine",
        tiny_runs / "data",
        [{"text": "kan lon", "label": "ab"[n % 2]} for n in range(4)],
    )
    texts, labels = [row["text"] for row in rows], [row["label"] for row in rows]
    good: dict[str, dict[str, Any]] = {
        "prepare": {"corpus": {"path": "missing"}, "output_dir": "o"},
        "pretrain": {"data_dir": data, "output_dir": "o", **mapped(TINY_PRETRAIN)},
        "finetune": {
            "train": rows,
            "dev": rows,
            "model_dir": tiny_runs / "pre",
            "output_dir": "o",
            **mapped(TINY_FINETUNE),
        },
        "glue": {"model_dir": model, "data_dir": "missing", "output_dir": "o"},
        "predict": {"model_dir": model, "input": texts},
        "embed": {"model_dir": model, "input": texts},
        "evaluate": {"model_dir": model, "data": rows},
        "compare": {"runs": [model, tiny_runs / "pre"], "output": "o.html"},
        "view": {"model_dir": model, "text": "kan lon", "output": "o.html", "steps": 0},
        "serve": {"model_dir": "missing"},
        "index": {"corpus": {"path": "missing"}, "output": "o.db"},
        "search": {"index": "missing", "question": "a"},
        "export": {"model_dir": model, "output_dir": "o"},
        "verify": {"model_dir": model, "sequences": 1},
    }
    assert good.keys() == set(COMMANDS)
    results: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        name: (getattr(bertkit, name), own) for name, own in good.items()
    }
    for name in ("load_model", "load_tokenizer", "load_predictor", "load_embedder"):
        results[name] = (getattr(bertkit, name), {"model_dir": model})
    loaded, tokenizer = bertkit.load_model(model), bertkit.load_tokenizer(model)
    predictor = bertkit.load_predictor(model)
    results["export_model"] = (bertkit.export_model, {"model": loaded, "tokenizer": tokenizer, "output_dir": "o"})
    results["check_certificate"] = (bertkit.check_certificate, {"model": loaded, "certificate_path": "missing"})
    results |= {f"predictor{n}": (one, {"inputs": texts}) for n, one in enumerate((predictor, predictor.logits))}
    results["embedder"] = (bertkit.load_embedder(model), {"texts": texts})
    quick = {"num_epochs": 1, "max_seq_length": 16}
    for kind, y in (
        (bertkit.BertClassifier, labels),
        (bertkit.BertRegressor, [1.0, 2, 3, 4]),
        (bertkit.BertTagger, [[label] for label in labels]),
    ):
        x: list[Any] = texts if kind is not bertkit.BertTagger else [[text] for text in texts]
        fitted = kind(tiny_runs / "pre", **quick).fit(x, y)
        results[f"{kind.__name__}.fit"] = (functools.partial(fit, kind), {"X": x, "y": y, "model_dir": "missing"})
        results[f"{kind.__name__}.predict"] = (fitted.predict, {"X": x})
        results[f"{kind.__name__}.score"] = (fitted.score, {"X": x, "y": y})
    return results


def parameters_of(function: Callable[..., Any], good: dict[str, Any]) -> list[str]:
    kinds = inspect.signature(function).parameters.values()
    return sorted({*good, *(one.name for one in kinds if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD))})


def attack(tiny_runs: Path, folder: Path, total: int, says: Any) -> None:
    os.chdir(folder)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        called = targets(tiny_runs)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + MEMORY_BYTES
        for number in range(total):
            rng = random.Random(number)
            name = rng.choice(QUICK if rng.random() < 0.8 else sorted(called))
            function, good = called[name]
            parameters = parameters_of(function, good)
            chosen = rng.sample(parameters, min(len(parameters), rng.choice((1, 1, 2))))
            # twice as often where rows or texts belong
            chosen = [
                *chosen,
                *(
                    one
                    for one in ("train", "data", "input", "X", "inputs", "texts")
                    if one in good and rng.random() < 0.3
                ),
            ]
            places = {one: rng.randrange(len(VALUES)) for one in chosen}
            says.send((number, name, places, None, False))
            fault, is_refused = None, False
            try:
                with in_time(60):
                    function(**{**good, **{one: VALUES[place]() for one, place in places.items()}})
            except BertkitError as error:
                is_refused = True
                fault = (
                    f"more than one line: {error}"
                    if not error.args or any("\n" in str(line) for line in error.args)
                    else None
                )
                fault = "left a folder" if name in COMMANDS and Path("o").exists() else fault
            except BaseException as error:
                is_of_sklearn = (
                    name in ("BertClassifier.score", "BertRegressor.score") and "sklearn" in traceback.format_exc()
                )
                fault = None if is_of_sklearn else f"{type(error).__name__}: {error}"
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > most:
                fault, most = "took too much memory", most + MEMORY_BYTES
            says.send((number, name, places, fault and fault[:300], is_refused))
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()


@pytest.mark.parametrize("total", [120, pytest.param(20_000, marks=pytest.mark.slow)])
def test_hostile_python_arguments_are_refused(total: int, tiny_runs: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    hears, says = context.Pipe(duplex=False)
    process = context.Process(target=attack, args=(tiny_runs, tmp_path, total, says))
    process.start()
    says.close()
    num_done = num_refused = 0
    faults, last = [], None
    with contextlib.suppress(EOFError):
        while hears.poll(SECONDS + 60):
            number, name, places, fault, is_refused = last = hears.recv()
            num_done, num_refused = number + 1, num_refused + is_refused
            if fault:
                faults.append(
                    f"{number}: {name}({', '.join(f'{one}=VALUES[{place}]' for one, place in places.items())}): {fault}"
                )
    process.kill()
    process.join()
    print(f"{num_done:,} calls, {num_refused:,} refused, {len(faults):,} faults")
    assert not faults, "\n".join(faults)
    assert num_done == total, f"ended the process: {last}"
    assert num_refused > total / 3


@pytest.mark.parametrize("name", ["", "\0", "\ud800"])
def test_hostile_paths_from_python_are_refused(
    name: str, tiny_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = bertkit.load_model(tiny_runs / "fine"), bertkit.load_tokenizer(tiny_runs / "fine")
    rows = [{"text": "kan lon", "label": "ab"[n % 2]} for n in range(4)]
    for call in (
        lambda: bertkit.export_model(*model, name),
        lambda: bertkit.search(index="missing", question="a", output=name),
        lambda: bertkit.predict(model_dir="missing", input=name),
        lambda: bertkit.finetune(train=rows, dev=rows, task="sequence", model_dir="missing", output_dir=name),
        lambda: bertkit.BertClassifier("missing").fit(["a", "b"], [["a", "x"], ["b", "y"]]),
    ):
        with pytest.raises(BertkitError):
            call()
    with pytest.raises(BertkitError, match="current directory"):
        bertkit.export_model(*model, ".")
    assert tmp_path.samefile(".")  # no other folder has replaced it
