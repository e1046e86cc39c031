"""Tokenizers of BERT's family, learned from a few texts with the library `tokenizers` and saved by their classes in `transformers`."""

import json
from pathlib import Path

import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

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
    made = _byte_level(kind) if kind == "roberta" else _unigram(kind) if kind in _UNIGRAM else _word_piece()
    made.save_pretrained(folder)
    return len(made)


def _byte_level(kind: str) -> transformers.PreTrainedTokenizerFast:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False),
    )
    model = json.loads(library.to_str())["model"]
    return transformers.RobertaTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


_UNIGRAM = {
    "xlm-roberta": ("XLMRobertaTokenizer", SPECIAL[:4], "<mask>"),
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
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    return transformers.BertTokenizer(vocab=library.get_vocab())
