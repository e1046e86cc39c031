"""The record: minutes of two CPU cores until a small BERT has the held-out loss that Hugging Face reaches in an hour.

    python recipes/speedrun/speedrun.py speed runs/speedrun/data                 the speed of every row, by turns
    python recipes/speedrun/speedrun.py train runs/speedrun/data modern_mini     one run, whose line is added to runs.jsonl
    python recipes/speedrun/speedrun.py grammar blimp/data                       the scores on BLiMP of every run in runs.jsonl
    python recipes/speedrun/speedrun.py table                                    the table of all runs in runs.jsonl
    python recipes/speedrun/speedrun.py leaderboard --steps 600                  the runs of about the minutes of 600 steps of modern_mini, seeds together

A run has a fixed number of steps. Its minutes are the processor time of its steps, measured for all rows by turns, divided by
two cores: other work on the machine changes no result, and a run may be made anywhere. All models are measured by
`bertkit evaluate` on the same masked tokens.
"""

import argparse
import gzip
import itertools
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hugging_face
import leaderboard
from hugging_face import LENGTH, SEQUENCES
from rows import RATES, ROWS, settings_of, tokens_a_step

import bertkit

sys.path.append(str(Path(__file__).parents[1] / "extend"))  # my_objectives
OWN = ("row", "seed", "rate", "steps")  # what tells runs apart
CORES, FEW_STEPS = 2, (6, 30)
SCORED = (1 / 6, 1 / 2, 1)  # the shares of a run after which its grammar is scored: 10, 30 and 60 minutes


def train(row: str, data: Path, output: Path, steps: int, seed: int, rate: float) -> None:
    """Train a row."""
    if row in hugging_face.ROWS:
        hugging_face.train(row, data, output, steps, seed, rate)
    else:
        bertkit.pretrain(**settings_of(row, data, output, steps, seed, rate))


def losses_of(model_dir: Path, data: Path) -> dict[str, float]:
    """Return the mean loss over all held-out tokens that a fixed mask of 15 % hides: the model's, and that of counting tokens."""
    settings: Mapping[str, Any] = {
        "segments": "full_sentences",
        "segments.max_seq_length": LENGTH,
        "masking.probability": 0.15,
    }
    measured = bertkit.evaluate(model_dir=str(model_dir), data_dir=str(data), split="held_out", **settings)
    return {"loss": measured.scores["mlm_loss"], "counting": measured.scores["mlm_loss_by_counting"]}


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of results; none if it is yet to be made."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def snapshots_of(line: Mapping[str, Any], output: Path) -> list[Path]:
    """Return the model directories that a run has saved, by the number of their step."""
    return sorted((folder_of(line, output) / "checkpoints").glob("step-*"))


def step_of(model_dir: Path) -> int:
    """Return the step of a snapshot."""
    return int(model_dir.name.removeprefix("step-"))


def folder_of(line: Mapping[str, Any], output: Path) -> Path:
    """Return the folder of a run."""
    return output / "_".join(str(line[key]).replace(" ", "_") for key in OWN)


def measure_run(args: argparse.Namespace) -> None:
    """Train one row with one seed, measure its snapshots, and add a line to runs.jsonl."""
    file = args.record / "runs.jsonl"
    own = {"row": args.row, "seed": args.seed, "rate": args.rate or RATES[args.row], "steps": args.steps}
    if any(own.items() <= line.items() for line in lines_of(file)):
        print(f"{own}: measured already")
        return
    train(args.row, args.data, folder_of(own, args.output), args.steps, args.seed, own["rate"])
    measured = {step_of(path): losses_of(path, args.data) for path in snapshots_of(own, args.output)}
    line = own | {
        "tokens_a_step": tokens_a_step(args.row),
        "losses": [[step, round(scores["loss"], 4)] for step, scores in measured.items()],
        "counting": round(next(scores["counting"] for scores in measured.values()), 4),
    }
    with file.open("a") as lines:
        lines.write(json.dumps(line) + "\n")
    print(json.dumps(line))


