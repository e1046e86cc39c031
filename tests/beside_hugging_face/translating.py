"""BLEU of a pair of BERTs beside a plain loop over transformers' EncoderDecoderModel: the same start, pairs and settings.

    OMP_NUM_THREADS=1 python tests/beside_hugging_face/translating.py ../shared/data/translation_en_de runs/translate/bert_start translating

The three are train.tsv and dev.tsv with the columns en and de, a small BERT, and a folder for the results. Each run is kept there,
and is not run again. For each seed both sides start from one directory: the BERT twice, with new attention between them.
Their order of pairs and their dropout differ. Both search greedily; sacrebleu scores both. Time is that of the processor.
The plain loop pads each batch to its longest source and target. `loss` is that of a token of the references, in nats; the less the
better. Nothing here is a test that pytest collects.
"""

import argparse
import itertools
import json
import math
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bertkit.data.tokenizer import load_tokenizer
from bertkit.interop.hugging_face.directory import write_model
from bertkit.interop.load import load_directory, resolve_model_dir
from bertkit.model.config import DecoderConfig
from bertkit.tasks.metrics import score

SYSTEMS = ("bertkit", "transformers")
BATCH, RATE, WARMUP_SHARE, SMOOTHING, LONGEST, LONGEST_TARGET = 64, 1e-3, 0.1, 0.1, 128, 64
DECAY = 0.01


def make_start(bert: str, seed: int, target: Path) -> None:
    """Write the pair where both sides start."""
    source = resolve_model_dir(bert)
    tokenizer = load_tokenizer(source)
    decoder = DecoderConfig(kind="bert", start_token_id=tokenizer.facts.cls, end_token_id=tokenizer.facts.sep)
    model, _ = load_directory(source, ("generation",), seed=seed, decoder=decoder)
    write_model(model, tokenizer, target)


def run_bertkit(start: Path, data: Path, output: Path, seed: int, num_epochs: float) -> dict[str, float]:
    """Train by the command, and give the scores of its eval.json."""
    command = [
        Path(sys.executable).parent / "bertkit", "finetune", "task=translation", "decoder=bert", f"model_dir={start}",
        f"data_dir={data}", "task.columns.source=en", "task.columns.target=de", f"output_dir={output}", f"seed={seed}",
        f"num_epochs={num_epochs:g}", f"batch.sequences={BATCH}", f"optimizer.peak_learning_rate={RATE}",
        f"schedule.warmup_share={WARMUP_SHARE}", f"task.max_seq_length={LONGEST}",
        f"task.generation.max_target_length={LONGEST_TARGET}", f"task.generation.label_smoothing={SMOOTHING}",
        "task.generation.num_beams=1", "evaluation.every_steps=1000000", "checkpoint.every_steps=1000000", "device=cpu",
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = json.loads((output / "eval.json").read_text())
    return {"bleu": found["bleu"], "chrf": found["chrf"], "loss": math.log(found["perplexity"])}


def run_transformers(start: Path, data: Path, output: Path, seed: int, num_epochs: float) -> dict[str, float]:
    """Train in a plain loop, and score what `generate` writes."""
    import transformers

    transformers.set_seed(seed)
    model = transformers.EncoderDecoderModel.from_pretrained(start).train()
    tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    pairs = rows_of(data / "train.tsv")
    loader: Any = torch.utils.data.DataLoader(
        pairs, BATCH, shuffle=True, collate_fn=lambda rows: _padded(tokenizer, rows)
    )
    steps = round(num_epochs * len(loader))
    decayed = [p for name, p in model.named_parameters() if not name.endswith(".bias") and "LayerNorm" not in name]
    kept = [p for name, p in model.named_parameters() if name.endswith(".bias") or "LayerNorm" in name]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(WARMUP_SHARE * steps), steps)
    for inputs in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps):
        labels = inputs.pop("labels")
        logits = model(**inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    texts = rows_of(data / "dev.tsv")
    loss = _loss(model.eval(), tokenizer, texts)
    found = list(_written(model, tokenizer, [source for source, _ in texts]))
    scores = score(["bleu", "chrf"], found, [target for _, target in texts])
    return {**scores, "loss": loss}


def rows_of(path: Path) -> list[tuple[str, str]]:
    """Read the columns en and de."""
    names, *rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return [(row[names.index("en")], row[names.index("de")]) for row in rows]


def _padded(tokenizer: Any, rows: list[tuple[str, str]]) -> dict[str, torch.Tensor]:
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


@torch.no_grad()
def _loss(model: Any, tokenizer: Any, rows: list[tuple[str, str]]) -> float:
    total = count = 0.0
    for first in range(0, len(rows), BATCH):
        inputs = _padded(tokenizer, rows[first : first + BATCH])
        labels = inputs.pop("labels").flatten()
        total += float(torch.nn.functional.cross_entropy(model(**inputs).logits.flatten(0, 1), labels, reduction="sum"))
        count += int((labels != -100).sum())
    return total / count


def _written(model: Any, tokenizer: Any, sources: list[str]) -> Iterator[str]:
    ends = {"decoder_start_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    for first in range(0, len(sources), BATCH):
        given = tokenizer(
            sources[first : first + BATCH], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"
        )
        rows = model.generate(
            given["input_ids"], attention_mask=given["attention_mask"], max_length=LONGEST_TARGET + 1, do_sample=False,
            num_beams=1, pad_token_id=tokenizer.pad_token_id, **ends,
        )  # fmt: skip
        yield from tokenizer.batch_decode(rows, skip_special_tokens=True)


def table(scores: Path) -> str:
    """What has been measured so far: mean and deviation over the seeds, and the difference."""
    rows = ["| score | seeds | bertkit | transformers | difference | its standard error |", "|---|---|---|---|---|---|"]
    of_both = [{path.stem.split(".")[1]: path for path in scores.glob(f"{system}.*.json")} for system in SYSTEMS]
    seeds = sorted(of_both[0].keys() & of_both[1].keys())
    if len(seeds) < 2:
        return "the table needs two seeds of both"
    for key in ("bleu", "chrf", "loss", "seconds"):
        sides = [[json.loads(paths[seed].read_text())[key] for seed in seeds] for paths in of_both]
        means = [f"{statistics.mean(side):.3f} ± {statistics.stdev(side):.3f}" for side in sides]
        difference = statistics.mean(sides[0]) - statistics.mean(sides[1])
        error = (sum(map(statistics.variance, sides)) / len(seeds)) ** 0.5
        rows.append(f"| {key} | {len(seeds)} | {means[0]} | {means[1]} | {difference:+.3f} | {error:.3f} |")
    return "\n".join(rows)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("bert")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, choices=SYSTEMS)
    arguments = parser.parse_args()
    output = arguments.output.resolve()
    (output / "scores").mkdir(parents=True, exist_ok=True)
    for seed, system in itertools.product(arguments.seeds, arguments.systems):
        start, result = output / f"start.{seed}", output / "scores" / f"{system}.{seed}.json"
        if not (start / "tokenizer.json").exists():
            make_start(arguments.bert, seed, start)
        if result.exists():
            continue
        run = run_bertkit if system == "bertkit" else run_transformers
        before = _seconds()
        scores = run(start, arguments.data, output / f"{system}.{seed}", seed, arguments.epochs)
        scores["seconds"] = _seconds() - before
        partial = result.with_suffix(".partial")
        partial.write_text(json.dumps(scores))
        partial.rename(result)
        print(f"seed {seed}, {system}: {scores}", flush=True)
    print(table(output / "scores"))


def _seconds() -> float:
    """Seconds of the processor, of this process and of those that it has started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    main()
