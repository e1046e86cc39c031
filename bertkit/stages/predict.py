"""Stage: a model and inputs -> predictions: a JSON line for each input example, in their order.

Inputs are read, predicted and written a chunk at a time, so that a file of any length needs the same memory; within a
chunk, batches are of about as many tokens each, the shortest examples first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from torch import nn

from bertkit.errors import InputError
from bertkit.files import PARTIAL, writing
from bertkit.model import kernels
from bertkit.progress import Progress
from bertkit.run.answers import answer_here
from bertkit.run.directory import FILES_OF_A_RUN, run_of
from bertkit.run.objective import best_tokens
from bertkit.run.task_model import TaskModel, check_labels, open_task_model
from bertkit.settings.schemas import PredictSettings
from bertkit.tasks import fill_mask, shapes, spans
from bertkit.tasks.files.streams import PEEKED, open_inputs
from bertkit.tasks.spans import SpanPrediction
from bertkit.train import loop

SQUAD_FILES: dict[str, Callable[[Sequence[SpanPrediction]], dict[str, Any]]] = {
    "predictions.json": spans.predictions_json,
    "nbest_predictions.json": spans.n_best_json,
    "null_odds.json": spans.null_odds_json,
}


def run(settings: PredictSettings) -> None:
    """Predict.

    Raises:
        InputError: the model has no head to predict with, or an input is not what it should be; the lines written
            before are whole, and stay under the partial name of an output file.
    """
    device = loop.choose_device(settings.device)
    kernels.use(kernels.choose(settings.kernels))
    opened = open_task_model(settings.model_dir, settings.task, settings.task_changes)
    if opened.task.labels != "auto":
        check_labels(settings.model_dir, opened)
    model = opened.model.to(device)
    tokens_at_once = loop.TOKENS_AT_ONCE[device.type]
    with _input(settings.input) as (stream, num_bytes), contextlib.ExitStack() as stack:
        output = _Output(settings, opened, stack)
        to_file = settings.output != "-"
        progress = stack.enter_context(Progress("predicting", num_bytes, silent=not to_file, file=sys.stderr))
        try:
            inputs = open_inputs(opened.task, stream, Path(settings.input), settings.format, opened.labels)
            for examples in inputs.chunks:
                if not output.num_lines:
                    progress.line(inputs.description)
                output.write(examples, _predict(opened, model, examples, settings, tokens_at_once))
                progress.advance(stream.tell() if num_bytes else output.num_lines)
            output.finish()
        except BrokenPipeError:  # who reads has seen enough, such as head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
        except InputError as error:
            if to_file and output.num_lines:
                raise InputError(
                    f"{error}; the {output.num_lines:,} predictions before it are in {settings.output}{PARTIAL}"
                ) from None
            raise
    if not output.num_lines:
        print(f"warning: input={settings.input} has no examples; there is nothing to predict", file=sys.stderr)
    if inputs.gaps.num_rows:
        print(
            f"warning: {inputs.gaps.num_rows:,} rows had too few cells, the first at {inputs.gaps.first}; they were "
            "taken as empty",
            file=sys.stderr,
        )
    if to_file:
        print(f"{output.num_lines:,} predictions in {settings.output}", file=sys.stderr)


@contextlib.contextmanager
def _input(name: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open the input; its size in bytes where that is known."""
    if name == "-":
        yield sys.stdin.buffer, None
        return
    path = Path(name)
    if path.is_dir():
        raise InputError(f"input={name} is a folder; give one of its files")
    try:
        file = path.open("rb", buffering=PEEKED)
    except FileNotFoundError:
        raise InputError(f"input={name}: no such file") from None
    with file:
        yield file, path.stat().st_size if path.is_file() else None


def _predict(
    opened: TaskModel, model: nn.Module, examples: list[Any], settings: PredictSettings, tokens_at_once: int
) -> list[Any]:
    if opened.head == "masked_lm":
        return _fill_masks(opened, model, examples, settings, tokens_at_once)
    features = list(shapes.make_features(opened.task, examples, opened.tokenizer, opened.labels))
    return answer_here(
        model,
        opened.task,
        examples,
        features,
        opened.labels,
        opened.tokenizer,
        precision=settings.precision,
        micro_tokens=tokens_at_once,
    )


