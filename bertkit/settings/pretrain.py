"""The settings of `bertkit pretrain`, and those that fine-tuning shares with it."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self

from bertkit.base import plugins
from bertkit.base.annotations import OptionOf
from bertkit.base.errors import InputError
from bertkit.base.intervals import Form, Interval, Seed, ShareInside, Size
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import (
    build,
    conf_dir,
    option_names,
    options_of,
    read_conf,
    refuse,
    to_mapping,
    unused,
    unused_keys,
)
from bertkit.data.data_config import AnySegments, MaskingConfig
from bertkit.launch.launch_config import LaunchConfig
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import (
    PRETRAINING_HEADS,
    BertShape,
    FeedForwardConfig,
    NormConfig,
    Pooling,
    head_problems,
)
from bertkit.settings.command import Command, CommandSettings
from bertkit.train import train_config

FROZEN_LAYERS = Form("layers:([0-9]{1,5})", "layers:K such as layers:6")


@dataclass(frozen=True)
class SkipConfig:
    """The steps whose batches are skipped."""

    skip_steps: tuple[Size, ...]  # from 1


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(CommandSettings):
    """The settings that pretraining and fine-tuning share."""

    model_dir: str | None
    output_dir: str
    overwrite: bool  # whether to replace another run in `output_dir`
    seed: Seed
    freeze: Literal["embeddings", "encoder"] | Annotated[str, FROZEN_LAYERS] | None
    precision: Literal["fp32", "bf16", "fp16"]
    kernels: Literal["auto", "plain"]
    compile: bool | Literal["auto"]
    recompute: Literal["none", "layers"]
    device: Literal["auto", "cpu", "cuda"]
    reproducibility: Literal["default", "strict"]
    batch: train_config.BatchConfig
    optimizer: train_config.OptimizerConfig
    schedule: train_config.ScheduleConfig
    log: train_config.LogConfig
    numerics: train_config.NumericsConfig
    data: SkipConfig
    resume: train_config.ResumeConfig
    launch: LaunchConfig
    plugins: tuple[str, ...]  # modules

    def frozen_depth(self, num_layers: int) -> int:
        """Return the number of frozen blocks from the bottom; the embeddings are one block, and so is each layer."""
        match = re.fullmatch(FROZEN_LAYERS.pattern, self.freeze or "")
        if match is None:
            return {None: 0, "embeddings": 1, "encoder": num_layers + 1}[self.freeze]
        if int(match.group(1)) > num_layers:
            raise InputError(
                f"freeze={self.freeze}: the model has {num_layers} layers; freeze at most layers:{num_layers}"
            )
        return int(match.group(1)) + 1

    def frozen_line(self, num_trained: int) -> str:
        """Describe the frozen parameters for a number of trained ones; "" if none are frozen."""
        return f"frozen: {self.freeze}; {num_trained / 1e6:.1f} M parameters are trained" if self.freeze else ""


def _set_by_size() -> set[tuple[str, str]]:
    """Return the settings, with their groups, whose default is that of the model's size: those in `conf/from_scratch`."""
    files = [read_conf(f"from_scratch/{name}") for name in option_names([conf_dir()])["from_scratch"]]
    return {(group, name) for content in files for group, settings in content.items() for name in settings}


def unused_masking(explicit_keys: Sequence[str]) -> list[str]:
    """List settings of masks, which a model that predicts next tokens does not use."""
    return unused_keys(explicit_keys, ("masking",), "with objective=next_token")


