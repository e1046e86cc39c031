"""Stage: measure a model on the labelled split of a task, or by its MLM and NSP losses on a prepared dataset."""

import json
import sys
from pathlib import Path

from bertkit.base.errors import InputError, say
from bertkit.display import console
from bertkit.inference.forward import faults_of, score_split
from bertkit.inference.task_model import beside_training, check_labels, open_task_model, task_settings_of_run
from bertkit.inference.text_losses import losses_on_text
from bertkit.jobs.task_data import Coverage
from bertkit.launch.world import world_from_environment
from bertkit.settings.evaluate import EvaluateSettings
from bertkit.tasks.reading import readers
from bertkit.tasks.scoring.evaluation import evaluation
from bertkit.tasks.trainable import task_of
from bertkit.train.accelerator import ending_together, make_accelerator, ranks_in


def run(settings: EvaluateSettings) -> None:
    """Evaluate a model, and print the metrics."""
    metrics = scores(settings)
    if metrics is not None:
        say(*json.dumps(metrics, indent=2).split("\n"))


def scores(settings: EvaluateSettings) -> dict[str, object] | None:
    """Evaluate a model; return the metrics in the main process, and None in the others."""
    if settings.task is not None or task_settings_of_run(settings.model_dir) is not None:
        return _scores_on_task(settings)
    losses = losses_on_text(settings)
    if losses is not None and console.has_controls(losses):
        say(console.health_line(losses, {}), file=sys.stderr)
    return losses


def _scores_on_task(settings: EvaluateSettings) -> dict[str, object] | None:
    """Measure a labelled split in the same way as fine-tuning measures its dev split."""
    opened = open_task_model(settings.model_dir, settings.task, settings.task_changes)
    config, labels = opened.task.config, opened.task.labels
    settings.check_for_task(config)
    task = task_of(config, config.label_names or labels)  # its second label is the positive class of f1
    task.check_metrics()
    check_labels(settings.model_dir, opened.task)
    split = "dev" if settings.split == "auto" else settings.split
    if settings.task is None and settings.data_dir is None and not {"files", "hub"} & settings.task_changes.keys():
        hub = f", or task={config.name} for its dataset on the hub" if config.hub.path else ""
        raise InputError(
            f"missing value: name a file with labels, as in `bertkit evaluate {settings.model_dir} more.csv`, or set data_dir= to a "
            f"folder with {split}.*{hub}; files that are named in a run's settings are not opened"
        )
    source = readers.read_examples(config, settings.data_dir, split, labels)
    source.check_labelled(split)
    examples, coverage = source.examples, Coverage(opened.tokenizer.facts)
    features = list(coverage.counted(opened.task.each_feature(examples, opened.tokenizer)))
    accelerator = make_accelerator(settings.device, world_from_environment().size, settings.launch.hang_timeout_seconds)
    with ending_together(accelerator):
        predictor = opened.predictor(settings.precision, accelerator.device)
        scored = score_split(ranks_in(accelerator), predictor, task, examples, features)
    if not world_from_environment().is_main:
        return None
    warnings = [
        *beside_training(settings.model_dir, source),
        *source.warnings,
        *(
            [opened.task.truncated(coverage.num_truncated, len(examples), coverage.num_targets)]
            if coverage.num_truncated
            else []
        ),
        *coverage.warnings(examples, source.description),
        *faults_of(task.faults(scored.predictions), len(examples)),
    ]
    measured, intervals = evaluation(task, examples, scored.predictions, scored.scores, split)
    name = Path(source.name).name if settings.is_file else split
    line = console.scores_line(scored.scores, {}, config.best_metric, intervals)
    say(source.describe(), *(f"warning: {warning}" for warning in warnings), f"{name}: {line}", file=sys.stderr)
    return measured
