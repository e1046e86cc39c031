"""The keys of `config.json`, and what bertkit does with each: it honours it, refuses its other values, or reads past it."""

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
ROBERTA = Keys(
    BERT.honoured - {"position_embedding_type"}, {**BERT.only, "position_embedding_type": "absolute"}, NO_EFFECT
)
DISTILBERT = Keys(
    COMMON - {"classifier_dropout", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"}
    | {"activation", "attention_dropout", "dim", "dropout", "hidden_dim", "n_heads", "n_layers", "qa_dropout"}
    | {"seq_classif_dropout"},
    {**ONLY, "is_decoder": False},
    # `sinusoidal_pos_embds` is about initial weights; `transformers` reads none of the others
    NO_EFFECT | {"sinusoidal_pos_embds", "tie_weights_"},
)
ERNIE = Keys(ROBERTA.honoured | {"task_type_vocab_size", "use_task_id"}, ROBERTA.only, NO_EFFECT)
ELECTRA = Keys(
    ROBERTA.honoured | {"embedding_size", "summary_last_dropout"},
    {
        **ROBERTA.only, "summary_activation": "gelu", "summary_first_dropout": 0.0, "summary_proj_to_labels": False,
        "summary_type": "first", "summary_use_proj": True,
    },
    NO_EFFECT,
)  # fmt: skip
ALBERT = Keys(
    ROBERTA.honoured - {"classifier_dropout"} | {"classifier_dropout_prob", "embedding_size"},
    {**ROBERTA.only, "inner_group_num": 1, "is_decoder": False, "num_hidden_groups": 1},
    NO_EFFECT | {"down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"},
)
DEBERTA = Keys(
    COMMON - {"classifier_dropout"}
    | {"attention_head_size", "attention_probs_dropout_prob", "cls_dropout", "embedding_size", "hidden_act"}
    | {"hidden_dropout_prob", "layer_norm_eps", "legacy", "max_relative_positions", "norm_rel_ebd", "pooler_dropout"}
    | {"pooler_hidden_act", "pooler_hidden_size", "pos_att_type", "position_biased_input", "position_buckets"}
    | {"conv_act", "conv_groups", "conv_kernel_size", "relative_attention", "share_att_key", "type_vocab_size"},
    ONLY,
    # which nothing in `transformers` reads
    NO_EFFECT
    | {"add_cross_attention", "classifier_dropout", "is_decoder", "position_embedding_type"}
    | {"summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"},
)
EUROBERT = Keys(
    COMMON - {"classifier_dropout"}
    | {
        "attention_bias",
        "attention_dropout",
        "classifier_pooling",
        "eos_token_id",
        "head_dim",
        "hidden_act",
        "mlp_bias",
    }
    | {"num_key_value_heads", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta"},
    {**ONLY, "is_decoder": False, "tie_word_embeddings": False},
    NO_EFFECT | {"mask_token_id", "pretraining_tp"},
    {
        "clf_pooling": "late",
        "hidden_dropout": 0.0,
    },  # in published files; the first is the name in the authors' own code
)
# of bertkit's own type
OWN = Keys(
    BERT.honoured
    | {
        "attention",
        "convolution",
        "embedding_dropout_prob",
        "feed_forward",
        "head",
        "head_act",
        "norm",
        "pooling",
        "task_transform",
    }
    | {"embedding_size", "family", "head_dropout_probs", "layer_dropout_probs", "pooler_act", "pooler_dropout_probs"}
    | {"plain_lm_head", "projects_first", "shared_layers", "skips_padding", "task_type_vocab_size"},
    BERT.only,
    NO_EFFECT,
)
# of an encoder-decoder, whose two parts have those of a BERT
PAIR = Keys(
    frozenset({"architectures", "decoder", "decoder_shares_encoder", "encoder", "pad_token_id", "tie_encoder_decoder"}),
    ONLY,
    NO_EFFECT | {"tie_word_embeddings", "add_cross_attention", "vocab_size"},
)
MODERN_BERT = Keys(
    COMMON
    | {"attention_bias", "attention_dropout", "classifier_activation", "classifier_bias", "classifier_pooling"}
    | {
        "embedding_dropout",
        "global_attn_every_n_layers",
        "global_rope_theta",
        "hidden_activation",
        "layer_types",
        "local_attention",
    }
    | {"local_rope_theta", "mlp_bias", "mlp_dropout", "norm_bias", "norm_eps", "rope_parameters"}
    | {"rope_scaling"},
    {**ONLY, "decoder_bias": True, "head_dim": None, "partial_rotary_factor": 1.0},
    # `layer_norm_eps` and `position_embedding_type` are in published files, where nothing reads them
    NO_EFFECT
    | {"compile", "deterministic_flash_attn", "is_decoder", "layer_norm_eps", "position_embedding_type"}
    | {"reference_compile", "repad_logits_with_grad", "sparse_prediction", "sparse_pred_ignore_index", "rope_theta"},
    {"initializer_cutoff_factor": 2.0},
)
