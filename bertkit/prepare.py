"""Stage: text -> tokenizer and prepared dataset on disk.

1. Read the corpus once to learn a vocabulary, unless one is given.
2. Read it again: encode, and write tokens and offsets of each document to its split.
3. With segments=google, make the fixed instances from what was written.
4. Describe it in words, say what is wrong with it, and publish the directory in one rename.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertkit import __version__
from bertkit.config import differences, to_mapping
from bertkit.data import prepared
from bertkit.data.collate import assemble
from bertkit.data.config import InstancesConfig, SegmentsConfig
from bertkit.data.corpus import Corpus
from bertkit.data.google import Instance, SplitDocuments, training_instances
from bertkit.data.instances import has_instances, open_instances, write_instances
from bertkit.data.lint import CorpusStatistics, Finding, lint
from bertkit.data.sampling import select
from bertkit.data.segments import document_pairs
from bertkit.data.tokenizer import RULES_FILE, Rules, Tokenizer, load_tokenizer, train_wordpiece
from bertkit.errors import InputError
from bertkit.files import PARTIAL, building_dir, read_json, sha256_file, to_json
from bertkit.progress import Progress
from bertkit.settings import PrepareSettings

DOCUMENTS_AT_ONCE = 64
DUMP_BEGINS = b'{"is_random_next"'  # the keys of each line are sorted


def run(settings: PrepareSettings) -> None:
    """Prepare a dataset, or say that it is done.

    Raises:
        InputError: a file cannot be read, the vocabulary cannot be used, or the output directory holds something else.
    """
    output_dir = Path(settings.output_dir)
    results = [output_dir]
    if settings.dump is not None:
        results.append(Path(settings.dump))
        _check_dump(settings.dump, output_dir)
    corpus = Corpus(settings.corpus, leave_out=results, join_files=isinstance(settings.segments, InstancesConfig))
    identity = _identity(settings)
    files = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path, _ in corpus.files]
    if _is_done(output_dir, identity, files, corpus):
        print(f"done already: {output_dir} holds this dataset")
        _dump(settings)
        return
    with building_dir(output_dir) as partial:
        if settings.tokenizer.path is not None:
            given = Path(settings.tokenizer.path)
            tokenizer = load_tokenizer(given, settings.tokenizer.lowercase, _rules(settings))
        else:
            tokenizer = _learn_vocabulary(settings, corpus)
        max_length = 512
        (partial / "tokenizer").mkdir()
        for name, content in tokenizer.files(max_length).items():
            (partial / "tokenizer" / name).write_text(content, encoding="utf-8")
        if tokenizer.rules != "hugging_face":
            (partial / "tokenizer" / RULES_FILE).write_text(to_json(tokenizer.rules), encoding="utf-8")
        statistics, splits, text_sha256 = _encode(settings, corpus, tokenizer, partial)
        inside_words = statistics.token_counts[tokenizer.facts.is_continuation].sum() / max(statistics.tokens, 1)
        held_out = splits["held_out"]["documents"] if _held_out_share(settings) > 0 else None
        findings = lint(statistics, corpus.has_document_breaks, float(inside_words), held_out)
        if not statistics.tokens:
            raise InputError(f"{corpus.describe()}: no text in it; check corpus.path")
        if settings.strict and findings:
            raise InputError("\n".join(f"{finding.name}: {finding.text}" for finding in findings))
        facts = {
            "fingerprint": prepared.fingerprint([identity, text_sha256, tokenizer.files(max_length)]),
            "identity": identity,
            "source_files": files,
            "bertkit": __version__,
            "corpus": {"description": corpus.describe(), "text_sha256": text_sha256},
            "splits": splits,
            "statistics": {
                "vocab_size": tokenizer.vocab_size,
                "unknown_rate": statistics.unknown_rate,
                "unigram_entropy": statistics.unigram_entropy,
                "most_frequent_share": statistics.most_frequent_share,
                "tokens_per_sentence": statistics.tokens / statistics.sentences,
                "words": statistics.words,
                "repeat_rate": statistics.repeat_rate,
                "empty_documents": statistics.empty_documents,
            },
            "findings": [{"name": finding.name, "text": finding.text} for finding in findings],
        }
        if isinstance(settings.segments, InstancesConfig):
            facts["instances"] = _make_instances(settings, settings.segments, tokenizer, partial, splits["train"])
        prepared.write_manifest(partial, facts)
    _say(output_dir, findings)
    _dump(settings)


def _rules(settings: PrepareSettings) -> Rules:
    """The rules of tokenization; fixed instances are Google's, and so are their words, unless another choice is made."""
    if settings.tokenizer.rules != "auto":
        return settings.tokenizer.rules
    return "hugging_face" if settings.segments is None else "google"


def _held_out_share(settings: PrepareSettings) -> float:
    """The share of documents to hold out: none of those that become fixed instances, as in the original."""
    return settings.held_out_prob if settings.segments is None else 0.0


