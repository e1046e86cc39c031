"""Rotary positions as the `config.json` of a family's member describes them: the base of their wavelengths, perhaps stretched for longer texts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from bertkit.base.errors import InputError
from bertkit.base.intervals import Interval, Positive
from bertkit.base.typed_settings import build, refuse
from bertkit.interop.hugging_face.architecture import Content
from bertkit.model.attention_config import AttentionConfig

KEYS = frozenset({"head_dim", "rope_parameters", "rope_scaling", "rope_theta"})
NAMES = {"attention.rotary_base": "rope_theta", "attention.rotary_factor": "factor"}  # for messages


@dataclass(frozen=True, kw_only=True)
class Rope:
    """The settings in `rope_scaling` or `rope_parameters`."""

    rope_theta: Positive
    rope_type: Literal["default", "linear", "ntk"] = "default"
    factor: Annotated[float, Interval(1, 1e38)] | None = None
    partial_rotary_factor: Literal[1] = 1

    def __post_init__(self) -> None:
        refuse(
            (self.factor is None) != (self.rope_type == "default")
            and f"rope_type={self.rope_type!r} with factor={self.factor}: expected a factor for linear and ntk, and for them alone"
        )


# from base, factor and size of a head to the base and the number by which positions are divided
_STRETCHED: Mapping[str, Callable[[float, float, int], tuple[float, float]]] = {
    "default": lambda base, factor, size: (base, factor),
    "linear": lambda base, factor, size: (base, factor),  # Chen et al. 2023, equation 4
    # in the code of GTE's authors, Alibaba-NLP/new-impl `NTKScalingRotaryEmbedding`; kexue.fm/archives/9706, equation 6
    "ntk": lambda base, factor, size: (base * factor, factor ** (2 / size)),
}


def rotary_attention(full: Content) -> Content:
    """Return the settings `attention.*` of rotary positions; `rope_scaling` has priority over `rope_parameters`, as in `transformers`.

    Raises InputError for other kinds than those above, and for heads of another size than hidden_size / num_attention_heads.
    """
    own, expected = full.get("head_dim"), _head_size(full.get("hidden_size"), full.get("num_attention_heads"))
    refuse(
        expected > 0
        and own not in (None, expected)
        and f"head_dim={own!r} is not supported; bertkit loads hidden_size / num_attention_heads, {expected}, only"
    )
    match full.get("rope_scaling") or full.get("rope_parameters") or {}:
        case dict(given):
            kind = {"rope_type": given.get("type", "default"), "rope_theta": full["rope_theta"]}
            rope = build(Rope, kind | {key: value for key, value in given.items() if key != "type"})
        case given:
            raise InputError(f"{given!r}: expected settings of rotary positions by name")
    base, factor = _STRETCHED[rope.rope_type](rope.rope_theta, rope.factor or 1.0, expected or 1)
    return {"positions": "rotary", "rotary_pairs": "halves", "rotary_base": base, "rotary_factor": factor}


def _head_size(size: object, heads: object) -> int:
    """Return the size of a head; 0 if the file has no valid sizes, which is an error elsewhere."""
    return size // heads if isinstance(size, int) and isinstance(heads, int) and heads > 0 else 0


def rope_parameters(attention: AttentionConfig) -> Content:
    """Return `rope_parameters` for `transformers` 5."""
    base, factor = attention.rotary_base, attention.rotary_factor
    kind: Content = {"rope_type": "default"} if factor == 1 else {"rope_type": "linear", "factor": factor}
    return kind | {"rope_theta": base}