def measure_grammar(args: argparse.Namespace) -> None:
    """Score every run after all of its steps, perhaps after a sixth and half of them, too, and add lines to grammar.jsonl."""
    file = args.record / "grammar.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        pairs, chosen = Path(folder) / "pairs.jsonl", list(first_of_each_paradigm(args.data, args.pairs))
        pairs.write_text("".join(chosen))
        for run in lines_of(args.record / "runs.jsonl"):
            own = {key: run[key] for key in OWN} | {"num_pairs": len(chosen)}
            snapshots = snapshots_of(run, args.output)
            if snapshots and not any(own.items() <= line.items() for line in lines_of(file)):
                steps = [step_of(path) for path in snapshots]
                shares = SCORED[-1:] if args.last else SCORED
                wanted = [min(steps, key=lambda step: abs(step - share * run["steps"])) for share in shares]
                scores = [[step, grammar_of(snapshots[steps.index(step)], pairs)] for step in wanted]
                with file.open("a") as lines:
                    lines.write(json.dumps(own | {"scores": scores}) + "\n")


def grammar_of(model_dir: Path, pairs: Path) -> float:
    """Return the share of pairs whose grammatical sentence is the more probable one."""
    measured = bertkit.evaluate(model_dir=str(model_dir), task="minimal_pairs", data_dir=str(pairs))
    return float(measured.scores["accuracy"])


def first_of_each_paradigm(blimp: Path, most: int) -> Iterator[str]:
    """Yield the lines of BLiMP, at most `most` of each paradigm."""
    num_seen = Counter[str]()
    for path in sorted(blimp.glob("*.jsonl*")):
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for line in lines:
                fields = json.loads(line)
                paradigm = fields.get("UID") or fields["paradigm"]
                num_seen[paradigm] += 1
                if num_seen[paradigm] <= most:
                    yield line


def measure_speed(args: argparse.Namespace) -> None:
    """Measure the processor seconds of a step of every row, by turns, and write the medians of tokens a second to speed.json.

    With `--row`, only of these rows and of modern_mini, whose speed in the file stays: the others are scaled by it.
    """
    file = args.record / "speed.json"
    chosen = dict.fromkeys((leaderboard.REFERENCE, *args.row)) if args.row else (*hugging_face.ROWS, *ROWS)
    seconds: dict[str, list[float]] = {row: [] for row in chosen}
    for _, row in itertools.product(range(args.rounds), seconds):
        few, many = (processor_seconds(args.data, row, steps) for steps in FEW_STEPS)  # the start costs both the same
        seconds[row].append((many - few) / (FEW_STEPS[1] - FEW_STEPS[0]))
        print(f"{row}: {seconds[row][-1]:.3f} s", flush=True)
    speeds = {row: round(CORES * tokens_a_step(row) / statistics.median(each), 1) for row, each in seconds.items()}
    if args.row:
        known = json.loads(file.read_text())
        scale = known[leaderboard.REFERENCE] / speeds[leaderboard.REFERENCE]
        speeds = known | {row: round(scale * speeds[row], 1) for row in args.row}
    file.write_text(json.dumps(speeds, indent=2) + "\n")


