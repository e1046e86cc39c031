"""What every training run holds, whatever it trains: a model, its optimizer, its directory; it resumes and saves.

Everything that a run chose for itself is in its checkpoints, and chosen again on resume.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit import heartbeat
from bertkit.data.tokenizer import Tokenizer
from bertkit.errors import NumericsError
from bertkit.interop import huggingface
from bertkit.interop.load import text_files
from bertkit.model.heads import BertWithHeads
from bertkit.train import checkpoint, loop
from bertkit.train.config import OptimizerConfig
from bertkit.train.optimizer import OPTIMIZERS, parameter_groups


class TrainingRun:
    """A model and its optimizer, at the newest valid checkpoint of a directory if it has one.

    Attributes:
        first_step: steps done before.
        state: plain values that every checkpoint keeps: what the run chose for itself.
        packed: the model itself.
        model: the model as the accelerator prepared it.
    """

    def __init__(
        self,
        accelerator: loop.Accelerator,
        directory: Path,
        model: BertWithHeads,
        tokenizer: Tokenizer,
        optimizer: OptimizerConfig,
        *,
        keep_last: int,
        state: dict[str, Any],
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
            keep_last: checkpoints to keep.
            state: of a run that starts.
            starting_moments: of the optimizer of a run that starts.
            freeze: takes parts of the model, in training mode, out of training.
            rate_scale_of: a parameter's name -> what its learning rate is multiplied with.
        """
        self.accelerator, self.directory, self.packed, self.tokenizer = accelerator, directory, model, tokenizer
        self.keep_last = keep_last
        self.first_step, self.state = 0, {**state, "num_threads": torch.get_num_threads()}
        moments, num_updates = self._resume() or (starting_moments or {}, 0)
        torch.set_num_threads(self.state["num_threads"])
        freeze(model.train())
        self.model = accelerator.prepare_model(model)
        groups = parameter_groups(model, optimizer.weight_decay, rate_scale_of)
        self.optimizer = OPTIMIZERS[optimizer.name](groups, optimizer)
        self.names: dict[Tensor, str] = {p: name for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer.restore(moments, self.names, num_updates)

    def _resume(self) -> tuple[dict[str, Tensor], int] | None:
        """Load the newest valid checkpoint, if any, into the model; give the moments and the number of updates."""
        newest, faults = checkpoint.newest_valid(self.directory)
        if self.accelerator.is_main_process:
            for fault in faults:
                print(f"warning: {fault}")
        if newest is None:
            return None
        weights, _ = huggingface.load(newest)
        self.packed.load_state_dict(weights.state_dict())
        moments, state = checkpoint.load_training_state(newest)
        self.first_step, num_updates = state.pop("step"), state.pop("num_updates")
        self.state = state
        heartbeat.saved(self.first_step)
        return moments, num_updates

    def save(self, step: int) -> None:
        """Write a checkpoint; every process takes part.

        Raises:
            NumericsError: a weight is not finite.
        """

        def save() -> None:
            tensors = huggingface.tensors_of(self.packed)
            if not checkpoint.all_finite(tensors):
                raise NumericsError(f"step {step}: a weight is not finite; nothing was saved")
            contents = checkpoint.Checkpoint(
                step=step,
                model=tensors,
                optimizer=self.optimizer.tensors(self.names),
                state={**self.state, "num_updates": self.optimizer.num_updates, "torch": torch.__version__},
                files=text_files(self.packed, self.tokenizer),
            )
            checkpoint.save(self.directory, contents, self.keep_last)

        loop.on_main_process(self.accelerator, save)
        heartbeat.saved(step)


def metrics_row(report: loop.StepReport, tokens_per_second: float, evaluated: dict[str, float]) -> dict[str, Any]:
    """Give the row of metrics.jsonl that a logged step has."""
    row: dict[str, Any] = {"step": report.step}
    if report.losses:
        row["loss"] = sum(report.losses.values())
    row |= {f"{name}_loss": value for name, value in report.losses.items()}
    row |= {f"{name}_accuracy": value for name, value in report.accuracies.items()}
    row |= {
        "learning_rate": report.learning_rate,
        "grad_norm": report.grad_norm,
        "tokens_per_second": round(tokens_per_second, 1),
    }
    return row | {f"eval_{name}": value for name, value in evaluated.items()}
