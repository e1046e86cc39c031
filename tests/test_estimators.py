"""scikit-learn's interface: what its meta-estimators do with bertkit's estimators, and its own estimator checks."""

import copy
import doctest
import inspect
import json
import math
import pickle
import re
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import yaml
from conftest import Capsys, minilm_dir, small_model
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.validation import validate_data

import bertkit
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.estimators import InputValueError

pandas = pytest.importorskip("pandas")
WORDS = {"good": ("kan", "lon", "min"), "bad": ("kar", "lor", "mir")}
NAN = math.nan


def sentences(num_rows: int, seed: int = 0) -> tuple[list[str], list[str]]:
    """Texts with labels that their words give away."""
    rng = np.random.default_rng(seed)
    labels = [str(label) for label in rng.choice(["good", "bad"], num_rows)]
    return [" ".join(rng.choice(WORDS[label], rng.integers(2, 7))) for label in labels], labels


TEXTS, LABELS = sentences(43)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> str:
    """A model of random weights, which learns to tell the words apart in a second."""
    model = small_model(tokenizer.vocab_size, dropout=0.1)
    return str(bertkit.export_model(model, tokenizer, tmp_path_factory.mktemp("tiny") / "model"))


FAST = {"num_epochs": 4, "peak_learning_rate": 3e-3, "batch_sequences": 8, "max_seq_length": 16}


