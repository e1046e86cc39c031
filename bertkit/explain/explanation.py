"""The explanation of one input, as a value and as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import in_json

NO_ALIGNMENT = "decoder.score=none: the decoder reads the last state of the source, and attends to none of its tokens"
RECURRENT = "The encoder is recurrent (decoder=rnn): its tokens do not attend to each other."
NO_WEIGHTS = "attention.pattern=linformer compresses the keys: there are no weights between tokens"


@dataclass(frozen=True)
class Attribution:
    """The share of every token in the score of a target."""

    values: NDArray[np.float64]  # (T,)
    baseline_score: float  # the target's score for the baseline
    score: float  # the target's score for the input
    num_steps: int  # points of the path between the two

    @property
    def error(self) -> float:
        """The sum of the values, less the difference of the scores, which it should equal."""
        return float(self.values.sum()) - (self.score - self.baseline_score)

    def completeness(self) -> str:
        """Write the sum of the values beside the difference of the scores."""
        difference = self.score - self.baseline_score
        share = f", {abs(self.error / difference):.2%} of it" if difference else ""
        return (
            f"The attributions add up to {self.values.sum():.4f}; the score is {self.score:.4f}, and {self.baseline_score:.4f} "
            f"with [PAD] in place of the tokens, a difference of {difference:.4f}. The error is {abs(self.error):.2g}{share}, with "
            f"{self.num_steps} steps."
        )


@dataclass(frozen=True)
class Alignment:
    """The source tokens that the decoder attends to while it writes each token of a text."""

    tokens: Sequence[str]  # T of them, with the end of the text
    token_ids: Sequence[int]  # T of them
    weights: NDArray[np.float32] | None  # (L, N, T, C), shares of the C source tokens; None without cross-attention
    is_given: bool = False  # whether the text is target_text, and not the model's own
    num_cut: int = 0  # pieces of target_text that did not fit

    def notes(self) -> list[str]:
        """Give the limits of this alignment, a sentence each."""
        notes = {
            "The text below is target_text=, not the model's own.": self.is_given,
            f"Its last {self.num_cut:,} pieces did not fit (task.generation.max_target_length).": self.num_cut,
            f"{NO_ALIGNMENT}.": self.weights is None,
        }
        return [note for note, holds in notes.items() if holds]


@dataclass(frozen=True)
class Explanation:
    """One input as a model reads it."""

    tokens: Sequence[str]  # T of them
    token_ids: Sequence[int]  # T of them
    segments: Sequence[int]  # 0 for the first text, 1 for the second, T of them
    num_layers: int  # L
    num_heads: int  # N; 0 for a recurrent encoder
    prediction: dict[str, Any] | None  # the row that `predict` writes; None if no head predicts anything for this input
    target: str | None  # the explained target in words; None without one
    marked: Sequence[int]  # the target's own tokens, such as those of an answer
    attribution: Attribution | None  # None without a target, or with steps=0
    attentions: NDArray[np.float32] | None  # (L, N, T, T); None if there are no weights between tokens
    rollout: NDArray[np.float64] | None  # (L, T, T)
    num_cut: int = 0  # pieces of the input that did not fit
    num_windows: int = 1  # of a long input; this is one of them
    alignment: Alignment | None = None  # for a model that writes, which has no target

    def notes(self) -> list[str]:
        """Give the limits of this explanation, a sentence each."""
        notes = {
            f"The input has {self.num_windows} windows; this is one of them.": self.num_windows > 1,
            f"The last {self.num_cut:,} pieces did not fit (task.max_seq_length).": self.num_cut,
            f"{NO_WEIGHTS}." if self.num_heads else RECURRENT: self.attentions is None,
        }
        if self.alignment is None:
            notes["The model has no head for this input, so there is nothing to explain."] = self.target is None
            notes["No attributions, as steps=0."] = self.target is not None and self.attribution is None
        own = self.alignment.notes() if self.alignment is not None else []
        return [note for note, holds in notes.items() if holds] + own


def json_parts(explanation: Explanation) -> Iterator[str]:
    """Write an explanation as JSON, a matrix at a time; nine digits are exact for float32."""
    attribution, alignment = explanation.attribution, explanation.alignment
    attributions = attribution and {
        "values": attribution.values.tolist(),
        "score": attribution.score,
        "baseline_score": attribution.baseline_score,
        "completeness_error": attribution.error,
        "num_steps": attribution.num_steps,
    }
    names = ("tokens", "token_ids", "segments", "num_layers", "num_heads", "prediction", "target")
    about = {name: getattr(explanation, name) for name in names}
    about |= {"target_tokens": explanation.marked, "attributions": attributions, "notes": explanation.notes()}
    yield from _open_object(about)
    yield ', "attentions": '
    yield from _nested(explanation.attentions, "%.9g")
    yield ', "rollout": '
    yield from _nested(explanation.rollout, "%.17g")
    if alignment is not None:
        yield ', "alignment": '
        yield from _open_object({name: getattr(alignment, name) for name in ("tokens", "token_ids", "is_given")})
        yield ', "weights": '
        yield from _nested(alignment.weights, "%.9g")
        yield "}"
    yield "}\n"


def _open_object(values: dict[str, Any]) -> Iterator[str]:
    """Write a JSON object without its end."""
    yield in_json(json.dumps(values, ensure_ascii=False))[:-1]


def _nested(array: NDArray[np.floating] | None, form: str) -> Iterator[str]:
    """Write an array as nested lists, or null."""
    if array is None:
        yield "null"
        return
    if array.ndim == 2:
        line = ", ".join([form] * array.shape[1])
        yield "[" + ", ".join(f"[{line % tuple(row)}]" for row in array.tolist()) + "]"
        return
    for number, part in enumerate(array):
        yield "[" if number == 0 else ", "
        yield from _nested(part, form)
    yield "]"
