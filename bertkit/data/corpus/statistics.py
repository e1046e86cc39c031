"""What is counted of a corpus: tokens, words, repeated sentences."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bertkit.data.batches.collate import assemble
from bertkit.data.batches.instances import open_instances
from bertkit.data.batches.segments import document_pairs, select
from bertkit.data.corpus.encoded_documents import EncodedDocuments
from bertkit.data.corpus.manifest import SPLITS
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.data.data_config import SegmentsConfig

SAMPLE_SIZE = 1 << 18


@dataclass
class CorpusStatistics:
    """Counts of a corpus, gathered in one pass and in memory that does not grow with it.

    Repeated sentences are counted on a sample: only sentences whose hash falls below a threshold are remembered, and
    the threshold is halved whenever the sample is full, so the share of repeats stays an unbiased estimate.
    """

    token_counts: NDArray[np.int64]
    unknown_id: int
    documents: int = 0
    empty_documents: int = 0
    sentences: int = 0
    words: int = 0
    longest_document: int = 0
    _threshold: int = 1 << 64
    _seen: dict[int, int] = field(default_factory=dict)

    def add(self, encoded: EncodedDocuments) -> None:
        """Count some documents; their order, and how the corpus is cut into them, change nothing."""
        sentences = encoded.document_sentences
        self.documents += len(sentences)
        self.empty_documents += int((sentences == 0).sum())
        self.sentences += int(sentences.sum())
        self.longest_document = max(self.longest_document, int(sentences.max(initial=0)))
        self.token_counts += np.bincount(encoded.tokens, minlength=len(self.token_counts))
        self.words += int(encoded.num_words[0])
        sampled = encoded.sentence_hashes <= np.uint64(self._threshold - 1)
        hashes, counts = encoded.sentence_hashes[sampled].tolist(), encoded.hash_counts[sampled].tolist()
        for key, count in zip(hashes, counts, strict=True):
            self._seen[key] = self._seen.get(key, 0) + count
        while len(self._seen) > SAMPLE_SIZE:
            self._threshold //= 2
            self._seen = {key: count for key, count in self._seen.items() if key < self._threshold}

    @property
    def tokens(self) -> int:
        """All tokens, without special tokens."""
        return int(self.token_counts.sum())

    @property
    def tokens_per_sentence(self) -> float:
        """The mean length of a sentence."""
        return self.tokens / max(self.sentences, 1)

    @property
    def unknown_rate(self) -> float:
        """The share of [UNK] among the tokens."""
        return float(self.token_counts[self.unknown_id] / max(self.tokens, 1))

    @property
    def repeat_rate(self) -> float:
        """The estimated share of sentences that repeat an earlier one word for word."""
        total = sum(self._seen.values())
        return 1 - len(self._seen) / total if total else 0.0

    @property
    def unigram_entropy(self) -> float:
        """The entropy of the token frequencies, in nats: the best MLM loss without looking at the context."""
        share = self.token_counts[self.token_counts > 0] / max(self.tokens, 1)
        return float(-(share * np.log(share)).sum())

    @property
    def most_frequent_share(self) -> float:
        """The share of the most frequent token: the best MLM accuracy without looking at the context."""
        return float(self.token_counts.max() / max(self.tokens, 1))

    def summary(self) -> dict[str, float]:
        """What the manifest of a dataset says of its text."""
        return {
            "vocab_size": len(self.token_counts),
            "unknown_rate": self.unknown_rate,
            "unigram_entropy": self.unigram_entropy,
            "most_frequent_share": self.most_frequent_share,
            "tokens_per_sentence": self.tokens_per_sentence,
            "words": self.words,
            "repeat_rate": self.repeat_rate,
            "empty_documents": self.empty_documents,
        }


LONG_DOCUMENT_SENTENCES = 10_000
FEWEST_DOCUMENTS = 10  # with fewer, a random share may hold out none


@dataclass(frozen=True)
class Finding:
    """One complaint: a short name, and what it means with what to do."""

    name: str
    text: str


def find_faults(
    statistics: CorpusStatistics,
    blank_lines_expected: bool,
    continuation_rate: float = 0.0,
    held_out: int | None = None,
) -> list[Finding]:
    """Name everything about a corpus that would make training on it fail or mean little.

    `continuation_rate` is the share of `##` pieces among the tokens, `held_out` the number of held-out documents, None
    when none were wanted.
    """
    of, documents = statistics, statistics.documents - statistics.empty_documents
    advice = "add documents, or train with segments=full_sentences"
    if blank_lines_expected:
        advice = "there are no blank lines in it: put one between documents"
    other_vocabulary = (
        "the vocabulary does not fit this text: choose another one, or train one with tokenizer.vocab_size="
    )
    # so that hardly any text is without: (1 - 5 / n) ^ n is below 0.7 %
    share = f"set held_out_prob={min(0.5, max(0.05, round(5 / max(documents, 1), 2)))} or so"
    if documents < FEWEST_DOCUMENTS:
        share = (
            f"it takes {FEWEST_DOCUMENTS} documents or more to hold one out: put blank lines between them, or add text"
        )
    checks = [
        ("one document", documents == 1,
         f"the corpus is a single document, so every 'random' next segment comes from it; {advice}"),
        ("no blank lines", documents != 1 and blank_lines_expected and of.longest_document > LONG_DOCUMENT_SENTENCES,
         f"one document has {of.longest_document:,} sentences; a file without blank lines between its documents counts as "
         "one document"),
        ("empty documents", of.empty_documents > 0,
         f"{of.empty_documents:,} documents have no text that the tokenizer can read and were left out"),
        ("duplicate lines", of.repeat_rate > 0.1,
         f"about {100 * of.repeat_rate:.0f} % of the sentences repeat an earlier one; the model will learn them by heart: "
         "remove the duplicates"),
        ("unknown rate", of.unknown_rate > 0.01,
         f"{100 * of.unknown_rate:.1f} % of the tokens are [UNK]; {other_vocabulary}"),
        ("broken words", continuation_rate > 0.5,
         f"{100 * continuation_rate:.0f} % of the tokens are pieces inside of words; {other_vocabulary}"),
        ("nothing held out", held_out == 0,
         f"none of the {documents:,} documents was held out for evaluation; {share}"),
        ("long lines", of.tokens_per_sentence > 512,
         f"a line has {of.tokens_per_sentence:.0f} tokens on average; put one sentence on a line, or set "
         "corpus.sentences=split"),
        ("little text", 0 < of.tokens < 10_000,
         f"{of.tokens:,} tokens are enough to try a command, not to learn from"),
    ]  # fmt: skip
    return [Finding(name, text) for name, is_wrong, text in checks if is_wrong]


NUM_EXAMPLES = 3
EXAMPLE = SegmentsConfig("pairs", max_seq_length=64, short_seq_prob=0.1, next_sentence="nsp")


def describe(dataset: PreparedDataset) -> str:
    """Give the counts of a dataset, some of its examples, and what is wrong with it."""
    train, held_out = (dataset.manifest["splits"][name] for name in SPLITS)
    facts, made = dataset.manifest["statistics"], dataset.manifest.get("instances")
    lines = [
        f"{train['documents']:,} documents, {train['sentences']:,} sentences, {train['tokens']:,} tokens to train on",
        f"{held_out['documents']:,} documents, {held_out['tokens']:,} tokens held out for evaluation"
        if made is None
        else f"{made['count']:,} fixed instances of at most {made['segments']['max_seq_length']} tokens, of all documents: "
        "none is held out for evaluation, as in the original",
        f"vocabulary of {facts['vocab_size']:,}, {100 * facts['unknown_rate']:.2f} % unknown, "
        f"{facts['tokens_per_sentence']:.1f} tokens a sentence",
        f"unigram entropy {facts['unigram_entropy']:.2f} nats: the MLM loss of a model that only counts words",
    ]
    for is_random, ids in _drawn_examples(dataset) if made is None else _stored_examples(dataset):
        lines += ["", f"{'random next' if is_random else 'actual next'}: {dataset.tokenizer.decode(ids)}"]
    for finding in dataset.manifest["findings"]:
        lines += ["", f"warning: {finding['name']}: {finding['text']}"]
    return "\n".join(lines)


def _stored_examples(dataset: PreparedDataset) -> list[tuple[bool, list[int]]]:
    """The first instances, masks and all."""
    instances = open_instances(dataset)
    chosen = np.arange(min(NUM_EXAMPLES, len(instances)))
    return [(bool(instances.is_random_next[n]), instances.batch(np.array([n])).input_ids.tolist()) for n in chosen]


def _drawn_examples(dataset: PreparedDataset) -> list[tuple[bool, list[int]]]:
    """A few training pairs of both kinds, from all over the text."""
    split = dataset.splits["train"] if dataset.splits["train"].num_documents else dataset.splits["held_out"]
    documents = np.unique(np.linspace(0, split.num_documents - 1, NUM_EXAMPLES).astype(np.int64))
    pairs = document_pairs(split.sentences, split.documents, documents, EXAMPLE, seed=0, epoch=0)
    assert pairs.is_random_next is not None
    actual_first = np.argsort(pairs.is_random_next, kind="stable")
    chosen = actual_first[np.linspace(0, len(pairs) - 1, min(NUM_EXAMPLES, len(pairs))).astype(np.int64)]
    ids, _, lengths = assemble(split, select(pairs, chosen), dataset.tokenizer.facts)
    ends = np.cumsum(lengths)
    return [
        (bool(pairs.is_random_next[index]), ids[end - length : end].tolist())
        for index, end, length in zip(chosen, ends, lengths, strict=True)
    ]
