"""Named entities in running text: the pre-tokenizer splits it into words, and a tagging model tags each word.

    text       Johanson lives in Ulaanbaatar.
    words      Johanson   lives in   Ulaanbaatar .
    tags       B-PER      O     O    B-LOC       O
    entities   Johanson, PER, characters 0 to 8; Ulaanbaatar, LOC, characters 18 to 29

This is for prediction only: a tagger is trained on words with tags.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks import tagging
from bertkit.tasks.reading.conll import chunks_of
from bertkit.tasks.reading.source import Reading, optional_value, required_text
from bertkit.tasks.tagging import TaggingExample, TaggingPrediction
from bertkit.tasks.task import TABLES, ExtraFile, Feature
from bertkit.tasks.task_config import TEXTS, TaskConfig


@dataclass(frozen=True)
class TextExample:
    """A running text."""

    id: str
    text: str


@dataclass(frozen=True)
class Entity:
    """A part of a text with a label: `text[start:end]`."""

    text: str
    label: str  # the entity type; the tag itself if tags mark no chunks, such as parts of speech
    start: int  # the index of its first character
    end: int  # the index after its last character
    score: float  # the mean probability of the tags of its words


@dataclass(frozen=True)
class TextPrediction:
    """The prediction for a text."""

    words: tuple[str, ...]
    tags: list[str]  # one for each word
    entities: list[Entity]  # in the order of the text


def read(reading: Reading) -> Iterator[TextExample]:
    """Read a text from each row; raises InputError if the column is missing or a row is wrong."""
    text, ids = reading.find(reading.task.columns.text or TEXTS, "text"), reading.ids()
    return reading.each(
        lambda row, where, line: TextExample(
            ids.take(optional_value(row, ids.field), where, line), required_text(row, text, where)
        )
    )


def entities_of(text: str, places: Sequence[tuple[int, int]], prediction: TaggingPrediction) -> list[Entity]:
    """Group tagged words into entities, as the CoNLL evaluation does, for any tagging scheme.

    If the tags mark no chunks, such as parts of speech, each word is an entity. `places` holds the characters of each word:
    (start, end), end excluded.
    """
    try:
        chunks = chunks_of(prediction.tags)
    except ValueError:
        chunks = [(tag, number, number + 1) for number, tag in enumerate(prediction.tags)]
    entities = []
    for label, first, last in chunks:
        start, end = places[first][0], places[last - 1][1]
        score = sum(prediction.scores[first:last]) / (last - first)
        entities.append(Entity(text[start:end], label, start, end, score))
    return entities


def _in_words(examples: Sequence[TextExample], tokenizer: Tokenizer) -> tuple[list[Any], list[TaggingExample]]:
    """Split texts into words; return the (start, end) characters of the words, and examples for the tagger."""
    places = tokenizer.words([example.text for example in examples])
    return places, [
        TaggingExample(example.id, tuple(example.text[start:end] for start, end in own), None)
        for example, own in zip(examples, places, strict=True)
    ]


def _features(
    task: TaskConfig, examples: Sequence[TextExample], tokenizer: Tokenizer, labels: Sequence[str]
) -> list[Feature]:
    return tagging.SHAPE.features(task, _in_words(examples, tokenizer)[1], tokenizer, labels)


def _predictions(
    _: TaskConfig,
    examples: Sequence[TextExample],
    features: Sequence[Feature],
    logits: Sequence[NDArray[np.floating]],
    labels: Sequence[str],
    tokenizer: Tokenizer,
) -> list[TextPrediction]:
    places, in_words = _in_words(examples, tokenizer)
    tagged = tagging.tags_of(in_words, features, logits, labels)
    return [
        TextPrediction(words.words, p.tags, entities_of(example.text, own, p))
        for example, own, words, p in zip(examples, places, in_words, tagged, strict=True)
    ]


# not in task_config.SHAPES: only for prediction
SHAPE = dataclasses.replace(
    tagging.SHAPE,
    formats=("text", *TABLES),
    plain="text",
    is_word_level=False,
    read=read,
    content=lambda example: example.text,
    features=_features,
    predictions=_predictions,
    row=lambda example, p: {"id": example.id, "text": example.text, "entities": [*map(asdict, p.entities)]},
    extra_files=(ExtraFile(".conll", lambda _, ps: "".join(tagging.conll_lines("\t", p.words, p.tags) for p in ps)),),
)
