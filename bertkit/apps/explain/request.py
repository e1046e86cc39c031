"""What `view` is asked for: the input to explain, and a picture that the model can give."""

import itertools
from collections.abc import Iterator

from bertkit.apps.explain.attributions import NO_ALIGNMENT
from bertkit.apps.explain.explain import NO_WEIGHTS
from bertkit.base.errors import InputError
from bertkit.base.typed_settings import refuse
from bertkit.inference.chunks import opened_examples
from bertkit.inference.predictor import ReadInputs
from bertkit.inference.task_model import Predictor
from bertkit.model.bert_config import BertConfig
from bertkit.settings.view import SET_BOTH, ViewSettings
from bertkit.tasks.task import Example


def check_picture(settings: ViewSettings, config: BertConfig, generates: bool) -> None:
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


def read_input(settings: ViewSettings, predictor: Predictor, inputs: object) -> ReadInputs:
    """Read the text, or the chosen row of the input."""
    with opened_examples(predictor.task, settings, inputs) as source:
        examples: Iterator[Example] = itertools.chain.from_iterable(source.chunks)
        example = next(itertools.islice(examples, settings.row - 1, None), None)
    if example is None:
        raise InputError(f"row={settings.row}: input={settings.input} has fewer examples; choose an earlier one")
    return ReadInputs(source.task, [example], list(source.task.each_feature([example], predictor.tokenizer)))
