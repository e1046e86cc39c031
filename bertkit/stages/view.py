"""Stage: a model and one input -> attention and attributions, as a page, numbers, or a picture."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError, say
from bertkit.base.text_files import opened_input
from bertkit.explain.alignment_picture import alignment_picture
from bertkit.explain.attention_page import attention_page
from bertkit.explain.explaining import look
from bertkit.explain.head_picture import heads_picture, one_head_picture, png_writer
from bertkit.explain.look import NO_LOOKING, NO_WEIGHTS, Look, json_parts
from bertkit.predict.task_model import Predictor, check_labels, open_task_model
from bertkit.run.outputs import check_free, opened_output
from bertkit.settings.view import BOTH, ViewSettings
from bertkit.tasks.reading.readers import Inputs, open_inputs, take_texts
from bertkit.tasks.shapes import make_features
from bertkit.train import micro_batches, processes


def run(settings: ViewSettings) -> None:
    """Look, and write what there is to see.

    Raises:
        InputError: the model, the input or what is asked of them does not fit.
        NumericsError: what the model computes is not finite.
    """
    check_free(settings.output, settings.input, settings.overwrite)
    writer = png_writer() if settings.ending == ".png" else None
    device = processes.choose_device(settings.device)
    opened = open_task_model(settings.model_dir, settings.task, settings.task_changes, without_head=True)
    if opened.task.labels != "auto" and opened.labels:
        check_labels(settings.model_dir, opened)
    writes = opened.shape.head == "generation"
    _check_target(settings, writes)
    _check_head(settings, opened.model.config, writes)
    predictor = opened.predictor("fp32", micro_batches.AUTO_MICRO_TOKENS[device.type], opened.model.to(device))
    predictor, example = _example(settings, predictor)
    features = list(make_features(predictor.task, [example], predictor.tokenizer, predictor.labels, predictor.shape))
    target = None if settings.target is None else str(settings.target)
    found = look(predictor, example, features, target, settings.steps, settings.target_text)
    with opened_output(settings.output, is_binary=writer is not None) as file:
        if settings.ending == ".json":
            file.writelines(json_parts(found))
        elif settings.ending == ".html":
            file.write(attention_page(found, settings.model_dir))
        else:
            picture = _picture(settings, found)
            file.write(picture if writer is None else writer(picture))
    for line in [*found.notes(), *([found.attribution.completeness()] if found.attribution else [])]:
        say(line)
    say(f"{_summary(found)} in {settings.output}")


def _summary(found: Look) -> str:
    """Say what there is to see."""
    source = f"{len(found.tokens)} tokens"
    if found.alignment is not None:
        looks = "" if found.alignment.weights is None else ", what each looks at"
        return f"a text of {len(found.alignment.tokens)} tokens{looks}, and the {source} of its source"
    return f"attention of {source}{f' and what {found.target} rests on' if found.attribution else ''}"


def _check_target(settings: ViewSettings, writes: bool) -> None:
    """Refuse what is explained where a text is written, and a text where none is."""
    if writes and settings.steps:
        raise InputError(f"steps={settings.steps}: has no effect on a model that writes; leave it out")
    if not writes and settings.target_text is not None:
        raise InputError("target_text: has no effect on a model that does not write; leave it out")


def _check_head(settings: ViewSettings, config: Any, writes: bool) -> None:
    """Refuse a picture of weights that there are not."""
    if settings.ending not in (".svg", ".png"):
        return
    if writes and config.decoder.kind == "rnn":
        if config.decoder.score == "none":
            raise InputError(f"output={settings.output}: {NO_LOOKING}; .html shows what is written")
        if settings.layer is not None:
            raise InputError("layer= and head=: a decoder of kind rnn looks at its source once; leave them out")
        return
    if settings.head is None and settings.layer is not None and not writes:
        raise InputError(BOTH)
    if config.attention.pattern == "linformer" and not writes:
        raise InputError(f"output={settings.output}: {NO_WEIGHTS}; .html shows what the prediction rests on")
    most = {"layer": config.num_hidden_layers, "head": config.num_attention_heads}
    given = {"layer": settings.layer, "head": settings.head}
    problems = [
        f"{name}={value}: the model has {most[name]}; expected 1 to {most[name]}"
        for name, value in given.items()
        if value is not None and value > most[name]
    ]
    if problems:
        raise InputError(*problems)


def _picture(settings: ViewSettings, found: Look) -> str:
    if found.alignment is not None:
        return alignment_picture(found, settings.layer, settings.head)
    if settings.layer is None or settings.head is None:
        return heads_picture(found)
    return one_head_picture(found, settings.layer, settings.head)


def _example(settings: ViewSettings, predictor: Predictor) -> tuple[Predictor, Any]:
    """Take the text, or the row of the input; give also what reads such examples."""
    with contextlib.ExitStack() as stack:
        inputs = _inputs(settings, predictor, stack)
        examples: Iterator[Any] = (example for chunk in inputs.chunks for example in chunk)
        example = next(itertools.islice(examples, settings.row - 1, None), None)
    if example is None:
        raise InputError(f"row={settings.row}: input={settings.input} has fewer examples; choose an earlier one")
    return dataclasses.replace(predictor, shape=inputs.shape), example


def _inputs(settings: ViewSettings, predictor: Predictor, stack: contextlib.ExitStack) -> Inputs:
    shape, task = predictor.shape, predictor.task
    if settings.input is None:
        pairs = None if settings.text_pair is None else [settings.text_pair]
        return take_texts(shape, task, [settings.text or ""], pairs)
    stream, _ = stack.enter_context(opened_input(settings.input))
    return open_inputs(shape, task, stream, Path(settings.input), settings.format, tuple(predictor.labels))
