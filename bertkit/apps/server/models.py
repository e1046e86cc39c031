"""The served models; each computes many requests at once."""

import copy
import dataclasses
import functools
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertkit.apps.explain.explain import explain
from bertkit.apps.explain.pictures import attention_page
from bertkit.apps.server.inputs import JSON_TYPES, Input, as_read, lines_of, wrong_type
from bertkit.apps.server.queues import RefusedError
from bertkit.base.errors import InputError, LibraryError
from bertkit.base.typed_settings import refuse
from bertkit.inference.embedding import Embedder, pooling_of
from bertkit.inference.forward import predict_local
from bertkit.inference.predictor import ReadInputs, read_inputs
from bertkit.inference.task_model import (
    Predictor,
    TaskModel,
    continuation_for,
    fill_mask_for,
    open_task_model,
    with_changes,
)
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.kernels import fast
from bertkit.model.bert_config import FOLLOWS
from bertkit.model.heads import BertWithHeads
from bertkit.settings.serve import ServeSettings
from bertkit.tasks.label_kinds import NextSentencePair
from bertkit.tasks.task import AnyTask, Row
from bertkit.train import processes

VIEW_STEPS = 32  # of integrated gradients: 7 s for 128 tokens of a MiniLM on two busy cores
ResultT = TypeVar("ResultT", covariant=True)


@dataclasses.dataclass(frozen=True)
class RequestResults(Generic[ResultT]):
    """The results of some requests, a value or an exception for each, and the amount of work."""

    results: list[ResultT | Exception]
    num_sequences: int
    num_tokens: int


@dataclasses.dataclass(frozen=True)
class Embedded:
    """The vectors of a request's texts."""

    model: str  # its name
    vectors: NDArray[np.float32]  # (n, D)
    num_tokens: int


@dataclasses.dataclass(frozen=True)
class _Texts:
    """The texts of a request to embed them."""

    texts: list[str | list[int]]
    num_tokens: int


