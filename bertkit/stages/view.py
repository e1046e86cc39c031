"""Stage: show attention and attributions for one input, or a model's positions, as a page, numbers, or a picture."""

from bertkit.apps.explain.explain import Explanation, explain, json_parts
from bertkit.apps.explain.pictures import attention_page, draw, png_writer
from bertkit.apps.explain.positions import look_at_positions, positions_page
from bertkit.apps.explain.request import check_picture, read_input
from bertkit.base.errors import say
from bertkit.base.typed_settings import refuse, unused
from bertkit.inference.task_model import open_task_model
from bertkit.interop.load import load_packed
from bertkit.run.outputs import check_outputs, opened_output
from bertkit.settings.command import short_name
from bertkit.settings.view import ViewSettings
from bertkit.train.processes import choose_device


def run(settings: ViewSettings, inputs: object = None) -> None:
    """Explain one input, from Python or else of `settings`, or the positions, and write the explanation."""
    check_outputs(settings.output, settings.input, settings.overwrite)
    writer = png_writer() if settings.ending == ".png" else None
    if settings.positions:
        look = look_at_positions(load_packed(settings.model_dir).model)
        name = short_name(settings.model_dir)
        with opened_output(settings.output) as file:
            file.write(look.json() if settings.ending == ".json" else positions_page(look, name))
        say(f"{look.positions} positions in {settings.output}")
        return
    opened = open_task_model(settings.model_dir, settings.task, settings.task_changes, without_head=True)
    generates = opened.task.head == "generation"
    refuse(
        unused(settings, "", ("steps", generates, "on a model that generates text", 0)),
        unused(settings, "", ("target_text", not generates, "on a model that does not generate text")),
    )
    check_picture(settings, opened.model.config, generates)
    predictor = opened.predictor("fp32", choose_device(settings.device))
    explained = read_input(settings, predictor, inputs)
    target = None if settings.target is None else str(settings.target)
    explanation = explain(predictor, explained, target, settings.steps, settings.target_text)
    with opened_output(settings.output, is_binary=writer is not None) as file:
        if settings.ending == ".json":
            file.writelines(json_parts(explanation))
        elif settings.ending == ".html":
            file.write(attention_page(explanation, short_name(settings.model_dir)))
        else:
            picture = draw(explanation, settings.layer, settings.head)
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
