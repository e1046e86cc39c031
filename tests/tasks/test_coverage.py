"""What features show of their examples, and that they are the same however many are made together."""

import re

import pytest
from task_configs import task_config

from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import SPECIAL_TOKENS, wordpiece
from bertkit.jobs.task_data import Coverage, TaskSplit
from bertkit.tasks import task as task_module
from bertkit.tasks.batching import FeatureBatches
from bertkit.tasks.choice import ChoiceExample
from bertkit.tasks.generation import GenerationExample
from bertkit.tasks.reading.source import SplitExamples
from bertkit.tasks.sequence import SequenceExample
from bertkit.tasks.spans.examples import SpanExample
from bertkit.tasks.trainable import task_of
from bertkit.tasks.words import TaggingExample

TOKENIZER = wordpiece({token: n for n, token in enumerate([*SPECIAL_TOKENS, *"abcde"])}, lowercase=True)


def sequence(number: int, text: str, pair: str | None = None) -> SequenceExample:
    return SequenceExample(f"id{number}", text, pair, "x")


COVERED = [
    # task, examples -> features, truncated, pairs, unknown
    ("sequence", [sequence(0, "a ж"), sequence(1, "ж ж"), sequence(2, ""), sequence(3, "a " * 9)], (4, 1, False, [1])),
    ("sequence", [sequence(0, "ж", "a"), sequence(1, "a", "ж"), sequence(2, "a", "")], (3, 0, True, [0, 1])),
    ("tagging", [TaggingExample("id0", ("a", "ж"), None), TaggingExample("id1", ("ж",) * 9, None)], (3, 0, False, [1])),
    # a window of nothing but [UNK] is not yet a context of it; a question is
    ("spans", [SpanExample("id0", "a", "b b b b ж ж ж ж", None), SpanExample("id1", "ж", "a", None)], (3, 0, True, [1])),
    ("choice", [ChoiceExample("id0", "a", ("ж", "b"), 0), ChoiceExample("id1", "a", ("ж", "ж"), 0)], (4, 0, True, [1])),
]  # fmt: skip
SMALL = {"spans": ["task.spans.max_query_length=1", "task.spans.window_step=4"]}


