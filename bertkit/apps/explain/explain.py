"""Explain one input: its prediction, attention weights, attributions, and for generated text the alignment with the source.

Axes: L layers, N heads, T tokens of the sequence, or of the generated text in an alignment, C tokens of its source.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.apps.explain.attributions import (
    Alignment,
    Attribution,
    Explained,
    attribute,
    pretraining_target,
    run_copies,
    target_of,
)
from bertkit.apps.explain.heads import head_importance, head_roles
from bertkit.base.errors import InputError, in_json
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.inference.forward import Running, predict_local, require_finite
from bertkit.inference.predictor import ReadInputs
from bertkit.inference.task_model import Predictor
from bertkit.kernels.layout import Layout
from bertkit.model.bert_config import BertConfig
from bertkit.model.head.head import Targets
from bertkit.model.heads import BertWithHeads
from bertkit.tasks.feature import Feature
from bertkit.tasks.generation import GenerationExample, GenerationTask
from bertkit.tasks.task import Row, Verdict

RECURRENT = "The encoder is recurrent (decoder=rnn): its tokens do not attend to each other."
NO_WEIGHTS = "attention.pattern=linformer compresses the keys: there are no attention weights between tokens"


class ExplainedWord(NamedTuple):
    """The tokens from `start` to `end`, which is excluded, and the word that they make up."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Explanation:
    """The explanation of one input."""

    tokens: Sequence[str]  # length T
    token_ids: Sequence[int]  # length T
    segments: Sequence[int]  # length T; 0 for the first text, 1 for the second
    num_layers: int  # L
    num_heads: int  # N; 0 for a recurrent encoder
    prediction: Row | None  # the row that `predict` writes; None if no head predicts anything for this input
    target: str | None = None  # the output that is explained, in words, such as "the label good"; None if there is none
    target_tokens: Sequence[int] = ()  # the positions of the target's tokens, such as the tokens of an answer
    attribution: Attribution | None = None  # None without a target, or with steps=0
    attentions: NDArray[np.float32] | None = None  # (L, N, T, T); None if the model has no weights between tokens
    rollout: NDArray[np.float64] | None = None  # (L, T, T)
    num_cut: int = 0  # pieces of the input that were truncated
    num_windows: int = 1  # into which a long input was cut; one of them is explained
    alignment: Alignment | None = None  # only for a model that generates text, which has no target
    task: str = ""  # the name of the task that predicts
    verdict: Verdict | None = None  # the prediction for readers
    words: Sequence[ExplainedWord] = ()  # the words that the tokens make up
    head_importance: NDArray[np.float64] | None = None  # (L, N); None without a target
    head_roles: Sequence[Sequence[str]] = ()  # (L, N); "" for a head without a plain role

    def notes(self) -> list[str]:
        """Return what a reader should know about this explanation, one sentence each."""
        notes = {
            f"The input was cut into {self.num_windows} windows; one of them is shown.": self.num_windows > 1,
            f"The last {self.num_cut:,} pieces were truncated (task.max_seq_length).": self.num_cut,
            f"{NO_WEIGHTS}." if self.num_heads else RECURRENT: self.attentions is None,
        }
        own = list[str]()
        if self.alignment is not None:
            own = self.alignment.notes()
        else:
            nothing = "The model has no head for this input, so there is no prediction to explain."
            unknown = "No attributions: the head is a plug-in's, whose logits have a meaning of their own."
            notes[unknown if self.prediction else nothing] = self.target is None
            notes["No attributions, because of steps=0."] = self.target is not None and self.attribution is None
        return [note for note, holds in notes.items() if holds] + own


