"""Both ends of a training run.

It begins: its directory is held, and it says what it is going to do and to need. It ends: its model, its report and its
final metrics are written.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError, say
from bertkit.base.files import building_dir, to_json, write_durably
from bertkit.base.memory import processes_here
from bertkit.base.typed_settings import differences, to_mapping
from bertkit.interop.exports.card import CardFacts, model_card
from bertkit.interop.hugging_face.directory import write_model
from bertkit.launch.world import world_from_environment
from bertkit.run.directory import RESULT, held, is_finished, record_changes
from bertkit.run.memory_plan import MicroBatch, memory_lines, standing_bytes
from bertkit.run.rules import Change, Rules
from bertkit.run.state import TrainingState
from bertkit.run.task_data import TaskData
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train.checkpoint import rotate
from bertkit.train.processes import Accelerator, Ranks, leaving_together, on_main_process
from bertkit.view import console
from bertkit.view.progress import duration
from bertkit.view.report import CHARTS, TASK_CHARTS, Curves, write_report


def say_if_done(directory: Path, identity: dict[str, Any], rules: Rules) -> bool:
    """Whether a run is finished, by what is known of its identity; if so, say it."""
    finished = is_finished(directory, identity, rules)
    if finished and world_from_environment().is_main:
        say(f"done already: the model is in {directory / 'model'}")
    return finished


@contextlib.contextmanager
def opened(
    accelerator: Accelerator,
    settings: PretrainSettings | FinetuneSettings,
    identity: dict[str, Any],
    facts: dict[str, Any],
    rules: Rules,
) -> Iterator[Callable[[int], None]]:
    """Hold the directory of a run, by its first process; give what writes down, at a step, what changes from there on.

    Raises:
        InputError: the directory holds another run, or something that is no run.
        LockedError: the run is live elsewhere.
    """
    directory, mapping = Path(settings.output_dir), to_mapping(settings)
    with leaving_together(accelerator), contextlib.ExitStack() as stack:

        def open_run() -> list[Change]:
            return stack.enter_context(held(directory, mapping, identity, facts, rules, settings.resume.allow))

        _check_same(accelerator, mapping | identity)
        changes = on_main_process(accelerator, open_run)

        def record(step: int) -> None:
            lines = on_main_process(accelerator, lambda: record_changes(directory, changes, step, mapping, identity))
            if accelerator.is_main_process:
                say(*(f"warning: {line}" for line in lines))

        yield record


def _check_same(accelerator: Accelerator, own: Mapping[str, Any]) -> None:
    """Refuse processes with other settings or data than the first one's, such as those of another host.

    Raises:
        InputError: naming the first difference, in every process.
    """
    first = on_main_process(accelerator, lambda: own)

    def compare() -> None:
        for key, there, here in differences(first, own):
            if not key.startswith("launch.") and not key.endswith("_dir"):  # hosts have their own
                where = f"process {accelerator.process_index} on {socket.gethostname()}"
                raise InputError(
                    f"{where} differs from process 0: {key}={here!r}, {there!r} there; give all hosts the same settings"
                )

    Ranks(accelerator.process_index, accelerator.num_processes).each(compare)


def say_what_happens(
    settings: PretrainSettings | FinetuneSettings,
    state: TrainingState,
    steps: int,
    lines: Sequence[str],
    planned: Sequence[MicroBatch],
) -> None:
    """Say what is going to happen: what is trained and how, the stage's own lines, memory, and where a run goes on."""
    accelerator, config = state.accelerator, state.bare_model.config
    if not accelerator.is_main_process:
        return
    size = sum(parameter.numel() for parameter in state.bare_model.parameters())
    how = f"{settings.precision} on {accelerator.device.type}, {accelerator.num_processes} process(es)"
    say(console.model_line(size, config.num_hidden_layers, config.hidden_size, list(state.bare_model.heads), how))
    device = accelerator.device.type
    for line in (*lines, *memory_lines(planned, device, processes_here(device))):
        say(line)
    if state.first_step:
        say(f"resumed from step {state.first_step} of {steps}")


