"""What users choose in attention: the settings `attention.*`, and which of them fit together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bertkit.base.annotations import OptionOf
from bertkit.base.intervals import Count, Interval, Positive, Size
from bertkit.base.typed_settings import IF_SET, options_of, refuse

# the settings that only some options use: the setting, the slot, and its options
ONLY_WITH = (
    ("additive_size", "score", "additive"), ("max_distance", "positions", "relative", "disentangled", "relative_bias"),
    ("distance_buckets", "positions", "disentangled", "relative_bias"), ("distance_terms", "positions", "disentangled"),
    ("distance_maps", "positions", "disentangled"), ("distance_norm", "positions", "disentangled"),
    ("also_learned", "positions", "relative", "disentangled", "relative_bias", "rotary", "alibi"),
    ("relative_to", "positions", "relative"), ("rotary_base", "positions", "rotary"),
    ("rotary_local_base", "pattern", "alternating"), ("rotary_local_base", "positions", "rotary"),
    ("rotary_factor", "positions", "rotary"), ("rotary_pairs", "positions", "rotary"),
    ("window", "pattern", "window", "alternating"), ("full_every", "pattern", "alternating"),
    ("block_size", "pattern", "bigbird"), ("random_blocks", "pattern", "bigbird"), ("random_seed", "pattern", "bigbird"),
    ("compressed_size", "pattern", "linformer"), ("compression_shared", "pattern", "linformer"),
)  # fmt: skip
# the options that cannot be combined, and why
CLASHES = (
    ("positions", ("relative", "rotary"), "score", "location", "a location score uses no keys"),
    ("positions", ("relative", "rotary"), "score", "additive", "these positions need products of query and key"),
    *(
        ("positions", ("disentangled",), "score", score, "its terms are scaled products")
        for score in ("dot", "general", "additive", "location")
    ),
    ("score", ("location",), "pattern", "linformer", "compressed keys have no places"),
    (
        "positions",
        ("relative", "disentangled", "relative_bias", "rotary", "alibi"),
        "pattern",
        "linformer",
        "compressed keys have no places",
    ),
)


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """How tokens attend to each other. The defaults are those of BERT; conf/attention/bert.yaml explains each, with its source."""

    score: Annotated[str, OptionOf("score")] = "scaled_dot"
    score_options: dict[str, object] = field(default_factory=dict, hash=False, metadata=options_of("score", "score"))
    additive_size: Size = 32
    positions: Annotated[str, OptionOf("positions")] = "learned"
    positions_options: dict[str, object] = field(
        default_factory=dict, hash=False, metadata=options_of("positions", "positions")
    )
    also_learned: bool = field(default=False, metadata=IF_SET)  # in the embeddings, beside positions of the layers
    max_distance: Count = 16
    relative_to: tuple[Literal["keys", "values"], ...] = ("keys", "values")
    distance_buckets: Count = field(default=0, metadata=IF_SET)
    distance_terms: tuple[Literal["c2p", "p2c"], ...] = field(default=("c2p", "p2c"), metadata=IF_SET)
    distance_maps: Literal["shared", "own"] = field(default="shared", metadata=IF_SET)
    distance_norm: bool = field(default=False, metadata=IF_SET)
    rotary_base: Positive = field(default=10_000.0, metadata=IF_SET)
    rotary_local_base: Positive | None = field(default=None, metadata=IF_SET)
    rotary_factor: Positive = field(default=1.0, metadata=IF_SET)  # positions are divided by it
    rotary_pairs: Literal["neighbours", "halves"] = field(default="neighbours", metadata=IF_SET)
    pattern: Annotated[str, OptionOf("pattern")] = "full"
    pattern_options: dict[str, object] = field(
        default_factory=dict, hash=False, metadata=options_of("pattern", "pattern")
    )
    window: Size = 64
    full_every: Size = field(default=3, metadata=IF_SET)
    block_size: Size = 64
    random_blocks: Annotated[int, Interval(0, 1000)] = 3
    random_seed: Count = 0
    compressed_size: Size = 128
    compression_shared: Literal["none", "heads", "key_value", "layers"] = "layers"
    bias: bool = field(default=True, metadata=IF_SET)
    key_bias: bool = field(default=True, metadata=IF_SET)  # also in the maps to keys
    # heads of keys and values, each shared by as many heads of queries; None: as many as of queries
    key_value_heads: Size | None = field(default=None, metadata=IF_SET)

    def __post_init__(self) -> None:
        chosen, half = vars(self), self.distance_buckets // 2
        sides = {"relative_to": ("keys", "values"), "distance_terms": ("c2p", "p2c")}
        refuse(
            *(
                f"attention.{one}={chosen[one]} with attention.{other}={option}: {why}; change one of them"
                for one, options, other, option, why in CLASHES
                if chosen[one] in options and chosen[other] == option
            ),
            *(
                f"attention.{name}=[{','.join(chosen[name])}]: expected {both[0]}, {both[1]} or both, without repeats"
                for name, both in sides.items()
                if not chosen[name] or len({*chosen[name]}) != len(chosen[name])
            ),
            not (self.bias or self.key_bias)
            and "attention.key_bias=false: has no effect with attention.bias=false; leave it out",
            self.score == "location"
            and not self.key_bias
            and "attention.key_bias=false: has no effect with attention.score=location, which uses no keys; leave it out",
            self.positions == "disentangled"
            and self.key_value_heads is not None
            and f"attention.key_value_heads={self.key_value_heads} with attention.positions=disentangled: the maps of all heads read its "
            "embeddings of distances; change one of them",
            self.positions in ("disentangled", "relative_bias")
            and (self.distance_buckets == 1 or self.max_distance < half + (3 if half else 1))
            and f"attention.distance_buckets={self.distance_buckets} with attention.max_distance={self.max_distance}: expected 0, or 2 or more, and "
            "a larger distance than half of them plus 2",
        )

    @property
    def of_embeddings(self) -> str:
        """The positions from which the embeddings take theirs."""
        return "learned" if self.also_learned else self.positions

    def without_effect(self, name: str) -> list[str]:
        """Return an error line if a setting has no effect with the chosen options."""
        lines = [
            f"attention.{name}: has no effect without attention.{slot}={' or '.join(options)}; leave it out"
            for setting, slot, *options in ONLY_WITH
            if setting == name and vars(self)[slot] not in options
        ]
        return lines[:1]

    def unused(self, explicit_keys: Iterable[str]) -> list[str]:
        """Return an error line for each setting of attention that the user set and that has no effect with the chosen options."""
        return [line for key in explicit_keys for line in self.without_effect(key.removeprefix("attention."))]

    def next_token_problems(self) -> list[str]:
        """Return an error line if tokens that should predict the next one see it."""
        if self.pattern == "causal":
            return []
        return [f"objective=next_token: tokens see the next one; set attention.pattern=causal, not {self.pattern}"]