def explain(
    predictor: Predictor,
    inputs: ReadInputs,
    target: str | None = None,
    steps: int | None = None,
    target_text: str | None = None,
) -> Explanation:
    """Explain the prediction for one example, the first of `inputs`.

    `target` is the label, word or ending to explain, by default the predicted one. For a model that generates text,
    `target_text` is aligned with the source, by default the generated text. `steps` is the number of points for integrated
    gradients: None for as many as needed, 0 for no attributions. Raises InputError if the model cannot predict this target,
    NumericsError if the model's output is not finite.
    """
    task, features = inputs.task, [feature.without_label().of_example(0) for feature in inputs.features]
    model, facts = predictor.model, predictor.tokenizer.facts
    model.requires_grad_(False)
    chosen = _predict_and_choose(predictor, ReadInputs(task, inputs.examples[:1], features), target, target_text)
    feature, explained = chosen.feature, chosen.target
    look = Explanation(
        tokens=predictor.tokenizer.texts_of(feature.input_ids),
        token_ids=feature.input_ids,
        segments=feature.segments,
        num_layers=model.config.num_hidden_layers,
        num_heads=0 if _is_recurrent(model.config) else model.config.num_attention_heads,
        prediction=chosen.row,
        num_cut=feature.num_cut,
        num_windows=len(features) // task.num_choices(inputs.examples[:1]),
        alignment=chosen.alignment,
        task=task.config.name if task.head in model.heads else "",
        verdict=chosen.verdict,
        words=words_of(predictor.tokenizer, feature.input_ids),
    )
    if explained is not None:
        look = dataclasses.replace(look, target=explained.description, target_tokens=explained.tokens)
        if steps != 0:
            baseline = [n if n in (facts.cls, facts.sep, facts.mask) else facts.pad for n in feature.input_ids]
            attribution = attribute(model, explained, feature, baseline, steps, predictor.micro_tokens)
            look = dataclasses.replace(look, attribution=attribution)
    attentions = attentions_of(model, feature)
    if attentions is None:
        return look
    return dataclasses.replace(
        look,
        attentions=attentions,
        rollout=rollout(attentions),
        head_importance=None if explained is None else head_importance(model, explained, feature),
        head_roles=head_roles(attentions, look.tokens, predictor.tokenizer.texts_of([facts.cls, facts.sep])),
    )


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[ExplainedWord]:
    """Return the words that tokens make up; a special token is a word."""
    is_first = tokenizer.facts.borders.begins(ids)
    starts = [place for place, begins in enumerate(is_first) if begins or place == 0]
    texts = ((start, end, tokenizer.decode(ids[start:end])) for start, end in itertools.pairwise([*starts, len(ids)]))
    return [ExplainedWord(text.strip() or tokenizer.vocab[ids[start]], start, end) for start, end, text in texts]


def _predict_and_choose(
    predictor: Predictor, inputs: ReadInputs, target: str | None, target_text: str | None
) -> Explained:
    """Predict an example; choose the feature and the output to explain."""
    if inputs.task.head == "generation":
        if target is not None:
            raise InputError(f"target={target}: has no effect on a model that generates text; set target_text=")
        return _align(predictor, inputs, target_text)
    task, (example,), features = inputs.task, inputs.examples, inputs.features
    if task.head not in predictor.model.heads:
        return pretraining_target(predictor, features[0], target)
    (prediction,) = predict_local(predictor, task, [example], features)
    row = task.row(example, prediction)
    verdict = task.verdict(example, prediction)
    return dataclasses.replace(target_of(task, prediction, row, features, target), row=row, verdict=verdict)


def _is_recurrent(config: BertConfig) -> bool:
    return config.decoder is not None and config.decoder.kind == "rnn"


def attentions_of(model: BertWithHeads, feature: Feature) -> NDArray[np.float32] | None:
    """Return the attention weights, (L, N, query, key); None if the encoder has no weights between tokens."""
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
    """Compute attention rollout: how much of each input token arrives at each position of each layer, (L, T, T).

        rollout_l = (0.5 mean over heads of A_l + 0.5 I) rollout_(l - 1), each row summing to 1

    The identity I stands for the residual connection.

    Source: Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers, equation 1 and section 3.
    """
    input_weights = np.eye(attentions.shape[-1])
    layers = []
    for weights in attentions:
        mixed = 0.5 * weights.mean(0, dtype=np.float64) + 0.5 * np.eye(len(input_weights))
        input_weights = mixed / mixed.sum(-1, keepdims=True) @ input_weights
        layers.append(input_weights)
    return np.stack(layers)


