"""Scores against the official programs' numbers, libraries' own functions, and tables worked out by hand."""

import itertools
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
import seqeval.scheme
import sklearn.metrics
from conftest import output_of, real_data
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score import rouge_scorer
from task_configs import task_config

from bertkit.base.errors import InputError
from bertkit.tasks.reading.conll import chunks_of
from bertkit.tasks.scoring.metrics import METRICS, MULTI_LABEL, TEXT_METRICS, module, score, signatures
from bertkit.tasks.scoring.sampling import Mean
from bertkit.tasks.scoring.squad import normalize_answer
from bertkit.tasks.trainable import task_of
from bertkit.train.processes import ALONE

INPUTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(METRICS, ([0, 1, 1], [0, 1, 0])),
    **dict.fromkeys(("seqeval", "seqeval_strict"), ([["B-X"]], [["B-X"]])),
    "squad": ({"q": "a b"}, {"q": ["b"]}),
    "squad_v2": ({"p": "x", "q": ""}, {"p": ["x"], "q": []}, {"p": 0.1, "q": 0.9}),
    **dict.fromkeys(TEXT_METRICS, (["a b"], ["a c"])),
}


@pytest.mark.parametrize("name", METRICS)
def test_scores_have_the_keys_that_the_table_says(name: str) -> None:
    scores = score([name], *INPUTS[name])
    assert tuple(scores) == METRICS[name]
    assert all(type(value) in (float, int) for value in scores.values())


def test_modules_of_evaluate_score_alike_and_store_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import evaluate

    monkeypatch.chdir(tmp_path)
    both = evaluate.combine([module(name) for name in ("accuracy", "f1_macro")])
    assert both.compute(*INPUTS["f1"]) == score(["accuracy", "f1_macro"], *INPUTS["f1"])
    output, true, probs = INPUTS["squad_v2"]
    metric = module("squad_v2")
    assert isinstance(metric, evaluate.Metric)
    assert metric.name == "squad_v2"
    computed = metric.compute(predictions=output, references=true, no_answer_probs=probs)
    assert computed == score(["squad_v2"], output, true, probs)
    assert list(tmp_path.iterdir()) == []


# predictions, references -> accuracy, f1, f1_macro, f1_micro, matthews: worked out by hand from the four counts
BY_HAND = [
    ([1, 1, 0, 0], [1, 0, 0, 0], (3 / 4, 2 / 3, (2 / 3 + 4 / 5) / 2, 3 / 4, 2 / (2 * 1 * 2 * 3) ** 0.5)),
    ([0, 0, 0], [0, 1, 1], (1 / 3, 0.0, 0.25, 1 / 3, 0.0)),
    ([1, 0], [0, 1], (0.0, 0.0, 0.0, 0.0, -1.0)),
]


@pytest.mark.parametrize(("predictions", "references", "expected"), BY_HAND)
def test_label_metrics_are_as_by_hand(
    predictions: list[int], references: list[int], expected: tuple[float, ...]
) -> None:
    names = ["accuracy", "f1", "f1_macro", "f1_micro", "matthews_correlation"]
    scores = score(names, predictions, references)
    assert list(scores) == names
    assert list(scores.values()) == pytest.approx(expected, abs=1e-12)


# rows of predictions and of references -> accuracy of whole rows, f1_macro, f1_micro
SEVERAL = [
    # of three labels: one found and one missed; one found and one too many; never there nor predicted
    ([[1, 1, 0], [0, 0, 0]], [[1, 0, 0], [1, 0, 0]], (0.0, (2 / 3 + 0 + 0) / 3, 2 / 4)),
    ([[1, 0, 1], [0, 1, 0]], [[1, 0, 1], [0, 1, 0]], (1.0, 1.0, 1.0)),
]


@pytest.mark.parametrize(("predictions", "references", "expected"), SEVERAL)
def test_several_labels_at_once_by_hand(
    predictions: list[list[int]], references: list[list[int]], expected: tuple[float, ...]
) -> None:
    scores = score(MULTI_LABEL, np.array(predictions), np.array(references))
    assert list(scores) == ["accuracy", "f1_macro", "f1_micro"]
    assert list(scores.values()) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 43), st.integers(1, 7))
