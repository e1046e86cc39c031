"""The models that are served: what each one takes, and what it says of many requests at once."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import nn

from bertkit.base.errors import InputError
from bertkit.explain.attention_page import attention_page
from bertkit.explain.explaining import FOLLOWS, look
from bertkit.interop.load import resolve_model_dir
from bertkit.kernels import fast
from bertkit.model.heads import BertWithHeads
from bertkit.predict.answers import answer_here
from bertkit.predict.embedding import Embedder, pooling_of
from bertkit.predict.predictor import read_inputs
from bertkit.predict.task_model import Predictor, TaskModel, check_labels, open_task_model, with_changes
from bertkit.serve.batching import Counts, RefusedError
from bertkit.settings.serve import ServeSettings
from bertkit.tasks import fill_mask, sequence
from bertkit.tasks.task import Feature
from bertkit.train import micro_batches, processes

VIEW_STEPS = 32  # points at which gradients are computed: of 128 tokens 7 s of a MiniLM on two busy cores
Member = tuple[int, int, Any]  # the number of a request, the place among its inputs, the input


class Served:
    """A model by its name: what it says of inputs, their vectors, and a look into it.

    Attributes:
        name: that requests call it by.
        kind: of its head: sequence, tagging, spans, choice, generation, fill_mask, next_sentence, or embedding where there is
            none.
        predictor: of the inputs; of a model without a head it only reads them.
        looked_into: reads the inputs for a look; the same one, but of a pretrained model, which is shown pairs too.
        load_seconds: that it took to load.
    """

    def __init__(
        self, name: str, kind: str, predictor: Predictor, embedder: Embedder | InputError, looked_into: Predictor
    ) -> None:
        self.name, self.kind, self.predictor, self.load_seconds = name, kind, predictor, 0.0
        self.looked_into = looked_into
        self._embedder = embedder
        self._shown: Predictor | None = None

    @property
    def can_predict(self) -> bool:
        """Whether it has a head."""
        return self.kind != "embedding"

    def predict(
        self, requests: Sequence[Sequence[Any]], max_tokens: int, num_alternatives: int = 0
    ) -> tuple[list[Any], Counts]:
        """Predict the inputs of many requests at once; of questions, on request, with so many answers each.

        Returns:
            For each request its rows, as `predict` writes them, or why it is refused; and how much was computed.

        Raises:
            NumericsError: what the model computes is not finite.
        """
        answers: list[Any] = [[None] * len(inputs) for inputs in requests]
        counts = Counts()
        parts = list(self._read(requests, answers))
        self._refuse_long(parts, answers, max_tokens)
        for part in _joined(parts, answers):
            said = answer_here(part.predictor, part.examples, part.features)
            counts.add(len(part.features), sum(len(feature.input_ids) for feature in part.features))
            for example, prediction, (request, place, given) in zip(part.examples, said, part.members, strict=True):
                row = part.predictor.shape.row(example, prediction)
                if not self._has_id(given):
                    row["id"] = str(place)
                if num_alternatives:
                    best = [each for each in prediction.n_best if each.text][:num_alternatives]
                    fields = ("text", "probability", "start", "end")
                    row["alternatives"] = [{name: getattr(each, name) for name in fields} for each in best]
                answers[request][place] = row
        return answers, counts

    def embed(self, requests: Sequence[Sequence[Any]], max_tokens: int) -> tuple[list[Any], Counts]:
        """Give the vectors of the texts of many requests, or why one is refused; and how much was computed."""
        if isinstance(self._embedder, InputError):
            return [self._embedder] * len(requests), Counts()
        answers: list[Any] = []
        for texts in requests:
            wrong = next((place for place, text in enumerate(texts) if not isinstance(text, str)), None)
            fault = None if wrong is None else InputError(f"inputs[{wrong}]: {_kind_of(texts[wrong])}, expected a text")
            answers.append(fault)
        counts, whole = (
            Counts(),
            [[] if fault else list(map(_whole, own)) for own, fault in zip(requests, answers, strict=True)],
        )
        for number, texts in enumerate(whole):
            ids = self._embedder.tokenizer(texts)["input_ids"]  # a hundredth of the time that the model takes
            num_tokens = sum(min(len(each), self._embedder.max_seq_length) for each in ids)
            if num_tokens > max_tokens:
                answers[number], whole[number] = _too_long(num_tokens, max_tokens), []
            elif texts:
                counts.add(len(texts), num_tokens)
        vectors, _ = self._embedder.embed([text for texts in whole for text in texts])
        ends = np.cumsum([len(texts) for texts in whole])
        parts = np.split(vectors, ends[:-1])
        return [part if fault is None else fault for fault, part in zip(answers, parts, strict=True)], counts

    def view(self, given: Any, settings: ServeSettings) -> str:
        """Write the page of a look into the model at one input.

        Raises:
            InputError: the input is not what the model takes.
            RefusedError: it is too long.
        """
        if self._shown is None:
            # gradients and hooks on it disturb nobody, and it has the same weights
            model: Any = twin(self.looked_into.model)
            model.use(fast.PLAIN)
            self._shown = for_another_thread(dataclasses.replace(self.looked_into, model=model, precision="fp32"))
        ((predictor, examples, features),) = read_inputs(self._shown, [_for_reading(given, predictor=self._shown)])
        lengths, most = [len(feature.input_ids) for feature in features], settings.max_view_tokens
        if max(lengths, default=0) > most:
            raise RefusedError(413, "too_large", f"input: {max(lengths)} tokens; expected at most {most} to look into")
        if sum(lengths) > settings.max_tokens:
            raise _too_long(sum(lengths), settings.max_tokens)
        return attention_page(look(predictor, examples[0], features, steps=VIEW_STEPS), self.name)

    def _read(self, requests: Sequence[Sequence[Any]], answers: list[Any]) -> Iterator[_Part]:
        """Read inputs of one kind together; where that fails, those of ever fewer requests, until it is known whose is wrong."""
        kinds: dict[Any, list[Member]] = {}
        for request, inputs in enumerate(requests):
            for place, given in enumerate(inputs):
                given = _for_reading(given, self.predictor)
                kinds.setdefault(_kind(given), []).append((request, place, given))
        waiting = list(kinds.values())[::-1]
        while waiting:
            members = waiting.pop()
            try:
                yield from self._read_alike(members)
            except InputError as error:
                first, last = members[0][0], members[-1][0]
                if first == last:
                    answers[first] = InputError(_in_request(str(error), members))
                    continue
                middle = (first + last) // 2 + 1
                waiting += [[m for m in members if m[0] >= middle], [m for m in members if m[0] < middle]]

    def _read_alike(self, members: list[Member]) -> list[_Part]:
        found, start = [], 0
        for predictor, examples, features in read_inputs(self.predictor, [given for _, _, given in members]):
            found.append(_Part(predictor, examples, features, members[start : start + len(examples)]))
            start += len(examples)
        return found

    def _refuse_long(self, parts: Sequence[_Part], answers: list[Any], max_tokens: int) -> None:
        num_tokens: dict[int, int] = {}
        search = self.predictor.task.generation
        num_written = 0 if search is None else search.max_target_length  # at most, for each input
        for part in parts:
            for feature in part.features:
                request = part.members[feature.example][0]
                num_tokens[request] = num_tokens.get(request, 0) + len(feature.input_ids) + num_written
        for request, count in num_tokens.items():
            if count > max_tokens:
                answers[request] = _too_long(count, max_tokens, num_written > 0)

    def _has_id(self, given: Any) -> bool:
        column = self.predictor.task.columns.id
        names = column if isinstance(column, tuple) else (column,)
        return isinstance(given, dict) and any(given.get(str(name)) not in (None, "") for name in names)


@dataclasses.dataclass
class _Part:
    """Inputs that were read together."""

    predictor: Predictor  # of their shape
    examples: list[Any]
    features: list[Feature]
    members: list[Member]  # whose example each is


def _joined(parts: Sequence[_Part], answers: Sequence[Any]) -> Iterator[_Part]:
    """Put parts of one shape together, without those of requests that are refused; choices go by their number of endings."""
    by_shape: dict[Any, _Part] = {}
    for number, part in enumerate(parts):
        refused = [isinstance(answers[request], Exception) for request, _, _ in part.members]
        key = number if part.predictor.shape.has_choices else id(part.predictor.shape)
        if key not in by_shape and not any(refused):
            by_shape[key] = part
            continue
        whole = by_shape.setdefault(key, _Part(part.predictor, [], [], []))
        if whole.features is not part.features and any(whole is each for each in parts):
            whole = by_shape[key] = _Part(whole.predictor, whole.examples[:], whole.features[:], whole.members[:])
        places: dict[int, int] = {}
        for place, example in enumerate(part.examples):
            if not refused[place]:
                places[place] = len(whole.examples)
                whole.examples.append(example)
                whole.members.append(part.members[place])
        whole.features += [
            dataclasses.replace(feature, example=places[feature.example])
            for feature in part.features
            if feature.example in places
        ]
    yield from (part for part in by_shape.values() if part.examples)


def open_models(settings: ServeSettings) -> dict[str, Served]:
    """Load all models; the default one comes first.

    Raises:
        InputError: one cannot be loaded.
    """
    found: dict[str, Served] = {}
    for name, directory in settings.names.items():
        started_at = time.perf_counter()
        for served in _open(name, directory, settings):
            served.load_seconds = time.perf_counter() - started_at
            found[served.name] = served
    for group in settings.task_changes:
        if all(getattr(each.predictor.task, group) is None for each in found.values()):
            raise InputError(f"task.{group}: has no effect on {', '.join(found)}; leave it out")
    return found


def _open(name: str, directory: str, settings: ServeSettings) -> Iterator[Served]:
    device = processes.choose_device(settings.device)
    opened = open_task_model(directory, None, {}, without_head=True)
    if opened.task.labels != "auto" and opened.labels:
        check_labels(directory, opened)
    own = {key: value for key, value in settings.task_changes.items() if getattr(opened.task, key) is not None}
    opened = with_changes(opened, own) if own else opened
    model = opened.model.to(device)
    model.use(fast.choose(settings.kernels))
    model.requires_grad_(False)
    num_tokens = settings.batch_tokens or micro_batches.AUTO_MICRO_TOKENS[device.type]
    texts = predictor = opened.predictor(settings.precision, num_tokens, model, settings.top_k)
    heads: Any = model.heads
    kind = opened.shape.kind if opened.shape.head in heads else "embedding"
    if kind == "embedding" and "masked_lm" in heads:
        columns = dataclasses.replace(texts.task.columns, text_pair=None)
        task = dataclasses.replace(texts.task, columns=columns)
        kind, predictor = "fill_mask", dataclasses.replace(texts, shape=fill_mask.SHAPE, task=task)
    embedder: Embedder | InputError
    try:
        pooling = pooling_of(resolve_model_dir(directory))
        embedder = Embedder(twin(model, ()), opened.tokenizer, pooling, settings.precision, num_tokens)
    except InputError as error:  # of sentence-transformers, with a way of pooling that there is not here
        embedder = error
    yield Served(name, kind, predictor, embedder, texts)
    if "next_sentence" in heads:
        follows = _next_sentence(opened, twin(model, ("next_sentence",)), predictor)
        yield Served(f"{name}/next_sentence", "next_sentence", follows, embedder, texts)


def _next_sentence(opened: TaskModel, model: nn.Module, predictor: Predictor) -> Predictor:
    """Give what predicts whether a second text follows, as labels of a pair."""
    shape = dataclasses.replace(sequence.SHAPE, head="next_sentence")
    columns = dataclasses.replace(opened.task.columns, text="text", text_pair="text_pair")
    task = dataclasses.replace(opened.task, columns=columns, needs_pair=True)
    return dataclasses.replace(predictor, model=model, shape=shape, task=task, labels=FOLLOWS)


def twin(model: nn.Module, heads: Sequence[str] | None = None) -> BertWithHeads:
    """Give another model of the same weights, which are there once; with some of the heads, or all of them."""
    weights = itertools.chain(model.parameters(), model.buffers())
    other: Any = copy.deepcopy(model, {id(each): each for each in weights})
    for head in list(other.heads):
        if heads is not None and head not in heads:
            del other.heads[head]
    return other  # type: ignore[no-any-return]


def for_another_thread(predictor: Predictor) -> Predictor:
    """Give a predictor that reads while another one does: with older tokenizers, two threads cannot share one."""
    return dataclasses.replace(predictor, tokenizer=copy.deepcopy(predictor.tokenizer))


def _too_long(num_tokens: int, most: int, with_written: bool = False) -> RefusedError:
    what = "inputs, and what may be written of them" if with_written else "inputs"
    message = f"{what}: {num_tokens:,} tokens; expected at most {most:,}; send them in several requests"
    return RefusedError(413, "too_large", message)


def _for_reading(given: Any, predictor: Predictor) -> Any:
    """JSON has no pairs: a list of two texts is one, except where a list is of words."""
    is_pair = isinstance(given, list) and len(given) == 2 and all(isinstance(each, str) for each in given)
    return tuple(given) if is_pair and not predictor.shape.is_of_words else given


def _kind(given: Any) -> Any:
    """What inputs have in common that are read together: columns, or being a text, a pair, or a list."""
    return tuple(given) if isinstance(given, dict) else type(given)


def _kind_of(value: Any) -> str:
    """Name a type as JSON does."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true or false"
    return {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}[type(value)]


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _in_request(message: str, members: Sequence[Member]) -> str:
    """Say it of the request's inputs, numbered from 0, and without what only a command line can set."""
    place = re.match(r"inputs:(\d+)", message)
    if place is not None and 0 < int(place[1]) <= len(members):
        message = f"inputs[{members[int(place[1]) - 1][1]}]{message[place.end() :]}"
    return re.sub(r"(;|,? or) set (task\.\S+|format=)[^;]*$", "", message)
