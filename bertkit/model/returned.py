"""What plug-ins return, checked where bertkit first uses it."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from bertkit.base import plugins


def returned(slot: str, name: str, result: object, shape: Sequence[int]) -> Tensor:
    """Return the tensor of a plug-in; raises InputError unless its last axes have this shape."""
    shape = tuple(shape)
    if not isinstance(result, Tensor):
        raise plugins.wrong_result(slot, name, result, f"a tensor of shape {shape}")
    if result.shape[-len(shape) :] != shape:
        raise plugins.wrong_result(slot, name, result.shape, f"a tensor of shape {shape}")
    return result


def checked_module(slot: str, name: str, made: object, shape_of: Callable[..., Sequence[int]]) -> nn.Module:
    """Return a module; every output of a plug-in's must have the shape that `shape_of` computes from the inputs."""
    if not isinstance(made, nn.Module):
        raise plugins.wrong_result(slot, name, made, "a torch.nn.Module")
    if plugins.is_plugin(slot, name):
        made.register_forward_hook(lambda _, inputs, output: returned(slot, name, output, shape_of(*inputs)))
    return made
