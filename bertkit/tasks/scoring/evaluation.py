"""What `evaluate` says of scored predictions: the scores, how sure they are, and which labels are hard."""

from collections.abc import Mapping, Sequence

from bertkit.tasks.scoring.baseline import Baseline
from bertkit.tasks.scoring.metrics import signatures
from bertkit.tasks.scoring.review import eval_json_parts
from bertkit.tasks.task import Example
from bertkit.tasks.trainable import AnyTrainable


def evaluation(
    task: AnyTrainable,
    examples: Sequence[Example],
    predictions: Sequence[object],
    scores: Mapping[str, float],
    split: str,
) -> dict[str, object]:
    """Return the scores of a split, their 95 % intervals, the scores of each label, and the signatures of the metrics."""
    signed = signatures(task.config.metrics)
    return {
        **scores,
        "intervals": Baseline(task, examples, None, {}).intervals(predictions, scores),
        "num_examples": len(examples),
        "split": split,
        **eval_json_parts(task.review(examples, predictions)),
        **({"signatures": signed} if signed else {}),
    }
