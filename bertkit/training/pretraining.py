"""Pretraining from Python."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Literal, Self

from bertkit.base.errors import named
from bertkit.base.typed_settings import build, refuse
from bertkit.data.batches.sampling import DrawnExamples
from bertkit.data.corpus.prepared import PreparedDataset, check_usable
from bertkit.data.data_config import SegmentsConfig
from bertkit.interop.hugging_face.directory import packed
from bertkit.interop.padded import PaddedBert
from bertkit.jobs.pretraining import PretrainingJob
from bertkit.model.bert_config import BertShape
from bertkit.model.heads import BertWithHeads
from bertkit.objectives.objective import MaskedLM, Objective, checked, name_of, options_of
from bertkit.run.directory import saved_identity
from bertkit.run.fitting import check_dataset
from bertkit.run.start import Start
from bertkit.settings.pretrain import PretrainSettings
from bertkit.settings.reading.compose import compose_values
from bertkit.settings.reading.names import in_words_of
from bertkit.training.from_python import OF_DATA, OF_FIT, OF_MODEL, FromPython, refuse_set_elsewhere, with_course_of

Precision = Literal["fp32", "bf16", "fp16"]


class Pretraining(FromPython, PretrainingJob):
    """Pretraining of a model on the text of a prepared dataset.

    A model with a next sentence head gets pairs of segments, others blocks of full sentences; one with the head `next_token` predicts next
    tokens. The examples, their order and their masks are a function of the seed.

    Args:
        model: the model, from `new_model` or `load_model`, which is trained in place.
        data: a prepared dataset, from `open_dataset`.
        objective: what is learned; None for masked LM as in BERT. Its `masking` says how text is masked.
        batch_sequences: sequences in a step, over all processes.
        max_seq_length: the longest sequence, in tokens.
        seed: for the examples, their order, the masks and dropout.
        precision: of the matrix products.
        settings: other settings of `bertkit pretrain`, such as checkpoint={"every_steps": 100}.

    Raises:
        InputError: the model does not fit the dataset, or a number is out of range.
    """

    def __init__(
        self,
        model: BertWithHeads | PaddedBert,
        data: PreparedDataset,
        objective: Objective | None = None,
        *,
        batch_sequences: int = 64,
        max_seq_length: int = 128,
        seed: int = 0,
        precision: Precision = "fp32",
        **settings: object,
    ) -> None:
        check_usable(data)
        model = packed(model)
        config, objective = model.config, objective or MaskedLM()
        heads = model.heads.keys() if objective.heads is None else objective.heads
        refuse(
            {*heads} != {*model.heads}
            and f"model: has the heads {named(model.heads) or 'none'}, the objective trains {named(heads) or 'none'}; make a model with "
            "them by new_model(..., objective=)",
            batch_sequences < 1 and f"batch_sequences={batch_sequences}: expected at least 1",
            config.too_long("max_seq_length", max_seq_length, "max_seq_length"),
        )
        own = {"model": "base", "seed": seed, "precision": precision, "data_dir": data.directory, "output_dir": "-"}
        own |= {"batch.sequences": batch_sequences, "segments.max_seq_length": max_seq_length}
        own |= {"model.max_position_embeddings": config.max_position_embeddings}
        with in_words_of("pretrain", settings):
            chosen = build(PretrainSettings, compose_values("pretrain", {**settings, **own}))
        has_pairs = "next_sentence" in model.heads or objective.takes_pairs
        typed = {*chosen.explicit_keys} - own.keys() | {*settings}
        refuse_set_elsewhere(OF_FIT | OF_DATA | {"the model": OF_MODEL}, typed)
        kind: Literal["pairs", "full_sentences"] = "pairs" if has_pairs else "full_sentences"
        is_next, name = "next_token" in model.heads, name_of(objective)
        segments = SegmentsConfig(kind, max_seq_length, 0.1, "nsp" if has_pairs else "none")
        check_dataset(config, data, segments, model.source)
        described = dataclasses.replace(
            chosen,
            model=BertShape(**{field.name: getattr(config, field.name) for field in dataclasses.fields(BertShape)}),
            attention=config.attention,
            norm=config.norm,
            feed_forward=config.feed_forward,
            pooling=config.pooling,
            segments=segments,
            masking=objective.masking,
            objective="next_token" if is_next and name == "auto" else name,
            objective_options=options_of(objective),
            explicit_keys=(),
        )
        examples = DrawnExamples(data, segments, None if is_next else objective.masking)
        start = Start(model, data.tokenizer, init_from=None)
        super().__init__(described, start, checked(objective, name), data, examples)

    def with_course(self, steps: int, chosen: PretrainSettings, directory: Path | None) -> Self:
        """Return this job with the steps, the optimizer and the schedule of a `fit`."""
        made = copy.copy(self)
        made.settings, made.steps = with_course_of(self.settings, chosen, directory).with_steps(steps), steps
        made.resume_after({} if directory is None else saved_identity(directory))
        return made
