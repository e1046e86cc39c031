"""What a finished fine-tuning says of itself: scores with intervals and baselines, warnings, the facts of its report."""

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.base.errors import counted, say
from bertkit.base.typed_settings import to_mapping
from bertkit.display import console
from bertkit.display.console import duration
from bertkit.display.page import metric_name
from bertkit.interop.exports.card import CardFacts, finetuning_facts
from bertkit.interop.hugging_face import generation_json
from bertkit.jobs.task_data import MIN_UNKNOWN, TaskData
from bertkit.model.heads import num_parameters
from bertkit.run.state import TrainingState
from bertkit.settings.finetune import FinetuneSettings
from bertkit.tasks.scoring.baseline import GAIN, LINEAR, Baseline
from bertkit.tasks.scoring.calibration import Calibration
from bertkit.tasks.scoring.metrics import signatures
from bertkit.tasks.scoring.review import eval_json_parts
from bertkit.tasks.trainable import AnyTrainable


@dataclass(frozen=True)
class BestOnDev:
    """The best weights of fine-tuning, which the model has, and what they do on the dev split."""

    step: int
    scores: dict[str, float]
    predictions: Sequence[Any]
    chosen_by: str  # the score that was the highest
    calibration: Calibration | None = None  # with `calibrate`

    def notes(self, task: AnyTrainable, baseline: Baseline, num_examples: int) -> list[str]:
        """Return a line about the calibration, and one about a linear head on the vectors of the model before training."""
        lines, metric = [], task.config.best_metric
        if self.calibration is not None:
            lines.append(self.calibration.line(counted(num_examples, task.unit)))
        if metric in (simple := baseline.scores.get(LINEAR, {})):
            name = metric_name(metric)
            lines.append(f"a {LINEAR}: {name} {simple[metric]:.4f}; fine-tuned {self.scores[metric]:.4f}")
        return lines


@dataclass(frozen=True)
class Results:
    """What a finished run writes and prints, as `run.publishing.publish` takes it."""

    facts: CardFacts
    result: dict[str, Any]
    files: Mapping[str, Iterable[str]]
    line: str
    review: dict[str, object]


def results_of(
    settings: FinetuneSettings,
    state: TrainingState,
    steps_per_epoch: int,
    data: TaskData,
    best: BestOnDev,
    baseline: Baseline,
) -> Results:
    """Describe the best weights, with their scores and predictions on dev; print what there is to note and to warn of."""
    task, examples, scores, predictions = data.task, data.dev.source.examples, best.scores, best.predictions
    best_epoch = round(best.step / steps_per_epoch, 4)
    ranges = baseline.intervals(predictions, scores)
    gain = ranges.pop(GAIN, None)
    result: dict[str, Any] = {**scores, "best_step": best.step, "best_epoch": best_epoch, "num_examples": len(examples)}
    result |= {"intervals": ranges, GAIN: gain, "majority_baseline": baseline.scores.get("majority")}
    for name in [name for name in baseline.scores if name != "majority"]:
        own = {"linear_head_baseline": baseline.scores[name]}
        result |= own if name == LINEAR else {"tfidf_baseline": baseline.scores[name], "tfidf": name}
    facts = finetuning_facts(to_mapping(settings), result, scores)
    warnings = []
    if task.is_degenerate(examples, predictions):
        result["is_degenerate"] = True
        is_readable = data.train.coverage.unknown_share < MIN_UNKNOWN
        way = (
            "train longer, or with another learning rate"
            if is_readable
            else "first choose a model that knows the tokens"
        )
        warnings.append(f"the model makes the same prediction for every example; {way}")
    else:
        warnings += baseline.warnings(predictions, scores[task.config.best_metric], gain)
    result["warnings"] = warnings
    signed = signatures(task.config.metrics)
    result |= {"signatures": signed} if signed else {}
    notes = best.notes(task, baseline, len(examples))
    result |= {} if best.calibration is None else {"calibration": dataclasses.asdict(best.calibration)}
    say(*(f"{name}: {text}" for name, text in signed.items()), *notes, *(f"warning: {warning}" for warning in warnings))
    review = task.review(examples, predictions)
    return Results(
        facts,
        result | eval_json_parts(review),
        files={**task.eval_files(examples, predictions), **_search_file(settings, state)},
        line=f"dev: {console.scores_line(scores, baseline.scores, task.config.best_metric, ranges)} (step {best.step}, the best by {best.chosen_by})",
        review={
            **review,
            "scores": scores,
            "facts": _facts_of_task(settings, state, data, best.step, best_epoch),
            "baselines": baseline.scores,
            "intervals": ranges,
            "warnings": warnings,
            "notes": notes,
            "best_metric": task.config.best_metric,
            "num_examples": len(examples),
        },
    )


def _search_file(settings: FinetuneSettings, state: TrainingState) -> dict[str, list[str]]:
    """Return the file by which `transformers` searches for texts as the run does; none for a model that writes no texts."""
    search, config = settings.task.generation, state.bare_model.config
    if search is None or config.decoder is None:
        return {}
    content = generation_json.search_json(to_mapping(search), config.decoder, config.pad_token_id)
    return {f"model/{generation_json.FILE}": [content]}


def _facts_of_task(
    settings: FinetuneSettings, state: TrainingState, data: TaskData, best_step: int, best_epoch: float
) -> dict[str, str]:
    """Summarize the run for the report, such as its time and learning rate."""
    truncated = [
        f"{name}: {split.coverage.num_truncated:,} of {len(split.source.examples):,} examples"
        for name, split in (("train", data.train), ("dev", data.dev))
    ]
    size = num_parameters(state.bare_model.parameters())
    resumed = f", from step {state.first_step:,} on" if state.first_step else ""
    return {
        "started from": settings.model_dir or "a new model",
        "parameters": f"{size:,}, of which {state.num_trained:,} are trained",
        "time": f"{duration(time.monotonic() - state.started_at)}{resumed}",
        "steps": f"{state.last_step:,}; the best: {best_step:,}, after {counted(best_epoch, 'epoch')}",
        "learning rate": f"{settings.optimizer.peak:g}, after {counted(settings.warmup_of(state.last_step), 'step')} of warm-up",
        "examples a step": f"{settings.batch.sequences:,}",
        f"truncated at {settings.task.max_seq_length} tokens": "; ".join(truncated),
    }
