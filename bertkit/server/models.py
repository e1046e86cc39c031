"""The served models; each computes many requests at once."""

import copy
import dataclasses
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from bertkit.base.errors import InputError
from bertkit.base.text_files import without_surrogates
from bertkit.explain.explain import explain
from bertkit.explain.pictures import attention_page
from bertkit.inference.embedding import Embedder, pooling_of
from bertkit.inference.forward import predict_local
from bertkit.inference.predictor import read_inputs
from bertkit.inference.task_model import (
    Predictor,
    TaskModel,
    continuation_for,
    fill_mask_for,
    open_task_model,
    with_changes,
)
from bertkit.interop.load import resolve_model_dir
from bertkit.kernels import fast
from bertkit.model.bert_config import FOLLOWS
from bertkit.model.heads import BertWithHeads
from bertkit.server.queues import RefusedError
from bertkit.settings.serve import ServeSettings
from bertkit.tasks.feature import Feature
from bertkit.tasks.label_kinds import NextSentence
from bertkit.tasks.task import AnyTask, Example
from bertkit.train import micro_batches, processes

VIEW_STEPS = 32  # of integrated gradients: 7 s for 128 tokens of a MiniLM on two busy cores
JSON_TYPES = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object",
              bool: "true or false", type(None): "null"}  # fmt: skip


@dataclasses.dataclass(slots=True)
class _Input:
    """An input of a request."""

    request: int  # index of the request
    index: int  # within the request
    value: Any
    task: AnyTask  # predicts this input
    example: Example | None = None
    features: list[Feature] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Batch:
    """The results of some requests, a value or an exception for each, and the amount of work."""

    results: list[Any]
    num_sequences: int = 0
    num_tokens: int = 0


