"""What a model directory contains: its files, and the weights by bertkit's names.

Loading is strict: every tensor of the directory is loaded or left out by a named rule, every parameter of the model is loaded
or newly initialised by a named rule, and anything else is an error that lists the names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bertkit.base.errors import InputError, listed, refusing
from bertkit.interop.hugging_face.architecture import Architecture
from bertkit.interop.hugging_face.config_json import config_of, read_content, type_of, warn_once
from bertkit.interop.hugging_face.names import in_decoder, in_masked_lm
from bertkit.interop.hugging_face.weight_files import unfit_values
from bertkit.interop.model_dir import files_of
from bertkit.interop.sentence_transformers.folder import cross_encoder_keys
from bertkit.model.bert_config import BertConfig, problem_type_of
from bertkit.model.head.head import head_of, in_order


@dataclass(frozen=True)
class Stored:
    """What a model directory contains. Preparing a model changes the weights, and adds to what was left out."""

    directory: Path
    config_path: Path
    config: BertConfig
    architecture: Architecture
    tensors: dict[str, Tensor]  # all tensors, by their full names in Hugging Face's classes
    our_names: dict[str, str]  # bertkit's names by full names; other tensors are unknown
    weights: dict[str, Tensor]  # the known tensors, by bertkit's names
    skipped: dict[str, str]  # tensors left out, with the reason
    file_names: dict[str, str]  # the names of tensors in the file, by their full names

    def name_in_file(self, full_name: str) -> str:
        """Return the name that a tensor has in the file, or would have if it is missing."""
        prefix, names = self.architecture.prefix, self.file_names.values()
        is_bare = not any(name.startswith(prefix) for name in names)
        return self.file_names.get(full_name, full_name.removeprefix(prefix) if is_bare else full_name)

    @property
    def parts(self) -> set[str]:
        """The parts of a model for which there are weights, such as `bert.pooler` and `heads.sequence`."""
        return {part_of(name) for name in self.weights}

    @property
    def heads(self) -> list[str]:
        """The heads for which there are weights."""
        return in_order(part.removeprefix("heads.") for part in sorted(self.parts) if part.startswith("heads."))

    @property
    def has_decoder_apart(self) -> bool:
        """Whether a weight of the decoder differs from the encoder's."""
        pairs = [(name, in_decoder(name)) for name in self.weights if name.startswith("bert.")]
        return any(
            twin in self.weights and not torch.equal(self.weights[name], self.weights[twin]) for name, twin in pairs
        )


def part_of(name: str) -> str:
    """Return the part of a model to which a parameter belongs, such as `bert.encoder` or `heads.sequence`."""
    return ".".join(name.split(".")[:2])


def read_stored(directory: Path) -> Stored:
    """Read a directory from `resolve_model_dir`; raises InputError if a file is damaged, or its settings are not supported."""
    files = files_of(directory)
    path, read = files.config, files.read()
    content = read_content(path) | cross_encoder_keys(files.folder)
    architecture = type_of(path, content)
    with refusing(InputError, lambda error: f"{directory}: {error}"):
        stored = architecture.stored(read.tensors, content)
    tensors = stored.tensors
    config = config_of(path, content, tensors)
    our_names = architecture.our_names(tensors, content)
    num_layers = sum(name.endswith((".attention.query.weight", ".weight_ih_l0")) for name in our_names.values())
    if (
        config.num_hidden_layers > 2 * num_layers + 8 and not config.shared_layers
    ):  # refused before all of them are built
        raise InputError(
            f"{directory}: num_hidden_layers={config.num_hidden_layers}, but there are weights for {num_layers} layers; "
            "restore the directory from its source"
        )
    weights = {ours: tensors[name] for name, ours in our_names.items()}
    skipped = read.skipped | stored.skipped
    return Stored(directory, path, config, architecture, tensors, our_names, weights, skipped, stored.file_names)


def relabel(stored: Stored, heads: Sequence[str], wanted: BertConfig) -> None:
    """Put the rows of a classifier into the order of the labels, or drop a head that differs in more than this order."""
    here, there = wanted.labels, stored.config.labels
    is_same = stored.config.head == wanted.head and problem_type_of(stored.config) == problem_type_of(wanted)
    if is_same and here == there:
        return
    parts = {f"heads.{head}" for head in heads if head_of(head).is_made_by_option}
    names = {name: ours for name, ours in stored.our_names.items() if part_of(ours) in parts}
    if is_same and set(here) == set(there) and wanted.head.kind == "linear":
        rows = [there.index(label) for label in here]
        # not the rows of a transform before the last map
        of_labels = [ours for ours in names.values() if ours.split(".")[2] == "dense"]
        stored.weights.update({ours: stored.weights[ours][rows] for ours in of_labels})
        return
    reason = f"other labels: {listed(there)}" if set(here) != set(there) else f"head={stored.config.head.kind}"
    stored.skipped.update(dict.fromkeys(names, f"head with {reason}"))
    for ours in names.values():
        del stored.weights[ours]


def fit(stored: Stored, expected: Mapping[str, Tensor], needs_pooler: bool, is_new_decoder: bool) -> list[str]:
    """Check that the weights fit the model, record the tensors that are left out, and return the names of new parameters."""
    sources = stored.weights if is_new_decoder else {}
    copied = {twin: name for name in sources if (twin := in_decoder(name)) in expected}
    copied |= {
        name: source
        for name in expected
        if name not in stored.weights and (source := in_masked_lm(name)) in stored.weights
    }
    optional, parts = ("heads.",) if needs_pooler else ("heads.", "bert.pooler."), stored.parts
    new = [n for n in expected if n.startswith(optional) and part_of(n) not in parts and n not in copied]
    stored.weights.update({twin: stored.weights[name] for twin, name in copied.items()})
    faults = ((n, _fault(parameter, stored.weights.get(n))) for n, parameter in expected.items() if n not in new)
    in_file = stored.name_in_file
    problems = [f"{in_file(stored.architecture.full_name(name))}: {fault}" for name, fault in faults if fault]
    used, ours = {*expected, *copied.values()}, stored.our_names
    unused = [name for name in stored.tensors if ours.get(name) not in used]
    unasked = [name for name in unused if ours.get(name, "").startswith(("heads.", "bert.pooler."))]
    stored.skipped.update(dict.fromkeys(unasked, "head not asked for"))
    of_model = (stored.architecture.prefix, *stored.architecture.parts)
    foreign = [name for name in unused if name not in ours and not name.startswith(of_model)]
    stored.skipped.update(dict.fromkeys(foreign, "not a part of the model"))
    problems += [
        f"{in_file(name)}: this model has no such weight" for name in unused if name not in {*unasked, *foreign}
    ]
    kept = {in_file(name): tensor for name, tensor in stored.tensors.items() if name not in foreign}
    problems = problems or unfit_values(kept)  # values only of shapes that fit the model
    if problems:
        raise InputError(
            f"{stored.directory}: {len(problems)} weights do not fit {stored.config_path.name}: {listed(problems)}; restore the "
            "directory from its source"
        )
    if foreign:
        warn_once(f"{stored.directory}: left out, as no part of the model: {listed(list(map(in_file, foreign)))}")
    return new


def _fault(parameter: Tensor, weight: Tensor | None) -> str:
    """Return why a weight cannot be that of a parameter; "" if it can."""
    if weight is None:
        return "missing"
    if weight.shape != parameter.shape:
        return f"shape {tuple(weight.shape)}, expected {tuple(parameter.shape)}"
    return ""
