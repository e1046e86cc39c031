"""Encoded documents -> a prepared dataset: its splits, its statistics and the content of its manifest.

The hash of a document's text decides whether it is held out. The documents were encoded by this command, or by several
commands with shard=i/n.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import InputError
from bertkit.base.files import check_size, sha256_file
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import differences
from bertkit.data.corpus import manifest
from bertkit.data.corpus.duplicates import find_duplicates
from bertkit.data.corpus.encoded_documents import FOLDER, encoded_files, load_documents, text_sha256_of_files
from bertkit.data.corpus.manifest import SPLITS, read_shard_manifest
from bertkit.data.corpus.prepared import SplitWriter, token_dtype
from bertkit.data.corpus.statistics import CorpusStatistics, find_faults
from bertkit.data.corpus.tokenizer import MAX_LENGTH, Tokenizer, VocabFacts, load_tokenizer
from bertkit.data.corpus.tokenizer_file import is_unspaced
from bertkit.data.tokenizers.other_formats import OWN, vocabulary_files

SHARD_SETTINGS = ("shard", "part_bytes")  # settings of a shard that do not affect the merged dataset


class ShardPlace(NamedTuple):
    """Which shard of a dataset it is."""

    number: int  # from 1
    num_shards: int


@dataclass(frozen=True)
class PreparedShard:
    """The output directory of `prepare shard=i/n`."""

    directory: Path
    manifest: JsonObject

    @property
    def place(self) -> ShardPlace:
        """The place of this shard."""
        number, _, count = self.manifest["identity"]["shard"].partition("/")
        return ShardPlace(int(number), int(count))

    def files(self) -> list[Path]:
        """Return the files of encoded documents."""
        return encoded_files(self.directory / FOLDER)


def open_shards(directories: Iterable[Path]) -> list[PreparedShard]:
    """Open all shards of a dataset, each of them once, in the order of the text."""
    opened = (PreparedShard(directory, read_shard_manifest(directory)) for directory in directories)
    shards = sorted(opened, key=lambda shard: shard.place.number)
    first = shards[0]
    for other in shards:
        changed = _differences(first, other)
        if changed:
            listed = "; ".join(f"{key}: {old!r} in {first.directory}, {new!r} here" for key, old, new in changed)
            raise InputError(f"merge: {other.directory} is a shard of another dataset ({listed}); prepare it again")
    numbers = [shard.place.number for shard in shards]
    count = first.place.num_shards
    wrong = [f"{number}/{count}" for number in range(1, count + 1) if numbers.count(number) != 1]
    if wrong:
        raise InputError(
            f"merge: shard {', '.join(wrong)} missing or listed twice; expected each of the {count} shards once"
        )
    return shards


def _differences(first: PreparedShard, other: PreparedShard) -> list[tuple[str, object, object]]:
    """List the settings, with both values, that differ but must be equal for shards of one dataset."""
    here, there = first.manifest["identity"], other.manifest["identity"]
    changed = list(differences(here, {**there, "shard": here["shard"]}))
    if first.place.num_shards != other.place.num_shards:
        changed = [("shard", here["shard"], there["shard"])]
    sizes = [[size for _, size, _ in shard.manifest["source_files"]] for shard in (first, other)]
    if sizes[0] != sizes[1]:
        changed.append(("the sizes of the text files", sum(sizes[0]), sum(sizes[1])))
    return changed


def write_splits(
    paths: Iterable[Path],
    vocab: VocabFacts,
    held_out_prob: float,
    shard_tokens: int,
    directory: Path,
    is_duplicate: NDArray[np.bool_] | None,
) -> tuple[CorpusStatistics, JsonObject]:
    """Write both splits from files of encoded documents; return the statistics of the text and the counts of each split.

    `is_duplicate` says which of all documents to leave out.
    """
    writers = {name: SplitWriter(directory / name, token_dtype(vocab.size), shard_tokens) for name in SPLITS}
    statistics, first = CorpusStatistics(np.zeros(vocab.size, np.int64), vocab.unk), 0
    threshold = int(held_out_prob * 2**32)
    for path in paths:
        documents = load_documents(path)
        if is_duplicate is not None:
            repeats = is_duplicate[first : first + len(documents.digests)]
            first += len(repeats)
            documents = documents.take(~repeats)
        statistics.add(documents)
        is_held_out = np.ascontiguousarray(documents.digests[:, :4]).view("<u4")[:, 0] < threshold
        for name, is_chosen in (("train", ~is_held_out), ("held_out", is_held_out)):
            chosen = documents.take(is_chosen & (documents.document_sentences > 0))
            writers[name].write(chosen.tokens, chosen.sentence_lengths, chosen.document_sentences)
    return statistics, {name: writer.close() for name, writer in writers.items()}


Facts = JsonObject  # fields of a manifest


def hash_vocabulary(source: Path) -> list[str]:
    """Return the SHA-256 of a vocabulary file, or of each tokenizer file in a folder."""
    names = ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "added_tokens.json")
    files = [path for path in (source, *(source / name for name in names)) if path.is_file()]
    if others := [path for path in vocabulary_files(source) if path.name not in OWN]:
        files += [*others, source / "config.json"]  # which names the class that reads them
    for path in files:
        check_size(path)
    return [sha256_file(path) for path in files]


def facts_of_shards(shards: Sequence[PreparedShard]) -> Facts:
    """Return the fields of the manifest that the shards of a corpus have in common."""
    first = shards[0].manifest
    return {
        "identity": {key: value for key, value in first["identity"].items() if key not in SHARD_SETTINGS},
        "source_files": first["source_files"],
        "bertkit": first["bertkit"],
        "corpus": {"description": first["corpus"]["description"]},
    }


def write_dataset(
    directory: Path, facts: Facts, files: Sequence[Path], has_document_breaks: bool, strict: bool
) -> Facts:
    """Write the splits beside the tokenizer, and return their manifest; `strict` refuses text with faults."""
    identity, tokenizer = facts["identity"], load_tokenizer(directory / "tokenizer")
    vocab = tokenizer.facts
    is_duplicate = find_duplicates(files, identity["corpus"].get("deduplicate"), directory)
    statistics, splits = write_splits(
        files, vocab, identity["held_out_prob"], identity["shard_tokens"], directory, is_duplicate
    )
    if not statistics.tokens:
        raise InputError(f"{facts['corpus']['description']}: no text in it; check corpus.path")
    continuation_rate = _continuation_rate(tokenizer, statistics.token_counts)
    held_out = splits["held_out"]["documents"] if identity["held_out_prob"] > 0 else None
    asked_size = identity["tokenizer"]["vocab_size"] if identity["vocabulary_sha256"] is None else None
    findings = find_faults(statistics, has_document_breaks, continuation_rate, held_out, asked_size)
    if strict and findings:
        raise InputError(*(f"{finding['name']}: {finding['text']}" for finding in findings))
    text_hash = text_sha256_of_files(files)
    return {
        "fingerprint": manifest.fingerprint([identity, text_hash, tokenizer.files(MAX_LENGTH)]),
        **facts,
        "corpus": {
            **facts["corpus"],
            "text_sha256": text_hash,
            **({} if is_duplicate is None else {"duplicates": int(is_duplicate.sum())}),
        },
        "splits": splits,
        "statistics": statistics.summary(),
        "findings": findings,
    }


def _continuation_rate(tokenizer: Tokenizer, counts: NDArray[np.int64]) -> float:
    """Return the share of pieces inside of words among the tokens of a text, but for scripts without spaces."""
    used = np.flatnonzero(counts)
    texts = (text.removeprefix("##").lstrip() for text in tokenizer.texts_of(used.tolist()))
    has_spaces = used[[not is_unspaced(text) for text in texts]]
    inside = has_spaces[tokenizer.facts.borders.continues[has_spaces]]
    return float(counts[inside].sum() / max(counts[has_spaces].sum(), 1))
