"""The rows of the Trainer: BertForMaskedLM in BERT-mini's size and ModernBertForMaskedLM in modern_mini's, with dynamic masking.

They train on packed blocks, as the Trainer's scripts cut them, or on bertkit's sequences of whole sentences.
"""

import itertools
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bertkit.data.batches.sampling import DrawnExamples
from bertkit.data.corpus.prepared import PreparedDataset, open_prepared
from bertkit.data.data_config import SegmentsConfig

LENGTH, SEQUENCES, SNAPSHOTS, WARMUP = 128, 16, 6, 0.05
WIDE = 0.0625  # 1 / sqrt(hidden size), the standard deviation of initial weights
CUT = 0.055  # what bertkit and ModernBERT leave of it: they cut the distribution at two of them, transformers' BERT does not
SHAPE = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}


class Row(NamedTuple):
    """What the Trainer trains."""

    rate: float
    masked: float = 0.15
    family: str = "Bert"
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed
    whole_sentences: bool = False
    bf16: bool = False


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NARROW = {
    "initializer_range": 0.072,
    "hidden_size": 192,
    "num_attention_heads": 3,
    "intermediate_size": 528,
    "sparse_prediction": True,
}
ROWS = {
    "hugging_face": Row(2e-4, settings={"initializer_range": 0.02}),
    "hugging_face_wide": Row(2e-4, settings={"initializer_range": WIDE}),
    "hugging_face_no_dropout": Row(1e-3, 0.3, settings={"initializer_range": WIDE, **NO_DROPOUT}),
    "hugging_face_cut": Row(1e-3, 0.3, settings={"initializer_range": CUT, **NO_DROPOUT}),
    "hugging_face_sentences": Row(1e-3, 0.3, settings={"initializer_range": CUT, **NO_DROPOUT}, whole_sentences=True),
    "hugging_face_modern": Row(
        1e-3, 0.3, "ModernBert",
        {"initializer_range": WIDE, "intermediate_size": 704, "sparse_prediction": True},
    ),
    "hugging_face_narrow": Row(1e-3, 0.3, "ModernBert", NARROW),
    "hugging_face_narrow_bfloat16": Row(1e-3, 0.3, "ModernBert", NARROW, bf16=True),
}  # fmt: skip


def blocks_of(dataset: PreparedDataset) -> list[list[int]]:
    """Return the text as blocks of 126 tokens, cut anywhere, between [CLS] and [SEP]."""
    split, facts = dataset.splits["train"], dataset.tokenizer.facts
    starts = [*split.sentences[split.documents[:-1]].tolist(), split.num_tokens]
    ids = np.concatenate([split.tokens(start, end - start) for start, end in itertools.pairwise(starts)])
    blocks = ids[: len(ids) // (LENGTH - 2) * (LENGTH - 2)].reshape(-1, LENGTH - 2)
    return [[facts.cls, *block, facts.sep] for block in blocks.tolist()]


def sentences_of(dataset: PreparedDataset) -> list[list[int]]:
    """Return the text as bertkit cuts it: whole sentences, at most 128 tokens."""
    segments = SegmentsConfig("full_sentences", LENGTH, 0.0, "none")
    examples = DrawnExamples(dataset, segments, masking=None).source("train", seed=0)
    batch = examples.in_order(0, examples.epoch_length)
    return [each.tolist() for each in np.split(batch.original_ids, np.cumsum(batch.sequence_lengths)[:-1])]


def train(row: str, data: Path, output: Path, steps: int, seed: int, rate: float) -> None:
    """Train a row by the Trainer, with fused AdamW and bertkit's setting of the allocator."""
    import datasets
    import transformers

    from bertkit.kernels.fast import keep_freed_memory

    keep_freed_memory()
    dataset = open_prepared(data)
    facts = dataset.tokenizer.facts
    texts = sentences_of(dataset) if ROWS[row].whole_sentences else blocks_of(dataset)
    rows = datasets.Dataset.from_dict({"input_ids": texts})
    with tempfile.TemporaryDirectory() as folder:
        for name, text in dataset.tokenizer.files(512).items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    transformers.set_seed(seed)
    _, masked, family, settings, _, bf16 = ROWS[row]
    special = {"pad_token_id": facts.pad, "cls_token_id": facts.cls, "sep_token_id": facts.sep}
    special = special if family == "ModernBert" else {"pad_token_id": facts.pad}
    config = getattr(transformers, f"{family}Config")(vocab_size=facts.size, **SHAPE | special | settings)
    model = getattr(transformers, f"{family}ForMaskedLM")(config)
    every = max(1, steps // SNAPSHOTS)

    class Snapshots(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:
            if state.global_step % every == 0 or state.global_step == steps:
                folder = output / "checkpoints" / f"step-{state.global_step:08}"
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
                print(f"step {state.global_step}/{steps}", flush=True)

    arguments = transformers.TrainingArguments(
        str(output), max_steps=steps, per_device_train_batch_size=SEQUENCES, learning_rate=rate, weight_decay=0.01, seed=seed,
        optim="adamw_torch_fused", lr_scheduler_type="linear", warmup_steps=int(WARMUP * steps), save_strategy="no",
        logging_strategy="no", report_to=[], disable_tqdm=True, dataloader_num_workers=0,
        bf16=bf16, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=masked)
    transformers.Trainer(model, arguments, collator, rows, callbacks=[Snapshots()]).train()
