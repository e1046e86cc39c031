"""Windows, gold positions and answers: by hand, beside the rules written down a second time, and on real questions."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from conftest import real_data
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import SPECIAL_TOKENS, Tokenizer, load_tokenizer, wordpiece
from bertkit.tasks.feature import SpanFeature
from bertkit.tasks.scoring.squad import normalize_answer
from bertkit.tasks.spans import answers
from bertkit.tasks.spans import examples as span_examples
from bertkit.tasks.spans.answers import HIGHEST_ODDS, SpanPrediction
from bertkit.tasks.spans.examples import Answer, SpanExample
from bertkit.tasks.spans.task import SQUAD_FILES
from bertkit.tasks.task_config import SpansConfig

TOKENS = [*SPECIAL_TOKENS, *"abcdefgq", *(f"##{letter}" for letter in "abcdefgq"), ".", "?"]
LETTERS = wordpiece({token: number for number, token in enumerate(TOKENS)}, lowercase=True)


SETTINGS = SpansConfig(
    window_step=1, max_query_length=64, n_best=20, max_answer_length=30, null_score_diff_threshold=0.0, is_always_answered=False
)  # fmt: skip


def make_features(
    examples: list[SpanExample], tokenizer: Tokenizer, max_seq_length: int, **changes: Any
) -> list[SpanFeature]:
    chosen = dataclasses.replace(SETTINGS, **changes)
    return span_examples.make_features(examples, tokenizer, max_seq_length, chosen)


def answers_of(
    examples: list[SpanExample], features: list[SpanFeature], logits: Any, with_null: bool, **changes: Any
) -> list[SpanPrediction]:
    settings = dataclasses.replace(SETTINGS, is_always_answered=not with_null, **changes)
    return answers.answers_of(examples, features, logits, settings)


def example(context: str, answer: str | None = None, start: int | None = None, question: str = "q") -> SpanExample:
    """`answer`: None for not known, "" for none in the context."""
    answers: tuple[Answer, ...] | None = None
    if answer is not None:
        answers = (Answer(answer, context.index(answer) if start is None else start),) if answer else ()
    return SpanExample("1", question, context, answers)


def shown(feature: SpanFeature) -> str:
    return " ".join(TOKENS[number] for number in feature.input_ids)


# ---- features


def test_a_feature_by_hand() -> None:
    sample = example("A bc,  dé.", "dé")
    (feature,) = make_features([sample], LETTERS, 83, window_step=5)
    assert shown(feature) == "[CLS] q [SEP] a b ##c [UNK] d ##e . [SEP]"
    assert feature.token_type_ids == [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    places = [None if place is None else (place.start, place.end) for place in feature.origins]
    assert places == [None, None, None, (0, 1), (2, 3), (3, 4), (4, 5), (7, 8), (8, 9), (9, 10), None]
    assert feature.label == (7, 8)


def test_the_name_of_a_special_token_is_that_token() -> None:
    """In a question and a context, as in transformers, and it has its place."""
    (feature,) = make_features([example("a [SEP]bc", "bc", question="q [MASK]")], LETTERS, 83, window_step=5)
    assert shown(feature) == "[CLS] q [MASK] [SEP] a [SEP] b ##c [SEP]"
    assert feature.token_type_ids == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    places = [None if place is None else (place.start, place.end) for place in feature.origins]
    assert places == [None, None, None, None, (0, 1), (2, 7), (7, 8), (8, 9), None]
    assert feature.label == (6, 7)


GOLD = [
    # answer, start -> label of each window of three pieces; "a bcd e f", overlapping by 1: "a b ##c", "##c ##d e", "e f"
    ("a", 0, [(3, 3), (0, 0), (0, 0)]),
    ("bcd", 2, [(0, 0), (0, 0), (0, 0)]),  # wholly in no window
    ("bc", 2, [(4, 5), (0, 0), (0, 0)]),  # inside of a word
    ("d e", 4, [(0, 0), (4, 5), (0, 0)]),
    ("e", 6, [(0, 0), (5, 5), (3, 3)]),
    ("e f", 6, [(0, 0), (0, 0), (3, 4)]),
    ("", 0, [(0, 0), (0, 0), (0, 0)]),
    (" ", 1, [(0, 0), (0, 0), (0, 0)]),  # no piece at all
    (None, 0, [None, None, None]),
]


@pytest.mark.parametrize(("answer", "start", "expected"), GOLD)
def test_gold_answers_become_window_positions(answer: str | None, start: int, expected: list[Any]) -> None:
    sample = example("a bcd e f", answer, start)
    features = make_features([sample], LETTERS, 7, max_query_length=1, window_step=2)
    texts = [shown(feature).removeprefix("[CLS] q [SEP] ") for feature in features]
    assert texts == ["a b ##c [SEP]", "##c ##d e [SEP]", "e f [SEP]"]
    assert [feature.label for feature in features] == expected


def test_the_piece_with_most_context_by_hand() -> None:
    """Seven pieces, windows abcde, cdefg of 5: c has 2 and 0, d 1 and 1 (the first of equals), e 0 and 2."""
    features = make_features([example("a b c d e f g")], LETTERS, 9, window_step=2, max_query_length=1)
    marks = [[place.is_max_context for place in feature.origins if place] for feature in features]
    assert marks == [[True, True, True, True, False], [False, False, True, True, True]]
    # A piece with 75 and 76 around it: 0.01 * length prefers the longer window, 75 + 3.02 to 76 + 1.60.
    longer, shorter = span_examples._max_contexts([(0, 302), (150, 310)], 310)
    assert (longer[226], shorter[226 - 150]) == (True, False)
    assert (longer[227], shorter[227 - 150]) == (False, True)


def test_a_step_longer_than_a_window_leaves_nothing_out() -> None:
    features = make_features([example("a b c d e f g")], LETTERS, 7, window_step=9, max_query_length=1)
    assert [shown(feature)[len("[CLS] q [SEP] ") : -len(" [SEP]")] for feature in features] == ["a b c", "d e f", "g"]


BAD = [
    ({"max_query_length": 9}, "max_query_length=9: leaves no room .*max_seq_length=12; set 0 to 8"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_impossible_span_settings_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        make_features([example("a")], LETTERS, 12, **{"max_query_length": 6, **changes})
    assert "\n" not in str(error.value)


def squad(version: str) -> list[SpanExample]:
    content = json.loads(real_data("squad", f"dev-v{version}.public.json").read_text(encoding="utf-8"))
    examples = []
    for paragraph in (paragraph for article in content["data"] for paragraph in article["paragraphs"]):
        for each in paragraph["qas"]:
            answers = tuple(Answer(answer["text"], answer["answer_start"]) for answer in each["answers"])
            examples.append(SpanExample(each["id"], each["question"], paragraph["context"], answers))
    return examples


def uncased() -> Tokenizer:
    return load_tokenizer(real_data("vocab", "bert-base-uncased", "vocab.txt"))


def test_windows_are_googles_and_hugging_faces() -> None:
    """Every 23rd question: run_squad.py's loop, and the fast tokenizer's own overflowing tokens."""
    from transformers import BertTokenizer

    examples, tokenizer = squad("1.1")[::23], uncased()
    theirs = BertTokenizer(vocab=dict(tokenizer.backend.get_vocab()), do_lower_case=True)
    for max_seq_length, size in ((384, 128), (128, 32)):
        by_step = make_features(examples, tokenizer, max_seq_length, window_step=size)
        expected = 0
        for each in examples:
            question, context = tokenizer.encode_document([each.question, each.context])
            room = max_seq_length - min(len(question), 64) - 3
            start, windows = 0, 0
            while start < len(context):
                length = min(len(context) - start, room)
                windows += 1
                if start + length == len(context):
                    break
                start += min(length, size)
            expected += windows
        assert len(by_step) == expected
        for each in examples[::7]:  # their stride is what two windows share
            (question,) = tokenizer.encode_document([each.question])
            stride = max(0, max_seq_length - len(question) - 3 - size)
            cut = {"truncation": "only_second", "max_length": max_seq_length, "return_overflowing_tokens": True}
            encoded = theirs(each.question, each.context, stride=stride, **cut)
            ours = make_features([each], tokenizer, max_seq_length, window_step=size)
            assert [feature.input_ids for feature in ours] == encoded["input_ids"]
            assert [feature.token_type_ids for feature in ours] == encoded["token_type_ids"]


# ---- answers


def logits_for(feature: SpanFeature, start: int, end: int, height: float = 9.0) -> NDArray[np.float64]:
    logits = np.zeros((len(feature.input_ids), 2))
    logits[start, 0] = logits[end, 1] = height
    return logits


@pytest.mark.parametrize(
    ("version", "every", "most_lost"), [pytest.param("1.1", 1, 6, marks=pytest.mark.slow), ("2.0", 3, 2)]
)
def test_gold_answers_survive_windows_and_back(version: str, every: int, most_lost: int) -> None:
    """Logits that say the gold positions give the gold answers.

    All do but those of the few questions whose gold answer begins or ends inside of a piece ("western Europe" of "western
    European").
    """
    examples, tokenizer = squad(version)[::every], uncased()
    features = make_features(examples, tokenizer, 384, window_step=128)
    logits = [logits_for(feature, *feature.label) for feature in features]
    actual = answers_of(examples, features, logits, with_null=version == "2.0", max_answer_length=384)
    lost = []
    for each, prediction in zip(examples, actual, strict=True):
        accepted = {normalize_answer(answer.text) for answer in each.answers or ()} or {""}
        if normalize_answer(prediction.text) not in accepted:
            assert prediction.text in each.context
            lost.append(prediction.text)
    assert len(examples) > 2900
    assert len(lost) <= most_lost, lost


def test_answers_are_slices_of_the_context() -> None:
    sample = example("A  B,\tcd é.")
    features = make_features([sample], LETTERS, 83, window_step=9)
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(50):
        logits = rng.normal(size=(len(features[0].input_ids), 2))
        (prediction,) = answers_of([sample], features, [logits], with_null=True)
        for candidate in prediction.n_best:
            assert sample.context[candidate.start : candidate.end] == candidate.text
            seen.add(candidate.text)
    assert "A  B,\tcd é." in seen


# the e of the second text has an accent of its own; U+0941 is a vowel sign without a combining class
@pytest.mark.parametrize("context", ["a \u00e9 b", "a e\u0301 b", "a e\u0941\u0302 b", "e\u0301"])
def test_an_answer_has_the_marks_that_the_tokenizer_removes(context: str) -> None:
    """Google's script, too, answers with the whole word of the context."""
    (word,) = [each for each in context.split() if each not in "ab"]
    sample = example(context, word)
    (feature,) = make_features([sample], LETTERS, 83)
    assert isinstance(feature.label, tuple)
    (prediction,) = answers_of([sample], [feature], [logits_for(feature, *feature.label)], with_null=True)
    assert (prediction.text, prediction.chosen.end) == (word, context.index(word) + len(word))


def test_a_mark_with_a_piece_of_its_own_is_no_part_of_another_answer() -> None:
    cased = wordpiece({token: n for n, token in enumerate([*TOKENS, "##\u0301"])}, lowercase=False)
    sample = example("a e\u0301 b", "e\u0301")
    (feature,) = make_features([sample], cased, 83)
    assert isinstance(feature.label, tuple)
    first, last = feature.label
    for end, answer in ((first, "e"), (last, "e\u0301")):
        (prediction,) = answers_of([sample], [feature], [logits_for(feature, first, end)], with_null=True)
        assert prediction.text == answer


def test_null_odds_and_the_threshold_by_hand() -> None:
    sample = example("a b")
    (feature,) = make_features([sample], LETTERS, 7, window_step=2, max_query_length=1)
    logits = np.full((6, 2), -50.0)  # [CLS] q [SEP] a b [SEP]
    logits[0] = (1.0, 2.0)  # null: 3
    logits[3] = (2.0, -50.0)
    logits[4] = (0.0, 2.5)  # "a b": 4.5, "b": 2.5
    (prediction,) = answers_of([sample], [feature], [logits], with_null=True, n_best=3)
    assert prediction.text == "a b"
    assert prediction.null_odds == pytest.approx(-1.5)
    assert prediction.no_answer_probability == pytest.approx(math.exp(3) / (math.exp(3) + math.exp(4.5)))
    assert [candidate.text for candidate in prediction.n_best] == ["a b", "", "b"]
    weights = np.exp([4.5, 3.0, 2.5])
    assert [candidate.probability for candidate in prediction.n_best] == pytest.approx(list(weights / weights.sum()))
    assert (prediction.n_best[0].start_logit, prediction.n_best[0].end_logit) == (2.0, 2.5)
    for threshold, text in ((-1.6, ""), (-1.5, "a b"), (-1.4, "a b")):
        options = {"with_null": True, "null_score_diff_threshold": threshold}
        assert answers_of([sample], [feature], [logits], **options)[0].text == text
    (without,) = answers_of([sample], [feature], [logits], with_null=False, null_score_diff_threshold=-9.0)
    assert without.text == "a b"
    assert "" not in [candidate.text for candidate in without.n_best]
    assert SQUAD_FILES["predictions.json"]([prediction]) == {"1": "a b"}
    assert SQUAD_FILES["null_odds.json"]([prediction]) == {"1": prediction.null_odds}
    (first, *_) = SQUAD_FILES["nbest_predictions.json"]([prediction])["1"]
    probability = prediction.n_best[0].probability
    assert first == {"text": "a b", "probability": probability, "start_logit": 2.0, "end_logit": 2.5}


def test_no_answer_scores_the_least_over_the_windows() -> None:
    sample = example("a b c d e f g")
    features = make_features([sample], LETTERS, 9, window_step=2, max_query_length=1)
    logits = [np.zeros((9, 2)), np.zeros((9, 2))]
    logits[0][0], logits[1][0] = (7.0, 1.0), (2.0, 2.5)
    (prediction,) = answers_of([sample], features, logits, with_null=True)
    assert prediction.null_odds == pytest.approx(4.5)
    null = next(candidate for candidate in prediction.n_best if not candidate.text)
    assert (null.start_logit, null.end_logit) == (2.0, 2.5)


def test_a_probability_of_no_answer_that_is_next_to_nothing() -> None:
    (feature,) = make_features([example("a")], LETTERS, 9, window_step=5, max_query_length=1)
    (prediction,) = answers_of([example("a")], [feature], [logits_for(feature, 3, 3, 1e4)], with_null=True)
    assert (prediction.text, prediction.null_odds, prediction.no_answer_probability) == ("a", -2e4, 0.0)


def test_n_best_has_no_text_twice() -> None:
    sample = example("a a a a")
    (feature,) = make_features([sample], LETTERS, 9, window_step=5, max_query_length=1)
    (prediction,) = answers_of([sample], [feature], [np.zeros((8, 2))], with_null=False)
    texts = [candidate.text for candidate in prediction.n_best]
    assert sorted(texts) == sorted(["a", "a a", "a a a", "a a a a"])


# ---- the rules a second time


def plain_rules(
    sample: SpanExample,
    features: list[SpanFeature],
    logits: list[NDArray[np.float64]],
    n_best: int,
    longest: int,
    null: bool,
) -> tuple[list[tuple[str, float]], float]:
    """run_squad.py's selection in loops: (texts with their scores, null score)."""
    candidates: list[tuple[float, str]] = []
    null_score = math.inf
    for feature, scores in zip(features, logits, strict=True):
        tops = []
        for column in (0, 1):
            ranked = sorted(enumerate(scores[:, column].tolist()), key=lambda item: item[1], reverse=True)
            tops.append([position for position, _ in ranked[:n_best]])
        null_score = min(null_score, float(scores[0, 0] + scores[0, 1]))
        for start in tops[0]:
            for end in tops[1]:
                if feature.origins[start] is None or feature.origins[end] is None:
                    continue
                if not feature.origins[start].is_max_context or end < start or end - start + 1 > longest:
                    continue
                text = sample.context[feature.origins[start].start : feature.origins[end].end]
                candidates.append((float(scores[start, 0] + scores[end, 1]), text))
    if null:
        candidates.append((null_score, ""))
    chosen: list[tuple[str, float]] = []
    for value, text in sorted(candidates, key=lambda item: item[0], reverse=True):
        if len(chosen) < n_best and text not in [known for known, _ in chosen]:
            chosen.append((text, value))
    if null and "" not in [text for text, _ in chosen]:
        chosen.append(("", null_score))
    return chosen, null_score


@settings(max_examples=60, deadline=None)
@given(
    st.text("abcd .é\u4e00", max_size=31), st.integers(0, 2**32 - 1),
    st.integers(1, 5), st.integers(1, 7), st.integers(1, 9), st.booleans(),
)  # fmt: skip
def test_answers_follow_the_rules(context: str, seed: int, step: int, n_best: int, longest: int, null: bool) -> None:
    sample = example(context)
    features = make_features([sample], LETTERS, 11, window_step=step, max_query_length=2)
    rng = np.random.default_rng(seed)
    logits = [rng.integers(-9, 9, (len(feature.input_ids), 2)) / 2 for feature in features]  # with ties
    options = {"with_null": null, "n_best": n_best, "max_answer_length": longest}
    (prediction,) = answers_of([sample], features, logits, **options)
    expected, null_score = plain_rules(sample, features, logits, n_best, longest, null)
    if not expected:
        assert (prediction.text, [each.text for each in prediction.n_best]) == ("", [""])
        return
    assert [(each.text, each.start_logit + each.end_logit) for each in prediction.n_best] == expected
    best = next(((text, value) for text, value in expected if text), None)
    assert prediction.null_odds == (HIGHEST_ODDS if best is None else null_score - best[1])
    assert prediction.text == ("" if best is None or (null and null_score > best[1]) else best[0])


# ---- what must not crash


@pytest.mark.parametrize("with_null", [False, True])
@pytest.mark.parametrize("fill", [0.0, math.nan, math.inf, -math.inf, 1e38])
@pytest.mark.parametrize("sample", [
    example("", question="q " * 300),
    example("a b c", question="q " * 300),
    example("", question=""),
    example(" \t\u200b\n", question="\x07"),
    example("a " * 97, question="?"),
], ids=["long question, empty context", "long question", "nothing", "no piece", "windows"])  # fmt: skip
def test_anything_gets_an_answer_or_none(sample: SpanExample, fill: float, with_null: bool) -> None:
    features = make_features([sample], LETTERS, 83, window_step=5)
    assert all(len(feature.input_ids) <= 83 for feature in features)
    logits = [np.full((len(feature.input_ids), 2), fill, np.float32) for feature in features]
    (prediction,) = answers_of([sample], features, logits, with_null=with_null)
    if not any(letter in sample.context for letter in "abc"):
        assert prediction.text == ""
        assert prediction.null_odds == HIGHEST_ODDS
        assert prediction.no_answer_probability == 1.0
    numbers = [prediction.null_odds, prediction.no_answer_probability]
    for candidate in prediction.n_best:
        numbers += [candidate.probability, candidate.start_logit, candidate.end_logit]
    assert np.isfinite(numbers).all()
    assert sum(candidate.probability for candidate in prediction.n_best) == pytest.approx(1)
    json.dumps(dataclasses.asdict(prediction), allow_nan=False)


def test_a_window_whose_best_positions_are_all_special() -> None:
    sample = example("a b")
    features = make_features([sample], LETTERS, 9, window_step=3, max_query_length=1)
    logits = [np.array([[9.0, 9.0], [8, 8], [7, 7], [0, 0], [0, 0], [6, 6]])]
    for with_null in (False, True):
        (prediction,) = answers_of([sample], features, logits, with_null=with_null, n_best=3)
        assert (prediction.text, prediction.no_answer_probability) == ("", 1.0)
