"""The inputs of the comparison: pairs of real texts, and random ids, with labels for every head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bertkit.base.errors import InputError
from bertkit.base.memory import require_memory
from bertkit.data.corpus.tokenizer import load_tokenizer
from bertkit.interop.hugging_face.config_json import is_decoder, problem_type_of
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads

TEXTS = (
    ("The committee will meet on Tuesday.", "It has not decided anything yet."),
    ("Sie sprach leise, aber deutlich.", "Naïve café owners paid 3.50 € for 12 eggs."),
    ("A", "B"),
    ("Every vector in this sequence is computed twice, once by each implementation, and then compared.", "So is this one."),
    ("Rain.", "The river rose slowly through the night, over the meadows, up to the first houses of the village."),
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """A padded batch, (B, T) or (questions, choices, T), with the labels of each head, or with targets."""

    input_ids: Tensor
    attention_mask: Tensor | None
    token_type_ids: Tensor
    labels: dict[str, Tensor]
    has_targets: bool = False

    @property
    def is_token(self) -> Tensor:
        """Whether a position holds a token, (B, T)."""
        mask = torch.ones_like(self.input_ids) if self.attention_mask is None else self.attention_mask
        return mask.flatten(0, -2).bool()

    def arguments(self) -> dict[str, Tensor]:
        """Return the arguments of both implementations."""
        mask = {} if self.attention_mask is None else {"attention_mask": self.attention_mask}
        source = {"input_ids": self.input_ids, "token_type_ids": self.token_type_ids, **mask}
        written = [name for name in source if self.has_targets and name != "token_type_ids"]
        return source | {f"decoder_{name}": self.of_target(source[name]) for name in written}

    def of_target(self, values: Tensor) -> Tensor:
        """Turn values of the sources into those of the targets: in reverse order, so that the lengths of pairs differ."""
        return values.flip(0)


def make_inputs(model: BertWithHeads, directory: Path, seed: int, num_sequences: int) -> dict[str, Inputs]:
    """Make three batches: pairs of real texts and random ids, both with padding, and random ids at all positions."""
    config, heads = model.config, tuple(model.heads)
    generator = torch.Generator().manual_seed(seed)
    if "choice" in heads:
        num_sequences += num_sequences % 2
    length = min(config.max_position_embeddings, 64)
    numbers = length * (
        config.vocab_size + (config.num_hidden_layers + 1) * config.hidden_size
    )  # logits, hidden states
    require_memory(f"sequences={num_sequences}", 2 * 8 * numbers * num_sequences, "5 are enough to compare")
    cases = {}
    folder = directory if directory.is_dir() else directory.parent  # of a TensorFlow checkpoint's prefix
    if any((folder / name).is_file() for name in ("vocab.txt", "tokenizer.json")):
        tokenizer = load_tokenizer(folder)
        if tokenizer.vocab_size != config.vocab_size:
            raise InputError(
                f"{directory}: the tokenizer has {tokenizer.vocab_size} tokens, the embeddings {config.vocab_size} rows; "
                "bring the tokenizer of this model, or add unused tokens to vocab.txt where the rows were padded"
            )
        firsts, seconds = zip(*(TEXTS[index % len(TEXTS)] for index in range(num_sequences)), strict=True)
        text = tokenizer(
            list(firsts), list(seconds), padding=True, truncation=True, max_length=length, return_tensors="pt"
        )
        types = text["token_type_ids"].clamp(max=config.type_vocab_size - 1)
        cases["text, padded"] = _with_labels(text["input_ids"], text["attention_mask"], types, config, heads)
    lengths = torch.randint(3, length + 1, (num_sequences,), generator=generator)
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    ids, types = _random_ids(config, (num_sequences, length), generator)
    cases["random ids, padded"] = _with_labels(ids, mask, types, config, heads)
    ids, types = _random_ids(config, (2 if "choice" in heads else 1, config.max_position_embeddings), generator)
    cases["random ids, all positions"] = _with_labels(ids, None, types, config, heads)
    return cases


def _random_ids(config: BertConfig, shape: tuple[int, int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    ids = torch.randint(config.vocab_size, shape, generator=generator)
    ids[ids == config.pad_token_id] = (config.pad_token_id + 1) % config.vocab_size
    return ids, torch.randint(config.type_vocab_size, shape, generator=generator)


def _with_labels(ids: Tensor, mask: Tensor | None, types: Tensor, config: BertConfig, heads: tuple[str, ...]) -> Inputs:
    """Add labels for each head: masked LM at about 15 % of the tokens, at least one in a sequence.

    All sequences have the same label, the last one: with different labels the gradients of a pretrained model nearly cancel,
    and little but rounding remains in float32.
    """
    num_sequences = len(ids)
    is_token = torch.ones_like(ids).bool() if mask is None else mask.bool()
    labels: dict[str, Tensor] = {}
    for head in heads:
        match head:
            case "masked_lm" if is_decoder(config):
                continue  # the class of transformers has the loss of the next token
            case "masked_lm":
                chosen = (torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.15) & is_token
                chosen[:, 1] = is_token[:, 1]
                labels[head] = torch.where(chosen, ids, -100)
            case "next_sentence":
                labels[head] = torch.ones(num_sequences, dtype=torch.long)
            case "sequence" if problem_type_of(config) == "single_label_classification":
                labels[head] = torch.full((num_sequences,), len(config.labels) - 1)
            case "sequence":
                labels[head] = torch.ones(num_sequences, len(config.labels))
            case "token":
                labels[head] = torch.where(is_token, len(config.labels) - 1, -100)
            case "span":
                labels[head] = torch.tensor([1, 2]).expand(num_sequences, 2)
            case "choice":
                ids, types = (tensor.view(num_sequences // 2, 2, -1) for tensor in (ids, types))
                mask = None if mask is None else mask.view(num_sequences // 2, 2, -1)
                labels[head] = torch.ones(num_sequences // 2, dtype=torch.long)
    return Inputs(ids, mask, types, labels, "generation" in heads)
