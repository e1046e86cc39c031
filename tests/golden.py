"""Fourteen short runs and the hashes of what they train, to compare two versions of the code on one machine.

    python tests/golden.py [CHECKOUT]      the hashes of this checkout; with another checkout, also those of it, and which differ

A change that should not change what is trained is checked so: `git worktree add ../before HEAD~1; python tests/golden.py ../before`. The
hashes depend on processor and torch, so none is kept. Exit code 1 if any run differs.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TINY = [  # model=medium: BERT's own settings, which tiny to small replace (conf/from_scratch)
    "device=cpu", "model=medium", "model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=32",
    "model.intermediate_size=64", "model.max_position_embeddings=64", "segments.max_seq_length=40", "batch.sequences=12", "batch.micro_sequences=5",
    "steps=17", "evaluation.every_steps=6", "checkpoint.every_steps=7", "schedule.warmup_steps=3",
    "optimizer.peak_learning_rate=1e-3",
]  # fmt: skip
PRETRAINED = {
    "pairs": [],
    "fixed instances": ["segments=google"],
    "sentence order": ["next_sentence=sop"],
    "next token": ["objective=next_token", "segments=full_sentences", "attention.pattern=causal"],
    "two lengths": ["final_phase.max_seq_length=60", "final_phase.share=0.4"],
    "fp16": ["precision=fp16"],
    "recompute": ["recompute=layers"],
    "strict with two processes": ["reproducibility=strict", "launch.num_processes=2", "batch.micro_sequences=3"],
}  # fmt: skip
SHORT = ["num_epochs=2", "batch.sequences=7", "task.max_seq_length=40", "device=cpu"]
FINETUNED = {
    "classification with class weights": ["task=sequence", "class_weights=balanced"],
    "regression with units": ["task=regression"],
    "tags": ["task=tagging"],
    "spans": ["task=spans", "task.spans.max_query_length=9"],
    "choice": ["task=choice", "task.columns.context=question", "task.columns.endings=[A,B]"],
    "translation": ["task=translation", "decoder=bert"],
}
WORDS = [a + b for a in ("ka", "lo", "mi", "ru", "te", "so") for b in ("n", "r", "sh", "d", "m")]


def write_text(path: Path, rng: random.Random) -> None:
    """Write 60 documents of random sentences."""
    documents = [
        "\n".join(" ".join(rng.choices(WORDS, k=rng.randint(4, 13))) + "." for _ in range(rng.randint(5, 16)))
        for _ in range(60)
    ]
    path.write_text("\n\n".join(documents) + "\n")


def rows_of(name: str, rng: random.Random, number: int) -> dict[str, object]:
    """Return an example of a task."""
    words = rng.choices(WORDS, k=rng.randint(5, 15))
    text, first = " ".join(words), words[0]
    match name.split()[0]:
        case "classification":
            return {"text": text, "label": "rare" if number % 5 == 0 else first[-1]}
        case "regression":
            return {"text": text, "label": 1000.0 + 37 * WORDS.index(first)}
        case "tags":
            return {"tokens": words, "tags": ["B-X" if word.startswith("ka") else "O" for word in words]}
        case "spans":
            answers = {"text": [words[2]], "answer_start": [len(" ".join(words[:2])) + 1]}
            return {"id": str(number), "question": first, "context": text, "answers": answers}
        case "choice":
            return {"question": text, "A": first, "B": rng.choice(WORDS), "label": 0}
    return {"source": text, "target": " ".join(reversed(words))}


def prepare_inputs(folder: Path, bertkit: list[str], environment: dict[str, str]) -> None:
    """Write the text and the tasks' files; prepare two datasets, and pretrain the model that the tasks begin with."""
    rng = random.Random(0)
    write_text(folder / "text.txt", rng)
    for name in FINETUNED:
        (folder / name).mkdir()
        for split, size in (("train", 41), ("dev", 13)):
            lines = [json.dumps(rows_of(name, rng, number)) for number in range(size)]
            (folder / name / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    text = ["corpus.path=text.txt", "tokenizer.vocab_size=300", "held_out_prob=0.1"]
    fixed = [
        "segments=google",
        "segments.max_seq_length=40",
        "segments.max_predictions_per_seq=6",
        "segments.dupe_factor=2",
    ]
    for command in (
        ["prepare", *text, "output_dir=data"],
        ["prepare", *text[:2], *fixed, "output_dir=fixed"],
        ["pretrain", *TINY, "data_dir=data", "output_dir=start", "seed=5"],
    ):
        subprocess.run([*bertkit, *command], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the command of each run."""
    for name, settings in PRETRAINED.items():
        data = "fixed" if name == "fixed instances" else "data"
        yield name, ["pretrain", *TINY, *settings, f"data_dir={data}"]
    for name, settings in FINETUNED.items():
        yield name, ["finetune", *settings, *SHORT, "model_dir=start", f"data_dir={name}"]


def hashes(checkout: Path) -> dict[str, str]:
    """Train all runs with the code of a checkout; return the hash of the weights and of the losses of each."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    bertkit = [sys.executable, "-m", "bertkit"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare_inputs(folder, bertkit, environment)

        def trained(number: int, command: list[str]) -> str:
            arguments = [*bertkit, *command, f"output_dir=run{number}"]
            done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
            if done.returncode:
                return f"exit code {done.returncode}: {done.stderr.strip()[-200:]}"
            weights = folder / f"run{number}" / "model" / "model.safetensors"
            rows = [json.loads(line) for line in (weights.parents[1] / "metrics.jsonl").open()]
            losses = [[row[key] for key in ("step", "loss", "grad_norm") if key in row] for row in rows]
            return hashlib.sha256(weights.read_bytes() + json.dumps(losses).encode()).hexdigest()[:16]

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            names, words = zip(*commands(), strict=True)
            return dict(zip(names, pool.map(trained, range(len(words)), words), strict=True))


def main(checkouts: list[str]) -> int:
    """Print the hashes, and compare them."""
    measured = [hashes(Path(path).resolve()) for path in (ROOT, *checkouts)]
    for name, own in measured[0].items():
        others = [other[name] for other in measured[1:]]
        verdict = "" if not others else "  as before" if {*others} == {own} else f"  DIFFERS: {', '.join(others)}"
        print(f"{name:36} {own}{verdict}")
    is_sound = all(not value.startswith("exit") for value in measured[0].values())
    return int(not is_sound or any(other != measured[0] for other in measured[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