class ServedModel:
    """A model for `/predict`, `/embed` and `/view`.

    Its kind is sequence, tagging, spans, choice, generation, fill_mask or next_sentence; without a head, it is embedding, and
    the predictor is only used to read inputs. `explained`, the predictor for `view`, also accepts pairs for a masked LM.
    """

    def __init__(
        self, name: str, kind: str, predictor: Predictor, embedder: Embedder | InputError, explained: Predictor
    ) -> None:
        self.name, self.kind, self.predictor, self.load_seconds = name, kind, predictor, 0.0
        self.explained, self._embedder = explained, embedder
        self._viewer: Predictor | None = None

    def predict_requests(self, requests: Sequence[Sequence[Any]], max_tokens: int, num_alternatives: int = 0) -> Batch:
        """Predict the inputs of many requests; the result of a request is a list of rows, or an error."""
        results: list[Any] = [[None] * len(inputs) for inputs in requests]
        inputs = [
            _Input(request, index, _as_pair(value, self.predictor.task), self.predictor.task)
            for request, values in enumerate(requests)
            for index, value in enumerate(values)
        ]
        self._read(inputs, results)
        self._refuse_long(inputs, results, max_tokens)
        groups: dict[Any, list[_Input]] = {}
        for one in inputs:
            if not isinstance(results[one.request], Exception):
                groups.setdefault((type(one.task), one.task.num_choices([one.example])), []).append(one)
        num_sequences = num_tokens = 0
        for group in groups.values():
            task, examples = group[0].task, [one.example for one in group]
            features = [each.of_example(n) for n, one in enumerate(group) for each in one.features]
            num_sequences += len(features)
            num_tokens += sum(len(feature.input_ids) for feature in features)
            for one, prediction in zip(group, predict_local(self.predictor, task, examples, features), strict=True):
                results[one.request][one.index] = self._row(one, prediction, num_alternatives)
        return Batch(results, num_sequences, num_tokens)

    def embed_requests(self, requests: Sequence[Sequence[Any]], max_tokens: int) -> Batch:
        """Embed the texts of many requests; the result of a request is an array of vectors, or an error."""
        if isinstance(self._embedder, InputError):
            return Batch([self._embedder] * len(requests))
        texts: list[str] = []
        parts: list[slice | Exception] = []
        total = 0
        for inputs in requests:
            wrong = next((index for index, text in enumerate(inputs) if not isinstance(text, str)), None)
            if wrong is not None:
                parts.append(InputError(f"inputs[{wrong}]: {JSON_TYPES[type(inputs[wrong])]}, expected a text"))
                continue
            own = list(map(without_surrogates, inputs))
            ids = self._embedder.tokenizer(own)["input_ids"]  # takes a hundredth of the model's time
            num_tokens = sum(min(len(text), self._embedder.max_seq_length) for text in ids)
            if num_tokens > max_tokens:
                parts.append(_too_long(num_tokens, max_tokens))
                continue
            parts.append(slice(len(texts), len(texts) + len(own)))
            texts += own
            total += num_tokens
        vectors, _ = self._embedder.embed(texts)
        return Batch([vectors[part] if isinstance(part, slice) else part for part in parts], len(texts), total)

    def view(self, value: Any, settings: ServeSettings) -> str:
        """Return the HTML page that explains one input."""
        if self._viewer is None:  # a copy, since explaining changes the model's hooks and gradients
            model: Any = copy_sharing_weights(self.explained.model)
            model.use(fast.PLAIN)
            self._viewer = with_own_tokenizer(dataclasses.replace(self.explained, model=model, precision="fp32"))
        (read,) = read_inputs(self._viewer, [_as_pair(value, self._viewer.task)])
        lengths, most = [len(feature.input_ids) for feature in read.features], settings.max_view_tokens
        if max(lengths, default=0) > most:
            raise RefusedError(413, "too_large", f"input: {max(lengths)} tokens; expected at most {most}")
        if sum(lengths) > settings.max_tokens:
            raise _too_long(sum(lengths), settings.max_tokens)
        return attention_page(explain(self._viewer, read, steps=VIEW_STEPS), self.name)

    def _read(self, inputs: list[_Input], results: list[Any]) -> None:
        """Read all inputs of the same form together; if one is wrong, read each request alone, to find the wrong request."""
        forms: dict[Any, list[_Input]] = {}
        for one in inputs:
            form = tuple(one.value) if isinstance(one.value, dict) else type(one.value)
            forms.setdefault(form, []).append(one)
        for alike in forms.values():
            try:
                self._read_alike(alike)
            except InputError:
                for request, group in itertools.groupby(alike, key=lambda one: one.request):
                    own = list(group)
                    try:
                        self._read_alike(own)
                    except InputError as error:
                        results[request] = InputError(_for_request(str(error), own))

    def _read_alike(self, inputs: Sequence[_Input]) -> None:
        remaining = iter(inputs)
        for read in read_inputs(self.predictor, [one.value for one in inputs]):
            part = list(itertools.islice(remaining, len(read.examples)))
            for one, example in zip(part, read.examples, strict=True):
                one.task, one.example, one.features = read.task, example, []
            for feature in read.features:
                part[feature.example].features.append(feature)

    def _refuse_long(self, inputs: Sequence[_Input], results: list[Any], max_tokens: int) -> None:
        search = self.predictor.task.config.generation
        num_written = 0 if search is None else search.max_target_length  # largest number, for each input
        totals: dict[int, int] = {}
        for one in inputs:
            lengths = (len(feature.input_ids) + num_written for feature in one.features)
            totals[one.request] = totals.get(one.request, 0) + sum(lengths)
        for request, num_tokens in totals.items():
            if num_tokens > max_tokens and not isinstance(results[request], Exception):
                results[request] = _too_long(num_tokens, max_tokens, num_written > 0)

    def _row(self, one: _Input, prediction: Any, num_alternatives: int) -> dict[str, Any]:
        """Return the row that `predict` writes; the id of an input without one is its index in the request."""
        features = [feature.of_example(0) for feature in one.features]
        (row,) = one.task.rows([one.example], features, [prediction])
        column = self.predictor.task.config.columns.id
        names = column if isinstance(column, tuple) else (column,)
        if not isinstance(one.value, dict) or all(one.value.get(str(name)) in (None, "") for name in names):
            row["id"] = str(one.index)
        if num_alternatives:
            row["alternatives"] = one.task.alternatives(prediction, num_alternatives)
        return row


def open_models(settings: ServeSettings) -> dict[str, ServedModel]:
    """Load all models; the default model comes first."""
    models: dict[str, ServedModel] = {}
    for name, directory in settings.names.items():
        started_at = time.perf_counter()
        for served in _open(name, directory, settings):
            served.load_seconds = time.perf_counter() - started_at
            models[served.name] = served
    for group in settings.task_changes:
        if all(vars(model.predictor.task.config)[group] is None for model in models.values()):
            raise InputError(f"task.{group}: has no effect on {', '.join(models)}; leave it out")
    return models


