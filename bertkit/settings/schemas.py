"""What each command accepts: one frozen dataclass a command, made of the parts' own.

The values stand in `conf/`; this page holds the types and the rules that span several groups. Nothing here imports
torch, so that a misspelt key is refused at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from bertkit.config import nearest
from bertkit.data.config import CorpusConfig, InstancesConfig, MaskingConfig, SegmentsConfig, TokenizerConfig
from bertkit.errors import InputError
from bertkit.model.config import BertShape
from bertkit.tasks.config import TaskConfig
from bertkit.train.config import (
    BatchConfig,
    CheckpointConfig,
    EvaluationConfig,
    LogConfig,
    NumericsConfig,
    OptimizerConfig,
    ResumeConfig,
    SavingConfig,
    ScheduleConfig,
)

PredictFormat = Literal[
    "text", "words", "tsv", "csv", "jsonl", "json", "squad", "conll", "conllu", "parquet", "label_text"
]
PREPARED_SPLITS = ("auto", "train", "held_out", "all")
_OF_PREPARED = ("segments", "masking", "seed", "max_sequences", "batch_sequences")
FROZEN_LAYERS = re.compile(r"layers:(\d+)")


def _seed_problems(seed: int) -> list[str]:
    return [] if 0 <= seed < 2**63 else [f"seed={seed}: expected 0 to {2**63 - 1}"]


@dataclass(frozen=True)
class LaunchConfig:
    """The processes of a run.

    Attributes:
        num_processes: on each host.
        num_hosts: each runs the same command with its own `host_rank`.
        host_rank: of this host, from 0.
        address: HOST:PORT of host 0, where the others find it; None for one host.
        interface: the network interface between the hosts; None: the one on the way to `address`.
        hang_timeout_seconds: without a sign of life from any process, the run is ended.
    """

    num_processes: int
    num_hosts: int
    host_rank: int
    address: str | None
    interface: str | None
    hang_timeout_seconds: float

    def __post_init__(self) -> None:
        problems = [
            f"launch.{name}={value}: expected at least 1"
            for name, value in (("num_processes", self.num_processes), ("num_hosts", self.num_hosts))
            if value < 1
        ]
        if self.num_hosts >= 1 and not 0 <= self.host_rank < self.num_hosts:
            problems.append(
                f"launch.host_rank={self.host_rank}: expected 0 to {self.num_hosts - 1}, with launch.num_hosts="
                f"{self.num_hosts}"
            )
        if self.num_hosts > 1 and self.address is None:
            problems.append("missing value: set launch.address=HOST:PORT of host 0")
        if self.num_hosts == 1 and self.address is not None:
            problems.append(f"launch.address={self.address}: has no effect with one host; set launch.num_hosts=")
        if not self.hang_timeout_seconds > 0:
            problems.append(f"launch.hang_timeout_seconds={self.hang_timeout_seconds}: expected a positive number")
        if problems:
            raise InputError("\n".join(problems))


@dataclass(frozen=True)
class PrepareSettings:
    """`bertkit prepare`.

    Attributes:
        given: the keys and groups that the command line names, and the keys of its experiment, to tell a value that was asked for from a default.
    """

    corpus: CorpusConfig
    tokenizer: TokenizerConfig
    segments: SegmentsConfig | InstancesConfig | None
    masking: MaskingConfig
    output_dir: str
    held_out_prob: float
    strict: bool
    shard_tokens: int
    num_workers: int | Literal["auto"]
    num_cached_words: int
    part_bytes: int
    shard: str | None
    merge: tuple[str, ...] | None
    seed: int
    dump: str | None
    given: tuple[str, ...] = field(metadata={"is_written": False})

    def __post_init__(self) -> None:
        problems = _seed_problems(self.seed) + self._problems_of_parts()
        if self.corpus.source != "python_docs" and not self.corpus.path and self.merge is None:
            problems.append(
                "missing value: set corpus.path= to files, folders or globs of text (or take corpus=python_docs)"
            )
        if isinstance(self.segments, SegmentsConfig):
            problems.append(
                f"segments={self.segments.kind}: prepare stores tokens only, and pretrain cuts them; give it to pretrain "
                "(or take segments=google, for fixed instances)"
            )
        elif self.segments is None:
            without_effect = [key for key in self.given if key.split(".")[0] in ("masking", "seed", "dump")]
            if without_effect:
                problems.append(
                    f"{', '.join(without_effect)}: has no effect here, since prepare stores tokens only; add segments=google, "
                    "or give it to pretrain"
                )
        else:
            if "held_out_prob" in self.given and self.held_out_prob > 0:
                problems.append(
                    f"held_out_prob={self.held_out_prob}: has no effect with segments=google, which takes every document; "
                    "leave it out"
                )
            if (self.masking.mask_prob, self.masking.random_prob) != (0.8, 0.1):
                problems.append(
                    f"masking.mask_prob={self.masking.mask_prob} and masking.random_prob={self.masking.random_prob}: "
                    "segments=google draws 0.8 and 0.1, as the original; leave them out"
                )
        if not 0 <= self.held_out_prob < 1:
            problems.append(f"held_out_prob={self.held_out_prob}: expected a share of the documents below 1")
        if not 1 <= self.shard_tokens < 2**32:
            problems.append(f"shard_tokens={self.shard_tokens}: expected 1 to {2**32 - 1}")
        if problems:
            raise InputError("\n".join(problems))

    @property
    def shard_of(self) -> tuple[int, int]:
        """The number of this shard, from 1, and how many there are."""
        number, _, count = (self.shard or "1/1").partition("/")
        return int(number), int(count)

    def _problems_of_parts(self) -> list[str]:
        problems = []
        if isinstance(self.num_workers, int) and self.num_workers < 1:
            problems.append(f"num_workers={self.num_workers}: expected auto or at least 1")
        if self.num_cached_words < 0:
            problems.append(f"num_cached_words={self.num_cached_words}: expected 0 (no cache) or more")
        if self.part_bytes < 1:
            problems.append(f"part_bytes={self.part_bytes}: expected at least 1")
        if self.shard is not None:
            if not re.fullmatch(r"[1-9]\d{0,5}/[1-9]\d{0,5}", self.shard) or self.shard_of[0] > self.shard_of[1]:
                problems.append(f"shard={self.shard}: expected i/n with i from 1 to n, such as 1/4")
            if self.tokenizer.path is None:
                problems.append(f"shard={self.shard}: all shards need the same vocabulary; set tokenizer.path=")
            if self.segments is not None:
                problems.append(f"shard={self.shard}: segments=google draws from the whole text; leave one of them out")
        if self.merge is not None:
            if not self.merge:
                problems.append("merge=[]: expected the directories of all shards")
            others = [key for key in self.given if key not in ("merge", "output_dir", "strict")]
            if others:
                problems.append(
                    f"{', '.join(others)}: has no effect with merge=, which takes it from the shards; leave it out"
                )
        return problems


@dataclass(frozen=True)
class SkipConfig:
    """Steps whose batches are left out."""

    skip_steps: tuple[int, ...]


@dataclass(frozen=True)
class FinalPhaseConfig:
    """The last steps of a run, with longer sequences."""

    max_seq_length: int | None
    share: float

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise InputError(
                f"final_phase.share={self.share}: expected a share of the steps between 0 and 1, such as 0.1"
            )

    def first_step(self, steps: int) -> int:
        """Give the number of steps done before the phase; all of them where there is none."""
        return steps if self.max_seq_length is None else steps - round(self.share * steps)


@dataclass(frozen=True)
class PretrainSettings:
    """`bertkit pretrain`."""

    data_dir: str
    output_dir: str
    init_from: str | None
    init_moments: bool
    steps: int
    seed: int
    precision: Literal["fp32", "bf16"]
    kernels: Literal["auto", "plain"]
    compile: bool | Literal["auto"]
    device: Literal["auto", "cpu", "cuda"]
    reproducibility: Literal["default", "strict"]
    model: BertShape
    segments: SegmentsConfig | InstancesConfig
    final_phase: FinalPhaseConfig
    masking: MaskingConfig
    batch: BatchConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    checkpoint: CheckpointConfig
    evaluation: EvaluationConfig
    log: LogConfig
    numerics: NumericsConfig
    resume: ResumeConfig
    data: SkipConfig
    launch: LaunchConfig
    given: tuple[str, ...] = field(metadata={"is_written": False})

    def __post_init__(self) -> None:
        problems = _seed_problems(self.seed)
        if self.steps < 1:
            problems.append(f"steps={self.steps}: expected at least 1")
        elif self.schedule.warmup_of(self.steps) > self.steps:
            problems.append(
                f"schedule.warmup_steps={self.schedule.warmup_steps} exceeds steps={self.steps}; "
                "lower the warm-up or train longer"
            )
        if self.init_moments and self.init_from is None:
            problems.append("init_moments=true has no effect without init_from=; give the run to start from")
        problems += self._final_phase_problems()
        # else the shape is that of the starting weights, or the length that of stored instances, checked when they are read
        from_scratch = self.init_from is None and isinstance(self.segments, SegmentsConfig)
        if from_scratch and self.segments.max_seq_length > self.model.max_position_embeddings:
            problems.append(
                f"max_seq_length={self.segments.max_seq_length} exceeds the model's max_position_embeddings="
                f"{self.model.max_position_embeddings}; lower segments.max_seq_length"
            )
        if self.init_from is None and self.segments.has_pairs and self.model.type_vocab_size < 2:
            problems.append(
                f"model.type_vocab_size={self.model.type_vocab_size}: segment pairs need 2; "
                "set it, or take segments=full_sentences"
            )
        if problems:
            raise InputError("\n".join(problems))

    def _final_phase_problems(self) -> list[str]:
        longest, border = self.final_phase.max_seq_length, self.final_phase.first_step(self.steps)
        if longest is None:
            # not where the phase is taken out of a run that is otherwise the same
            if "final_phase.share" in self.given and "final_phase.max_seq_length" not in self.given:
                share = self.final_phase.share
                return [f"final_phase.share={share}: has no effect without final_phase.max_seq_length=; leave it out"]
            return []
        if isinstance(self.segments, InstancesConfig):
            return [
                f"final_phase.max_seq_length={longest}: segments=google has one length, fixed when the text was prepared; "
                "start a second run with init_from= and init_moments=true on text prepared at that length"
            ]
        problems = []
        if longest <= self.segments.max_seq_length:
            problems.append(
                f"final_phase.max_seq_length={longest}: expected more than segments.max_seq_length="
                f"{self.segments.max_seq_length}, or null for a run with one length"
            )
        if self.init_from is None and longest > self.model.max_position_embeddings:
            problems.append(
                f"max_seq_length={longest} exceeds the model's max_position_embeddings="
                f"{self.model.max_position_embeddings}; lower final_phase.max_seq_length"
            )
        if self.steps >= 1 and not 0 < border < self.steps:
            problems.append(
                f"final_phase.share={self.final_phase.share} of steps={self.steps} leaves a phase without steps; train "
                "longer, or set final_phase.max_seq_length=null"
            )
        return problems


@dataclass(frozen=True, kw_only=True)
class EpochCheckpointConfig(SavingConfig):
    """When to save, and how many checkpoints to keep besides the best, which is always kept."""

    every_steps: int | Literal["epoch"]

    def __post_init__(self) -> None:
        _require_steps("checkpoint", self.every_steps)
        if self.keep_last < 1:
            raise InputError(f"checkpoint.keep_last={self.keep_last}: expected at least 1")


@dataclass(frozen=True)
class DevEvaluationConfig:
    """When to evaluate on the dev split, and after how many evaluations without a better score to stop."""

    every_steps: int | Literal["epoch"]
    patience: int | None

    def __post_init__(self) -> None:
        _require_steps("evaluation", self.every_steps)
        if self.patience is not None and self.patience < 1:
            raise InputError(f"evaluation.patience={self.patience}: expected null or at least 1")


def _require_steps(group: str, every_steps: int | str) -> None:
    if every_steps != "epoch" and int(every_steps) < 1:
        raise InputError(f"{group}.every_steps={every_steps}: expected epoch or at least 1")


@dataclass(frozen=True)
class FinetuneSettings:
    """`bertkit finetune`."""

    task: TaskConfig
    model_dir: str
    data_dir: str | None
    output_dir: str
    num_epochs: float
    seed: int
    precision: Literal["fp32", "bf16"]
    kernels: Literal["auto", "plain"]
    compile: bool | Literal["auto"]
    device: Literal["auto", "cpu", "cuda"]
    reproducibility: Literal["default", "strict"]
    freeze: str | None
    reinit_layers: int
    layer_decay: float
    class_weights: Literal["balanced"] | tuple[float, ...] | None
    max_train_examples: int | None
    dev_share: float | None
    batch: BatchConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    checkpoint: EpochCheckpointConfig
    evaluation: DevEvaluationConfig
    log: LogConfig
    numerics: NumericsConfig
    data: SkipConfig
    resume: ResumeConfig
    launch: LaunchConfig

    def __post_init__(self) -> None:
        problems = _seed_problems(self.seed)
        if not self.num_epochs > 0:
            problems.append(f"num_epochs={self.num_epochs}: expected a positive number")
        if self.freeze not in (None, "embeddings", "encoder") and not FROZEN_LAYERS.fullmatch(self.freeze or ""):
            problems.append(f"freeze={self.freeze}: expected null, embeddings, encoder, or layers:K such as layers:6")
        if self.reinit_layers < 0:
            problems.append(f"reinit_layers={self.reinit_layers}: expected 0 or more")
        if not 0 < self.layer_decay <= 1:
            problems.append(f"layer_decay={self.layer_decay}: expected a number above 0 and up to 1")
        if self.max_train_examples is not None and self.max_train_examples < 1:
            problems.append(f"max_train_examples={self.max_train_examples}: expected null or at least 1")
        if self.dev_share is not None and not 0 < self.dev_share < 1:
            problems.append(f"dev_share={self.dev_share:g}: expected null or a number between 0 and 1")
        problems += self._class_weight_problems()
        if problems:
            raise InputError("\n".join(problems))

    def _class_weight_problems(self) -> list[str]:
        weights = self.class_weights
        if weights is None:
            return []
        if self.task.kind not in ("sequence", "tagging") or self.task.is_regression:
            return [f"class_weights has no effect without labels by name, as in task={self.task.name}; leave it out"]
        if self.task.multi_label:
            return ["class_weights has no effect with task.multi_label=true; leave it out"]
        if weights != "balanced" and not all(isinstance(weight, float) and weight > 0 for weight in weights):
            return [f"class_weights={list(weights)}: expected balanced, or a positive number for each label"]
        return []

    def frozen_depth(self, num_layers: int) -> int:
        """Give how many of the embeddings (1) and layers (1 each) are frozen, from below.

        Raises:
            InputError: more layers than there are.
        """
        match = FROZEN_LAYERS.fullmatch(self.freeze or "")
        if match is None:
            return {None: 0, "embeddings": 1, "encoder": num_layers + 1}[self.freeze]
        if int(match.group(1)) > num_layers:
            raise InputError(
                f"freeze={self.freeze}: the model has {num_layers} layers; freeze at most layers:{num_layers}"
            )
        return int(match.group(1)) + 1

    def warmup_of(self, steps: int) -> float:
        """Give the warm-up of a run of `steps` steps; left to itself the task's share of them, in whole steps."""
        if self.schedule.warmup_steps == self.schedule.warmup_share == "auto":
            return int(self.task.recipe.warmup_share * steps)
        return self.schedule.warmup_of(steps)


