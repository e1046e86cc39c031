"""The official metrics: functions of scikit-learn, scipy, seqeval, sacrebleu and rouge-score.

| metric | predictions and references | keys of the scores |
|---|---|---|
| accuracy, f1 (for label 1), f1_macro, f1_micro, matthews_correlation | label numbers; for accuracy also lists of tags | the metric's name |
| accuracy (all labels of an example right), f1_macro, f1_micro | several labels: an array of 0 and 1, a column for each label | the metric's name |
| pearson, spearmanr, r2 (the share of the variance that is explained) | numbers | the metric's name |
| seqeval (as in the CoNLL evaluation) | a list of tags for each sentence | overall_precision, overall_recall, overall_f1, overall_accuracy |
| seqeval_strict (only valid IOB2) | a list of tags for each sentence | strict_precision, strict_recall, strict_f1 |
| squad | the answer by question id; the accepted answers by question id | exact_match, f1, total |
| squad_v2 | the same, and the probability of no answer by question id | exact, f1, total, the same three as HasAns_* and NoAns_*, best_exact, best_exact_thresh, best_f1, best_f1_thresh |
| bleu (sacrebleu, tokenizer 13a, case-sensitive), chrf (chrF2) | texts | the metric's name |
| rouge (rouge-score, mean F, without a stemmer) | texts | rouge1, rouge2, rougeL |
| exact_match_text (equal except for white space) | texts | exact |
| group_accuracy (the mean of the groups' accuracies) | 1, 0.5 or 0 for a right, undecided or wrong pair; the name of its group | accuracy |

As in the official programs, the metrics of SQuAD, bleu and chrf are in per cent; all others are between 0 and 1, correlations
between -1 and 1. `module` wraps a metric for Hugging Face's library `evaluate`.

Each text has one reference. WordPiece cannot restore every text exactly: it loses some blanks beside punctuation, and an
uncased vocabulary also case and accents. This limits the BLEU that a model can reach: 687 German messages, encoded and decoded
again, have a BLEU of 76.4 with a cased vocabulary, and of 19.0 with an uncased one (tests/tasks/test_generation.py). rouge-score
lower-cases texts, and replaces all characters but a to z and digits by blanks.

Source: Papineni et al. 2002 and Post 2018 (BLEU); Popović 2015 (chrF); Lin 2004 (ROUGE).
"""

import importlib.util
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.base import plugins
from bertkit.base.errors import InputError, install_extra
from bertkit.base.plugins import Made
from bertkit.tasks.scoring import sampled_metrics, squad
from bertkit.tasks.scoring.sampled_metrics import SampledScores

Scores = float | dict[str, float]
Values = Sequence[Any] | NDArray[Any]  # label numbers or tags, one for each example or word
Inputs = Values | Mapping[str, object]  # of a metric: see the table above
METRICS: dict[str, tuple[str, ...]] = {}  # the keys of the scores of each metric, in the order of the table above
SAMPLED: dict[str, Callable[[Any, Any], SampledScores]] = {}  # the metrics as scores of samples, for their intervals


def metric(name: str, *keys: str, sampled: Callable[[Any, Any], SampledScores]) -> Callable[[Made], Made]:
    """Return the decorator for a metric of bertkit: a function that returns a number, or a mapping with these keys."""
    METRICS[name], SAMPLED[name] = keys or (name,), sampled
    return plugins.option("metric", name)


TEXT_METRICS = ("bleu", "chrf", "rouge", "exact_match_text")
MAX_LOSS = 700.0  # exp of a larger number overflows
MULTI_LABEL = ("accuracy", "f1_macro", "f1_micro")  # the metrics for several labels
PACKAGES = {"bleu": "sacrebleu", "chrf": "sacrebleu", "rouge": "rouge_score"}  # in the extra `generation`


def keys_of(names: Iterable[str]) -> list[str]:
    """Return the keys of the scores of some metrics; that of a plug-in is its name."""
    return [key for name in names for key in METRICS.get(name, (name,))]