class ServedModel:
    """A model for `/predict`, `/embed` and `/view`.

    Its kind is sequence, tagging, spans, choice, generation, fill_mask or next_sentence; without a head, it is embedding, and
    the predictor is only used to read inputs. `explained`, the predictor for `view`, also accepts pairs for a masked LM.
    """

    def __init__(
        self, name: str, kind: str, predictor: Predictor, embedder: Embedder | InputError, explained: Predictor
    ) -> None:
        self.name, self.kind, self.predictor, self.load_seconds = name, kind, predictor, 0.0
        self.loaded_at = time.time()
        self.explained, self._embedder = explained, embedder

    @property
    def pooling(self) -> str | None:
        """How `/embed` pools the vectors of tokens; None if it cannot."""
        return None if isinstance(self._embedder, InputError) else "+".join(self._embedder.pooling.modes)

    @property
    def max_length(self) -> int:
        """The largest number of tokens of a text; further ones are cut."""
        if self.kind == "embedding" and not isinstance(self._embedder, InputError):
            return self._embedder.max_seq_length
        return min(self.predictor.task.config.max_seq_length, self.predictor.model.config.max_position_embeddings)

    def predict_requests(
        self, requests: Sequence[Sequence[object]], max_tokens: int, num_alternatives: int = 0
    ) -> RequestResults[list[Row]]:
        """Predict the inputs of many requests; the result of a request is a list of rows, or an error."""
        inputs = [
            Input(request, index, as_read(value, self.predictor.task), self.predictor.task)
            for request, values in enumerate(requests)
            for index, value in enumerate(values)
        ]
        errors = self._read(inputs)
        errors = self._too_long(inputs, max_tokens) | errors
        groups: defaultdict[object, list[Input]] = defaultdict(list)
        for one in inputs:
            if one.request not in errors:
                groups[type(one.task), one.task.num_choices(one.examples)].append(one)
        rows: list[list[Row]] = [[{}] * len(values) for values in requests]
        num_sequences = num_tokens = 0
        for group in groups.values():
            task, examples = group[0].task, [one.examples[0] for one in group]
            features = [each.of_example(n) for n, one in enumerate(group) for each in one.features]
            num_sequences += len(features)
            num_tokens += sum(len(feature.input_ids) for feature in features)
            predictions = predict_local(self.predictor, task, examples, features)
            for one, prediction in zip(group, predictions, strict=True):
                rows[one.request][one.index] = self._row(one, prediction, num_alternatives)
        return RequestResults([errors.get(number, own) for number, own in enumerate(rows)], num_sequences, num_tokens)

    def embed_requests(
        self, requests: Sequence[Sequence[object]], max_tokens: int, normalize: bool | None = None
    ) -> RequestResults[Embedded]:
        """Embed the texts of many requests; the result of a request is its vectors, or an error."""
        if isinstance(self._embedder, InputError):
            return RequestResults([self._embedder] * len(requests), 0, 0)
        read: dict[int, _Texts] = {}
        results: dict[int, Embedded | Exception] = {}
        for number, inputs in enumerate(requests):
            try:
                read[number] = _texts_of(self._embedder, inputs, max_tokens)
            except LibraryError:
                raise
            except (InputError, RefusedError) as error:
                results[number] = error
        texts = [text for own in read.values() for text in own.texts]
        ends = np.cumsum([len(own.texts) for own in read.values()])
        shares = np.split(self._embedder.embed(texts, normalize).vectors, ends[:-1])
        for (number, own), vectors in zip(read.items(), shares, strict=False):
            results[number] = Embedded(self.name, vectors, own.num_tokens)
        num_tokens = sum(own.num_tokens for own in read.values())
        return RequestResults([results[number] for number in range(len(requests))], len(texts), num_tokens)

    @functools.cached_property
    def _viewer(self) -> Predictor:
        """The predictor to explain, a copy, since explaining changes the model's hooks and gradients."""
        model = copy_sharing_weights(self.explained.model)
        model.use(fast.PLAIN)
        return with_own_tokenizer(dataclasses.replace(self.explained, model=model, precision="fp32"))

    def view(self, value: object, settings: ServeSettings) -> str:
        """Return the HTML page that explains one input."""
        one = Input(0, 0, as_read(value, self._viewer.task), self._viewer.task)
        if error := self._error_of([one], self._viewer):
            raise InputError(*(line.replace("inputs[0]", "input", 1) for line in lines_of(error, [one])))
        lengths, most = [len(feature.input_ids) for feature in one.features], settings.max_view_tokens
        if max(lengths, default=0) > most:
            raise RefusedError(413, "too_large", f"input: {max(lengths)} tokens; expected at most {most}")
        if sum(lengths) > settings.max_tokens:
            raise _too_large(sum(lengths), settings.max_tokens)
        return attention_page(
            explain(self._viewer, ReadInputs(one.task, one.examples, one.features), steps=VIEW_STEPS), self.name
        )

    def _read(self, inputs: Sequence[Input]) -> dict[int, Exception]:
        """Read all inputs of the same form together; if one is wrong, read each request alone. Return the errors by request.

        They name each wrong input of a request, or what is wrong with its inputs together, such as an id that two have.
        """
        lines: defaultdict[int, list[str]] = defaultdict(list)
        forms: defaultdict[object, list[Input]] = defaultdict(list)
        for one in inputs:
            forms[tuple(one.value) if isinstance(one.value, dict) else type(one.value)].append(one)
        for alike in forms.values():
            groups = (
                itertools.groupby(alike, key=lambda one: one.request) if self._error_of(alike, self.predictor) else ()
            )
            for request, group in groups:
                own = list(group)
                if together := self._error_of(own, self.predictor):
                    alone = [line for one in own for line in lines_of(self._error_of([one], self.predictor), [one])]
                    lines[request] += alone or lines_of(together, own)
        return {request: InputError(*own) for request, own in lines.items()}

    @staticmethod
    def _error_of(inputs: Sequence[Input], predictor: Predictor) -> InputError | None:
        """Read inputs of the same form together; return the error if one of them is wrong."""
        remaining = iter(inputs)
        try:
            refuse(*map(wrong_type, itertools.count(1), inputs))
            for read in read_inputs(predictor, [one.value for one in inputs]):
                share = list(itertools.islice(remaining, len(read.examples)))
                for one, example in zip(share, read.examples, strict=True):
                    one.task, one.examples, one.features = read.task, [example], []
                for feature in read.features:
                    share[feature.example].features.append(feature)
        except LibraryError:
            raise
        except InputError as error:
            return error
        return None

    def _too_long(self, inputs: Sequence[Input], max_tokens: int) -> dict[int, Exception]:
        """Return the errors of the requests that have too many tokens."""
        search = self.predictor.task.config.generation
        num_written = 0 if search is None else search.max_target_length  # largest number, for each input
        totals = Counter[int]()
        for one in inputs:
            totals[one.request] += sum(len(feature.input_ids) + num_written for feature in one.features)
        return {
            request: _too_large(num_tokens, max_tokens, num_written > 0)
            for request, num_tokens in totals.items()
            if num_tokens > max_tokens
        }

    def _row(self, one: Input, prediction: object, num_alternatives: int) -> Row:
        """Return the row that `predict` writes; the id of an input without one is its index in the request."""
        features = [feature.of_example(0) for feature in one.features]
        (row,) = one.task.rows(one.examples, features, [prediction])
        column = self.predictor.task.config.columns.id
        names = (*(column if isinstance(column, tuple) else (column,)), "id")
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
    model, groups = opened.model, {"long_texts"} if "sequence" in opened.model.heads else set[str]()
    groups |= {key for key in settings.task_changes if vars(opened.task.config)[key] is not None}
    opened = with_changes(opened, {key: value for key, value in settings.task_changes.items() if key in groups})
    model.requires_grad_(False)
    texts = opened.predictor(settings.precision, device, settings.batch_tokens, settings.top_k, settings.kernels)
    task = _task_of(opened, settings)
    kind, predictor = "embedding", texts
    if task is not None:
        kind, predictor = task.kind, dataclasses.replace(texts, task=task)
    embedder: Embedder | InputError
    try:
        pooling = pooling_of(resolve_model_dir(directory))
        shared = copy_sharing_weights(model, ())
        embedder = Embedder(shared, opened.tokenizer, pooling, settings.precision, texts.micro_tokens)
    except InputError as error:  # bertkit does not have this kind of pooling
        embedder = error
    yield ServedModel(name, kind, predictor, embedder, texts)
    if "next_sentence" in model.heads:
        pairs = _next_sentence(opened, copy_sharing_weights(model, ("next_sentence",)), predictor)
        yield ServedModel(f"{name}/next_sentence", "next_sentence", pairs, embedder, texts)


