"""Baselines for labels of texts: logistic regression, for numbers ridge regression, on TF-IDF (weighted counts of words) or other vectors."""

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

ItemT = TypeVar("ItemT")
MOST_ROWS = 20_000  # training rows of the logistic regression, which then takes seconds
MOST_BYTES = 10**9  # of its memory: 25 numbers for each word and label (L-BFGS), and 4 for each row and label


class SplitVectors(NamedTuple):
    """Vectors of texts with labels, (n, D), and of texts without."""

    train: NDArray[np.float32]
    texts: NDArray[np.float32]


def name_of(num_rows: int) -> str:
    """Return the baseline's name, with its sample of the training rows if there are too many."""
    return "TF-IDF" + (f" on {MOST_ROWS:,} of {num_rows:,} rows" if num_rows > MOST_ROWS else "")


def labels_by_words(
    train: Sequence[str], labels: Sequence[str], texts: Sequence[str], vectors: SplitVectors | None = None
) -> list[str]:
    """Predict a label of each text from texts with labels, or from their vectors; none if there is nothing to learn, or too much."""
    from sklearn.linear_model import LogisticRegression

    rows, model = _sample(len(train)), LogisticRegression(max_iter=200)
    return _predicted(model, _at(rows, train), _at(rows, labels), len({*labels}), texts, vectors)


def sets_by_words(
    train: Sequence[str],
    labels: Sequence[tuple[str, ...]],
    texts: Sequence[str],
    vectors: SplitVectors | None = None,
) -> list[tuple[str, ...]]:
    """Predict the labels of each text from texts with several labels, or from their vectors; none if there is nothing to learn, or too much."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import MultiLabelBinarizer

    rows, sets = _sample(len(train)), MultiLabelBinarizer()
    if _needs_too_much(0, len(rows), len({name for names in labels for name in names})):
        return []
    targets = sets.fit_transform(_at(rows, labels))
    model = OneVsRestClassifier(LogisticRegression(max_iter=200))
    is_label = _predicted(model, _at(rows, train), targets, len(sets.classes_), texts, vectors)
    if not is_label:
        return []
    predicted: list[tuple[str, ...]] = sets.inverse_transform(np.array(is_label).reshape(len(texts), -1))
    return predicted


def numbers_by_words(
    train: Sequence[str], numbers: Sequence[float], texts: Sequence[str], vectors: SplitVectors | None = None
) -> list[float]:
    """Predict a number for each text from texts with numbers, or from their vectors; none if there is nothing to learn."""
    from sklearn.linear_model import Ridge

    rows = _sample(len(train))
    return _predicted(Ridge(), _at(rows, train), _at(rows, numbers), 1, texts, vectors)


def _sample(num_rows: int) -> Sequence[int]:
    if num_rows <= MOST_ROWS:
        return range(num_rows)
    sample: list[int] = np.random.default_rng(0).choice(num_rows, MOST_ROWS, replace=False).tolist()
    return sample


def _at(rows: Sequence[int], items: Sequence[ItemT]) -> list[ItemT]:
    return [items[row] for row in rows]


def _needs_too_much(num_words: int, num_rows: int, num_labels: int) -> bool:
    return 8 * num_labels * (25 * num_words + 4 * num_rows) > MOST_BYTES


def _predicted(
    model: Any,
    train: Sequence[str],
    targets: Sequence[Any],
    num_labels: int,
    texts: Sequence[str],
    vectors: SplitVectors | None,
) -> list[Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes seconds

    vectorizer = TfidfVectorizer(token_pattern=r"\w+")
    with contextlib.suppress(ValueError), warnings.catch_warnings():  # a single label, or texts without words
        warnings.simplefilter("ignore")  # labels that all rows or no rows have; no convergence
        known = vectorizer.fit_transform(train) if vectors is None else vectors.train
        if _needs_too_much(known.shape[1], len(train), num_labels):
            return []
        new = vectorizer.transform(texts) if vectors is None else vectors.texts
        predicted: list[Any] = model.fit(known, targets).predict(new).tolist()
        return predicted
    return []
