"""What the options of attention change, with BERT's own choice for each: the score, the positions and the pattern of a layer.

The other options are in scores.py, positions.py, distances/ and patterns.py.

Axes: as in attention.py; C keys for each query.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bertkit.base import plugins
from bertkit.kernels.layout import Group, Layout
from bertkit.kernels.linear import Embedding
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import BertConfig


def returned(slot: str, name: str, result: object, shape: Sequence[int]) -> Tensor:
    """Return the tensor of a plug-in; raises InputError unless its last axes have this shape."""
    shape = tuple(shape)
    tensor = plugins.returned(slot, name, result, Tensor, f"a tensor of shape {shape}")
    if tensor.shape[-len(shape) :] != shape:
        raise plugins.wrong_result(slot, name, tensor.shape, f"a tensor of shape {shape}")
    return tensor


def checked_module(slot: str, name: str, made: object, shape_of: Callable[..., Sequence[int]]) -> nn.Module:
    """Return a module; every output of a plug-in's must have the shape that `shape_of` computes from the inputs."""
    made = plugins.returned(slot, name, made, nn.Module, "a torch.nn.Module")
    if plugins.is_plugin(slot, name):
        made.register_forward_hook(lambda _, inputs, output: returned(slot, name, output, shape_of(*inputs)))
    return made


def dot(query: Tensor, key: Tensor) -> Tensor:
    """The product q . k: (..., T, H) and (..., C, H) -> (..., T, C).

    >>> dot(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[11.,  2.]])

    Source: Luong et al. 2015, section 3.1.
    """
    return query @ key.transpose(-1, -2)


def scaled_dot(query: Tensor, key: Tensor) -> Tensor:
    """The scaled product q . k / sqrt(H); shapes as in `dot`.

    >>> scaled_dot(torch.tensor([[1.0, 2.0, 0.0, 1.0]]), torch.tensor([[3.0, 4.0, 5.0, 1.0]]))
    tensor([[6.]])

    Source: Vaswani et al. 2017, equation 1.
    """
    scale: float = query.shape[-1] ** -0.5
    return dot(query, key) * scale


