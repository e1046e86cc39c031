"""The settings of `bertkit prepare`."""

from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from bertkit.base.intervals import Form, Interval, Seed, ShareBelow1
from bertkit.base.typed_settings import refuse
from bertkit.data.data_config import CorpusConfig, InstancesConfig, MaskingConfig, SegmentsConfig, TokenizerConfig
from bertkit.launch.launch_config import Processes
from bertkit.settings.command import Command, CommandSettings

SHARD = Form(r"[1-9]\d{0,5}/[1-9]\d{0,5}", "i/n with i from 1 to n, such as 1/4")


class ShardOf(NamedTuple):
    """The shard of a dataset that a command prepares."""

    number: int  # from 1
    num_shards: int


@dataclass(frozen=True)
class PrepareSettings(CommandSettings):
    """`bertkit prepare`."""

    corpus: CorpusConfig
    tokenizer: TokenizerConfig
    segments: SegmentsConfig | InstancesConfig | None
    masking: MaskingConfig
    output_dir: str
    held_out_prob: ShareBelow1
    strict: bool
    shard_tokens: Annotated[int, Interval(1, 2**32 - 1)]
    num_workers: Processes | Literal["auto"]
    part_bytes: Annotated[int, Interval(1, 2**40)]
    shard: Annotated[str, SHARD] | None
    merge: tuple[str, ...] | None
    seed: Seed
    dump: str | None
    overwrite: bool
    explicit_keys: tuple[str, ...] = field(metadata={"is_written": False})  # of the command line or its experiment

    def __post_init__(self) -> None:
        refuse(
            self._shard_problems(),
            self.corpus.source != "python_docs"
            and not self.corpus.path
            and self.merge is None
            and "missing value: set corpus.path= to files, folders or globs of text (or use corpus=python_docs)",
            self._instance_problems(),
        )

    def _instance_problems(self) -> list[str]:
        """List settings that do not fit fixed instances (segments=google), or that need them."""
        masking = self.masking
        if isinstance(self.segments, SegmentsConfig):
            return [
                f"segments={self.segments.kind}: prepare stores tokens only, and pretrain makes the segments; pass it to "
                "pretrain (or use segments=google here, for fixed instances)"
            ]
        if self.segments is None:
            unused = ", ".join(
                key for key in self.explicit_keys if key.split(".")[0] in ("masking", "seed", "dump", "overwrite")
            )
            why = "has no effect here, since prepare stores tokens only; add segments=google, or pass it to pretrain"
            return [f"{unused}: {why}"] if unused else []
        problems = []
        if self.tokenizer.kind != "wordpiece":
            problems.append(
                f"tokenizer={self.tokenizer.kind}: segments=google is for BERT's WordPiece, as in the original; use "
                "tokenizer=wordpiece"
            )
        if "held_out_prob" in self.explicit_keys and self.held_out_prob > 0:
            problems.append(
                f"held_out_prob={self.held_out_prob}: has no effect with segments=google, which uses every document; "
                "leave it out"
            )
        if (masking.mask_prob, masking.random_prob) != (0.8, 0.1):
            problems.append(
                f"masking.mask_prob={masking.mask_prob} and masking.random_prob={masking.random_prob}: segments=google "
                "uses 0.8 and 0.1, as in the original; leave them out"
            )
        if not masking.has("in_instances"):
            problems.append(
                f"masking={masking.kind}: segments=google masks pieces or whole words, as in the original; use "
                "masking=bert or masking=whole_word"
            )
        return problems

    @property
    def shard_of(self) -> "ShardOf":
        """The number of this shard, and how many there are."""
        number, _, count = (self.shard or "1/1").partition("/")
        return ShardOf(int(number), int(count))

    def _shard_problems(self) -> list[str]:
        problems = []
        if self.shard is not None:
            if self.shard_of.number > self.shard_of.num_shards:
                problems.append(f"shard={self.shard}: expected {SHARD.expected}")
            if self.tokenizer.path is None:
                problems.append(f"shard={self.shard}: all shards need the same vocabulary; set tokenizer.path=")
            if self.segments is not None:
                problems.append(f"shard={self.shard}: segments=google needs the whole text; leave one of them out")
        if self.merge is not None:
            if not self.merge:
                problems.append("merge=[]: expected the directories of all shards")
            others = ", ".join(key for key in self.explicit_keys if key not in ("merge", "output_dir", "strict"))
            if others:
                problems.append(f"{others}: has no effect with merge=, since the shards determine it; leave it out")
        return problems


COMMAND = Command(
    "prepare",
    PrepareSettings,
    stage="bertkit.stages.prepare",
    needs="text",
    gives="tokenizer and prepared dataset",
    rows={"corpus": "corpus.path"},
    options={"segments": ["google"], "masking": ["bert", "whole_word"]},  # the others are for pretrain
)