@dataclass(frozen=True)
class EvaluateSettings:
    """`bertkit evaluate`.

    Attributes:
        task_changes: what is set of the task of the model's run, which is measured where no task is chosen.
    """

    model_dir: str
    task: TaskConfig | None
    task_changes: dict[str, Any]
    data_dir: str | None
    split: str
    seed: int
    precision: Literal["fp32", "bf16"]
    device: Literal["auto", "cpu", "cuda"]
    segments: SegmentsConfig | InstancesConfig
    masking: MaskingConfig
    given: tuple[str, ...] = field(metadata={"is_written": False})
    max_sequences: int | None
    batch_sequences: int
    launch: LaunchConfig

    def __post_init__(self) -> None:
        problems = _seed_problems(self.seed)
        if self.batch_sequences < 1:
            problems.append(f"batch_sequences={self.batch_sequences}: expected at least 1")
        if self.max_sequences is not None and self.max_sequences < 1:
            problems.append(f"max_sequences={self.max_sequences}: expected null or at least 1")
        if problems:
            raise InputError("\n".join(problems))
        if self.task is not None:
            self.check_for_task(self.task)

    def check_for_task(self, task: TaskConfig) -> None:
        """Refuse what has no effect on the split of a task."""
        without_effect = [key for key in self.given if key.split(".")[0] in _OF_PREPARED]
        if without_effect:
            raise InputError(
                f"{', '.join(without_effect)}: has no effect with task={task.name}; leave it out, or leave task= out to "
                "measure a prepared dataset"
            )

    def check_for_prepared(self) -> None:
        """Refuse what has no effect on a prepared dataset, and what is missing for one."""
        problems = []
        if self.data_dir is None:
            problems.append("missing value: set data_dir=")
        if self.split not in PREPARED_SPLITS:
            hint = "" if self.data_dir is None else "; for the split of a task, set task="
            problems.append(f"split={self.split}: expected {' or '.join(PREPARED_SPLITS)}{hint}")
        if self.task_changes:
            changed = ", ".join(f"task.{key}" for key in self.task_changes)
            problems.append(f"{changed}: has no effect here, since model_dir= is no fine-tuning run; set task= too")
        if problems:
            raise InputError("\n".join(problems))


