"""Generation: a text in, a text out, such as a translation or a summary.

A feature is `[CLS] source [SEP]`; its label is the target, `[CLS] y1 .. yn [SEP]`: the decoder reads all but the last token and
predicts all but the first. Special tokens in a source are special, as in every input; in a target they are text, since a [SEP]
would end it.

The tokenizer joins the pieces of a written text: lower-cased for an uncased model, with spaces normalized. The score compares
it with the reference as it is in the file.

Source: Sutskever et al. 2014; Vaswani et al. 2017, section 3.1; Rothe et al. 2020.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.reading.source import Reading, given, text_of
from bertkit.tasks.scoring import metrics
from bertkit.tasks.scoring.metrics import TEXT_METRICS, keys_of
from bertkit.tasks.scoring.review import NUM_MISTAKES
from bertkit.tasks.sequence import pieces
from bertkit.tasks.task import TABLES, Feature, Measured, Shape, json_lines, says_the_same
from bertkit.tasks.task_config import GenerationConfig, TaskConfig

Written = tuple[list[int], float]  # a text without its first and last special token, and its score
NUM_GROUPS = 4  # of sources by length


@dataclass(frozen=True)
class GenerationExample:
    """A text and its target."""

    id: str  # from the file, or the number of the row
    source: str
    target: str | None  # None if unknown


@dataclass(frozen=True)
class Candidate:
    """A written text and its score."""

    text: str
    score: float


@dataclass(frozen=True)
class GenerationPrediction:
    """The written text for an example."""

    id: str  # of the example
    text: str  # the best text
    score: float  # the sum of its log probabilities / length ** length_penalty
    candidates: tuple[Candidate, ...] = ()  # the best texts; empty for num_candidates=1


def read(reading: Reading) -> Iterator[GenerationExample]:
    """Read the rows of a table; plain texts are sources, whatever the task's column.

    Raises:
        InputError: a column is missing; for a wrong row, when it is read.
    """
    columns, is_plain = reading.task.columns, reading.is_input and reading.table.names == ("text",)
    source = reading.find("text" if is_plain else columns.source, "source")
    target = None
    if reading.is_labelled:
        target = reading.find(columns.target, "target")
    elif not reading.is_input:
        names = (columns.target,) if isinstance(columns.target, str) else columns.target
        target = reading.find(names, "target", False)
    ids = reading.ids()

    def example(row: Any, where: str, line: int) -> GenerationExample:
        text = text_of(row, source, where)
        is_known = reading.is_labelled or given(row, target) is not None
        known = text_of(row, target, where) if is_known and target is not None else None
        reading.note_empty(where, text, known)
        return GenerationExample(ids.take(given(row, ids.field), where, line), text, known)

    return reading.each(example)


def make_features(
    task: TaskConfig, examples: Sequence[GenerationExample], tokenizer: Tokenizer, _: Sequence[str] = ()
) -> list[Feature]:
    """Turn examples into features; long sources and targets are cut, and keep their [SEP]."""
    facts, room, target_room = tokenizer.facts, task.max_seq_length - 2, _settings(task).max_target_length - 1
    sources = pieces(tokenizer, [example.source for example in examples])
    known = [place for place, example in enumerate(examples) if example.target is not None]
    encoded = tokenizer.encode_document([examples[place].target or "" for place in known])
    targets = dict(zip(known, encoded, strict=True))
    features = []
    for place, source in enumerate(sources):
        input_ids = [facts.cls, *source[:room], facts.sep]
        target = targets.get(place)
        label = None if target is None else [facts.cls, *target[:target_room], facts.sep]
        num_cut = max(0, len(source) - room) + max(0, len(target or ()) - target_room)
        features.append(Feature(place, input_ids, [0] * len(input_ids), label, num_cut=num_cut))
    return features


def predictions(
    task: TaskConfig,
    examples: Sequence[GenerationExample],
    features: Sequence[Feature],
    written: Sequence[Sequence[Written]],
    _: Sequence[str],
    tokenizer: Tokenizer,
) -> list[GenerationPrediction]:
    """Turn the written texts of each feature, the best first, into a prediction for each example."""
    num_candidates = _settings(task).num_candidates
    answers = []
    for feature, texts in zip(features, written, strict=True):
        best = [
            Candidate(tokenizer.decode(ids, skip_special_tokens=True), float(score))
            for ids, score in texts[:num_candidates]
        ]
        candidates = tuple(best) if num_candidates > 1 else ()
        answers.append(GenerationPrediction(examples[feature.example].id, best[0].text, best[0].score, candidates))
    return answers


def _settings(task: TaskConfig) -> GenerationConfig:
    assert task.generation is not None, "TaskConfig requires it of this kind"
    return task.generation


def _measured(task: TaskConfig, _: Sequence[str] | None) -> Measured:
    metrics.require_packages(task.metrics)
    return Measured("texts", tuple(TEXT_METRICS))


def _targets(examples: Sequence[GenerationExample]) -> list[str]:
    return [example.target or "" for example in examples]


def _score(
    task: TaskConfig,
    examples: Sequence[GenerationExample],
    predictions: Sequence[GenerationPrediction],
    _: Sequence[str] = (),
) -> dict[str, float]:
    return metrics.score(task.metrics, [prediction.text for prediction in predictions], _targets(examples))


def _row(_: GenerationExample | None, prediction: GenerationPrediction) -> dict[str, Any]:
    row = dataclasses.asdict(prediction)
    if not prediction.candidates:
        del row["candidates"]
    return row


def _files(examples: Sequence[GenerationExample], predictions: Sequence[GenerationPrediction]) -> dict[str, str]:
    pairs = zip(examples, predictions, strict=True)
    lines = ({**_row(None, prediction), "reference": example.target} for example, prediction in pairs)
    return {"predictions.jsonl": json_lines(lines)}


def _review(
    task: TaskConfig,
    examples: Sequence[GenerationExample],
    predictions: Sequence[GenerationPrediction],
    _: Sequence[str],
) -> dict[str, Any]:
    """Give the main score by source length (Bahdanau et al. 2015, figure 2), and the best scored wrong texts."""
    main = tuple(name for name in task.metrics if task.best_metric in keys_of([name]))
    only = dataclasses.replace(task, metrics=main)
    lengths = np.array([len(example.source.split()) for example in examples])
    borders = np.unique(np.quantile(lengths, np.arange(1, NUM_GROUPS) / NUM_GROUPS, method="inverted_cdf"))
    group = np.searchsorted(borders, lengths)
    rows, by_length = [], {}
    for number in range(len(borders) + 1):
        own: list[int] = np.flatnonzero(group == number).tolist()
        if own:
            scores = _score(only, [examples[n] for n in own], [predictions[n] for n in own])
            words = f"{lengths[own].min()} to {lengths[own].max()}"
            by_length[words] = scores[task.best_metric]
            rows.append([words, f"{scores[task.best_metric]:.4g}", f"{len(own):,}"])
    columns = ["words", task.best_metric, "texts"]
    wrong = [pair for pair in zip(predictions, examples, strict=True) if pair[0].text != pair[1].target]
    surest = sorted(wrong, key=lambda pair: -pair[0].score)[:NUM_MISTAKES]
    shown = [[e.id, e.source, e.target or "", p.text, f"{p.score:.3f}"] for p, e in surest]
    title = f"The {len(shown)} best scored texts that differ from their references"
    return {
        "by_length": by_length,
        "groups": [{"title": "By length of the source", "columns": columns, "rows": rows}],
        "mistakes": {"title": title, "columns": ["id", "source", "reference", "predicted", "score"], "rows": shown},
    }


SHAPE = Shape(
    kind="generation",
    head="generation",
    unit="texts",
    formats=("text", *TABLES),
    text_columns=("source",),
    plain="text",
    has_classes=False,
    writes_text=True,
    read=read,
    content=lambda example: example.source,
    labels_of=lambda example: [None if example.target is None else "with a target"],
    is_labelled=lambda example: example.target is not None,
    features=make_features,
    predictions=predictions,
    measured=_measured,
    score=_score,
    is_degenerate=lambda _, examples, predictions: says_the_same([p.text for p in predictions], _targets(examples)),
    files=_files,
    row=_row,
    review=_review,
)
