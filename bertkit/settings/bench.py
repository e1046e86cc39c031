"""What `bertkit bench` accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertkit.errors import InputError
from bertkit.model.config import BertShape


@dataclass(frozen=True)
class BenchSettings:
    """`bertkit bench`."""

    what: Literal[
        "pretrain",
        "finetune",
        "translate",
        "generate",
        "predict",
        "embed",
        "prepare",
        "batches",
        "startup",
        "memory",
        "scaling",
        "attention",
        "serve",
    ]
    model: BertShape
    data_dir: str | None
    model_dir: str | None
    device: Literal["auto", "cpu", "cuda"]
    precision: Literal["fp32", "bf16"]
    vocab_size: int
    max_seq_length: int
    batch_sequences: int
    num_texts: int
    text: str | None
    text_megabytes: int
    rounds: int
    steps_per_round: int
    num_threads: int
    num_clients: int
    round_seconds: float
    num_beams: int
    max_target_length: int
    tricks: bool
    batch_sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    options: tuple[str, ...]
    corpus_megabytes: tuple[int, ...]
    memory_gigabytes: float | None
    output: str | None
    overwrite: bool

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "max_seq_length", "batch_sequences", "num_texts", "text_megabytes", "rounds")
        problems = [
            f"{name}={getattr(self, name)}: expected 1 or more"
            for name in (*sizes, "steps_per_round", "num_threads", "num_clients", "num_beams")
            if getattr(self, name) < 1
        ]
        for name in ("batch_sizes", "lengths", "corpus_megabytes"):
            values = getattr(self, name)
            if not values or min(values) < 1 or list(values) != sorted(set(values)):
                problems.append(f"{name}={list(values)}: expected numbers from 1 up, each larger than the one before")
        if min(self.lengths, default=4) < 4:
            problems.append(f"lengths={list(self.lengths)}: expected 4 tokens or more, for [CLS] and [SEP] and text")
        if self.memory_gigabytes is not None and not self.memory_gigabytes > 0:
            problems.append(f"memory_gigabytes={self.memory_gigabytes}: expected a positive number")
        if not 0 < self.round_seconds < 1e6:
            problems.append(f"round_seconds={self.round_seconds}: expected more than 0, and less than 1,000,000")
        if not self.options or len(set(self.options)) != len(self.options):
            problems.append(f"options={list(self.options)}: expected one or more, each once")
        if self.max_target_length < 2:
            problems.append(f"max_target_length={self.max_target_length}: expected at least 2")
        if self.what == "generate" and self.precision != "fp32":
            problems.append(f"precision={self.precision}: rounding changes texts, and they are compared; leave it out")
        if self.tricks and self.what not in ("pretrain", "finetune", "translate", "predict", "embed"):
            problems.append(f"tricks=true: has no effect with what={self.what}; leave it out")
        has_no_model = self.what in ("prepare", "batches", "startup")
        for name, has_effect, default in (
            ("precision", not has_no_model, "fp32"),
            ("num_threads", self.what != "startup", 1),
            ("model_dir", self.what in ("embed", "serve", "translate", "generate"), None),
            ("text", self.what in ("prepare", "scaling", "serve", "translate", "generate"), None),
            ("num_beams", self.what == "generate", 4),
            ("max_target_length", self.what == "generate", 32),
        ):
            if getattr(self, name) != default and not has_effect:
                problems.append(f"{name}={getattr(self, name)}: has no effect with what={self.what}; leave it out")
        if self.output is not None and not self.output.endswith((".json", ".html")):
            problems.append(f"output={self.output}: expected a name that ends in .json or .html")
        if problems:
            raise InputError(*problems)
