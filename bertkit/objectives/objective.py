"""What a run trains: an `Objective`, which turns drawn batches into loss terms.

    @bertkit.objective
    class SoftLabels(bertkit.Objective):
        def __init__(self, *, weight: float = 0.5) -> None: ...
        def losses(self, model, batch, precision): ...

`objective=SoftLabels objective_options.weight=0.3` trains it, in `pretrain` and in `finetune`. A step draws the examples of a batch as
always; then `prepare` may change them, `counts` gives the divisor of each loss, and `losses` computes their sums. A total loss is the sum
of the means, over the whole batch, however it is cut into micro-batches and shared among processes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from bertkit.base import plugins
from bertkit.base.batch import Batch, Target, loss_name
from bertkit.base.errors import named
from bertkit.base.typed_settings import build
from bertkit.data.data_config import MaskingConfig
from bertkit.model.head.head import head_of
from bertkit.model.heads import Accompanied, BertWithHeads, Trained
from bertkit.objectives.losses import batch_losses
from bertkit.train.losses import LossTerm


@dataclass(frozen=True)
class Moment:
    """When a micro-batch is trained."""

    step: int  # counted from 0
    steps: int  # of the whole run
    number: int  # of the micro-batch in the global batch
    seed: int  # of the run

    @property
    def share(self) -> float:
        """The share of the run that is done, from 0 to below 1."""
        return self.step / self.steps

    def random(self) -> np.random.Generator:
        """Return random numbers that depend on the seed, the step and the micro-batch alone, so that a resumed run has the same."""
        return np.random.default_rng([self.seed, self.step, self.number])


class Objective:
    """The losses of the model's heads: masked or next tokens, with the next sentence if it is predicted, or the labels of a task."""

    # of the model in `pretrain`; None: those for masked or next tokens, with the next sentence if it is predicted. A model with other heads
    # than these, and any for which they are given here, is measured by the losses of the objective on held-out text
    heads: ClassVar[tuple[str, ...] | None] = None
    # of text for `Pretraining`, as `segments=pairs` in `pretrain`: the next sentence head, too, takes pairs
    takes_pairs: ClassVar[bool] = False
    masking = MaskingConfig(
        0.15, 0.8, 0.1
    )  # of text for `Pretraining`, as in BERT; the command `pretrain` has settings for it

    def begin(self, model: BertWithHeads) -> nn.Module | None:
        """Return what is trained beside the model, such as a generator or a projection: no part of it; None: nothing.

        It is called once, before the first step or a resume. Random numbers of torch depend on the seed of the run. Parameters that the
        module shares with the model remain the model's; the others are in checkpoints, and in nothing that is exported.
        """
        return None

    def prepare(self, batch: Batch, moment: Moment) -> Batch:
        """Return what is made of a drawn micro-batch in this step; it depends on the batch and the moment alone."""
        return batch

    def counts(self, batch: Batch) -> Mapping[str, float]:
        """Return the divisor of each loss by its name, for a prepared micro-batch: its number of predictions.

        By default each target has one, except those of pretraining heads that `heads` does not name.
        """
        left_out = set() if self.heads is None else {*_pretraining_heads()} - {*self.heads}
        return {loss_name(head): target.count for head, target in batch.targets.items() if head not in left_out}

    # runs the model on a prepared micro-batch, and returns a term for each of `counts`, summed over its predictions
    losses = staticmethod(batch_losses)


def _pretraining_heads() -> list[str]:
    return [head for head in plugins.names_of("model_head") if head_of(head).task is None]


class MaskedLM(Objective):
    """Masked language modelling with another share of masks than BERT's, or another choice of what is masked.

    Args:
        probability: the share of the tokens to predict.
        kind: which ones: "bert", single tokens; "whole_word"; "ngram"; or a plug-in's masking.
        mask_prob: the share of these that become [MASK].
        random_prob: the share of these that become a random token; the others stay.
    """

    def __init__(
        self, probability: float = 0.15, kind: str = "bert", mask_prob: float = 0.8, random_prob: float = 0.1
    ) -> None:
        own = {"probability": probability, "kind": kind, "mask_prob": mask_prob, "random_prob": random_prob}
        self.masking = build(MaskingConfig, own, "masking")


for _name in ("auto", "masked_lm", "next_token"):  # the heads and the batches tell them apart
    plugins.option("objective", _name)(Objective)


def name_of(objective: Objective) -> str:
    """Return the name of an objective's class, for the settings of a job from Python; "auto" for those that are built in."""
    return "auto" if type(objective) in (Objective, MaskedLM) else type(objective).__name__


