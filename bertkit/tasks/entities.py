"""Named entities in running text: its pieces are joined into words, and a tagging model tags each word by its first piece.

    text       Johanson lives in Ulaanbaatar.
    words      Johanson   lives in   Ulaanbaatar .
    tags       B-PER      O     O    B-LOC       O
    entities   Johanson, PER, characters 0 to 8; Ulaanbaatar, LOC, characters 18 to 29

This is for prediction only: a tagger is trained on words with tags.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from bertkit.data.corpus.tokenizer import Tokenizer, Word
from bertkit.tasks.feature import Logits, TaggingFeature
from bertkit.tasks.reading.conll import chunks_of
from bertkit.tasks.reading.reading import Reading, optional_value, required_text
from bertkit.tasks.reading.writers import conll_lines
from bertkit.tasks.task import TABLES, ExtraFile, LogitsTask, Mark, Row, Runner, Verdict
from bertkit.tasks.task_config import TEXTS
from bertkit.tasks.words import TaggingExample, TaggingPrediction, make_features, tags_of


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


def entities_of(text: str, words: Sequence[Word], prediction: TaggingPrediction) -> list[Entity]:
    """Group tagged words into entities, as the CoNLL evaluation does, for any tagging scheme.

    If the tags mark no chunks, such as parts of speech, each word is an entity.
    """
    try:
        chunks = chunks_of(prediction.tags)
    except ValueError:
        chunks = [(tag, number, number + 1) for number, tag in enumerate(prediction.tags)]
    entities = []
    for label, first, last in chunks:
        start, end = words[first].start, words[last - 1].end
        score = sum(prediction.scores[first:last]) / (last - first)
        entities.append(Entity(text[start:end], label, start, end, score))
    return entities


class EntitiesTask(LogitsTask[TextExample, TaggingFeature, TextPrediction]):
    """Running text, of which a tagger predicts the entities."""

    kind = "tagging"
    head = "token"
    unit = "sequence"
    formats = ("text", *TABLES)
    text_columns = ("text",)
    plain = "text"

    def read(self, reading: Reading) -> Iterator[TextExample]:
        """Read a text from each row; raises InputError if the column is missing or a row is wrong."""
        text, ids = reading.find(self.config.columns.text or TEXTS, "text"), reading.ids()
        return reading.each(
            lambda row, where, line: TextExample(
                ids.take(optional_value(row, ids.field), where, line), required_text(row, text, where)
            )
        )

    def features(self, examples: Sequence[TextExample], tokenizer: Tokenizer) -> list[TaggingFeature]:
        """Split texts into words, and words into pieces and windows."""
        words = _words(examples, tokenizer)
        in_words = [_in_words(*pair) for pair in zip(examples, words, strict=True)]
        pieces = [[word.ids for word in own] for own in words]
        return make_features(self.config, in_words, pieces, tokenizer.facts, self.labels)

    def predict(
        self, model: Runner, examples: Sequence[TextExample], features: Sequence[TaggingFeature]
    ) -> list[TextPrediction]:
        """Tag the words, and group them into entities."""
        words = _words(examples, model.tokenizer)
        in_words = [_in_words(*pair) for pair in zip(examples, words, strict=True)]
        tagged = tags_of(in_words, features, model.logits(features), self.labels)
        return [
            TextPrediction(named.words, p.tags, entities_of(example.text, own, p))
            for example, own, named, p in zip(examples, words, in_words, tagged, strict=True)
        ]

    def stacked(self, logits: Sequence[Logits]) -> Sequence[Logits]:
        """Return the logits of features, (T, C) each."""
        return logits

    def row(self, example: TextExample, prediction: TextPrediction) -> Row:
        """Return the id, the text and its entities."""
        return {"id": example.id, "text": example.text, "entities": [*map(asdict, prediction.entities)]}

    def verdict(self, example: TextExample, prediction: TextPrediction) -> Verdict:
        """Return the text with its entities."""
        marks = [Mark(entity.start, entity.end, entity.label) for entity in prediction.entities]
        return Verdict("" if marks else "no entities", text=example.text, marks=marks)

    def extra_files(self) -> Sequence[ExtraFile[TextExample, TextPrediction]]:
        """Return the CoNLL file: a word and its tag in each line."""
        return [ExtraFile(".conll", lambda _, ps: "".join(conll_lines("\t", p.words, p.tags) for p in ps))]


def _words(examples: Sequence[TextExample], tokenizer: Tokenizer) -> list[list[Word]]:
    return tokenizer.words([example.text for example in examples])


def _in_words(example: TextExample, words: Sequence[Word]) -> TaggingExample:
    return TaggingExample(example.id, tuple(example.text[word.start : word.end] for word in words), None)
