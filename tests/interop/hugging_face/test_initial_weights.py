"""The initial weights of every class of both model types, beside those of a new model of `transformers`."""

import dataclasses
import json

import pytest
import torch
import transformers
from conftest import small_config

from bertkit.interop.hugging_face.architecture import writer_of
from bertkit.interop.hugging_face.bert import BertArchitecture
from bertkit.interop.hugging_face.config_json import config_json
from bertkit.interop.hugging_face.modern_bert import ModernBertArchitecture, modern_attention
from bertkit.model.bert_config import BertConfig, FeedForwardConfig, NormConfig
from bertkit.model.head.head import any_pooled
from bertkit.model.heads import BertWithHeads
from bertkit.model.initialisation import init_weights

CUT = 0.8796  # the standard deviation of a normal distribution that is cut at two of its own, as in BERT and ModernBERT
SHAPE = {"hidden_size": 96, "intermediate_size": 202, "num_attention_heads": 2, "initializer_range": 0.02}
LABELS = tuple(f"label {number}" for number in range(61))
BERT = small_config(**SHAPE, labels=LABELS)
MODERN = dataclasses.replace(
    BERT, type_vocab_size=0, scale_outputs=True, task_transform=True, pooling="cls", feed_forward=FeedForwardConfig(kind="glu", bias=False),
    attention=modern_attention(bias=False, window=8, rotary_base=160_000.0), norm=NormConfig(placement="pre", bias=False, before_first=False),
)  # fmt: skip
CLASSES = [
    *(
        (BERT, 1.0, heads) for heads in BertArchitecture.classes if heads != ("generation",)
    ),  # `transformers` does not cut
    *((MODERN, CUT, heads) for heads in ModernBertArchitecture.classes),
]


@pytest.mark.parametrize(("config", "cut", "heads"), CLASSES)
def test_each_part_begins_as_in_transformers(config: BertConfig, cut: float, heads: tuple[str, ...]) -> None:
    """The standard deviation of every matrix; zeros and ones elsewhere. BERT's is cut as in google-research/bert."""
    model = BertWithHeads(config, heads, with_pooler=not heads or any_pooled(heads))
    init_weights(model, config.initializer_range, torch.Generator().manual_seed(0))
    architecture = writer_of(config, heads)
    name = architecture.class_of(model)
    content = json.loads(config_json(model))
    kind = transformers.CONFIG_MAPPING[content["model_type"]]
    torch.manual_seed(0)
    theirs = getattr(transformers, name)(kind(**content)).state_dict()
    ours = architecture.tensors_of(model)
    assert ours.keys() <= theirs.keys()
    for tensor, own in ours.items():
        expected = theirs[tensor]
        if own.ndim == 1:
            assert torch.equal(own, expected), tensor
            continue
        if "word_embeddings" in tensor:
            expected = expected[1:]  # the row of [PAD] is zeros in a BERT of `transformers`, and not in Google's
        ratio, error = float(own.std() / expected.std()), 5 / min(own.numel(), expected.numel()) ** 0.5
        assert ratio == pytest.approx(CUT / cut, rel=error), tensor
