"""The model card: README.md with metadata for the hub, an example in code, the settings of the run, and its results."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bertkit import __version__
from bertkit.base.errors import in_markdown
from bertkit.base.hub_ids import is_id
from bertkit.base.typed_settings import at
from bertkit.interop.hugging_face.architecture import heads_of, writer_of
from bertkit.interop.hugging_face.config_json import architecture_of, is_decoder
from bertkit.model.head.built_in import READ
from bertkit.model.head.head import head_of
from bertkit.model.heads import BertWithHeads, num_parameters


@dataclass(frozen=True)
class _Use:
    """How a model with some heads is used."""

    auto_class: str  # of transformers
    task: str  # the hub's name
    code: str  # predicts and prints
    library: str = "transformers"
    tags: tuple[str, ...] = ()


_PRETRAINING = _Use(
    "AutoModelForPreTraining", "fill-mask", head_of("masked_lm").code.replace(".logits", ".prediction_logits")
)
_ENCODER = _Use("AutoModel", "feature-extraction", f"{READ}print(model(**inputs).last_hidden_state.shape)\n")
_SENTENCES_CODE = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("DIRECTORY")
print(model.encode(["A text to read.", "Another one."]).shape)
"""
_WRITES = """\
import bertkit

print(bertkit.load_predictor("DIRECTORY")("A text to read.")["text"])
"""
_OWN = """\
import bertkit

model, tokenizer = bertkit.load_model("DIRECTORY"), bertkit.load_tokenizer("DIRECTORY")
print(model(**tokenizer(["A text to read."], return_tensors="pt")).last_hidden_state.shape)
"""
_SENTENCES = _Use(
    "AutoModel",
    "sentence-similarity",
    _SENTENCES_CODE,
    "sentence-transformers",
    ("sentence-transformers", "sentence-similarity", "feature-extraction"),
)


@dataclass(frozen=True)
class CardFacts:
    """The contents of a card that the model itself does not provide; None if unknown."""

    title: str
    settings: dict[str, object] = field(default_factory=dict)  # settings of the training run
    results: dict[str, object] = field(default_factory=dict)  # by name
    metrics: tuple[str, ...] = ()  # the names of the results that are metrics of the model
    measured_on: str = "held-out documents"
    dataset: tuple[str, str | None] | None = None  # name and configuration on the hub, such as glue and mrpc
    is_of_sentences: bool = False  # whether the export has the files of sentence-transformers
    license: str | None = None
    language: str | None = None  # such as "en"
    base_model: str | None = None  # the model on the hub that training started from


ONE_BEFORE = (
    "the logits for a masked token are one place before it, where the pipelines of transformers do not read them"
)


def model_card(model: BertWithHeads, facts: CardFacts) -> str:
    """Return a card: the size of the model, code that uses it, the settings of its training and its results."""
    architecture, config, use = (
        architecture_of(model),
        model.config,
        _SENTENCES if facts.is_of_sentences else _use_of(model),
    )
    size = num_parameters(model.parameters())
    is_causal_mlm = is_decoder(config) and "masked_lm" in model.heads
    notes = {
        "Each token attends only to earlier tokens. The model fills masks; it does not predict the next token.": is_causal_mlm,
        f"Trained as GPT-BERT: {ONE_BEFORE}.": predicts_before(model),
    }
    lines = [
        f"# {in_markdown(facts.title)}",
        "",
        f"A `{architecture}` with {size / 1e6:.1f} M parameters: {config.num_hidden_layers} layers of "
        f"{config.hidden_size}, {config.num_attention_heads} heads, {config.vocab_size:,} tokens. Made with bertkit {__version__}.",
        *(line for line, holds in notes.items() if holds),
        "",
        f"```python\n{_usage_example(model, use)}```",
    ]
    for heading, values in (("Settings", facts.settings), ("Results", facts.results)):
        cells = [(in_markdown(key), in_markdown(_cell(value))) for key, value in values.items() if value is not None]
        if cells:
            lines += ["", f"## {heading}", "", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in cells)]
    return f"---\n{_metadata(use, facts)}\n---\n\n" + "\n".join(lines) + "\n"


def predicts_before(model: BertWithHeads) -> bool:
    """Whether the model's masked LM head predicts a masked token one place before it."""
    return model.config.masked_next_token and "masked_lm" in model.heads


def _use_of(model: BertWithHeads) -> _Use:
    match heads_of(model):
        case ():
            return _ENCODER
        case (name,):
            head = head_of(name)
            return _Use(head.auto_class, head.hub_task, head.code_for(model.config))
    return _PRETRAINING


