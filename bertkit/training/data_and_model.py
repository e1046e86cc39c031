"""The dataset and the model of a job from Python."""

from __future__ import annotations

import os
from pathlib import Path

from bertkit.base.hub_ids import path_of
from bertkit.base.typed_settings import build
from bertkit.data.corpus.prepared import PreparedDataset, open_prepared
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.jobs.pretraining_plan import config_of
from bertkit.model.heads import BertWithHeads
from bertkit.objectives.objective import Objective
from bertkit.run.start import new_model as initialised
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose_values
from bertkit.training.from_python import NOWHERE, OF_FIT, OF_JOB, refuse_set_elsewhere


def open_dataset(data_dir: str | os.PathLike[str]) -> PreparedDataset:
    """Open a prepared dataset, the output of `bertkit prepare`; raises InputError if it is none."""
    return open_prepared(Path(path_of(data_dir)))


def new_model(
    name: str, tokenizer: Tokenizer, *, objective: Objective | None = None, seed: int = 0, **settings: object
) -> BertWithHeads:
    """Make a model with initial weights, of one of the shapes of `bertkit pretrain model=`, for the vocabulary of a tokenizer.

    `settings` are those of `pretrain` that concern the model: `segments="pairs"` adds the next sentence head. An `objective` with heads of
    its own has them. For `model.frequency_biases`, which needs a text, call `model.heads["masked_lm"].begin_with`.

    Raises InputError if a setting is wrong.
    """
    refuse_set_elsewhere({**OF_FIT, **OF_JOB}, settings.keys())
    own = {"model": name, "segments": "full_sentences", "segments.max_seq_length": 8, "seed": seed, **settings}
    chosen = build(PretrainSettings, compose_values("pretrain", {**NOWHERE, **own}))
    heads = chosen.heads if objective is None or objective.heads is None else objective.heads
    made = initialised(config_of(chosen, tokenizer.facts), heads, "next_sentence" in heads, seed)
    made.tokenizer = tokenizer
    return made