def processor_seconds(data: Path, row: str, steps: int) -> float:
    """Train some steps on one core in an own process; return its processor time."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            __file__,
            "steps",
            str(data),
            row,
            "--output",
            f"{folder}/run",
            "--steps",
            str(steps),
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run(command, capture_output=True, check=True, env=environment)
    return used() - before


def train_only(args: argparse.Namespace) -> None:
    """Train a row, and measure nothing."""
    train(args.row, args.data, args.output, args.steps, 0, RATES[args.row])


def print_steps(args: argparse.Namespace) -> None:
    """Print the number of steps that Hugging Face takes in some minutes."""
    speed = json.loads((args.record / "speed.json").read_text())
    print(round(args.minutes * 60 * speed["hugging_face"] / (SEQUENCES * LENGTH)))


def curve_of(run: Mapping[str, Any], record: Path) -> list[tuple[float, float]]:
    """Return the minutes of two cores and the held-out loss of each snapshot of a run; minutes are nan if its speed is not measured."""
    speed = json.loads((record / "speed.json").read_text()).get(run["row"], math.nan)
    return [(step * run["tokens_a_step"] / speed / 60, loss) for step, loss in run["losses"]]


def runs_beside(steps: int, record: Path) -> list[dict[str, Any]]:
    """Return the runs that take about the minutes of `steps` steps of the reference: from 0.9 to 1.4 times them."""
    speed = json.loads((record / "speed.json").read_text())
    expected = steps * SEQUENCES * LENGTH / speed[leaderboard.REFERENCE] / 60
    runs = lines_of(record / "runs.jsonl")
    return [run for run in runs if 0.9 <= curve_of(run, record)[-1][0] / expected <= 1.4]


def print_leaderboard(args: argparse.Namespace) -> None:
    """Print the runs of about the same minutes, seeds together."""
    runs = runs_beside(args.steps, args.record)
    minutes = {run["row"]: curve_of(run, args.record)[-1][0] for run in runs}
    print(*leaderboard.table(leaderboard.standings(runs), minutes), sep="\n")


def scores_of(line: Mapping[str, Any]) -> str:
    """Return the scores of a run in percent, with the standard error of the last one."""
    last, num_pairs = line["scores"][-1][1], line["num_pairs"]
    error = math.sqrt(last * (1 - last) / num_pairs)
    percent = " / ".join(f"{100 * score:.1f}" for _, score in line["scores"])
    return f"{percent} ± {100 * error:.1f} ({num_pairs:,} pairs)"


def print_table(args: argparse.Namespace) -> None:
    """Print the minutes of each run, its last loss and scores on BLiMP, and its minutes to the best last loss of Hugging Face's BERT."""
    runs, grammar = (lines_of(args.record / name) for name in ("runs.jsonl", "grammar.jsonl"))
    berts = [row for row, each in hugging_face.ROWS.items() if each.family == "Bert"]
    target = min((run["losses"][-1][1] for run in runs if run["row"] in berts), default=0.0)
    columns = ("row", "seed", "rate", "steps", "minutes", "last loss", f"minutes to {target:.3f}", "BLiMP")
    print(f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", sep="\n")
    for run in runs:
        own = {key: run[key] for key in OWN}
        curve = curve_of(run, args.record)
        reached = [f"{minutes:.1f}" for minutes, loss in curve if loss <= target]
        scores = [scores_of(line) for line in grammar if own.items() <= line.items()]
        cells = (
            *own.values(),
            f"{curve[-1][0]:.1f}",
            f"{curve[-1][1]:.3f}",
            next(iter(reached), "-"),
            "; ".join(scores),
        )
        print(f"| {' | '.join(map(str, cells))} |")
    for loss in sorted({run["counting"] for run in runs if "counting" in run}):
        print(f"| counting tokens, without context | {' | ' * (len(columns) - 4)} | {loss:.3f} | | |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--record", type=Path, default=Path(__file__).parent, help="the folder of runs.jsonl and speed.json"
    )
    commands = parser.add_subparsers(required=True)
    functions = {
        "train": measure_run, "steps": train_only, "speed": measure_speed, "steps-in": print_steps, "table": print_table,
        "grammar": measure_grammar, "leaderboard": print_leaderboard,
    }  # fmt: skip
    for name, function in functions.items():
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        if name == "steps-in":
            command.add_argument("minutes", type=float)
        elif name == "leaderboard":
            command.add_argument("--steps", type=int, default=600)
        elif name != "table":
            command.add_argument("data", type=Path)
        if name in ("train", "steps"):
            command.add_argument("row", choices=(*hugging_face.ROWS, *ROWS))
            command.add_argument("--output", type=Path, default=Path("runs/speedrun"))
            command.add_argument("--steps", type=int, default=1750)
            command.add_argument("--seed", type=int, default=0)
            command.add_argument("--rate", type=float)
        if name == "grammar":
            command.add_argument("--output", type=Path, default=Path("runs/speedrun"))
            command.add_argument("--pairs", type=int, default=1000, help="of each paradigm, all by default")
            command.add_argument("--last", action="store_true", help="score the end of a run alone")
        if name == "speed":
            command.add_argument("--rounds", type=int, default=5)
            command.add_argument(
                "--row", action="append", choices=(*hugging_face.ROWS, *ROWS), help="measure this row alone"
            )
    args = parser.parse_args(arguments)
    args.function(args)


if __name__ == "__main__":
    main()
