"""What every training run holds, whatever it trains: a model, its optimizer, its directory; it resumes and saves.

Everything that a run chose for itself is in its checkpoints, and chosen again on resume.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor

from bertkit import heartbeat
from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import BertkitError, InputError, StorageError
from bertkit.files import remove_leftovers
from bertkit.interop import huggingface
from bertkit.interop.load import text_files
from bertkit.model import kernels
from bertkit.model.compiled import compile_layers, missing_for
from bertkit.model.heads import BertWithHeads
from bertkit.train import checkpoint, loop
from bertkit.train.config import OptimizerConfig, SavingConfig
from bertkit.train.optimizer import MOMENTS, OPTIMIZERS, parameter_groups

KEPT = (
    "best",
    "num_worse",
    "skips",
    "num_threads",
    "torch",
    "num_processes",
)  # of the state, whatever settings it was chosen for


class TrainingRun:
    """A model and its optimizer, at the newest valid checkpoint of a directory if it has one.

    As a context it sees to it that a save in the background is over before the run is.

    Attributes:
        first_step: steps done before.
        state: plain values that every checkpoint keeps: what the run chose for itself, and under "best" the step and the
            score of the best weights so far, or None.
        packed: the model itself.
        model: the model as the accelerator prepared it.
        num_failed_saves: since this start, with `on_save_error=continue`.
    """

    def __init__(
        self,
        accelerator: loop.Accelerator,
        directory: Path,
        model: BertWithHeads,
        tokenizer: Tokenizer,
        optimizer: OptimizerConfig,
        *,
        saving: SavingConfig,
        state: dict[str, Any],
        state_depends_on: dict[str, Any],
        compiled: bool | Literal["auto"],
        starting_moments: dict[str, Tensor] | None = None,
        freeze: Callable[[BertWithHeads], None] = lambda model: None,
        rate_scale_of: Callable[[str], float] = lambda name: 1.0,
    ) -> None:
        """Resume, or start.

        Args:
            accelerator: what `loop.make_accelerator` gave.
            directory: the run's own, open.
            model: with the weights to start from.
            tokenizer: goes into every checkpoint.
            optimizer: its settings.
            saving: how checkpoints are saved.
            state: of a run that starts; of one that resumes with other settings, what it chooses anew.
            state_depends_on: the settings that `state` was chosen for.
            compiled: whether the layers run as compiled graphs; "auto" where there is a CUDA device.
            starting_moments: of the optimizer of a run that starts.
            freeze: takes parts of the model, in training mode, out of training.
            rate_scale_of: a parameter's name -> what its learning rate is multiplied with.

        Raises:
            InputError: a process does not see the files of the first one, the model is another one than the checkpoint's, or
                it cannot be compiled here.
            StorageError: there are checkpoints, and every one of them is damaged.
        """
        self.accelerator, self.directory, self.packed, self.tokenizer = accelerator, directory, model, tokenizer
        here = {
            "num_threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "num_processes": accelerator.num_processes,
        }
        self.saving, self.ranks, self.num_failed_saves = saving, loop.ranks_of(accelerator), 0
        self._writer: threading.Thread | None = None
        self._failure: Exception | None = None
        self._failed_step: int | None = None
        self._best_before: dict[str, Any] | None = None
        self.ranks.check_shared(directory)
        self.first_step = 0
        self.last_good: int | None = None
        self.state = {"best": None, **state, "chosen_for": state_depends_on, **here}
        newest = self._newest()
        moments, num_updates = starting_moments or {}, 0
        if newest is not None:
            num_updates = self._take_state(newest)
            self._take_weights(newest)
            moments = checkpoint.read_moments(newest)
            heartbeat.saved(self.first_step)
        self._go_on(here)
        if self.state["num_parts"] is not None:
            loop.add_in_one_order(accelerator.device)
        kernels.use(self.state["kernels"])
        freeze(model.train())
        if _is_compiled(compiled, accelerator.device.type):
            compile_layers(model.bert.encoder)
        self.model = accelerator.prepare_model(model)
        groups = parameter_groups(model, optimizer.weight_decay, rate_scale_of)
        self.optimizer = OPTIMIZERS[optimizer.name](groups, optimizer)
        self.names: dict[Tensor, str] = {p: name for name, p in model.named_parameters() if p.requires_grad}
        if newest is not None and num_updates:
            wanted = {f"{name}.{moment}": p for p, name in self.names.items() for moment in MOMENTS}
            _require_same_tensors(newest, moments, wanted)
        self.optimizer.restore(moments, self.names, num_updates)

    def _go_on(self, here: dict[str, Any]) -> None:
        """Compute as the run did until now: the number of threads and torch's version are part of every last bit.

        Other processes than before have their own number of threads.

        Raises:
            InputError: the last bits would differ, and reproducibility is strict.
        """
        before = {key: self.state[key] for key in here}
        changed = [
            f"{before[key]} {name} before, {here[key]} here"
            for key, name in (("num_threads", "threads"), ("torch", "as torch"))
            if before[key] != here[key]
        ]
        if changed and self.state["num_parts"] is not None:
            raise InputError(
                f"{self.directory}: {'; '.join(changed)}: reproducibility=strict goes on only as it began; set "
                f"OMP_NUM_THREADS={before['num_threads']} and install torch {before['torch']}"
            )
        if before["num_processes"] == here["num_processes"]:
            here["num_threads"] = before["num_threads"]
        if changed and self.accelerator.is_main_process:
            print(
                f"warning: {'; '.join(changed)}: the last bits of the weights may differ from those of a run never "
                f"stopped; going on with {here['num_threads']} threads"
            )
        torch.set_num_threads(here["num_threads"])
        self.state |= here

    def _newest(self) -> Path | None:
        """Find the newest valid checkpoint; the first process looks, and says what is wrong with newer ones."""

        def look() -> tuple[Path | None, list[str]]:
            remove_leftovers(checkpoint.checkpoints_dir(self.directory))
            return checkpoint.newest_valid(self.directory)

        newest, faults = self.ranks.first(look)
        for fault in faults:
            self._warn(fault)
        if newest is None and faults:
            raise StorageError(
                f"{checkpoint.checkpoints_dir(self.directory)}: {len(faults)} checkpoint(s), and none is whole; restore one "
                "from a copy, or remove the directory to begin anew"
            )
        return newest

    def _take_state(self, newest: Path) -> int:
        """Choose again what the run chose before, unless the settings that it depends on changed; give its updates."""
        before = checkpoint.read_state(newest)
        self.first_step = self.last_good = before.pop("step")
        num_updates: int = before.pop("num_updates")
        device = self.accelerator.device.type
        there = before.pop("device", device)
        if there != device:
            self._warn(f"resumed with device {device}, begun with {there}: the results differ by rounding")
        if before.get("chosen_for", self.state["chosen_for"]) != self.state["chosen_for"]:
            before |= {name: self.state[name] for name in self.state if name not in KEPT}
        self.state |= before
        best = self.state["best"]
        if best is not None and self.best_dir() is None:
            self._warn(
                f"the best checkpoint, of step {best['step']}, is not there; the best is looked for from here on"
            )
            self.state["best"] = None
        return num_updates

    def _take_weights(self, newest: Path) -> None:
        tensors, wanted = checkpoint.read_tensors(newest / checkpoint.WEIGHTS), huggingface.tensors_of(self.packed)
        _require_same_tensors(newest, tensors, wanted)
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])

    def best_dir(self) -> Path | None:
        """Where the best weights are: their checkpoint, or the model of a run that was finished before; None: nowhere."""
        places = (checkpoint.step_dir(self.directory, self.state["best"]["step"]), self.directory / "model")
        return next((place for place in places if place.is_dir()), None)

    def is_best(self, step: int, score: float) -> bool:
        """Tell whether a score, the larger the better, is the best so far, and remember it if so; the earlier of two equal ones stays."""
        self._settle()  # a best whose save failed is none
        best = self.state["best"]
        if best is not None and not score > best["score"]:
            return False
        self.state["best"], self._best_before = {"step": step, "score": score}, best
        return True

    def take_best(self) -> int:
        """Load the best weights into the model, those of the last step where no better ones are known; give their step.

        Raises:
            StorageError: their checkpoint is damaged.
        """
        directory = None if self.state["best"] is None else self.best_dir()
        if directory is None:
            return self.first_step  # a run that trains on evaluates its last step
        if directory.parent == checkpoint.checkpoints_dir(self.directory):
            fault = self.ranks.first(lambda: checkpoint.fault_of(directory))
            if fault is not None:
                raise StorageError(
                    f"{directory}, the best checkpoint, is damaged: {fault}; restore it from a copy, or remove it to take the "
                    "weights of the last step"
                )
        self._take_weights(directory)
        step: int = self.state["best"]["step"]
        return step

    def save(self, step: int, *, is_required: bool = False) -> None:
        """Write a checkpoint; every process takes part.

        With `saving.background` a thread writes it, one at a time, and what goes wrong is said by the next call.

        Args:
            step: optimizer steps done.
            is_required: wait for the end, and fail on any error, as a run that stops now must.

        Raises:
            NumericsError: a weight or a moment is not finite.
            StorageError: the disk is full or fails.
        """
        self._settle()
        state = {**self.state, "num_updates": self.optimizer.num_updates}
        contents = checkpoint.Checkpoint(
            step=step,
            model=huggingface.tensors_of(self.packed),
            optimizer=self.optimizer.tensors(self.names),
            state={**state, "device": self.accelerator.device.type},
            files=text_files(self.packed, self.tokenizer),
        )
        part = contents.part(self.ranks.rank, self.ranks.size)
        in_background = self.saving.background and not is_required
        best = self.state["best"] and self.state["best"]["step"]
        write = functools.partial(self._write, part.copy() if in_background else part, best)
        if in_background:
            self._writer = threading.Thread(target=write, name=f"save of step {step}")
            self._writer.start()
        else:
            write()
            self._settle(is_required)

    def _write(self, part: checkpoint.Part, best: int | None) -> None:
        try:
            keep_last, last_good = self.saving.keep_last, self.last_good
            checkpoint.save(self.directory, part, self.ranks, keep_last=keep_last, best=best, last_good=last_good)
            self.last_good = part.step
            heartbeat.saved(part.step)
        except Exception as error:
            self._failure, self._failed_step = error, part.step

    def _settle(self, is_required: bool = False) -> None:
        """Wait for a save in the background; raise what went wrong with the last save, or say it and go on."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failure, self._failure = self._failure, None
        if isinstance(failure, StorageError) and self.saving.on_save_error == "continue" and not is_required:
            self.num_failed_saves += 1
            if self.state["best"] is not None and self.state["best"]["step"] == self._failed_step:
                self.state["best"] = self._best_before  # whose checkpoint is still there
            self._warn(f"{failure}; training goes on ({self.num_failed_saves} failed save(s) since this start)")
        elif failure is not None:
            raise failure

    def _warn(self, text: str) -> None:
        if self.ranks.rank == 0:
            print(f"warning: {text}", flush=True)

    def __enter__(self) -> TrainingRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._settle()
        except BertkitError as failure:
            if error is None:
                raise
            self._warn(str(failure))  # the error that ends the run is said by its own line


