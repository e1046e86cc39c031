"""The same work the Hugging Face way, as its examples do it and at its best: functions as in `bertkit_way`.

transformers and datasets take seconds to import, and only the process of such a system needs them.
Axes: B sequences, T tokens per sequence with padding.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.batch import IGNORED, PretrainBatch, TaskBatch
from bertkit.bench.workload import Batches, Ready, System, Workload, embedding, unmasked
from bertkit.bench.writing import Pairs, writing
from bertkit.data.tokenizer import load_tokenizer
from bertkit.errors import InputError
from bertkit.interop.exports.sentence_transformers import read_pooling
from bertkit.kernels.fast import allow_compiler_cache

CLASSES = {
    "pretrain": "BertForPreTraining",
    "finetune": "BertForSequenceClassification",
    "translate": "EncoderDecoderModel",
}
WINDOW = 50  # batches that are sorted by length together; transformers' LengthGroupedSampler, mega_batch_mult
Inputs = dict[str, Tensor]


def train(workload: Workload, system: System) -> Ready:
    """Train a class of transformers in a plain loop: fused AdamW, clipping, autocast in bf16."""
    is_of_pairs, device = workload.what == "translate", workload.device
    source: Batches | Pairs = Pairs(workload) if is_of_pairs else Batches(workload)
    width = None if is_of_pairs else workload.max_seq_length
    model = getattr(_transformers(), CLASSES[workload.what]).from_pretrained(
        workload.model_dir, attn_implementation="sdpa"
    )
    if is_of_pairs:
        model.decoder.config.use_cache = False  # training has no use for it
        warnings.filterwarnings("ignore", "Version v4.12.0", FutureWarning)  # of how models were trained before it
    model = model.to(device)
    if system.is_compiled:
        allow_compiler_cache()
    called = torch.compile(model) if system.is_compiled else model
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4, fused=True)

    def inputs_of(step: int) -> Inputs:
        return _padded(source.of_step(step), width, device)

    window = functools.cache(
        lambda: _grouped(_padded(source.of_step(0, WINDOW), None, device), workload.batch_sequences)
    )

    def loss(model: Any, inputs: Inputs, precision: str) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            return model(**inputs).loss

    @torch.no_grad()
    def first_losses() -> list[float]:
        model.eval()
        found = [float(loss(model, inputs_of(0), precision)) for precision in ("fp32", system.precision)]
        model.train()
        return found

    def work(number: int) -> int:
        steps = workload.steps_of(number)
        if system.is_grouped:  # batches of all lengths in every round
            inputs = [window()[(number + place * WINDOW // len(steps)) % WINDOW] for place in range(len(steps))]
        else:
            inputs = [inputs_of(step) for step in steps]
        for each in inputs:
            loss(called, each, system.precision).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return sum(int(mask.sum()) for each in inputs for name, mask in each.items() if name.endswith("attention_mask"))

    return Ready(first_losses, work)


def predict(workload: Workload, system: System) -> Ready:
    """Turn texts into probabilities by the pipeline: one at a time, its default; or 32, sorted by length."""
    dtype = torch.bfloat16 if system.precision == "bf16" else torch.float32
    texts, length = workload.texts, workload.max_seq_length
    settings = {"model": str(workload.model_dir), "dtype": dtype, "device": workload.device, "top_k": None}
    pipeline = _transformers().pipeline("text-classification", **settings)
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]) if system.is_grouped else 0)
    cut = {"batch_size": 32 if system.is_grouped else 1, "truncation": True, "max_length": length}
    ids = load_tokenizer(workload.model_dir)(list(texts))["input_ids"]
    num_tokens = sum(min(len(each), length) for each in ids)

    def answer() -> list[dict[str, float]]:
        answers = dict(zip(order, pipeline([texts[place] for place in order], **cut), strict=True))
        return [{row["label"]: row["score"] for row in answers[place]} for place in range(len(texts))]

    return Ready(answer, lambda number: len(answer()) and num_tokens)


def generate(workload: Workload, system: System) -> Ready:
    """Write texts of texts by `generate`, of a call's sources padded to the longest."""
    transformers, decoder = _transformers(), workload.config.decoder
    assert decoder is not None, "a model that writes"
    model = transformers.EncoderDecoderModel.from_pretrained(workload.model_dir, attn_implementation="sdpa")
    model = model.to(workload.device).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(workload.model_dir)
    cut = {"padding": True, "truncation": True, "max_length": workload.max_seq_length, "return_tensors": "pt"}
    search: dict[str, Any] = {
        "num_beams": system.num_beams,
        "max_length": workload.max_target_length + 1,
        "do_sample": False,
    }
    search |= {"length_penalty": 1.0, "early_stopping": False, "pad_token_id": workload.config.pad_token_id}
    search |= {"decoder_start_token_id": decoder.start_token_id, "eos_token_id": decoder.end_token_id}

    def write(texts: list[str]) -> list[list[int]]:
        given = tokenizer(texts, **cut).to(workload.device)
        rows = model.generate(given["input_ids"], attention_mask=given["attention_mask"], **search)
        tokenizer.batch_decode(rows, skip_special_tokens=True)
        return [
            list(itertools.takewhile(lambda token: token != decoder.end_token_id, row[1:])) for row in rows.tolist()
        ]

    return writing(workload, system, write)


