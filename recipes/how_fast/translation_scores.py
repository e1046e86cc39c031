"""BLEU of a pair of BERTs, compared with a plain loop over EncoderDecoderModel: the same start, pairs and settings.

    OMP_NUM_THREADS=1 python recipes/how_fast/translation_scores.py ../shared/data/translation_en_de runs/translate/bert_start translating

The three arguments are a folder with train.tsv and dev.tsv (columns en and de), a small BERT, and a folder for the results. For
each seed both sides start from one directory: the BERT twice, with new cross-attention. Their order of pairs and their dropout
differ. `bertkit evaluate` scores both with greedy search. The plain loop pads each batch to its longest source and target.
`loss` is the mean loss per reference token, in nats; lower is better. `seconds` are CPU seconds.
"""

import argparse
import functools
import itertools
import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from common import BERTKIT
from seeds import run_missing, table
from training import transformers

import bertkit
from bertkit.data.corpus.tokenizer import load_tokenizer
from bertkit.interop.hugging_face.directory import write_model
from bertkit.interop.load import load_directory
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.model.bert_config import DecoderConfig

BATCH, RATE, WARMUP_SHARE, SMOOTHING, LONGEST, LONGEST_TARGET = 64, 1e-3, 0.1, 0.1, 128, 64
DECAY = 0.01
TASK: dict[str, Any] = {
    "task.columns.source": "en",
    "task.columns.target": "de",
    "task.max_seq_length": LONGEST,
    "task.generation.max_target_length": LONGEST_TARGET,
    "task.generation.num_beams": 1,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the missing runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("bert")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--epochs", type=float, default=4)
    args = parser.parse_args(arguments)
    for seed in args.seeds:
        start = args.output / f"start.{seed}"
        if not (start / "tokenizer.json").exists():
            make_start(args.bert, seed, start)
        given = (start, args.data, seed, args.epochs)
        ours = functools.partial(run_bertkit, *given, args.output / f"run.{seed}")
        theirs = functools.partial(run_transformers, *given, args.output / f"transformers.{seed}")
        run_missing(args.output, "translation", seed, {"bertkit": ours, "transformers": theirs})
    print(table(args.output, [("translation", key) for key in ("bleu", "chrf", "loss", "seconds")]).markdown())


def make_start(bert: str, seed: int, target: Path) -> None:
    """Write the starting point of both sides: the pair of BERTs."""
    source = resolve_model_dir(bert)
    tokenizer = load_tokenizer(source)
    decoder = DecoderConfig(kind="bert", start_token_id=tokenizer.facts.cls, end_token_id=tokenizer.facts.sep)
    model, _ = load_directory(source, ("generation",), seed=seed, decoder=decoder)
    target.mkdir(parents=True, exist_ok=True)
    write_model(model, tokenizer, target)


def run_bertkit(start: Path, data: Path, seed: int, num_epochs: float, output: Path) -> dict[str, float]:
    """Train with the command, and return the scores in its eval.json."""
    command = [
        *BERTKIT, "finetune", "task=translation", "decoder=bert", f"model_dir={start}", f"data_dir={data}",
        *(f"{name}={value}" for name, value in TASK.items()), f"output_dir={output}", f"seed={seed}",
        f"num_epochs={num_epochs:g}", f"batch.sequences={BATCH}", f"optimizer.peak_learning_rate={RATE}",
        f"schedule.warmup_share={WARMUP_SHARE}", f"task.generation.label_smoothing={SMOOTHING}", "evaluation.every_steps=1000000", "checkpoint.every_steps=1000000", "device=cpu",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return scored(json.loads((output / "eval.json").read_text(encoding="utf-8")))


def run_transformers(start: Path, data: Path, seed: int, num_epochs: float, output: Path) -> dict[str, float]:
    """Train in a plain loop, and score the model with `bertkit evaluate`."""
    library = transformers()
    library.set_seed(seed)
    model = library.EncoderDecoderModel.from_pretrained(start).train()
    tokenizer = library.AutoTokenizer.from_pretrained(start)
    pad = functools.partial(padded, tokenizer)
    pairs: Any = rows_of(data / "train.tsv")
    loader: Any = torch.utils.data.DataLoader(pairs, BATCH, shuffle=True, collate_fn=pad)
    steps = round(num_epochs * len(loader))
    named = list(model.named_parameters())
    kept = {name for name, _ in named if name.endswith(".bias") or "LayerNorm" in name}
    groups = [
        {"params": [p for name, p in named if (name in kept) == is_kept], "weight_decay": 0.0 if is_kept else DECAY}
        for is_kept in (False, True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6)
    schedule = library.get_linear_schedule_with_warmup(optimizer, int(WARMUP_SHARE * steps), steps)
    for inputs in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps):
        labels = inputs.pop("labels")
        logits = model(**inputs).logits
        loss: Any = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return scored(
        bertkit.evaluate(model_dir=str(output), task="translation", data_dir=str(data), device="cpu", **TASK).scores
    )


def scored(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the compared scores."""
    return {"bleu": scores["bleu"], "chrf": scores["chrf"], "loss": math.log(scores["perplexity"])}


def rows_of(path: Path) -> list[tuple[str, str]]:
    """Read the columns en and de."""
    names, *rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return [(row[names.index("en")], row[names.index("de")]) for row in rows]


def padded(tokenizer: Any, rows: list[tuple[str, str]]) -> dict[str, torch.Tensor]:
    """Return the padded inputs of the model for these pairs."""
    sources, targets = (
        tokenizer([row[side] for row in rows], padding=True, truncation=True, max_length=length, return_tensors="pt")
        for side, length in ((0, LONGEST), (1, LONGEST_TARGET + 1))
    )
    labels = targets["input_ids"][:, 1:]
    return {
        "input_ids": sources["input_ids"],
        "attention_mask": sources["attention_mask"],
        "decoder_input_ids": targets["input_ids"][:, :-1],
        "decoder_attention_mask": targets["attention_mask"][:, :-1],
        "labels": labels.masked_fill(targets["attention_mask"][:, 1:] == 0, -100),
    }


if __name__ == "__main__":
    main()
