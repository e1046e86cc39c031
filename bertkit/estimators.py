"""scikit-learn's interface to fine-tuning and prediction.

`BertClassifier`, `BertRegressor` and `BertTagger` work in `cross_val_score`, `GridSearchCV` and `Pipeline`. X holds texts (a
list, Series or array), pairs of texts (tuples, or two columns), or for a tagger lists of words. `fit` is `bertkit finetune`:
it trains on all rows and keeps the last weights. With `settings={"dev_share": 0.1}` it holds out a tenth of the rows, and
keeps the weights with the best score on them. `predict` is `bertkit predict`. After `fit`, `scores_` are the scores on the held-out
rows (without any, on some of the training rows), and `report_` is the page with the curves, which a notebook shows.

With `n_jobs=2` a search starts two processes, which first import torch, for seconds, and share the threads: it pays if a fit takes
longer than that.

Source: scikit-learn's guide "Developing scikit-learn estimators".
"""

import contextlib
import functools
import hashlib
import inspect
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_array, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

import bertkit
from bertkit.base.errors import InputError, counted, is_missing, is_silent, nearest, warn
from bertkit.base.text_files import JsonObject, JsonValue, control_character
from bertkit.base.typed_settings import without_none
from bertkit.functions import Page
from bertkit.settings.reading.hints import setting_of_option

if TYPE_CHECKING:
    from bertkit.inference.predictor import LoadedPredictor  # imports torch

# without held-out rows a few training rows are measured, and only after the last step
MEASURED_ONCE = {"evaluation.every_steps": 10**9, "checkpoint.every_steps": 10**9}
PARAMETERS = {  # the parameter for a setting of `bertkit finetune`
    "num_epochs": "num_epochs",
    "optimizer.peak_learning_rate": "peak_learning_rate",
    "batch.sequences": "batch_sequences",
    "task.max_seq_length": "max_seq_length",
    "seed": "seed",
}
EstimatorT = TypeVar("EstimatorT", bound=BaseEstimator)


class InputValueError(InputError, ValueError):
    """Wrong data: a ValueError too, as callers of scikit-learn expect."""


