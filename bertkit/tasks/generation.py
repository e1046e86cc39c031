"""Text generation: a source text in, a target text out, such as a translation or a summary.

A feature is `[CLS] source [SEP]`. Its label is the target, `[CLS] y1 .. yn [SEP]`: the decoder reads all tokens but the last, and
predicts all tokens but the first. The name of a special token in a source text is encoded as that token. In a target it is
encoded as ordinary text, because a [SEP] would end the target.

A generated text is the decoded tokens: lower-cased for an uncased model, with normalized spaces. Metrics compare it with the
unchanged reference from the file.

Source: Sutskever et al. 2014; Vaswani et al. 2017, section 3.1; Rothe et al. 2020.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.reading.source import Reading, optional_value, required_text
from bertkit.tasks.reading.tables import names_of
from bertkit.tasks.scoring import metrics
from bertkit.tasks.scoring.metrics import TEXT_METRICS, keys_of
from bertkit.tasks.scoring.review import NUM_MISTAKES
from bertkit.tasks.sequence import pieces
from bertkit.tasks.task import TABLES, Feature, Shape, TaskMetrics, is_constant, json_lines
from bertkit.tasks.task_config import GenerationConfig, TaskConfig

GeneratedIds = tuple[list[int], float]  # the token ids of a text, without [CLS] and [SEP], and its score
NUM_GROUPS = 4  # groups of sources by length, in a review


@dataclass(frozen=True)
class GenerationExample:
    """A source text and its target text."""

    id: str  # from the file, or the number of the row
    source: str
    target: str | None  # None if unknown


@dataclass(frozen=True)
class Candidate:
    """A generated text and its score."""

    text: str
    score: float


@dataclass(frozen=True)
class GenerationPrediction:
    """The generated text for an example."""

    id: str  # the example's id
    text: str  # the best text
    score: float  # the sum of the log probabilities of its tokens / length ** length_penalty
    candidates: tuple[Candidate, ...] = ()  # the best texts; empty for num_candidates=1


def read(reading: Reading) -> Iterator[GenerationExample]:
    """Read an example from each row, or line of plain text; raises InputError if a column is missing or a row is wrong."""
    columns, is_plain = reading.task.columns, reading.is_input and reading.table.names == ("text",)
    source = reading.find("text" if is_plain else columns.source, "source")
    needed = bool(reading.is_labelled)
    column = columns.target if needed else names_of(columns.target) or columns.target  # a list of names may be missing
    target = None if reading.is_input else reading.find(column, "target", needed)
    ids = reading.ids()

    def example(row: Any, where: str, line: int) -> GenerationExample:
        text = required_text(row, source, where)
        is_known = reading.is_labelled or optional_value(row, target) is not None
        known = required_text(row, target, where) if is_known and target is not None else None
        reading.note_empty(where, text, known)
        return GenerationExample(ids.take(optional_value(row, ids.field), where, line), text, known)

    return reading.each(example)


def make_features(
    task: TaskConfig, examples: Sequence[GenerationExample], tokenizer: Tokenizer, _: Sequence[str] = ()
) -> list[Feature]:
    """Turn examples into features; long sources and targets are truncated, and keep their [SEP]."""
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
    generated: Sequence[Sequence[GeneratedIds]],
    _: Sequence[str],
    tokenizer: Tokenizer,
) -> list[GenerationPrediction]:
    """Turn the generated texts of each feature, sorted from best to worst, into a prediction for each example."""
    num_candidates = _settings(task).num_candidates
    found = []
    for feature, texts in zip(features, generated, strict=True):
        best = [
            Candidate(tokenizer.decode(ids, skip_special_tokens=True), float(score))
            for ids, score in texts[:num_candidates]
        ]
        candidates = tuple(best) if num_candidates > 1 else ()
        found.append(GenerationPrediction(examples[feature.example].id, best[0].text, best[0].score, candidates))
    return found


def _settings(task: TaskConfig) -> GenerationConfig:
    assert task.generation is not None, "checked by TaskConfig"
    return task.generation


def _measured(task: TaskConfig, _: Sequence[str] | None) -> TaskMetrics:
    metrics.require_packages(task.metrics)
    return TaskMetrics("texts", tuple(TEXT_METRICS))


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
    """Return the score by source length (Bahdanau et al. 2015, figure 2), and the wrong texts with the highest model scores."""
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
    title = f"The {len(shown)} texts with the highest scores that differ from their references"
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
    generates_text=True,
    read=read,
    content=lambda example: example.source,
    labels_of=lambda example: [None if example.target is None else "with a target"],
    is_labelled=lambda example: example.target is not None,
    features=make_features,
    predictions=predictions,
    fitting_metrics=_measured,
    score=_score,
    is_degenerate=lambda _, examples, predictions: is_constant([p.text for p in predictions], _targets(examples)),
    eval_files=_files,
    row=_row,
    review=_review,
)