@pytest.mark.filterwarnings("ignore")
def test_scores_equal_the_libraries(seed: int, num_rows: int, num_labels: int) -> None:
    """Of labels, several labels at once, and numbers."""
    rng = np.random.default_rng(seed)
    library = sklearn.metrics

    def f1(average: str) -> float:
        return float(library.f1_score(references, predictions, average=average, zero_division=0))

    predictions, references = rng.integers(0, 2, (2, num_rows)).tolist()
    expected = [library.accuracy_score(references, predictions), f1("binary"), f1("macro"), f1("micro")]
    scores = score(["accuracy", "f1", "f1_macro", "f1_micro", "matthews_correlation"], predictions, references)
    assert list(scores.values()) == [*expected, library.matthews_corrcoef(references, predictions)]
    predictions, references = rng.random((2, num_rows, num_labels)) < 0.3
    expected = [library.accuracy_score(references, predictions), f1("macro"), f1("micro")]
    assert list(score(MULTI_LABEL, predictions, references).values()) == expected
    predictions, references = (rng.normal(size=(2, num_rows + 2)) * 10.0 ** rng.integers(-3, 4)).tolist()
    expected = [scipy.stats.pearsonr(predictions, references)[0], scipy.stats.spearmanr(predictions, references)[0]]
    assert list(score(["pearson", "spearmanr"], predictions, references).values()) == expected


@pytest.mark.parametrize(("predictions", "references", "message"), [
    ([2.5, 2.5, 2.5], [0.0, 1.0, 5.0], "predictions are all the same"),
    ([2.0, 2.5, 2.5], [1.0, 1.0, 1.0], "references are all the same"),
    ([2.0, float("nan"), 2.5], [1.0, 2.0, 3.0], "predictions are not finite"),
    ([2.0], [1.0], "predictions are fewer than two"),
])  # fmt: skip
def test_a_correlation_that_is_not_defined_is_0(
    predictions: list[float], references: list[float], message: str
) -> None:
    for name in ("pearson", "spearmanr"):
        with pytest.warns(UserWarning, match=f"{name} is not defined: {message}"):
            assert score([name], predictions, references) == {name: 0.0}


BAD = [
    (["meteor"], [1], [1], "metric 'meteor': expected one of accuracy, f1"),
    (["bleu"], ["a"], ["a", "b"], "metric bleu: 1 predictions but 2 references"),
    (["exact_match_text"], [], [], "metrics exact_match_text: no references"),
    (["f1"], [], [], "no references"),
    (["f1"], [1], [1, 0], "1 predictions but 2 references"),
    (["f1"], [1, 2], [1, 0], r"labels \[0, 1, 2\], expected 0 and 1"),
    (["seqeval"], [["O"]], [["O", "O"]], "row 0 has 1 predicted, 2 true tags"),
    (["accuracy"], [["O"]], [["O", "O"]], "row 0 has 1 predicted, 2 true tags"),
    (["squad_v2"], {"a": "x"}, {"a": ["x"], "b": []}, "1 of 2 questions without a prediction, the first 'b'"),
]


