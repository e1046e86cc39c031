"""Intervals cover what they say; the metrics of samples are the official ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from task_configs import task_config

from bertkit.tasks.minimal_pairs import PairExample, PairPrediction
from bertkit.tasks.scoring import metrics, sampling
from bertkit.tasks.scoring.baseline import Baseline
from bertkit.tasks.scoring.sampled_metrics import errors
from bertkit.tasks.scoring.sampling import Drawn, Mean, Sampled
from bertkit.tasks.spans.answers import SpanCandidate, SpanPrediction
from bertkit.tasks.spans.examples import Answer, SpanExample
from bertkit.tasks.trainable import task_of

SIZE, SIMULATIONS = 53, 400
RNG = np.random.default_rng(0)
TAGS, WORDS = (
    np.array(["O", "B-X", "I-X", "B-Y", "I-Y"]),
    np.array(["the", "a", "cat", "sat", "on", "mat", "dog", "Ran"]),
)
TRUE = RNG.integers(0, 3, SIZE).tolist()
GUESSED = [label if RNG.random() < 0.7 else int(RNG.integers(0, 4)) for label in TRUE]
TRUE_SETS = RNG.random((SIZE, 5)) < [0.3, 0.3, 0.3, 0.3, 0]
SETS = TRUE_SETS ^ (RNG.random((SIZE, 5)) < [0.2, 0.2, 0.2, 0.2, 0])
NUMBERS = RNG.normal(size=SIZE).round(1).tolist()
NEAR = [round(number + RNG.normal() / 2, 1) for number in NUMBERS]
TAGGED = [RNG.choice(TAGS, n % 7 + 1).tolist() for n in range(SIZE)]
RETAGGED = [[tag if RNG.random() < 0.8 else str(RNG.choice(TAGS)) for tag in row] for row in TAGGED]
TEXTS = [" ".join(RNG.choice(WORDS, 4 + n % 7)) for n in range(SIZE)]
WRITTEN = [" ".join(word if RNG.random() < 0.8 else "x" for word in text.split()) for text in TEXTS]
GOLDS = {str(n): [text, text[:9]] if n % 3 else [] for n, text in enumerate(TEXTS)}
ANSWERED = {str(n): [text] for n, text in enumerate(TEXTS)}
ANSWERS = {str(n): text if n % 5 else "" for n, text in enumerate(WRITTEN)}
BINARY = [label % 2 for label in GUESSED], [label % 2 for label in TRUE]
CASES: list[tuple[str, Any, Any]] = [
    ("accuracy", GUESSED, TRUE), ("accuracy", SETS, TRUE_SETS), ("accuracy", RETAGGED, TAGGED), ("f1", *BINARY),
    ("f1_macro", GUESSED, TRUE), ("f1_macro", SETS, TRUE_SETS), ("f1_micro", GUESSED, TRUE), ("f1_micro", SETS, TRUE_SETS),
    ("matthews_correlation", GUESSED, TRUE), ("pearson", NEAR, NUMBERS), ("spearmanr", NEAR, NUMBERS), ("r2", NEAR, NUMBERS),
    ("seqeval", RETAGGED, TAGGED), ("seqeval_strict", RETAGGED, TAGGED), ("bleu", WRITTEN, TEXTS), ("chrf", WRITTEN, TEXTS),
    ("rouge", WRITTEN, TEXTS), ("exact_match_text", WRITTEN, TEXTS), ("squad", ANSWERS, ANSWERED), ("squad_v2", ANSWERS, GOLDS),
    ("group_accuracy", BINARY[0], TRUE),
]  # fmt: skip


def twice(values: Any) -> Any:
    """Repeat the first half of the examples."""
    if isinstance(values, dict):
        return values | {f"{key}+": value for key, value in list(values.items())[: SIZE // 2]}
    return (
        np.concatenate([values, values[: SIZE // 2]])
        if isinstance(values, np.ndarray)
        else values + values[: SIZE // 2]
    )


def test_samples_have_the_scores_of_the_official_metrics() -> None:
    """Of all examples, and of a draw that has the first half of them twice."""
    weights = np.stack([np.ones(SIZE), 1.0 + (np.arange(SIZE) < SIZE // 2)])
    assert {name for name, *_ in CASES} == {*metrics.METRICS}
    for name, *given in CASES:
        scores = [metrics.score([name], *pair) for pair in (given, [*map(twice, given)])]
        sampled = metrics.sampled([name], *given)
        assert {*sampled} == {key for key in scores[0] if not key.endswith("total")}
        for key, score in sampled.items():
            low, high = score.interval()
            assert low < scores[0][key] < high, key
            if isinstance(score, Drawn):
                assert score.of(weights) == pytest.approx([own[key] for own in scores]), key
            elif score.groups is None:
                assert score.whole * score.values.mean() == pytest.approx(scores[0][key]), key


def test_best_scores_of_samples_are_those_of_the_official_search() -> None:
    """A question that is drawn twice stands twice in the order of the probabilities."""
    probabilities = {key: float(value) for key, value in zip(GOLDS, RNG.random(SIZE), strict=True)}
    task = task_of(task_config("squad2"), ())
    examples = [SpanExample(key, "q", "c", tuple(Answer(text, 0) for text in texts)) for key, texts in GOLDS.items()]
    predictions = [
        SpanPrediction(key, text, [SpanCandidate(text or "cat", 0.5, 0.0, 0.0, 0, 1)], 0.0, probabilities[key])
        for key, text in ANSWERS.items()
    ]
    again = [[replace(each, id=f"{each.id}+") for each in own[: SIZE // 2]] for own in (examples, predictions)]
    sampled, official = task.sampled(examples, predictions), task.score(examples + again[0], predictions + again[1])
    assert 0 < official["best_f1_thresh"] < 1
    for key in ("best_exact", "best_f1"):
        score = sampled[key]
        assert isinstance(score, Drawn)
        assert score.of(1.0 + (np.arange(SIZE) < SIZE // 2)[None]) == pytest.approx([official[key]])
        assert [*sampled] == [key for key in official if not key.endswith(("total", "_thresh", "_threshold"))]


def covered(draw: Callable[[np.random.Generator], Sampled], truth: float) -> float:
    """Return the share of simulated samples whose interval has the true score."""
    rng = np.random.default_rng(5)
    intervals = [draw(rng).interval() for _ in range(SIMULATIONS)]
    return float(np.mean([low <= truth <= high for low, high in intervals]))


def labels(rng: np.random.Generator, size: int, accuracy: float) -> tuple[list[int], list[int]]:
    true, wrong = rng.integers(0, 3, size), rng.random(size) > accuracy
    return np.where(wrong, (true + rng.integers(1, 3, size)) % 3, true).tolist(), true.tolist()


def numbers(rng: np.random.Generator, size: int) -> tuple[list[float], list[float]]:
    """Numbers and predictions with errors of 0.6: an r2 of 0.64."""
    true = rng.normal(size=size)
    return (true + 0.6 * rng.normal(size=size)).tolist(), true.tolist()


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        (lambda rng: metrics.sampled(["f1_macro"], *labels(rng, 30, 0.7))["f1_macro"], 0.7),
        (lambda rng: metrics.sampled(["f1_macro"], *labels(rng, 30, 0.95))["f1_macro"], 0.95),
        (lambda rng: errors(*numbers(rng, 50))["rmse"], 0.6),
        (lambda rng: metrics.sampled(["r2"], *numbers(rng, 50))["r2"], 0.64),
        (lambda rng: metrics.sampled(["r2"], *numbers(rng, 211))["r2"], 0.64),
        (lambda rng: pairs(rng, (500, 10), (0.8, 0.8)), 0.8),
        (lambda rng: pairs(rng, (500, 10), (0.9, 0.95)), 0.925),
        (lambda rng: pairs(rng, (10,) * 67, (0.7,) * 67), 0.7),
        (lambda rng: Mean(np.where(rng.random(50) < 0.6, 1.0, rng.random(50))), 0.8),
    ],
    ids=["f1", "f1 near 1", "rmse", "r2", "more r2", "pairs", "good pairs", "BLiMP", "answers"],
)
def test_intervals_of_95_percent_cover_at_least_93(
    draw: Callable[[np.random.Generator], Sampled], truth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "DRAWS", 500)  # more of them cover more
    assert covered(draw, truth) >= 0.93


def pairs(rng: np.random.Generator, sizes: tuple[int, ...], shares: tuple[float, ...]) -> Sampled:
    values = np.concatenate([rng.random(size) < share for size, share in zip(sizes, shares, strict=True)])
    names = [f"paradigm {number}" for number, size in enumerate(sizes) for _ in range(size)]
    return metrics.sampled(["group_accuracy"], values, names)["accuracy"]


def test_a_small_paradigm_widens_the_interval_of_minimal_pairs() -> None:
    """Its single pair decides half of the score."""
    task = task_of(task_config("minimal_pairs"), ())
    examples = [PairExample(str(n), "a", "b", "large" if n else "small") for n in range(501)]
    for right in (0.0, 1.0):
        predictions = [PairPrediction(1.0 if n % 5 else 0.0, 0.5) for n in range(1, 501)]
        scores = task.score(examples, own := [PairPrediction(right, 0.5), *predictions])
        low, high = Baseline(task, examples, None, {}).intervals(own, scores)["accuracy"]
        assert scores["accuracy"] == pytest.approx((0.8 + right) / 2)
        assert high - low > 0.4
    alike = [replace(example, paradigm="large") for example in examples[:10]]
    ranges = Baseline(task, alike, None, {}).intervals([PairPrediction(1.0, 0.5)] * 9 + [own[0]], {"accuracy": 1.0})
    assert ranges["accuracy"] == pytest.approx(scipy.stats.binomtest(10, 10).proportion_ci(method="wilson"), abs=1e-6)


def test_the_bootstrap_is_that_of_scipy() -> None:
    """But for the quantiles of small samples, which here are 0.2 % further out."""
    sizes = np.random.default_rng(3).gamma(2, size=509)
    own = errors(sizes, np.zeros(509))["rmse"]
    theirs = scipy.stats.bootstrap(
        (sizes,), lambda x, axis: np.sqrt(np.mean(x**2, axis=axis)), method="BCa", n_resamples=2000, rng=1
    ).confidence_interval
    assert own.interval() == pytest.approx((theirs.low, theirs.high), abs=0.05 * (theirs.high - theirs.low))
    assert own.interval() == own.interval()


def test_equal_draws_are_not_certain() -> None:
    """All answers are right, which is not to say that the next one is."""
    (f1,) = metrics.sampled(["f1_macro"], TRUE, TRUE).values()
    assert f1.interval() == pytest.approx(scipy.stats.binomtest(SIZE, SIZE).proportion_ci(method="wilson"), abs=1e-6)
    (correlation,) = metrics.sampled(["pearson"], [1.0] * SIZE, NUMBERS).values()
    assert correlation.interval() == (0, 0)