def _open(name: str, directory: str, settings: ServeSettings) -> Iterator[ServedModel]:
    device = processes.choose_device(settings.device)
    opened = open_task_model(directory, None, {}, without_head=True)
    groups = {"long_texts"} if "sequence" in opened.model.heads else set[str]()
    groups |= {key for key in settings.task_changes if vars(opened.task.config)[key] is not None}
    own = {key: value for key, value in settings.task_changes.items() if key in groups}
    opened = with_changes(opened, own) if own else opened
    heads: Any = opened.model.heads
    model = opened.model.to(device)
    model.use(fast.choose(settings.kernels))
    model.requires_grad_(False)
    num_tokens = settings.batch_tokens or micro_batches.AUTO_MICRO_TOKENS[device.type]
    texts = predictor = opened.predictor(settings.precision, num_tokens, model, settings.top_k)
    kind = opened.task.kind if opened.task.head in heads else "embedding"
    if kind == "embedding" and "masked_lm" in heads:
        kind, predictor = "fill_mask", dataclasses.replace(texts, task=fill_mask_for(texts.task))
    elif kind == "embedding" and "next_token" in heads:
        task = continuation_for(opened.model, settings.task_changes)
        kind, predictor = "continuation", dataclasses.replace(texts, task=task)
    embedder: Embedder | InputError
    try:
        pooling = pooling_of(resolve_model_dir(directory))
        embedder = Embedder(copy_sharing_weights(model, ()), opened.tokenizer, pooling, settings.precision, num_tokens)
    except InputError as error:  # bertkit does not have this kind of pooling
        embedder = error
    yield ServedModel(name, kind, predictor, embedder, texts)
    if "next_sentence" in heads:
        pairs = _next_sentence(opened, copy_sharing_weights(model, ("next_sentence",)), predictor)
        yield ServedModel(f"{name}/next_sentence", "next_sentence", pairs, embedder, texts)


def _next_sentence(opened: TaskModel, model: nn.Module, predictor: Predictor) -> Predictor:
    """Return a predictor for next sentence prediction, as a classifier of pairs."""
    columns = dataclasses.replace(opened.task.config.columns, text="text", text_pair="text_pair")
    task = NextSentence(opened.task.config, FOLLOWS).changed(columns=columns, needs_pair=True)
    return dataclasses.replace(predictor, model=model, task=task)


def copy_sharing_weights(model: nn.Module, heads: Sequence[str] | None = None) -> BertWithHeads:
    """Return a copy of a model that shares its weights, with all heads or only with these."""
    weights = itertools.chain(model.parameters(), model.buffers())
    copied: Any = copy.deepcopy(model, {id(weight): weight for weight in weights})
    for head in list(copied.heads):
        if heads is not None and head not in heads:
            del copied.heads[head]
    return copied  # type: ignore[no-any-return]


def with_own_tokenizer(predictor: Predictor) -> Predictor:
    """Return a predictor with its own tokenizer, for another thread; older tokenizers are not thread-safe."""
    return dataclasses.replace(predictor, tokenizer=copy.deepcopy(predictor.tokenizer))


def _too_long(num_tokens: int, most: int, with_written: bool = False) -> RefusedError:
    what = "inputs, with the longest texts that may be written" if with_written else "inputs"
    message = f"{what}: {num_tokens:,} tokens; expected at most {most:,}; send several requests"
    return RefusedError(413, "too_large", message)


def _as_pair(value: Any, task: AnyTask) -> Any:
    """Turn a list of two texts into a tuple, which JSON lacks; for a tagging model it stays a list of words."""
    is_pair = isinstance(value, list) and len(value) == 2 and all(isinstance(text, str) for text in value)
    return tuple(value) if is_pair and not task.has_words else value


def _for_request(message: str, inputs: Sequence[_Input]) -> str:
    """Change an error message to the indices of the request, from 0, without the advice for the command line."""
    place = re.match(r"inputs:(\d+)", message)
    if place is not None and 0 < int(place[1]) <= len(inputs):
        message = f"inputs[{inputs[int(place[1]) - 1].index}]{message[place.end() :]}"
    return re.sub(r"(;|,? or) set (task\.\S+|format=)[^;]*$", "", message)
