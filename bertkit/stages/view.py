"""Stage: show attention and attributions for one input, or a model's positions, as a page, numbers, or a picture."""

import itertools
from collections.abc import Iterator

from bertkit.apps.explain.attributions import NO_ALIGNMENT
from bertkit.apps.explain.explain import NO_WEIGHTS, Explanation, explain, json_parts
from bertkit.apps.explain.pictures import alignment_picture, attention_page, heads_picture, one_head_picture, png_writer
from bertkit.apps.explain.positions import look_at_positions, positions_page
from bertkit.base.errors import InputError, say
from bertkit.base.typed_settings import refuse, unused
from bertkit.inference.chunks import opened_examples
from bertkit.inference.predictor import ReadInputs
from bertkit.inference.task_model import Predictor, open_task_model
from bertkit.interop.load import load_packed
from bertkit.model.bert_config import BertConfig
from bertkit.run.outputs import check_outputs, opened_output
from bertkit.settings.command import short_name
from bertkit.settings.view import SET_BOTH, ViewSettings
from bertkit.tasks.task import Example
from bertkit.train import micro_batches, processes


def run(settings: ViewSettings, inputs: object = None) -> None:
    """Explain one input, from Python or else of `settings`, or the positions, and write the explanation."""
    check_outputs(settings.output, settings.input, settings.overwrite)
    writer = png_writer() if settings.ending == ".png" else None
    if settings.positions:
        look = look_at_positions(load_packed(settings.model_dir).model)
        with opened_output(settings.output) as file:
            file.write(
                look.json() if settings.ending == ".json" else positions_page(look, short_name(settings.model_dir))
            )
        say(f"{look.positions} positions in {settings.output}")
        return
    device = processes.choose_device(settings.device)
    opened = open_task_model(settings.model_dir, settings.task, settings.task_changes, without_head=True)
    generates = opened.task.head == "generation"
    refuse(
        unused(settings, "", ("steps", generates, "on a model that generates text", 0)),
        unused(settings, "", ("target_text", not generates, "on a model that does not generate text")),
    )
    _check_picture(settings, opened.model.config, generates)
    predictor = opened.predictor("fp32", micro_batches.AUTO_MICRO_TOKENS[device.type], opened.model.to(device))
    explained = _explained(settings, predictor, inputs)
    target = None if settings.target is None else str(settings.target)
    explanation = explain(predictor, explained, target, settings.steps, settings.target_text)
    with opened_output(settings.output, is_binary=writer is not None) as file:
        if settings.ending == ".json":
            file.writelines(json_parts(explanation))
        elif settings.ending == ".html":
            file.write(attention_page(explanation, short_name(settings.model_dir)))
        else:
            picture = _picture(settings, explanation)
            file.write(picture if writer is None else writer(picture))
    say(*explanation.notes())
    if explanation.attribution:
        say(explanation.attribution.completeness())
    say(f"{_summary(explanation)} in {settings.output}")


def _summary(explanation: Explanation) -> str:
    source, alignment = f"{len(explanation.tokens)} tokens", explanation.alignment
    if alignment is not None:
        aligned = "" if alignment.weights is None else ", aligned with the source"
        return f"a text of {len(alignment.tokens)} tokens{aligned}, and its source of {source}"
    return f"attention of {source}{f', attributions for {explanation.target}' if explanation.attribution else ''}"


def _check_picture(settings: ViewSettings, config: BertConfig, generates: bool) -> None:
    """Refuse a picture of attention weights that do not exist."""
    decoder, output = config.decoder, settings.output
    if settings.ending not in (".svg", ".png"):
        return
    if decoder is not None and decoder.kind == "rnn":
        refuse(
            decoder.score == "none" and f"output={output}: {NO_ALIGNMENT}; .html shows the generated text",
            settings.layer is not None and "layer= and head=: a decoder of kind rnn has one attention; leave them out",
        )
        return
    refuse(
        not generates and settings.head is None and settings.layer is not None and SET_BOTH,
        not generates
        and config.attention.pattern == "linformer"
        and f"output={output}: {NO_WEIGHTS}; .html shows the attributions",
        _too_many("layer", settings.layer or 1, config.num_hidden_layers),
        _too_many("head", settings.head or 1, config.num_attention_heads),
    )


def _too_many(name: str, number: int, most: int) -> str | None:
    return f"{name}={number}: the model has {most}; expected 1 to {most}" if number > most else None


def _picture(settings: ViewSettings, explanation: Explanation) -> str:
    if explanation.alignment is not None:
        return alignment_picture(explanation, settings.layer, settings.head)
    if settings.layer is None or settings.head is None:
        return heads_picture(explanation)
    return one_head_picture(explanation, settings.layer, settings.head)


def _explained(settings: ViewSettings, predictor: Predictor, inputs: object) -> ReadInputs:
    """Read the text, or the chosen row of the input."""
    with opened_examples(predictor.task, settings, inputs) as source:
        examples: Iterator[Example] = itertools.chain.from_iterable(source.chunks)
        example = next(itertools.islice(examples, settings.row - 1, None), None)
    if example is None:
        raise InputError(f"row={settings.row}: input={settings.input} has fewer examples; choose an earlier one")
    return ReadInputs(source.task, [example], list(source.task.each_feature([example], predictor.tokenizer)))
