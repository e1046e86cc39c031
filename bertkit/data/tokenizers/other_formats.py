"""Vocabularies in formats that bertkit leaves to a class of `transformers`, each with the way to convert it where none is named."""

from pathlib import Path

from bertkit.base.errors import InputError

OWN, PAIR = ("tokenizer.json", "vocab.txt"), ("vocab.json", "merges.txt")


def vocabulary_files(folder: Path) -> list[Path]:
    """List the files of a folder's vocabulary: `tokenizer.json` and `vocab.txt`; without both, those in other formats.

    These are SentencePiece models, and a byte-level BPE in two files.
    """
    if own := [path for name in OWN if (path := folder / name).is_file()]:
        return own
    pair = [folder / name for name in PAIR]
    return [*sorted(folder.glob("*.model")), *(pair if all(path.is_file() for path in pair) else ())]


def refuse_other_formats(path: Path) -> None:
    """Raise InputError for a file that does not exist, and for another format's file, or a folder that has no more than these."""
    if not path.exists():
        expected = "expected vocab.txt, tokenizer.json, a directory with one, or a hub id such as google-bert/bert-base-uncased"
        raise InputError(f"{path}: no such file; {expected}")
    first = next(iter(vocabulary_files(path)), path)
    if first.suffix == ".model":
        way = f"copy it to DIR/spm.model, {_convert('DebertaV2Tokenizer', 'DIR')} (for a Unigram model"
        raise InputError(f"{first}: a SentencePiece model; {way}; needs sentencepiece), and use DIR")
    if first.name in PAIR and all(first.with_name(name).is_file() for name in PAIR):
        has_model = first.with_name("config.json").is_file()
        way = _convert("AutoTokenizer" if has_model else "RobertaTokenizer", first.parent)
        raise InputError(f"{first.parent}: a byte-level BPE in vocab.json and merges.txt; {way}, and use DIR")


def _convert(class_name: str, folder: Path | str) -> str:
    made = f"{class_name}.from_pretrained('{folder}').save_pretrained('DIR')"
    return f'run python -c "from transformers import {class_name}; {made}"'
