"""The state of a training run: model, optimizer, checkpoints, and automatic choices; resumes from the newest checkpoint."""

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from bertkit.base.errors import InputError, StorageError, counted
from bertkit.base.files import remove_leftovers
from bertkit.base.tensor_files import read_tensors
from bertkit.base.typed_settings import IF_SET, checked, to_mapping
from bertkit.interop.hugging_face import directory as hugging_face
from bertkit.kernels.fast import NAMES, FastWays
from bertkit.model.heads import num_parameters, own_name
from bertkit.model.label_scale import in_own_units
from bertkit.model.layers import compile_layers, freeze_below, recompute_layers
from bertkit.run.choices import Choices
from bertkit.run.reproducibility import (
    Platform,
    can_still_compile,
    current_platform,
    make_sums_deterministic,
    restore_platform,
)
from bertkit.run.resume_rules import RunSettings
from bertkit.run.start import Start
from bertkit.train import checkpoint, checkpoint_files
from bertkit.train.accelerator import Accelerator, ranks_in, saving_ranks
from bertkit.train.checkpoint_writer import CheckpointWriter, History
from bertkit.train.loop import Counts, Learner
from bertkit.train.loss_scale import LossScale
from bertkit.train.losses import Losses
from bertkit.train.optimizer import MOMENTS, Adapted, make_optimizer, parameter_groups


@dataclass(frozen=True)
class _State:
    """`state.json` without its step."""

    num_updates: int
    chosen: Choices
    standing: History
    platform: Platform
    loss_scale: tuple[float, int] | None = field(default=None, metadata=IF_SET)