@plugins.option("score", "scaled_dot")
class Score(nn.Module):
    """The score of a layer: here the scaled product, which fast kernels compute; other scores override `fold` or `forward`."""

    needs_keys = True

    def __init__(self, config: BertConfig | None = None) -> None:
        super().__init__()

    @property
    def is_scaled_dot(self) -> bool:
        """Whether this score is `scaled_dot` with the queries that `fold` returns."""
        return type(self).forward is Score.forward

    def fold(self, query: Tensor) -> Tensor:
        """Change queries (S, N, H) so that the scaled product with the keys is the score."""
        return query

    def forward(self, query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
        """Score keys (B, N, C, H) at positions (B or 1, C) for queries (B, N, T, H) from `fold`: (B, N, T, C)."""
        return scaled_dot(query, key)


class OfProducts(Score):
    """A plug-in's score: a function of queries and keys, or a module made from the config."""

    def __init__(self, name: str, plugin: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.name, self.plugin = name, plugin

    def forward(self, query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
        """Score keys for queries by the plug-in."""
        return returned("score", self.name, self.plugin(query, key), (*query.shape[:-1], key.shape[-2]))


def make_score(config: BertConfig) -> Score:
    """Make the score of a layer, a subclass of `Score` or a plug-in."""
    attention = config.attention
    score = plugins.bind("score", attention.score, vars(attention), attention.score_options)
    made = score(config) if inspect.isclass(score.func) else score
    return made if isinstance(made, Score) else OfProducts(attention.score, made)


@plugins.option("positions", "none")
class Positions(nn.Module):
    """What positions change in a model; this class changes nothing. Those of a layer and of the embeddings are two modules.

    A plug-in is a class `Positions(config)` with one or more of the methods; it need not be a subclass.
    """

    module_name = "plugin"  # in the names of the parameters
    scales_tokens = False  # whether token embeddings are multiplied by sqrt(D)

    def __init__(self, config: BertConfig | None = None) -> None:
        super().__init__()

    def of_layer(self, layer: int) -> "Positions":
        """Return the positions of a layer, counted from 0; the embeddings have their own."""
        return self

    def shared(self) -> nn.Module | None:
        """Make what all layers of an encoder share, such as a table; None: nothing."""
        return None

    def number(self, position_ids: Tensor, input_ids: Tensor) -> Tensor:
        """Return the numbers of packed tokens in their sequences (S,), which `position_ids` counts without a gap."""
        return position_ids

    def add_to_tokens(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """Change token embeddings (S, D) before segment embeddings are added."""
        return tokens

    def embed(self, hidden: Tensor, position_ids: Tensor) -> Tensor:
        """Change the sum of token and segment embeddings (S, D)."""
        return hidden

    def rotate(self, vectors: Tensor, position_ids: Tensor) -> Tensor:
        """Change queries or keys (S, N, H)."""
        return vectors

    def fold(self, query: Tensor) -> Tensor:
        """Change queries (S, N, H) alone."""
        return query

    def vectors(
        self, table: Tensor | None, to_query: nn.Module, to_key: nn.Module | None, longest: int
    ) -> Sequence[Tensor]:
        """Return the vectors that `terms` needs in a pass over up to `longest` tokens, from the output of `shared` and a layer's maps."""
        return ()

    def terms(self, query: Tensor, key: Tensor, group: Group, vectors: Sequence[Tensor]) -> Tensor | float:
        """All terms of the scores: queries (B, N, T, H), keys (B, N, C, H) -> (B, N, T, C); here the term of the queries."""
        return self.scores(query, group.distances)

    def scores(self, query: Tensor, distances: Tensor) -> Tensor | float:
        """A term of the scores: queries (B, N, T, H), distances (B or 1, T, C) -> (B, N, T, C)."""
        return 0.0

    def context(self, weights: Tensor, distances: Tensor) -> Tensor | float:
        """A term of the context: weights (B, N, T, C), distances (B or 1, T, C) -> (B, N, T, H)."""
        return 0.0


def class_of(name: str) -> type[Positions]:
    """Return the class of an option; a plug-in's class is made a subclass of `Positions`."""
    chosen = plugins.get("positions", name)
    if not inspect.isclass(chosen) or {*CHECKED, "context"}.isdisjoint(dir(chosen)):
        raise plugins.wrong_result("positions", name, chosen, f"a class with a method {', '.join(CHECKED)}")
    if issubclass(chosen, Positions):
        return chosen
    own = {method: _checked(name, method, vars(chosen)[method]) for method in CHECKED if method in vars(chosen)}
    return type(chosen.__name__, (chosen, Positions), own)


# what a plug-in's methods return, for their two arguments
CHECKED: dict[str, Callable[[Tensor, Tensor], tuple[int, ...]]] = {
    "add_to_tokens": lambda tokens, position_ids: tokens.shape,
    "embed": lambda hidden, position_ids: hidden.shape,
    "rotate": lambda vectors, position_ids: vectors.shape,
    "scores": lambda query, distances: (query.shape[1], *distances.shape[-2:]),
}


def _checked(name: str, method: str, function: Callable[..., object]) -> Callable[..., Tensor]:
    """Return a method of a plug-in that checks the shape of its result."""

    def checked(self: object, vectors: Tensor, places: Tensor) -> Tensor:
        return returned("positions", name, function(self, vectors, places), CHECKED[method](vectors, places))

    return checked


def changes_embeddings(positions: type[Positions]) -> bool:
    """Whether positions change embeddings."""
    return positions.add_to_tokens is not Positions.add_to_tokens or positions.embed is not Positions.embed


def changes_weights(positions: type[Positions]) -> bool:
    """Whether positions change the scores or the contexts, so that the fast kernels do not fit."""
    return any(getattr(positions, step) is not getattr(Positions, step) for step in ("terms", "scores", "context"))


def changes_layers(positions: type[Positions]) -> bool:
    """Whether positions change attention."""
    return positions.rotate is not Positions.rotate or changes_weights(positions)


def make_positions(config: BertConfig, name: str, is_used: Callable[[type[Positions]], bool]) -> Positions:
    """Make the positions of the embeddings or of a layer; those that change nothing if they are not used there."""
    kind, attention = class_of(name), config.attention
    if not is_used(kind):
        return Positions()
    settings = plugins.bind("positions", name, vars(attention), attention.positions_options).keywords
    return kind(config, **settings)


@plugins.option("positions", "learned")
class Learned(Embedding, Positions):
    """A learned embedding of each position (Devlin et al. 2019, figure 2).

    With `skips_padding` a padding token that is written in a text has no position, and the tokens after it are numbered as if it
    were not there (transformers modeling_roberta.py `create_position_ids_from_input_ids`).
    """

    module_name = "position"

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config.max_position_embeddings, config.embedding_width)
        self.skipped_id = config.pad_token_id if config.skips_padding else None

    def number(self, position_ids: Tensor, input_ids: Tensor) -> Tensor:
        """Return the numbers of the tokens, -1 for those without a position."""
        if self.skipped_id is None:
            return position_ids
        is_skipped, rows = input_ids == self.skipped_id, torch.arange(len(input_ids), device=input_ids.device)
        num_before = is_skipped.cumsum(0) - is_skipped.long()
        return (position_ids - num_before + num_before[rows - position_ids]).masked_fill(is_skipped, -1)

    def embed(self, hidden: Tensor, position_ids: Tensor) -> Tensor:
        """Add the embeddings."""
        if self.skipped_id is None:
            return hidden + self(position_ids)  # type: ignore[no-any-return]
        places: Tensor = self(position_ids.clamp(min=0))
        return hidden + places.masked_fill(position_ids[:, None] < 0, 0)


class Block(NamedTuple):
    """Several blocks of queries with their keys, as positions in a sequence of T tokens.

    Axes: n blocks, each with b queries and C keys. Positions may be outside the sequence; such keys are masked.
    """

    queries: Tensor  # (n, b)
    keys: Tensor  # (n, C)
    allowed: Tensor  # (n, b, C)


@plugins.option("pattern", "full")
@dataclass(frozen=True)
class Pattern:
    """Which keys of its sequence a query attends to; here to all. Patterns with the same settings are equal."""

    is_causal: ClassVar = False  # a query attends to no later key
    is_masked: ClassVar = False  # a query does not attend to some keys
    is_local: ClassVar = False  # a query attends to near keys only
    is_in_blocks: ClassVar = False  # long sequences are cut into blocks
    shares_compression: ClassVar = False  # the layers share one `compression`

    def of_layer(self, layer: int) -> "Pattern":
        """Return the pattern of a layer, counted from 0."""
        return self

    @property
    def key_range(self) -> tuple[int, int] | None:
        """How many tokens before and after a query are its keys, -1: all; None: its keys are no such range."""
        return None if self.is_masked else (-1, -1)

    def over(self, layout: Layout) -> "Pattern":
        """Return the pattern for a batch: with a causal layout, no query attends to a later key."""
        return Earlier(self) if layout.is_causal and not self.is_causal else self

    def compression(self, config: BertConfig) -> nn.Module | None:
        """Make what compresses the keys and values of a layer; None: nothing does."""
        return None

    def allowed(self, length: int) -> Tensor:
        """Whether query i attends to key j in a sequence of T tokens: (T, T)."""
        return torch.ones(length, length, dtype=torch.bool)

    def num_blocks(self, length: int) -> int:
        """Count the blocks into which a sequence is cut; 1: every query is compared with every key."""
        return 1

    def padding_key(self, length: int) -> int:
        """Return what sequences have in common that may be padded to one length."""
        return 1

    def cut(self, length: int, num_blocks: int) -> list[Block]:
        """Cut the queries of a sequence into several blocks, to avoid computing most masked pairs."""
        raise NotImplementedError

    def blocks(self, length: int) -> list[Block]:
        """Return the blocks of a sequence of T tokens, perhaps the whole sequence as one."""
        if (num_blocks := self.num_blocks(length)) > 1:
            return self.cut(length, num_blocks)
        places = torch.arange(length)[None]
        return [Block(places, places, self.allowed(length)[None])]


@dataclass(frozen=True)
class Earlier(Pattern):
    """A query attends to the keys that another pattern allows, but to none after it.

    >>> Earlier(Pattern()).allowed(2).int()
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    """

    inner: Pattern
    is_masked = True

    @property
    def is_causal(self) -> bool:  # type: ignore[override]
        """Whether all earlier keys are allowed."""
        return not self.inner.is_masked

    @property
    def key_range(self) -> tuple[int, int] | None:
        """Those before, none after."""
        return None if self.inner.key_range is None else (self.inner.key_range[0], 0)

    def allowed(self, length: int) -> Tensor:
        """J <= i, and as the other pattern allows."""
        return self.inner.allowed(length).tril()


def make_pattern(attention: AttentionConfig) -> Pattern:
    """Make the pattern of a model."""
    made = plugins.bind("pattern", attention.pattern, vars(attention), attention.pattern_options)()
    return plugins.returned("pattern", attention.pattern, made, Pattern, "a bertkit.model.slots.Pattern")


FULL = Pattern()
