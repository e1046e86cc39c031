"""The rows of bertkit: the ladder from BERT-mini to `modern_mini`, each with one change more, and changes of `modern_mini`."""

import itertools
from pathlib import Path
from typing import Any

import hugging_face
from hugging_face import LENGTH, SEQUENCES, SNAPSHOTS, WARMUP, WIDE

RATE = "optimizer.peak_learning_rate"
POST_NORM_RATE = 2e-4  # at 1e-3 BERT's norm after each sum keeps a small model at the entropy of single tokens
BATCH: dict[str, Any] = {  # in one pass, as the Trainer does
    "batch.sequences": SEQUENCES, "batch.micro_sequences": 2 * SEQUENCES, "segments.max_seq_length": LENGTH,
}  # fmt: skip
BASE: dict[str, Any] = {
    "model": "mini", "model.initializer_range": WIDE, RATE: POST_NORM_RATE, "optimizer.bias_correction": True,
}  # fmt: skip
BERTS_OWN: dict[str, Any] = {  # what bertkit's `mini` has otherwise (conf/from_scratch)
    "model.hidden_dropout_prob": 0.1, "model.attention_probs_dropout_prob": 0.1, "model.scale_outputs": False,
    "masking.probability": 0.15, "optimizer.beta2": 0.999,
}  # fmt: skip
# each row of the ladder changes one thing more than the row before it
CHANGES: dict[str, dict[str, Any]] = {
    "mini": BERTS_OWN,
    "no dropout": {"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0},
    "30 % masked": {"masking.probability": 0.3},
    "pre-norm": {"norm": "pre", RATE: 1e-3},
    "rotary": {"attention.positions": "rotary"},
    "glu": {"feed_forward": "glu", "model.intermediate_size": 704},
}
# the model has what the rows before it set, and windows, no biases, no segments, and smaller output matrices
MODERN = BASE | {"model": "modern_mini", RATE: 1e-3}
FROM_SCRATCH = {  # with the others of conf/from_scratch/mini.yaml, which `model=mini` brings
    "model": "mini", RATE: 1e-3, "batch.sequences": 32, "segments.max_seq_length": 32, "final_phase.max_seq_length": LENGTH,
}  # fmt: skip
LONG = {"batch.sequences": SEQUENCES, "segments.max_seq_length": LENGTH, "final_phase.max_seq_length": None}
OBJECTIVES, PARTS = {"plugins": ["my_objectives"]}, {"plugins": ["parts"]}
NARROW = {
    "model.hidden_size": 192,
    "model.num_attention_heads": 3,
    "model.intermediate_size": 528,
    "model.initializer_range": 0.072,
}
AVERAGED = {"optimizer.name": "averaged_adamw", **PARTS}
CAUSAL_FIRST = {"objective": "causal_first", "objective_options.share": 0.25, **PARTS}
# each of these changes one thing of modern_mini
TRIED: dict[str, dict[str, Any]] = {
    "muon": {"optimizer.name": "muon", RATE: 2e-3, "plugins": ["muon"]},
    "short first": {"segments.max_seq_length": 64, "batch.sequences": 32, "final_phase.max_seq_length": LENGTH},
    "half batch": {"batch.sequences": 8},
    "quarter batch": {"batch.sequences": 4},
    "epsilon 1e-8": {"optimizer.epsilon": 1e-8},  # the Trainer's
    "falling masks": {"objective": "falling_masks", "objective_options.last": 0.5, **OBJECTIVES},
    "15 % masked": {"masking.probability": 0.15},
    "40 % masked": {"masking.probability": 0.4},
    "whole words": {"masking": "whole_word", "masking.probability": 0.3},
    "spans": {"masking": "ngram", "masking.probability": 0.3},  # of one to three words
    "masks where it errs": {"masking.probability": 0.9, "objective": "hard_masks", **PARTS},  # and keeps a third of them
    "causal first": CAUSAL_FIRST,
    "masked next token": {"objective": "mixed_next_token", "plugins": ["mixed_next_token"]},  # GPT-BERT: 1 of 16 causal
    "disentangled": {  # with LTG-BERT's buckets of distances
        "attention": "deberta", "attention.bias": False, "attention.pattern": "alternating", "attention.distance_buckets": 32,
    },
    "no windows": {"attention": "bert", "attention.bias": False, "attention.positions": "rotary", "attention.rotary_pairs": "halves"},
    "RMSNorm": {"norm.kind": "rms", "norm.bias": True},  # which it does not have
    "deep and narrow": {"model.num_hidden_layers": 7, "model.hidden_size": 192, "model.num_attention_heads": 3,
                        "model.intermediate_size": 512, "model.initializer_range": 0.072},
    "narrow": NARROW,
    "narrow, causal first": NARROW | CAUSAL_FIRST,
    "narrower": {"model.hidden_size": 128, "model.num_attention_heads": 2, "model.intermediate_size": 352, "model.initializer_range": 0.088},
    "normed GLU": {"feed_forward.kind": "normed_glu", "feed_forward.bias": True, **PARTS},  # without biases, too
    "squared ReLU": {"feed_forward.kind": "squared_relu", "feed_forward.bias": True, "model.intermediate_size": 1024, **PARTS},
    "normed queries": {
        "attention": "bert", "attention.bias": False, "attention.positions": "normed_rotary", "attention.pattern": "alternating", **PARTS,
    },
    "warm-up, stable, decay": {"schedule": "wsd", "schedule.options.decay_share": 0.2},
    "attention gate": {"model.encoder": "gated", **PARTS},
    "sums of layers": {"model.encoder": "dense_former", **PARTS},
    "average of weights": AVERAGED,  # of the last fifth, for runs of 600 steps
    "constant, averaged": AVERAGED | {"schedule": "constant"},
    "beta2 0.999": {"optimizer.beta2": 0.999},
    "weight decay 0.1": {"optimizer.weight_decay": 0.1},
    "bfloat16": {"precision": "bf16"},
    "narrow, bfloat16": NARROW | {"precision": "bf16"},
}  # fmt: skip
ROWS = (
    {
        row: BASE | {key: value for change in changes for key, value in change.items()}
        for row, changes in zip(CHANGES, itertools.accumulate([change] for change in CHANGES.values()), strict=True)
    }
    | {"mini from scratch": FROM_SCRATCH, "mini from scratch, a tenth": FROM_SCRATCH | {"final_phase.share": 0.1}}
    | {"mini from scratch, 128": FROM_SCRATCH | LONG, "modern_mini": MODERN}
    | {row: MODERN | change for row, change in TRIED.items()}
)
RATES: dict[str, float] = {row: each.rate for row, each in hugging_face.ROWS.items()} | {
    row: settings[RATE] for row, settings in ROWS.items()
}


def settings_of(row: str, data: Path, output: Path, steps: int, seed: int, rate: float) -> dict[str, Any]:
    """Return the settings of `bertkit.pretrain` for a row of the ladder."""
    every = max(1, steps // SNAPSHOTS)
    return BATCH | ROWS[row] | {
        RATE: rate, "data_dir": str(data), "output_dir": str(output), "steps": steps, "seed": seed, "compile": False,
        "segments": "full_sentences", "schedule.warmup_steps": int(WARMUP * steps),
        "checkpoint.every_steps": every, "checkpoint.keep_last": SNAPSHOTS + 2, "checkpoint.keep_best": False,
        "evaluation.every_steps": steps, "evaluation.max_sequences": 64, "log.every_steps": max(1, min(20, steps // 100)),
    }  # fmt: skip


def tokens_a_step(row: str) -> int:
    """Return the number of tokens in a step of a row; a final phase has more."""
    settings = BATCH | ROWS.get(row, {})
    return int(settings["batch.sequences"] * settings["segments.max_seq_length"])
