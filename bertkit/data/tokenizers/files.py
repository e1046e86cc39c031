"""The files that describe a tokenizer: reading them, and the class by which `transformers` reads them.

Source: transformers 5.23, models/auto/tokenization_auto.py.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from bertkit.base.errors import InputError, refusing, warn
from bertkit.base.text_files import JsonObject, read_json, read_whole
from bertkit.base.typed_settings import at, read_object, refuse
from bertkit.data.tokenizers.added_tokens import AddedTokens, read_added_tokens
from bertkit.data.tokenizers.other_formats import PAIR, refuse_other_formats, vocabulary_files

CONFIG, SPECIAL_MAP, ADDED, MODEL = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
)
BERT, GENERIC = "BertTokenizer", ("", "PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")
# of a tokenizer.json for which no file names a class, by the model's type
CLASSES = {
    "bert": BERT, "encoder-decoder": BERT, "roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer", "distilbert": BERT, "ernie": BERT, "electra": BERT, "albert": "AlbertTokenizer",
    "deberta": "DebertaTokenizer", "deberta-v2": "DebertaV2Tokenizer", "mpnet": "MPNetTokenizer", "gte": "XLMRobertaTokenizer", "nomic_bert": BERT,
    "jina_embeddings_v3": "XLMRobertaTokenizer",
}  # fmt: skip
OF_VOCABULARY = {"mpnet": "MPNetTokenizer"}  # the same of a vocab.txt alone, where it is not BERT's


@dataclass(frozen=True)
class Files:
    """The contents of the files of a tokenizer; {} for a file that is missing."""

    path: Path  # the file with the vocabulary
    content: JsonObject  # tokenizer.json
    config: JsonObject
    special: JsonObject
    added: JsonObject
    model: JsonObject

    @property
    def is_other(self) -> bool:
        """Whether the vocabulary is in another format: a SentencePiece model, or a byte-level BPE in two files."""
        return not self.content and self.path.suffix in (".model", ".json")

    @property
    def class_name(self) -> str:
        """The class by which `transformers` reads the files; "" if it takes tokenizer.json as it is, or none is named."""
        kind = str(self.model.get("model_type"))
        usual = CLASSES.get(kind, "") if self.content or self.is_other else OF_VOCABULARY.get(kind, BERT)
        name = str(self.config.get("tokenizer_class") or self.model.get("tokenizer_class") or usual).removesuffix(
            "Fast"
        )
        if not self.content and not self.is_other:
            return BERT if name in GENERIC else name
        return "" if name in GENERIC or kind.startswith("modernbert") else name

    def tokens(self, usual: JsonObject) -> AddedTokens:
        """Return the added tokens; `usual` are settings that the files need not have."""
        where = self.path.with_name(CONFIG if "added_tokens_decoder" in self.config else self.path.name)
        return read_added_tokens(where, usual | self.config, self.special, self.added, self.content.get("added_tokens"))


def read_files(path: Path) -> Files:
    """Read the files in a folder, or a vocabulary file: a `vocab.txt` alone, or a `tokenizer.json` as it is, with its settings."""
    folder = path if path.is_dir() else path.parent
    if not path.is_dir():
        refuse_other_formats(path)
    found = vocabulary_files(path) if path.is_dir() else [path]
    refuse(not found and f"{path}: no vocab.txt or tokenizer.json in this directory")
    file = found[0]
    is_json = file.suffix == ".json" and not (path.is_dir() and file.name in PAIR)
    names = (CONFIG, SPECIAL_MAP, ADDED, MODEL) if path.is_dir() else (CONFIG, SPECIAL_MAP) if is_json else ()
    read = {name: read_object(folder / name) for name in names}
    for side in ("truncation_side", "padding_side"):
        value = at(read.get(CONFIG, {}), side)
        refuse(
            value not in (None, "left", "right") and f"{folder / CONFIG}: {side}={value!r:.80}: expected left or right"
        )
    content = read_json(file) if is_json else {}
    refuse(
        is_json
        and at(content, "model") is None
        and f"{file}: model.type=None: not a tokenizer of the library `tokenizers`"
    )
    config = read.get(CONFIG, {}) if path.is_dir() else {**read.get(CONFIG, {}), "tokenizer_class": None}
    files = Files(file, content, config, *(read.get(name, {}) for name in (SPECIAL_MAP, ADDED, MODEL)))
    if content and len(found) == 2 and files.class_name == BERT:
        _check_same_ids(found[1], file, content)
    return files


def _check_same_ids(vocab_txt: Path, tokenizer_json: Path, content: JsonObject) -> None:
    """Raise InputError if a token has another id in the other file, since a program reads only one of the files."""
    ids, others = read_vocab_txt(vocab_txt), at(content, "model.vocab")
    if not isinstance(others, dict) or ids == others:
        return
    listed = read_added_tokens(tokenizer_json, {}, {}, {}, content.get("added_tokens")).listed
    added = {token.content: number for number, token in listed.items()}
    for token in (*others, *ids):
        if ids.get(token) != others.get(token, added.get(token)):
            wrong = f"vocab.txt and {tokenizer_json.name} have different ids for {json.dumps(token)}"
            raise InputError(f"{vocab_txt.parent}: {wrong}; restore both from the same source")


@functools.cache
def warn_once(path: Path, what: str) -> None:
    """Print a warning about a file once."""
    warn(f"{path}: {what}")


def read_vocab_txt(path: Path) -> dict[str, int]:
    """Read a vocabulary of one token in a line."""
    wrong = refusing(
        UnicodeDecodeError, lambda error: f"{path}: not UTF-8 (byte {error.start}); expected one token per line"
    )
    with wrong:
        lines = read_whole(path).split("\n")
    tokens = [line.rstrip("\r") for line in lines]
    while tokens and not tokens[-1]:
        tokens.pop()
    vocab: dict[str, int] = {}
    for number, token in enumerate(tokens):
        if token in vocab:
            raise InputError(f"{path}:{number + 1}: duplicate of token {json.dumps(token)} on line {vocab[token] + 1}")
        vocab[token] = number
    return vocab
