"""The settings of `bertkit finetune`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bertkit.base.annotations import OptionOf
from bertkit.base.hub_ids import missing_model
from bertkit.base.intervals import Count, Interval, Positive, ShareBelow1, Size
from bertkit.base.typed_settings import IF_SET, options_of, refuse, unused
from bertkit.data.data_config import TokenizerConfig
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import BertShape, DecoderConfig, DecoderShape, HeadConfig, NormConfig
from bertkit.settings.command import Command
from bertkit.settings.pretrain import TrainingSettings
from bertkit.tasks.task_config import TaskConfig, unused_hub
from bertkit.train.train_config import SavingConfig

BASE_HIDDEN_SIZE = 768  # the published learning rates are for encoders of this size
MAX_RATE = 1e-3
MIN_STEPS, MAX_EPOCHS = 100, 20  # of own rows, if the number of epochs is auto
NO_DATA = "missing value: set data_dir= to the task's folder, or task.files.train= to a file"
# what no part of a model from scratch reads, by its decoder
WITHOUT_EFFECT = {
    "transformer": ("model.type_vocab_size", "model.initializer_range", "model.task_transform", "norm.of_embeddings"),
    "rnn": (
        "model.type_vocab_size", "model.initializer_range", "model.task_transform", "model.scale_outputs", "model.hidden_act",
        "model.attention_probs_dropout_prob", "model.layer_norm_eps",
    ),
}  # fmt: skip
RATE_TIMES_SIZE = 0.36  # for models from scratch: learning rate times hidden size


@dataclass(frozen=True, kw_only=True)
class EpochCheckpointConfig(SavingConfig):
    """When to save, and how many checkpoints to keep besides the best one."""

    every_steps: Size | Literal["epoch"]


@dataclass(frozen=True)
class DevEvaluationConfig:
    """When to evaluate on the dev split; training stops after `patience` evaluations without a better score."""

    every_steps: Size | Literal["epoch"]
    patience: Size | None


@dataclass(frozen=True, kw_only=True)
class DecoderSettings(DecoderShape):
    """The decoder of a generation model, and the standard deviation of its initial weights."""

    initializer_range: Positive | Literal["auto"] = "auto"

    def std_of(self, hidden_size: int) -> float:
        """Return `initializer_range`; conf/decoder gives the reasons for the values of auto."""
        if self.initializer_range != "auto":
            return self.initializer_range
        return float(f"{(0.5 if self.kind == 'transformer' else 1) * hidden_size**-0.5:.3g}")

    def of_model(self, start_token_id: int, end_token_id: int) -> DecoderConfig:
        """Return the decoder's configuration for a model with these special tokens."""
        shape = {field.name: vars(self)[field.name] for field in dataclasses.fields(DecoderShape)}
        return DecoderConfig(**shape, start_token_id=start_token_id, end_token_id=end_token_id)


def _needed_model(values: Mapping[str, object]) -> str:
    """Return the message about `model_dir=`, which is not set, beside those about other missing settings."""
    task = values.get("task")
    is_free = values.get("decoder") is not None or (isinstance(task, TaskConfig) and task.kind == "generation")
    return "" if is_free or values.get("model_dir") is not None else missing_model()


