"""Writes the results of a finished training run: model, predictions, report and final metrics; what an export says of a run."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from bertkit.base.errors import counted, say
from bertkit.base.files import building_dir, to_json, write_durably, writing
from bertkit.base.typed_settings import at, checked
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.display.page import Table
from bertkit.display.report import write_report
from bertkit.interop.exports.card import CardFacts, finetuning_facts, model_card, pretraining_facts
from bertkit.interop.hugging_face.directory import write_model
from bertkit.interop.load import load_tokenizer
from bertkit.model.heads import BertWithHeads
from bertkit.run.directory import RESULT, read_manifest, read_scores, read_settings, run_of
from bertkit.run.job import AnyJob
from bertkit.run.state import TrainingState
from bertkit.tasks.scoring.metrics import keys_of
from bertkit.train.checkpoint import delete_old_checkpoints
from bertkit.train.checkpoint_files import read_state


def publish(
    job: AnyJob,
    state: TrainingState,
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
    write_files(directory, state.bare_model, state.tokenizer, facts, files or {})
    write_report(directory, job.baselines(job.steps), job.charts, review, samples)
    if (
        files is not None
    ):  # model/ has the best weights, so their checkpoint is no longer needed; unless calibration has changed them
        best = state.writer.history.best
        kept = (best.step,) if best is not None and "calibration" in result else ()
        delete_old_checkpoints(directory, job.steps, state.writer.config.keep_last, kept)
    write_durably(directory / RESULT, to_json(result))
    if line is not None:
        say(line)
    if num_skipped := state.writer.history.skips.total:
        say(
            f"skipped {counted(num_skipped, 'step')} because the loss or gradient was not finite; metrics.jsonl names the examples"
        )
    say(f"model:  {directory / 'model'}", f"report: {directory / 'report.html'}")


def write_files(
    directory: Path, model: BertWithHeads, tokenizer: Tokenizer, facts: CardFacts, files: Mapping[str, Iterable[str]]
) -> None:
    """Write a model and the lines of its predictions."""
    with building_dir(directory / "model") as partial:
        write_model(model, tokenizer, partial, {"README.md": model_card(model, facts)})
    for name, content in files.items():
        with writing(directory / name) as file:
            file.writelines(content)


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
