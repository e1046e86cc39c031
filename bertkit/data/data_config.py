"""Settings of the corpus, the tokenizer, training examples, masking, and the passages for search."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from bertkit.base.errors import InputError
from bertkit.base.typed_settings import IF_SET, Slot, options_of, outside, refuse, unused

MAX_VOCAB_SIZE = 10_000_000  # ten times the largest published vocabulary, that of XLM-V


@dataclass(frozen=True)
class CorpusConfig:
    """Where the text comes from, and how it is cut into documents and sentences."""

    source: Literal["files", "python_docs", "hub"]
    path: str | tuple[str, ...] | None
    format: Literal["auto", "text", "jsonl", "json", "parquet", "wikiextractor"]
    field: str
    sentences: Literal["auto", "lines", "split"]
    encoding: str
    name: str | None
    split: str

    def __post_init__(self) -> None:
        refuse(unused(self, "corpus.", ("path", self.source == "python_docs", "with corpus=python_docs", "", ())))
        try:
            line = "a\n".encode(self.encoding)
        except LookupError:
            raise InputError(f"corpus.encoding={self.encoding!r}: unknown encoding; try utf-8 or latin-1") from None
        if not line.endswith(b"a\n"):
            raise InputError(f"corpus.encoding={self.encoding!r}: a line does not end in 0x0a; convert it to UTF-8")


@dataclass(frozen=True)
class TokenizerConfig:
    """The path of an existing vocabulary, or how to learn one."""

    path: str | None
    vocab_size: int
    min_frequency: int
    lowercase: bool | None
    rules: Literal["auto", "hugging_face", "google"]

    def __post_init__(self) -> None:
        if not 100 <= self.vocab_size <= MAX_VOCAB_SIZE:
            raise InputError(f"tokenizer.vocab_size={self.vocab_size}: expected 100 to {MAX_VOCAB_SIZE:,}; BERT: 30522")


@dataclass(frozen=True)
class SegmentsConfig:
    """How documents become training examples: segment pairs, or blocks of full sentences."""

    kind: Literal["pairs", "full_sentences"]
    max_seq_length: int
    short_seq_prob: float
    # nsp: does B follow A, or is it random? sop (sentence order prediction): are A and B swapped? none: not predicted
    next_sentence: Literal["nsp", "sop", "none"]

    def __post_init__(self) -> None:
        refuse(
            outside(self, "segments.", max_seq_length="[8, inf)", short_seq_prob="[0, 1]"),
            self.predicts_next
            and not self.has_pairs
            and f"segments.next_sentence={self.next_sentence}: segments={self.kind} has no pairs; leave it out, or set "
            "segments=pairs",
        )

    @property
    def has_pairs(self) -> bool:
        """Whether the examples are pairs, with token type 1 for the second segment."""
        return self.kind == "pairs"

    @property
    def predicts_next(self) -> bool:
        """Whether pairs have a label that trains the next sentence head."""
        return self.next_sentence != "none"


@dataclass(frozen=True)
class InstancesConfig:
    """How `prepare` makes Google's fixed instances, which `pretrain` and `evaluate` use as stored."""

    kind: Literal["google"]
    max_seq_length: int
    short_seq_prob: float
    dupe_factor: int
    max_predictions_per_seq: int
    has_pairs = predicts_next = True  # as in `SegmentsConfig`

    def __post_init__(self) -> None:
        refuse(
            outside(self, "segments.", max_seq_length="[8, 65535]", short_seq_prob="[0, 1]"),
            outside(self, "segments.", dupe_factor="[1, inf)", max_predictions_per_seq="[1, inf)"),
        )


@dataclass(frozen=True)
class MaskingConfig:
    """Which tokens are predicted, and what replaces them."""

    probability: float
    whole_word: bool
    mask_prob: float
    random_prob: float
    max_ngram: int = 1  # largest number of words masked together; older datasets do not have this setting
    kind: Annotated[Literal["bert"], Slot("masking")] = field(default="bert", metadata=IF_SET)
    options: dict[str, Any] = field(default_factory=dict, hash=False, metadata=options_of("masking", "kind"))

    def __post_init__(self) -> None:
        refuse(
            (min(self.mask_prob, self.random_prob) < 0 or self.mask_prob + self.random_prob > 1)
            and f"masking.mask_prob={self.mask_prob} and masking.random_prob={self.random_prob}: expected two probabilities "
            "that sum to at most 1",
            outside(self, "masking.", probability="(0, 1)", max_ngram="[1, inf)"),
            self.max_ngram > 1
            and not self.whole_word
            and f"masking.max_ngram={self.max_ngram}: n-grams need masking.whole_word=true; set masking=ngram",
        )


@dataclass(frozen=True)
class PassagesConfig:
    """How documents are cut into passages, and words are normalized for search."""

    words: int  # largest number of words in a passage
    overlap: int  # largest number of words shared by neighbouring passages
    stemming: Literal["none", "english"]  # english: Porter stemming; `invented` matches `invention`
    accents: Literal["drop", "keep"]  # drop: `resume` matches `résumé`

    def __post_init__(self) -> None:
        if self.words < 1:
            raise InputError(f"passages.words={self.words}: expected at least 1, such as 100")
        if not 0 <= self.overlap < self.words:
            raise InputError(f"passages.overlap={self.overlap}: expected 0 to {self.words - 1}, below passages.words")
