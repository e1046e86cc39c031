"""Preparing data, compared with datasets and transformers: `text` to token ids, or prepared text to masked `batches`.

    python recipes/how_fast/preparing.py text --text books.txt --text-megabytes 20
    python recipes/how_fast/preparing.py batches --batch-sequences 32

Hugging Face turns text into token ids as run_mlm.py of transformers does; its batches are masked and padded from ready pairs,
while bertkit also draws the pairs and their order.
"""

import argparse
import dataclasses
import functools
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import BERTKIT, DATA, ROUNDS, Options, parsed, prepared_text, write_text
from rounds import Ready, System, compare
from training import Pairs, transformers

TEXT: Options = {
    "what": {"choices": ["text", "batches"]},
    "--text": {"type": Path, "help": "a file or folder, repeated to reach the size; default: Python's documentation"},
    "--text-megabytes": {"type": int, "default": 8},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison and print its table."""
    args = parsed(__doc__, arguments, TEXT, DATA, ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        dataset = prepared_text(args.data_dir, Path(folder))
        if args.what == "text":
            text = write_text(args.text, args.text_megabytes, Path(folder))
            compare(args, "MB/s", systems(args, dataset.directory, text))
            return
        pairs = Pairs(dataset.directory, args.max_seq_length, args.batch_sequences)
        theirs = System("Hugging Face: masks and padding of ready pairs", functools.partial(their_batches, pairs))
        ours = System("bertkit: pairs, order, masks, packing", functools.partial(our_batches, pairs))
        compare(args, "tokens/s", [theirs, ours])


def systems(args: argparse.Namespace, data_dir: Path, text: Path) -> list[System]:
    """List the systems that turn text into token ids, with the vocabulary of a prepared dataset."""
    ways = {"Hugging Face: datasets, map": hugging_face, "bertkit prepare": bertkit}
    return [System(name, functools.partial(load, args, data_dir, text)) for name, load in ways.items()]


def bertkit(args: argparse.Namespace, data_dir: Path, text: Path) -> Ready:
    """Prepare with the command; the time includes its start."""
    command = [*BERTKIT, "prepare", f"corpus.path={text}", f"tokenizer.path={data_dir / 'tokenizer'}"]

    def num_tokens() -> int:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "prepared"
            settings = [f"num_workers={args.num_threads}", f"output_dir={target}"]
            subprocess.run([*command, *settings], check=True, stdout=subprocess.DEVNULL)
            splits = json.loads((target / "manifest.json").read_text(encoding="utf-8"))["splits"]
            return sum(int(split["tokens"]) for split in splits.values())

    return Ready(num_tokens, lambda number: num_tokens() and text.stat().st_size / 1e6)


def hugging_face(args: argparse.Namespace, data_dir: Path, text: Path) -> Ready:
    """Load lines, tokenize and group them with `map`."""
    import datasets
    import pyarrow.compute

    datasets.disable_progress_bars()
    tokenizer = transformers().AutoTokenizer.from_pretrained(data_dir / "tokenizer")
    length = args.max_seq_length
    settings = {"batched": True, "num_proc": args.num_threads if args.num_threads > 1 else None}

    def tokenize(rows: dict[str, list[str]]) -> Any:
        return tokenizer(rows["text"], return_special_tokens_mask=True)

    def group(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: [value for row in column for value in row] for name, column in rows.items()}
        starts = range(0, len(joined["input_ids"]) // length * length, length)
        return {name: [column[start : start + length] for start in starts] for name, column in joined.items()}

    def num_tokens() -> int:
        with tempfile.TemporaryDirectory() as cache:
            lines = datasets.load_dataset("text", data_files=str(text), split="train", cache_dir=cache)
            tokenized = lines.map(tokenize, remove_columns=["text"], **settings)
            tokenized.map(group, **settings)
            lengths = pyarrow.compute.list_value_length(tokenized.data.column("input_ids"))
            return int(pyarrow.compute.sum(lengths).as_py()) - 2 * len(tokenized)  # without [CLS] and [SEP]

    return Ready(num_tokens, lambda number: num_tokens() and text.stat().st_size / 1e6)


def our_batches(pairs: Pairs) -> Ready:
    """Iterate over an epoch; every round has new pairs in a new order."""
    size = pairs.batch_sequences

    def work(number: int = 0) -> float:
        sampler = dataclasses.replace(pairs.sampler, seed=number)
        steps = range(sampler.epoch_length // size)
        return sum(sampler.micro_batches(step, size, [(0, size)])[0].num_tokens for step in steps)

    return Ready(work, work)


def their_batches(pairs: Pairs) -> Ready:
    """Mask and pad the pairs of bertkit's first epoch with DataCollatorForLanguageModeling."""
    import datasets

    size = pairs.batch_sequences
    batch = pairs.sampler.take(np.arange(pairs.sampler.epoch_length // size * size))
    tokenizer = transformers().AutoTokenizer.from_pretrained(pairs.data_dir / "tokenizer")
    ids, borders = batch.original_ids, np.cumsum(batch.sequence_lengths)[:-1]
    is_special = np.isin(ids, tokenizer.all_special_ids).astype(np.int64)
    columns = {"input_ids": ids, "token_type_ids": batch.token_type_ids, "special_tokens_mask": is_special}
    rows = datasets.Dataset.from_dict({name: np.split(values, borders) for name, values in columns.items()})
    collator = transformers().DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    loader: Any = torch.utils.data.DataLoader(rows, size, shuffle=True, collate_fn=collator)

    def work(number: int = 0) -> float:
        return sum(int(batch["attention_mask"].sum()) for batch in loader)

    return Ready(work, work)


if __name__ == "__main__":
    main()