@dataclass(frozen=True)
class PredictSettings:
    """`bertkit predict`.

    Attributes:
        task_changes: what is set of the model's own task, where no other one is chosen.
    """

    model_dir: str
    input: str
    output: str
    task: TaskConfig | None
    task_changes: dict[str, Any]
    format: PredictFormat | None
    top_k: int
    precision: Literal["fp32", "bf16"]
    kernels: Literal["auto", "plain"]
    device: Literal["auto", "cpu", "cuda"]

    def __post_init__(self) -> None:
        problems = []
        if self.top_k < 1:
            problems.append(f"top_k={self.top_k}: expected at least 1")
        if self.output != "-" and self.output == self.input:
            problems.append(f"output={self.output} is the input; choose another file")
        for ending in (".conll", ".partial"):
            if self.output.endswith(ending):
                problems.append(f"output={self.output}: JSON lines are written there; choose a name such as mine.jsonl")
        if self.output.split("/")[-1] in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
            problems.append(f"output={self.output}: SQuAD's file of that name is written beside it; choose mine.jsonl")
        if problems:
            raise InputError("\n".join(problems))


@dataclass(frozen=True)
class ExportSettings:
    """`bertkit export`."""

    checkpoint: str
    output_dir: str
    head: Literal["pretraining", "masked_lm", "encoder", "task"] | None
    google: bool
    onnx: bool
    sentence_transformers: bool | Literal["mean", "cls"]
    license: str | None
    language: str | None


