"""Which tokens of a source a model looks at while it writes each token of a text.

Axes: L layers of the decoder, N heads, T tokens of a text, C tokens of its source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.explain.look import Alignment
from bertkit.kernels.layout import Layout
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads, Targets
from bertkit.predict.answers import logits_here, require_finite
from bertkit.predict.task_model import Predictor
from bertkit.tasks.shapes import make_features
from bertkit.tasks.task import Feature


def is_recurrent(config: BertConfig) -> bool:
    """Whether the encoder is a recurrence, whose tokens do not look at each other."""
    return config.decoder is not None and config.decoder.kind == "rnn"


def align(
    predictor: Predictor, example: Any, target_text: str | None = None
) -> tuple[Feature, dict[str, Any], Alignment]:
    """Write the text of an example, and see what each of its tokens looks at; of another text, where one is given.

    Args:
        predictor: of a task of generation.
        example: of it, whose own target is not looked at.
        target_text: whose tokens are aligned with the source's; None for the best that is written.

    Returns:
        The feature of the source, what `predict` writes of it, and the alignment.

    Raises:
        NumericsError: what the model computes is not finite.
    """
    task, tokenizer, shape = predictor.task, predictor.tokenizer, predictor.shape
    assert task.generation is not None, "a task of generation"
    model: Any = predictor.model

    def feature_of(target: str | None) -> Feature:
        own = dataclasses.replace(example, target=target)
        return next(iter(make_features(task, [own], tokenizer, predictor.labels, shape)))

    feature = feature_of(None)
    (written,) = found = logits_here(predictor, [example], [feature])
    (prediction,) = shape.predictions(task, [example], [feature], found, predictor.labels, tokenizer)
    num_cut = 0
    if target_text is None:
        tokens, config = written[0][0], model.config.decoder
        if len(tokens) < task.generation.max_target_length:  # else it was stopped before its end
            tokens = [*tokens, config.end_token_id]
        inputs = [config.start_token_id, *tokens[:-1]]
    else:
        given = feature_of(target_text)
        inputs, tokens = given.label[:-1], given.label[1:]
        num_cut = given.num_cut - feature.num_cut
    names = [tokenizer.vocab[number] for number in tokens]
    weights = _weights(model, feature, inputs)
    return feature, shape.row(example, prediction), Alignment(names, tokens, weights, target_text is not None, num_cut)


def _weights(model: BertWithHeads, feature: Feature, inputs: Sequence[int]) -> NDArray[np.float32] | None:
    """Give the share of each source token for the token after each input, (L, N, T, C); None where nothing is looked at."""
    device = model.bert.embeddings.token.weight.device
    ids, types, before = (
        torch.tensor(each, device=device) for each in (feature.input_ids, feature.token_type_ids, inputs)
    )
    source, target = (Layout.from_lengths(torch.tensor([len(each)]), device) for each in (ids, before))
    with torch.no_grad():
        found = model(ids, types, source, output_attentions=True, targets=Targets(before, target)).alignments
    if not found:
        return None
    weights: NDArray[np.float32] = torch.cat(found).float().cpu().numpy()
    require_finite(bool(np.isfinite(weights).all()))
    return weights
