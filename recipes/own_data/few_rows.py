"""Fine-tuning on 8, 16 and 64 rows of four tasks of GLUE, beside a linear head on the vectors of the frozen model: a table.

python recipes/own_data/few_rows.py GLUE_DIR MODEL_DIR
"""

import contextlib
import functools
import io
import statistics
import sys
import tempfile
from typing import Any

import numpy as np

import bertkit
from bertkit.base.typed_settings import build
from bertkit.settings.reading.compose import compose
from bertkit.tasks.reading.readers import read_examples
from bertkit.tasks.sequence import SequenceExample
from bertkit.tasks.task_config import TaskConfig

TASKS, SIZES, SEEDS, NUM_DEV, NUM_EPOCHS = ("sst2", "mrpc", "qnli", "qqp"), (8, 16, 64), range(5), 200, 10
COLUMNS = ("majority", "TF-IDF", "linear head", "fine-tuned")


@functools.cache
def examples_of(folder: str, task: str, split: str) -> list[SequenceExample[str]]:
    """Read a split."""
    config = build(TaskConfig, compose("finetune", [f"task={task}"])["task"], "task")
    return read_examples(config, folder, split).examples  # type: ignore[return-value]


def rows_of(examples: list[SequenceExample[str]], num_rows: int, seed: int) -> list[dict[str, Any]]:
    """Draw rows of a split."""
    drawn = [examples[number] for number in np.random.default_rng(seed).permutation(len(examples))[:num_rows]]
    names = [name for name in ("text", "text_pair", "label") if getattr(drawn[0], name) is not None]
    return [{name: getattr(one, name) for name in names} for one in drawn]


def accuracies(train: list[dict[str, Any]], dev: list[dict[str, Any]], model_dir: str, seed: int) -> list[float]:
    """Fine-tune, and return the accuracies of `COLUMNS`."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = bertkit.finetune(
            train, model_dir, task="sequence", dev=dev, output_dir=f"{folder}/run", num_epochs=NUM_EPOCHS, seed=seed,
            evaluation={"every_steps": 10**9}, checkpoint={"every_steps": 10**9},
        )  # fmt: skip
    simple = (run.scores.get(f"{name}_baseline") or {} for name in ("majority", "tfidf", "linear_head"))
    return [*(scores.get("accuracy", float("nan")) for scores in simple), run.scores["accuracy"]]


def main(folder: str, model_dir: str) -> None:
    """Print the table, row by row."""
    print(f"| task | rows | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 2)}")
    for task in TASKS:
        dev = rows_of(examples_of(folder, task, "dev"), NUM_DEV, 0)
        for size in SIZES:
            drawn = [rows_of(examples_of(folder, task, "train"), size, seed) for seed in SEEDS]
            measured = [
                accuracies(train, dev, model_dir, seed)
                for seed, train in zip(SEEDS, drawn, strict=True)
                if len({row["label"] for row in train}) > 1
            ]
            cells = [
                f"{statistics.fmean(own):.3f} ± {statistics.stdev(own):.3f}" for own in zip(*measured, strict=True)
            ]
            print(f"| {task} | {size} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