@pytest.fixture(scope="module")
def made(tiny: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A fitted classifier, and its run."""
    output_dir = tmp_path_factory.mktemp("kept") / "run"
    settings = {"optimizer": {"peak_learning_rate": 1e-9, "weight_decay": 0.02}, "log.every_steps": 1}
    return bertkit.BertClassifier(tiny, **FAST, output_dir=output_dir, settings=settings).fit(TEXTS, LABELS), output_dir


def test_it_learns_from_all_rows_and_predicts_as_predict_does(made: tuple[Any, Path]) -> None:
    classifier, output_dir = made
    texts, labels = sentences(23, seed=1)
    assert classifier.classes_.tolist() == ["bad", "good"]
    assert classifier.score(texts, labels) == 1
    predictor = bertkit.load_predictor(output_dir)
    assert predictor.labels == ("bad", "good")
    shares = [[row["probabilities"][label] for label in ("bad", "good")] for row in predictor(texts)]
    np.testing.assert_array_equal(classifier.predict_proba(texts), shares)
    settings = yaml.safe_load((output_dir / "config.yaml").read_text())
    assert settings["num_epochs"] == 4
    assert settings["optimizer"]["peak_learning_rate"] == 3e-3  # the named parameter, not that of `settings`
    assert settings["optimizer"]["weight_decay"] == 0.02
    assert (settings["batch"]["sequences"], settings["task"]["max_seq_length"]) == (8, 16)
    rows = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 4 * math.ceil(len(TEXTS) / 8)
    assert [row["step"] for row in rows if "eval_accuracy" in row] == [len(rows)]
    assert json.loads((output_dir / "eval.json").read_text())["best_step"] == len(rows)


def test_estimator_holds_out_a_share_of_rows(tiny: str, tmp_path: Path) -> None:
    settings = {"dev_share": 0.3, "evaluation": {"patience": 1}}
    bertkit.BertClassifier(tiny, **FAST, output_dir=tmp_path / "run", settings=settings).fit(TEXTS, LABELS)
    assert 0 < json.loads((tmp_path / "run" / "eval.json").read_text())["num_examples"] < len(TEXTS) / 2
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum("eval_accuracy" in row for row in rows) >= 2


def test_it_is_quiet_and_leaves_nothing_behind(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    classifier = bertkit.BertClassifier(tiny, **FAST | {"num_epochs": 1})
    assert len(classifier.fit(TEXTS, LABELS).predict(TEXTS)) == len(TEXTS)
    assert capfd.readouterr() == ("", "")
    with pytest.raises(InputError, match=r"^optimizer\.peak_learning_rate='high'"):
        clone(classifier).set_params(peak_learning_rate="high").fit(TEXTS, LABELS)
    classifier.set_params(verbose=True).fit(TEXTS, LABELS)
    assert "step 6/6" in capfd.readouterr().out
    assert [*(tmp_path / "here").iterdir(), *(tmp_path / "temporary").iterdir()] == []


@pytest.mark.parametrize("dump", [pickle.dump, joblib.dump])
def test_it_predicts_in_another_process(
    made: tuple[Any, Path], dump: Callable[..., Any], tmp_path: Path, python: Path
) -> None:
    """Without any file of the run."""
    classifier = clone(made[0]).set_params(output_dir=None).fit(TEXTS, LABELS)
    expected = classifier.predict_proba(TEXTS)
    np.testing.assert_array_equal(expected, made[0].predict_proba(TEXTS))  # the same seed, the same model
    np.testing.assert_array_equal(copy.deepcopy(classifier).predict_proba(TEXTS), expected)
    with open(tmp_path / "classifier", "wb") as file:
        dump(classifier, file)
    code = f"import joblib, numpy; c = joblib.load('classifier'); numpy.save('found', c.predict_proba({TEXTS}))"
    subprocess.run([python, "-c", code], check=True, cwd=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), expected)


@pytest.mark.filterwarnings("ignore:X (has|does not have)")
def test_every_form_of_texts_and_pairs(made: tuple[Any, Path], tiny: str) -> None:
    texts, expected = TEXTS[:5], made[0].predict_proba(TEXTS[:5])
    forms = [tuple(texts), np.array(texts), np.array(texts, dtype=object), pandas.Series(texts, index=range(7, 12))]
    forms += [pandas.Series(texts, dtype="category"), pandas.DataFrame({"review": texts})]
    for form in forms:
        np.testing.assert_array_equal(made[0].predict_proba(form), expected)
    frame = pandas.DataFrame({"question": TEXTS, "answer": TEXTS[::-1]})
    classifier = bertkit.BertClassifier(tiny, **FAST).fit(frame, LABELS)
    expected = classifier.predict_proba(frame)
    assert not np.array_equal(expected, classifier.predict_proba([*zip(TEXTS, TEXTS, strict=True)]))
    np.testing.assert_array_equal(classifier.predict_proba(frame.to_numpy()), expected)
    np.testing.assert_array_equal(classifier.predict_proba([*zip(TEXTS, TEXTS[::-1], strict=True)]), expected)
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(frame[["answer", "question"]])
    with pytest.raises(InputError, match=r"^X\[0\]: '.+': expected a pair of texts;"):
        classifier.predict(TEXTS)
    assert made[0].predict([]).shape == (0,)
    assert made[0].predict_proba([]).shape == (0, 2)


LABELS_OF_OTHER_TYPES = [
    (np.array([10, -1, 9]), [-1, 9, 10]),
    ([True, False, True], [False, True]),
    (["9", "10", "x"], ["10", "9", "x"]),  # bertkit's own order is 9, 10, x
    (pandas.Series([2.0, 1.0, 2.0]), [1.0, 2.0]),
    (pandas.Series([3, 4, 3], dtype="Int64"), [3, 4]),
    (pandas.Series(["b", "a", "c,d"], dtype="category"), ["a", "b", "c,d"]),
    (pandas.DataFrame({"stars": ["it's", "null", "1e3"]}), ["1e3", "it's", "null"]),
]


@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
@pytest.mark.parametrize(("y", "classes"), LABELS_OF_OTHER_TYPES, ids=lambda value: type(value).__name__)
def test_labels_come_back_in_their_own_type(tiny: str, y: Any, classes: list[Any]) -> None:
    texts = ["kan lon kan", "mir mir mir", "run ten run"]
    classifier = bertkit.BertClassifier(tiny, **FAST | {"num_epochs": 14, "peak_learning_rate": 1e-2}).fit(texts, y)
    assert classifier.classes_.tolist() == classes
    assert [type(label) for label in classifier.classes_.tolist()] == [type(label) for label in classes]
    assert classifier.predict(texts).tolist() == np.array(y).ravel().tolist()
    assert classifier.predict_proba(texts).argmax(1).tolist() == [classes.index(label) for label in np.array(y).ravel()]


PAIR = ("kan", "mir")
REFUSED = [
    (["kan", "mir"], ["a", "a"], r"^y: 1 class \['a'\]"),
    (["kan", "mir"], ["a", "b", "a"], r"inconsistent numbers of samples: \[2, 3\]"),
    (["kan", "mir", "min"], ["a", "b", NAN], "^y: 1 of 3 labels are None or NaN"),
    (["kan", "mir", "min"], ["a", None, None], "^y: 2 of 3 labels are None or NaN"),
    (["kan", "mir", "min"], pandas.Series(["a", "b", None]), "^y: 1 of 3 labels are None or NaN"),
    (["kan", "mir", "min"], pandas.Series([1, 0, None], dtype="Int64"), "^y: 1 of 3 labels are None or NaN"),
    (["kan", "mir"], [0.5, 1.5], "Unknown label type: continuous"),
    (["kan", "mir"], [(1, 2), (3, 4)], "y should be a 1d array"),
    (["kan", "mir"], ["a", "a "], "^y: the label 'a ' "),
    (["kan", "mir"], ["a", ""], "^y: the label '' "),
    (["kan", PAIR], ["a", "b"], r"^X\[1\]: \('kan', 'mir'\): expected a text;"),
    ([PAIR, "kan"], ["a", "b"], r"^X\[1\]: 'kan': expected a pair of texts;"),
    ([(*PAIR, "min")] * 2, ["a", "b"], r"^X\[0\]: \['kan', 'mir', 'min'\]: expected a text;"),
    (np.ones((2, 3)), ["a", "b"], r"^X\[0\]: \[1.0, 1.0, 1.0\]: expected a text;"),
    ((text for text in PAIR), ["a", "b"], r"^X\[0\]: <generator"),
    ([], [], r"^y: 0 class"),
]


@pytest.mark.parametrize(("texts", "labels", "message"), REFUSED)
def test_what_cannot_be_learned_from_is_refused(texts: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bertkit.BertClassifier("no/model").fit(texts, labels)


def test_wrong_settings_are_refused(tiny: str, made: tuple[Any, Path], tmp_path: Path) -> None:
    classifier = bertkit.BertClassifier(tiny, **FAST)
    with pytest.raises(InputError, match=r"^unknown key 'optimizer\.peak_rate'"):
        clone(classifier).set_params(settings={"optimizer": {"peak_rate": 1}}).fit(TEXTS, LABELS)
    for name, how in (("output_dir", "set output_dir= of BertClassifier"), ("train", "fit takes the rows")):
        with pytest.raises(InputValueError, match=rf"^settings=.'{name}': ....: {how}"):
            clone(classifier).set_params(settings={name: "x"}).fit(TEXTS, LABELS)
    with pytest.raises(InputError, match=r"^calibrate=true: dev_share=0 leaves no held-out rows"):
        clone(classifier).set_params(settings={"calibrate": True}).fit(TEXTS, LABELS)
    with pytest.raises(InputError, match=r"^num_epochs=0\.0: "):
        clone(classifier).set_params(num_epochs=0).fit(TEXTS, LABELS)
    with pytest.raises(InputError, match=r"^output_dir=.* holds another run"):
        bertkit.BertClassifier(**made[0].get_params()).fit(TEXTS[:20], LABELS[:20])
    with pytest.raises(TypeError, match=r"^unknown parameter 'num_epoch'; did you mean 'num_epochs'"):
        bertkit.BertClassifier(tiny, num_epoch=1)
    with pytest.raises(InputValueError, match=r"^X: .*expected a list of lists"):
        bertkit.BertTagger(tiny).fit(["kan", "mir"], ["O", "B"])
    empty = classifier.fit(["", "kan"] * 4, ["a", "b"] * 4)
    assert empty.predict_proba([""]).sum() == pytest.approx(1)


def test_a_search_over_learning_rates(tiny: str) -> None:
    """In two processes, which are forks: new interpreters would import for longer than they train."""
    pipeline = Pipeline(
        [("lower", FunctionTransformer(lower)), ("bert", bertkit.BertClassifier(tiny, **FAST | {"num_epochs": 5}))]
    )
    rates = {"bert__peak_learning_rate": [1e-9, 1e-2]}
    with joblib.parallel_config("multiprocessing"):
        search = GridSearchCV(pipeline, rates, cv=2, n_jobs=2, error_score="raise")
        search.fit([*map(str.upper, TEXTS)], LABELS)
    worse, better = search.cv_results_["mean_test_score"]
    assert better > worse
    assert search.best_params_ == {"bert__peak_learning_rate": 1e-2}
    assert search.score(*sentences(11, seed=2)) == 1


WORDS_OF_OTHERS = [
    ({"epochs": 1}, "here it is num_epochs=1"),
    ({"lr": 3e-4}, "here it is peak_learning_rate=0.0003"),
    ({"batch_size": 8}, "here it is batch_sequences=8"),
    ({"max_length": 64}, "here it is max_seq_length=64"),
    ({"device": "cpu"}, "here it is settings={'device': 'cpu'}"),
    ({"weight_decay": 0.1}, "here it is settings={'optimizer.weight_decay': 0.1}"),
    ({"fp16": True}, "here it is settings={'precision': 'fp16'}"),
    ({"model_name": "DIR"}, "here it is model_dir='DIR'"),
    ({"outptu_dir": "DIR"}, "did you mean 'output_dir'?"),
    ({"zzz": 1}, "there are model_dir, num_epochs, "),
]


@pytest.mark.parametrize(("parameters", "hint"), WORDS_OF_OTHERS)
def test_words_of_other_tools_are_translated(parameters: dict[str, Any], hint: str) -> None:
    (name,) = parameters
    message = f"^unknown parameter '{name}'; {re.escape(hint)}"
    for kind in (bertkit.BertClassifier, bertkit.BertRegressor, bertkit.BertTagger):
        with pytest.raises(TypeError, match=message) as refused:
            kind("DIR", **parameters)
        assert isinstance(refused.value, InputError)
    with pytest.raises(ValueError, match=message):
        GridSearchCV(bertkit.BertClassifier("DIR"), {name: [*parameters.values()]}, cv=2).fit(TEXTS, LABELS)


def test_scores_and_report_of_a_fit(tiny: str, made: tuple[Any, Path]) -> None:
    classifier, output_dir = made
    assert classifier.scores_ == json.loads((output_dir / "eval.json").read_text())
    assert classifier.report_ == (output_dir / "report.html").read_text()
    settings = {"dev_share": 0.3}
    temporary = bertkit.BertClassifier(tiny, **FAST | {"num_epochs": 1}, settings=settings).fit(TEXTS, LABELS)
    assert 0 < temporary.scores_["num_examples"] < len(TEXTS) / 2
    assert 0 <= temporary.scores_["accuracy"] <= 1
    assert repr(temporary.report_) == f"Page({len(temporary.report_):,} characters of HTML)"
    assert pickle.loads(pickle.dumps(temporary)).report_._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html')


def test_fits_of_a_search_keep_their_runs(tiny: str, tmp_path: Path) -> None:
    """Each in a folder of its own; the same search again resumes, so it trains nothing."""
    classifier = bertkit.BertClassifier(tiny, **FAST | {"num_epochs": 1}, output_dir=tmp_path / "runs")
    for _ in range(2):
        search = GridSearchCV(classifier, {"peak_learning_rate": [1e-9, 3e-3]}, cv=2, error_score="raise")
        search.fit(TEXTS, LABELS)
        runs = [path.parent for path in sorted((tmp_path / "runs").glob("*/eval.json"))]
        assert len(runs) == 5
    rates = [yaml.safe_load((run / "config.yaml").read_text())["optimizer"]["peak_learning_rate"] for run in runs]
    assert sorted(rates.count(rate) for rate in (1e-9, 3e-3)) == [2, 3]
    assert search.best_estimator_.scores_ in [json.loads((run / "eval.json").read_text()) for run in runs]
    assert bertkit.compare(runs=runs, output=tmp_path / "compare.html").report.is_file()


def test_fits_in_threads_give_same_scores(tiny: str, capsys: Capsys) -> None:
    """A run sets the random state, and turns the output of its process away."""
    classifier = bertkit.BertClassifier(tiny, **FAST | {"num_epochs": 1})
    one_by_one = cross_val_score(classifier, TEXTS, LABELS, cv=3, scoring="neg_log_loss")
    with joblib.parallel_config("threading", n_jobs=3):
        at_once = cross_val_score(classifier, TEXTS, LABELS, cv=3, scoring="neg_log_loss")
    np.testing.assert_array_equal(at_once, one_by_one)
    print("here again")
    assert capsys.readouterr().out == "here again\n"


def lower(texts: Any) -> list[str]:
    return [text.lower() for text in texts]


def test_the_example_of_the_docstring_runs(tiny: str) -> None:
    example = doctest.DocTestParser().get_doctest(
        bertkit.BertClassifier.__doc__, {"bertkit": bertkit, "run": tiny}, "", None, None
    )
    assert doctest.DocTestRunner().run(example) == (0, 2)


def test_several_labels_at_once(tiny: str) -> None:
    table = np.array([[label == "good", True, label == "bad"] for label in LABELS]).astype(int)
    frame = pandas.DataFrame(table, columns=["joy", "any", "anger"])
    classifier = bertkit.BertClassifier(tiny, **FAST | {"num_epochs": 5, "peak_learning_rate": 8e-3}).fit(TEXTS, frame)
    assert classifier.classes_.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(classifier.predict(TEXTS), table)
    np.testing.assert_array_equal(classifier.predict_proba(TEXTS) > 0.5, table)
    assert classifier.score(TEXTS, table) == 1


def test_a_fit_that_fails_leaves_no_model_with_other_labels(tiny: str) -> None:
    """The labels were the new ones, the model the old one, and `predict` said nothing."""
    classifier = bertkit.BertClassifier(tiny, **FAST | {"num_epochs": 1}).fit(TEXTS, LABELS)
    classifier.set_params(num_epochs=-1)
    with pytest.raises(InputError, match="num_epochs"):
        classifier.fit(TEXTS, [label.swapcase() for label in LABELS])
    with pytest.raises(NotFittedError):
        classifier.predict(TEXTS[:1])
    tagger = bertkit.BertTagger(tiny, **FAST | {"num_epochs": 1}).fit([["kan"], ["mir"]], [["O"], ["B"]])
    with pytest.raises(InputError, match=r"^train: row 1: 2 words but 1 tags"):
        tagger.fit([["kan", "mir"], ["kan"]], [["A"], ["C"]])
    with pytest.raises(NotFittedError):
        tagger.predict([["kan"]])


def test_regressor_learns_numbers(tiny: str) -> None:
    numbers = [1000.0 if label == "good" else 0.0 for label in LABELS]
    regressor = bertkit.BertRegressor(tiny, **FAST | {"num_epochs": 5, "peak_learning_rate": 6e-3})
    scaled = TransformedTargetRegressor(regressor, transformer=StandardScaler())
    assert scaled.fit(TEXTS, numbers).score(TEXTS, numbers) > 0.8
    for wrong, message in (([1, NAN], "Input y contains NaN"), (["a", "b"], "could not convert"), ([1], "samples")):
        with pytest.raises(ValueError, match=message):
            bertkit.BertRegressor(tiny).fit(["kan", "mir"], wrong)


def test_tagger_learns_tags_of_words(tiny: str) -> None:
    words = [text.split() for text in TEXTS]
    for good, bad in (("I-PER", "O"), (3, 7)):
        tags = [[good if word in WORDS["good"] else bad for word in row] for row in words]
        tagger = bertkit.BertTagger(tiny, **FAST).fit(words, tags)
        assert tagger.classes_.tolist() == [good, bad]
        assert tagger.predict(words[:3]) == tags[:3]
        assert tagger.score(words, tags) == 1
    assert cross_val_score(tagger, words, tags, cv=2, error_score="raise").min() > 0.6
    assert pickle.loads(pickle.dumps(tagger)).predict([["kan"], ["mir", "lon"]]) == [[3], [7, 3]]
    with pytest.raises(InputValueError, match=r"^y\[0\]: 1 tags for 2 words; expected a tag for each word"):
        tagger.score([["kan", "mir"], ["lon"]], [[3], [7, 3]])  # as many in all
    with pytest.raises(InputError, match=r"^train: row 1: 2 words but 1 tags"):
        tagger.fit([["kan", "mir"], ["kan"]], [["O"], ["B"]])
    with pytest.raises(InputError, match=r"^y: 1 of 2 labels are None or NaN"):
        tagger.fit([["kan"], ["mir"]], [["O"], [None]])


@pytest.mark.slow  # quick: words that are made up, above; and the README's own commands with this model
def test_classifier_learns_real_reviews() -> None:
    """A half of the README's, with its model, of which the upper half is trained; they have two labels."""
    folder = Path(__file__).resolve().parents[1] / "recipes" / "own_data" / "reviews"
    train, test = (pandas.read_csv(folder / f"{name}.csv") for name in ("train", "test"))
    sizes = {"batch_sequences": 16, "max_seq_length": 24, "settings": {"freeze": "layers:3"}}
    classifier = bertkit.BertClassifier(minilm_dir(), num_epochs=2, peak_learning_rate=1e-3, **sizes)
    assert classifier.fit(train.text[:96], train.label[:96]).score(test.text, test.label) > 0.7


class Spelled:
    """scikit-learn's checks make up arrays of numbers; each number becomes a word here, after scikit-learn's own validation."""

    def _texts(self, X: Any, reset: bool = False) -> list[tuple[str, ...]]:  # noqa: N803
        words = [word for own in WORDS.values() for word in own]
        rows = validate_data(self, X, reset=reset)
        texts = [" ".join(words[int(abs(number) * 10) % len(words)] for number in row[:10]) for row in rows]
        return super()._texts(texts, reset)  # type: ignore[misc, no-any-return]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.string, tags.input_tags.two_d_array = False, True
        return tags


class SpelledClassifier(Spelled, bertkit.BertClassifier):
    pass


class SpelledRegressor(Spelled, bertkit.BertRegressor):
    pass


WITHOUT_TRAINING = {
    "check_estimator_cloneable", "check_estimator_tags_renamed", "check_valid_tag_types", "check_estimator_repr",
    "check_no_attributes_set_in_init", "check_estimators_unfitted", "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order", "check_parameters_default_constructible", "check_get_params_invariance", "check_set_params",
    "check_classifiers_one_label", "check_supervised_y_no_nan", "check_classifiers_regression_target", "check_fit1d",
}  # fmt: skip
WITH_TRAINING = {
    "check_fit_score_takes_y", "check_estimators_overwrite_params", "check_dont_overwrite_parameters",
    "check_estimators_fit_returns_self", "check_estimators_pickle", "check_dict_unchanged", "check_fit_idempotent",
    "check_fit_check_is_fitted", "check_n_features_in_after_fitting", "check_supervised_y_2d",
}  # fmt: skip
NOT_FOR_TEXTS = {
    "check_array_api_input": "tensors of numbers",
    "check_classifiers_train": "points of the plane are not told apart by their numbers' words",
    "check_regressors_train": "the same",
    "check_methods_sample_order_invariance": "float32: the sums of a batch in another order differ by 1e-7",
    "check_methods_subset_invariance": "the same",
    "check_requires_y_none": "refused, in bertkit's words",
}


def checked(estimator: Any, is_run: Callable[[str], bool]) -> set[str]:
    """Run scikit-learn's checks of these names; give the names."""
    names = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks' own
        for copied, check in estimator_checks.estimator_checks_generator(estimator):
            if is_run(check.func.__name__):
                names.add(check.func.__name__)
                check(copied)
    return names


def test_the_estimator_checks_that_apply_to_texts(tiny: str) -> None:
    names = WITHOUT_TRAINING | WITH_TRAINING
    assert checked(SpelledClassifier(tiny, **FAST | {"num_epochs": 1}), names.__contains__) == names
    of_all = WITHOUT_TRAINING - {name for name in WITHOUT_TRAINING if "classifier" in name}
    assert checked(SpelledRegressor(tiny, **FAST), of_all.__contains__) == of_all
    for name in of_all - {"check_supervised_y_no_nan", "check_fit1d"}:  # these make up numbers to learn
        getattr(estimator_checks, name)("BertTagger", bertkit.BertTagger(tiny))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SpelledClassifier, SpelledRegressor])
def test_all_estimator_checks_but_those_of_numbers(tiny: str, kind: Any) -> None:
    names = checked(kind(tiny, **FAST | {"num_epochs": 1}), lambda name: name not in NOT_FOR_TEXTS)
    assert len(names) >= 40


@pytest.mark.parametrize("kind", [bertkit.BertClassifier, bertkit.BertRegressor, bertkit.BertTagger])
def test_parameters_have_names_and_defaults(kind: Any) -> None:
    parameters = inspect.signature(kind).parameters
    assert [*parameters] == [
        "model_dir", "num_epochs", "peak_learning_rate", "batch_sequences", "max_seq_length", "seed", "output_dir", "settings",
        "verbose",
    ]  # fmt: skip
    assert {name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty} == {
        "model_dir"
    }
    estimator = kind("DIR", seed=3, settings={"device": "cpu"})
    assert repr(estimator) == f"{kind.__name__}(model_dir='DIR', seed=3, settings={{'device': 'cpu'}})"
    assert clone(estimator.set_params(num_epochs=2)).get_params() == estimator.get_params()
    with pytest.raises(NotFittedError):
        estimator.predict(["kan"])