def perplexity(loss: float) -> float:
    """Return exp(loss), for a mean loss in nats per token."""
    return math.exp(min(loss, MAX_LOSS))


def require_packages(names: Iterable[str]) -> None:
    """Raise InputError if the package of a metric is not installed; called before training."""
    for name in names:
        if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
            package = PACKAGES[name].replace("_", "-")
            raise InputError(f"task.metrics: {name} needs {package}: {install_extra('generation')}")


def signatures(names: Iterable[str]) -> dict[str, str]:
    """Return the signature of each sacrebleu metric, to be reported with its score (Post 2018, section 4)."""
    by_name = {}
    for name in names:
        if name in ("bleu", "chrf"):
            scorer = _sacrebleu(name)
            scorer.corpus_score(["a"], [["a"]])  # sets the number of references
            by_name[name] = str(scorer.get_signature())
    return by_name


def score(
    names: Iterable[str], predictions: Inputs, references: Inputs, no_answer_probs: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Compute metrics; return the scores by the keys in `METRICS`, in the order of the names.

    Predictions and references are those of the table above, in the same order; mappings may be in any order. For squad_v2
    without `no_answer_probs`, by question id, there are no best_* scores. Raises InputError if a metric is unknown, does not
    fit the labels, or its package is not installed; there are no references, or the numbers of predictions and references
    differ; a question of squad_v2 has no prediction.
    """
    names = list(names)
    for name in names:
        if plugins.find("metric", name) is None:
            raise InputError(f"metric {name!r}: expected one of {', '.join(plugins.names_of('metric'))}")
    if not len(references):
        raise InputError(f"metrics {', '.join(names)}: no references to score against; check the split's labels")
    scores: dict[str, float] = {}
    for name in names:
        if not isinstance(references, Mapping) and len(predictions) != len(references):
            wrong = f"{len(predictions)} predictions but {len(references)} references"
            raise InputError(f"metric {name}: {wrong}; give one prediction for each reference")
        require_packages([name])
        found: Scores = plugins.bind("metric", name, {"no_answer_probs": no_answer_probs})(predictions, references)
        scores |= found if isinstance(found, dict) else {name: plugins.number("metric", name, found)}
    return scores


def sampled(names: Iterable[str], predictions: Inputs, references: Inputs) -> SampledScores:
    """Return the scores of `score` as those of samples, without those of plug-ins, which may be slow."""
    known = [SAMPLED[name] for name in names if name in SAMPLED and len(references)]
    return {key: each for own in known for key, each in own(predictions, references).items()}


@metric("accuracy", sampled=sampled_metrics.accuracy)
def accuracy(predictions: Values, references: Values) -> float:
    """The share of right labels, or of right tags in all lists."""
    import sklearn.metrics  # takes seconds

    if not isinstance(references, np.ndarray) and not isinstance(references[0], int):  # lists of tags
        _check_lengths("accuracy", predictions, references)
        predictions, references = ([tag for row in rows for tag in row] for rows in (predictions, references))
    return float(sklearn.metrics.accuracy_score(references, predictions))


@metric("f1", sampled=sampled_metrics.f1)
def f1(predictions: Values, references: Values) -> float:
    """F1 of label 1."""
    if not (labels := {*predictions, *references}) <= {0, 1}:
        raise InputError(f"metric f1: labels {sorted(labels)!s:.80}, expected 0 and 1; use f1_macro or f1_micro")
    return _f1(predictions, references, "binary")


@metric("f1_macro", sampled=sampled_metrics.f1_macro)
def f1_macro(predictions: Values, references: Values) -> float:
    """The mean of the F1 of all labels."""
    return _f1(predictions, references, "macro")


@metric("f1_micro", sampled=sampled_metrics.f1_micro)
def f1_micro(predictions: Values, references: Values) -> float:
    """F1 over the predictions of all labels."""
    return _f1(predictions, references, "micro")


def _f1(predictions: Values, references: Values, average: str) -> float:
    import sklearn.metrics

    return float(sklearn.metrics.f1_score(references, predictions, average=average, zero_division=0.0))


@metric("matthews_correlation", sampled=sampled_metrics.matthews_correlation)
def matthews_correlation(predictions: Values, references: Values) -> float:
    """Matthews' correlation; 0 if all predictions or all references are the same."""
    import sklearn.metrics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning about a single label
        return float(sklearn.metrics.matthews_corrcoef(references, predictions))


@metric("pearson", sampled=sampled_metrics.pearson)
def pearson(predictions: Sequence[float], references: Sequence[float]) -> float:
    """Pearson's correlation."""
    return _correlation("pearson", predictions, references)


@metric("spearmanr", sampled=sampled_metrics.spearmanr)
def spearmanr(predictions: Sequence[float], references: Sequence[float]) -> float:
    """Spearman's correlation."""
    return _correlation("spearmanr", predictions, references)


@metric("r2", sampled=sampled_metrics.r2)
def r2(predictions: Sequence[float], references: Sequence[float]) -> float:
    """The coefficient of determination: 1 without errors, 0 or less if the mean of the references predicts as well."""
    import sklearn.metrics

    return float(sklearn.metrics.r2_score(references, predictions)) if len(references) > 1 else 0.0


def _correlation(name: str, predictions: Sequence[float], references: Sequence[float]) -> float:
    """Compute Pearson's or Spearman's correlation; 0 with a warning if it is not defined."""
    import scipy.stats

    for what, values in (("predictions", predictions), ("references", references)):
        if len(values) < 2 or not np.isfinite(values).all() or len(set(values)) == 1:
            fault = "fewer than two" if len(values) < 2 else "all the same" if len(set(values)) == 1 else "not finite"
            warnings.warn(f"{name} is not defined: {what} are {fault}; reported as 0", stacklevel=2)
            return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy's warning of values that are nearly the same
        function = scipy.stats.pearsonr if name == "pearson" else scipy.stats.spearmanr
        value = float(function(predictions, references)[0])
    return value if np.isfinite(value) else 0.0


@metric(
    "seqeval", "overall_precision", "overall_recall", "overall_f1", "overall_accuracy", sampled=sampled_metrics.seqeval
)
def seqeval(predictions: Values, references: Values) -> dict[str, float]:
    """Precision, recall and F1 of entities, and the accuracy of tags."""
    import seqeval.metrics

    tags = _tags("seqeval", predictions, references)
    values = [*_entities(tags), seqeval.metrics.accuracy_score(tags.true, tags.predicted)]
    return dict(zip(METRICS["seqeval"], map(float, values), strict=True))


@metric("seqeval_strict", "strict_precision", "strict_recall", "strict_f1", sampled=sampled_metrics.seqeval_strict)
def seqeval_strict(predictions: Values, references: Values) -> dict[str, float]:
    """Precision, recall and F1 of valid entities."""
    import seqeval.scheme

    tags = _tags("seqeval_strict", predictions, references)
    values = _entities(tags, mode="strict", scheme=seqeval.scheme.IOB2)
    return dict(zip(METRICS["seqeval_strict"], values, strict=True))


class _Tags(NamedTuple):
    """The tags of each sentence."""

    predicted: list[list[str]]
    true: list[list[str]]


def _entities(tags: _Tags, **counted: object) -> list[float]:
    """Return the precision, recall and F1 of all entities."""
    import seqeval.metrics

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about missing predictions, or tags without a prefix
        report = seqeval.metrics.classification_report(
            tags.true, tags.predicted, output_dict=True, zero_division=0, **counted
        )
    return [float(report["micro avg"][key]) for key in ("precision", "recall", "f1-score")]


def _tags(name: str, predictions: Values, references: Values) -> _Tags:
    _check_lengths(name, predictions, references)
    return _Tags([list(row) for row in predictions], [list(row) for row in references])


def _check_lengths(name: str, predictions: Values, references: Values) -> None:
    for number, (predicted, true) in enumerate(zip(predictions, references, strict=True)):
        if len(predicted) != len(true):
            raise InputError(f"metric {name}: row {number} has {len(predicted)} predicted, {len(true)} true tags")


@metric("squad", "exact_match", "f1", "total", sampled=sampled_metrics.squad_v1)
def squad_v1(predictions: Mapping[str, str], references: squad.Golds) -> dict[str, float]:
    """Exact match and F1 of answers."""
    return squad.squad_v1({key: predictions.get(key) for key in references}, references)


@metric(
    "squad_v2",
    *(f"{prefix}{key}" for prefix in ("", "HasAns_", "NoAns_") for key in ("exact", "f1", "total")),
    *("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"),
    sampled=sampled_metrics.squad_v2,
)
def squad_v2(
    predictions: Mapping[str, str], references: squad.Golds, *, no_answer_probs: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Exact match and F1 of answers, of which some are none."""
    return squad.squad_v2(predictions, references, no_answer_probs)


@metric("bleu", sampled=sampled_metrics.bleu)
def bleu(predictions: Sequence[str], references: Sequence[str]) -> float:
    """BLEU."""
    return float(_sacrebleu("bleu").corpus_score(list(predictions), [list(references)]).score)


@metric("chrf", sampled=sampled_metrics.chrf)
def chrf(predictions: Sequence[str], references: Sequence[str]) -> float:
    """ChrF2."""
    return float(_sacrebleu("chrf").corpus_score(list(predictions), [list(references)]).score)


def _sacrebleu(name: str) -> Any:
    from sacrebleu.metrics import BLEU, CHRF

    return BLEU() if name == "bleu" else CHRF()


@metric("rouge", "rouge1", "rouge2", "rougeL", sampled=sampled_metrics.rouge)
def rouge(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The mean F of ROUGE-1, ROUGE-2 and ROUGE-L."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer, totals = RougeScorer(list(METRICS["rouge"])), dict.fromkeys(METRICS["rouge"], 0.0)
    for predicted, true in zip(predictions, references, strict=True):
        for key, values in scorer.score(true, predicted).items():
            totals[key] += float(values.fmeasure)
    return {key: total / len(references) for key, total in totals.items()}


@metric("exact_match_text", "exact", sampled=sampled_metrics.exact_match_text)
def exact_match_text(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The share of texts that are equal except for white space."""
    pairs = zip(predictions, references, strict=True)
    return {"exact": float(np.mean([text.split() == true.split() for text, true in pairs]))}


@metric("group_accuracy", "accuracy", sampled=sampled_metrics.group_accuracy)
def group_accuracy(predictions: Values, references: Values) -> dict[str, float]:
    """The mean over groups of the share of right pairs in each."""
    right = defaultdict[Hashable, list[float]](list)
    for value, group in zip(predictions, references, strict=True):
        right[group].append(value)
    return {"accuracy": float(np.mean([np.mean(own) for own in right.values()]))}


def module(name: str) -> Any:
    """Wrap a metric as a module of `evaluate`, for example for `evaluate.combine`; it writes no files.

    >>> module("accuracy").compute(predictions=[0, 1], references=[1, 1])
    {'accuracy': 0.5}
    """
    import evaluate  # takes seconds, so `score` does not use it
    from datasets import Features, Value

    class Metric(evaluate.Metric):  # type: ignore[misc]
        """A metric with evaluate's interface, without its files and locks."""

        def _info(self) -> Any:
            values = Features({"predictions": Value("string"), "references": Value("string")})
            return evaluate.MetricInfo(description=f"{name} of bertkit", citation="", features=values)

        def _build_data_dir(self) -> str:
            return ""

        def compute(self, *, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
            """Compute the metric, as `score` does."""
            return score([name], predictions, references, **options)

    Metric.__name__ = name  # evaluate displays this name
    return Metric(keep_in_memory=True, seed=0)