def _make_instances(
    settings: PrepareSettings, config: InstancesConfig, tokenizer: Tokenizer, directory: Path, counts: dict[str, Any]
) -> dict[str, Any]:
    """Write the fixed instances of the train split; give what the manifest says of them."""
    dtype = prepared.token_dtype(tokenizer.vocab_size)
    documents = SplitDocuments(prepared.Split(directory / "train", dtype, counts["shard_tokens"]))
    rng = random.Random(settings.seed)
    drawn = training_instances(documents, config, settings.masking, tokenizer.facts, rng)
    most = config.dupe_factor * counts["tokens"]

    def counted() -> Iterator[Instance]:
        done = 0
        with Progress("making instances", most) as progress:
            for instance in drawn:
                yield instance
                done = min(most, done + len(instance.input_ids))
                progress.advance(done)

    count = write_instances(directory / "instances", counted(), rng, tokenizer.vocab_size)
    return {
        "count": count,
        "segments": to_mapping(config),
        "masking": to_mapping(settings.masking),
        "seed": settings.seed,
    }


def _check_dump(dump: str, output_dir: Path) -> None:
    """Refuse a place for the JSON lines that cannot be written, or that holds something else.

    Raises:
        InputError: nothing was read or written yet.
    """
    path = Path(dump)
    if not dump:
        raise InputError("dump= is empty; expected a file to write")
    if path.is_dir():
        raise InputError(f"dump={dump} is a directory; expected a file to write")
    if output_dir.resolve() in (path.resolve(), *path.resolve().parents):
        raise InputError(
            f"dump={dump} lies in output_dir={output_dir}, which holds the dataset alone; write it elsewhere"
        )
    if path.resolve() in output_dir.resolve().parents:
        raise InputError(f"dump={dump} is a folder above output_dir={output_dir}; expected a file to write")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise InputError(f"dump={dump}: {folder} is a file; expected a folder to write to")
    if path.is_file() and not _is_standard_output(path):
        with path.open("rb") as file:
            if file.read(len(DUMP_BEGINS)) not in (b"", DUMP_BEGINS):
                raise InputError(f"dump={dump} exists and holds something else than instances; choose another file")


def _is_standard_output(path: Path) -> bool:
    return os.path.samestat(path.stat(), os.fstat(1))


def _dump(settings: PrepareSettings) -> None:
    """Write the stored instances as JSON lines, if asked to; what is no regular file, such as a pipe, is written straight."""
    if settings.dump is None:
        return
    dataset = prepared.open_prepared(Path(settings.output_dir))
    path = Path(settings.dump)
    instances = open_instances(dataset)
    rows = instances.rows(dataset.tokenizer.vocab)
    if path.exists() and _is_standard_output(path):
        sys.stdout.writelines(rows)
    elif path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as file:
            file.writelines(rows)
    else:
        path = path.resolve()  # a link stays one
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + PARTIAL)
        with partial.open("w", encoding="utf-8") as file:
            file.writelines(rows)
        partial.replace(path)
    print(f"{len(instances):,} instances as JSON lines in {settings.dump}")


def _identity(settings: PrepareSettings) -> dict[str, Any]:
    """The settings that shape the result, whatever the place of the files."""
    identity = to_mapping(settings)
    for key in ("output_dir", "strict", "dump"):
        del identity[key]
    del identity["tokenizer"]["path"]
    identity["tokenizer"]["rules"] = _rules(settings)
    identity["held_out_prob"] = _held_out_share(settings)
    if settings.segments is None:
        del identity["masking"], identity["seed"]
    if settings.corpus.source == "files":
        del identity["corpus"]["path"]
    identity["vocabulary_sha256"] = None
    if settings.tokenizer.path is not None:
        given = Path(settings.tokenizer.path)
        names = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
        files = [path for path in (given, *(given / name for name in names)) if path.is_file()]
        identity["vocabulary_sha256"] = [sha256_file(path) for path in files]
    return identity


def _is_done(output_dir: Path, identity: dict[str, Any], files: list[list[Any]], corpus: Corpus) -> bool:
    """Whether the directory holds this very dataset; where only places or times of the files changed, the text decides."""
    if not output_dir.exists() or (output_dir.is_dir() and not any(output_dir.iterdir())):
        return False
    manifest = read_json(output_dir / "manifest.json") if (output_dir / "manifest.json").is_file() else None
    if not isinstance(manifest, dict) or manifest.get("format") != prepared.FORMAT:
        raise InputError(f"output_dir={output_dir} exists and is not a prepared dataset; choose another one")
    changed = [f"{key}: {old!r} there, {new!r} here" for key, old, new in differences(manifest["identity"], identity)]
    if not changed and manifest["source_files"] != files:
        sizes = [sorted(size for _, size, _ in listed) for listed in (manifest["source_files"], files)]
        if sizes[0] != sizes[1] or manifest["corpus"]["text_sha256"] != _text_sha256(corpus):
            changed = ["the text changed"]
    if changed:
        raise InputError(
            f"output_dir={output_dir} holds another dataset ({'; '.join(changed)}); choose another one or remove it"
        )
    prepared.open_prepared(output_dir)
    return True