def _usage_example(model: BertWithHeads, use: _Use) -> str:
    """Return code that uses the model: with sentence-transformers, with bertkit for its variants, else with transformers."""
    config = model.config
    if use == _SENTENCES:
        return use.code
    if config.variant and "generation" in model.heads:
        return _WRITES
    if not writer_of(config, model.heads).writes(config):
        return _OWN
    more = "".join(
        f", {name}={value}" for name, value in writer_of(config, model.heads).reference_settings(model).items()
    )
    return (
        f"from transformers import AutoTokenizer, {use.auto_class}\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")\n'
        f'model = {use.auto_class}.from_pretrained("DIRECTORY"{more})\n{use.code}'
    )


def _metadata(use: _Use, facts: CardFacts) -> str:
    """Return the card's metadata in YAML, as the hub's own library writes it."""
    from huggingface_hub import EvalResult, ModelCardData

    hub_path, hub_part = facts.dataset or ("text", None)
    results = [
        EvalResult(
            task_type=use.task,
            dataset_type=hub_path,
            dataset_config=hub_part,
            dataset_name=facts.measured_on,
            metric_type=name.rpartition("_")[2] if name.endswith(("_loss", "_accuracy")) else name,
            metric_name=name,
            metric_value=facts.results[name],
        )
        for name in facts.metrics
        if isinstance(facts.results.get(name), (int, float)) and use not in (_ENCODER, _SENTENCES)
    ]
    data = ModelCardData(
        library_name=use.library,
        pipeline_tag=use.task,
        tags=[*use.tags, "bert", "bertkit"],
        license=facts.license,
        language=facts.language,
        base_model=facts.base_model,
        datasets=None if facts.dataset is None else [facts.dataset[0]],
        model_name=facts.title if results else None,
        eval_results=results or None,
    )
    text = str(data.to_yaml())
    if "<" in text or "](" in text:  # a browser could take them for HTML or a link
        text = yaml.safe_dump(data.to_dict(), sort_keys=False, default_style='"', width=2**31)
        text = text.replace("<", "\\x3c").replace("](", "]\\x28").rstrip("\n")
    return text


def pretraining_facts(
    settings: Mapping[str, object],
    corpus: str,
    results: dict[str, object],
    init_from: str | None,
    title: str = "Pretrained BERT",
) -> CardFacts:
    """Return the facts about a pretrained model, from the run's settings and a description of its corpus.

    The model that training started from is named only if it is on the hub: a local path means nothing to others.
    """
    base_model = _hub_id(init_from)
    start = None if init_from is None else base_model or "another model's weights"
    objective, masking = at(settings, "segments.next_sentence"), settings.get("masking")
    if "lm_loss" in results:
        masking = "none: every token predicts the next one"
    shown = {
        "text": corpus,
        "started from": start,
        "steps": settings["steps"],
        "global batch": _batch(settings, "segments.max_seq_length"),
        "frozen": settings.get("freeze"),
        "final phase": at(settings, "final_phase") if at(settings, "final_phase.max_seq_length") else None,
        "examples": at(settings, "segments.kind"),
        "next sentence": "sop: label 1 means that A and B are swapped" if objective == "sop" else objective,
        "masking": masking,
        **{name: settings.get(name) for name in ("optimizer", "schedule", "precision", "seed")},
    }
    measured = tuple(name for name in results if name.endswith(("_loss", "_accuracy")))
    return CardFacts(title, shown, results, measured, base_model=base_model)


def finetuning_facts(settings: Mapping[str, object], results: dict[str, object], metrics: Iterable[str]) -> CardFacts:
    """Return the facts about a fine-tuned model, from the run's settings; `metrics` names the results that are scores."""
    name, hub, part = (at(settings, f"task.{key}") for key in ("name", "hub.path", "hub.name"))
    shown = {
        "task": name,
        "epochs": settings.get("num_epochs"),
        "global batch": _batch(settings, "task.max_seq_length"),
        "frozen": settings.get("freeze"),
        **{key: settings.get(key) for key in ("optimizer", "schedule", "precision", "seed")},
    }
    return CardFacts(
        f"BERT for {name}",
        shown,
        results,
        tuple(metrics),
        f"the dev split of {name}" if isinstance(hub, str) else "the dev split",
        (hub, part) if isinstance(hub, str) else None,
        base_model=_hub_id(settings.get("model_dir")),
    )


def _batch(settings: Mapping[str, object], length: str) -> str:
    return f"{at(settings, 'batch.sequences')} sequences of at most {at(settings, length)} tokens"


def _hub_id(model_dir: object) -> str | None:
    """Return the name of a model on the hub, without its revision; None for a local path."""
    is_of_hub = isinstance(model_dir, str) and is_id(model_dir) and not Path(model_dir).exists()
    return str(model_dir).partition("@")[0] if is_of_hub else None


def _cell(value: object) -> str:
    match value:
        case dict():
            return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
        case float():
            return f"{value:.6g}"
    return str(value)
