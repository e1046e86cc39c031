"""Tokenizers of BERT's family, learned from a few texts with the library `tokenizers` and saved by their classes in `transformers`."""

import json
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = (
    "The committee will meet on Tuesday, but it has not decided anything yet.",
    "Naïve café owners paid 3.50 € for 12 eggs; they're certain of it.",
    "Every vector in this sequence is computed twice, once by each implementation, and then compared.",
    "The river rose slowly through the night, over the meadows, up to the first houses of the village.",
    "Sie sprach leise, aber deutlich. 日本語のテキスト",
)
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def save_tokenizer(kind: str, folder: Path) -> int:
    """Save a tokenizer of a type's own class, with about 300 tokens; return their number."""
    others = {"roberta": _roberta, "deberta": _deberta, "eurobert": _llama, "mpnet": _mpnet}
    made = others[kind]() if kind in others else _unigram(kind) if kind in _UNIGRAM else _word_piece()
    made.save_pretrained(folder)
    return len(made)


def _byte_level(special: list[str]) -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return library


def _roberta() -> transformers.PreTrainedTokenizerFast:
    model = json.loads(_byte_level(SPECIAL).to_str())["model"]
    return transformers.RobertaTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


def _deberta() -> transformers.PreTrainedTokenizerFast:
    model = json.loads(_byte_level(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]).to_str())["model"]
    return transformers.DebertaTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


def _llama() -> transformers.PreTrainedTokenizerFast:
    """Without a class of its own; padding is the end of a text, as in EuroBERT's."""
    first, last, mask = "<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"
    library = _byte_level([first, last, mask])
    library.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} $B {last}", special_tokens=[(first, 0), (last, 1)]
    )
    names = {"bos_token": first, "eos_token": last, "cls_token": first, "sep_token": last, "pad_token": last}
    inputs = ["input_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, mask_token=mask, model_input_names=inputs, **names
    )


_UNIGRAM = {
    "xlm-roberta": ("XLMRobertaTokenizer", SPECIAL[:4], "<mask>"),
    "gte": ("XLMRobertaTokenizer", SPECIAL[:4], "<mask>"),
    "jina_embeddings_v3": ("XLMRobertaTokenizer", SPECIAL[:4], "<mask>"),
    "camembert": (
        "CamembertTokenizer",
        ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"],
        "<mask>",
    ),
    "albert": ("AlbertTokenizer", ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], "▁▁"),
    "deberta-v2": ("DebertaV2Tokenizer", ["[PAD]", "[CLS]", "[SEP]", "[UNK]"], "[MASK]"),
}


def _unigram(kind: str) -> transformers.PreTrainedTokenizerFast:
    class_name, first, last = _UNIGRAM[kind]
    library = Tokenizer(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    library.train_from_iterator(TEXTS, trainer)
    pieces = [tuple(piece) for piece in json.loads(library.to_str())["model"]["vocab"] if piece[0] != "<unk>"]
    vocab = [*((token, 0.0) for token in first), *pieces, (last, 0.0)]
    made: transformers.PreTrainedTokenizerFast = getattr(transformers, class_name)(vocab=vocab)
    return made


def _word_piece() -> transformers.PreTrainedTokenizerFast:
    return transformers.BertTokenizer(vocab=_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))


def _mpnet() -> transformers.PreTrainedTokenizerFast:
    """With BERT's special tokens too, as in the published vocabulary."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<mask>"]
    return transformers.MPNetTokenizer(vocab=_pieces(special))


def _pieces(special: list[str]) -> dict[str, int]:
    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    vocab: dict[str, int] = library.get_vocab()
    return vocab
