"""Tagging: predict one tag for each word. Long sentences and documents are cut into overlapping windows.

    words          Johanson   lives in   Ulaanbaatar
    pieces   [CLS] Johan ##son lives in Ulaan ##ba ##atar [SEP]
    labels   -100  B-PER -100  O     O  B-LOC -100 -100   -100

Axes: T tokens of a window, C labels.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base.batch import IGNORED
from bertkit.base.errors import InputError, named
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.reading.conll import Sentence, parts_of, to_iob2
from bertkit.tasks.reading.labels import Ids, Labels
from bertkit.tasks.reading.source import Reading, optional_value, required_value
from bertkit.tasks.scoring import metrics, review
from bertkit.tasks.task import ExtraFile, Feature, Shape, TaskMetrics, is_constant, json_lines, most_frequent
from bertkit.tasks.task_config import TAGS, WORDS, TaskConfig

NO_WORD = -1


@dataclass(frozen=True)
class TaggingExample:
    """A sentence or document: its words, and a tag for each word."""

    id: str  # from the file, or the number of the sentence
    words: tuple[str, ...]  # no word is empty
    tags: tuple[str, ...] | None  # one for each word; None if unknown


@dataclass(frozen=True)
class TaggingPrediction:
    """The prediction for an example."""

    tags: list[str]  # one for each word
    scores: list[float]  # the probability of each tag


def read(reading: Reading) -> Iterator[TaggingExample]:
    """Read an example from each sentence, or from each row of a table with lists of words.

    An input of `predict` is read sentence by sentence. A file with tags is read as a whole, to detect the tagging scheme.
    Raises InputError if a column is missing, or when a wrong sentence is read.
    """
    reading.expected_labels = reading.task.label_names or ()
    has_columns = bool(reading.table.names)
    return _examples(reading, _sentences(reading) if has_columns else (row for _, row in reading.table.rows))


def _examples(reading: Reading, sentences: Iterator[Sentence]) -> Iterator[TaggingExample]:
    task, place = reading.task, reading.table.place
    has_tags, scheme = False, "none"
    if not reading.is_input:
        whole = list(sentences)
        has_tags, sentences = any(sentence.tags for sentence in whole), iter(whole)
        for sentence in whole:
            if reading.is_labelled and sentence.words and not sentence.tags:
                where = place(sentence.lines[0])
                raise InputError(f"{where}: no tags; only a test file may lack them; set task.columns.tags=")
        if has_tags:
            scheme, reading.file_warnings = to_iob2(task, whole, reading.table.name, place)
    reading.labels = labels = Labels(task, "tag", reading.known_labels, False)
    if labels.names is None and scheme != "none":
        types = sorted({tag[2:] for sentence in whole for tag in sentence.tags if tag != "O"})
        labels.names = ("O", *(f"{prefix}-{type_}" for type_ in types for prefix in "BI"))
        labels.by_value = {label: label for label in labels.names}
    written = [] if scheme == "none" else [scheme.upper() + ("" if scheme == "iob2" else " read as IOB2")]
    reading.notes += ["documents" if task.documents else "sentences", *written]
    ids = Ids("id", is_input=reading.is_input, is_unique=False)
    for sentence in sentences:
        tags = None
        if has_tags and sentence.tags:
            for tag, line in zip(sentence.tags, sentence.lines, strict=True):
                if tag not in labels.seen:
                    labels.name_of(tag, place(line))
            tags = tuple(labels.by_value.get(tag, tag) for tag in sentence.tags)
        if not sentence.words:
            reading.empty.append(reading.table.name)
        line = sentence.lines[0] if sentence.lines else 0
        yield TaggingExample(ids.take(sentence.id, place(line), line), tuple(sentence.words), tags)


def _sentences(reading: Reading) -> Iterator[Sentence]:
    """Read sentences from the rows of a table with a list of words in one column."""
    columns = reading.task.columns
    words = reading.find(columns.words or WORDS, "words") or ""
    tags = None if reading.is_input else reading.table.find(columns.tags or TAGS, "tags", False)
    id_field = reading.find(columns.id, "id", False)

    def sentence(row: Any, where: str, line: int) -> Sentence:
        own = _list(required_value(row, words, where), words, where)
        if not all(isinstance(word, str) and word.strip() for word in own):
            raise InputError(f"{where}: field '{words}' has an empty word, or one that is not text; correct it")
        own_tags = [] if optional_value(row, tags) is None else _list(row[tags], tags, where)
        if own_tags and len(own_tags) != len(own):
            raise InputError(f"{where}: {len(own)} {words} but {len(own_tags)} {tags}; expected a tag for each word")
        if any(tag is None or not str(tag).strip() for tag in own_tags):
            raise InputError(f"{where}: empty tag in field '{tags}'; correct it")
        if len({type(tag) for tag in own_tags}) > 1:
            raise InputError(f"{where}: {tags} have different types; use texts or numbers for all")
        name = optional_value(row, id_field)
        return Sentence(None if name is None else str(name), own, list(map(str, own_tags)), [line] * len(own))

    return reading.each(sentence)


def _list(value: Any, field: str | None, where: str) -> list[Any]:
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list):
        raise InputError(f"{where}: field '{field}' is {type(value).__name__}, expected a list")
    return value


def make_features(
    task: TaskConfig, examples: Sequence[TaggingExample], tokenizer: Tokenizer, labels: Sequence[str]
) -> list[Feature]:
    """Split words into pieces, and long sentences or documents into windows of whole words.

    The first piece of a word has its label, the other pieces have none (Devlin et al. 2019, section 5.3). A word without
    pieces, such as a control character, becomes [UNK]; a word longer than a window is truncated. An example without words has
    one feature.

    The features of an example are consecutive. `origins` holds for each of the T tokens the number of the word that begins
    there, or -1. Raises InputError if a tag is not a label.
    """
    room = task.max_seq_length - 2
    setting = None if task.tagging is None else task.tagging.window_overlap
    overlap = room // 2 if setting is None else setting
    facts = tokenizer.facts
    vocabulary = list(dict.fromkeys(word for example in examples for word in example.words))
    encodings = tokenizer.encode_sentences(vocabulary)
    pieces_of = {word: encoding.ids or [facts.unk] for word, encoding in zip(vocabulary, encodings, strict=True)}
    numbers = {label: number for number, label in enumerate(labels)}
    features = []
    for place, example in enumerate(examples):
        whole = [pieces_of[word] for word in example.words]
        pieces = [ids[:room] for ids in whole]
        unknown = next((tag for tag in example.tags or () if tag not in numbers), None)
        if unknown is not None:
            raise InputError(f"example {example.id}: unknown tag {unknown!r:.80}; expected one of {named(numbers)}")
        own = None if example.tags is None else [numbers[tag] for tag in example.tags]
        for first, last in _windows([*map(len, pieces)], room, overlap):
            ids, origins, targets = [facts.cls], [NO_WORD], [IGNORED]
            for word in range(first, last):
                further = len(pieces[word]) - 1
                ids += pieces[word]
                origins += [word] + [NO_WORD] * further
                if own is not None:
                    targets += [own[word]] + [IGNORED] * further
            ids, origins, targets = [*ids, facts.sep], [*origins, NO_WORD], [*targets, IGNORED]
            num_cut = sum(max(0, len(ids) - room) for ids in whole[first:last])
            features.append(Feature(place, ids, [0] * len(ids), None if own is None else targets, origins, num_cut))
    return features


def _windows(lengths: list[int], room: int, overlap: int) -> list[tuple[int, int]]:
    """Divide words into windows: (number of the first word, number after the last word).

    `lengths` are the numbers of pieces of the words. A window has at most `room` pieces, and shares at most `overlap` pieces
    with the next window.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    windows, first = [], 0
    while True:
        last = int(np.searchsorted(offsets, offsets[first] + room, side="right")) - 1
        windows.append((first, last))
        if last == len(lengths):
            return windows
        begin = int(np.searchsorted(offsets, offsets[last] - overlap, side="left"))
        first = max(first + 1, begin)


