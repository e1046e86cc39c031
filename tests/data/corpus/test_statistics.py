"""What is wrong with a corpus: a finding for every fault, and none without."""

import numpy as np
import pytest

from bertkit.data.corpus import statistics as module
from bertkit.data.corpus.encoded_documents import EncodedDocuments, hash_sentence
from bertkit.data.corpus.statistics import CorpusStatistics, find_faults

UNK, SIZE = 1, 1_009
Corpus = list[tuple[list[str], list[list[int]]]]


def add(statistics: CorpusStatistics, documents: Corpus) -> None:
    filled = [
        (sentence, ids) for sentences, rows in documents for sentence, ids in zip(sentences, rows, strict=True) if ids
    ]
    encoded = EncodedDocuments(
        np.array([token for _, ids in filled for token in ids], np.int32),
        np.array([len(ids) for _, ids in filled]),
        np.array([sum(map(bool, ids)) for _, ids in documents]),
        np.zeros((len(documents), 32), np.uint8),
        np.array([any(ids) * sum(len(sentence.split(" ")) for sentence in sentences) for sentences, ids in documents]),
        np.frombuffer(b"".join(hash_sentence(sentence.encode()) for sentence, _ in filled), "<u8"),
        np.zeros((len(documents), 0), np.uint32),
        np.array(["\ufffd" in "".join(sentences) for sentences, _ in documents]),
    )
    statistics.add(encoded)


def gather(documents: Corpus) -> CorpusStatistics:
    statistics = CorpusStatistics(np.zeros(SIZE, np.int64), UNK)
    add(statistics, documents)
    return statistics


def names(documents: Corpus, blank_lines_expected: bool = True) -> list[str]:
    return [finding["name"] for finding in find_faults(gather(documents), blank_lines_expected)]


def make(num_documents: int = 13, num_sentences: int = 101, num_tokens: int = 11, *, unknown: float = 0.0, distinct: bool = True) -> Corpus:  # fmt: skip
    rng = np.random.default_rng(0)
    corpus = []
    for document in range(num_documents):
        numbers = [document * num_sentences + n if distinct else n % 7 for n in range(num_sentences)]
        ids = rng.integers(5, SIZE, (num_sentences, num_tokens))
        ids[rng.random(ids.shape) < unknown] = UNK
        corpus.append(([f"sentence number {n}" for n in numbers], ids.tolist()))
    return corpus


def test_a_clean_corpus_has_no_findings() -> None:
    assert names(make(unknown=0.008)) == []  # a few unknown tokens are none
    assert names(make()) == names(make(), blank_lines_expected=False) == []


@pytest.mark.parametrize(("corpus", "expected"), [
    (make(1, 2_003), ["one document"]),
    (make(2, 10_007), ["no blank lines"]),
    ([*make(), (["\u200b"], [[]])], ["empty documents"]),
    ([*make(), (["caf\ufffd"], [[7]])], ["lost characters"]),
    (make(distinct=False), ["duplicate lines"]),
    (make(unknown=0.02), ["unknown rate"]),
    (make(13, 3, 521), ["long lines"]),
    (make(1_009, 1), ["documents of one sentence"]),
    (make(3, 7), ["little text"]),
    (make(1, 7, distinct=False), ["one document", "little text"]),
])  # fmt: skip
def test_each_fault_is_found_alone(corpus: Corpus, expected: list[str]) -> None:
    assert names(corpus) == expected


def test_the_advice_fits_a_vocabulary_that_was_just_learned() -> None:
    for asked_size, coverage, size in (
        (None, "train one (tokenizer.vocab_size=)", "train one (tokenizer.vocab_size=)"),
        (SIZE, "raise tokenizer.coverage=", "raise tokenizer.vocab_size="),
        (SIZE + 1, "raise tokenizer.coverage=", "longer pieces need more text to learn from"),
    ):
        unknown, broken = find_faults(gather(make(unknown=0.02)), True, 0.51, asked_size=asked_size)
        assert (unknown["name"], broken["name"]) == ("unknown rate", "broken words")
        assert coverage in unknown["text"]
        assert broken["text"].endswith(size)


def test_statistics_are_as_by_hand() -> None:
    statistics = gather([(["a b", "c", "a b"], [[7, 8], [9], [7, 8]]), (["", "d"], [[], [UNK]]), (["\u200b"], [[]])])
    assert (statistics.documents, statistics.empty_documents) == (3, 1)
    assert (statistics.sentences, statistics.tokens, statistics.longest_document) == (4, 6, 3)
    facts = statistics.summary()
    assert facts["unknown_rate"] == 1 / 6
    assert facts["most_frequent_share"] == 2 / 6
    assert np.isclose(facts["unigram_entropy"], -(4 / 6 * np.log(2 / 6) + 2 / 6 * np.log(1 / 6)))
    assert np.isclose(facts["repeat_rate"], 1 / 4)


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_the_estimate_of_repeats_holds_when_the_sample_overflows(copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_SIZE", 1_000)
    statistics = CorpusStatistics(np.zeros(SIZE, np.int64), UNK)
    for _ in range(copies):
        for document in range(50):
            add(statistics, [([f"sentence {document} {n}" for n in range(500)], [[7]] * 500)])
    assert 300 < len(statistics._seen) <= 1_000
    assert abs(statistics.summary()["repeat_rate"] - (1 - 1 / copies)) < 0.01


def test_statistics_do_not_depend_on_order_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_SIZE", 1_000)
    runs: list[Corpus] = [[([f"sentence {n * run % 4_999}" for n in range(700)], [[7]] * 700)] for run in range(1, 14)]
    results = []
    for order in (runs, runs[::-1], [[document for run in runs for document in run]]):
        statistics = CorpusStatistics(np.zeros(SIZE, np.int64), UNK)
        for run in order:
            add(statistics, run)
        results.append(
            (statistics._threshold, statistics.summary()["repeat_rate"], statistics.words, statistics.longest_document)
        )
    assert results[0] == results[1] == results[2]
    assert results[0][0] < 1 << 64
