"""The keys of `config.json`, and what bertkit does with each: it honours it, refuses its other values, or reads past it.

Here are those of several model types; the class of a type adds its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# keys of every model type that change no number a loaded model computes: they concern memory, speed, Python objects or versions,
# or a search for texts, which has its settings in conf/task/generation
NO_EFFECT = frozenset({
    "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "_num_labels", "bos_token_id",
    "chunk_size_feed_forward", "cls_token_id", "decoder_start_token_id", "directionality", "dtype", "eos_token_id",
    "finetuning_task", "gradient_checkpointing", "is_encoder_decoder", "label2id", "language", "model_type", "name",
    "output_attentions", "output_hidden_states", "output_past", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "prefix", "return_dict", "sep_token_id",
    "task_specific_params", "tf_legacy_loss", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers_version", "use_bfloat16", "use_cache", "use_return_dict", "transformers.js_config",
    # of texts to generate, which older releases saved in config.json
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty",
    "return_dict_in_generate", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
})  # fmt: skip
# of a model type, and of its labels
COMMON = frozenset({
    "architectures", "classifier_dropout", "id2label", "initializer_range", "intermediate_size", "hidden_size",
    "masked_next_token", "max_position_embeddings", "model_type", "num_attention_heads", "num_hidden_layers", "num_labels",
    "pad_token_id", "problem_type", "sbert_ce_default_activation_function", "sentence_transformers",
    "tie_word_embeddings", "vocab_size",
})  # fmt: skip
ONLY: dict[str, object] = {"per_layer_config": {}, "pruned_heads": {}, "quantization_config": {}}
# names of an activation that is known by another name; they differ at most in rounding
ACTIVATIONS = {
    "gelu_python": "gelu", "gelu_python_tanh": "gelu_pytorch_tanh", "gelu_fast": "gelu_new", "gelu_accurate": "gelu_new",
}  # fmt: skip


@dataclass(frozen=True)
class Keys:
    """What bertkit does with the keys of a model type."""

    honoured: frozenset[str]
    only: Mapping[str, object]  # the value of a key whose other values are refused
    no_effect: frozenset[str] = frozenset()
    # keys without effect on a loaded model that are named if they have another value
    usual: Mapping[str, object] = field(default_factory=dict)

    def faults(self, content: Mapping[str, object], heedless: Iterable[str] = ()) -> list[str]:
        """Return an error line for each key with a value that bertkit lacks; `heedless` have no effect in this directory."""
        return [
            f"{key}={content[key]!r} is not supported; bertkit loads {allowed!r} only, transformers others"
            for key, allowed in self.only.items()
            if key not in heedless and content.get(key) not in (None, allowed)
        ]

    def unknown(self, content: Mapping[str, object]) -> list[str]:
        """Return the other keys as `key=value`: `transformers` does not read them, or only to train."""
        known = self.honoured | self.only.keys() | self.no_effect
        others = {key: value for key, value in content.items() if key not in known and value is not None}
        return [f"{key}={value!r:.40}" for key, value in others.items() if value != self.usual.get(key)]


BERT = Keys(
    COMMON
    | {"attention_probs_dropout_prob", "decoder", "eos_token_id", "hidden_act", "hidden_dropout_prob", "is_decoder"}
    | {"layer_norm_eps", "position_embedding_type", "type_vocab_size"},
    {**ONLY, "add_cross_attention": False},
    NO_EFFECT,
)
# of a type whose positions are absolute, as those of BERT's family are
FAMILY = Keys(
    BERT.honoured - {"position_embedding_type"}, {**BERT.only, "position_embedding_type": "absolute"}, NO_EFFECT
)
