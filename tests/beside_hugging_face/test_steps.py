"""200 optimizer steps of bertkit's loop beside Hugging Face's model with the reference AdamW, in float64.

    pytest -m "slow or not slow" -s tests/beside_hugging_face/test_steps.py

prints the largest differences. Same text, same initial weights, same batches, no dropout; bertkit cuts each batch in two
and packs it, the other side pads it and takes it whole.
"""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_text, real_data, small_config, write_text

from bertkit import export_model
from bertkit.base.batch import Batch
from bertkit.base.typed_settings import build
from bertkit.cli import run
from bertkit.data.batches.examples import open_examples
from bertkit.data.corpus.prepared import open_prepared
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.jobs.phases import LengthPhases, make_phases
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights
from bertkit.objectives.losses import batch_losses
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose
from bertkit.train import loop
from bertkit.train.accelerator import make_accelerator
from bertkit.train.loop import Course, Learner
from bertkit.train.optimizer import make_optimizer, parameter_groups
from bertkit.train.schedule import polynomial

STEPS, WARMUP, BATCH, LENGTH, RATE = 200, 20, 16, 40, 1e-3


class ReferenceAdamW:
    """AdamW, clipping and schedule of google-research/bert optimization.py, in numpy, parameter by parameter."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = dict(model.named_parameters())
        self.m = {name: np.zeros(tuple(p.shape)) for name, p in self.parameters.items()}
        self.v = {name: np.zeros(tuple(p.shape)) for name, p in self.parameters.items()}

    def step(self, step: int) -> None:
        rate = RATE * (step / WARMUP if step < WARMUP else 1 - step / STEPS)
        gradients = {name: p.grad.numpy() for name, p in self.parameters.items()}
        norm = np.sqrt(sum((g * g).sum() for g in gradients.values()))
        for name, p in self.parameters.items():
            g = gradients[name] / max(norm, 1.0)
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.999 * self.v[name] + 0.001 * g * g
            update = self.m[name] / (np.sqrt(self.v[name]) + 1e-6)
            weights = p.detach().numpy()  # the same memory
            if not re.search("LayerNorm|layer_norm|bias", name):
                update = update + 0.01 * weights
            weights -= rate * update
            p.grad = None


def padded(batch: Batch) -> dict[str, torch.Tensor]:
    """The same examples as Hugging Face's model takes them: (B, T), labels -100 where nothing is predicted."""
    size = (len(batch.sequence_lengths), LENGTH)
    arrays = {"input_ids": np.zeros(size, np.int64), "token_type_ids": np.zeros(size, np.int64)}
    arrays |= {"attention_mask": np.zeros(size, np.int64), "labels": np.full(size, -100)}
    flat_labels = np.full(len(batch.input_ids), -100)
    flat_labels[batch.masked_positions] = batch.masked_labels
    ends = np.cumsum(batch.sequence_lengths)
    for row, (end, length) in enumerate(zip(ends, batch.sequence_lengths, strict=True)):
        arrays["input_ids"][row, :length] = batch.input_ids[end - length : end]
        arrays["token_type_ids"][row, :length] = batch.token_type_ids[end - length : end]
        arrays["labels"][row, :length] = flat_labels[end - length : end]
        arrays["attention_mask"][row, :length] = 1
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {**tensors, "next_sentence_label": torch.from_numpy(batch.targets["next_sentence"].labels)}


def text(name: str, folder: Path) -> Path:
    if name == "books":
        return real_data("text", "books_en", "part_12.txt")
    return write_text(folder / "text.txt", make_text(61))


@pytest.mark.parametrize(("name", "steps"), [
    ("made up", 30),
    pytest.param("made up", 200, marks=pytest.mark.slow),
    pytest.param("books", 200, marks=pytest.mark.slow),
])  # fmt: skip
def test_losses_and_weights_equal_those_of_transformers(name: str, steps: int, tmp_path: Path) -> None:
    from transformers import BertForPreTraining

    arguments = [f"corpus.path={text(name, tmp_path)}", f"output_dir={tmp_path / 'data'}", "tokenizer.vocab_size=1009"]
    assert run(["prepare", *arguments]) == 0
    dataset = open_prepared(tmp_path / "data")
    overrides = [
        "data_dir=x", "output_dir=y", "model=base", "schedule=google", f"schedule.warmup_steps={WARMUP}", f"steps={STEPS}",
        f"batch.sequences={BATCH}", f"optimizer.peak_learning_rate={RATE}", f"segments.max_seq_length={LENGTH}",
    ]  # fmt: skip
    settings = build(PretrainSettings, compose("pretrain", overrides))

    ours = BertWithHeads(small_config(dataset.tokenizer.vocab_size))
    init_weights(ours, 0.05, torch.Generator().manual_seed(0))
    export_model(ours, dataset.tokenizer, tmp_path / "start")
    theirs = BertForPreTraining.from_pretrained(tmp_path / "start", dtype=torch.float64).train()
    # A random replacement may be [PAD], in Google's code as in ours; Hugging Face alone keeps the gradient of that lookup back.
    theirs.bert.embeddings.word_embeddings.padding_idx = None
    ours = ours.double().train()
    reference = ReferenceAdamW(theirs)

    examples = open_examples(dataset, settings.segments, settings.masking, settings.explicit_keys)
    phases = make_phases(settings, STEPS, examples, tmp_path / "cache", [BATCH // 2])
    whole = LengthPhases([dataclasses.replace(phases.all[0], micro_batches=[(0, BATCH)])])
    config = settings.optimizer
    schedule = settings.schedule
    optimizer = make_optimizer(parameter_groups(ours, config.weight_decay), config)

    def learning_rate(step: int) -> float:
        share = polynomial(step, STEPS, schedule.warmup_of(STEPS), power=schedule.power, decay_from=schedule.decay_from)
        return config.peak_learning_rate * share

    course = Course(
        lambda step: phases.micro_batches(step, 0, 1), learning_rate, 0, steps, config.max_grad_norm, seed=0
    )
    reports = loop.train(Learner(make_accelerator("cpu", 1), ours, optimizer, batch_losses), course)
    losses, differences, num_clipped = [], [], 0
    for report in reports:
        ((_, batch),) = whole.micro_batches(report.step - 1, 0, 1)
        out = theirs(**padded(batch))
        out.loss.backward()
        reference.step(report.step - 1)
        losses.append(sum(report.losses.values()))
        differences.append(abs(losses[-1] - float(out.loss.detach())))
        num_clipped += report.grad_norm > config.max_grad_norm
    actual, expected = huggingface.tensors_of(ours), dict(theirs.named_parameters())
    assert len(expected) == len(set(actual) & set(expected)) > 50
    assert all(tensor.dtype == torch.float64 for tensor in actual.values())
    weights = max(float((actual[name] - parameter.detach()).abs().max()) for name, parameter in expected.items())
    print(
        f"\n{name}: {steps} steps, loss {losses[0]:.3f} to {np.mean(losses[-10:]):.3f}, {num_clipped} clipped; "
        f"largest difference of a loss {max(differences):.1e}, of a weight {weights:.1e}"
    )
    assert len(differences) == steps
    assert max(differences) < 1e-10
    assert weights < 1e-10
    assert 0 < num_clipped < steps  # so that clipping is part of what agrees
    assert np.mean(losses[-10:]) < losses[0] - 0.5  # and the weights have moved
