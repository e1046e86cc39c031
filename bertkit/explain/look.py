"""What there is to see of a model and one input: numbers that are computed elsewhere, and written here as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import in_json

NO_LOOKING = "decoder.score=none: what is written sees the last state of the source, and none of its tokens by itself"
RECURRENT = "The encoder is a recurrence (decoder=rnn): its tokens do not attend to each other."
NO_WEIGHTS = "attention.pattern=linformer compresses keys: there are no weights between tokens, and no view of them"


@dataclass(frozen=True)
class Attribution:
    """What each token adds to the score of a target."""

    values: NDArray[np.float64]  # (T,)
    baseline_score: float  # of the target, for the baseline
    score: float  # of the target, for the input
    num_steps: int  # points of the path between the two

    @property
    def error(self) -> float:
        """By how much the sum of the values misses the difference of the scores, which it should be."""
        return float(self.values.sum()) - (self.score - self.baseline_score)

    def completeness(self) -> str:
        """Say what the values add up to, and how far that is from what they should."""
        difference = self.score - self.baseline_score
        share = f", {abs(self.error / difference):.2%} of it" if difference else ""
        return (
            f"The attributions add up to {self.values.sum():.4f}; the score is {self.score:.4f}, and {self.baseline_score:.4f} "
            f"with [PAD] in place of the tokens, a difference of {difference:.4f}. Missed by {abs(self.error):.2g}{share}, "
            f"with {self.num_steps} steps."
        )


@dataclass(frozen=True)
class Alignment:
    """Which tokens of a source are looked at while each token of a text is written."""

    tokens: Sequence[str]  # T of them, the one that ends the text among them
    token_ids: Sequence[int]  # T of them
    # (L, N, T, C), of each token the shares of the C tokens of the source; None where they are not looked at
    weights: NDArray[np.float32] | None
    is_given: bool = False  # the text is the user's, and not what the model writes
    num_cut: int = 0  # pieces of a given text that did not fit

    def notes(self) -> list[str]:
        """Say what is not there to see."""
        found = []
        if self.is_given:
            found.append("The text below is that of target_text=, not what the model writes.")
        if self.num_cut:
            found.append(f"Its last {self.num_cut:,} pieces are left out (task.generation.max_target_length).")
        if self.weights is None:
            found.append(f"{NO_LOOKING}.")
        return found


@dataclass(frozen=True)
class Look:
    """A model and one input."""

    tokens: Sequence[str]  # T of them
    token_ids: Sequence[int]  # T of them
    segments: Sequence[int]  # 0 for the first text, 1 for the second, T of them
    num_layers: int  # L
    num_heads: int  # N; 0 of a recurrence
    prediction: dict[str, Any] | None  # the row that `predict` writes; None where the model has no head for this input
    target: str | None  # what is explained, in words; None where there is nothing
    marked: Sequence[int]  # the tokens that it is about, such as those of an answer
    attribution: Attribution | None  # of the target; None where there is no target, or nobody asked
    attentions: NDArray[np.float32] | None  # (L, N, T, T); None where there are no weights between tokens
    rollout: NDArray[np.float64] | None  # (L, T, T)
    num_cut: int = 0  # pieces of the input that did not fit
    num_windows: int = 1  # of a long input, of which this is one
    alignment: Alignment | None = None  # of a model that writes, of which nothing is explained; else None

    def notes(self) -> list[str]:
        """Say what is not there to see."""
        found = []
        if self.num_windows > 1:
            found.append(f"The input has {self.num_windows} windows, as the task reads it; this is one of them.")
        if self.num_cut:
            found.append(f"The last {self.num_cut:,} pieces did not fit and are left out (task.max_seq_length).")
        if self.attentions is None:
            found.append(f"{NO_WEIGHTS}." if self.num_heads else RECURRENT)
        if self.alignment is not None:
            found += self.alignment.notes()
        elif self.target is None:
            found.append("The model has no head that predicts something of this input, so there is nothing to explain.")
        elif self.attribution is None:
            found.append("No attributions, as steps=0.")
        return found


def json_parts(look: Look) -> Iterator[str]:
    """Write the numbers as JSON, a matrix at a time; nine digits are enough for every float32."""
    attribution = look.attribution
    about = {
        "tokens": list(look.tokens),
        "token_ids": list(look.token_ids),
        "segments": list(look.segments),
        "num_layers": look.num_layers,
        "num_heads": look.num_heads,
        "prediction": look.prediction,
        "target": look.target,
        "target_tokens": list(look.marked),
        "attributions": None
        if attribution is None
        else {
            "values": attribution.values.tolist(),
            "score": attribution.score,
            "baseline_score": attribution.baseline_score,
            "completeness_error": attribution.error,
            "num_steps": attribution.num_steps,
        },
        "notes": look.notes(),
    }
    yield in_json(json.dumps(about, ensure_ascii=False))[:-1]
    yield ', "attentions": '
    yield from ["null"] if look.attentions is None else _nested(look.attentions, "%.9g")
    yield ', "rollout": '
    yield from ["null"] if look.rollout is None else _nested(look.rollout, "%.17g")
    if look.alignment is not None:
        yield from _alignment_parts(look.alignment)
    yield "}\n"


def _alignment_parts(alignment: Alignment) -> Iterator[str]:
    about = {"tokens": list(alignment.tokens), "token_ids": list(alignment.token_ids), "is_given": alignment.is_given}
    yield f', "alignment": {in_json(json.dumps(about, ensure_ascii=False))[:-1]}, "weights": '
    yield from ["null"] if alignment.weights is None else _nested(alignment.weights, "%.9g")
    yield "}"


def _nested(array: NDArray[np.floating], form: str) -> Iterator[str]:
    """Write an array as lists in lists."""
    if array.ndim == 2:
        line = ", ".join([form] * array.shape[1])
        yield "[" + ", ".join(f"[{line % tuple(row)}]" for row in array.tolist()) + "]"
        return
    for number, each in enumerate(array):
        yield "[" if number == 0 else ", "
        yield from _nested(each, form)
    yield "]"
