"""Tokenizers in formats that bertkit does not read, each with the way to convert it."""

from pathlib import Path

from bertkit.base.errors import InputError

PAIR = {"vocab.json", "merges.txt"}
HUB = "hf download ID --include 'tokenizer*' --include 'vocab*' --local-dir DIR"


def refuse_other_formats(path: Path) -> None:
    """Raise InputError for a file that does not exist, a SentencePiece model, and a byte-level BPE in two files.

    A folder may have them beside a `tokenizer.json` or a `vocab.txt`.
    """
    if not path.exists():
        expected = "expected vocab.txt, tokenizer.json or a directory with one"
        raise InputError(f"{path}: no such file; {expected}; for a tokenizer of the hub first {HUB}")
    folder, names = (path, {file.name for file in path.iterdir()}) if path.is_dir() else (path.parent, {path.name})
    if names & {"tokenizer.json", "vocab.txt"}:
        return
    if models := sorted(name for name in names if name.endswith(".model")):
        way = f"copy it to DIR/spm.model, {_convert('DebertaV2Tokenizer', 'DIR')} (for a Unigram model"
        if path.is_dir():
            way = f"{_convert('AutoTokenizer', folder)} (if config.json names its class"
        raise InputError(f"{folder / models[0]}: a SentencePiece model; {way}; needs sentencepiece), and use DIR")
    if names & PAIR and all((folder / name).is_file() for name in PAIR):
        way = _convert("AutoTokenizer" if (folder / "config.json").is_file() else "RobertaTokenizer", folder)
        raise InputError(f"{folder}: a byte-level BPE in vocab.json and merges.txt; {way}, and use DIR")


def _convert(class_name: str, folder: Path | str) -> str:
    made = f"{class_name}.from_pretrained('{folder}').save_pretrained('DIR')"
    return f'run python -c "from transformers import {class_name}; {made}"'
