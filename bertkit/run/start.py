"""The starting model of a run, and the hashes of its weights."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NotRequired, Self, TypedDict

import torch
from torch import Tensor, nn

from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import Accompanied, BertWithHeads, Trained, own_name
from bertkit.model.initialisation import init_weights
from bertkit.model.layers import depth_of
from bertkit.objectives.objective import Objective, accompanied


class InitFrom(TypedDict):
    """Facts about the starting weights, for the manifest."""

    model_dir: str | None
    summary: str
    sha256: dict[str, str]
    shape: NotRequired[dict[str, object]]


@dataclass(frozen=True)
class Start:
    """The starting model of a run."""

    model: BertWithHeads
    tokenizer: Tokenizer  # saved in every checkpoint
    init_from: InitFrom | None  # facts about the starting weights, for the manifest; None for a new model
    moments: dict[str, Tensor] = field(default_factory=dict)  # the moments of the optimizer, if loaded
    frozen_depth: int = 0  # which lower layers are frozen (`model.layers`)
    layer_decay: float = 1.0  # learning rate of a layer, relative to the layer above it
    made_sha256: str | None = None  # of the weights, if they are those of a model in Python and of no file
    accompanied: Accompanied | None = None  # the model with what its objective trains beside it; None: nothing

    @property
    def trained(self) -> Trained:
        """What the steps of the run train."""
        return self.accompanied or self.model

    def beginning(self, objective: Objective, seed: int) -> Self:
        """Return the start with what an objective trains beside the model."""
        trained = accompanied(self.model, objective, seed)
        return replace(self, accompanied=trained if isinstance(trained, Accompanied) else None)

    @property
    def weights_sha256(self) -> dict[str, str] | None:
        """The SHA-256 of each file of the starting weights; None for a new model."""
        if self.made_sha256 is not None:
            return {"model": self.made_sha256}
        return None if self.init_from is None else self.init_from["sha256"]

    def rate_scale_of(self, name: str) -> float:
        """Return the factor for the learning rate of a parameter."""
        num_layers = self.model.config.num_hidden_layers
        return float(self.layer_decay ** (num_layers + 1 - depth_of(own_name(name), num_layers)))


def new_model(config: BertConfig, heads: Sequence[str], with_pooler: bool, seed: int) -> BertWithHeads:
    """Make a model with initial weights."""
    model = BertWithHeads(config, heads, with_pooler=with_pooler)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(seed))
    return model


def sha256_of(model: nn.Module) -> str:
    """Hash the weights of a model."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