def options_of(objective: Objective) -> dict[str, object]:
    """Return the numbers and names that an objective holds, and lists and mappings of them: another value is another run."""

    def is_plain(value: object) -> bool:
        match value:
            case bool() | int() | float() | str():
                return True
            case dict():
                return all(map(is_plain, [*value, *value.values()]))
            case list() | tuple():
                return all(map(is_plain, value))
        return False

    held = {} if name_of(objective) == "auto" else vars(objective)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in held.items() if is_plain(value)}


def accompanied(model: BertWithHeads, objective: Objective, seed: int) -> Trained:
    """Return what is trained: the model, with what the objective trains beside it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        beside = objective.begin(model)
    return model if beside is None else Accompanied(model, beside.to(next(model.parameters()).device))


def make_objective(name: str, options: Mapping[str, object]) -> Objective:
    """Make the objective of a run; raises InputError if a plug-in's is no `Objective`."""
    if not plugins.is_plugin("objective", name):
        return Objective()
    made = plugins.bind("objective", name, options)()
    expected = "an object of a class derived from bertkit.Objective"
    return checked(plugins.returned("objective", name, made, Objective, expected), name)


def checked(objective: Objective, name: str) -> Objective:
    """Return an objective whose results are checked; those of bertkit's own need no check."""
    if type(objective) in (Objective, MaskedLM):
        return objective
    try:
        inspect.signature(objective.losses).bind(None, None, "fp32")
    except TypeError as error:
        raise plugins.fault("objective", name, f"has losses that take no (model, batch, precision): {error}") from None
    return Checked(objective, name)


class Checked(Objective):
    """A plug-in's objective, whose results are checked."""

    def __init__(self, inner: Objective, name: str) -> None:
        self.inner, self.name = inner, name
        self.heads = inner.heads  # type: ignore[misc]
        known = _pretraining_heads()
        if self.heads is not None and not (isinstance(self.heads, tuple) and {*known}.issuperset(self.heads)):
            raise plugins.wrong_result(
                "objective", name, self.heads, f"None, or a tuple of {named(sorted(known))}, as heads"
            )

    def begin(self, model: BertWithHeads) -> nn.Module | None:
        """Return the plug-in's module."""
        made: object = self.inner.begin(model)
        expected = "a torch.nn.Module or None, from begin"
        return None if made is None else plugins.returned("objective", self.name, made, nn.Module, expected)

    def prepare(self, batch: Batch, moment: Moment) -> Batch:
        """Return what the plug-in makes of a batch."""
        prepared = self.inner.prepare(batch, moment)
        prepared = plugins.returned("objective", self.name, prepared, Batch, "a Batch, from prepare")
        for name, target in prepared.targets.items():
            plugins.returned("objective", self.name, target, Target, f"a bertkit.Target as targets[{name!r}]")
        return prepared

    def counts(self, batch: Batch) -> Mapping[str, float]:
        """Return the counts, which are not negative numbers."""
        counts = self.inner.counts(batch)
        if not isinstance(counts, Mapping) or not counts:
            raise plugins.wrong_result(
                "objective", self.name, counts, "the count of each loss by its name, from counts"
            )
        numbers = {str(name): plugins.number("objective", self.name, count) for name, count in counts.items()}
        if min(numbers.values()) < 0:
            raise plugins.wrong_result("objective", self.name, counts, "counts of at least 0")
        return numbers

    def losses(self, model: nn.Module, batch: Batch, precision: str = "fp32") -> dict[str, LossTerm]:
        """Return a term for each count."""
        terms, counts = self.inner.losses(model, batch, precision), self.counts(batch)
        if not isinstance(terms, Mapping):
            raise plugins.wrong_result(
                "objective", self.name, terms, "a LossTerm by the name of each loss, from losses"
            )
        if {*terms} != {*counts}:
            what = f"has the losses {', '.join(terms) or 'none'}, but the counts {', '.join(counts)}; expected the same names"
            raise plugins.fault("objective", self.name, what)
        for name, term in terms.items():
            if not isinstance(term, LossTerm) or term.sum.ndim:
                raise plugins.wrong_result("objective", self.name, term, f"a LossTerm with a single number as {name}")
            if not math.isclose(term.count, counts[name]):
                what = f"as the count of {name} the divisor that counts gives it, {counts[name]:g}"
                raise plugins.wrong_result("objective", self.name, term.count, what)
        if torch.is_grad_enabled() and not any(term.sum.requires_grad for term in terms.values()):
            raise plugins.fault(
                "objective", self.name, "has losses without a gradient; are they detached from the model?"
            )
        return dict(terms)
