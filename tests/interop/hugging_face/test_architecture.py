"""A model type of `config.json` is one class: loading, writing, certificates and model cards need no other change."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from conftest import options_so_far, small_model
from safetensors.torch import load_file
from torch import Tensor

from bertkit import export_model, load_model
from bertkit.base import plugins
from bertkit.base.errors import InputError
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.interop.exports.card import CardFacts, model_card
from bertkit.interop.hugging_face.architecture import Content, Heads, StoredTensors
from bertkit.interop.hugging_face.bert import SHAPE, BertArchitecture
from bertkit.interop.parity.certificate import identity_of
from bertkit.model.attention_config import AttentionConfig
from bertkit.model.bert_config import OWN_SETTINGS, BertConfig
from bertkit.model.heads import BertWithHeads


class Turned(BertArchitecture):
    """A BERT with alibi positions, whose query and key are one matrix in the file."""

    classes: ClassVar[Mapping[Heads, str]] = {("masked_lm",): "TurnedForMaskedLM", (): "TurnedModel"}

    def writes(self, config: BertConfig) -> bool:
        return config.attention.positions == "alibi"

    def settings(self, content: Content, tensors: Mapping[str, Tensor]) -> Content:
        return super().settings(content, tensors) | {"attention": asdict(AttentionConfig(positions="alibi"))}

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        return super().content(config, class_name, dtype) | {"model_type": "turned"}

    def stored(self, tensors: Mapping[str, Tensor], content: Content) -> StoredTensors:
        apart = {}
        for name, tensor in tensors.items():
            parts = tensor.chunk(2) if ".query_key." in name else (tensor,)
            names = [name.replace("query_key", part) for part in ("query", "key")[: len(parts)]]
            apart |= dict(zip(names, parts, strict=True))
        return super().stored(apart, content)

    def tensors_of(self, model: BertWithHeads) -> dict[str, Tensor]:
        tensors = super().tensors_of(model)
        for query in [name for name in tensors if ".query." in name]:
            parts = [tensors.pop(query), tensors.pop(query.replace(".query.", ".key."))]
            tensors[query.replace(".query.", ".query_key.")] = torch.cat(parts)
        return tensors


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_options", {**options_so_far(), ("architecture", "turned"): Turned})


@pytest.mark.usefixtures("turned")
def test_a_model_type_is_one_class(tokenizer: Tokenizer, tmp_path: Path) -> None:
    alibi = AttentionConfig(positions="alibi")
    model = small_model(tokenizer.vocab_size, heads=("masked_lm",), with_pooler=False, attention=alibi)
    export_model(model, tokenizer, tmp_path / "turned")
    content = json.loads((tmp_path / "turned" / "config.json").read_text())
    assert (content["model_type"], content["architectures"]) == ("turned", ["TurnedForMaskedLM"])
    names = set(load_file(tmp_path / "turned" / "model.safetensors"))
    assert "bert.encoder.layer.0.attention.self.query_key.weight" in names
    again = load_model(tmp_path / "turned").model
    assert (again.config, list(again.heads)) == (model.config, ["masked_lm"])
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert identity_of(again) == identity_of(model)
    assert "`TurnedForMaskedLM`" in model_card(model, CardFacts("t"))


def test_without_it_the_model_is_a_variant(tokenizer: Tokenizer, tmp_path: Path) -> None:
    alibi = AttentionConfig(positions="alibi")
    model = small_model(tokenizer.vocab_size, heads=("masked_lm",), with_pooler=False, attention=alibi)
    with pytest.raises(InputError, match=r"transformers 5 has no BERT with attention\.positions=alibi"):
        export_model(model, tokenizer, tmp_path / "turned")


def test_every_setting_of_a_model_is_in_its_file() -> None:
    """BERT's, those in which a variant differs, and those of labels; the others are of initial weights, which a file has."""
    of_labels = {"labels", "problem_type", "score_activation", "classifier_dropout"}
    of_tokens = {"pad_token_id", "eos_token_id", "masked_next_token"}
    written = {*SHAPE, *OWN_SETTINGS, *of_labels, *of_tokens}
    assert {field.name for field in fields(BertConfig)} - written == {"scale_outputs", "frequency_biases"}
