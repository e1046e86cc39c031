"""What the jobs from Python share: how they are measured, how a run of them begins, and which settings they refuse."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from bertkit.base.typed_settings import refuse
from bertkit.launch.world import newest_checkpoint, world_from_environment
from bertkit.run.job import AnyJob, SettingsT
from bertkit.run.start import Start, sha256_of
from bertkit.settings.pretrain import PretrainSettings
from bertkit.train.accelerator import make_accelerator

NOWHERE = {"data_dir": "-", "output_dir": "-"}  # settings of a command that a job without a directory does not use
# settings of a command that a job has from elsewhere: `fit`, its objective, or its other arguments
OF_FIT = {
    "fit": ("steps", "num_epochs", "optimizer", "schedule", "device", "output_dir"),
    "the objective (its attribute masking, the arguments of its class)": ("masking", "objective_options"),
}
OF_JOB = {"a job": ("data_dir", "batch", "precision", "checkpoint", "evaluation", "log", "launch")}
OF_MODEL = ("model", "model_dir", "init_moments", "freeze", "attention", "norm", "feed_forward", "pooling")
OF_DATA = {"data": ("data_dir",), "max_seq_length": ("segments",), "batch_sequences": ("batch.sequences",)}


class FromPython:
    """What a job from Python can do beyond a job of the commands."""

    start: Start

    def evaluate(self: AnyJob) -> dict[str, float]:  # type: ignore[misc]
        """Measure the model on held-out examples, on the device where it is."""
        device = next(self.model.parameters()).device.type
        return self.measure(make_accelerator(device, world_from_environment().size), self.model)

    @functools.cached_property
    def _began(self) -> dict[Path, str]:
        """The hashes of the weights with which this job has begun the runs in directories."""
        return {}

    def keep_in(self, directory: Path) -> None:
        """Copy what a run needs to be resumed by its command into its directory."""

    def begun_in(self, directory: Path) -> Start:
        """Return the start of a run: with the weights of now, which `fit` may have trained, unless this job has begun it already."""
        now, place = sha256_of(self.start.model), directory.resolve()
        if newest_checkpoint(str(place)) is not None:
            now = self._began.get(place, now)  # those of the checkpoint will replace the weights of now
        self._began[place] = now
        is_loaded = self.start.init_from is not None and now == self.start.made_sha256
        return dataclasses.replace(self.start, made_sha256=None if is_loaded else now)


def refuse_set_elsewhere(places: Mapping[str, Sequence[str]], keys: Collection[str]) -> None:
    """Raise InputError for settings of a command that a job has from its model, its objective, its data or `fit`."""
    names = [(name, place) for place in places for name in places[place]]
    chosen = [one for one in names if any(f"{key}.".startswith(f"{one[0]}.") for key in keys)]
    refuse(f"{name}: {place} sets it; leave it out" for name, place in chosen)


def with_course_of(settings: SettingsT, chosen: PretrainSettings, directory: Path | None) -> SettingsT:
    """Return the settings of a job with those of a `fit`."""
    place = "-" if directory is None else str(directory)
    return dataclasses.replace(
        settings, optimizer=chosen.optimizer, schedule=chosen.schedule, device=chosen.device, output_dir=place
    )