@pytest.mark.parametrize("at_once", [1, 2, 4096])
@pytest.mark.parametrize(("name", "examples", "expected"), COVERED)
def test_coverage_counts_cut_texts_and_unknown_tokens(
    name: str, examples: list, expected: tuple, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = task_config(name, "task.max_seq_length=8", *SMALL.get(name, []))
    task = task_of(config, ("x", "y") if name == "sequence" else ())
    whole = list(task.each_feature(examples, TOKENIZER))
    monkeypatch.setattr(task_module, "TOKENIZED_AT_ONCE", at_once)
    coverage = Coverage(TOKENIZER.facts)
    assert list(coverage.counted(task.each_feature(examples, TOKENIZER))) == whole
    assert (coverage.num_features, coverage.num_truncated, coverage.has_pairs, coverage.unknown) == expected
    share, line = coverage.warnings(examples, "dev.tsv (tsv)")
    assert "% of the tokens are unknown, [UNK]; choose a model for their language" in share
    ids = ", ".join(f"id{number}" for number in expected[3])
    assert re.match(rf"dev\.tsv \(tsv\): {len(expected[3])} examples? with ", line)
    assert f"ids {ids})" in line


@pytest.mark.parametrize(("num_long", "is_said"), [(0, False), (1, False), (4, True), (12, True)])
def test_many_cut_texts_are_said_with_the_setting_to_raise(num_long: int, is_said: bool) -> None:
    task, coverage = task_of(task_config("sequence", "task.max_seq_length=8"), ("x", "y")), Coverage(TOKENIZER.facts)
    examples = [sequence(n, "a " * (9 if n < num_long else 3)) for n in range(12)]
    list(coverage.counted(task.each_feature(examples, TOKENIZER)))
    lines = TaskSplit(SplitExamples(task, "dev.tsv (tsv)", examples, "dev.tsv"), coverage).describe()
    cut = f"{num_long} of 12 examples were truncated by task.max_seq_length=8; raise it or set task.long_texts=mean"
    assert (f"warning: dev.tsv (tsv): {cut}" in lines) == is_said


@pytest.mark.parametrize(
    ("lengths", "limits"),
    [
        ((9, 3), "task.max_seq_length=8; raise it"),
        ((3, 9), "task.generation.max_target_length=6; raise it"),
        ((9, 9), "task.generation.max_target_length=6; raise it"),
        (None, "task.max_seq_length=8 or task.generation.max_target_length=6; raise them"),
    ],
)
def test_cut_targets_are_said_with_their_own_setting(lengths: tuple[int, int] | None, limits: str) -> None:
    """To raise that of the sources changed nothing."""
    config = task_config("translation", "task.max_seq_length=8", "task.generation.max_target_length=6")
    task, coverage = task_of(config), Coverage(TOKENIZER.facts)
    both = [lengths or (9, 3), lengths or (3, 9)]
    examples = [GenerationExample(str(n), "a " * source, "a " * target) for n, (source, target) in enumerate(both)]
    list(coverage.counted(task.each_feature(examples, TOKENIZER)))
    lines = TaskSplit(SplitExamples(task, "dev.tsv (tsv)", examples, "dev.tsv"), coverage).describe()
    assert f"warning: dev.tsv (tsv): 2 of 2 examples were truncated by {limits}" in lines


@pytest.mark.parametrize(("num_known", "share"), [(20, None), (19, "5%"), (3, "25%")])
def test_many_unknown_tokens_are_said(num_known: int, share: str | None) -> None:
    """An English model splits emoji and Chinese into [UNK]."""
    examples, coverage = [sequence(0, "a " * num_known + "ж")], Coverage(TOKENIZER.facts)
    task = task_of(task_config("sequence"), ("x", "y"))
    list(coverage.counted(task.each_feature(examples, TOKENIZER)))
    lines = coverage.warnings(examples, "dev.tsv")
    assert [line.split(" of the tokens are unknown")[0] for line in lines] == ([f"dev.tsv: {share}"] if share else [])


CUT = [
    # a question of three pieces, of which two are kept, twice for its two windows; a word of nine, of which six fit
    ("spans", [SpanExample("id0", "a b c", "a b c d e", None), SpanExample("id1", "a b", "a", None)], [1, 1, 0]),
    ("tagging", [TaggingExample("id0", ("abcde", "abcdeabcd"), None), TaggingExample("id1", ("a",), None)], [0, 3, 0]),
]


@pytest.mark.parametrize(("name", "examples", "num_cut"), CUT)
def test_what_is_cut_is_counted(name: str, examples: list, num_cut: list[int]) -> None:
    settings = {"spans": ["task.spans.max_query_length=2", "task.spans.window_step=2"]}
    task = task_config(name, "task.max_seq_length=8", *settings.get(name, []))
    pieces = wordpiece(
        {token: n for n, token in enumerate([*SPECIAL_TOKENS, *"abcde", *(f"##{c}" for c in "abcde")])}, lowercase=True
    )
    coverage = Coverage(pieces.facts)
    features = list(coverage.counted(task_of(task).each_feature(examples, pieces)))
    assert [feature.num_cut for feature in features] == num_cut
    assert coverage.num_truncated == 1


def test_ordinary_text_gives_no_coverage_warning() -> None:
    coverage = Coverage(TOKENIZER.facts)
    task = task_of(task_config("sequence"), ("x",))
    batches = FeatureBatches(coverage.counted(task.each_feature([sequence(0, "a")], TOKENIZER)), "sequence")
    assert (len(batches), coverage.warnings([], "x")) == (1, [])


def test_another_number_of_endings_is_seen_in_any_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "TOKENIZED_AT_ONCE", 1)
    examples = [ChoiceExample("id0", "a", ("a", "b"), 0), ChoiceExample("id1", "a", ("a", "b", "c"), 0)]
    with pytest.raises(InputError, match="example id1: 3 endings"):
        list(task_of(task_config("choice")).each_feature(examples, TOKENIZER))