@dataclass(frozen=True)
class FinalPhaseConfig:
    """The last steps of a run, which have longer sequences."""

    max_seq_length: Size | None
    share: ShareInside

    def first_step(self, steps: int) -> int:
        """Return the number of steps before the phase; without a phase, all steps."""
        return steps if self.max_seq_length is None else steps - round(self.share * steps)


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(TrainingSettings):
    """`bertkit pretrain`."""

    data_dir: str
    init_moments: bool
    steps: Size | Literal["auto"]
    num_epochs: Annotated[float, Interval(0, 1_000_000, "(]")] | None
    model: BertShape
    attention: AttentionConfig
    norm: NormConfig
    feed_forward: FeedForwardConfig
    pooling: Pooling
    objective: Annotated[str, OptionOf("objective")]
    objective_options: dict[str, object] = field(
        default_factory=dict, hash=False, metadata=options_of("objective", "objective")
    )
    segments: AnySegments
    final_phase: FinalPhaseConfig
    masking: MaskingConfig
    checkpoint: train_config.CheckpointConfig
    evaluation: train_config.EvaluationConfig
    explicit_keys: tuple[str, ...] = field(metadata={"is_written": False})

    def __post_init__(self) -> None:
        refuse(
            self.steps != "auto"  # auto is checked later, when the number is known
            and self.steps < self.schedule.warmup_of(self.steps)
            and f"schedule.warmup_steps={self.schedule.warmup_steps} exceeds steps={self.steps}; lower the warm-up, or train "
            "longer",
            self.num_epochs is not None
            and self.steps != "auto"
            and f"num_epochs={self.num_epochs:g} and steps={self.steps} are both set; set one of them",
            unused(
                self, "", *((name, self.model_dir is None, "without model_dir=") for name in ("init_moments", "freeze"))
            ),
            self._final_phase_problems(),
            self._objective_problems(),
            self._model_problems(),
            self._draws_blocks
            and self.segments.short_seq_prob > 0
            and "segments.short_seq_prob" in self.explicit_keys
            and f"segments.short_seq_prob={self.segments.short_seq_prob}: has no effect on blocks of full sentences; leave it out",
            self.optimizer.peak_learning_rate == "auto"
            and "optimizer.peak_learning_rate=auto: expected a number; auto is for fine-tuning",
        )

    @property
    def masks(self) -> MaskingConfig | None:
        """The masking; None if next tokens are predicted."""
        return None if self.predicts_next_token else self.masking

    @property
    def predicts_next_token(self) -> bool:
        """Whether each token predicts the next one; with model_dir=, auto is resolved when the model is opened."""
        is_causal = self.model_dir is None and self.attention.pattern == "causal"
        return self.objective == "next_token" or (self.objective == "auto" and is_causal)

    @property
    def _draws_blocks(self) -> bool:
        """Whether the examples are blocks of full sentences."""
        own, keys = self.segments, self.explicit_keys
        return (own.for_next_tokens(keys) if self.predicts_next_token else own).kind == "full_sentences"

    @property
    def heads(self) -> Sequence[str]:
        """The heads that are trained, after the objective is resolved."""
        own = None if self.objective == "auto" else getattr(plugins.find("objective", self.objective), "heads", None)
        if isinstance(own, tuple):
            return own
        if self.predicts_next_token:
            return ("next_token",)
        return PRETRAINING_HEADS if self.segments.predicts_next else ("masked_lm",)

    def _objective_problems(self) -> list[str]:
        if not self.predicts_next_token:
            return []
        problems = unused_masking(self.explicit_keys)
        if self.model_dir is None:
            problems += self.attention.next_token_problems()
        if self.segments.for_next_tokens(self.explicit_keys).predicts_next:
            kind = self.segments.kind
            problems.append(f"segments={kind}: objective=next_token predicts no next sentence; set next_sentence=none")
        return problems

    def _model_problems(self) -> list[str]:
        """List settings that do not fit together; starting weights and fixed instances are checked when they are opened."""
        if self.model_dir is not None:
            groups = ("attention", "norm", "feed_forward", "pooling")
            return unused_keys(self.explicit_keys, groups, "with model_dir=, which sets it")
        shape = self.model
        problems = self.attention.unused(self.explicit_keys)
        if not self.segments.is_fixed:
            problems += shape.too_long("max_seq_length", self.segments.max_seq_length, "segments.max_seq_length")
        problems += shape.size_problems(self.attention)
        problems += head_problems(
            self.attention, self.pooling, [head for head in self.heads if head == "next_sentence"]
        )
        if shape.shared_layers:
            problems += self._problems_of_one_layer()
        if self.segments.has_pairs and shape.type_vocab_size == 1:
            problems.append(
                f"model.type_vocab_size={shape.type_vocab_size}: segment pairs need 2; set it, or use segments=full_sentences"
            )
        return problems

    def _problems_of_one_layer(self) -> list[str]:
        """List settings by which single layers differ, where all layers are one."""
        attention = self.attention
        has_bases = attention.pattern == "alternating" and attention.positions == "rotary"
        is_other = has_bases and attention.rotary_local_base not in (None, attention.rotary_base)
        usual = {"norm.before_first=true": not self.norm.before_first, "attention.rotary_local_base=null": is_other}
        why = "model.shared_layers=true: the first layer cannot differ from the others"
        return [f"{why}; set {setting}" for setting, differs in usual.items() if differs]

    def as_begun(self, begun: JsonObject) -> Self:
        """Return the settings with those that a run began with, where a default is that of the model's size and the user sets none."""
        if self.model_dir is not None or not begun:
            return self
        values, chosen = to_mapping(self), {*self.explicit_keys} - {"model"}  # a chosen option brings its own values
        for group, name in _set_by_size():
            # a value that is the default of its class is not saved
            value = (begun.get(group) or {}).get(name, getattr(type(vars(self)[group]), name, ...))
            if value is not ... and not {group, f"{group}.{name}"} & chosen:
                values[group][name] = value
        return build(type(self), values | {"explicit_keys": [*self.explicit_keys]})

    def with_steps(self, steps: int) -> Self:
        """Return the settings with this number of steps, which replaces auto and `num_epochs`."""
        return dataclasses.replace(self, steps=steps, num_epochs=None)

    def _final_phase_problems(self) -> list[str]:
        longest = self.final_phase.max_seq_length
        if longest is None:
            # allow a share with final_phase.max_seq_length=null, to repeat a run without its phase
            if "final_phase.share" in self.explicit_keys and "final_phase.max_seq_length" not in self.explicit_keys:
                share = self.final_phase.share
                return [f"final_phase.share={share}: has no effect without final_phase.max_seq_length=; leave it out"]
            return []
        if self.segments.is_fixed:
            return [
                f"final_phase.max_seq_length={longest}: segments=google has one length, which prepare fixed; "
                "start a second run, with model_dir= and init_moments=true, on text prepared with that length"
            ]
        problems = []
        if longest <= self.segments.max_seq_length:
            problems.append(
                f"final_phase.max_seq_length={longest}: expected more than segments.max_seq_length="
                f"{self.segments.max_seq_length}, or null for a run with one length"
            )
        if self.model_dir is None:
            problems += self.model.too_long("max_seq_length", longest, "final_phase.max_seq_length")
        if self.steps != "auto" and not 0 < self.final_phase.first_step(self.steps) < self.steps:
            problems.append(
                f"final_phase.share={self.final_phase.share} of steps={self.steps} leaves a phase without steps; train "
                "longer, or set final_phase.max_seq_length=null"
            )
        return problems


COMMAND = Command(
    "pretrain",
    PretrainSettings,
    stage="bertkit.stages.pretrain",
    needs="prepared dataset",
    gives="BERT, by masked LM and next sentence prediction",
    positions=("data_dir",),
    is_training=True,
    model="model",
    scores_file="eval.json",
    finished="bertkit.run.finished.is_pretrained",
)
