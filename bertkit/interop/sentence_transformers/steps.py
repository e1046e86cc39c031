"""The modules of sentence-transformers after the pooling, which change the vector of a text: (B, D) -> (B, D')."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.base.errors import InputError
from bertkit.base.files import sha256_file
from bertkit.base.intervals import Size
from bertkit.base.text_files import JsonObject, read_json
from bertkit.base.typed_settings import checked, refuse
from bertkit.interop.hugging_face.config_keys import Keys
from bertkit.interop.hugging_face.weight_files import read_weights, unfit_values

NORMALIZE = "Normalize"
_ON_VECTOR = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
KEYS = {
    "Dense": Keys(
        frozenset({"in_features", "out_features", "bias", "activation_function", "use_residual"}), _ON_VECTOR
    ),
    "LayerNorm": Keys(frozenset({"dimension"}), {}),
    "Dropout": Keys(frozenset(), {}, frozenset({"dropout"})),
    NORMALIZE: Keys(frozenset(), _ON_VECTOR),
}
STEPS = KEYS.keys()
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda vectors: vectors, "Tanh": torch.tanh, "ReLU": F.relu, "GELU": F.gelu, "Sigmoid": torch.sigmoid,
    "SiLU": F.silu,
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A module with its files; `sizes` are those of its input and output, None if they may be any."""

    kind: str
    folder: Path
    sizes: tuple[int, int] | None
    module: nn.Module

    @property
    def files(self) -> dict[str, Path]:
        """Its settings and weights, by their names in `folder`; a normalization may have none."""
        names = ("config.json", "model.safetensors", "pytorch_model.bin")
        return {name: self.folder / name for name in names if (self.folder / name).is_file()}

    @property
    def identity(self) -> tuple[str, ...]:
        """Two steps with the same identity do the same."""
        return (self.kind, *(sha256_file(path) for path in self.files.values()))


class Dense(nn.Module):
    """A linear map and an activation, perhaps added to its input, which may be mapped too."""

    def __init__(self, in_size: int, out_size: int, bias: bool, activation: str, has_residual: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(in_size, out_size, bias)
        is_mapped = has_residual and in_size != out_size
        self.residual = nn.Linear(in_size, out_size, bias=False) if is_mapped else nn.Identity()
        self.activation, self.has_residual = _ACTIVATIONS[activation], has_residual

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, D) -> (B, D')."""
        mapped = self.activation(self.linear(vectors))
        return mapped + self.residual(vectors) if self.has_residual else mapped


class LayerNorm(nn.Module):
    """A layer norm of the vector."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, D) -> (B, D)."""
        return self.norm(vectors)  # type: ignore[no-any-return]


class Normalize(nn.Module):
    """Scales the vector to length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, D) -> (B, D)."""
        return F.normalize(vectors, dim=-1)


@dataclass(frozen=True)
class _DenseSettings:
    """The settings of a dense module, as its file has them."""

    in_features: Size
    out_features: Size
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False


@dataclass(frozen=True)
class _NormSettings:
    """The settings of a layer norm."""

    dimension: Size


def check_keys(path: Path, keys: Keys, settings: JsonObject, others: Sequence[str] = ()) -> None:
    """Raise InputError for a key, or a value, that bertkit does not have, and for `others`."""
    unknown = [f"{each}: unknown key, which may change the vectors" for each in keys.unknown(settings)]
    refuse([f"{path}: {line}" for line in [*keys.faults(settings), *unknown, *others]][:1])


def read_step(kind: str, folder: Path) -> Step | None:
    """Read a module of one of `STEPS`; None for a dropout, which does nothing in inference. Raises InputError if it cannot."""
    path, keys = folder / "config.json", KEYS[kind]
    settings = checked(JsonObject, read_json(path), path) if path.is_file() or kind in ("Dense", "LayerNorm") else {}
    check_keys(path, keys, settings)
    match kind:
        case "Dense":
            dense = checked(_DenseSettings, settings, path)
            name = dense.activation_function
            short = name.rpartition(".")[2]
            if not name.startswith("torch.") or short not in _ACTIVATIONS:
                raise InputError(f"{path}: activation_function={name!r}: expected torch's {', '.join(_ACTIVATIONS)}")
            sizes = dense.in_features, dense.out_features
            with torch.device("meta"):
                module: nn.Module = Dense(*sizes, dense.bias, short, dense.use_residual)
        case "LayerNorm":
            sizes = (checked(_NormSettings, settings, path).dimension,) * 2
            with torch.device("meta"):
                module = LayerNorm(sizes[0])
        case _:
            return Step(kind, folder, None, Normalize()) if kind == NORMALIZE else None
    return _with_weights(Step(kind, folder, sizes, module))


def _with_weights(step: Step) -> Step:
    """Load the weights of a step."""
    tensors = read_weights(step.folder).tensors
    expected = {name: tuple(tensor.shape) for name, tensor in step.module.state_dict().items()}
    actual = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    refuse(
        actual != expected
        and f"{step.folder}: the weights are {actual}, expected {expected}; restore the folder from its source",
        [f"{step.folder}: {problem}" for problem in unfit_values(tensors)],
    )
    step.module.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, assign=True)
    step.module.requires_grad_(False)
    return step
