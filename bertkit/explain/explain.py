"""Explain one input: the prediction, the attention between tokens, what the prediction rests on, and a text's alignment.

Axes: L layers, N heads, T tokens of the sequence (or of the written text), C tokens of the source of a written text.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.base.errors import InputError, in_json
from bertkit.explain.attributions import Attribution, Target, attribute, pretraining_target, run_copies, target_of
from bertkit.kernels.layout import Layout
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads, Targets
from bertkit.predict.answers import answer_here, logits_here, require_finite
from bertkit.predict.task_model import Predictor
from bertkit.tasks.task import Feature

NO_ALIGNMENT = "decoder.score=none: the decoder reads the last state of the source, and attends to none of its tokens"
RECURRENT = "The encoder is recurrent (decoder=rnn): its tokens do not attend to each other."
NO_WEIGHTS = "attention.pattern=linformer compresses the keys: there are no weights between tokens"


@dataclass(frozen=True)
class Alignment:
    """The source tokens that the decoder attends to while it writes each token of a text."""

    tokens: Sequence[str]  # T of them, with the end of the text
    token_ids: Sequence[int]  # T of them
    weights: NDArray[np.float32] | None  # (L, N, T, C), shares of the C source tokens; None without cross-attention
    is_given: bool = False  # whether the text is target_text, and not the model's own
    num_cut: int = 0  # pieces of target_text that did not fit

    def notes(self) -> list[str]:
        """Give the limits of this alignment, a sentence each."""
        notes = {
            "The text below is target_text=, not the model's own.": self.is_given,
            f"Its last {self.num_cut:,} pieces did not fit (task.generation.max_target_length).": self.num_cut,
            f"{NO_ALIGNMENT}.": self.weights is None,
        }
        return [note for note, holds in notes.items() if holds]


@dataclass(frozen=True)
class Explanation:
    """One input as a model reads it."""

    tokens: Sequence[str]  # T of them
    token_ids: Sequence[int]  # T of them
    segments: Sequence[int]  # 0 for the first text, 1 for the second, T of them
    num_layers: int  # L
    num_heads: int  # N; 0 for a recurrent encoder
    prediction: dict[str, Any] | None  # the row that `predict` writes; None if no head predicts anything for this input
    target: str | None  # the explained target in words; None without one
    target_tokens: Sequence[int]  # the target's own tokens, such as those of an answer
    attribution: Attribution | None  # None without a target, or with steps=0
    attentions: NDArray[np.float32] | None  # (L, N, T, T); None if there are no weights between tokens
    rollout: NDArray[np.float64] | None  # (L, T, T)
    num_cut: int = 0  # pieces of the input that did not fit
    num_windows: int = 1  # of a long input; this is one of them
    alignment: Alignment | None = None  # for a model that writes, which has no target

    def notes(self) -> list[str]:
        """Give the limits of this explanation, a sentence each."""
        notes = {
            f"The input has {self.num_windows} windows; this is one of them.": self.num_windows > 1,
            f"The last {self.num_cut:,} pieces did not fit (task.max_seq_length).": self.num_cut,
            f"{NO_WEIGHTS}." if self.num_heads else RECURRENT: self.attentions is None,
        }
        if self.alignment is None:
            notes["The model has no head for this input, so there is nothing to explain."] = self.target is None
            notes["No attributions, as steps=0."] = self.target is not None and self.attribution is None
        own = self.alignment.notes() if self.alignment is not None else []
        return [note for note, holds in notes.items() if holds] + own


def explain(
    predictor: Predictor,
    example: Any,
    features: Sequence[Feature],
    target: str | None = None,
    steps: int | None = None,
    target_text: str | None = None,
) -> Explanation:
    """Explain a model's reading of one example.

    Args:
        predictor: for a task, for masked LM, or without a head, from `open_task_model`.
        example: of its shape.
        features: of this example.
        target: the label, word or ending to explain; None for the prediction.
        steps: points of integrated gradients; None for as many as needed, 0 for no attributions.
        target_text: for a model that writes: the text to align with the source; None for the written one.

    Raises:
        InputError: there is no such target.
        NumericsError: the model's output is not finite.
    """
    features = [dataclasses.replace(feature, label=None, example=0) for feature in features]
    model: Any = predictor.model
    model.requires_grad_(False)
    feature, row, explained, alignment = _read(predictor, example, features, target, target_text)
    attribution = None
    if explained is not None and steps != 0:
        facts = predictor.tokenizer.facts
        baseline = [n if n in (facts.cls, facts.sep, facts.mask) else facts.pad for n in feature.input_ids]
        attribution = attribute(model, explained, feature, baseline, steps, predictor.micro_tokens)
    attentions = attentions_of(model, feature)
    return Explanation(
        tokens=[predictor.tokenizer.vocab[number] for number in feature.input_ids],
        token_ids=feature.input_ids,
        segments=feature.token_type_ids,
        num_layers=model.config.num_hidden_layers,
        num_heads=0 if _is_recurrent(model.config) else model.config.num_attention_heads,
        prediction=row,
        target=None if explained is None else explained.what,
        target_tokens=() if explained is None else explained.tokens,
        attribution=attribution,
        attentions=attentions,
        rollout=None if attentions is None else rollout(attentions),
        num_cut=feature.num_cut,
        num_windows=1 if predictor.shape.has_choices else len(features),
        alignment=alignment,
    )


def _read(
    predictor: Predictor, example: Any, features: Sequence[Feature], target: str | None, target_text: str | None
) -> tuple[Feature, dict[str, Any] | None, Target | None, Alignment | None]:
    """Give the explained feature, the row that `predict` writes, the target, and the alignment of a written text."""
    if predictor.shape.generates_text:
        if target is not None:
            raise InputError(f"target={target}: has no effect on a model that writes; set target_text=")
        feature, row, alignment = _align(predictor, example, target_text)
        return feature, row, None, alignment
    model: Any = predictor.model
    if predictor.shape.head not in model.heads:
        pretrained, explained = pretraining_target(predictor, features[0], target)
        if explained is None and target is not None:
            raise InputError(f"target={target}: the model predicts nothing for this input; leave target= out")
        return features[0], pretrained, explained, None
    (prediction,) = answer_here(predictor, [example], features)
    feature, explained = target_of(predictor, example, features, prediction, target)
    return feature, predictor.shape.row(example, prediction), explained, None


def _is_recurrent(config: BertConfig) -> bool:
    return config.decoder is not None and config.decoder.kind == "rnn"


def attentions_of(model: BertWithHeads, feature: Feature) -> NDArray[np.float32] | None:
    """Give the share of each key (last axis) for each query, (L, N, T, T); None if the encoder has no attention weights."""
    if model.config.attention.pattern == "linformer" or _is_recurrent(model.config):
        return None
    with torch.no_grad():
        attentions = run_copies(model, feature, output_attentions=True).attentions
    assert attentions is not None
    return _stacked(attentions)


def _stacked(attentions: Sequence[torch.Tensor]) -> NDArray[np.float32]:
    weights: NDArray[np.float32] = torch.cat(list(attentions)).float().cpu().numpy()
    require_finite(bool(np.isfinite(weights).all()))
    return weights


def rollout(attentions: NDArray[np.floating]) -> NDArray[np.float64]:
    """Follow attention down to the input: (L, N, T, T) -> (L, T, T), the shares of the input's tokens in every layer.

        rollout_l = (0.5 mean over heads of A_l + 0.5 I) rollout_(l - 1), each row summing to 1

    The second half is the residual connection.

    Source: Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers, equation 1 and section 3.
    """
    shares = np.eye(attentions.shape[-1])
    layers = []
    for weights in attentions:
        mixed = 0.5 * weights.mean(0, dtype=np.float64) + 0.5 * np.eye(len(shares))
        shares = mixed / mixed.sum(-1, keepdims=True) @ shares
        layers.append(shares)
    return np.stack(layers)


def _align(predictor: Predictor, example: Any, target_text: str | None) -> tuple[Feature, dict[str, Any], Alignment]:
    """Give the feature of the source, the row that `predict` writes, and the alignment of the written text or `target_text`."""
    task, tokenizer, shape = predictor.task, predictor.tokenizer, predictor.shape
    assert task.generation is not None, "a task of generation"
    model: Any = predictor.model

    def feature_of(target: str | None) -> Feature:
        return predictor.features([dataclasses.replace(example, target=target)])[0]

    feature = feature_of(None)
    (written,) = logits = logits_here(predictor, [example], [feature])
    (prediction,) = shape.predictions(task, [example], [feature], logits, predictor.labels, tokenizer)
    num_cut = 0
    if target_text is None:
        tokens, config = written[0][0], model.config.decoder
        if len(tokens) < task.generation.max_target_length:  # the text ended by itself
            tokens = [*tokens, config.end_token_id]
        inputs = [config.start_token_id, *tokens[:-1]]
    else:
        of_target = feature_of(target_text)
        inputs, tokens = of_target.label[:-1], of_target.label[1:]
        num_cut = of_target.num_cut - feature.num_cut
    names = [tokenizer.vocab[number] for number in tokens]
    weights = _alignment_weights(model, feature, inputs)
    return feature, shape.row(example, prediction), Alignment(names, tokens, weights, target_text is not None, num_cut)


def _alignment_weights(model: BertWithHeads, feature: Feature, inputs: Sequence[int]) -> NDArray[np.float32] | None:
    """Give the share of every source token in the token after each input, (L, N, T, C); None without cross-attention."""
    device = model.bert.embeddings.token.weight.device
    ids, types, before = (
        torch.tensor(numbers, device=device) for numbers in (feature.input_ids, feature.token_type_ids, inputs)
    )
    source, target = (Layout.from_lengths(torch.tensor([len(tokens)]), device) for tokens in (ids, before))
    with torch.no_grad():
        alignments = model(ids, types, source, output_attentions=True, targets=Targets(before, target)).alignments
    return _stacked(alignments) if alignments else None


def json_parts(explanation: Explanation) -> Iterator[str]:
    """Write an explanation as JSON, a matrix at a time; nine digits are exact for float32."""
    attribution, alignment = explanation.attribution, explanation.alignment
    attributions = attribution and {
        "values": attribution.values.tolist(),
        "score": attribution.score,
        "baseline_score": attribution.baseline_score,
        "completeness_error": attribution.error,
        "num_steps": attribution.num_steps,
    }
    names = ("tokens", "token_ids", "segments", "num_layers", "num_heads", "prediction", "target")
    about = {name: getattr(explanation, name) for name in names}
    about |= {"target_tokens": explanation.target_tokens, "attributions": attributions, "notes": explanation.notes()}
    yield from _open_object(about)
    yield ', "attentions": '
    yield from _nested(explanation.attentions, "%.9g")
    yield ', "rollout": '
    yield from _nested(explanation.rollout, "%.17g")
    if alignment is not None:
        yield ', "alignment": '
        yield from _open_object({name: getattr(alignment, name) for name in ("tokens", "token_ids", "is_given")})
        yield ', "weights": '
        yield from _nested(alignment.weights, "%.9g")
        yield "}"
    yield "}\n"


def _open_object(values: dict[str, Any]) -> Iterator[str]:
    """Write a JSON object without its end."""
    yield in_json(json.dumps(values, ensure_ascii=False))[:-1]


def _nested(array: NDArray[np.floating] | None, form: str) -> Iterator[str]:
    """Write an array as nested lists, or null."""
    if array is None:
        yield "null"
        return
    if array.ndim == 2:
        line = ", ".join([form] * array.shape[1])
        yield "[" + ", ".join(f"[{line % tuple(row)}]" for row in array.tolist()) + "]"
        return
    for number, part in enumerate(array):
        yield "[" if number == 0 else ", "
        yield from _nested(part, form)
    yield "]"
