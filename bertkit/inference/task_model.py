"""A model with its task, as `predict` and `evaluate` load it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from bertkit.base.errors import InputError, named
from bertkit.base.files import sha256_file
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import at, build, checked, read_conf, refuse, to_mapping
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.hugging_face import generation_json
from bertkit.interop.load import load_packed, load_tokenizer
from bertkit.interop.model_dir import resolve_model_dir
from bertkit.kernels import fast
from bertkit.kernels.linear import round_weights
from bertkit.model.bert_config import problem_type_of
from bertkit.model.head.head import head_of, is_of_task
from bertkit.model.heads import BertWithHeads
from bertkit.run.directory import read_manifest, read_settings, run_of
from bertkit.run.fitting import check_tokenizer
from bertkit.tasks.continuation import ContinuationTask
from bertkit.tasks.feature import Feature
from bertkit.tasks.fill_mask import FillMaskTask
from bertkit.tasks.label_kinds import Number, SigmoidNumber
from bertkit.tasks.reading.rows import names_by_file
from bertkit.tasks.reading.source import SplitExamples
from bertkit.tasks.task import AnyTask, Example
from bertkit.tasks.task_config import KINDS, TaskConfig, without_retired
from bertkit.tasks.trainable import task_of
from bertkit.train.micro_batches import AUTO_MICRO_TOKENS

TOP_K = 5  # tokens predicted for each [MASK]
Settings = Mapping[str, object]  # of a task, by their names


@dataclass(frozen=True)
class TaskModel:
    """A model, its tokenizer and its task."""

    # has the head for the task; data-parallel training wraps it; `open_task_model` returns it in evaluation mode, on the CPU
    model: BertWithHeads
    tokenizer: Tokenizer
    task: AnyTask  # with the labels in the order of the logits

    def predictor(
        self,
        precision: str,
        device: torch.device,
        micro_tokens: int | None = None,
        top_k: int = TOP_K,
        kernels: Literal["auto", "plain"] = "auto",
    ) -> Predictor:
        """Move the model to the device, and return a predictor; `micro_tokens` are in one forward pass, None for the device's."""
        search = self.task.config.generation
        if search is not None and self.model.config.decoder is not None and self.model.source is not None:
            generation_json.warn_of_length(self.model.source, search.max_target_length)
        self.model.use(fast.choose(kernels))
        round_weights(self.model.bert, precision)
        most = micro_tokens or AUTO_MICRO_TOKENS[device.type]
        return Predictor(self.model.to(device), self.tokenizer, self.task, precision, most, top_k)

    def features(self, examples: Sequence[Example]) -> list[Feature]:
        """Tokenize examples."""
        return list(self.task.each_feature(examples, self.tokenizer))


@dataclass(frozen=True)
class Predictor(TaskModel):
    """A model with its task, and how to run it."""

    precision: str  # precision of the matrix products
    micro_tokens: int  # number of tokens in one forward pass
    top_k: int = TOP_K  # masked LM: number of tokens predicted for each [MASK]

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device


def open_task_model(
    model_dir: str,
    task: TaskConfig | None,
    changes: Settings,
    without_head: bool = False,
    setting: str = "model_dir",
) -> TaskModel:
    """Load any model directory with its head and task; `changes` are new values of the task's settings.

    Without `task`, it is the one that the model was fine-tuned on; if this is unknown, the general task for the model's head.
    `without_head` accepts a model without a task head, whose examples are texts and pairs. `setting` is the name of `model_dir`
    in messages. Raises InputError if the model has no head for the task, or has other labels; or a size exceeds the model's.
    """
    source = resolve_model_dir(model_dir, setting)
    model = load_packed(source).model
    tokenizer = load_tokenizer(source)
    check_tokenizer(f"{setting}={model_dir}", tokenizer, model.config)
    model.eval()
    if not any(map(is_of_task, model.heads)):
        named_model = f"{setting}={model_dir}"
        return TaskModel(model, tokenizer, _task_without_head(named_model, model, task, changes, without_head))
    opened_task = task_of(_task_for(model_dir, model, tokenizer, task, changes), labels_of(model))
    if isinstance(opened_task, Number) and model.config.score_activation == "sigmoid":
        opened_task = SigmoidNumber(opened_task.config, opened_task.labels)
    if opened_task.config.labels != "auto":
        check_labels(model_dir, opened_task)
    return TaskModel(model, tokenizer, opened_task)