class TrainingState:
    """A model and its optimizer, resumed from the newest valid checkpoint in the run directory, if there is one.

    `first_step` is the number of steps before this start, at the monotonic time `started_at`, and `last_step` the step of the
    newest save. `model` is in the accelerator's wrapper; `bare_model` is the model itself. `names` has its trained parameters.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        settings: RunSettings,
        start: Start,
        choices: Choices,
        most_steps: int | None = None,
    ) -> None:
        """Resume, or start a new run, in a directory that `open_run` has opened; all processes use the choices of process 0.

        With `most_steps`, resume from a checkpoint after at most that many steps, and delete the later ones. Raises InputError if the checkpoint fits neither this model nor this system, StorageError if every checkpoint is damaged.
        """
        self.accelerator, self.directory = accelerator, Path(settings.output_dir)
        self.bare_model, self.tokenizer = start.model, start.tokenizer
        self.trained = start.trained  # the model, perhaps with what its objective trains beside it
        self.ranks = ranks_in(accelerator)
        self.ranks.check_shared(self.directory)
        self.first_step = self.last_step = 0
        self.started_at = time.monotonic()
        savers = saving_ranks(accelerator, settings.launch.hang_timeout_seconds)
        self.writer = CheckpointWriter(self.directory, settings.checkpoint, savers)
        self.choices = self.ranks.on_first(lambda: choices)
        self.platform = self.ranks.on_first(lambda: current_platform(accelerator))
        self.loss_scale = LossScale.of(settings.precision, accelerator.device)
        newest = self._newest(most_steps)
        num_updates = 0 if newest is None else self._resume(newest)
        self._compute_as_chosen(start.frozen_depth)
        if settings.recompute == "layers":
            recompute_layers(self.bare_model)
        # told where to place it: otherwise Accelerate looks for tensors in shards, and imports torch.distributed.tensor for a second
        self.model = accelerator.prepare_model(self.trained, device_placement=True)
        self._make_optimizer(settings, start, newest, num_updates)
        if most_steps is not None and self.first_step <= most_steps:
            self.ranks.on_first(lambda: checkpoint.delete_later(self.directory, self.first_step))

    def _newest(self, most_steps: int | None) -> Path | None:
        """Find the newest valid checkpoint, on process 0; print a warning about each newer, damaged one."""

        def look() -> checkpoint_files.Newest:
            with contextlib.suppress(OSError):  # a partial directory that cannot be deleted does no harm
                remove_leftovers(checkpoint_files.checkpoints_dir(self.directory), checkpoint_files.NAMES)
            early = checkpoint_files.newest_valid(self.directory, most_steps)
            return early if early.path is not None else checkpoint_files.newest_valid(self.directory)

        newest, faults = self.ranks.on_first(look)
        for fault in faults:
            self.writer.warn(fault)
        if newest is None and faults:
            where = checkpoint_files.checkpoints_dir(self.directory)
            raise StorageError(
                f"{where}: {counted(len(faults), 'checkpoint')}, all damaged; restore one, or remove the directory"
            )
        return newest

    def _resume(self, newest: Path) -> int:
        """Restore choices, history, platform, loss scale and weights; return the number of updates."""
        content = checkpoint_files.read_state(newest)
        kernels = content["chosen"]["kernels"]
        if gone := [name for name in kernels if name not in NAMES]:
            self.writer.warn(
                f"bertkit has no kernel {', '.join(gone)} any more: rounding and dropout differ from here on"
            )
            content["chosen"]["kernels"] = [name for name in kernels if name in NAMES]
        before = checked(_State, content, newest / checkpoint_files.STATE)
        self.first_step = self.last_step = self.writer.last_good = content["step"]
        if before.chosen.settings == self.choices.settings:
            self.choices = before.chosen
        self.writer.history = before.standing
        self.platform = restore_platform(
            before.platform, self.platform, self.choices.is_strict, self.directory, self.writer.warn
        )
        if self.loss_scale is not None and before.loss_scale is not None:
            self.loss_scale.restore(before.loss_scale)
        best = before.standing.best
        if best is not None and self.ranks.on_first(self.best_dir) is None:
            self.writer.warn(f"the best checkpoint, of step {best.step}, is missing; the best later one replaces it")
            self.writer.history.best = None
        self._load_weights(newest)
        self._load_beside(newest)
        return before.num_updates

    def _compute_as_chosen(self, frozen_depth: int) -> None:
        """Apply the choices: threads, deterministic sums, kernels, compiled layers; freeze the lower layers."""
        device, choices = self.accelerator.device, self.choices
        torch.set_num_threads(self.platform.num_threads)
        if choices.is_strict:
            make_sums_deterministic(device)
        self.trained.use(FastWays.of(choices.kernels))
        self.trained.train()
        freeze_below(self.bare_model, frozen_depth)
        if choices.is_compiled and can_still_compile(device.type, choices.is_strict, self.directory, self.writer.warn):
            compile_layers(self.bare_model.bert.encoder)

    def _make_optimizer(self, settings: RunSettings, start: Start, newest: Path | None, num_updates: int) -> None:
        groups = parameter_groups(self.trained, settings.optimizer.weight_decay, start.rate_scale_of)
        self.optimizer = make_optimizer(groups, settings.optimizer)
        self.names: dict[Tensor, str] = {
            p: own_name(name) for name, p in self.trained.named_parameters() if p.requires_grad
        }
        moments = start.moments if newest is None else checkpoint.read_moments(newest)
        if newest is not None and num_updates and not isinstance(self.optimizer, Adapted):
            expected = {f"{name}.{moment}": p for p, name in self.names.items() for moment in MOMENTS}
            _require_same_tensors(newest, moments, expected)
        self.optimizer.restore(moments, self.names, num_updates)

    def _load_weights(self, directory: Path) -> None:
        saved, own = read_tensors(directory / checkpoint.WEIGHTS), hugging_face.tensors_of(self.bare_model)
        _require_same_tensors(directory, saved, own)
        with in_own_units(self.bare_model):
            hugging_face.copy_weights(self.bare_model, saved)

    @property
    def _beside(self) -> dict[str, Tensor]:
        """The parameters and buffers that the objective trains beside the model, without those that it shares with the model."""
        if self.trained is self.bare_model:
            return {}
        tensors = [*self.trained.named_parameters(), *self.trained.named_buffers()]
        return {name: tensor.detach() for name, tensor in tensors if name.startswith("objective.")}

    def _load_beside(self, directory: Path) -> None:
        own, path = self._beside, directory / checkpoint.BESIDE
        saved = read_tensors(path) if path.exists() else {}
        _require_same_tensors(directory, saved, own)
        for name, tensor in own.items():
            tensor.copy_(saved[name])

    @property
    def num_trained(self) -> int:
        """The number of trained parameters."""
        return num_parameters(self.names)

    def learner(self, losses: Losses, counts: Counts) -> Learner:
        """Return the model with its optimizer, to be trained with these losses."""
        parts = self.choices.num_parts
        return Learner(self.accelerator, self.model, self.optimizer, losses, self.loss_scale, parts, counts)

    def best_dir(self) -> Path | None:
        """Find the best weights: in their checkpoint, or, if a finished run was resumed, in its model; None if missing."""
        if self.writer.history.best is None:
            return None
        places = (checkpoint_files.step_dir(self.directory, self.writer.history.best.step), self.directory / "model")
        return next((place for place in places if place.is_dir()), None)

    def load_best(self) -> int:
        """Load the best weights into the model, and what was trained beside it then, if they are not those of the last step; return their step."""
        best, directory = self.writer.history.best, self.ranks.on_first(self.best_dir)
        if best is None or directory is None:
            return self.last_step
        if directory.parent == checkpoint_files.checkpoints_dir(self.directory):
            fault = self.ranks.on_first(lambda: checkpoint_files.fault_of(directory))
            if fault is not None:
                remedy = "restore it, or remove it to use the weights of the last step"
                raise StorageError(f"{directory}, the best checkpoint, is damaged: {fault}; {remedy}")
            self._load_beside(directory)
        self._load_weights(directory)
        return best.step

    def save(self, step: int, *, is_required: bool = False) -> None:
        """Write a checkpoint of the state after `step` steps; every process calls this (`CheckpointWriter.write`)."""
        self.last_step = step
        # if the save of the best checkpoint failed, another one is now the best, and this checkpoint must record it
        self.writer.wait()
        scale = None if self.loss_scale is None else self.loss_scale.state
        state = _State(self.optimizer.num_updates, self.choices, self.writer.history, self.platform, scale)
        contents = checkpoint.Checkpoint(
            step=step,
            model=hugging_face.tensors_of(self.bare_model),
            beside=self._beside,
            optimizer=self.optimizer.tensors(self.names),
            state=to_mapping(state),
            files=hugging_face.text_files(self.bare_model, self.tokenizer),
        )
        with in_own_units(self.bare_model):
            self.writer.write(contents, is_required=is_required)


def _require_same_tensors(directory: Path, saved: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    """Raise InputError with the first difference if saved tensors have other names, shapes or types than the run expects."""
    facts = [{name: (tuple(tensor.shape), tensor.dtype) for name, tensor in side.items()} for side in (saved, own)]
    for name in sorted({*saved, *own}):
        if facts[0].get(name) != facts[1].get(name):
            shapes = [str(list(side[name][0])) if name in side else "missing" for side in facts]
            raise InputError(
                f"{directory}: {name} is {shapes[0]} there, {shapes[1]} here; start another run with model_dir= for this model"
            )
