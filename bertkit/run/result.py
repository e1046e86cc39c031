"""How a training run ends: its model, its report and its final metrics are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertkit.files import building_dir, to_json, write_durably
from bertkit.interop.exports.card import CardFacts, model_card
from bertkit.interop.hugging_face.directory import write_model
from bertkit.run.directory import RESULT
from bertkit.run.state import TrainingState
from bertkit.train.checkpoint import rotate
from bertkit.view import console
from bertkit.view.report import CHARTS, TASK_CHARTS, write_report


def publish(
    state: TrainingState,
    steps: int,
    facts: CardFacts,
    result: Mapping[str, Any],
    *,
    files: Mapping[str, str] | None = None,
    baselines: Mapping[str, float] | None = None,
    line: str | None = None,
) -> None:
    """Write what a run leaves, by its first process; the final metrics last, they mark the run as done.

    Args:
        state: with the weights to publish.
        steps: of the whole run.
        facts: of the model card.
        result: the final metrics.
        files: of the predictions, by name; None for pretraining, whose checkpoints all stay.
        baselines: what the curves are compared with; None for fine-tuning.
        line: that says how good the model is.
    """
    directory = state.directory
    with building_dir(directory / "model") as partial:
        write_model(state.bare_model, state.tokenizer, partial, {"README.md": model_card(state.bare_model, facts)})
    for name, content in (files or {}).items():
        write_durably(directory / name, content)
    write_report(directory, dict(baselines or {}), TASK_CHARTS if baselines is None else CHARTS)
    if files is not None:  # model/ has the best weights now
        rotate(directory, steps, state.saves.config.keep_last, best=None)
    write_durably(directory / RESULT, to_json(result))
    if line is not None:
        print(line)
    if state.saves.standing.skips.total:
        print(console.skips_line(state.saves.standing.skips.total))
    print(f"model:  {directory / 'model'}\nreport: {directory / 'report.html'}")