def _task_without_head(
    named_model: str, model: BertWithHeads, task: TaskConfig | None, changes: Settings, takes_texts: bool
) -> AnyTask:
    """Return the task of a model without a task head: texts and pairs, or what a pretraining head predicts."""
    if task is None and "next_token" in model.heads and not takes_texts:
        return continuation_for(model, changes)
    if task is not None and not takes_texts:
        opened = task_of(task).for_heads(model.heads.keys())
        if opened.head in model.heads:
            refuse(task.length_problems(model.config))
            return opened
    if task is not None or not (takes_texts or "masked_lm" in model.heads):
        what = "prediction" if task is None else f"task={task.name}"
        way_out = "leave task= out for masked LM" if "masked_lm" in model.heads else "use one with a masked LM head"
        only = ", ".join(model.heads) or "an encoder"
        raise InputError(f"{named_model}: no head for {what}, only {only}; fine-tune it, or {way_out}")
    texts = task_of(_texts_for(model, changes))
    return texts if takes_texts else fill_mask_for(texts)


def fill_mask_for(texts: AnyTask) -> FillMaskTask:
    """Return the task of filling masks in single texts, for a model that has a masked LM head."""
    return FillMaskTask(dataclasses.replace(texts.config, takes_pairs=False))


def continuation_for(model: BertWithHeads, changes: Settings) -> ContinuationTask:
    """Return the task of continuing texts up to the model's length: by default 32 tokens, by greedy search."""
    longest, settings = model.config.max_position_embeddings, read_conf("task/generation")
    search = (
        settings["generation"]
        | {"max_target_length": min(32, longest // 2), "num_beams": 1}
        | _search_of(model, changes)
    )
    config = _changed(settings | {"max_seq_length": longest, "generation": search, "name": "continuation"}, changes)
    refuse(config.length_problems(model.config))
    task = ContinuationTask(config)
    if task.search.max_target_length >= config.max_seq_length:
        raise InputError(
            f"task.generation.max_target_length={task.search.max_target_length}: leaves no room for the text in "
            f"task.max_seq_length={config.max_seq_length}; lower it"
        )
    return task


def _texts_for(model: BertWithHeads, changes: Settings) -> TaskConfig:
    """Return a task for a model without a task head: texts and pairs, up to the model's length."""
    longest = model.config.max_position_embeddings
    task = _changed({**read_conf("task/sequence"), "max_seq_length": longest}, changes)
    if task.long_texts is not None:
        raise InputError(f"task.long_texts={task.long_texts}: this model has no head for classification; leave it out")
    refuse(task.length_problems(model.config))
    return task


def labels_of(model: BertWithHeads) -> tuple[str, ...]:
    """Return the names of a head's labels; none for regression, and for heads without labels."""
    is_labelled = any(head.has_label_names for head in model.kinds.values()) and not _is_regression(model)
    return model.config.labels if is_labelled else ()


def _is_regression(model: BertWithHeads) -> bool:
    return "sequence" in model.heads and problem_type_of(model.config) == "regression"


def check_labels(model_dir: str, task: AnyTask) -> None:
    """Raise InputError, with both sets of labels, if the model's labels differ from those of the settings."""
    if not head_of(task.head).has_label_names:
        return
    config = task.config
    if not config.label_names:
        expected, is_same = "numbers" if config.is_regression else "", config.is_regression == (not task.labels)
    else:
        expected, is_same = named(config.label_names), set(config.label_names) == set(task.labels)
    if not is_same:
        raise InputError(
            f"model_dir={model_dir} has the labels {named(task.labels) or 'numbers'}; task={config.name} has {expected or 'labels by name'}; "
            'use a model for this task, or set task.labels= to these, and task.labels_in_files= to the files\' names for them, in the same order, as in ["0","1"]'
        )


def _task_for(
    model_dir: str, model: BertWithHeads, tokenizer: Tokenizer, task: TaskConfig | None, changes: Settings
) -> TaskConfig:
    head = next(filter(is_of_task, model.heads))
    kind = head_of(head).task
    assert kind is not None, "a head of a task"
    multi_label = head == "sequence" and problem_type_of(model.config) == "multi_label_classification"
    num_outputs = len(model.config.labels)
    refuse(
        _is_regression(model)
        and num_outputs > 1
        and f"model_dir={model_dir}: a regression of {num_outputs} numbers for each text (problem_type='regression' with {num_outputs} "
        "labels), where bertkit predicts one; take the logits of load_model"
    )
    if task is None:
        settings = task_settings_of_run(model_dir) or {
            **_general_settings(kind, model, tokenizer.max_length, changes),
            "multi_label": multi_label,
        }
        task = _changed(settings, changes)
    if task_of(task).head != head:
        raise InputError(
            f"task={task.name} is of kind {task.kind}, but model_dir={model_dir} has a head for {kind}; choose another task or "
            "model"
        )
    if task.multi_label != multi_label:
        predicted = "several labels at once" if multi_label else "one label or number"
        raise InputError(
            f"task.multi_label={str(task.multi_label).lower()}, but model_dir={model_dir} predicts {predicted}; set it to "
            f"{str(multi_label).lower()}, or choose another model"
        )
    refuse(task.length_problems(model.config))
    is_number = task.labels == "auto" and _is_regression(model)
    return dataclasses.replace(task, labels="regression") if is_number else task


def _general_settings(kind: str, model: BertWithHeads, max_length: int | None, changes: Settings) -> dict[str, object]:
    """Return the settings of the general task of a kind, with those that the model's files have for the search for texts."""
    longest = model.config.max_position_embeddings
    settings = read_conf(f"task/{kind}") if kind in KINDS else {**read_conf("task/sequence"), "kind": kind}
    length = min(max_length or longest, longest)  # as transformers truncates
    if search := settings.get("generation"):
        search |= _search_of(model, changes)
        search["max_target_length"] = min(search["max_target_length"], longest)
    return settings | {"max_seq_length": length}


def _search_of(model: BertWithHeads, changes: Settings) -> dict[str, object]:
    if model.source is None:
        return {}
    sample = at(changes, "generation.sample")
    has_decoder = model.config.decoder is not None
    return generation_json.search_of(
        model.source, has_decoder=has_decoder, sample=sample if isinstance(sample, bool) else None
    )


def with_changes(opened: TaskModel, changes: Settings) -> TaskModel:
    """Return the model with changed settings of its task.

    Raises InputError if a value is wrong, or exceeds the model's size, or the model does not allow the change.
    """
    config, fixed = _changed(to_mapping(opened.task.config), changes), vars(opened.task.config)
    for name in ("kind", "labels", "multi_label"):
        if vars(config)[name] != fixed[name]:
            raise InputError(f"task.{name}: the model fixes it to {fixed[name]}; leave it out")
    refuse(config.length_problems(opened.model.config))
    return dataclasses.replace(opened, task=dataclasses.replace(opened.task, config=config))


def task_of_texts(column: str | int | None) -> TaskConfig:
    """Return a task whose examples are single texts in a column; None for a column with one of the usual names."""
    text = {} if column is None else {"text": column}
    return _changed(read_conf("task/sequence"), {"columns": {**text, "text_pair": None}})


def _changed(settings: Settings, changes: Settings) -> TaskConfig:
    merged = dict(settings)
    for name, value in changes.items():
        inside = settings.get(name)
        if name == "generation" and isinstance(inside, dict) and at(changes, "generation.sample") is False:
            # a run's or a file's, which only samples have
            inside = {**inside, "temperature": 1.0, "top_k": None, "top_p": None}
        if inside is None and isinstance(value, dict):
            raise InputError(f"task.{name}: has no effect on a task of kind {settings['kind']}; leave it out")
        merged[name] = {**inside, **value} if isinstance(inside, dict) and isinstance(value, dict) else value
    return build(TaskConfig, merged, "task")


def search_file_of(model_dir: str, model: BertWithHeads) -> str | None:
    """Return the content of `generation_config.json` for a model that a run taught to write texts; None for others, or if there is such a file."""
    decoder, search = model.config.decoder, at(task_settings_of_run(model_dir) or {}, "generation")
    has_file = model.source is not None and (model.source / generation_json.FILE).is_file()
    if decoder is None or not isinstance(search, dict) or has_file:
        return None
    usual = read_conf("task/generation")["generation"]  # runs of older versions lack the later settings
    return generation_json.search_json(usual | search, decoder, model.config.pad_token_id)


def task_settings_of_run(model_dir: str) -> dict[str, object] | None:
    """Return the task settings of the fine-tuning run to which a directory belongs; None if there is no such run.

    If the model was trained on pairs alone, `needs_pair` is set, and if on none, `takes_pairs` is false. The run may come from an
    untrusted source, so settings that lead to files outside the user's `data_dir`, or to hub datasets, are removed.
    """
    run_dir = run_of(model_dir)
    stored = None if run_dir is None else read_settings(run_dir).get("task")
    if run_dir is None or stored is None:
        return None
    task = _kept_inside(without_retired(checked(JsonObject, stored, run_dir / "config.yaml")))
    corpus = read_manifest(run_dir).corpus or {}  # older runs lack it
    columns = task.get("columns")
    if not isinstance(columns, dict) or columns.get("text_pair") is None or "has_pairs" not in corpus:
        return task
    if corpus["has_pairs"]:
        return task if corpus.get("has_singles") else {**task, "needs_pair": True}
    names = columns["text_pair"]
    return {
        **task,
        "takes_pairs": False,
        "columns": {**columns, "text_pair": names if isinstance(names, list) else [str(names)]},
    }


def beside_training(model_dir: str, source: SplitExamples) -> list[str]:
    """Return warnings about files, or rows from Python, on which the run of a model was trained, and about labels with another decimal mark than in training."""
    run_dir = run_of(model_dir)
    corpus = {} if run_dir is None else read_manifest(run_dir).corpus or {}
    hashes, marks = corpus.get("files_sha256") or (), corpus.get("decimal_marks") or {}
    return [
        *(
            f"{names_by_file.get().get(path.name, path)}: the model was trained on these rows, so its scores are higher than on new ones"
            for path in source.files
            if sha256_file(path) in hashes
        ),
        *source.differing_marks(marks),
    ]


def _kept_inside(task: Settings) -> dict[str, object]:
    """Remove the settings of a task that lead outside `data_dir`, or are those of the files that it was trained on."""
    kept = {name: value for name, value in task.items() if name not in ("separator", "encoding")}
    kept["folders"] = _inside(task.get("folders"))
    if isinstance(files := task.get("files"), dict):
        kept["files"] = {split: _inside(names) for split, names in files.items()}
    if isinstance(hub := task.get("hub"), dict):
        kept["hub"] = dict.fromkeys(hub)
    return kept


def _inside(names: object) -> list[str]:
    """Return the names, or the only name, of files below `data_dir`."""
    listed = names if isinstance(names, list) else [names]
    return [name for name in listed if isinstance(name, str) and {"/", "..", "~"}.isdisjoint(Path(name).parts)]
