"""The Hugging Face way of the same work, to measure beside: as its examples do it, and at its best.

Axes: B sequences, T tokens per sequence with padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertkit.batch import IGNORED, PretrainBatch, TaskBatch

Inputs = dict[str, Tensor]


def padded(batch: PretrainBatch | TaskBatch, width: int | None, device: torch.device) -> Inputs:
    """Lay out a packed batch as Hugging Face's classes take it: (B, T) with padding to `width`, or to the longest."""
    lengths = batch.sequence_lengths
    shape = (len(lengths), width or int(lengths.max()))
    is_token = np.arange(shape[1]) < lengths[:, None]
    inputs = {name: np.zeros(shape, np.int64) for name in ("input_ids", "token_type_ids")}
    inputs["input_ids"][is_token], inputs["token_type_ids"][is_token] = batch.input_ids, batch.token_type_ids
    inputs["attention_mask"] = is_token.astype(np.int64)
    if isinstance(batch, TaskBatch):
        inputs["labels"] = np.asarray(batch.labels)
    else:
        flat = np.full(batch.num_tokens, IGNORED)
        flat[batch.masked_positions] = batch.masked_labels
        inputs["labels"] = np.full(shape, IGNORED)
        inputs["labels"][is_token] = flat
        if batch.next_sentence_labels is not None:
            inputs["next_sentence_label"] = batch.next_sentence_labels
    return {name: torch.from_numpy(array).to(device) for name, array in inputs.items()}


def grouped(batches: Sequence[Inputs]) -> list[Inputs]:
    """Put the sequences of padded batches of one width into as many batches by length, each as wide as its longest."""
    widest = max(each["input_ids"].shape[1] for each in batches)
    together: Inputs = {}
    for name in batches[0]:
        fill = IGNORED if name == "labels" else 0
        rows = [each[name] for each in batches]
        if rows[0].dim() == 2:
            rows = [torch.nn.functional.pad(each, (0, widest - each.shape[1]), value=fill) for each in rows]
        together[name] = torch.cat(rows)
    lengths = together["attention_mask"].sum(1)
    return [
        {
            name: values[part] if values.dim() == 1 else values[part][:, : int(lengths[part].max())].contiguous()
            for name, values in together.items()
        }
        for part in lengths.argsort().chunk(len(batches))
    ]


class TrainingBaseline:
    """A class of transformers with a plain loop: fused AdamW, clipping, autocast in bf16."""

    def __init__(
        self, directory: Path, architecture: str, precision: str, device: torch.device, is_compiled: bool = False
    ) -> None:
        """Load the model of a directory, in training mode."""
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        model = getattr(transformers, architecture).from_pretrained(directory, attn_implementation="sdpa")
        self.model = model.to(device).train()
        self.called: Any = torch.compile(self.model) if is_compiled else self.model
        self.precision, self.device = precision, device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    @torch.no_grad()
    def loss(self, inputs: Inputs, precision: str) -> Tensor:
        """The loss of a batch, with the dropout of the model's mode."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=precision == "bf16"):
            return self.model(**inputs).loss  # type: ignore[no-any-return]

    def step(self, inputs: Inputs) -> None:
        """Take one optimizer step."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            loss = self.called(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def classify(
    directory: Path,
    texts: Sequence[str],
    max_seq_length: int,
    batch_size: int,
    precision: str,
    is_sorted: bool,
    device: str,
) -> Iterator[Any]:
    """Make the pipeline for text classification once; then give the probabilities of all texts each time it is asked.

    Args:
        directory: a model with a sequence head.
        texts: what to classify.
        max_seq_length: longer texts are cut to so many tokens.
        batch_size: texts of a forward pass; 1 is the pipeline's default.
        precision: "bf16" loads the weights in bfloat16.
        is_sorted: whether the texts are put in the order of their lengths, so that little is padded.
        device: "cpu" or "cuda".
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    pipeline = transformers.pipeline("text-classification", str(directory), dtype=dtype, device=device, top_k=None)
    cut = {"truncation": True, "max_length": max_seq_length}
    order = sorted(range(len(texts)), key=lambda place: len(texts[place])) if is_sorted else range(len(texts))
    while True:
        answers = pipeline([texts[place] for place in order], batch_size=batch_size, **cut)
        found: list[dict[str, float]] = [{} for _ in texts]
        for place, answer in zip(order, answers, strict=True):
            found[place] = {row["label"]: row["score"] for row in answer}
        yield found


def collate(pairs: PretrainBatch, tokenizer_dir: Path, batch_size: int) -> Iterator[int]:
    """Put pairs into a dataset once; then mask and pad an epoch of them each time, and give its number of tokens."""
    import datasets
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_dir)
    ids = pairs.input_ids.copy()
    ids[pairs.masked_positions] = pairs.masked_labels
    columns = {
        "input_ids": ids,
        "token_type_ids": pairs.token_type_ids,
        "special_tokens_mask": np.isin(ids, tokenizer.all_special_ids).astype(np.int64),
    }
    borders = np.cumsum(pairs.sequence_lengths)[:-1]
    rows = datasets.Dataset.from_dict({name: np.split(values, borders) for name, values in columns.items()})
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    while True:
        batches = torch.utils.data.DataLoader(rows, batch_size, shuffle=True, collate_fn=collator)
        yield sum(int(batch["attention_mask"].sum()) for batch in batches)


def prepare_as_examples(
    files: Sequence[Path], tokenizer_dir: Path, max_seq_length: int, cache_dir: Path, num_processes: int
) -> int:
    """Prepare text as transformers' run_mlm.py does: a line dataset, tokenized, and grouped.

    Returns:
        The number of tokens, without [CLS] and [SEP].
    """
    import datasets
    import pyarrow.compute
    import transformers

    datasets.disable_progress_bars()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_dir)
    text = datasets.load_dataset(
        "text", data_files=[str(file) for file in files], split="train", cache_dir=str(cache_dir)
    )

    def tokenize(rows: dict[str, list[str]]) -> Any:
        return tokenizer(rows["text"], return_special_tokens_mask=True)

    def group(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: [value for row in column for value in row] for name, column in rows.items()}
        total = len(joined["input_ids"]) // max_seq_length * max_seq_length
        return {
            name: [column[first : first + max_seq_length] for first in range(0, total, max_seq_length)]
            for name, column in joined.items()
        }

    shared = {"batched": True, "num_proc": num_processes if num_processes > 1 else None}
    tokenized = text.map(tokenize, remove_columns=["text"], **shared)
    tokenized.map(group, **shared)
    lengths = pyarrow.compute.list_value_length(tokenized.data.column("input_ids"))
    return int(pyarrow.compute.sum(lengths).as_py()) - 2 * len(tokenized)
