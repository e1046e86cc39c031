"""The units of a regression's labels."""

import pytest
import torch
from conftest import small_model

from bertkit.interop.hugging_face.directory import tensors_of
from bertkit.model.label_scale import LabelUnits, in_own_units, label_scale, learn_in_units


def test_units_are_the_nearest_power_of_two() -> None:
    assert LabelUnits.of(torch.tensor([100.0, 300.0], dtype=torch.float64)) == LabelUnits(128.0, 200.0)
    assert LabelUnits.of(torch.tensor([0.001, 0.003], dtype=torch.float64)) == LabelUnits(2.0**-10, 0.002)
    assert LabelUnits.of(torch.tensor([7, 7])) == LabelUnits(1.0, 7.0)


@pytest.mark.parametrize("task_transform", [False, True])  # as in BERT and in ModernBERT
@pytest.mark.parametrize("is_new", [True, False])
def test_weights_are_saved_in_own_units_and_keep_every_bit(is_new: bool, task_transform: bool) -> None:
    shape = {"labels": ("score",), "problem_type": "regression", "task_transform": task_transform}
    model = small_model(11, heads=("sequence",), **shape)
    before = {name: tensor.clone() for name, tensor in tensors_of(model).items()}
    hidden = torch.randn(5, model.config.hidden_size)
    expected = model.heads["sequence"].eval()(hidden)
    learn_in_units(model, LabelUnits(2.0**13, 20_000.0), is_new=is_new)
    assert label_scale(model) == 2.0**13
    training = {name: tensor.clone() for name, tensor in tensors_of(model).items()}
    with in_own_units(model):
        saved = {name: tensor.clone() for name, tensor in tensors_of(model).items()}
    assert all(torch.equal(tensor, training[name]) for name, tensor in tensors_of(model).items())
    assert saved.keys() == before.keys()
    outputs = model.heads["sequence"].eval()(hidden)
    if is_new:
        assert saved["classifier.bias"].item() == pytest.approx(20_000)
        assert outputs.mean().item() == pytest.approx(20_000, rel=0.5)
    else:
        assert all(torch.equal(tensor, before[name]) for name, tensor in saved.items())
        assert torch.allclose(outputs, expected, rtol=1e-5, atol=1e-6)