def _align(predictor: Predictor, inputs: ReadInputs, target_text: str | None) -> Explained:
    """Return the feature of the source, the row that `predict` writes, and the alignment of the generated text or `target_text`."""
    tokenizer, model, (example,) = predictor.tokenizer, predictor.model, inputs.examples
    assert isinstance(example, GenerationExample)
    task = GenerationTask(inputs.task.config)
    (feature,) = task.features([dataclasses.replace(example, target=None)], tokenizer)
    texts = Running(predictor, task.head).texts([feature], task.search)
    (prediction,) = task.predictions([example], [feature], texts, tokenizer)
    num_cut = 0
    if target_text is None:
        tokens, config = texts[0][0][0], model.config.decoder
        assert config is not None
        if len(tokens) < task.search.max_target_length:  # the model ended the text with its end token
            tokens = [*tokens, config.end_token_id]
        before = [config.start_token_id, *tokens[:-1]]
    else:
        (with_target,) = task.features([dataclasses.replace(example, target=target_text)], tokenizer)
        target_ids = with_target.target_ids or []
        before, tokens = target_ids[:-1], target_ids[1:]
        num_cut = with_target.num_cut - feature.num_cut
    names = tokenizer.texts_of(tokens)
    weights = _alignment_weights(model, feature, before)
    alignment = Alignment(names, tokens, weights, target_text is not None, num_cut)
    return Explained(feature, None, task.row(example, prediction), task.verdict(example, prediction), alignment)


def _alignment_weights(model: BertWithHeads, feature: Feature, inputs: Sequence[int]) -> NDArray[np.float32] | None:
    """Return the cross-attention weights, (L, N, decoder input, source token); None without cross-attention."""
    device = model.bert.embeddings.token.weight.device
    ids, types, before = (
        torch.tensor(numbers, device=device) for numbers in (feature.input_ids, feature.token_type_ids, inputs)
    )
    source, target = (Layout.from_lengths(torch.tensor([len(tokens)]), device) for tokens in (ids, before))
    with torch.no_grad():
        alignments = model(ids, types, source, output_attentions=True, targets=Targets(before, target)).alignments
    return _stacked(alignments) if alignments else None


def json_parts(explanation: Explanation) -> Iterator[str]:
    """Yield an explanation as JSON, in parts of a matrix each; nine digits are exact for float32."""
    attribution, alignment = explanation.attribution, explanation.alignment
    attributions = attribution and {
        "values": attribution.values.tolist(),
        "score": attribution.score,
        "baseline_score": attribution.baseline_score,
        "completeness_error": attribution.error,
        "num_steps": attribution.num_steps,
    }
    names = (
        "tokens",
        "token_ids",
        "segments",
        "num_layers",
        "num_heads",
        "prediction",
        "target",
        "words",
        "head_roles",
    )
    about = {name: getattr(explanation, name) for name in names}
    about |= {"target_tokens": explanation.target_tokens, "attributions": attributions, "notes": explanation.notes()}
    yield in_json(json.dumps(about, ensure_ascii=False))[:-1]  # without the closing brace
    yield ', "head_importance": '
    yield from _nested(explanation.head_importance, "%.9g")
    yield ', "attentions": '
    yield from _nested(explanation.attentions, "%.9g")
    yield ', "rollout": '
    yield from _nested(explanation.rollout, "%.17g")
    if alignment is not None:
        yield ', "alignment": '
        text = {name: getattr(alignment, name) for name in ("tokens", "token_ids", "is_given")}
        yield in_json(json.dumps(text, ensure_ascii=False))[:-1]
        yield ', "weights": '
        yield from _nested(alignment.weights, "%.9g")
        yield "}"
    yield "}\n"


def _nested(array: NDArray[np.floating] | None, form: str) -> Iterator[str]:
    """Yield an array as nested JSON lists; null for None."""
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
