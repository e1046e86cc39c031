"""Writes the results of a finished training run: model, predictions, report and final metrics; what an export says of a run."""

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.base.errors import counted, say
from bertkit.base.files import building_dir, to_json, write_durably, writing
from bertkit.base.typed_settings import at, checked, to_mapping
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.display import console
from bertkit.display.console import duration
from bertkit.display.page import Table, metric_name
from bertkit.display.report import write_report
from bertkit.interop.exports.card import CardFacts, finetuning_facts, model_card, pretraining_facts
from bertkit.interop.hugging_face.directory import write_model
from bertkit.interop.load import load_tokenizer
from bertkit.model.label_scale import in_own_units
from bertkit.run.directory import RESULT, read_manifest, read_scores, read_settings, run_of
from bertkit.run.state import TrainingState
from bertkit.run.task_data import MIN_UNKNOWN, TaskData
from bertkit.run.trainer import TrainingPlan
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.tasks.scoring.baseline import GAIN, LINEAR, Baseline
from bertkit.tasks.scoring.calibration import Calibration
from bertkit.tasks.scoring.metrics import keys_of, signatures
from bertkit.tasks.scoring.review import eval_json_parts
from bertkit.tasks.trainable import AnyTrainable
from bertkit.train.checkpoint import delete_old_checkpoints
from bertkit.train.checkpoint_files import read_state


def publish(
    state: TrainingState,
    plan: TrainingPlan,
    facts: CardFacts,
    result: Mapping[str, object],
    *,
    files: Mapping[str, Iterable[str]] | None = None,
    line: str | None = None,
    review: Mapping[str, object] = {},
    samples: Table | None = None,
) -> None:
    """Write the files of a finished run, on process 0; the final metrics are written last and mark the run as finished.

    `facts` are for the model card, `result` has the final metrics, and `files` the lines of predictions by file name (None for
    pretraining, which keeps its last checkpoints). `line` is printed; `review` and `samples` are shown in the report.
    """
    directory = state.directory
    with building_dir(directory / "model") as partial, in_own_units(state.bare_model):
        write_model(state.bare_model, state.tokenizer, partial, {"README.md": model_card(state.bare_model, facts)})
    for name, content in (files or {}).items():
        with writing(directory / name) as file:
            file.writelines(content)
    write_report(directory, plan.baselines(plan.steps), plan.charts, review, samples)
    if (
        files is not None
    ):  # model/ has the best weights, so their checkpoint is no longer needed; unless calibration has changed them
        best = state.writer.history.best
        kept = (best.step,) if best is not None and "calibration" in result else ()
        delete_old_checkpoints(directory, plan.steps, state.writer.config.keep_last, kept)
    write_durably(directory / RESULT, to_json(result))
    if line is not None:
        say(line)
    if num_skipped := state.writer.history.skips.total:
        say(
            f"skipped {counted(num_skipped, 'step')} because the loss or gradient was not finite; metrics.jsonl names the examples"
        )
    say(f"model:  {directory / 'model'}", f"report: {directory / 'report.html'}")


def publish_pretraining(
    settings: PretrainSettings,
    state: TrainingState,
    plan: TrainingPlan,
    text: str,
    result: dict[str, object],
    line: str | None,
    samples: Table | None,
) -> None:
    """Write the results of pretraining on a text, which is described in words."""
    facts = pretraining_facts(to_mapping(settings), text, result, settings.model_dir)
    publish(state, plan, facts, result, line=line, samples=samples)


@dataclass(frozen=True)
class Best:
    """The best weights of fine-tuning, which the model has, and what they do on the dev split."""

    step: int
    scores: dict[str, float]
    predictions: Sequence[Any]
    calibration: Calibration | None  # with `calibrate`

    def notes(self, task: AnyTrainable, baseline: Baseline, num_examples: int) -> list[str]:
        """Return a line about the calibration, and one about a linear head on the vectors of the model before training."""
        lines, metric = [], task.config.best_metric
        if self.calibration is not None:
            lines.append(self.calibration.line(counted(num_examples, task.unit)))
        if metric in (simple := baseline.scores.get(LINEAR, {})):
            name = metric_name(metric)
            lines.append(f"a {LINEAR}: {name} {simple[metric]:.4f}; fine-tuned {self.scores[metric]:.4f}")
        return lines


def publish_task(
    settings: FinetuneSettings,
    state: TrainingState,
    plan: TrainingPlan,
    data: TaskData,
    best: Best,
    baseline: Baseline,
) -> None:
    """Write the results of fine-tuning: the model, with the best weights, and its scores and predictions on dev."""
    task, examples, scores, predictions = data.task, data.dev.source.examples, best.scores, best.predictions
    best_epoch = round(best.step / (plan.steps_per_epoch or 1), 4)
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
    publish(
        state,
        plan,
        facts,
        result | eval_json_parts(review),
        files=task.eval_files(examples, predictions),
        line=f"dev: {console.scores_line(scores, baseline.scores, task.config.best_metric, ranges)} (step {best.step}, the best by {metric_name(task.config.best_metric)})",
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


def _facts_of_task(
    settings: FinetuneSettings, state: TrainingState, data: TaskData, best_step: int, best_epoch: float
) -> dict[str, str]:
    """Summarize the run for the report, such as its time and learning rate."""
    truncated = [
        f"{name}: {split.coverage.num_truncated:,} of {len(split.source.examples):,} examples"
        for name, split in (("train", data.train), ("dev", data.dev))
    ]
    size = sum(parameter.numel() for parameter in state.bare_model.parameters())
    trained = sum(parameter.numel() for parameter in state.names)
    resumed = f", from step {state.first_step:,} on" if state.first_step else ""
    return {
        "started from": settings.model_dir or "a new model",
        "parameters": f"{size:,}, of which {trained:,} are trained",
        "time": f"{duration(time.monotonic() - state.started_at)}{resumed}",
        "steps": f"{state.last_step:,}; the best: {best_step:,}, after {counted(best_epoch, 'epoch')}",
        "learning rate": f"{settings.optimizer.peak:g}, after {counted(settings.warmup_of(state.last_step), 'step')} of warm-up",
        "examples a step": f"{settings.batch.sequences:,}",
        f"truncated at {settings.task.max_seq_length} tokens": "; ".join(truncated),
    }


def facts_of_checkpoint(model_dir: str, source: Path, title: str) -> CardFacts:
    """Collect the facts for the card of a checkpoint, at `source`: its run's settings, and for the last checkpoint its results."""
    facts, run_dir = CardFacts(title=title), run_of(model_dir)
    if run_dir is None:
        return facts
    manifest = read_manifest(run_dir)
    identity, saved, results = manifest.identity, read_settings(run_dir), read_scores(run_dir)
    if "task" in identity:
        metrics = checked(tuple[str, ...], at(identity, "task.metrics"), run_dir / "manifest.json")
        return finetuning_facts(saved, results, keys_of(metrics))
    steps = identity.get("steps")
    step = read_state(source)["step"] if (source / "state.json").is_file() else steps
    if step != steps:
        steps, results = f"{step} of {steps}", {}
    text = str(at(manifest.corpus or {}, "description") or "not known")
    start = at(manifest.init_from or {}, "model_dir")
    return pretraining_facts({**saved, "steps": steps}, text, results, start, facts.title)


def tokenizer_of(model_dir: str, source: Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint, at `source`, with the length of its task."""
    tokenizer = load_tokenizer(source)
    if (run_dir := run_of(model_dir)) is not None:  # earlier versions did not write it into the model
        tokenizer.max_length = at(read_settings(run_dir), "task.max_seq_length") or tokenizer.max_length
    return tokenizer
