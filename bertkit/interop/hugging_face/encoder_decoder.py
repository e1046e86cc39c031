"""The model type `encoder-decoder`: two BERTs of equal size, the second with attention to the first."""

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import ClassVar

import torch
from torch import Tensor

from bertkit.base.errors import InputError
from bertkit.base.plugins import option
from bertkit.interop.hugging_face.architecture import Content, Located
from bertkit.interop.hugging_face.bert import DEFAULTS, SHAPE, BertArchitecture
from bertkit.interop.hugging_face.config_keys import NO_EFFECT, ONLY, Keys
from bertkit.interop.hugging_face.names import full_name, unwrapped
from bertkit.model.bert_config import BertConfig, DecoderConfig
from bertkit.model.heads import BertWithHeads


@option("architecture", "encoder-decoder")
class EncoderDecoderArchitecture(BertArchitecture):
    """An encoder and a decoder; the key `decoder_shares_encoder` is bertkit's own."""

    parts = ("decoder.", "heads.")
    # the two parts have those of a BERT
    keys = Keys(
        frozenset({"architectures", "decoder", "decoder_shares_encoder", "encoder"})
        | {"pad_token_id", "tie_encoder_decoder"},
        ONLY,
        NO_EFFECT | {"tie_word_embeddings", "add_cross_attention", "vocab_size"},
    )
    left_out: ClassVar[Mapping[str, str]] = {r"bert\.pooler\..*": "an unused pooler"}

    def writes(self, config: BertConfig) -> bool:
        """Whether a model is a BERT with a BERT as its decoder."""
        return config.decoder is not None and not config.decoder.is_from_scratch

    def settings(self, content: Content, tensors: Mapping[str, Tensor]) -> Content:
        """Return the encoder's settings, with bertkit's for the decoder."""
        sides = {side: part if isinstance(part := content.get(side), dict) else {} for side in ("encoder", "decoder")}
        encoder, decoder = sides["encoder"], sides["decoder"]
        other = [key for key in SHAPE if encoder.get(key, DEFAULTS.get(key)) != decoder.get(key, DEFAULTS.get(key))]
        other += [f"decoder.{key}" for key in ("is_decoder", "add_cross_attention") if decoder.get(key) is not True]
        other += [f"{side}.model_type" for side, part in sides.items() if part.get("model_type") != "bert"]
        if other:
            raise InputError(
                f"{', '.join(other[:3])}: expected two BERTs with equal settings, the decoder with is_decoder and "
                "add_cross_attention"
            )
        start = content.get("decoder_start_token_id", decoder.get("decoder_start_token_id"))
        end = content.get("eos_token_id", decoder.get("eos_token_id"))
        if type(start) is not int or type(end) is not int:
            raise InputError("no decoder_start_token_id and eos_token_id; set them to the ids of [CLS] and [SEP]")
        shared = content.get("decoder_shares_encoder", content.get("tie_encoder_decoder", False))
        known = {"kind": "bert", "share": shared, "start_token_id": start, "end_token_id": end}
        return super().settings(encoder, tensors) | {"decoder": {**asdict(DecoderConfig(kind="bert")), **known}}

    def content(self, config: BertConfig, class_name: str, dtype: torch.dtype) -> Content:
        """Return the settings of both, and those of the pair."""
        assert config.decoder is not None
        content = super().content(replace(config, decoder=None), self.classes[()], dtype)
        encoder = dict(sorted(content.items()))
        writes = {"add_cross_attention": True, "is_decoder": True, "architectures": [self.classes["next_token",]]}
        return {
            "architectures": [class_name],
            "decoder": encoder | writes,
            "decoder_shares_encoder": config.decoder.share,
            "decoder_start_token_id": config.decoder.start_token_id,
            "dtype": encoder["dtype"],
            "encoder": encoder,
            "eos_token_id": config.decoder.end_token_id,
            "is_encoder_decoder": True,
            "model_type": "encoder-decoder",
            "pad_token_id": config.pad_token_id,
            "torch_dtype": encoder["dtype"],
        }

    def full_name_of_file(self, name: str) -> str:
        """Return the full name: the encoder's weights have the prefix `bert.`."""
        return full_name(re.sub(r"^encoder\.", "bert.", unwrapped(name)))

    def tensors_of(self, model: BertWithHeads) -> dict[str, Tensor]:
        """Return the weights: shared weights twice, and zeros for the unused pooler of the encoder."""
        size, like = model.config.hidden_size, next(model.parameters())
        shapes = {"encoder.pooler.dense.weight": (size, size), "encoder.pooler.dense.bias": (size,)}
        tensors = {name: like.new_zeros(shape) for name, shape in shapes.items()}
        for name, tensor in model.named_parameters(remove_duplicate=False):
            tensors[re.sub(r"^bert\.", "encoder.", self.full_name(name))] = tensor.detach()
        return tensors

    def reference_weights(self, model: BertWithHeads, full_name: str) -> list[Located]:
        """Return the name in the encoder or decoder; for weights that they share, both."""
        assert model.config.decoder is not None
        names = [re.sub(r"^bert\.", "encoder.", full_name)] + [f"decoder.{full_name}"] * model.config.decoder.share
        return [Located(name) for name in names]
