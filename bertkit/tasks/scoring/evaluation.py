"""What `evaluate` says of scored predictions: the scores, how sure they are, and which labels are hard."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bertkit.tasks.scoring.baseline import Baseline
from bertkit.tasks.scoring.metrics import signatures
from bertkit.tasks.scoring.review import eval_json_parts
from bertkit.tasks.scoring.sampling import Interval
from bertkit.tasks.task import Example
from bertkit.tasks.trainable import AnyTrainable


class Measured(NamedTuple):
    """The metrics of a split."""

    metrics: dict[str, object]  # all that `evaluate` prints
    intervals: dict[str, Interval]


def evaluation(
    task: AnyTrainable,
    examples: Sequence[Example],
    predictions: Sequence[object],
    scores: Mapping[str, float],
    split: str,
) -> Measured:
    """Return the scores of a split, their 95 % intervals, the scores of each label, and the signatures of the metrics."""
    signed, intervals = (
        signatures(task.config.metrics),
        Baseline(task, examples, None, {}).intervals(predictions, scores),
    )
    metrics = {
        **scores,
        "intervals": intervals,
        "num_examples": len(examples),
        "split": split,
        **eval_json_parts(task.review(examples, predictions)),
        **({"signatures": signed} if signed else {}),
    }
    return Measured(metrics, intervals)