def embed(workload: Workload, system: System) -> Ready:
    """Turn texts into vectors by sentence-transformers' encode, in batches of 32, its default."""
    import sentence_transformers

    dtype = torch.bfloat16 if system.precision == "bf16" else torch.float32
    path, shared = str(workload.model_dir), {"device": workload.device, "model_kwargs": {"dtype": dtype}}
    _transformers()
    model = sentence_transformers.SentenceTransformer(path, **shared)
    pooling = read_pooling(workload.model_dir)
    if pooling is not None and pooling.mode != "mean":
        raise InputError(
            f"model_dir={path}: bench compares encoders that take the mean of all tokens; give another one"
        )
    model.max_seq_length = workload.max_seq_length
    return embedding(workload, system, lambda texts: model.encode(texts, normalize_embeddings=True))


def prepare(workload: Workload, system: System) -> Ready:
    """Turn text into token ids as transformers' run_mlm.py does it: a line dataset, tokenized, and grouped."""
    import datasets
    import pyarrow.compute

    datasets.disable_progress_bars()
    tokenizer = _transformers().AutoTokenizer.from_pretrained(workload.data_dir / "tokenizer")
    length = workload.max_seq_length
    shared = {"batched": True, "num_proc": workload.num_threads if workload.num_threads > 1 else None}

    def tokenize(rows: dict[str, list[str]]) -> Any:
        return tokenizer(rows["text"], return_special_tokens_mask=True)

    def group(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: [value for row in column for value in row] for name, column in rows.items()}
        starts = range(0, len(joined["input_ids"]) // length * length, length)
        return {name: [column[start : start + length] for start in starts] for name, column in joined.items()}

    def work(number: int = 0) -> int:
        with tempfile.TemporaryDirectory() as cache:
            text = datasets.load_dataset("text", data_files=str(workload.text_file), split="train", cache_dir=cache)
            tokenized = text.map(tokenize, remove_columns=["text"], **shared)
            tokenized.map(group, **shared)
            lengths = pyarrow.compute.list_value_length(tokenized.data.column("input_ids"))
            return int(pyarrow.compute.sum(lengths).as_py()) - 2 * len(tokenized)  # without [CLS] and [SEP]

    return Ready(work, work)


def batches(workload: Workload, system: System) -> Ready:
    """Mask and pad ready pairs, the same as those of bertkit's first epoch, by transformers' collator."""
    import datasets

    transformers, sampler, size = _transformers(), Batches(workload).sampler, workload.batch_sequences
    pairs = sampler.take(np.arange(sampler.epoch_length // size * size))
    tokenizer = transformers.AutoTokenizer.from_pretrained(workload.data_dir / "tokenizer")
    ids, borders = unmasked(pairs), np.cumsum(pairs.sequence_lengths)[:-1]
    is_special = np.isin(ids, tokenizer.all_special_ids).astype(np.int64)
    columns = {"input_ids": ids, "token_type_ids": pairs.token_type_ids, "special_tokens_mask": is_special}
    rows = datasets.Dataset.from_dict({name: np.split(values, borders) for name, values in columns.items()})
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    loader: Any = torch.utils.data.DataLoader(rows, size, shuffle=True, collate_fn=collator)

    def work(number: int = 0) -> int:
        return sum(int(batch["attention_mask"].sum()) for batch in loader)

    return Ready(work, work)


def _padded(batch: PretrainBatch | TaskBatch, width: int | None, device: str) -> Inputs:
    """Lay out a packed batch as transformers takes it: (B, T) with padding to `width`, or to the longest."""
    given = {"input_ids": batch.input_ids, "token_type_ids": batch.token_type_ids, "attention_mask": 1}
    if isinstance(batch, TaskBatch) and batch.target_lengths is not None:
        del given["token_type_ids"]  # all 0
        inputs = _rows(given, batch.sequence_lengths, width)
        targets = {"decoder_input_ids": batch.target_ids, "decoder_attention_mask": 1, "labels": batch.labels}
        inputs |= _rows(targets, batch.target_lengths, width)
    elif isinstance(batch, TaskBatch):
        inputs = {**_rows(given, batch.sequence_lengths, width), "labels": np.asarray(batch.labels)}
    else:
        labels = np.full(batch.num_tokens, IGNORED)
        labels[batch.masked_positions] = batch.masked_labels
        inputs = _rows({**given, "labels": labels}, batch.sequence_lengths, width)
        inputs["next_sentence_label"] = batch.next_sentence_labels
    return {name: torch.from_numpy(array).to(device) for name, array in inputs.items()}


def _rows(packed: dict[str, Any], lengths: NDArray[np.int64], width: int | None) -> dict[str, Any]:
    """Lay out values of packed tokens: (S,) -> (B, T); labels of padding are ignored."""
    is_token = np.arange(width or int(lengths.max())) < lengths[:, None]
    laid_out = {name: np.full(is_token.shape, IGNORED if name == "labels" else 0, np.int64) for name in packed}
    for name, values in packed.items():
        laid_out[name][is_token] = values
    return laid_out


def _grouped(inputs: Inputs, size: int) -> list[Inputs]:
    """Cut a batch, the shortest sequence first, into batches of `size`, each as wide as its longest."""
    found, num_rows = [], len(inputs["input_ids"])
    of_targets = [
        name for name in inputs if name.startswith(("decoder", "labels")) and "decoder_attention_mask" in inputs
    ]
    masks = {name: inputs["decoder_attention_mask" if name in of_targets else "attention_mask"] for name in inputs}
    for first in range(0, num_rows, size):
        part = {}
        for name, values in inputs.items():
            rows = values[first : first + size]
            if rows.dim() == 2:
                width = int(masks[name][first : first + size].sum(1).max())
                rows = rows[:, :width].contiguous()
            part[name] = rows
        found.append(part)
    return found


def _transformers() -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