def _is_compiled(setting: bool | Literal["auto"], device_type: str) -> bool:
    missing = missing_for(device_type)
    if setting is True and missing is not None:
        raise InputError(f"compile=true needs {missing} on {device_type}; install it, or set compile=auto")
    return setting is True or (setting == "auto" and device_type == "cuda" and missing is None)


def _require_same_tensors(directory: Path, there: dict[str, Tensor], here: dict[str, Tensor]) -> None:
    """Load strictly: every name, shape and type must be as it is here.

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


def metrics_row(
    report: loop.StepReport, tokens_per_second: float | None, evaluated: dict[str, float]
) -> dict[str, Any]:
    """Give the row of metrics.jsonl that a logged step has; that of a skipped one says why instead of what it measured."""
    row: dict[str, Any] = {"step": report.step}
    if report.fault is not None:
        row["skipped"] = report.fault
    else:
        if report.losses:
            row["loss"] = sum(report.losses.values())
        row |= {f"{name}_loss": value for name, value in report.losses.items()}
        row |= {f"{name}_accuracy": value for name, value in report.accuracies.items()}
        row["grad_norm"] = report.grad_norm
    row["learning_rate"] = report.learning_rate
    if tokens_per_second is not None:
        row["tokens_per_second"] = round(tokens_per_second, 1)
    return row | {f"eval_{name}": value for name, value in evaluated.items()}
