"""What is wrong with a corpus, in plain words, before anyone trains on it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLE_SIZE = 1 << 18
LONG_DOCUMENT_SENTENCES = 10_000


@dataclass(frozen=True)
class Finding:
    """One complaint: a short name, and what it means with what to do."""

    name: str
    text: str


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

    def add(
        self,
        tokens: NDArray[Any],
        document_sentences: NDArray[Any],
        num_words: int,
        sentence_hashes: NDArray[np.uint64],
        hash_counts: NDArray[Any],
    ) -> None:
        """Count a run of documents; the order of the runs, and how the corpus is cut into them, change nothing.

        Args:
            tokens: all ids, (tokens,).
            document_sentences: the sentences with tokens of each document, (documents,).
            num_words: words between spaces, of documents that have tokens.
            sentence_hashes: the different hashes of their sentences, as `hash_sentence` gives them.
            hash_counts: how often each of these occurs.
        """
        self.documents += len(document_sentences)
        self.empty_documents += int((document_sentences == 0).sum())
        self.sentences += int(document_sentences.sum())
        self.longest_document = max(self.longest_document, int(document_sentences.max(initial=0)))
        self.token_counts += np.bincount(tokens, minlength=len(self.token_counts))
        self.words += num_words
        sampled = sentence_hashes <= np.uint64(self._threshold - 1)
        for key, count in zip(sentence_hashes[sampled].tolist(), hash_counts[sampled].tolist(), strict=True):
            self._seen[key] = self._seen.get(key, 0) + count
        while len(self._seen) > SAMPLE_SIZE:
            self._threshold //= 2
            self._seen = {key: count for key, count in self._seen.items() if key < self._threshold}

    @property
    def tokens(self) -> int:
        """All tokens, without special tokens."""
        return int(self.token_counts.sum())

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


def hash_sentence(sentence: bytes) -> bytes:
    """Give 8 bytes that tell a sentence from others, to count repeats by."""
    return hashlib.blake2b(sentence, digest_size=8).digest()


def lint(
    statistics: CorpusStatistics,
    blank_lines_expected: bool,
    continuation_rate: float = 0.0,
    held_out: int | None = None,
) -> list[Finding]:
    """Name everything about a corpus that would make training on it fail or mean little.

    Args:
        statistics: of the corpus.
        blank_lines_expected: whether blank lines are what separates its documents.
        continuation_rate: the share of `##` pieces among the tokens.
        held_out: the number of held-out documents; None when none were wanted.
    """
    found = []
    documents = statistics.documents - statistics.empty_documents
    if documents == 1:
        advice = (
            "there are no blank lines in it: put one between documents"
            if blank_lines_expected
            else "add documents, or train with segments=full_sentences"
        )
        found.append(
            Finding("one document", f"the corpus is a single document, so every 'random' next segment comes from it; {advice}")
        )  # fmt: skip
    elif blank_lines_expected and statistics.longest_document > LONG_DOCUMENT_SENTENCES:
        found.append(
            Finding(
                "no blank lines",
                f"one document has {statistics.longest_document:,} sentences; a file without blank lines between its "
                "documents counts as one document",
            )
        )
    if statistics.empty_documents:
        found.append(
            Finding(
                "empty documents",
                f"{statistics.empty_documents:,} documents have no text that the tokenizer can read and were left out",
            )
        )
    if statistics.repeat_rate > 0.1:
        found.append(
            Finding(
                "duplicate lines",
                f"about {100 * statistics.repeat_rate:.0f} % of the sentences repeat an earlier one; the model will "
                "learn them by heart: remove the duplicates",
            )
        )
    if statistics.unknown_rate > 0.01:
        found.append(
            Finding(
                "unknown rate",
                f"{100 * statistics.unknown_rate:.1f} % of the tokens are [UNK]; the vocabulary does not fit this text: "
                "choose another one, or train one with tokenizer.vocab_size=",
            )
        )
    if continuation_rate > 0.5:
        found.append(
            Finding(
                "broken words",
                f"{100 * continuation_rate:.0f} % of the tokens are pieces inside of words; the vocabulary does not fit this "
                "text: choose another one, or train one with tokenizer.vocab_size=",
            )
        )
    if held_out == 0:
        found.append(
            Finding(
                "nothing held out",
                f"none of the {documents:,} documents was held out for evaluation; set held_out_prob="
                f"{min(0.5, max(0.05, round(3 / max(documents, 1), 2)))} or so",
            )
        )
    if statistics.sentences and statistics.tokens / statistics.sentences > 512:
        found.append(
            Finding(
                "long lines",
                f"a line has {statistics.tokens / statistics.sentences:.0f} tokens on average; put one sentence on a "
                "line, or set corpus.sentences=split",
            )
        )
    if 0 < statistics.tokens < 10_000:
        found.append(
            Finding("little text", f"{statistics.tokens:,} tokens are enough to try a command, not to learn from")
        )
    return found