@dataclass(frozen=True)
class VerifySettings:
    """`bertkit verify`."""

    model_dir: str
    output: str | None
    seed: int
    sequences: int

    def __post_init__(self) -> None:
        problems = _seed_problems(self.seed)
        if self.sequences < 1:
            problems.append(f"sequences={self.sequences}: expected at least 1")
        if problems:
            raise InputError("\n".join(problems))


GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax")


@dataclass(frozen=True)
class GlueSettings:
    """`bertkit glue`.

    Attributes:
        runs: the settings of fine-tuning on each task, in the order of `tasks`; each seed puts in its own.
    """

    model_dir: str | None
    data_dir: str | None
    output_dir: str | None
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    check: str | None
    runs: tuple[FinetuneSettings, ...]

    def __post_init__(self) -> None:
        problems = []
        if self.check is None:
            problems += [
                f"missing value: set {name}=" for name in ("model_dir", "output_dir") if not getattr(self, name)
            ]
        else:
            problems += [
                f"{name}={value}: has no effect with check=; leave it out"
                for name in ("model_dir", "output_dir")
                if (value := getattr(self, name))
            ]
        for task in self.tasks:
            if task not in GLUE_TASKS:
                hint = nearest(task, GLUE_TASKS) or f"; expected some of {', '.join(GLUE_TASKS)}"
                problems.append(f"tasks: '{task}' is no task of GLUE{hint}")
        for name, values in (("tasks", self.tasks), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                problems.append(f"{name}={list(values)}: expected at least one, each of them once")
        if "ax" in self.tasks and "mnli" not in self.tasks:
            problems.append("tasks: ax is answered by the model of mnli; add mnli, or leave ax out")
        for seed in self.seeds:
            problems += _seed_problems(seed)
        if problems:
            raise InputError("\n".join(problems))


@dataclass(frozen=True)
class BenchSettings:
    """`bertkit bench`."""

    what: Literal["pretrain", "finetune", "predict", "prepare", "batches", "startup", "memory", "scaling"]
    model: BertShape
    data_dir: str | None
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
    tricks: bool
    batch_sizes: tuple[int, ...]
    lengths: tuple[int, ...]
    corpus_megabytes: tuple[int, ...]
    memory_gigabytes: float | None
    output: str | None

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "max_seq_length", "batch_sequences", "num_texts", "text_megabytes", "rounds")
        problems = [
            f"{name}={getattr(self, name)}: expected 1 or more"
            for name in (*sizes, "steps_per_round", "num_threads")
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
        if self.tricks and self.what not in ("pretrain", "finetune", "predict"):
            problems.append(f"tricks=true: has no effect with what={self.what}; leave it out")
        has_no_model = self.what in ("prepare", "batches", "startup")
        for name, has_effect, default in (
            ("precision", not has_no_model, "fp32"),
            ("num_threads", self.what != "startup", 1),
            ("text", self.what in ("prepare", "scaling"), None),
        ):
            if getattr(self, name) != default and not has_effect:
                problems.append(f"{name}={getattr(self, name)}: has no effect with what={self.what}; leave it out")
        if self.output is not None and not self.output.endswith((".json", ".html")):
            problems.append(f"output={self.output}: expected a name that ends in .json or .html")
        if problems:
            raise InputError("\n".join(problems))


SCHEMAS = {
    "prepare": PrepareSettings,
    "pretrain": PretrainSettings,
    "finetune": FinetuneSettings,
    "predict": PredictSettings,
    "glue": GlueSettings,
    "evaluate": EvaluateSettings,
    "export": ExportSettings,
    "verify": VerifySettings,
    "bench": BenchSettings,
}