def _fill_masks(
    opened: TaskModel, model: nn.Module, examples: list[Any], settings: PredictSettings, tokens_at_once: int
) -> list[list[list[dict[str, Any]]]]:
    """Give each example's masks, each with its most probable tokens, the best first."""
    vocab = opened.tokenizer.vocab
    sequences = fill_mask.make_sequences(examples, opened.tokenizer, opened.task.max_seq_length)
    order = sorted(range(len(sequences)), key=lambda number: len(sequences[number].input_ids))
    found: list[list[list[dict[str, Any]]]] = [[] for _ in sequences]
    while order:
        num_tokens, batch = 0, list[int]()
        while order and (not batch or num_tokens + len(sequences[order[0]].input_ids) <= tokens_at_once):
            batch.append(order.pop(0))
            num_tokens += len(sequences[batch[-1]].input_ids)
        tokens, shares = best_tokens(
            model, fill_mask.pack([sequences[n] for n in batch]), settings.top_k, settings.precision
        )
        rows = iter(zip(tokens.tolist(), shares.tolist(), strict=True))
        for number in batch:
            for _ in sequences[number].positions:
                best = zip(*next(rows), strict=True)
                found[number].append([{"token": vocab[token], "probability": share} for token, share in best])
    masks: list[list[list[dict[str, Any]]]] = [[] for _ in examples]
    for sequence, filled in zip(sequences, found, strict=True):
        masks[sequence.example] += filled
    return masks


class _Output:
    """Where predictions go: JSON lines, and beside a file what the shape's own programs read."""

    def __init__(self, settings: PredictSettings, opened: TaskModel, stack: contextlib.ExitStack) -> None:
        output = settings.output
        self.opened, self.num_lines = opened, 0
        self.lines: TextIO = sys.stdout
        self.conll: TextIO | None = None
        self.squad: dict[str, TextIO] = {}
        if output == "-":
            return
        path = Path(output)
        if path.is_dir():
            raise InputError(f"output={output} is a folder; give a file in it")
        conll = path.with_suffix(".conll")
        squad = {name: path.parent / name for name in SQUAD_FILES}
        _check_free(settings, path, {"token": [conll], "span": list(squad.values())}.get(opened.head, []))
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lines = stack.enter_context(writing(path))
        if opened.head == "token":
            self.conll = stack.enter_context(writing(conll))
        if opened.head == "span":
            self.squad = {name: stack.enter_context(writing(place)) for name, place in squad.items()}

    def write(self, examples: list[Any], predictions: list[Any]) -> None:
        """Write the predictions of a chunk, and let readers see them."""
        for example, prediction in zip(examples, predictions, strict=True):
            row = _row(self.opened.head, example, prediction)
            self.lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.lines.flush()
        if self.conll is not None:
            for example, tags in zip(examples, predictions, strict=True):
                columns = zip(example.words, tags, strict=True)
                self.conll.write("".join(f"{word}\t{tag}\n" for word, tag in columns) + "\n")
        for name, file in self.squad.items():
            inside = json.dumps(SQUAD_FILES[name](predictions), indent=2, ensure_ascii=False)[2:-2]
            file.write((",\n" if self.num_lines else "{\n") + inside)
        self.num_lines += len(examples)

    def finish(self) -> None:
        """Write the ends of the files that have some."""
        for file in self.squad.values():
            file.write("\n}\n" if self.num_lines else "{}\n")


def _check_free(settings: PredictSettings, path: Path, beside: list[Path]) -> None:
    """Refuse to overwrite the input, what a run wrote of itself, or what was written beside another output.

    Raises:
        InputError: naming the first such file.
    """
    in_run = run_of(path.parent) == path.parent.resolve()
    for target in (path, *beside):
        if settings.input != "-" and target.resolve() == Path(settings.input).resolve():
            raise InputError(f"output={path}: {target} would be written, which is the input; choose another name")
        if in_run and target.name in FILES_OF_A_RUN:
            raise InputError(f"output={path}: {target} is written too, and belongs to the run; choose another folder")
        if target.exists() and not path.exists():
            raise InputError(
                f"output={path}: {target} is written beside it, and is there of something else; choose another folder, or "
                "remove it"
            )


def _row(head: str, example: Any, prediction: Any) -> dict[str, Any]:
    """The line of one example."""
    match head:
        case "token":
            return {"id": example.id, "words": example.words, "tags": prediction}
        case "masked_lm":
            return {"id": example.id, "text": example.text, "masks": prediction}
        case "span":
            chosen = next(each for each in prediction.n_best if each.text == prediction.text)
            return {
                "id": example.id,
                "text": prediction.text,
                "probability": chosen.probability,
                "start": chosen.start if prediction.text else None,
                "end": chosen.end if prediction.text else None,
                "no_answer_probability": prediction.no_answer_probability,
            }
    return dataclasses.asdict(prediction)
