"""The starting model of a run, and the hashes of its weights."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from bertkit.base.files import sha256_file
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.load import hashes_of, resolve_model_dir
from bertkit.model.bert_config import BertConfig
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights
from bertkit.model.layers import depth_of
from bertkit.run.resume_rules import RunSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train import checkpoint


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

    @property
    def weights_sha256(self) -> dict[str, str] | None:
        """The SHA-256 of each file of the starting weights; None for a new model."""
        return None if self.init_from is None else self.init_from["sha256"]

    def rate_scale_of(self, name: str) -> float:
        """Return the factor for the learning rate of a parameter."""
        num_layers = self.model.config.num_hidden_layers
        return float(self.layer_decay ** (num_layers + 1 - depth_of(name, num_layers)))


def starting_weights(settings: RunSettings) -> dict[str, object]:
    """Return the hashes of the starting weights, for the identity of a run; empty if the weights no longer exist."""
    if settings.model_dir is None:
        return {"starting_weights": None}
    if not Path(os.path.expanduser(settings.model_dir)).exists():
        return {}
    return {"starting_weights": sha256_of_start(settings, resolve_model_dir(settings.model_dir))}


def sha256_of_start(settings: RunSettings, source: Path) -> dict[str, str]:
    """Hash the files of the starting weights, and those of the moments if they are loaded."""
    hashes = hashes_of(source)
    if isinstance(settings, PretrainSettings) and settings.init_moments:
        hashes |= {path.name: sha256_file(path) for path in checkpoint.moment_files(source)}
    return hashes


def new_model(config: BertConfig, heads: Sequence[str], with_pooler: bool, seed: int) -> BertWithHeads:
    """Make a model with initial weights."""
    model = BertWithHeads(config, heads, with_pooler=with_pooler)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(seed))
    return model