def _needed_data(values: Mapping[str, object]) -> str:
    """Return the message about missing rows to train on."""
    task = values.get("task")
    if not isinstance(task, TaskConfig) or task.hub.path is not None or values.get("data_dir") is not None:
        return ""
    return NO_DATA if "*" in str(task.files.train) else ""  # a pattern is for a folder


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(TrainingSettings):
    """`bertkit finetune`."""

    model_dir: str | None = field(metadata={"needed": _needed_model})
    task: TaskConfig
    data_dir: str | None = field(metadata={"needed": _needed_data})
    num_epochs: Annotated[float, Interval(0, 1_000_000, "(]")] | Literal["auto"]
    reinit_layers: Count
    layer_decay: Annotated[float, Interval(0, 1, "(]")]
    class_weights: Literal["balanced"] | tuple[Positive, ...] | None
    calibrate: bool
    objective: Annotated[str, OptionOf("objective")] = field(default="auto", metadata=IF_SET)
    objective_options: dict[str, object] = field(
        default_factory=dict, hash=False, metadata=options_of("objective", "objective")
    )
    max_train_examples: Size | None
    dev_share: ShareBelow1 | None  # 0: train on all rows
    checkpoint: EpochCheckpointConfig
    evaluation: DevEvaluationConfig
    decoder: DecoderSettings | None = None
    model: BertShape | None = None
    attention: AttentionConfig | None = field(default=None, metadata=IF_SET)
    norm: NormConfig | None = field(default=None, metadata=IF_SET)
    tokenizer: TokenizerConfig | None = None
    head: HeadConfig
    explicit_keys: tuple[str, ...] = field(default=(), metadata={"is_written": False})

    def __post_init__(self) -> None:
        refuse(
            self._start_problems(),
            self._class_weight_problems(),
            [  # labels in files are read without blanks around them
                f"task.labels: {name!r:.80} is empty, or begins or ends with a blank; correct it"
                for name in self.task.label_names
                if name.strip() != name or not name
            ],
            self.calibrate
            and self.dev_share == 0
            and "calibrate=true: dev_share=0 leaves no held-out rows to fit a temperature on; set dev_share=0.1",
            unused(
                self.evaluation,
                "evaluation.",
                ("patience", self.dev_share == 0, "with dev_share=0, which measures after the last step alone"),
            ),
            self.calibrate
            and self.head.kind != "linear"
            and f"calibrate=true: head.kind={self.head.kind} has no last linear map that could hold the temperature; leave one of them out",
            unused_hub(self.explicit_keys, self.data_dir),
        )

    @property
    def is_from_scratch(self) -> bool:
        """Whether the run starts without a pretrained model."""
        return self.decoder is not None and self.decoder.is_from_scratch

    def _start_problems(self) -> list[str]:
        """List problems with the starting model, or with the settings of a model from scratch."""
        decoder = self.decoder
        if decoder is not None and self.task.kind != "generation":
            return [f"decoder={decoder.kind}: has no effect with task={self.task.name}; leave it out"]
        if decoder is None and self.task.kind == "generation" and self.model_dir is None:
            return ["missing value: set decoder= (one of bert, rnn, transformer)"]
        if decoder is None or not decoder.is_from_scratch:
            if self.model_dir is None:
                return [missing_model()]
            why = "with model_dir=, whose model defines it"
            return unused(self, "", *((name, True, why) for name in ("model", "tokenizer", "attention", "norm")))
        if self.model_dir is not None:
            return [
                f"model_dir={self.model_dir} with decoder={decoder.kind}, which trains from scratch; leave one of them out"
            ]
        why = "on a model from scratch"
        required = {"model= (such as mini)": self.model, "tokenizer= (wordpiece, bpe or unigram)": self.tokenizer}
        is_rnn = decoder.kind == "rnn"
        rows = [(name, is_rnn, "with decoder=rnn, which has no self-attention") for name in ("attention", "norm")]
        problems = unused(self, "", ("reinit_layers", True, why, 0), ("freeze", True, why), *rows) + [
            f"missing value: set {name} for decoder={decoder.kind}" for name, value in required.items() if value is None
        ]
        problems += [
            f"{key}: has no effect with decoder={decoder.kind}; leave it out"
            for key in WITHOUT_EFFECT[decoder.kind]
            if key in self.explicit_keys
        ]
        if self.norm is not None and self.norm.placement != decoder.norm and "decoder.norm" in self.explicit_keys:
            problems.append(
                f"decoder.norm={decoder.norm}: has no effect with norm.placement={self.norm.placement}; set one of them"
            )
        if self.model is not None and self.model.frequency_biases:
            problems.append("model.frequency_biases=true: only for masked LM and next tokens (pretrain); leave it out")
        attention = self.attention or AttentionConfig()
        if attention.pattern != "full":
            problems.append(f"attention.pattern={attention.pattern}: not with decoder=transformer; leave it out")
        return problems + attention.unused(self.explicit_keys)

    def _class_weight_problems(self) -> list[str]:
        if self.class_weights is None:
            return []
        if self.task.labels is None or self.task.is_regression:
            return [f"class_weights: has no effect with task={self.task.name}, which has no classes; leave it out"]
        if self.task.multi_label:
            return ["class_weights: has no effect with task.multi_label=true; leave it out"]
        return []

    def rate_for(self, hidden_size: int) -> float:
        """Return the peak learning rate for auto; conf/finetune.yaml gives the reasons."""
        if self.is_from_scratch:
            return float(f"{RATE_TIMES_SIZE / hidden_size:.2g}")
        published = self.task.recipe.peak_learning_rate
        if hidden_size >= BASE_HIDDEN_SIZE:
            return published
        return min(MAX_RATE, float(f"{published * (BASE_HIDDEN_SIZE / hidden_size) ** 2:.1g}"))

    def with_rate(self, rate: float) -> FinetuneSettings:
        """Return the settings with this peak learning rate, if theirs is auto."""
        if self.optimizer.peak_learning_rate != "auto":
            return self
        return dataclasses.replace(self, optimizer=dataclasses.replace(self.optimizer, peak_learning_rate=rate))

    @property
    def epochs(self) -> float:
        """The number of epochs, after auto is resolved."""
        assert self.num_epochs != "auto", "resolved when the data are known"
        return self.num_epochs

    def epochs_for(self, num_examples: int) -> int:
        """Return the number of epochs for auto: `task.recipe`'s, but for few own rows as many as make `MIN_STEPS` steps.

        With 200 rows, three epochs are 21 steps, which leave a new head where it began (recipes/own_data). Mosbach et al. 2021 train
        on few rows for 20 epochs.
        """
        published = self.task.recipe.num_epochs
        if self.task.hub.path is not None or self.is_from_scratch:
            return published
        steps_per_epoch = -(-num_examples // self.batch.sequences)
        return max(published, min(MAX_EPOCHS, -(-MIN_STEPS // steps_per_epoch)))

    def with_epochs(self, epochs: float) -> FinetuneSettings:
        """Return the settings with this number of epochs, if theirs is auto."""
        return dataclasses.replace(self, num_epochs=epochs) if self.num_epochs == "auto" else self

    def warmup_of(self, steps: int) -> float:
        """Return the number of warm-up steps; auto means the task's share of `steps`, rounded down."""
        if self.schedule.warmup_steps == self.schedule.warmup_share == "auto":
            return int(self.task.recipe.warmup_share * steps)
        return self.schedule.warmup_of(steps)


COMMAND = Command(
    "finetune",
    FinetuneSettings,
    stage="bertkit.stages.finetune",
    needs="any model and a task's files",
    gives="a model for the task, and its scores",
    positions=("train", "model_dir"),
    is_training=True,
    rows={"train": "task.files.train", "dev": "task.files.dev"},
    model="model",
    scores_file="eval.json",
    check="bertkit.jobs.checks.read_local_splits",
    finished="bertkit.run.finished.is_finetuned",
    infer="bertkit.jobs.checks.infer_settings",
    short={
        "": "task.files.train",
        "--text": "task.columns.text",
        "--pair": "task.columns.text_pair",
        "--label": "task.columns.label",
        "--dev": "task.files.dev",
        "--test": "task.files.test",
        "--output": "output_dir",
    },
)
