"""The state of a training run: model, optimizer and checkpoints; it resumes and saves.

Everything that a run chose for itself is in its checkpoints, and chosen again on resume.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from bertkit.base.errors import InputError, StorageError
from bertkit.base.files import read_tensors, remove_leftovers
from bertkit.base.typed_settings import checked, to_mapping
from bertkit.interop.hugging_face import directory as hugging_face
from bertkit.kernels.fast import NAMES, FastWays
from bertkit.model.compiled import compile_layers
from bertkit.model.layer_depth import freeze_below
from bertkit.run.reproducibility import Platform, add_in_one_order, platform_here, restore_platform, still_compiles
from bertkit.run.start import Start
from bertkit.settings.finetune import FinetuneSettings
from bertkit.settings.pretrain import PretrainSettings
from bertkit.tasks.batching import Cut
from bertkit.train import checkpoint
from bertkit.train.checkpoint_writer import Saves, Standing
from bertkit.train.optimizer import MOMENTS, OPTIMIZERS, parameter_groups
from bertkit.train.processes import Accelerator, ranks_of


@dataclass(frozen=True)
class Choices:
    """What a run chose for itself when it began; a later start keeps it, unless a setting that it depends on changed."""

    cut: tuple[int, ...] | Cut  # how a batch is cut into micro-batches: of pretraining by sequences, for each phase
    num_parts: int | None  # as for `train.loop.Course`
    kernels: tuple[Literal[NAMES], ...]  # type: ignore[valid-type]
    is_compiled: bool  # whether the layers run as compiled graphs, which draw other dropout
    settings: dict[str, Any]  # those that it depends on; plain values

    def __post_init__(self) -> None:
        if isinstance(self.cut, tuple) and min(self.cut, default=0) < 1:
            raise InputError(f"chosen.cut={list(self.cut)}: expected sequences of a micro-batch")

    @property
    def is_strict(self) -> bool:
        """Whether gradients are added in one order, for any number of processes."""
        return self.num_parts is not None


@dataclass(frozen=True)
class _State:
    """What `state.json` says of a run, beside its step."""

    num_updates: int
    chosen: Choices
    standing: Standing
    platform: Platform


def depends_on(settings: PretrainSettings | FinetuneSettings) -> dict[str, Any]:
    """Give the settings that a run's choices depend on."""
    return {
        "batch": dataclasses.asdict(settings.batch),
        "kernels": settings.kernels,
        "compile": settings.compile,
        "reproducibility": settings.reproducibility,
    }