def logits_of_words(
    examples: Sequence[TaggingExample], features: Sequence[Feature], logits: Sequence[NDArray[np.floating]]
) -> list[NDArray[np.floating]]:
    """Collect the logits of each example, (words, C), from the logits of its features, (T, C).

    The logits of a word that is in several windows come from the window with the most context: count the pieces on its left
    and on its right, and take the window where the smaller number is largest. Of equal windows the first counts.

    Source: google-research/bert run_squad.py `_check_is_max_context`, which does this for spans.
    """
    num_labels = logits[0].shape[-1] if len(logits) else 0
    of_words = [np.zeros((len(example.words), num_labels), np.float32) for example in examples]
    contexts = [np.full(len(example.words), -1) for example in examples]
    for feature, scores in zip(features, logits, strict=True):
        last = len(feature.input_ids) - 2  # the position of the last piece before [SEP]; the first piece is at 1
        for position, word in enumerate(feature.origins):
            if word == NO_WORD:
                continue
            context = min(position - 1, last - position)
            if context > contexts[feature.example][word]:
                contexts[feature.example][word] = context
                of_words[feature.example][word] = scores[position]
    for example, own in zip(examples, contexts, strict=True):
        assert (own >= 0).all(), f"example {example.id}: words without a window"
    return of_words


