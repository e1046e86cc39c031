"""Statistics of a corpus, counted while it is prepared, and warnings about its text."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import counted
from bertkit.data.corpus.encoded_documents import EncodedDocuments
from bertkit.data.texts.documents import LOST

SAMPLE_SIZE = 1 << 18
LONG_DOCUMENT_SENTENCES = 10_000
LONG_SENTENCE = 80  # tokens on average: such lines are paragraphs
FEWEST_DOCUMENTS = 10  # if there are fewer documents, perhaps none is held out


@dataclass
class CorpusStatistics:
    """Counts of a corpus, in one pass and in constant memory.

    Repeated sentences are counted in a sample: the sentences whose hash is below a threshold. The threshold is halved whenever
    the sample is full. So the share of repeated sentences is estimated without bias.
    """

    token_counts: NDArray[np.int64]
    unknown_id: int
    documents: int = 0
    empty_documents: int = 0
    sentences: int = 0
    words: int = 0
    longest_document: int = 0
    single_sentences: int = 0  # documents of one sentence
    lost_documents: int = 0  # documents in which characters were lost
    _threshold: int = 1 << 64
    _seen: dict[int, int] = field(default_factory=dict)

    def add(self, encoded: EncodedDocuments) -> None:
        """Count some documents; their order has no effect."""
        sentences = encoded.document_sentences
        self.documents += len(sentences)
        self.empty_documents += int((sentences == 0).sum())
        self.sentences += int(sentences.sum())
        self.single_sentences += int((sentences == 1).sum())
        self.lost_documents += int(encoded.has_lost.sum())
        self.longest_document = max(self.longest_document, int(sentences.max(initial=0)))
        self.token_counts += np.bincount(encoded.tokens, minlength=len(self.token_counts))
        self.words += int(encoded.num_words.sum())
        sampled = encoded.sentence_hashes[encoded.sentence_hashes <= np.uint64(self._threshold - 1)]
        hashes, counts = np.unique(sampled, return_counts=True)
        for key, count in zip(hashes.tolist(), counts.tolist(), strict=True):
            self._seen[key] = self._seen.get(key, 0) + count
        while len(self._seen) > SAMPLE_SIZE:
            self._threshold //= 2
            self._seen = {key: count for key, count in self._seen.items() if key < self._threshold}

    @property
    def tokens(self) -> int:
        """The number of tokens, without special tokens."""
        return int(self.token_counts.sum())

    def summary(self) -> dict[str, float]:
        """Return the statistics that the manifest of a dataset stores.

        `unigram_entropy`, in nats, is the lowest loss at [MASK] that a model can have on this text without context, and
        `most_frequent_share` its highest accuracy there; `batches.controls` has the loss on held-out text, where some masked
        tokens are kept or replaced. `repeat_rate` estimates the share of sentences that are equal to an earlier sentence.
        """
        num_tokens, num_sampled = max(self.tokens, 1), sum(self._seen.values())
        share = self.token_counts[self.token_counts > 0] / num_tokens
        return {
            "vocab_size": len(self.token_counts),
            "unknown_rate": float(self.token_counts[self.unknown_id] / num_tokens),
            "unigram_entropy": float(-(share * np.log(share)).sum()),
            "most_frequent_share": float(self.token_counts.max() / num_tokens),
            "tokens_per_sentence": self.tokens / max(self.sentences, 1),
            "words": self.words,
            "repeat_rate": 1 - len(self._seen) / num_sampled if num_sampled else 0.0,
            "empty_documents": self.empty_documents,
        }


def _for_pairs(blank_lines_expected: bool, tokens_per_sentence: float) -> str:
    """Return what to do about documents of one sentence."""
    if tokens_per_sentence > LONG_SENTENCE:
        return "a line seems to have several sentences: set corpus.sentences=split"
    way_out = "set segments=full_sentences there"
    return f"remove the blank line after every sentence, or {way_out}" if blank_lines_expected else way_out


def find_faults(
    statistics: CorpusStatistics,
    blank_lines_expected: bool,
    continuation_rate: float = 0.0,
    held_out: int | None = None,
    asked_size: int | None = None,
) -> list[dict[str, str]]:
    """List the name and the text of each fault of a corpus that would make training fail or its result worthless.

    `continuation_rate` is the share of pieces inside of words among the tokens in scripts with spaces; `held_out` is the number of
    held-out documents, or None if no document should be held out; `asked_size` is the size that was asked for, if the vocabulary
    was learned from this text.
    """
    counts, facts = statistics, statistics.summary()
    documents = counts.documents - counts.empty_documents
    advice = "add documents, or train with segments=full_sentences"
    if blank_lines_expected:
        advice = "it has no blank lines: put one between documents, or set corpus.lines=documents if each line is one"
    unknown = broken = "the vocabulary does not fit this text: choose another one, or train one (tokenizer.vocab_size=)"
    if asked_size is not None:
        unknown = (
            "raise tokenizer.coverage= if characters are missing; words of more than 100 characters are unknown, too, but not with "
            "tokenizer=unigram or tokenizer=bpe"
        )
        is_full = len(counts.token_counts) == asked_size
        broken = "raise tokenizer.vocab_size=" if is_full else "longer pieces need more text to learn from"
    # with a share of 5 / n, the probability that no document is held out, (1 - 5 / n) ^ n, is below 0.7 %
    way_out = f"set held_out_prob={min(0.5, max(0.05, round(5 / max(documents, 1), 2)))} or so"
    if documents < FEWEST_DOCUMENTS:
        way_out = f"that takes at least {FEWEST_DOCUMENTS} documents: put blank lines between them, or add text"
    checks = [
        ("one document", documents == 1,
         f"the corpus is a single document, so every 'random' next segment comes from it; {advice}"),
        ("no blank lines",
         documents != 1 and blank_lines_expected and counts.longest_document > LONG_DOCUMENT_SENTENCES,
         f"one document has {counts.longest_document:,} sentences; a file without blank lines between its documents "
         "counts as one document"),
        ("documents of one sentence", documents > 1 and counts.single_sentences > documents / 2,
         f"{counts.single_sentences:,} of {documents:,} documents have a single sentence, so every pair that pretrain makes of them "
         f"has a random second segment; {_for_pairs(blank_lines_expected, facts['tokens_per_sentence'])}"),
        ("empty documents", counts.empty_documents > 0,
         f"{counts.empty_documents:,} documents have no text that the tokenizer can read and were left out"),
        ("lost characters", counts.lost_documents > 0, f"{counted(counts.lost_documents, 'document')} {LOST}"),
        ("duplicate lines", facts["repeat_rate"] > 0.1,
         f"about {100 * facts['repeat_rate']:.0f} % of the sentences repeat an earlier one; the model will learn them by "
         "heart: remove them (of whole documents, corpus.deduplicate=exact or near does)"),
        ("unknown rate", facts["unknown_rate"] > 0.01,
         f"{100 * facts['unknown_rate']:.1f} % of the tokens are [UNK]; {unknown}"),
        ("broken words", continuation_rate > 0.5,
         f"{100 * continuation_rate:.0f} % of the tokens are pieces inside of words; {broken}"),
        ("nothing held out", held_out == 0,
         f"none of the {documents:,} documents was held out for evaluation; {way_out}"),
        ("long lines", facts["tokens_per_sentence"] > 512,
         f"a line has {facts['tokens_per_sentence']:.0f} tokens on average; put one sentence on a line, or set "
         "corpus.sentences=split"),
        ("little text", 0 < counts.tokens < 10_000,
         f"{counts.tokens:,} tokens are enough to try a command, not to learn from"),
    ]  # fmt: skip
    return [{"name": name, "text": text} for name, is_wrong, text in checks if is_wrong]