class TrainingState:
    """A model and its optimizer, at the newest valid checkpoint of a directory if it has one.

    Attributes:
        first_step: steps done before.
        last_step: steps done in all, as of the newest save.
        started_at: this start, by the monotonic clock.
        choices: of this start, or of an earlier one.
        saves: its checkpoints, and the best of them.
        platform: where this start computes.
        bare_model: without the accelerator's wrapper.
        model: with it.
        tokenizer: of the model.
        optimizer: over the parameters of `names`, those that are trained.
        frozen_depth: how much of the model is not trained, as `run.depth` counts it.
        ranks: the processes of the run.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        settings: PretrainSettings | FinetuneSettings,
        start: Start,
        choices: Choices,
    ) -> None:
        """Resume, or start.

        Of the choices the first process's hold for all. The directory of the run is open.

        Raises:
            InputError: a process does not see the files of the first one, or the model is another one than the
                checkpoint's, or cannot be compiled here, or strict reproducibility cannot be kept here.
            StorageError: there are checkpoints, and every one of them is damaged.
        """
        self.accelerator, self.directory = accelerator, Path(settings.output_dir)
        self.bare_model, self.tokenizer = start.model, start.tokenizer
        self.ranks = ranks_of(accelerator, settings.launch.hang_timeout_seconds)
        self.frozen_depth = start.frozen_depth
        self.ranks.check_shared(self.directory)
        self.first_step = self.last_step = 0
        self.started_at = time.monotonic()
        self.saves = Saves(self.directory, settings.checkpoint, self.ranks)
        self.choices = self.ranks.first(lambda: choices)
        self.platform = self.ranks.first(lambda: platform_here(accelerator))
        newest = self._newest()
        num_updates = 0 if newest is None else self._resume(newest)
        self._compute_as_chosen()
        self.model = accelerator.prepare_model(self.bare_model)
        self._make_optimizer(settings, start, newest, num_updates)

    def _newest(self) -> Path | None:
        """Find the newest valid checkpoint; the first process looks, and says what is wrong with newer ones."""

        def look() -> tuple[Path | None, list[str]]:
            with contextlib.suppress(OSError):  # what cannot be deleted is no checkpoint, and stands in nobody's way
                remove_leftovers(checkpoint.checkpoints_dir(self.directory), checkpoint.NAMES)
            return checkpoint.newest_valid(self.directory)

        newest, faults = self.ranks.first(look)
        for fault in faults:
            self.saves.warn(fault)
        if newest is None and faults:
            raise StorageError(
                f"{checkpoint.checkpoints_dir(self.directory)}: {len(faults)} checkpoint(s), and none is whole; restore one "
                "from a copy, or remove the directory to begin anew"
            )
        return newest

    def _resume(self, newest: Path) -> int:
        """Go on with what the run chose, from where it stood; give the number of its updates."""
        content = checkpoint.read_state(newest)
        before = checked(_State, content, newest / checkpoint.STATE)
        self.first_step = self.last_step = self.saves.last_good = content["step"]
        if before.chosen.settings == self.choices.settings:
            self.choices = before.chosen
        self.saves.standing = before.standing
        self.platform = restore_platform(
            before.platform, self.platform, self.choices.is_strict, self.directory, self.saves.warn
        )
        best = self.saves.standing.best
        if best is not None and self.ranks.first(self.best_dir) is None:
            self.saves.warn(
                f"the best checkpoint, of step {best.step}, is gone; the best of the later ones is kept from here on"
            )
            self.saves.standing.best = None
        self._take_weights(newest)
        return before.num_updates

    def _compute_as_chosen(self) -> None:
        """Set threads, the order of sums, the fast ways and compiled layers; freeze what is not trained."""
        device, choices = self.accelerator.device, self.choices
        torch.set_num_threads(self.platform.num_threads)
        if choices.is_strict:
            add_in_one_order(device)
        self.bare_model.use(FastWays.of(choices.kernels))
        freeze_below(self.bare_model.train(), self.frozen_depth)
        if still_compiles(choices.is_compiled, device.type, choices.is_strict, self.directory, self.saves.warn):
            compile_layers(self.bare_model.bert.encoder)

    def _make_optimizer(
        self, settings: PretrainSettings | FinetuneSettings, start: Start, newest: Path | None, num_updates: int
    ) -> None:
        groups = parameter_groups(self.bare_model, settings.optimizer.weight_decay, start.rate_scale_of)
        self.optimizer = OPTIMIZERS[settings.optimizer.name](groups, settings.optimizer)
        self.names: dict[Tensor, str] = {p: name for name, p in self.bare_model.named_parameters() if p.requires_grad}
        moments = start.moments if newest is None else checkpoint.read_moments(newest)
        if newest is not None and num_updates:
            wanted = {f"{name}.{moment}": p for p, name in self.names.items() for moment in MOMENTS}
            _require_same_tensors(newest, moments, wanted)
        self.optimizer.restore(moments, self.names, num_updates)

    def _take_weights(self, newest: Path) -> None:
        tensors, wanted = read_tensors(newest / checkpoint.WEIGHTS), hugging_face.tensors_of(self.bare_model)
        _require_same_tensors(newest, tensors, wanted)
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])

    def best_dir(self) -> Path | None:
        """Where the best weights are: their checkpoint, or the model of a run that was finished before; None: nowhere."""
        if self.saves.standing.best is None:
            return None
        places = (checkpoint.step_dir(self.directory, self.saves.standing.best.step), self.directory / "model")
        return next((place for place in places if place.is_dir()), None)

    def take_best(self) -> int:
        """Load the best weights into the model, those of the last step where no better ones are known; give their step.

        Raises:
            StorageError: their checkpoint is damaged.
        """
        best, directory = self.saves.standing.best, self.ranks.first(self.best_dir)
        if best is None or directory is None:
            return self.last_step
        if directory.parent == checkpoint.checkpoints_dir(self.directory):
            fault = self.ranks.first(lambda: checkpoint.fault_of(directory))
            if fault is not None:
                raise StorageError(
                    f"{directory}, the best checkpoint, is damaged: {fault}; restore it from a copy, or remove it to take the "
                    "weights of the last step"
                )
        self._take_weights(directory)
        return best.step

    def save(self, step: int, *, is_required: bool = False) -> None:
        """Write a checkpoint of the state after `step` steps; every process takes part (`Saves.write`)."""
        self.last_step = step
        self.saves.settle()  # what it says of the best weights goes into this checkpoint
        state = _State(self.optimizer.num_updates, self.choices, self.saves.standing, self.platform)
        contents = checkpoint.Checkpoint(
            step=step,
            model=hugging_face.tensors_of(self.bare_model),
            optimizer=self.optimizer.tensors(self.names),
            state=to_mapping(state),
            files=hugging_face.text_files(self.bare_model, self.tokenizer),
        )
        self.saves.write(contents, is_required=is_required)


def _require_same_tensors(directory: Path, there: dict[str, Tensor], here: dict[str, Tensor]) -> None:
    """Refuse tensors whose names, shapes or types are not those of this run's.

    Raises:
        InputError: naming the first one that is not.
    """
    facts = [
        {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()} for tensors in (there, here)
    ]
    for name in sorted({*there, *here}):
        if facts[0].get(name) != facts[1].get(name):
            shapes = [str(list(known[name][0])) if name in known else "missing" for known in facts]
            raise InputError(
                f"{directory} is of another model: {name} is {shapes[0]} there, {shapes[1]} here; a run cannot change its "
                "model: start another one from its weights"
            )
