"""The names of labels and logits of a model's heads in its class of `transformers`."""

from collections.abc import Mapping

from torch import Tensor

from bertkit.model.head.head import head_of


def their_labels(labels: Mapping[str, Tensor], next_sentence: str) -> dict[str, Tensor]:
    """Return the labels of a model's heads as arguments of its class in `transformers`; `next_sentence` is the name beside another head."""
    if len(labels) == 2:
        return {"labels": labels["masked_lm"], next_sentence: labels["next_sentence"]}
    return {
        name: tensor for head, label in labels.items() for name, tensor in head_of(head).their_labels(label).items()
    }


def their_logits(output: Mapping[str, Tensor], heads: tuple[str, ...], next_sentence: str) -> dict[str, Tensor]:
    """Return the logits by bertkit's heads, from the output of the class in `transformers`; a decoder's are those of a text."""
    if len(heads) == 2:
        return {"masked_lm": output["prediction_logits"], "next_sentence": output[next_sentence]}
    return {head: head_of(head).their_logits(output) for head in heads}
