"""Encoded documents become a prepared dataset: its splits, its statistics and the facts of its manifest."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.base.errors import InputError
from bertkit.base.files import sha256_file
from bertkit.base.text_files import check_whole
from bertkit.base.typed_settings import to_mapping
from bertkit.data.corpus import manifest
from bertkit.data.corpus.encoded_documents import text_sha256_of_files
from bertkit.data.corpus.splitting import ONLY_OF_A_SHARD, PreparedShard, write_splits
from bertkit.data.corpus.statistics import find_faults
from bertkit.data.corpus.tokenizer import MAX_LENGTH, load_tokenizer

Facts = dict[str, Any]  # of a manifest


def hash_vocabulary(place: Path) -> list[str]:
    """Give the SHA-256 of a vocabulary file, or of the tokenizer's files in a folder."""
    names = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
    files = [path for path in (place, *(place / name for name in names)) if path.is_file()]
    for path in files:
        check_whole(path)
    return [sha256_file(path) for path in files]


def facts_of_shards(shards: Sequence[PreparedShard]) -> Facts:
    """Give the facts about a corpus that its shards have in common."""
    first = shards[0].manifest
    return {
        "identity": {key: value for key, value in first["identity"].items() if key not in ONLY_OF_A_SHARD},
        "source_files": first["source_files"],
        "bertkit": first["bertkit"],
        "corpus": {"description": first["corpus"]["description"]},
    }


def write_dataset(
    directory: Path, facts: Facts, files: Sequence[Path], has_document_breaks: bool, strict: bool
) -> Facts:
    """Write the splits of encoded documents into a directory, which has the tokenizer; give the facts of its manifest.

    Raises:
        InputError: there is no text, or it has faults and `strict` is set.
    """
    identity, tokenizer = facts["identity"], load_tokenizer(directory / "tokenizer")
    vocab = tokenizer.facts
    statistics, splits = write_splits(files, vocab, identity["held_out_prob"], identity["shard_tokens"], directory)
    if not statistics.tokens:
        raise InputError(f"{facts['corpus']['description']}: no text in it; check corpus.path")
    inside_words = statistics.token_counts[vocab.is_continuation].sum() / statistics.tokens
    held_out = splits["held_out"]["documents"] if identity["held_out_prob"] > 0 else None
    findings = find_faults(statistics, has_document_breaks, float(inside_words), held_out)
    if strict and findings:
        raise InputError(*(f"{finding.name}: {finding.text}" for finding in findings))
    text_hash = text_sha256_of_files(files)
    return {
        "fingerprint": manifest.fingerprint([identity, text_hash, tokenizer.files(MAX_LENGTH)]),
        **facts,
        "corpus": {**facts["corpus"], "text_sha256": text_hash},
        "splits": splits,
        "statistics": statistics.summary(),
        "findings": [to_mapping(finding) for finding in findings],
    }
