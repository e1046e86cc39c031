"""What every training run holds, whatever it trains: a model, its optimizer, its directory; it resumes and saves.

Everything that a run chose for itself is in its checkpoints, and chosen again on resume.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor

from bertkit import signs
from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import InputError, StorageError
from bertkit.files import remove_leftovers
from bertkit.interop.hugging_face import directory as huggingface
from bertkit.interop.load import text_files
from bertkit.launch.launcher import OWN_THREADS
from bertkit.model import kernels
from bertkit.model.compiled import compile_layers, missing_for
from bertkit.model.heads import BertWithHeads
from bertkit.train import checkpoint, loop
from bertkit.train.config import OptimizerConfig, SavingConfig
from bertkit.train.optimizer import MOMENTS, OPTIMIZERS, parameter_groups
from bertkit.train.step_report import NO_SKIPS, Skips

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Chosen:
    """What a run chose for itself when it began; a later start keeps it, unless a setting that it depends on changed.

    Attributes:
        cut: how a batch is cut into micro-batches, in the words of the stage; plain values.
        num_parts: as for `loop.train`.
        kernels: of `model.kernels`.
        is_compiled: whether the layers run as compiled graphs, which draw other dropout.
        settings: those that it depends on; plain values.
    """

    cut: Any
    num_parts: int | None
    kernels: Sequence[str]
    is_compiled: bool
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Platform:
    """What the last bits of the weights depend on beside the settings."""

    num_processes: int
    num_threads: int
    torch: str
    device: str


@dataclass
class Standing:
    """How far a run has come, beside its weights.

    Attributes:
        best: the step and the score of the best weights so far, or None.
        num_worse: evaluations in a row since then.
        skips: the steps skipped so far.
    """

    best: dict[str, Any] | None = None
    num_worse: int = 0
    skips: Skips = NO_SKIPS


class TrainingRun:
    """A model and its optimizer, at the newest valid checkpoint of a directory if it has one.

    As a context it sees to it that a save in the background is over before the run is.

    Attributes:
        first_step: steps done before.
        last_step: steps done in all, as of the newest save.
        chosen: by this start, or by an earlier one.
        standing: of now; every checkpoint keeps it.
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
        chosen: Chosen,
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
            chosen: by this start; the first process's holds for all.
            starting_moments: of the optimizer of a run that starts.
            freeze: takes parts of the model, in training mode, out of training.
            rate_scale_of: a parameter's name -> what its learning rate is multiplied with.

        Raises:
            InputError: a process does not see the files of the first one, or the model is another one than the
                checkpoint's, or cannot be compiled here, or strict reproducibility cannot be kept here.
            StorageError: there are checkpoints, and every one of them is damaged.
        """
        self.accelerator, self.directory, self.packed, self.tokenizer = accelerator, directory, model, tokenizer
        self.saving, self.ranks, self.num_failed_saves = saving, loop.ranks_of(accelerator), 0
        self._writer: threading.Thread | None = None
        self._failure: Exception | None = None
        self._failed_step: int | None = None
        self._best_before: dict[str, Any] | None = None
        self.ranks.check_shared(directory)
        self.first_step = self.last_step = 0
        self.last_good: int | None = None
        self.standing = Standing()
        self.chosen = self.ranks.first(lambda: chosen)
        self.platform = self.ranks.first(self._platform_here)
        newest = self._newest()
        moments, num_updates = starting_moments or {}, 0
        if newest is not None:
            num_updates = self._take_state(newest)
            self._take_weights(newest)
            moments = checkpoint.read_moments(newest)
            signs.saved(self.first_step)
        torch.set_num_threads(self.platform.num_threads)
        if self.chosen.num_parts is not None:
            loop.add_in_one_order(accelerator.device)
        kernels.use(self.chosen.kernels)
        freeze(model.train())
        if self._can_compile():
            compile_layers(model.bert.encoder)
        self.model = accelerator.prepare_model(model)
        groups = parameter_groups(model, optimizer.weight_decay, rate_scale_of)
        self.optimizer = OPTIMIZERS[optimizer.name](groups, optimizer)
        self.names: dict[Tensor, str] = {p: name for name, p in model.named_parameters() if p.requires_grad}
        if newest is not None and num_updates:
            wanted = {f"{name}.{moment}": p for p, name in self.names.items() for moment in MOMENTS}
            _require_same_tensors(newest, moments, wanted)
        self.optimizer.restore(moments, self.names, num_updates)

    def _platform_here(self) -> Platform:
        accelerator = self.accelerator
        return Platform(accelerator.num_processes, torch.get_num_threads(), torch.__version__, accelerator.device.type)

    def _go_on_as(self, before: Platform) -> None:
        """Compute as the run did until now: the number of threads and torch's version are part of every last bit.

        The run's number of threads holds with the same number of processes, and always where reproducibility is strict;
        but a number that the user asks for is not quietly changed.

        Raises:
            InputError: the last bits would differ, and reproducibility is strict.
        """
        here, is_strict = self.platform, self.chosen.num_parts is not None
        is_asked_for = THREADS in os.environ and OWN_THREADS not in os.environ
        keeps = not is_asked_for and (is_strict or before.num_processes == here.num_processes)
        if keeps:
            self.platform = here = dataclasses.replace(here, num_threads=before.num_threads)
        changed = []
        if before.torch != here.torch:
            changed.append((f"torch {before.torch} before, {here.torch} here", f"install torch {before.torch}"))
        if before.num_threads != here.num_threads:
            text = f"{before.num_threads} threads before, {here.num_threads} here"
            changed.append((text, f"set {THREADS}={before.num_threads}"))
        texts = "; ".join(text for text, _ in changed)
        if changed and is_strict:
            raise InputError(
                f"{self.directory}: {texts}: reproducibility=strict goes on only as it began; "
                + " and ".join(remedy for _, remedy in changed)
            )
        if changed:
            self._warn(f"{texts}: the last bits of the weights may differ from those of a run never stopped")
        if before.device != here.device:
            self._warn(f"resumed with device {here.device}, begun with {before.device}: the results differ by rounding")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        if here.device == "cpu" and here.num_threads * local_size > cores:
            self._warn(
                f"{local_size} process(es) of {here.num_threads} threads on {cores} core(s), as the run began: slow; to "
                f"change processes at will, begin a run with {THREADS}=1"
            )

    def _can_compile(self) -> bool:
        """Whether to compile the layers, as the run chose.

        Raises:
            InputError: the run did, but here it cannot, and reproducibility is strict.
        """
        missing = missing_for(self.accelerator.device.type) if self.chosen.is_compiled else None
        if missing is None:
            return self.chosen.is_compiled
        if self.chosen.num_parts is not None:
            raise InputError(
                f"{self.directory}: the run began with compiled layers, which needs {missing}; install it, or begin another "
                "run with compile=false"
            )
        self._warn(f"the run began with compiled layers, which needs {missing}: going on without, with other dropout")
        return False

    def _newest(self) -> Path | None:
        """Find the newest valid checkpoint; the first process looks, and says what is wrong with newer ones."""

        def look() -> tuple[Path | None, list[str]]:
            with contextlib.suppress(OSError):  # what cannot be deleted is no checkpoint, and stands in nobody's way
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
        """Go on with what the run chose, and from where it stood; give its updates."""
        before = checkpoint.read_state(newest)
        self.first_step = self.last_step = self.last_good = before["step"]
        chosen = Chosen(**before["chosen"])
        if chosen.settings == self.chosen.settings:
            self.chosen = chosen
        standing = before["standing"]
        self.standing = Standing(**{**standing, "skips": Skips(**standing["skips"])})
        self._go_on_as(Platform(**before["platform"]))
        best = self.standing.best
        if best is not None and self.ranks.first(self.best_dir) is None:
            self._warn(
                f"the best checkpoint, of step {best['step']}, is not there; the best is looked for from here on"
            )
            self.standing.best = None
        num_updates: int = before["num_updates"]
        return num_updates

    def _take_weights(self, newest: Path) -> None:
        tensors, wanted = checkpoint.read_tensors(newest / checkpoint.WEIGHTS), huggingface.tensors_of(self.packed)
        _require_same_tensors(newest, tensors, wanted)
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])

    def best_dir(self) -> Path | None:
        """Where the best weights are: their checkpoint, or the model of a run that was finished before; None: nowhere."""
        if self.standing.best is None:
            return None
        places = (checkpoint.step_dir(self.directory, self.standing.best["step"]), self.directory / "model")
        return next((place for place in places if place.is_dir()), None)

    def is_best(self, step: int, score: float) -> bool:
        """Tell whether a score, the larger the better, is the best so far, and remember it if so; the earlier of two equal ones stays."""
        self._settle()  # a best whose save failed is none
        best = self.standing.best
        if best is not None and not score > best["score"]:
            return False
        self.standing.best, self._best_before = {"step": step, "score": score}, best
        return True

    def take_best(self) -> int:
        """Load the best weights into the model, those of the last step where no better ones are known; give their step.

        Raises:
            StorageError: their checkpoint is damaged.
        """
        best, directory = self.standing.best, self.ranks.first(self.best_dir)
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
        step: int = best["step"]
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
        self.last_step = step
        state = {
            "num_updates": self.optimizer.num_updates,
            "chosen": dataclasses.asdict(self.chosen),
            "standing": dataclasses.asdict(self.standing),
            "platform": dataclasses.asdict(self.platform),
        }
        contents = checkpoint.Checkpoint(
            step=step,
            model=huggingface.tensors_of(self.packed),
            optimizer=self.optimizer.tensors(self.names),
            state=state,
            files=text_files(self.packed, self.tokenizer),
        )
        part = contents.part(self.ranks.rank, self.ranks.size)
        in_background = self.saving.background and not is_required
        best = None if self.standing.best is None else self.standing.best["step"]
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
            signs.saved(part.step)
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
            if self.standing.best is not None and self.standing.best["step"] == self._failed_step:
                self.standing.best = self._best_before  # whose checkpoint is still there
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
        except Exception as failure:
            if error is None:
                raise
            self._warn(str(failure))  # the error that ends the run is said by its own line


def compiles(setting: bool | Literal["auto"], device_type: str) -> bool:
    """Choose whether the layers are compiled; `auto` does on CUDA, where what that needs is there.

    Raises:
        InputError: they are to be, and something is missing.
    """
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
