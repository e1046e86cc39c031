"""How each head is compared: labels for a batch, its loss, and the names of its values in `transformers`."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.interop.hugging_face.config_json import problem_type_of
from bertkit.model.bert_config import BertConfig, ProblemType

_LOSSES: dict[ProblemType, Callable[[Tensor, Tensor], Tensor]] = {
    "regression": F.mse_loss,
    "multi_label_classification": F.binary_cross_entropy_with_logits,
    "single_label_classification": F.cross_entropy,
}


class HeadComparison:
    """The comparison of a head that predicts the class of a sequence.

    All sequences have the same label, the last one. With different labels, the gradients of a pretrained model nearly cancel,
    and mostly rounding errors would be compared.
    """

    num_choices = 1  # sequences of an example
    # whether the gradients are those of the loss; they nearly cancel if it is invariant to a shift of all logits
    uses_loss = True

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the labels of a batch, from its ids, (B, T)."""
        return torch.ones(len(ids) // self.num_choices, dtype=torch.long)

    def loss(self, logits: Tensor, labels: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the mean loss."""
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten())

    def their_labels(self, labels: Tensor) -> dict[str, Tensor]:
        """Return the labels as arguments of the `transformers` class with this head alone."""
        return {"labels": labels}

    def their_logits(self, output: Mapping[str, Tensor]) -> Tensor:
        """Return the logits from the output of this class."""
        return output["logits"]

    def is_their_loss(self, is_token: Tensor) -> bool:
        """Whether `transformers` computes the same loss."""
        return True


class MaskedLMComparison(HeadComparison):
    """Labels at about 15 % of the tokens, at least one in each sequence."""

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the ids of the chosen tokens, -100 elsewhere."""
        chosen = (torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.15) & is_token
        chosen[:, 1] = is_token[:, 1]
        return torch.where(chosen, ids, -100)


class NextTokenComparison(HeadComparison):
    """The next token, at every token."""

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the ids, -100 in padding."""
        return torch.where(is_token, ids, -100)

    def loss(self, logits: Tensor, labels: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the loss of each token's prediction of the next one."""
        return super().loss(logits[:, :-1], labels[:, 1:], is_token, config)

    def is_their_loss(self, is_token: Tensor) -> bool:
        """The loss of `transformers` is always in float32."""
        return False


class SequenceComparison(HeadComparison):
    """Classes or numbers, by the problem type."""

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the last class, or ones."""
        if problem_type_of(config) == "single_label_classification":
            return torch.full((len(ids),), len(config.labels) - 1)
        return torch.ones(len(ids), len(config.labels))

    def loss(self, logits: Tensor, labels: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the loss of the problem type."""
        return _LOSSES[problem_type_of(config)](logits, labels)


class TokenComparison(HeadComparison):
    """The last class, at every token."""

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the last class, -100 in padding."""
        return torch.where(is_token, len(config.labels) - 1, -100)


class SpanComparison(HeadComparison):
    """An answer from the second to the third token."""

    uses_loss = False

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return start and end, (B, 2)."""
        return torch.tensor([1, 2]).expand(len(ids), 2)

    def loss(self, logits: Tensor, labels: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the mean loss of start and end, for logits (B, T, 2); padding cannot be an answer."""
        scores = logits.masked_fill(~is_token[..., None], float("-inf"))
        return (F.cross_entropy(scores[..., 0], labels[:, 0]) + F.cross_entropy(scores[..., 1], labels[:, 1])) / 2

    def their_labels(self, labels: Tensor) -> dict[str, Tensor]:
        """Return start and end as two arguments."""
        return {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}

    def their_logits(self, output: Mapping[str, Tensor]) -> Tensor:
        """Stack the logits of start and end."""
        return torch.stack([output["start_logits"], output["end_logits"]], -1)

    def is_their_loss(self, is_token: Tensor) -> bool:
        """The loss of `transformers` counts padding as possible answers."""
        return bool(is_token.all())


class ChoiceComparison(HeadComparison):
    """The second of two choices."""

    num_choices = 2
    uses_loss = False


COMPARISONS = {
    "masked_lm": MaskedLMComparison(), "next_token": NextTokenComparison(), "next_sentence": HeadComparison(), "sequence": SequenceComparison(),
    "token": TokenComparison(), "span": SpanComparison(), "choice": ChoiceComparison(),
}  # fmt: skip


def their_labels(labels: Mapping[str, Tensor], next_sentence: str) -> dict[str, Tensor]:
    """Return the labels of a model's heads as arguments of its class in `transformers`; `next_sentence` is the name beside another head."""
    if len(labels) == 2:
        return {"labels": labels["masked_lm"], next_sentence: labels["next_sentence"]}
    return {
        name: tensor for head, label in labels.items() for name, tensor in COMPARISONS[head].their_labels(label).items()
    }


def their_logits(output: Mapping[str, Tensor], heads: tuple[str, ...], next_sentence: str) -> dict[str, Tensor]:
    """Return the logits by bertkit's heads, from the output of the class in `transformers`; a decoder's are those of a text."""
    if len(heads) == 2:
        return {"masked_lm": output["prediction_logits"], "next_sentence": output[next_sentence]}
    return {head: COMPARISONS.get(head, HeadComparison()).their_logits(output) for head in heads}
