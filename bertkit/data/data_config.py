"""Settings of the corpus, the tokenizer, training examples, masking, and the passages for search."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from bertkit.base import plugins
from bertkit.base.annotations import OptionOf
from bertkit.base.errors import InputError
from bertkit.base.intervals import MAX_INT32, Count, Interval, Share, ShareInside, Size
from bertkit.base.text_files import is_text_encoding
from bertkit.base.typed_settings import IF_SET, options_of, refuse, unused


@dataclass(frozen=True)
class CorpusConfig:
    """Where the text comes from, and how it is cut into documents and sentences."""

    source: Literal["files", "python_docs", "hub", "texts"]
    path: str | tuple[str, ...] | None
    format: Literal["auto", "text", "jsonl", "json", "parquet", "arrow", "wikiextractor"]
    field: str
    sentences: Literal["auto", "lines", "split"]
    encoding: str
    name: str | None
    split: str
    lines: Literal["auto", "sentences", "documents"] = dataclasses.field(
        default="auto", metadata=IF_SET
    )  # of a file of text
    deduplicate: Literal["exact", "near"] | None = dataclasses.field(default=None, metadata=IF_SET)

    @property
    def paths(self) -> Sequence[str]:
        """The paths or patterns."""
        return (self.path,) if isinstance(self.path, str) else self.path or ()

    def __post_init__(self) -> None:
        refuse(
            unused(
                self,
                "corpus.",
                ("path", self.source == "python_docs", "with corpus=python_docs", "", ()),
                ("lines", self.source != "files", f"with corpus={self.source}", "auto"),
                ("name", self.source != "hub", "without corpus=hub"),
            ),
            not is_text_encoding(self.encoding)
            and f"corpus.encoding={self.encoding}: expected UTF-16, or an encoding with one byte for a line feed, such as cp1252",
        )


COVERAGE = 0.9995  # of the characters of a text by an alphabet: SentencePiece's `character_coverage` (Kudo and Richardson 2018)


@dataclass(frozen=True)
class TokenizerConfig:
    """The path of an existing vocabulary, or how to learn one."""

    path: str | None
    vocab_size: Annotated[int, Interval(100, 10_000_000)]  # ten times the largest published vocabulary, that of XLM-V
    min_frequency: Count
    lowercase: bool | None
    rules: Literal["auto", "hugging_face", "google"]
    kind: Literal["wordpiece", "bpe", "unigram"] = field(default="wordpiece", metadata=IF_SET)  # what is learned
    # None: as with an existing vocabulary; from a new one as text is lower-cased, unless it needs the marks of a script
    strip_accents: bool | None = field(default=None, metadata=IF_SET)
    coverage: Annotated[float, Interval(0, 1, "(]")] = field(default=COVERAGE, metadata=IF_SET)

    def __post_init__(self) -> None:
        is_other, is_bpe = self.kind != "wordpiece", self.kind == "bpe"
        why = f"with tokenizer={self.kind}, which keeps capital letters and accents"
        rows = ("lowercase", is_other, why), ("strip_accents", is_other, why), ("rules", is_other, why, "auto")
        refuse(
            unused(
                self,
                "tokenizer.",
                *rows,
                ("coverage", is_bpe, "with tokenizer=bpe, which knows every character", COVERAGE),
            )
        )


@dataclass(frozen=True)
class SegmentsConfig:
    """How documents become training examples: segment pairs, or blocks of full sentences."""

    kind: Literal["pairs", "full_sentences"]
    max_seq_length: Annotated[int, Interval(8, MAX_INT32)]
    short_seq_prob: Share
    # nsp: does B follow A, or is it random? sop (sentence order prediction): are A and B swapped? none: not predicted
    next_sentence: Literal["nsp", "sop", "none"]
    is_fixed: ClassVar[bool] = False  # whether `prepare` has cut and masked the text already

    def __post_init__(self) -> None:
        refuse(
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

    def for_next_tokens(self, explicit_keys: Sequence[str]) -> SegmentsConfig:
        """Return blocks of full sentences, which suit the prediction of next tokens, unless the user chose segments."""
        if {"segments", "segments.next_sentence"} & set(explicit_keys):
            return self
        return replace(self, kind="full_sentences", next_sentence="none")


@dataclass(frozen=True)
class InstancesConfig:
    """How `prepare` makes Google's fixed instances, which `pretrain` and `evaluate` use as stored."""

    kind: Literal["google"]
    max_seq_length: Annotated[int, Interval(8, 65535)]
    short_seq_prob: Share
    dupe_factor: Size
    max_predictions_per_seq: Size
    has_pairs = predicts_next = True  # as in `SegmentsConfig`
    is_fixed: ClassVar[bool] = True

    def for_next_tokens(self, explicit_keys: Sequence[str]) -> InstancesConfig:
        """Return the same settings: fixed instances are pairs."""
        return self


AnySegments = SegmentsConfig | InstancesConfig


@dataclass(frozen=True)
class MaskingConfig:
    """Which tokens are predicted, and what replaces them."""

    probability: ShareInside
    mask_prob: Share
    random_prob: Share
    kind: Annotated[str, OptionOf("masking")] = "bert"
    options: dict[str, Any] = field(default_factory=dict, hash=False, metadata=options_of("masking", "kind"))

    def has(self, trait: Literal["by_words", "in_instances"]) -> bool:
        """Whether the masking says of itself that it masks whole words, or that Google's fixed instances can have it."""
        return getattr(plugins.find("masking", self.kind), trait, False)

    def __post_init__(self) -> None:
        refuse(
            self.mask_prob + self.random_prob > 1
            and f"masking.mask_prob={self.mask_prob} and masking.random_prob={self.random_prob}: expected two probabilities "
            "that sum to at most 1",
        )


@dataclass(frozen=True)
class StoredMasking:
    """The masking of Google's fixed instances, as in the manifest of their dataset."""

    probability: ShareInside
    whole_word: bool
    mask_prob: Share
    random_prob: Share


# english: Porter stemming; `invented` matches `invention`. Others: Snowball's stemmers
Stemming = Literal[
    "none", "arabic", "danish", "dutch", "english", "finnish", "french", "german", "hungarian", "italian",
    "norwegian", "portuguese", "romanian", "russian", "spanish", "swedish",
]  # fmt: skip


@dataclass(frozen=True)
class PassagesConfig:
    """How documents are cut into passages, and words are normalized for search."""

    words: Size  # largest number of words in a passage
    overlap: Count  # largest number of words shared by neighbouring passages
    stemming: Stemming
    accents: Literal["drop", "keep"]  # drop: `resume` matches `résumé`

    def __post_init__(self) -> None:
        if self.overlap >= self.words:
            raise InputError(f"passages.overlap={self.overlap}: expected 0 to {self.words - 1}, below passages.words")
