"""The task of answering questions: scores, and the rows and files of predictions."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from bertkit.base import plugins
from bertkit.base.files import to_json
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.tasks.feature import Logits, SpanFeature
from bertkit.tasks.reading.near_duplicates import Content
from bertkit.tasks.reading.reading import Reading
from bertkit.tasks.scoring import metrics, review
from bertkit.tasks.scoring.review import Review
from bertkit.tasks.scoring.sampled_metrics import SampledScores, squad_v2_best
from bertkit.tasks.scoring.squad import best_of, exact, f1
from bertkit.tasks.spans.answers import HIGHEST_ODDS, SpanCandidate, SpanPrediction, answers_of
from bertkit.tasks.spans.examples import SpanExample, make_features, read
from bertkit.tasks.task import ExtraFile, Mark, Row, Verdict
from bertkit.tasks.task_config import SpansConfig
from bertkit.tasks.trainable import HeadTask, TaskMetrics, is_constant, json_lines

NUM_ANSWERS = 5  # of a verdict


@plugins.option("task", "spans")
class SpansTask(HeadTask[SpanExample, SpanFeature, SpanPrediction]):
    """Questions about contexts."""

    kind = "spans"
    head = "span"
    unit = "question"
    formats = ("jsonl", "json", "csv", "tsv", "parquet", "xlsx")
    text_columns = ("question", "context")

    @property
    def settings(self) -> SpansConfig:
        """The settings `task.spans`."""
        assert self.config.spans is not None, "checked by TaskConfig"
        return self.config.spans

    @property
    def needs_pair(self) -> bool:
        """Return True: a question has a context."""
        return True

    def read(self, reading: Reading) -> Iterator[SpanExample]:
        """Read a question from each row; raises InputError if a column is missing or a row is wrong."""
        return read(reading, self.settings.is_always_answered)

    def features(self, examples: Sequence[SpanExample], tokenizer: Tokenizer) -> list[SpanFeature]:
        """Turn each question into one feature for each window of its context."""
        return make_features(examples, tokenizer, self.config.max_seq_length, self.settings)

    def predictions(
        self, examples: Sequence[SpanExample], features: Sequence[SpanFeature], logits: Sequence[Logits]
    ) -> list[SpanPrediction]:
        """Predict the answer to each question, from the logits (T, 2) of each feature."""
        return answers_of(examples, features, logits, self.settings)

    def stacked(self, logits: Sequence[Logits]) -> Sequence[Logits]:
        """Return the logits of features, (T, 2) each."""
        return logits

    def row(self, example: SpanExample, prediction: SpanPrediction) -> Row:
        """Return the id, the answer with its probability and place, and the probability of no answer."""
        chosen = prediction.chosen
        return {
            "id": example.id,
            "text": prediction.text,
            "probability": chosen.probability,
            "start": chosen.start if prediction.text else None,
            "end": chosen.end if prediction.text else None,
            "no_answer_probability": prediction.no_answer_probability,
        }

    def verdict(self, example: SpanExample, prediction: SpanPrediction) -> Verdict:
        """Return the answer, marked in its context, and the probabilities of the best answers and of none."""
        chosen = prediction.chosen
        best = [(candidate.text or "no answer", candidate.probability) for candidate in prediction.n_best]
        marks = [Mark(chosen.start, chosen.end)] if prediction.text else []
        return Verdict(prediction.text or "no answer in this text", best[:NUM_ANSWERS], example.context, marks)

    def alternatives(self, prediction: SpanPrediction, num_alternatives: int) -> list[Row]:
        """Return the best answers, the best first."""
        best = [candidate for candidate in prediction.n_best if candidate.text][:num_alternatives]
        return [{"text": c.text, "probability": c.probability, "start": c.start, "end": c.end} for c in best]

    def extra_files(self) -> Sequence[ExtraFile[SpanExample, SpanPrediction]]:
        """Return the files that the SQuAD scripts read."""
        return [_beside(name) for name in SQUAD_FILES]

    def page_inputs(self) -> list[object]:
        """Return an example of a question and a context."""
        return [["Where was the bridge built?", "The bridge was built in Prague in 1357. It has sixteen arches."]]

    def content(self, example: SpanExample) -> Content:
        """Return the context."""
        return example.context

    def labels_of(self, example: SpanExample) -> Sequence[str | None]:
        """Return whether the question has an answer."""
        return [None if example.answers is None else "answered" if example.answers else "unanswerable"]

    def classes_of(self, example: SpanExample) -> Sequence[str]:
        """Return nothing: answers are no classes."""
        return ()

    def is_labelled(self, example: SpanExample) -> bool:
        """Whether the answers are known."""
        return example.answers is not None

    def reference(self, example: SpanExample) -> list[str]:
        """Return the texts of the accepted answers."""
        return [answer.text for answer in example.answers or ()]

    def fitting_metrics(self) -> TaskMetrics:
        """Return the metrics of SQuAD 1.1 or 2.0."""
        if self.settings.is_always_answered:
            return TaskMetrics("answers to every question", ("squad", "squad_v2"))
        return TaskMetrics("answers, or none", ("squad_v2",))

    def compared(
        self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
    ) -> tuple[Mapping[str, str], Mapping[str, Sequence[str]]]:
        """Return the answers and the accepted answers, by question id."""
        return {p.id: p.text for p in predictions}, {example.id: self.reference(example) for example in examples}

    def score(self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> dict[str, float]:
        """Score the answers, and search the thresholds for "no answer" that would have given the best scores.

        `best_*_thresh` is such a threshold as a probability, as in the official script. `best_*_null_score_diff_threshold` is the
        same threshold as a value for the setting `task.spans.null_score_diff_threshold`. The search takes the best answer to each
        question, also where "no answer" was predicted.
        """
        scores, accepted = super().score(examples, predictions), self.compared(examples, predictions)[1]
        if "squad_v2" not in self.config.metrics:
            return scores
        answers = {p.id: p.best_text for p in predictions}
        no_answer = {p.id: p.no_answer_probability for p in predictions}
        searched = metrics.score(["squad_v2"], answers, accepted, no_answer)
        best = {key: value for key, value in searched.items() if key.startswith("best_")}
        odds_of = {p.no_answer_probability: p.null_odds for p in sorted(predictions, key=lambda p: p.null_odds)}
        for name in ("exact", "f1"):
            # a threshold that is not the probability of any question predicts "" for all of them
            best[f"best_{name}_null_score_diff_threshold"] = odds_of.get(best[f"best_{name}_thresh"], -HIGHEST_ODDS)
        return scores | best

    def sampled(self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> SampledScores:
        """Return the scores as those of samples."""
        scores, accepted = super().sampled(examples, predictions), self.compared(examples, predictions)[1]
        if "squad_v2" not in self.config.metrics:
            return scores
        answers = {p.id: p.best_text for p in predictions}
        return scores | squad_v2_best(answers, accepted, {p.id: p.no_answer_probability for p in predictions})

    def is_degenerate(self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> bool:
        """Check whether all answers are equal."""
        return is_constant((prediction.text for prediction in predictions), (example.answers for example in examples))

    def predicted_labels(self, prediction: SpanPrediction) -> Sequence[str]:
        """Return whether there is an answer."""
        return ["answered" if prediction.text else "unanswerable"]

    def baselines(
        self, train: Sequence[SpanExample], examples: Sequence[SpanExample]
    ) -> dict[str, list[SpanPrediction]]:
        """Predict "no answer"."""
        return {"majority": [SpanPrediction(example.id, "", [], HIGHEST_ODDS, 1.0) for example in examples]}

    def eval_files(
        self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]
    ) -> dict[str, Iterable[str]]:
        """Return the answers as JSON lines, and the files that the SQuAD scripts read."""
        rows = [
            {
                "id": p.id,
                "text": p.text,
                "no_answer_probability": p.no_answer_probability,
                "reference": self.reference(e),
            }
            for e, p in zip(examples, predictions, strict=True)
        ]
        squad = {name: [to_json(content(predictions))] for name, content in SQUAD_FILES.items()}
        return {"predictions.jsonl": json_lines(rows), **squad}

    def review(self, examples: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> Review:
        """Return scores by answerability and by length of the question, calibration and mistakes."""
        cases, scores = [], []
        for example, p in zip(examples, predictions, strict=True):
            accepted = tuple(self.reference(example))
            confidence = next((candidate.probability for candidate in p.n_best if candidate.text == p.text), 1.0)
            cases.append(review.Case(example.id, {"question": example.question}, accepted, p.text, confidence))
            scores.append((best_of(exact, accepted or ("",), p.text), best_of(f1, accepted or ("",), p.text)))
        return review.review_of_answers(cases, scores)


def _logits(candidate: SpanCandidate) -> Row:
    names = ("text", "probability", "start_logit", "end_logit")
    return {name: vars(candidate)[name] for name in names}


# the content of the files that the SQuAD scripts read, with the same fields as in run_squad.py
SQUAD_FILES: dict[str, Callable[[Sequence[SpanPrediction]], Row]] = {
    "predictions.json": lambda predictions: {p.id: p.text for p in predictions},
    "nbest_predictions.json": lambda predictions: {p.id: [*map(_logits, p.n_best)] for p in predictions},
    "null_odds.json": lambda predictions: {p.id: p.null_odds for p in predictions},
}


def _beside(name: str) -> ExtraFile[SpanExample, SpanPrediction]:
    def text(_: Sequence[SpanExample], predictions: Sequence[SpanPrediction]) -> str:
        return json.dumps(SQUAD_FILES[name](predictions), indent=2, ensure_ascii=False)[2:-2]  # without braces

    return ExtraFile(name, text, ("{\n", ",\n", "\n}\n"), "{}\n")
