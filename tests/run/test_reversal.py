"""What attention is for: every decoder that looks back at its source learns to copy and to reverse it, and without it none does.

`pytest -m slow tests/run/test_reversal.py` trains them, about ten minutes on one core.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertkit.batch import TaskBatch
from bertkit.kernels import fast
from bertkit.model.bert import init_weights
from bertkit.model.config import AttentionConfig, BertConfig, DecoderConfig
from bertkit.model.heads import BertWithHeads
from bertkit.run.generating import write_texts
from bertkit.run.objective import task_losses
from bertkit.settings.finetune import DecoderSettings
from bertkit.tasks.config import GenerationConfig

START, END, FIRST, VOCAB = 1, 2, 3, 13
SEARCH = GenerationConfig(18, 1, 1.0, 0.0, 1, False, 1.0, None, None)
WITH_ATTENTION = ("bert", "transformer", "additive", "dot", "general", "location")


def make_model(kind: str) -> BertWithHeads:
    decoder = kind if kind in ("bert", "transformer") else "rnn"
    places = {"bert": "learned", "transformer": "sinusoidal"}.get(kind, "none")
    config = BertConfig(
        hidden_size=64, num_hidden_layers=1 if decoder == "rnn" else 2, num_attention_heads=4, intermediate_size=128,
        hidden_act="gelu", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=18,
        type_vocab_size=1, initializer_range=DecoderSettings(kind=decoder).std_of(64),  # type: ignore[arg-type]
        layer_norm_eps=1e-12, vocab_size=VOCAB,
        attention=AttentionConfig(positions=places),  # type: ignore[arg-type]
        decoder=DecoderConfig(
            kind=decoder,  # type: ignore[arg-type]
            score=kind if decoder == "rnn" else "additive",  # type: ignore[arg-type]
            start_token_id=START, end_token_id=END,
        ),
    )  # fmt: skip
    model = BertWithHeads(config, ("generation",), with_pooler=False)
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    model.use(fast.choose("auto"))
    return model


def make_batch(rng: np.random.Generator, size: int, is_reversed: bool) -> tuple[TaskBatch, list[list[int]]]:
    """Rows of 4 to 16 numbers, sorted by length, and what is to be made of them."""
    lengths = np.sort(rng.integers(4, 17, size))
    rows = [rng.integers(FIRST, VOCAB, length) for length in lengths]
    wanted = [row[::-1] if is_reversed else row for row in rows]
    inputs = np.concatenate([[START, *row, END] for row in rows])
    before, after = (
        np.concatenate(each) for each in ([[START, *row] for row in wanted], [[*row, END] for row in wanted])
    )
    batch = TaskBatch(
        "generation", inputs, np.zeros_like(inputs), lengths + 2, after, target_ids=before, target_lengths=lengths + 1
    )
    return batch, [row.tolist() for row in wanted]


def share_of_right_texts(kind: str, is_reversed: bool, steps: int) -> float:
    model, rng = make_model(kind), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)
    for _ in range(steps):
        batch, _ = make_batch(rng, 64, is_reversed)
        term = task_losses(model, batch)["generation"]
        (term.sum / term.count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    batch, wanted = make_batch(np.random.default_rng(1), 500, is_reversed)
    return float(
        np.mean(
            [texts[0][0] == row for texts, row in zip(write_texts(model.eval(), batch, SEARCH), wanted, strict=True)]
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("is_reversed", [False, True], ids=["copy", "reversal"])
@pytest.mark.parametrize("kind", WITH_ATTENTION)
def test_attention_solves_it(kind: str, is_reversed: bool) -> None:
    assert share_of_right_texts(kind, is_reversed, 1000) > 0.99


@pytest.mark.slow
def test_the_last_state_alone_does_not() -> None:
    assert share_of_right_texts("none", True, 1000) < 0.9  # measured: 0.32
