"""Text generation: a source text in, a target text out, such as a translation or a summary.

A feature is `[CLS] source [SEP]`. Its label is the target, `[CLS] y1 .. yn [SEP]`: the decoder reads all tokens but the last, and
predicts all tokens but the first. The name of a special token in a source text is encoded as that token. In a target it is
encoded as ordinary text, because a [SEP] would end the target.

A generated text is the decoded tokens: lower-cased for an uncased model, with normalized spaces. Metrics compare it with the
unchanged reference from the file.

Source: Sutskever et al. 2014; Vaswani et al. 2017, section 3.1; Rothe et al. 2020.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.feature import Feature, pieces
from bertkit.tasks.reading.cells import Cells
from bertkit.tasks.reading.near_duplicates import Content
from bertkit.tasks.reading.reading import Reading, optional_value, required_text
from bertkit.tasks.scoring import metrics
from bertkit.tasks.scoring.metrics import TEXT_METRICS, keys_of
from bertkit.tasks.scoring.review import NUM_MISTAKES, Review
from bertkit.tasks.task import TABLES, AnyLogitsTask, Row, Runner, Verdict, Written
from bertkit.tasks.task_config import GenerationConfig, names_of
from bertkit.tasks.trainable import TaskMetrics, TrainableTask

NUM_GROUPS = 4  # groups of sources by length, in a review
BLEU_RUN = 4  # words in the longest runs that BLEU compares; without any it is 0
BLEU_WORD = re.compile(r"[!-/:-@\[-`{-~]|[^\s!-/:-@\[-`{-~]+")  # as sacrebleu's tokenizer 13a, or shorter
MOST_SHORT = 0.9  # share of targets without such a run, above which there is a warning
MOST_UNREAD = 0.5  # share of letters that ROUGE does not read, above which there is a warning; German has 2 %


@dataclass(frozen=True)
class GenerationExample:
    """A source text and its target text."""

    id: str  # from the file, or the number of the row
    source: str
    target: str | None  # None if unknown


@dataclass(frozen=True)
class GeneratedText:
    """A generated text and its score."""

    text: str
    score: float


@dataclass(frozen=True)
class GenerationPrediction:
    """The generated text for an example."""

    id: str  # the example's id
    text: str  # the best text
    score: float  # the sum of the log probabilities of its tokens / length ** length_penalty
    candidates: tuple[GeneratedText, ...] = ()  # the best texts; empty for num_candidates=1
    at_limit: bool = False  # whether the text ends at the largest length, not where the model ended it


@plugins.option("task", "generation")
class GenerationTask(TrainableTask[GenerationExample, Feature, GenerationPrediction]):
    """Source texts with target texts."""

    kind = "generation"
    head = "generation"
    unit = "text"
    formats = ("text", *TABLES)
    text_columns = ("source",)
    plain = "text"

    @property
    def search(self) -> GenerationConfig:
        """The settings `task.generation`."""
        assert self.config.generation is not None, "checked by TaskConfig"
        return self.config.generation

    def read(self, reading: Reading) -> Iterator[GenerationExample]:
        """Read an example from each row, or line of plain text; raises InputError if a column is missing or a row is wrong."""
        columns, is_plain = self.config.columns, reading.is_input and reading.table.names == ("text",)
        source = reading.find("text" if is_plain else columns.source, "source")
        target = self._target(reading)
        ids = reading.ids()

        def example(row: Cells, where: str, line: int) -> GenerationExample:
            text = required_text(row, source, where)
            is_known = reading.is_labelled or optional_value(row, target) is not None
            known = required_text(row, target, where) if is_known and target is not None else None
            reading.note_empty(where, text, known)
            return GenerationExample(ids.take(optional_value(row, ids.field), where, line), text, known)

        return reading.each(example)

    def _target(self, reading: Reading) -> str | None:
        """Find the column of targets; None for an input of `predict`."""
        column = self.config.columns.target
        match reading.is_labelled:
            case True:
                return reading.find(column, "target")
            case None:
                return reading.find_optional(names_of(column) or column, "target")  # a list of names may be missing
        return None

    def features(self, examples: Sequence[GenerationExample], tokenizer: Tokenizer) -> list[Feature]:
        """Turn examples into features; long sources and targets are truncated, and keep their [SEP]."""
        facts, room, target_room = tokenizer.facts, self.config.max_seq_length - 2, self.search.max_target_length - 1
        sources = pieces(tokenizer, [example.source for example in examples])
        known = [place for place, example in enumerate(examples) if example.target is not None]
        encoded = tokenizer.encode_document([examples[place].target or "" for place in known])
        targets = dict(zip(known, encoded, strict=True))
        features = []
        for place, source in enumerate(sources):
            input_ids = [facts.cls, *tokenizer.cut(source, room), facts.sep]
            target = targets.get(place)
            target_ids = None if target is None else [facts.cls, *target[:target_room], facts.sep]
            target_cut = max(0, len(target or ()) - target_room)
            num_cut = max(0, len(source) - room) + target_cut
            types = [0] * len(input_ids)
            features.append(
                Feature(place, input_ids, types, target_ids=target_ids, num_cut=num_cut, num_target_cut=target_cut)
            )
        return features

    def truncated(self, num_truncated: int, num_examples: int, num_targets: int = 0) -> str:
        """Return the warning about truncated examples, with the limit of their sources, of their targets, or both."""
        limits = [f"task.max_seq_length={self.config.max_seq_length}"] if num_targets < num_truncated else []
        limits += [f"task.generation.max_target_length={self.search.max_target_length}"] if num_targets else []
        raised = "it" if len(limits) == 1 else "them"
        return f"{num_truncated:,} of {num_examples:,} examples were truncated by {' or '.join(limits)}; raise {raised}"

    def predict(
        self, model: Runner, examples: Sequence[GenerationExample], features: Sequence[Feature]
    ) -> list[GenerationPrediction]:
        """Write a text, or several, for each example."""
        return self.predictions(examples, features, model.texts(features, self.search), model.tokenizer)

    def predictions(
        self,
        examples: Sequence[GenerationExample],
        features: Sequence[Feature],
        texts: Sequence[Written],
        tokenizer: Tokenizer,
    ) -> list[GenerationPrediction]:
        """Turn the texts of each feature, sorted from best to worst, into a prediction for each example."""
        num_candidates, predictions = self.search.num_candidates, []
        for feature, written in zip(features, texts, strict=True):
            best = [
                GeneratedText(tokenizer.decode(ids, skip_special_tokens=True).strip(), float(score))
                for ids, score in written[:num_candidates]
            ]
            name, candidates = examples[feature.example].id, tuple(best) if num_candidates > 1 else ()
            at_limit = len(written[0][0]) == self.search.max_target_length
            predictions.append(GenerationPrediction(name, best[0].text, best[0].score, candidates, at_limit))
        return predictions

    def faults(self, predictions: Sequence[GenerationPrediction]) -> dict[str, int]:
        """Return how many texts end at the largest length."""
        limit = f"task.generation.max_target_length={self.search.max_target_length}"
        fault = f"were cut at {limit}, before the model ended them; raise it"
        return {fault: sum(prediction.at_limit for prediction in predictions)}

    def with_logits(self) -> AnyLogitsTask:
        """Raise InputError: there are no logits for a whole input."""
        raise InputError(
            "logits: this model writes text token by token; use load_model, for an encoder-decoder with decoder_input_ids"
        )

    def row(self, example: GenerationExample, prediction: GenerationPrediction) -> Row:
        """Return the id, the text, its score, if there are several texts all of them, and whether it ends at the largest length."""
        row = asdict(prediction)
        if not prediction.candidates:
            del row["candidates"]
        return row

    def verdict(self, example: GenerationExample, prediction: GenerationPrediction) -> Verdict:
        """Return the text."""
        return Verdict(prediction.text or "an empty text")

    def page_inputs(self) -> list[object]:
        """Return examples of sources."""
        return ["The bridge was built in Prague.", "It rained all day, so we stayed at home."]

    def content(self, example: GenerationExample) -> Content:
        """Return the source."""
        return example.source

    def labels_of(self, example: GenerationExample) -> Sequence[str | None]:
        """Return whether there is a target."""
        return [None if example.target is None else "with a target"]

    def classes_of(self, example: GenerationExample) -> Sequence[str]:
        """Return nothing: targets are no classes."""
        return ()

    def reference(self, example: GenerationExample) -> str | None:
        """Return the target."""
        return example.target

    def fitting_metrics(self) -> TaskMetrics:
        """Return the metrics of texts."""
        metrics.require_packages(self.config.metrics)
        return TaskMetrics("texts", tuple(TEXT_METRICS))

    def unmeasured(self, examples: Sequence[GenerationExample]) -> list[str]:
        """Return what BLEU and ROUGE cannot measure: texts of fewer than four words, and of letters other than a to z."""
        targets, lines = [target for target in _targets(examples) if target.strip()], list[str]()
        num_short = sum(len(BLEU_WORD.findall(target)) < BLEU_RUN for target in targets)
        if "bleu" in self.config.metrics and num_short > MOST_SHORT * len(targets):
            lines.append(
                f"bleu compares runs of {BLEU_RUN} words between blanks, and {num_short / len(targets):.0%} of the targets have fewer words: "
                "a perfect model may have a BLEU of 0"
            )
        letters = [letter for text in targets for letter in text.lower() if letter.isalnum()]
        unread = sum(not letter.isascii() for letter in letters)
        if "rouge" in self.config.metrics and unread > MOST_UNREAD * len(letters):
            lines.append(
                f"rouge reads only a to z and digits, and {unread / len(letters):.0%} of the letters in the targets are others"
            )
        return [f"{line}; set task.metrics=[chrf,exact_match_text] task.best_metric=chrf" for line in lines]

    def compared(
        self, examples: Sequence[GenerationExample], predictions: Sequence[GenerationPrediction]
    ) -> tuple[metrics.Inputs, metrics.Inputs]:
        """Return the texts."""
        return [prediction.text for prediction in predictions], _targets(examples)

    def loss_scores(self, loss: float) -> dict[str, float]:
        """Return the perplexity of the references, without label smoothing."""
        return {"perplexity": metrics.perplexity(loss)}

    def review(self, examples: Sequence[GenerationExample], predictions: Sequence[GenerationPrediction]) -> Review:
        """Return the score by source length (Bahdanau et al. 2015, figure 2), and the wrong texts with the highest model scores."""
        best = self.config.best_metric
        only = self.changed(metrics=tuple(name for name in self.config.metrics if best in keys_of([name])))
        lengths = np.array([len(example.source.split()) for example in examples])
        borders = np.unique(np.quantile(lengths, np.arange(1, NUM_GROUPS) / NUM_GROUPS, method="inverted_cdf"))
        group = np.searchsorted(borders, lengths)
        rows, by_length = [], {}
        for number in range(len(borders) + 1):
            own: list[int] = np.flatnonzero(group == number).tolist()
            if own:
                scores = only.score([examples[n] for n in own], [predictions[n] for n in own])
                words = f"{lengths[own].min()} to {lengths[own].max()}"
                by_length[words] = scores[best]
                rows.append([words, f"{scores[best]:.4g}", f"{len(own):,}"])
        wrong = [pair for pair in zip(predictions, examples, strict=True) if pair[0].text != pair[1].target]
        surest = sorted(wrong, key=lambda pair: -pair[0].score)[:NUM_MISTAKES]
        shown = [[e.id, e.source, e.target or "", p.text, f"{p.score:.3f}"] for p, e in surest]
        title = f"The {len(shown)} texts with the highest scores that differ from their references"
        groups = {"title": "By length of the source", "columns": ["words", best, "texts"], "rows": rows}
        columns = ["id", "source", "reference", "predicted", "score"]
        return {
            "by_length": by_length,
            "groups": [groups],
            "mistakes": {"title": title, "columns": columns, "rows": shown},
        }


def _targets(examples: Sequence[GenerationExample]) -> list[str]:
    return [example.target or "" for example in examples]
