"""What `bertkit prepare` accepts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from bertkit.data.config import CorpusConfig, InstancesConfig, MaskingConfig, SegmentsConfig, TokenizerConfig
from bertkit.errors import InputError
from bertkit.launch.config import too_many
from bertkit.settings.common import seed_problems


@dataclass(frozen=True)
class PrepareSettings:
    """`bertkit prepare`.

    Attributes:
        given: the keys and groups that the command line names, and the keys of its experiment, to tell a value that was asked for from a default.
    """

    corpus: CorpusConfig
    tokenizer: TokenizerConfig
    segments: SegmentsConfig | InstancesConfig | None
    masking: MaskingConfig
    output_dir: str
    held_out_prob: float
    strict: bool
    shard_tokens: int
    num_workers: int | Literal["auto"]
    part_bytes: int
    shard: str | None
    merge: tuple[str, ...] | None
    seed: int
    dump: str | None
    overwrite: bool
    given: tuple[str, ...] = field(metadata={"is_written": False})

    def __post_init__(self) -> None:
        problems = seed_problems(self.seed) + self._problems_of_parts()
        if self.corpus.source != "python_docs" and not self.corpus.path and self.merge is None:
            problems.append(
                "missing value: set corpus.path= to files, folders or globs of text (or take corpus=python_docs)"
            )
        if isinstance(self.segments, SegmentsConfig):
            problems.append(
                f"segments={self.segments.kind}: prepare stores tokens only, and pretrain cuts them; give it to pretrain "
                "(or take segments=google, for fixed instances)"
            )
        elif self.segments is None:
            without_effect = [
                key for key in self.given if key.split(".")[0] in ("masking", "seed", "dump", "overwrite")
            ]
            if without_effect:
                problems.append(
                    f"{', '.join(without_effect)}: has no effect here, since prepare stores tokens only; add segments=google, "
                    "or give it to pretrain"
                )
        else:
            if "held_out_prob" in self.given and self.held_out_prob > 0:
                problems.append(
                    f"held_out_prob={self.held_out_prob}: has no effect with segments=google, which takes every document; "
                    "leave it out"
                )
            if (self.masking.mask_prob, self.masking.random_prob) != (0.8, 0.1):
                problems.append(
                    f"masking.mask_prob={self.masking.mask_prob} and masking.random_prob={self.masking.random_prob}: "
                    "segments=google draws 0.8 and 0.1, as the original; leave them out"
                )
            if self.masking.max_ngram > 1:
                problems.append(
                    f"masking.max_ngram={self.masking.max_ngram}: segments=google hides single pieces or whole words, as the "
                    "original, which has no n-grams; take masking=bert or masking=whole_word"
                )
        if not 0 <= self.held_out_prob < 1:
            problems.append(f"held_out_prob={self.held_out_prob}: expected a share of the documents below 1")
        if not 1 <= self.shard_tokens < 2**32:
            problems.append(f"shard_tokens={self.shard_tokens}: expected 1 to {2**32 - 1}")
        if problems:
            raise InputError(*problems)

    @property
    def shard_of(self) -> tuple[int, int]:
        """The number of this shard, from 1, and how many there are."""
        number, _, count = (self.shard or "1/1").partition("/")
        return int(number), int(count)

    def _problems_of_parts(self) -> list[str]:
        problems = []
        if isinstance(self.num_workers, int) and self.num_workers < 1:
            problems.append(f"num_workers={self.num_workers}: expected auto or at least 1")
        problems += too_many("num_workers", 0 if self.num_workers == "auto" else self.num_workers)
        if self.part_bytes < 1:
            problems.append(f"part_bytes={self.part_bytes}: expected at least 1")
        if self.shard is not None:
            if not re.fullmatch(r"[1-9]\d{0,5}/[1-9]\d{0,5}", self.shard) or self.shard_of[0] > self.shard_of[1]:
                problems.append(f"shard={self.shard}: expected i/n with i from 1 to n, such as 1/4")
            if self.tokenizer.path is None:
                problems.append(f"shard={self.shard}: all shards need the same vocabulary; set tokenizer.path=")
            if self.segments is not None:
                problems.append(f"shard={self.shard}: segments=google draws from the whole text; leave one of them out")
        if self.merge is not None:
            if not self.merge:
                problems.append("merge=[]: expected the directories of all shards")
            others = [key for key in self.given if key not in ("merge", "output_dir", "strict")]
            if others:
                problems.append(
                    f"{', '.join(others)}: has no effect with merge=, which takes it from the shards; leave it out"
                )
        return problems