@pytest.mark.parametrize(("names", "predictions", "references", "message"), BAD)
def test_metrics_refuse_bad_input_in_one_line(
    names: list[str], predictions: Any, references: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        score(names, predictions, references)
    assert "\n" not in str(error.value)


# ---- tags


def entities(tags: list[list[str]]) -> set[tuple[int, str, int, int]]:
    """The chunks of all sentences, as the CoNLL evaluation reads them (test_conll.py)."""
    return {(number, *chunk) for number, row in enumerate(tags) for chunk in chunks_of(row)}


def read_iob1(path: Path, limit: int) -> list[list[str]]:
    sentences: list[list[str]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip():
            sentences.append([])
        elif not line.startswith("-DOCSTART-"):
            sentences[-1].append(line.split()[-1])
    return [tags for tags in sentences if tags][:limit]


def disturbed(sentences: list[list[str]], seed: int) -> list[list[str]]:
    """Every sixth tag replaced by any other, so that all the ill-formed neighbours come up."""
    rng = np.random.default_rng(seed)
    names = sorted({tag for tags in sentences for tag in tags} | {"B-PER", "B-LOC", "I-MISC", "O"})
    return [[names[rng.integers(len(names))] if rng.random() < 1 / 6 else tag for tag in tags] for tags in sentences]


def check_as_conlleval(predictions: list[list[str]], references: list[list[str]]) -> None:
    own, true = entities(predictions), entities(references)
    right, predicted, value = len(own & true), len(own), len(true)
    scores = score(["seqeval"], predictions, references)
    assert 0 < right < value
    assert scores["overall_precision"] == pytest.approx(right / predicted, abs=1e-12)
    assert scores["overall_recall"] == pytest.approx(right / value, abs=1e-12)
    assert scores["overall_f1"] == pytest.approx(2 * right / (predicted + value), abs=1e-12)
    flat = [p == r for row, other in zip(predictions, references, strict=True) for p, r in zip(row, other, strict=True)]
    assert scores["overall_accuracy"] == pytest.approx(sum(flat) / len(flat), abs=1e-12)
    assert scores["overall_f1"] == seqeval.metrics.f1_score(references, predictions)
    # the accuracy of tags as a metric of its own
    assert score(["accuracy"], predictions, references)["accuracy"] == scores["overall_accuracy"]


@pytest.mark.parametrize("seed", range(3))
def test_tags_as_conlleval_counts_them(seed: int) -> None:
    names = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    rng = np.random.default_rng(seed)
    references = [[names[n] for n in rng.integers(5, size=rng.integers(1, 11))] for _ in range(97)]
    check_as_conlleval(disturbed(references, seed), references)


def test_tags_of_the_shared_task_in_iob1() -> None:
    references = read_iob1(real_data("conll2003", "eng.testa"), 1009)
    assert sum(tag.startswith("I-") for tags in references for tag in tags) > 1000
    check_as_conlleval(disturbed(references, 0), references)


def test_default_and_strict_mode_are_named_apart() -> None:
    """The example of the repaired start: right for conlleval, ill-formed in IOB2."""
    predictions, references = [["I-PER", "I-PER", "O", "I-LOC"]], [["B-PER", "I-PER", "O", "B-LOC"]]
    scores = score(["seqeval", "seqeval_strict"], predictions, references)
    assert (scores["overall_f1"], scores["strict_f1"]) == (1.0, 0.0)
    assert scores["overall_accuracy"] == 0.5
    mixed = [["B-PER", "I-PER", "O", "I-LOC"]]
    expected = seqeval.metrics.f1_score(references, mixed, mode="strict", scheme=seqeval.scheme.IOB2)
    assert score(["seqeval_strict"], mixed, references)["strict_f1"] == pytest.approx(expected) == pytest.approx(2 / 3)


def test_tags_without_any_entity() -> None:
    assert list(score(["seqeval"], [["O"]], [["O"]]).values()) == [0.0, 0.0, 0.0, 1.0]


# ---- answers

NORMALIZED = [
    ("The  Cat!", "cat"),
    ("a.b.c.", "abc"),
    ("an-apple", "anapple"),  # punctuation goes before the articles
    ("(the) end", "end"),
    ("An  A the", ""),
    ("U.S.A", "usa"),
    ("l’été", "l’été"),  # only ASCII punctuation goes
]


@pytest.mark.parametrize(("text", "expected"), NORMALIZED)
def test_normalize_answer(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


def test_squad_1_metrics_are_as_by_hand() -> None:
    golds = {"p": ["the red cat", "cat"], "q": ["dog"], "r": ["blue bird sings"]}
    scores = score(["squad"], {"p": "Cat.", "r": "a bird sings"}, golds)
    assert scores == pytest.approx({"exact_match": 100 / 3, "f1": 100 * (1 + 0 + 0.8) / 3, "total": 3})
    # nothing but articles: the same after normalisation, but no word in common
    assert score(["squad"], {"p": "a"}, {"p": ["the"]}) == {"exact_match": 100.0, "f1": 0.0, "total": 1}


def test_squad_2_metrics_are_as_by_hand() -> None:
    golds = {"p": ["cat"], "q": [], "r": ["dog"], "s": []}
    predictions = {"p": "cat", "q": "bird", "r": "", "s": ""}
    scores = score(["squad_v2"], predictions, golds, {"p": 0.1, "q": 0.6, "r": 0.7, "s": 0.05})
    assert scores == {
        "exact": 50.0, "f1": 50.0, "total": 4,
        "HasAns_exact": 50.0, "HasAns_f1": 50.0, "HasAns_total": 2,
        "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2,
        "best_exact": 75.0, "best_exact_thresh": 0.1,  # p and s as given, the others not answered: only r is wrong
        "best_f1": 75.0, "best_f1_thresh": 0.1,
    }  # fmt: skip
    assert "best_f1" not in score(["squad_v2"], predictions, golds)
    # an accepted answer of nothing but articles counts as no answer
    assert score(["squad_v2"], {"p": ""}, {"p": ["the"]})["HasAns_exact"] == 100.0


OFFICIAL = [
    ("v1.1", "bert_ensemble", "squad"),
    ("v1.1", "logreg_baseline", "squad"),
    ("v2.0", "bert_single", "squad_v2"),
]


@pytest.mark.parametrize(("version", "system", "metric"), OFFICIAL)
def test_answers_of_systems_score_as_published_to_the_last_digit(version: str, system: str, metric: str) -> None:
    folder = real_data("squad")
    content = json.loads((folder / f"dev-{version}.public.json").read_text(encoding="utf-8"))
    golds = {
        question["id"]: [answer["text"] for answer in question["answers"]]
        for article in content["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }
    predictions = json.loads((folder / f"predictions-{version}.{system}.json").read_text(encoding="utf-8"))
    expected = json.loads((folder / "expected_metrics.public.json").read_text(encoding="utf-8"))
    assert score([metric], predictions, golds) == expected[f"{version}/public/{system}"]


# ---- texts


# 11 tokens for 12 of the references; of the n-grams 10 of 11, 6 of 9, 3 of 7 and 1 of 5 are found
BLEU = 100 * math.exp(1 - 12 / 11) * (10 / 11 * 6 / 9 * 3 / 7 * 1 / 5) ** (1 / 4)
TEXTS = [
    ("bleu", ["the cat sat on a mat .", "a dog ran off"], ["the cat sat on the mat .", "a big dog ran off"], (BLEU,)),
    # of the orders 1, 2 and 3, which both have, 2 of 3, 1 of 2 and 0 of 1 are found
    ("chrf", ["abc"], ["abd"], (100 * (2 / 3 + 1 / 2 + 0) / 3,)),
    # 3 words of 4 and of 5, 1 pair of them of 3 and of 4, a c d in a row; then a text that has nothing of its own
    ("rouge", ["A b! c d", "x"], ["a C d e f", "y"], (6 / 9 / 2, 2 / 7 / 2, 6 / 9 / 2)),
    ("exact_match_text", ["a  b ", "A b", "", "c"], ["a b", "a b", "", "c."], (0.5,)),
]


@pytest.mark.parametrize(("name", "output", "true", "expected"), TEXTS)
def test_text_metrics_are_as_by_hand(
    name: str, output: list[str], true: list[str], expected: tuple[float, ...]
) -> None:
    assert tuple(score([name], output, true).values()) == pytest.approx(expected, abs=1e-10)


def test_empty_texts_score_zero() -> None:
    scores = score(list(TEXT_METRICS), ["", ""], ["a b", "c"])
    assert list(scores) == ["bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact"]
    assert set(scores.values()) == {0.0}


def test_texts_score_as_the_published_programs_say_of_real_pairs(tmp_path: Path) -> None:
    """English said of German, where names and numbers are the same; and German with a word of each text left out."""
    lines = real_data("translation_en_de", "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    english, german = (list(column) for column in zip(*(line.split("\t") for line in lines), strict=True))
    thinned = [" ".join(word for n, word in enumerate(text.split()) if n != 2) for text in german]
    (tmp_path / "reference").write_text("".join(f"{text}\n" for text in german), encoding="utf-8")
    for output, most in ((english, 10), (thinned, 95)):
        (tmp_path / "said").write_text("".join(f"{text}\n" for text in output), encoding="utf-8")
        command = [sys.executable, "-m", "sacrebleu", "reference", "-i", "said", "-m", "bleu", "chrf", "-w", "10"]
        theirs = json.loads(output_of(command, cwd=tmp_path))
        scores = score(["bleu", "chrf", "rouge"], output, german)
        assert [scores["bleu"], scores["chrf"]] == pytest.approx([each["score"] for each in theirs], abs=1e-9)
        assert 0 < scores["bleu"] < most
        for each, own in zip(theirs, signatures(["bleu", "rouge", "chrf"]).values(), strict=True):
            assert own.split("|") == [part for part in each["signature"].split("|") if part]
        keys = ["rouge1", "rouge2", "rougeL"]
        scorer = rouge_scorer.RougeScorer(keys, use_stemmer=False)
        actual = [scorer.score(target=gold, prediction=text) for text, gold in zip(output, german, strict=True)]
        for key in keys:
            assert scores[key] == pytest.approx(np.mean([each[key].fmeasure for each in actual]), abs=1e-12)


def test_signatures_are_of_bleu_and_chrf_alone() -> None:
    actual = signatures(["accuracy", "chrf", "exact_match_text", "bleu"])
    assert list(actual) == ["chrf", "bleu"]
    assert actual["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2")


@pytest.mark.parametrize(
    ("task", "name", "module"), [("translation", "bleu", "sacrebleu"), ("generation", "rouge", "rouge_score")]
)
def test_a_metric_without_its_package_is_refused_before_training(
    task: str, name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_of(task_config(task)).check_metrics()
    monkeypatch.setitem(sys.modules, module, None)  # as where it is not installed
    with pytest.raises(InputError, match=rf"^task.metrics: {name} .*pip install '\.\[generation\]' in the directory"):
        task_of(task_config(task)).check_metrics()
    task_of(task_config(task, "task.metrics=[exact_match_text]", "task.best_metric=exact")).check_metrics()


# ---- many processes, no network, no home


def test_predictions_are_gathered_in_order() -> None:
    assert ALONE.gather([(2, "c"), (0, "a"), (1, "b"), (0, "a")], 3) == ["a", "b", "c"]
    with pytest.raises(AssertionError, match="2 items, expected 3"):
        ALONE.gather([(2, "c"), (0, "a")], 3)


def test_no_home_and_no_network_is_needed(tmp_path: Path) -> None:
    code = (
        "import os, warnings; from bertkit.tasks.scoring.metrics import score;"
        "print(score(['accuracy', 'seqeval'], [['B-X', 'O']], [['B-X', 'B-X']])['accuracy']);"
        f"assert os.listdir({str(tmp_path)!r}) == [], os.listdir({str(tmp_path)!r})"
    )
    environment = {**os.environ, "HOME": "/proc/none", "HF_HOME": "/proc/none", "HF_HUB_OFFLINE": "1"}
    environment["TMPDIR"] = environment["TEMP"] = str(tmp_path)
    assert output_of([sys.executable, "-c", code], env=environment, cwd=tmp_path) == "0.5\n"


def test_an_interval_of_equal_values_has_two_ends() -> None:
    """A rounding error made the variance negative, and the run that had trained for it ended in an error instead of results."""
    for size, part, whole in itertools.product((2, 3, 5, 7, 13), range(12), range(11, 13)):
        low, high = Mean(np.full(size, part / whole)).interval()
        assert 0 <= low <= part / whole + 1e-12
        assert part / whole - 1e-12 <= high <= 1