def plan(
    settings: PretrainSettings | FinetuneSettings,
    state: TrainingState,
    forward: Callable[[int], int],
    num_tokens: int,
    max_seq_length: int,
    *,
    by_sequences: bool,
) -> MicroBatch:
    """Describe the largest micro-batch of steps of one kind, to know what memory they need.

    `forward` passes so many of its sequences through the model, and gives their number of tokens. `by_sequences` says
    that `batch.micro_sequences` decides on the size of a micro-batch, and not `batch.micro_tokens`.
    """
    num_processes, is_strict = state.accelerator.num_processes, state.choices.is_strict
    by_tokens, num_sequences = ("batch.micro_tokens", num_tokens), -(-num_tokens // max_seq_length)
    return MicroBatch(
        model=state.bare_model,
        forward=forward,
        standing=standing_bytes(state.bare_model, num_processes, is_strict, settings.checkpoint.background),
        num_tokens=num_tokens,
        setting=("batch.micro_sequences", num_sequences) if by_sequences else by_tokens,
        tokens_of_setting=max_seq_length if by_sequences else 1,
    )


@contextlib.contextmanager
def reported(state: TrainingState, baselines: Mapping[str, float], charts: Sequence[Curves]) -> Iterator[None]:
    """Draw the report when training begins, and once more when it is left early, stopped or by an error."""

    def draw() -> None:
        if state.accelerator.is_main_process:
            write_report(state.directory, dict(baselines), charts)

    draw()
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk may be why
            draw()
        raise


def publish(
    state: TrainingState,
    steps: int,
    facts: CardFacts,
    result: Mapping[str, Any],
    *,
    files: Mapping[str, str] | None = None,
    baselines: Mapping[str, float] | None = None,
    line: str | None = None,
    review: Mapping[str, Any] | None = None,
) -> None:
    """Write what a run leaves, by its first process; the final metrics last, they mark the run as done.

    `files` are those of the predictions, by name; None for pretraining, whose checkpoints all stay. `baselines` are
    what the curves are compared with; None for fine-tuning. `line` says how good the model is. `review` is what the report
    of a fine-tune shows of the predictions.
    """
    directory = state.directory
    with building_dir(directory / "model") as partial:
        write_model(state.bare_model, state.tokenizer, partial, {"README.md": model_card(state.bare_model, facts)})
    for name, content in (files or {}).items():
        write_durably(directory / name, content)
    write_report(directory, dict(baselines or {}), TASK_CHARTS if baselines is None else CHARTS, review)
    if files is not None:  # model/ has the best weights now
        rotate(directory, steps, state.saves.config.keep_last, best=None)
    write_durably(directory / RESULT, to_json(result))
    if line is not None:
        say(line)
    if state.saves.standing.skips.total:
        say(console.skips_line(state.saves.standing.skips.total))
    say(f"model:  {directory / 'model'}", f"report: {directory / 'report.html'}")


def report_of(
    settings: FinetuneSettings,
    state: TrainingState,
    data: TaskData,
    result: Mapping[str, Any],
    found: Mapping[str, Any],
) -> dict[str, Any]:
    """Give what the report of a fine-tune shows: predictions and scores, and how they came about.

    `result` has the final metrics; `found` is the shape's review, with the `scores`.
    """
    task = settings.task
    cut = [
        f"{name}: {split.coverage.num_truncated:,} of {len(split.source.examples):,} examples"
        for name, split in (("train", data.train), ("dev", data.dev))
    ]
    size = sum(parameter.numel() for parameter in state.bare_model.parameters())
    trained = sum(parameter.numel() for parameter in state.names)
    resumed = f", from step {state.first_step:,} on" if state.first_step else ""
    facts = {
        "started from": settings.model_dir or "nothing",
        "parameters": f"{size:,}, of which {trained:,} are trained",
        "time": f"{duration(time.monotonic() - state.started_at)}{resumed}",
        "steps": f"{state.last_step:,}; the best: {result['best_step']:,}, after {result['best_epoch']:g} epochs",
        "learning rate": f"{settings.optimizer.peak:g}, after {settings.warmup_of(state.last_step):g} steps of warm-up",
        "examples a step": f"{settings.batch.sequences:,}",
        f"truncated at {task.max_seq_length} tokens": "; ".join(cut),
    }
    return {
        **found,
        "facts": facts,
        "guessing": result.get("majority_baseline", {}),
        "warnings": result["warnings"],
        "best_metric": task.best_metric,
        "num_examples": result["num_examples"],
    }
