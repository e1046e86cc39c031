"""Tokenizers of any kind, trained by the library, and models of `transformers` that use them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from conftest import make_text
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

NAMES = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
TEXTS = [" ".join(sentence).capitalize() for sentence in make_text(31)]
TEXTS += [f"{text} – naïve café, 3rd «{text}»!" for text in TEXTS[:40]]
KINDS = ("byte_level", "unigram", "word_piece", "gemma")


def trained(kind: str, names: Sequence[str] = tuple(NAMES.values())) -> Tokenizer:
    """A tokenizer of a kind: without a space before a text, with one before each, of lower-cased runs, or in the shape of Gemma's."""
    own = {"special_tokens": [*names], "show_progress": False}
    match kind:
        case "byte_level":
            made = Tokenizer(models.BPE())
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            made.decoder = decoders.ByteLevel()
            trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **own)
        case "unigram":
            made = Tokenizer(models.Unigram())
            made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
            made.decoder = decoders.Metaspace()
            trainer = trainers.UnigramTrainer(vocab_size=160, unk_token=names[3], **own)
        case "gemma":
            return gemma(names)
        case _:
            made = Tokenizer(models.WordPiece(unk_token=names[3], continuing_subword_prefix="@@"))
            made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
            made.decoder = decoders.WordPiece(prefix="@@")
            trainer = trainers.WordPieceTrainer(vocab_size=150, continuing_subword_prefix="@@", **own)
    made.train_from_iterator(TEXTS, trainer)
    cls, sep = names[0], names[2]
    made.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, made.token_to_id(token)) for token in (cls, sep)],
    )  # fmt: skip
    return made


def gemma(names: Sequence[str]) -> Tokenizer:
    """A BPE of whole texts, in which bytes replace rare characters, and the second text of a pair has its own `<s>`, as in Llama."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(Regex("▁"), "merged_with_next")
    special = [*names, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=430, special_tokens=special, limit_alphabet=40, show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    content = json.loads(made.to_str())
    content["added_tokens"] = content["added_tokens"][: len(names)]
    content["model"] |= {"byte_fallback": True, "unk_token": names[3]}
    made = Tokenizer.from_str(json.dumps(content))
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")  # there are none any more
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    cls, sep = names[0], names[2]
    made.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} {cls} $B:1 {sep}:1",
        special_tokens=[(token, made.token_to_id(token)) for token in (cls, sep)],
    )  # fmt: skip
    return made


def saved_model(folder: Path, kind: str, auto: Any = transformers.BertForMaskedLM, **settings: Any) -> Path:
    """A BERT with random weights and the tokenizer of a kind, both saved by `transformers`."""
    roles = {f"{role}_token": name for role, name in NAMES.items()}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=trained(kind), **roles)
    fast.save_pretrained(folder)
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=len(fast), hidden_size=44, num_hidden_layers=2, num_attention_heads=4, intermediate_size=53,
        max_position_embeddings=97, initializer_range=0.2, pad_token_id=fast.pad_token_id, **settings,
    )  # fmt: skip
    auto(config).save_pretrained(folder)
    return folder