def _task_of(opened: TaskModel, settings: ServeSettings) -> AnyTask | None:
    """Return the task that a model predicts; None if it has no head for one."""
    heads = opened.model.heads
    if opened.task.head in heads:
        return opened.task
    if "masked_lm" in heads:
        return fill_mask_for(opened.task)
    return continuation_for(opened.model, settings.task_changes) if "next_token" in heads else None


def _next_sentence(opened: TaskModel, model: BertWithHeads, predictor: Predictor) -> Predictor:
    """Return a predictor for next sentence prediction, as a classifier of pairs."""
    columns = dataclasses.replace(opened.task.config.columns, text="text", text_pair="text_pair")
    task = NextSentencePair(opened.task.config, FOLLOWS).changed(columns=columns, needs_pair=True)
    return dataclasses.replace(predictor, model=model, task=task)


def copy_sharing_weights(model: BertWithHeads, heads: Sequence[str] | None = None) -> BertWithHeads:
    """Return a copy of a model that shares its weights, with those of its heads that are in `heads`; None: with all."""
    weights = itertools.chain(model.parameters(), model.buffers())
    copied = copy.deepcopy(model, {id(weight): weight for weight in weights})
    for head in set(copied.heads) - set(copied.heads if heads is None else heads):
        del copied.heads[head]
    return copied


def with_own_tokenizer(predictor: Predictor) -> Predictor:
    """Return a predictor with its own tokenizer, for another thread; older tokenizers are not thread-safe."""
    return dataclasses.replace(predictor, tokenizer=copy.deepcopy(predictor.tokenizer))


def _texts_of(embedder: Embedder, inputs: Sequence[object], max_tokens: int) -> _Texts:
    """Check the texts of a request; raises InputError for another type, RefusedError for too many tokens."""
    texts, wrong = list[str | list[int]](), list[str]()
    for number, value in enumerate(inputs):
        match value:
            case str():
                texts.append(value)
            case list() if {*map(type, value)} <= {int}:
                texts.append(value)
            case _:
                wrong.append(f"inputs[{number}]: {JSON_TYPES[type(value)]}, expected a text")
    refuse(wrong)
    ids = embedder.encode_ids(texts, what="inputs")  # takes a hundredth of the model's time
    num_tokens = sum(min(len(text), embedder.max_seq_length) for text in ids)
    if num_tokens > max_tokens:
        raise _too_large(num_tokens, max_tokens)
    return _Texts(texts, num_tokens)


def _too_large(num_tokens: int, most: int, with_written: bool = False) -> RefusedError:
    what = "inputs, with the longest texts that may be written" if with_written else "inputs"
    message = f"{what}: {num_tokens:,} tokens; expected at most {most:,}; send several requests"
    return RefusedError(413, "too_large", message)
