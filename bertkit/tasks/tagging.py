"""Tagging: predict one tag for each word. Long sentences and documents are cut into overlapping windows.

Axes: T tokens of a window, C labels.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from bertkit.base import plugins
from bertkit.base.errors import InputError, refusing
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.entities import EntitiesTask, tagged_texts
from bertkit.tasks.feature import Logits, TaggingFeature
from bertkit.tasks.reading.cells import Cells
from bertkit.tasks.reading.conll import Sentence, parts_of, scheme_of, to_scheme_of
from bertkit.tasks.reading.labels import Ids, Labels, tags_in, words_in
from bertkit.tasks.reading.near_duplicates import Content
from bertkit.tasks.reading.reading import Reading, optional_value, required_value
from bertkit.tasks.reading.writers import conll_lines
from bertkit.tasks.scoring import metrics, review
from bertkit.tasks.scoring.review import Review
from bertkit.tasks.task import ENDINGS, AnyTask, ExtraFile, LabelNames, Mark, Row, Verdict
from bertkit.tasks.task_config import TAGS, TEXTS, WORDS, must_exist, names_of
from bertkit.tasks.trainable import HeadTask, TaskMetrics, is_constant, most_frequent
from bertkit.tasks.words import TaggingExample, TaggingPrediction, make_features, pieces_of, tags_of


@plugins.option("task", "tagging")
class TaggingTask(HeadTask[TaggingExample, TaggingFeature, TaggingPrediction]):
    """Sentences or documents, with a tag for each word."""

    kind = "tagging"
    head = "token"
    unit = "sequence"
    formats = ("words", "conll", "conllu", "jsonl", "json", "parquet")
    text_columns = ("text",)
    plain = "words"
    copied = ("id", "words")

    def read(self, reading: Reading) -> Iterator[TaggingExample]:
        """Read an example from each sentence, or from each row of a table with lists of words.

        An input of `predict` is read sentence by sentence. A file with tags is read as a whole, to detect the tagging scheme.
        Raises InputError if a column is missing, or when a wrong sentence is read.
        """
        table, columns = reading.table, reading.config.columns
        text = None if table.present(columns.words or WORDS) else table.present(columns.text or TEXTS)
        if text is not None:
            return _examples(reading, tagged_texts(reading, text))
        return _examples(reading, _sentences(reading) if table.names or table.is_typed else table.sentences())

    def features(self, examples: Sequence[TaggingExample], tokenizer: Tokenizer) -> list[TaggingFeature]:
        """Split words into pieces, and long sentences or documents into windows of whole words."""
        return make_features(self.config, examples, pieces_of(examples, tokenizer), tokenizer.facts, self.labels)

    def predictions(
        self, examples: Sequence[TaggingExample], features: Sequence[TaggingFeature], logits: Sequence[Logits]
    ) -> list[TaggingPrediction]:
        """Predict the most probable tag of each word from the logits of the features, (T, C) each."""
        return tags_of(examples, features, logits, self.labels)

    def stacked(self, logits: Sequence[Logits]) -> Sequence[Logits]:
        """Return the logits of features, (T, C) each."""
        return logits

    def row(self, example: TaggingExample, prediction: TaggingPrediction) -> Row:
        """Return the id, the words and their tags."""
        return {"id": example.id, "words": example.words, "tags": prediction.tags}

    def verdict(self, example: TaggingExample, prediction: TaggingPrediction) -> Verdict:
        """Return the words with their tags."""
        ends = list(itertools.accumulate(len(word) + 1 for word in example.words))
        tagged = zip(example.words, prediction.tags, ends, strict=True)
        marks = [Mark(end - 1 - len(word), end - 1, tag) for word, tag, end in tagged if tag != "O"]
        return Verdict("", text=" ".join(example.words), marks=marks)

    def extra_files(self) -> Sequence[ExtraFile[TaggingExample, TaggingPrediction]]:
        """Return the CoNLL file: a word and its tag in each line."""

        def text(examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]) -> str:
            pairs = zip(examples, predictions, strict=True)
            return "".join(conll_lines("\t", example.words, prediction.tags) for example, prediction in pairs)

        return [ExtraFile(".conll", text)]

    def page_inputs(self) -> list[object]:
        """Return an example of running text."""
        return ["Johanson lives in Ulaanbaatar and works for the United Nations."]

    def columns_filled_by(self, value: str | tuple[str, ...] | list[str]) -> Sequence[str]:
        """Return the column of a text, or of a list of words."""
        return self.text_columns if isinstance(value, str) else ("words",)

    def file_format(self, ending: str) -> str:
        """Return the format of a file with tags: CoNLL, unless the ending says otherwise, or another format is set."""
        if ending in (".jsonl", ".json", ".parquet"):  # a user's copy, whatever is set for the official files
            return ENDINGS[ending]
        usual = "conll" if ending == ".tsv" else ENDINGS.get(ending, "conll")
        return usual if self.config.format == "auto" else self.config.format

    def input_format(self, ending: str) -> str | None:
        """Return the format of an input by its ending: CoNLL for .tsv, and for unknown endings such as eng.testb."""
        if ending == ".tsv":
            return "conll"
        is_known = ending in (*ENDINGS, "", ".txt")
        return super().input_format(ending) if is_known else self.file_format(ending)

    def for_format(self, format: str) -> AnyTask:
        """Return the task for running text, if the file has texts instead of words."""
        return EntitiesTask(self.config, self.labels) if format in ("text", "csv", "tsv") else self

    def for_columns(self, names: Sequence[str]) -> AnyTask:
        """Return the task for running text, if the table has a column of texts and none of words."""
        words, texts = names_of(self.config.columns.words or WORDS), names_of(self.config.columns.text or TEXTS)
        return EntitiesTask(self.config, self.labels) if {*texts} & {*names} and not {*words} & {*names} else self

    def content(self, example: TaggingExample) -> Content:
        """Return the words."""
        return example.words

    def labels_of(self, example: TaggingExample) -> Sequence[str | None]:
        """Return the tag of each word."""
        return example.tags or [None] * len(example.words)

    def classes_of(self, example: TaggingExample) -> Sequence[str]:
        """Return the tags: each word has its class."""
        return self.reference(example)

    def expected_labels(self) -> LabelNames:
        """Return the labels that the settings list; a file need not have both B- and I- of a type."""
        return self.config.label_names

    def size(self, examples: Sequence[TaggingExample]) -> str:
        """Return the numbers of examples and words."""
        return f"{super().size(examples)} of {self.num_labelled(examples):,} words"

    def num_labelled(self, examples: Sequence[TaggingExample]) -> int:
        """Return the number of words."""
        return sum(len(example.words) for example in examples)

    def is_labelled(self, example: TaggingExample) -> bool:
        """Whether the tags are known; without words no tag is missing."""
        return example.tags is not None or not example.words

    def reference(self, example: TaggingExample) -> Sequence[str]:
        """Return the tags."""
        return example.tags or ()

    def fitting_metrics(self) -> TaskMetrics:
        """Return the metrics of chunks, or of tags that mark no chunks."""
        unmarked = next((label for label in self.labels if parts_of(label) is None), None)
        if unmarked is None:
            strict = ("seqeval_strict",) if scheme_of(self.labels) == "iob2" else ()
            return TaskMetrics("tags that mark chunks", ("seqeval", *strict, "accuracy"))
        advice = (
            f", such as '{unmarked}'; set task.metrics=[accuracy] task.best_metric=accuracy, or write tags as in B-PER"
        )
        return TaskMetrics("tags that mark no chunks", ("accuracy",), advice)

    def compared(
        self, examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]
    ) -> tuple[metrics.Inputs, metrics.Inputs]:
        """Return the tags."""
        true = [list(self.reference(example)) for example in examples]
        return [prediction.tags for prediction in predictions], true

    def is_degenerate(self, examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]) -> bool:
        """Check whether all tags that are predicted are equal."""
        predicted = (tag for prediction in predictions for tag in prediction.tags)
        return is_constant(predicted, (tag for example in examples for tag in self.reference(example)))

    def predicted_labels(self, prediction: TaggingPrediction) -> Sequence[str]:
        """Return the tags."""
        return prediction.tags

    def baselines(
        self, train: Sequence[TaggingExample], examples: Sequence[TaggingExample]
    ) -> dict[str, list[TaggingPrediction]]:
        """Predict the most frequent tag."""
        tag = most_frequent(tag for example in train for tag in self.reference(example))
        return {"majority": [TaggingPrediction([tag] * len(e.words), [1.0] * len(e.words)) for e in examples]}

    def eval_files(
        self, examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]
    ) -> dict[str, Iterable[str]]:
        """Return the tags as JSON lines, and as predictions.txt: word, true tag and predicted tag in columns."""
        pairs = zip(examples, predictions, strict=True)
        text = "".join(conll_lines(" ", e.words, self.reference(e), p.tags) for e, p in pairs)
        no_blank_line_at_the_end = text[:-1]
        return super().eval_files(examples, predictions) | {"predictions.txt": [no_blank_line_at_the_end]}

    def review(self, examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]) -> Review:
        """Return scores by entity or tag, confusions, calibration and mistakes."""
        pairs = zip(examples, predictions, strict=True)
        return review.review_of_tags(
            [review.TaggedSentence(e.id, e.words, self.reference(e), p.tags, p.scores) for e, p in pairs]
        )


def _examples(reading: Reading, sentences: Iterator[Sentence]) -> Iterator[TaggingExample]:
    """Yield the examples of a file, with the tags of each sentence unless they are to be predicted."""
    config, place = reading.config, reading.table.place
    reading.notes.append("documents" if config.documents else "sentences")
    if not reading.is_input:
        whole = list(sentences)
        if len(whole) > 1 and all(sentence.is_from_text and len(sentence.words) == 1 for sentence in whole):
            where, way = (
                reading.table.place(whole[0].lines[0]),
                "join the words of a sentence in one row, or write CoNLL",
            )
            raise InputError(f"{where}: every row has a single word; expected a row for each sentence; {way}")
        _convert(reading, whole)
        sentences = iter(whole)
    labels = reading.labels = Labels(config, "tag", reading.known_labels, False)
    ids = reading.id_column = Ids(
        "id", is_input=reading.is_input, is_unique=False, is_named=must_exist(config.columns.id)
    )
    names = dict[str, str]()
    for sentence in sentences:
        line = next(iter(sentence.lines), 0)
        if not (sentence.words or reading.is_input):  # without words there are no tags to predict
            reading.empty.add(reading.table.name)
        tags = None
        if sentence.tags and not reading.is_input:
            for tag, number in zip(sentence.tags, sentence.lines, strict=True):
                if tag not in names:
                    names[tag] = labels.name_of(tag, place(number))
            tags = tuple(map(names.__getitem__, sentence.tags))
        yield TaggingExample(ids.take(sentence.id, place(line), line), tuple(sentence.words), tags)


def _convert(reading: Reading, sentences: Sequence[Sentence]) -> None:
    """Convert the tags of a file to the scheme of the labels, in place; without known ones they become those of IOB2, unless no tag marks a chunk."""
    for sentence in sentences:
        if reading.is_labelled and sentence.words and not sentence.tags:
            where = reading.table.place(sentence.lines[0])
            raise InputError(f"{where}: no tags; only a test file may lack them; set task.columns.tags=")
    if not any(sentence.tags for sentence in sentences):
        return
    known = reading.config.label_names or reading.known_labels
    before, warnings = to_scheme_of(known, reading.config, sentences, reading.table.name, reading.table.place)
    reading.file_warnings += warnings
    if before == "none":
        return
    scheme = scheme_of(known)
    reading.notes.append(before.upper() + ("" if before == scheme else f" read as {scheme.upper()}"))
    if not reading.known_labels:
        types = sorted({tag[2:] for sentence in sentences for tag in sentence.tags if tag != "O"})
        reading.known_labels = ("O", *(f"{prefix}-{type_}" for type_ in types for prefix in "BI"))


def _sentences(reading: Reading) -> Iterator[Sentence]:
    """Read sentences from the rows of a table with a list of words in one column."""
    columns = reading.config.columns
    words = reading.find(columns.words or WORDS, "words")
    tags = None if reading.is_input else reading.find_optional(columns.tags or TAGS, "tags")
    id_field = reading.find_optional(columns.id, "id")

    def sentence(row: Cells, where: str, line: int) -> Sentence:
        own = _list(required_value(row, words, where), words, where, words_in)
        texts = [word for word in own if isinstance(word, str) and word]  # white space is a word, too
        if len(texts) < len(own):
            raise InputError(f"{where}: field '{words}' has an empty word, or one that is not text; correct it")
        found = optional_value(row, tags)
        own_tags = [] if found is None else _list(found, tags, where, tags_in)
        if own_tags and len(own_tags) != len(own):
            raise InputError(f"{where}: {len(own)} {words} but {len(own_tags)} {tags}; expected a tag for each word")
        if any(tag is None or not str(tag).strip() for tag in own_tags):
            raise InputError(f"{where}: empty tag in field '{tags}'; correct it")
        if len(set(map(type, own_tags))) > 1:
            raise InputError(f"{where}: {tags} have different types; use texts or numbers for all")
        sentence_id, is_from_text = optional_value(row, id_field), isinstance(row[words], str)
        return Sentence(
            sentence_id, texts, [str(tag).strip() for tag in own_tags], [line] * len(own), is_from_text=is_from_text
        )

    return reading.each(sentence)


def _list(value: object, field: str | None, where: str, items_in: Callable[[str], Sequence[str]]) -> Sequence[object]:
    if isinstance(value, str):
        with refusing(ValueError, lambda error: f"{where}: field '{field}': {error}"):
            return items_in(value)
    if not isinstance(value, list):
        raise InputError(f"{where}: field '{field}' is {type(value).__name__}, expected a list")
    return value