class InputTypeError(InputError, TypeError):
    """An unknown parameter: a TypeError too, as callers of Python expect."""


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    """Raise an InputValueError for what scikit-learn's or numpy's checks refuse."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputValueError(error) from None


class TrainedModel:
    """A trained model as the files of its run, which can be copied and pickled; the first prediction opens it."""

    def __init__(self, run_dir: Path, settings: Mapping[str, JsonValue]) -> None:
        paths = [run_dir / "config.yaml", run_dir / "manifest.json", *(run_dir / "model").iterdir()]
        self.files = {str(path.relative_to(run_dir)): path.read_bytes() for path in paths}
        self.settings = settings  # of `bertkit predict`

    @functools.cached_property
    def predictor(self) -> "LoadedPredictor":
        """Open the model."""
        with tempfile.TemporaryDirectory(prefix="bertkit-") as folder:
            (Path(folder) / "model").mkdir()
            for name, content in self.files.items():
                (Path(folder) / name).write_bytes(content)
            return bertkit.load_predictor(f"{folder}/model", **self.settings)

    def __getstate__(self) -> dict[str, object]:
        return {"files": self.files, "settings": self.settings}


def _unknown_parameters(kind: type[BaseEstimator], given: Mapping[str, object]) -> list[str]:
    """Return a line for each unknown parameter, with what it may mean: the hints of the command line."""
    known = [*inspect.signature(kind).parameters]
    return [f"unknown parameter '{name}'{_hint(name, given[name], known)}" for name in given if name not in known]


def _hint(name: str, value: object, known: list[str]) -> str:
    setting, _, own_value = setting_of_option("finetune", name).partition("=")
    if not setting:
        return nearest(name, known) or f"; there are {', '.join(known)}"
    parameter = PARAMETERS.get(setting, setting)
    if parameter in known:
        return f"; here it is {parameter}={value!r:.80}"
    return f"; here it is settings={{{setting!r}: {own_value or value!r:.80}}}"


def _hinting(kind: type[EstimatorT]) -> type[EstimatorT]:
    """Let the constructor refuse unknown parameters with hints."""
    construct = kind.__init__

    @functools.wraps(construct)
    def construct_or_refuse(self: EstimatorT, *arguments: object, **parameters: object) -> None:
        if unknown := _unknown_parameters(type(self), parameters):
            raise InputTypeError(*unknown)
        construct(self, *arguments, **parameters)

    kind.__init__ = construct_or_refuse
    return kind


@_hinting
@dataclass(eq=False, repr=False)
class _Estimator(BaseEstimator):  # type: ignore[misc]
    """The parameters of all estimators; None stands for the default of `bertkit finetune`."""

    model_dir: str | os.PathLike[str]
    _: KW_ONLY
    num_epochs: float | None = None
    peak_learning_rate: float | None = None
    batch_sequences: int | None = None
    max_seq_length: int | None = None
    seed: int | None = None
    # keeps the run of `fit`; in it, each clone, such as a search makes, has a folder for its run. None for a temporary directory
    output_dir: str | os.PathLike[str] | None = None
    # any others, nested or dotted; device, precision and kernels hold for predictions too
    settings: Mapping[str, JsonValue] | None = None
    verbose: bool = False  # print what `bertkit finetune` prints
    _is_clone = False

    def _train(self, rows: list[JsonObject], **of_task: JsonValue) -> Self:
        own = dict(self.settings or {})
        if taken := {"train", "model_dir", "output_dir"} & own.keys():
            how = "fit takes the rows" if "train" in taken else f"set {min(taken)}= of {type(self).__name__}"
            raise InputValueError(f"settings={{'{min(taken)}': ...}}: {how}; leave it out of settings")
        named = {setting: vars(self)[parameter] for setting, parameter in PARAMETERS.items()}
        settings = {**of_task, **own, **without_none(named)}
        if not {"dev", "dev_share"} & own.keys():
            settings = {"dev_share": 0, **MEASURED_ONCE, **settings}
        before = is_silent.set(not self.verbose)
        try:
            with tempfile.TemporaryDirectory(prefix="bertkit-") as folder:
                run_dir = self._run_dir(folder, rows, settings)
                run = bertkit.finetune(train=rows, model_dir=self.model_dir, output_dir=run_dir, **settings)
                shared = {name: value for name, value in own.items() if name in ("device", "precision", "kernels")}
                self.model_ = TrainedModel(run_dir, shared)
                self.scores_, self.report_ = run.scores, Page((run_dir / "report.html").read_text(encoding="utf-8"))
        finally:
            is_silent.reset(before)
        return self

    def _forget(self) -> None:
        """Drop the model of an earlier `fit`, whose labels are about to change: a `fit` that fails leaves no model."""
        self.__dict__.pop("model_", None)

    def _run_dir(self, temporary: str, rows: list[JsonObject], settings: Mapping[str, JsonValue]) -> Path:
        """Return the directory of the run; that of a clone is named after its rows and settings, so the same `fit` resumes."""
        if self.output_dir is None:
            return Path(temporary) / "run"
        if not self._is_clone:
            return Path(self.output_dir)
        content = json.dumps([str(self.model_dir), rows, settings], default=str)
        return Path(self.output_dir) / f"fit-{hashlib.sha256(content.encode()).hexdigest()[:12]}"

    def set_params(self, **parameters: object) -> Self:
        """Set parameters; raises InputValueError for an unknown one, with what it may mean."""
        if unknown := _unknown_parameters(type(self), parameters):
            raise InputValueError(*unknown)
        changed: Self = super().set_params(**parameters)
        return changed

    def __sklearn_clone__(self) -> Self:
        clone: Self = super().__sklearn_clone__()
        clone._is_clone = True
        return clone

    @_ours()
    def _texts(self, X: ArrayLike, reset: bool = False) -> list[tuple[str, ...]]:
        """Give each text or pair as a tuple; refuse other columns than those of `fit`."""
        if getattr(X, "ndim", 1) == 2:
            validate_data(self, X, reset=reset, skip_check_array=True)
        items = np.atleast_1d(np.array(X, dtype=object)).tolist()
        texts = [tuple(item) if isinstance(item, (tuple, list)) else (item,) for item in items]
        missing = [number for number, own in enumerate(texts) if any(map(is_missing, own))]
        if missing and reset:  # of the others the predictor says it
            many = f"{counted(len(missing), 'text')} missing, the first X[{missing[0]}]; treated as empty"
            warn(many)
        texts = [tuple("" if is_missing(text) else text for text in own) for own in texts]
        if reset:
            self.num_texts_ = 2 if texts and len(texts[0]) == 2 else 1
        for number, own in enumerate(texts):
            if len(own) != self.num_texts_ or not all(isinstance(text, str) for text in own):
                expected = ("a text", "a pair of texts")[self.num_texts_ - 1]
                raise InputValueError(f"X[{number}]: {items[number]!r:.80}: expected {expected}; correct it")
        return texts

    def _predictions(self, X: ArrayLike) -> list[JsonObject]:
        check_is_fitted(self, "model_")
        inputs = [own if len(own) == 2 else own[0] for own in self._texts(X)]
        predictions: list[JsonObject] = self.model_.predictor(inputs)
        return predictions

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array, tags.target_tags.required = True, False, True
        return tags


def _labels(y: ArrayLike) -> NDArray[np.generic]:
    """Give the labels as an array; refuse what cannot be labels."""
    labels = np.array(y, dtype=object)
    if num_missing := sum(is_missing(label) for label in labels.ravel()):
        raise InputValueError(f"y: {num_missing:,} of {labels.size:,} labels are None or NaN; leave these rows out")
    labels = np.array(labels.tolist())
    classes = np.unique(labels)
    if len(classes) < 2:
        raise InputValueError(f"y: {len(classes)} class {classes.tolist()}; expected two or more; add examples")
    for name in map(str, classes.tolist()):
        if name.strip() != name or not name:
            raise InputValueError(f"y: the label {name!r} is empty, or begins or ends with a blank; correct it")
        if code := control_character(name):
            raise InputValueError(f"y: the label {name!r:.80} has the control character {code}; remove it")
    return labels


def _rows(texts: list[tuple[str, ...]], labels: list[object]) -> list[JsonObject]:
    named = [dict(zip(("text", "text_pair"), own, strict=False)) for own in texts]
    return [{**row, "label": label} for row, label in zip(named, labels, strict=True)]


class BertClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """Predict a label for each text or pair; or several labels, where y has a column of 0 and 1 for each label.

    >>> classifier = bertkit.BertClassifier(run, num_epochs=1, max_seq_length=16)
    >>> classifier.fit(["a good day", "a bad day"] * 8, ["good", "bad"] * 8).predict_proba(["a good day"]).shape
    (1, 2)

    Attributes:
        classes_: the labels, in order; for several labels the numbers of their columns.
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fine-tune the model; raises InputError or ValueError for what cannot be learned from."""
        self._forget()
        texts = self._texts(X, reset=True)
        with _ours():
            check_consistent_length(texts, y)
            labels = _labels(y)
            self.classes_ = np.unique(labels)
            check_classification_targets(labels)
            self.is_multi_label_ = type_of_target(labels) == "multilabel-indicator"
            if self.is_multi_label_:
                self.classes_ = np.arange(labels.shape[1])
                own: list[object] = [[str(column) for column in np.flatnonzero(row)] for row in labels]
                several = {"task.multi_label": True, "task.metrics": ["f1_micro"], "task.best_metric": "f1_micro"}
            else:
                own, several = [*map(str, column_or_1d(labels, warn=True))], {}
        names = [*map(str, self.classes_)]
        return self._train(_rows(texts, own), task="sequence", **{"task.labels": names}, **several)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict the probability of each label, in the order of `classes_`: (n, C)."""
        rows = [[*prediction["probabilities"].values()] for prediction in self._predictions(X)]
        return np.array(rows, np.float64).reshape(-1, len(self.classes_))

    def predict(self, X: ArrayLike) -> NDArray[np.generic]:
        """Predict the label of each input: (n,), or 0 and 1 for each of several labels: (n, C)."""
        probabilities = self.predict_proba(X)
        best: NDArray[np.generic] = self.classes_[probabilities.argmax(1)]
        return (probabilities > 0.5).astype(int) if self.is_multi_label_ else best


class BertRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """Predict a number, of any size, for each text or pair."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fine-tune the model; raises InputError or ValueError for what cannot be learned from."""
        self._forget()
        texts = self._texts(X, reset=True)
        with _ours():
            check_consistent_length(texts, y)
            numbers = column_or_1d(check_array(y, ensure_2d=False, dtype=np.float64, input_name="y"), warn=True)
        return self._train(_rows(texts, numbers.tolist()), task="regression")

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict the number of each input: (n,)."""
        return np.array([prediction["label"] for prediction in self._predictions(X)], np.float64)


Lists: TypeAlias = Iterable[Iterable[str]]  # the words, or the tags, of each text


def _lists(items: Lists, name: str) -> list[list[str]]:
    """Give the words or tags of each text; refuse what is no list of lists."""
    with contextlib.suppress(TypeError):
        if not any(isinstance(own, (str, bytes)) for own in items):
            return [*map(list, items)]
    raise InputValueError(f"{name}: {items!r:.80}: expected a list of lists: the words, or the tags, of each text")


class BertTagger(_Estimator):
    """Predict a tag, such as B-PER or NOUN, for each word: X holds lists of words, y lists of tags, `classes_` the tags in order."""

    def fit(self, X: Lists, y: Lists) -> Self:
        """Fine-tune the model; raises InputError or ValueError for what cannot be learned from."""
        self._forget()
        all_words, all_tags = _lists(X, "X"), _lists(y, "y")
        with _ours():
            check_consistent_length(all_words, all_tags)
            self.classes_ = np.unique(_labels([tag for tags in all_tags for tag in tags]))
        rows = [{"words": own, "tags": [*map(str, tags)]} for own, tags in zip(all_words, all_tags, strict=True)]
        metric = {"task.metrics": ["accuracy"], "task.best_metric": "accuracy"}  # also for tags that mark no chunks
        labels = {"task.labels": [*map(str, self.classes_)], "task.scheme": "none"}  # as they are
        return self._train(rows, task="tagging", **labels, **metric)

    def predict(self, X: Lists) -> list[list[object]]:
        """Predict the tags of each list of words."""
        check_is_fitted(self, "model_")
        classes = dict(zip(map(str, self.classes_), self.classes_.tolist(), strict=True))
        return [[classes[tag] for tag in row["tags"]] for row in self.model_.predictor(_lists(X, "X"))]

    def score(self, X: Lists, y: Lists) -> float:
        """Give the share of words with the right tag."""
        all_predicted, all_true = self.predict(X), _lists(y, "y")
        with _ours():
            check_consistent_length(all_predicted, all_true)
        right: list[bool] = []
        for number, (predicted, true) in enumerate(zip(all_predicted, all_true, strict=True)):
            if len(predicted) != len(true):
                raise InputValueError(
                    f"y[{number}]: {len(true)} tags for {len(predicted)} words; expected a tag for each word"
                )
            right += [own == tag for own, tag in zip(predicted, true, strict=True)]
        return float(np.mean(right))
