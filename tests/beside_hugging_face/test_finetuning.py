"""50 steps of fine-tuning beside Hugging Face's classes with torch's AdamW: the losses of every head agree.

    pytest -s tests/beside_hugging_face/test_finetuning.py

prints the largest differences. Same initial weights and batches, one layer, no dropout; bertkit cuts each batch in two and packs it.
Sequences of a batch are equally long, for Hugging Face's span loss takes padding into its softmax.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import POSITIONS, small_model

from bertkit import export_model
from bertkit.base.batch import Batch
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.model.bert_config import DecoderConfig
from bertkit.model.head.head import any_pooled
from bertkit.objectives.losses import batch_losses
from bertkit.tasks.batching import Cut, FeatureBatches, TrainingOrder
from bertkit.tasks.feature import Feature
from bertkit.train import loop
from bertkit.train.accelerator import make_accelerator
from bertkit.train.loop import Course, Learner
from bertkit.train.optimizer import make_optimizer, parameter_groups
from bertkit.train.schedule import polynomial
from bertkit.train.train_config import OptimizerConfig

STEPS, WARMUP, BATCH, LENGTH, RATE, NUM_LABELS = 50, 5, 13, 17, 2e-3, 3
KINDS = {
    "classification": ("sequence", "BertForSequenceClassification"),
    "regression": ("sequence", "BertForSequenceClassification"),
    "several labels": ("sequence", "BertForSequenceClassification"),
    "tagging": ("token", "BertForTokenClassification"),
    "spans": ("span", "BertForQuestionAnswering"),
    "choice": ("choice", "BertForMultipleChoice"),
    "generation": ("generation", "EncoderDecoderModel"),
}


def make_features(kind: str, vocab_size: int, rng: np.random.Generator) -> list[Feature]:
    """Made-up sequences whose labels can be read off their tokens."""
    features = []
    for example in range(4 * BATCH):
        ids = rng.integers(5, vocab_size, LENGTH).tolist()
        types = [0] * LENGTH if kind == "generation" else [0] * 7 + [1] * (LENGTH - 7)
        first = sorted(rng.integers(0, LENGTH, 2).tolist())
        label: Any = {
            "classification": ids[3] % NUM_LABELS,
            "regression": ids[3] / vocab_size,
            "several labels": [float(ids[n] % 2) for n in range(NUM_LABELS)],
            "tagging": [token % NUM_LABELS if token % 4 else -100 for token in ids],
            "spans": tuple(first),
            "choice": example // 2 % 2,
            "generation": ids[:2] + ids[9:2:-1],
        }[kind]
        field = {"tagging": "token_labels", "generation": "target_ids"}.get(kind, "label")
        features.append(Feature(example // 2 if kind == "choice" else example, ids, types, **{field: label}))
    return features


def theirs_of(batch: Batch) -> dict[str, torch.Tensor]:
    """The same batch as Hugging Face's classes take it."""
    ((head, target),) = batch.targets.items()
    shape = (-1, 2, LENGTH) if head == "choice" else (-1, LENGTH)
    inputs = {name: torch.from_numpy(getattr(batch, name)).view(shape) for name in ("input_ids", "token_type_ids")}
    labels = torch.from_numpy(target.labels)
    if head == "generation":  # all of segment 0
        assert batch.decoder_ids is not None
        rows = len(batch.sequence_lengths)
        read, output = torch.from_numpy(batch.decoder_ids).view(rows, -1), labels.view(rows, -1)
        return {"input_ids": inputs["input_ids"], "decoder_input_ids": read, "labels": output}
    if head == "span":
        return {**inputs, "start_positions": labels[:, 0], "end_positions": labels[:, 1]}
    labels = labels.view(-1, LENGTH) if head == "token" else labels
    return {**inputs, "labels": labels.float() if labels.is_floating_point() else labels}


@pytest.mark.parametrize("kind", KINDS)
def test_fine_tuning_losses_equal_those_of_transformers(kind: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    head, architecture = KINDS[kind]
    problem: dict[str, Any] = {"labels": ("a", "b", "c")}
    if kind == "regression":
        problem = {"labels": ("score",), "problem_type": "regression"}
    if kind == "generation":
        problem = {"decoder": DecoderConfig(kind="bert")}
    if kind == "several labels":
        problem["problem_type"] = "multi_label_classification"
    ours = small_model(
        tokenizer.vocab_size, heads=(head,), with_pooler=any_pooled([head]), num_hidden_layers=1, **problem
    )
    export_model(ours, tokenizer, tmp_path / "model")
    theirs = getattr(transformers, architecture).from_pretrained(tmp_path / "model").train()
    features = make_features(kind, tokenizer.vocab_size, np.random.default_rng(0))
    batches = FeatureBatches(features, head, num_choices=2 if kind == "choice" else 1)
    order = TrainingOrder(batches, BATCH, seed=0, cut=Cut(None, None, 2))
    config = OptimizerConfig(
        name="adamw", peak_learning_rate=RATE, beta1=0.9, beta2=0.999, epsilon=1e-6, weight_decay=0.01,
        bias_correction=True, max_grad_norm=1e9,
    )  # fmt: skip
    ours_optimizer = make_optimizer(parameter_groups(ours.train(), config.weight_decay), config)

    def learning_rate(step: int) -> float:
        return RATE * polynomial(step, STEPS, WARMUP)

    course = Course(lambda step: order.micro_batches(step, 0, 1), learning_rate, 0, STEPS, config.max_grad_norm, seed=0)
    reports = loop.train(Learner(make_accelerator("cpu", 1), ours, ours_optimizer, batch_losses), course)
    decayed = [p for name, p in theirs.named_parameters() if not name.endswith(".bias") and "LayerNorm" not in name]
    kept = [p for name, p in theirs.named_parameters() if name.endswith(".bias") or "LayerNorm" in name]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS)
    whole = dataclasses.replace(order, cut=Cut(None, None, 1))
    losses, differences = [], []
    for report in reports:
        assert len(order.micro_batches(report.step - 1, 0, 1)) == 2
        ((_, batch),) = whole.micro_batches(report.step - 1, 0, 1)
        loss = theirs(**theirs_of(batch)).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(report.losses[head])
        differences.append(abs(losses[-1] - float(loss.detach())))
    actual, expected = huggingface.tensors_of(ours), dict(theirs.named_parameters())
    assert set(actual) == set(expected)
    weights = max(float((actual[name] - parameter.detach()).abs().max()) for name, parameter in expected.items())
    print(
        f"\n{kind}: {STEPS} steps, loss {losses[0]:.3f} to {np.mean(losses[-4:]):.3f}; largest difference of a loss "
        f"{max(differences):.1e}, of a weight {weights:.1e}"
    )
    assert LENGTH < POSITIONS
    assert len(differences) == STEPS
    assert max(differences) < 1e-5
    assert weights < 1e-3
    assert abs(losses[0] - np.mean(losses[-4:])) > 0.01  # the weights have moved
