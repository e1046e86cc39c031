"""The tensors that plug-ins return, checked where bertkit first uses them."""

from collections.abc import Sequence

from torch import Tensor

from bertkit.base import plugins


def returned(slot: str, name: str, result: object, shape: Sequence[int]) -> Tensor:
    """Return the tensor of a plug-in; raises InputError unless its last axes have this shape."""
    shape = tuple(shape)
    if not isinstance(result, Tensor):
        raise plugins.wrong_result(slot, name, result, f"a tensor of shape {shape}")
    if result.shape[-len(shape) :] != shape:
        raise plugins.wrong_result(slot, name, result.shape, f"a tensor of shape {shape}")
    return result
