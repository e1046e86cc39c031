"""The model card: README.md with metadata that the hub reads, the run's settings, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit import __version__
from bertkit.interop.hugging_face import hub
from bertkit.interop.hugging_face.config import architecture_of
from bertkit.model.heads import BertWithHeads

# class of transformers -> the hub's task; a reader loads it with the Auto class of the same name
_TASKS = {
    "BertForPreTraining": "fill-mask",
    "BertForMaskedLM": "fill-mask",
    "BertForNextSentencePrediction": "text-classification",
    "BertForSequenceClassification": "text-classification",
    "BertForTokenClassification": "token-classification",
    "BertForQuestionAnswering": "question-answering",
    "BertForMultipleChoice": "multiple-choice",
    "BertModel": "feature-extraction",
}


@dataclass(frozen=True)
class CardFacts:
    """What a card says beyond the model itself; None where it is not known."""

    title: str
    settings: dict[str, Any] = field(default_factory=dict)  # how the model was made
    results: dict[str, Any] = field(default_factory=dict)  # what was measured, by metric
    measured_on: str = "held-out documents"
    license: str | None = None
    language: str | None = None  # such as "en"
    base_model: str | None = None  # that training started from


def model_card(model: BertWithHeads, facts: CardFacts) -> str:
    """Write a card: what the model is, how it was made, what was measured, how to load it."""
    architecture = architecture_of(model)
    auto_class = architecture.replace("BertModel", "AutoModel").replace("BertFor", "AutoModelFor")
    more = ", add_pooling_layer=False" if architecture == "BertModel" and model.bert.pooler is None else ""
    config = model.config
    size = sum(parameter.numel() for parameter in model.parameters())
    lines = [
        f"# {facts.title}",
        "",
        f"A `{architecture}` with {size / 1e6:.1f} M parameters: {config.num_hidden_layers} layers of "
        f"{config.hidden_size}, {config.num_attention_heads} heads, {config.vocab_size:,} tokens. Made with bertkit {__version__}.",
        "",
        "```python",
        f"from transformers import AutoTokenizer, {auto_class}",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")',
        f'model = {auto_class}.from_pretrained("DIRECTORY"{more})',
        "```",
    ]
    for heading, rows in (("Settings", facts.settings), ("Results", facts.results)):
        if any(value is not None for value in rows.values()):
            lines += ["", f"## {heading}", "", "| | |", "|---|---|"]
            lines += [f"| {key} | {_cell(value)} |" for key, value in rows.items() if value is not None]
    return f"---\n{_metadata(architecture, facts)}\n---\n\n" + "\n".join(lines) + "\n"


def _metadata(architecture: str, facts: CardFacts) -> str:
    """The head of the card, as the hub's own library writes it."""
    from huggingface_hub import EvalResult, ModelCardData

    task = _TASKS[architecture]
    results = [
        EvalResult(
            task_type=task,
            dataset_type="text",
            dataset_name=facts.measured_on,
            metric_type=name.rpartition("_")[2],
            metric_name=name,
            metric_value=value,
        )
        for name, value in facts.results.items()
        if isinstance(value, float) and name.endswith(("_loss", "_accuracy")) and architecture != "BertModel"
    ]
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        tags=["bert", "bertkit"],
        license=facts.license,
        language=facts.language,
        base_model=facts.base_model,
        model_name=facts.title if results else None,
        eval_results=results or None,
    )
    return str(data.to_yaml())


def pretraining_facts(
    settings: dict[str, Any],
    corpus: str,
    results: dict[str, Any],
    init_from: str | None,
    title: str = "Pretrained BERT",
) -> CardFacts:
    """What the card of a pretrained model says, from the run's settings and `corpus`, its text in words.

    What the run started from is named only if it is a hub id, for paths say nothing elsewhere.
    """
    base_model = init_from if init_from is not None and hub.is_id(init_from) and not Path(init_from).exists() else None
    start = None if init_from is None else base_model or "another model's weights"
    length = settings["segments"]["max_seq_length"]
    shown = {
        "text": corpus,
        "started from": start,
        "steps": settings["steps"],
        "global batch": f"{settings['batch']['sequences']} sequences of at most {length} tokens",
        "final phase": settings["final_phase"] if settings["final_phase"]["max_seq_length"] else None,
        "examples": settings["segments"]["kind"],
        **{name: settings[name] for name in ("masking", "optimizer", "schedule", "precision", "seed")},
    }
    return CardFacts(title, shown, results, base_model=base_model)


def finetuning_facts(settings: dict[str, Any], results: dict[str, Any]) -> CardFacts:
    """What the card of a fine-tuned model says, from the run's settings."""
    task = settings["task"]
    shown = {
        "task": task["name"],
        "epochs": settings["num_epochs"],
        "global batch": f"{settings['batch']['sequences']} sequences of at most {task['max_seq_length']} tokens",
        "frozen": settings["freeze"],
        **{name: settings[name] for name in ("optimizer", "schedule", "precision", "seed")},
    }
    return CardFacts(f"BERT for {task['name']}", shown, results, f"the dev split of {task['name']}")


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
