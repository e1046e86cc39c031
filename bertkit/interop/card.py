"""The model card: README.md with metadata that the hub reads."""

from __future__ import annotations

from typing import Any

import yaml

from bertkit import __version__
from bertkit.interop.huggingface import architecture_of
from bertkit.model.heads import BertWithHeads

_PIPELINES = {"BertForPreTraining": "fill-mask", "BertForMaskedLM": "fill-mask", "BertModel": "feature-extraction"}
_SNIPPETS = {"BertForPreTraining": "AutoModelForPreTraining", "BertForMaskedLM": "AutoModelForMaskedLM", "BertModel": "AutoModel"}  # fmt: skip


def model_card(
    model: BertWithHeads,
    title: str,
    facts: dict[str, Any],
    results: dict[str, Any],
    license_name: str | None = None,
    language: str | None = None,
) -> str:
    """Write a card: what the model is, how it was made, what was measured, how to load it."""
    architecture = architecture_of(model)
    metadata = {
        "library_name": "transformers",
        "pipeline_tag": _PIPELINES[architecture],
        "tags": ["bert", "bertkit"],
        "license": license_name,
        "language": language,
    }
    head = yaml.safe_dump({key: value for key, value in metadata.items() if value is not None}, sort_keys=False)
    config = model.config
    size = sum(parameter.numel() for parameter in model.parameters())
    lines = [
        f"# {title}",
        "",
        f"A `{architecture}` with {size / 1e6:.1f} M parameters: {config.num_hidden_layers} layers of "
        f"{config.hidden_size}, {config.num_attention_heads} heads, {config.vocab_size:,} tokens. Made with bertkit {__version__}.",
        "",
        "```python",
        f"from transformers import AutoTokenizer, {_SNIPPETS[architecture]}",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")',
        f'model = {_SNIPPETS[architecture]}.from_pretrained("DIRECTORY")',
        "```",
    ]
    for heading, rows in (("Settings", facts), ("Results", results)):
        if rows:
            lines += ["", f"## {heading}", "", "| | |", "|---|---|"]
            lines += [f"| {key} | {_cell(value)} |" for key, value in rows.items() if value is not None]
    return f"---\n{head}---\n\n" + "\n".join(lines) + "\n"


def pretraining_card(model: BertWithHeads, settings: dict[str, Any], corpus: str, results: dict[str, Any]) -> str:
    """Write the card of a pretrained model."""
    facts = {
        "text": corpus,
        "steps": settings["steps"],
        "global batch": f"{settings['batch']['sequences']} sequences of at most {settings['segments']['max_seq_length']} tokens",
        "final phase": settings["final_phase"] if settings["final_phase"]["max_seq_length"] else None,
        "examples": settings["segments"]["kind"],
        "masking": settings["masking"],
        "optimizer": settings["optimizer"],
        "schedule": settings["schedule"],
        "precision": settings["precision"],
        "seed": settings["seed"],
    }
    return model_card(model, "Pretrained BERT", facts, results)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