def tags_of(
    examples: Sequence[TaggingExample],
    features: Sequence[Feature],
    logits: Sequence[NDArray[np.floating]],
    labels: Sequence[str],
) -> list[TaggingPrediction]:
    """Predict the most probable tag of each word from the logits of the features, (T, C) each."""
    predictions = []
    for rows in logits_of_words(examples, features, logits):
        powers = np.exp(rows.astype(np.float64) - rows.max(-1, keepdims=True, initial=-np.inf))  # (words, C)
        scores = powers.max(-1, initial=0) / powers.sum(-1)
        tags = [labels[best] for best in rows.argmax(-1)] if len(rows) else []
        predictions.append(TaggingPrediction(tags, scores.tolist()))
    return predictions


def _measured(task: TaskConfig, labels: Sequence[str] | None) -> TaskMetrics:
    unmarked = next((label for label in labels or () if parts_of(label) is None), None)
    if unmarked is None:
        return TaskMetrics("tags that mark chunks", ("seqeval", "seqeval_strict", "accuracy"))
    advice = f", such as '{unmarked}'; set task.metrics=[accuracy] task.best_metric=accuracy, or write tags as in B-PER"
    return TaskMetrics("tags that mark no chunks", ("accuracy",), advice)


def _files(examples: Sequence[TaggingExample], predictions: Sequence[TaggingPrediction]) -> dict[str, str]:
    """Return the true and predicted tags as JSON lines, and as predictions.txt: word, true tag and predicted tag in columns."""
    rows = [
        {"id": example.id, "words": example.words, "tags": p.tags, "reference": example.tags or ()}
        for example, p in zip(examples, predictions, strict=True)
    ]
    text = "".join(conll_lines(" ", row["words"], row["reference"], row["tags"]) for row in rows)
    return {"predictions.jsonl": json_lines(rows), "predictions.txt": text[:-1]}  # no blank line at the end


_BETWEEN_CELLS = re.compile("[ \t-\r\x1c-\x1e\x85\u2028\u2029]+")


def _cell(word: str) -> str:
    """Replace white space in a word by `_`: it would begin a new cell or line."""
    return _BETWEEN_CELLS.sub("_", word) or "_"


def conll_lines(separator: str, *cells: Sequence[str]) -> str:
    """Format the words and tags of a sentence as CoNLL lines, with a blank line at the end."""
    return "".join(separator.join(map(_cell, line)) + "\n" for line in zip(*cells, strict=True)) + "\n"


def _guess(
    _: TaskConfig, train: Sequence[TaggingExample], examples: Sequence[TaggingExample]
) -> list[TaggingPrediction]:
    tag = most_frequent(tag for example in train for tag in example.tags or ())
    return [TaggingPrediction([tag] * len(e.words), [1.0] * len(e.words)) for e in examples]


SHAPE = Shape(
    kind="tagging",
    head="token",
    unit="sequences",
    formats=("words", "conll", "conllu", "jsonl", "json", "parquet"),
    text_columns=("text",),
    plain="words",
    has_token_logits=True,
    is_word_level=True,
    has_labels=True,
    read=read,
    content=lambda example: example.words,
    labels_of=lambda example: example.tags or [None] * len(example.words),
    is_labelled=lambda example: example.tags is not None or not example.words,  # without words no tag is missing
    features=make_features,
    predictions=lambda _, examples, features, logits, labels, __: tags_of(examples, features, logits, labels),
    fitting_metrics=_measured,
    score=lambda task, examples, predictions, _: metrics.score(
        task.metrics, [p.tags for p in predictions], [list(example.tags or ()) for example in examples]
    ),
    is_degenerate=lambda _, examples, predictions: is_constant(
        (tag for p in predictions for tag in p.tags), (tag for example in examples for tag in example.tags or ())
    ),
    eval_files=_files,
    row=lambda example, p: {"id": example.id, "words": example.words, "tags": p.tags},
    extra_files=(
        ExtraFile(
            ".conll", lambda es, ps: "".join(conll_lines("\t", e.words, p.tags) for e, p in zip(es, ps, strict=True))
        ),
    ),
    guess=_guess,
    predicted_labels=lambda prediction: prediction.tags,
    review=lambda _, examples, predictions, __: review.review_of_tags(
        [(e.id, e.words, e.tags or (), p.tags, p.scores) for e, p in zip(examples, predictions, strict=True)]
    ),
)
