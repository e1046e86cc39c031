"""Named entities in running text: its pieces are joined into words, and a tagging model tags each word by its first piece.

    text       Johanson lives in Ulaanbaatar.
    words      Johanson   lives in   Ulaanbaatar .
    tags       B-PER      O     O    B-LOC       O
    entities   Johanson, PER, characters 0 to 8; Ulaanbaatar, LOC, characters 18 to 29

A tagger is trained on words with tags. Those of texts with entities are cut by BERT's rules, as for prediction, and tagged by the entities.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from bertkit.base.errors import counted, refusing
from bertkit.data.corpus.tokenizer import SPECIAL_TOKENS, Tokenizer, Word, wordpiece
from bertkit.tasks.feature import Logits, TaggingFeature
from bertkit.tasks.reading.cells import Cells, CountedRows
from bertkit.tasks.reading.conll import Sentence, chunks_of
from bertkit.tasks.reading.reading import Reading, optional_value, required_text
from bertkit.tasks.reading.writers import conll_lines
from bertkit.tasks.task import TABLES, ExtraFile, LogitsTask, Mark, Row, Runner, Verdict
from bertkit.tasks.task_config import ENTITIES, TEXTS
from bertkit.tasks.words import TaggingExample, TaggingPrediction, make_features, tags_of

KEYS = (
    ("start", "start_offset"),
    ("end", "end_offset"),
    ("label", "labels"),
    ("text",),
)  # of an entity: usual ones, and Doccano's
EXAMPLE = '{"start": 0, "end": 8, "label": "PER"}'


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


class EntitySpan(NamedTuple):
    """An entity as a file has it: `text[start:end]`."""

    start: int
    end: int
    label: str


@functools.cache
def _cutter() -> Tokenizer:
    """Return a tokenizer without a vocabulary, which cuts texts into words by BERT's rules."""
    return wordpiece({token: number for number, token in enumerate(SPECIAL_TOKENS)}, lowercase=False)


def tagged_texts(reading: Reading, text: str) -> Iterator[Sentence]:
    """Read texts with entities as words with tags; an entity that begins or ends inside a word becomes the whole word.

    `text` is the column of texts. Raises InputError if an entity is not a part of its text, or two of them share a word.
    """
    find = reading.find if reading.is_labelled else reading.find_optional  # a test file may have none
    field = find(reading.config.columns.tags or ENTITIES, "tags")
    id_field = reading.find_optional(reading.config.columns.id, "id")
    counts, widened, rejected = Counter[str](), CountedRows(), CountedRows()

    def sentence(row: Cells, where: str, line: int) -> Sentence | None:
        value, whole = optional_value(row, field), required_text(row, text, where)
        words = _cutter().words([whole])[0]
        tags = [] if value is None else ["O"] * len(words)
        if value is None and reading.is_labelled:
            reading.unlabelled.append(f"{where}: {field}")
            return None
        if row.get("answer") in ("reject", "ignore"):
            rejected.add(where)
            return None
        with refusing(ValueError, lambda error: f"{where}: field '{field}': {error}"):
            for span in sorted({span_of(item, whole) for item in _items(value)}):
                own = [number for number, word in enumerate(words) if word.start < span.end and word.end > span.start]
                _tag(tags, own, span, whole)
                counts["all"] += 1
                if words[own[0]].start < span.start or words[own[-1]].end > span.end:
                    widened.add(f"{where}: {whole[span.start : span.end]!r:.40}")
        return Sentence(
            optional_value(row, id_field), [whole[w.start : w.end] for w in words], tags, [line] * len(words)
        )

    yield from reading.each(sentence)
    name = reading.table.name
    inside = f"{widened.num_rows:,} of {counts['all']:,} entities begin or end inside a word"
    how = f"{counted(rejected.num_rows, 'row')} with the answer reject or ignore (Prodigy's)"
    reading.file_warnings += [
        *widened.warning(f"{name}: {inside}, the first at {widened.first}; the whole words are tagged"),
        *rejected.warning(f"{name}: skipped {how}, the first at {rejected.first}"),
    ]


def _items(value: object) -> Sequence[object]:
    value = [] if value is None else value
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.80}: expected a list of entities, such as [{EXAMPLE}]")
    return value


def _tag(tags: list[str], own: Sequence[int], span: EntitySpan, text: str) -> None:
    """Tag the words of an entity, in IOB2."""
    what = f"{text[span.start : span.end]!r:.40} ({span.label}, {span.start} to {span.end})"
    if not own:
        raise ValueError(f"the entity {what} has no word; remove it")
    if taken := next((tags[number][2:] for number in own if tags[number] != "O"), None):
        raise ValueError(
            f"the entity {what} shares a word with another, {taken}; a word has one tag: remove one of them"
        )
    for number in own:
        tags[number] = f"{'B' if number == own[0] else 'I'}-{span.label}"


def span_of(item: object, text: str) -> EntitySpan:
    """Return an entity of a text; raises ValueError if it is not one.

    Label Studio once counted UTF-16 units, of which an emoji has two; the text that it wrote beside them tells.
    """
    match item:
        case [start, end, label]:
            said = None
        case dict():
            start, end, label, said = (next((item[key] for key in keys if key in item), None) for keys in KEYS)
        case _:
            start = end = label = said = None
    label = label[0] if isinstance(label, list) and len(label) == 1 else label
    if type(start) is not int or type(end) is not int or not isinstance(label, str) or not label.strip():
        raise ValueError(f"{item!r:.80}: expected a start, an end and a label, such as {EXAMPLE}")

    def fits(start: int, end: int) -> bool:
        is_part = 0 <= start < end <= len(text)
        return is_part and (not isinstance(said, str) or _squeezed(text[start:end]) == _squeezed(said))

    if not fits(start, end) and isinstance(said, str):
        units = text.encode("utf-16-le")
        start, end = (len(units[: 2 * place].decode("utf-16-le", "ignore")) for place in (start, end))
    if not fits(start, end):
        here = f"is not {said!r:.40}" if isinstance(said, str) else f"is no part of a text of {len(text):,} characters"
        raise ValueError(f"{item!r:.80}: start to end {here}; count characters from 0, with end after the last one")
    return EntitySpan(start, end, label.strip())


def _squeezed(text: str) -> str:
    """Return a text without white space, which tools trim and escape."""
    return "".join(text.replace("\\n", " ").split())


def entities_of(
    text: str, words: Sequence[Word], prediction: TaggingPrediction, labels: Collection[str]
) -> list[Entity]:
    """Group tagged words into entities, as the CoNLL evaluation does, for any tagging scheme.

    If the tags mark no chunks, words with the same tag are an entity, as in `transformers`, if there is a label O for the others;
    without it, as for parts of speech, each word is an entity.
    """
    try:
        chunks = chunks_of(prediction.tags)
    except ValueError:
        own = enumerate(prediction.tags)
        runs = [[*run] for _, run in itertools.groupby(own, key=lambda word: word[1] if "O" in labels else word)]
        chunks = [(run[0][1], run[0][0], run[-1][0] + 1) for run in runs if run[0][1] != "O"]
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
    copied = ("id", "text")

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
            TextPrediction(named.words, p.tags, entities_of(example.text, own, p, self.labels))
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