def _text_sha256(corpus: Corpus) -> str:
    text_hash = hashlib.sha256()
    for document in corpus:
        text_hash.update(_digest(document))
    return text_hash.hexdigest()


def _digest(document: list[str]) -> bytes:
    return hashlib.sha256("\n".join(document).encode("utf-8", "surrogatepass")).digest()


def _learn_vocabulary(settings: PrepareSettings, corpus: Corpus) -> Tokenizer:
    lowercase = settings.tokenizer.lowercase is not False

    def sentences() -> Iterator[str]:
        with Progress("reading for the vocabulary", corpus.total_bytes) as progress:
            for document in corpus:
                progress.advance(corpus.bytes_read)
                yield from document

    wanted = settings.tokenizer.vocab_size
    tokenizer = train_wordpiece(sentences, wanted, lowercase, settings.tokenizer.min_frequency, _rules(settings))
    short = f", of {wanted:,} asked for: the text has no more" if tokenizer.vocab_size < wanted else ""
    print(f"learned a vocabulary of {tokenizer.vocab_size:,} tokens{short}", flush=True)
    return tokenizer


def _encode(
    settings: PrepareSettings, corpus: Corpus, tokenizer: Tokenizer, directory: Path
) -> tuple[CorpusStatistics, dict[str, Any], str]:
    """Write both splits; give the statistics, the counts of each split, and the hash of the text."""
    facts = tokenizer.facts
    dtype = prepared.token_dtype(facts.size)
    writers = {name: prepared.SplitWriter(directory / name, dtype, settings.shard_tokens) for name in prepared.SPLITS}
    statistics = CorpusStatistics(np.zeros(facts.size, np.int64), facts.unk)
    text_hash = hashlib.sha256()
    threshold = int(_held_out_share(settings) * 2**32)
    with Progress("encoding", corpus.total_bytes) as progress:
        for documents in _batches(corpus):
            encodings = iter(tokenizer.encode_sentences([line for document in documents for line in document]))
            for document in documents:
                ids = [next(encodings).ids for _ in document]
                digest = _digest(document)
                text_hash.update(digest)
                statistics.add_document(document, ids)
                kept = [sentence for sentence in ids if sentence]
                if kept:
                    is_held_out = int.from_bytes(digest[:4], "little") < threshold
                    writers["held_out" if is_held_out else "train"].write(kept)
            progress.advance(corpus.bytes_read)
    counts = {name: writer.close() for name, writer in writers.items()}
    return statistics, counts, text_hash.hexdigest()


def _batches(corpus: Corpus) -> Iterator[list[list[str]]]:
    """Documents in groups large enough to encode on all cores, small enough for flat memory."""
    batch: list[list[str]] = []
    num_lines = 0
    for document in corpus:
        batch.append(document)
        num_lines += len(document)
        if len(batch) >= DOCUMENTS_AT_ONCE or num_lines >= 2048:
            yield batch
            batch, num_lines = [], 0
    if batch:
        yield batch


def _say(output_dir: Path, findings: list[Finding]) -> None:
    dataset = prepared.open_prepared(output_dir)
    examples = decoded_instances(dataset, 3) if has_instances(dataset) else decoded_examples(dataset, 3)
    print(prepared.describe(dataset.manifest, examples))
    for finding in findings:
        print(f"\nwarning: {finding.name}: {finding.text}")
    print(f"\nprepared dataset in {output_dir}")


def decoded_instances(dataset: prepared.PreparedDataset, count: int) -> list[str]:
    """Decode the first stored instances, masks and all, to be looked at."""
    instances = open_instances(dataset)
    decoded = []
    for number in range(min(count, len(instances))):
        batch = instances.batch(np.array([number]))
        kind = "random next" if instances.is_random_next[number] else "actual next"
        decoded.append(f"{kind}: {dataset.tokenizer.decode(batch.input_ids.tolist())}")
    return decoded


def decoded_examples(dataset: prepared.PreparedDataset, count: int) -> list[str]:
    """Decode a few training pairs, to be looked at."""
    split = dataset.splits["train"] if dataset.splits["train"].num_documents else dataset.splits["held_out"]
    shape = SegmentsConfig("pairs", 64, 0.1)
    first = np.unique(np.linspace(0, split.num_documents - 1, count).astype(np.int64))
    pairs = document_pairs(
        split.sentences, split.documents, first, shape.max_seq_length, shape.short_seq_prob, seed=0, epoch=0
    )
    assert pairs.is_random_next is not None
    actual_first = np.argsort(pairs.is_random_next, kind="stable")  # so that both kinds are seen
    chosen = actual_first[np.linspace(0, len(pairs) - 1, min(count, len(pairs))).astype(np.int64)]
    ids, _, lengths = assemble(split, select(pairs, chosen), dataset.tokenizer.facts)
    ends = np.cumsum(lengths)
    return [
        f"{'random next' if pairs.is_random_next[index] else 'actual next'}: "
        f"{dataset.tokenizer.decode(ids[end - length : end])}"
        for index, end, length in zip(chosen, ends, lengths, strict=True)
    ]
