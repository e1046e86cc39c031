"""Stage: text -> tokenizer and prepared dataset on disk.

1. Read the corpus once to learn a vocabulary, unless one is given.
2. Cut it into parts, and let the workers encode them to pieces on the disk (data/workers.py, data/pieces.py). A run that
   is killed leaves its pieces, and the same command goes on with them.
3. Join the pieces: tokens and offsets of each document go to its split. With shard=i/n the pieces of some parts are the
   result; with merge= they come from the shards.
4. With segments=google, make the fixed instances from what was written.
5. Describe it in words, say what is wrong with it, and publish the directory in one rename.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
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
from bertkit.data.lint import CorpusStatistics, lint
from bertkit.data.pieces import count_piece, digest, load_digests, load_piece, piece_paths
from bertkit.data.sampling import select
from bertkit.data.segments import document_pairs
from bertkit.data.tokenizer import RULES_FILE, Rules, Tokenizer, load_tokenizer, train_wordpiece
from bertkit.data.workers import EncodingJob, encode_parts
from bertkit.errors import InputError
from bertkit.files import PARTIAL, UNFINISHED, building_dir, publish_dir, read_json, sha256_file, to_json
from bertkit.progress import Progress
from bertkit.settings.schemas import PrepareSettings

MAX_LENGTH = 512  # that the tokenizer's files name
SHARD_FORMAT = "bertkit prepared shard 1"
OF_A_SHARD = ("shard", "part_bytes")  # in the identity of a shard alone
DUMP_BEGINS = b'{"is_random_next"'  # the keys of each line are sorted


def run(settings: PrepareSettings) -> None:
    """Prepare a dataset, a shard of one, or one from its shards; or say that it is done.

    Raises:
        InputError: a file cannot be read, the vocabulary cannot be used, or the output directory holds something else.
        PeerError: a worker process was killed.
    """
    if settings.merge is not None:
        _merge(settings, [Path(shard) for shard in settings.merge])
        return
    output_dir = Path(settings.output_dir)
    results = [output_dir]
    if settings.dump is not None:
        results.append(Path(settings.dump))
        _check_dump(settings.dump, output_dir)
    corpus = Corpus(settings.corpus, leave_out=results, join_files=isinstance(settings.segments, InstancesConfig))
    number, count = settings.shard_of
    parts = corpus.parts(settings.part_bytes)
    mine = range(len(parts) * (number - 1) // count, len(parts) * number // count)
    identity = _identity(settings)
    files = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path, _ in corpus.files]
    kind = prepared.FORMAT if settings.shard is None else SHARD_FORMAT

    def text_sha256() -> str:
        return _text_sha256(digest(document) for part in mine for document in corpus.documents(parts[part]))

    if _is_done(output_dir, kind, identity, files, text_sha256):
        print(f"done already: {output_dir} holds this {'dataset' if settings.shard is None else 'shard'}")
        _dump(settings)
        return
    # A streamed dataset may change, and nothing would show it.
    made_from = [identity, settings.part_bytes, files, __version__, sys.version]
    key = None if settings.corpus.source == "hub" else prepared.fingerprint(made_from)
    with building_dir(output_dir, key) as partial:
        work = partial / UNFINISHED
        (work / "pieces").mkdir(parents=True, exist_ok=True)
        if not (work / "tokenizer").exists():
            _write_tokenizer(settings, corpus, work / "tokenizer")
        job = EncodingJob(corpus, work / "tokenizer", work / "pieces", settings.num_cached_words)
        num_workers = None if settings.num_workers == "auto" else settings.num_workers
        encode_parts(job, {part: parts[part] for part in mine}, num_workers)
        if count == 1 and not piece_paths(work / "pieces"):
            corpus.refuse_empty()
        facts: dict[str, Any] = {
            "identity": identity,
            "source_files": files,
            "bertkit": __version__,
            "corpus": {"description": corpus.describe()},
        }
        shutil.copytree(work / "tokenizer", partial / "tokenizer")
        if settings.shard is None:
            facts = _join(settings, facts, corpus.has_document_breaks, piece_paths(work / "pieces"), partial)
        else:
            text_hash = _text_sha256(_digests(piece_paths(work / "pieces")))
            facts["corpus"] |= {"text_sha256": text_hash, "has_document_breaks": corpus.has_document_breaks}
            facts["num_parts"] = len(parts)
            (work / "pieces").rename(partial / "pieces")
        prepared.write_manifest(partial, facts, kind)
    if settings.shard is not None:
        print(f"prepared shard {settings.shard} in {output_dir}; merge= makes a dataset of all of them")
        return
    _say(output_dir)
    _dump(settings)


def _merge(settings: PrepareSettings, shards: list[Path]) -> None:
    """Make of all shards the dataset that one command would have made, whatever their order here."""
    manifests = {shard: _read_shard(shard) for shard in shards}
    numbers = {shard: manifest["identity"]["shard"].split("/") for shard, manifest in manifests.items()}
    shards.sort(key=lambda shard: int(numbers[shard][0]))
    first = manifests[shards[0]]
    for shard in shards:
        other = manifests[shard]
        changed = differences(first["identity"], {**other["identity"], "shard": first["identity"]["shard"]})
        if numbers[shard][1] != numbers[shards[0]][1]:
            changed = [("shard", first["identity"]["shard"], other["identity"]["shard"])]
        sizes = [[size for _, size, _ in manifest["source_files"]] for manifest in (first, other)]
        if sizes[0] != sizes[1]:
            changed.append(("the sizes of the text files", sum(sizes[0]), sum(sizes[1])))
        if changed:
            listed = "; ".join(f"{key}: {old!r} in {shards[0]}, {new!r} here" for key, old, new in changed)
            raise InputError(f"merge: {shard} is a shard of another dataset ({listed}); prepare it again")
    given = [int(numbers[shard][0]) for shard in shards]
    count = int(numbers[shards[0]][1])
    wrong = [f"{n}/{count}" for n in range(1, count + 1) if given.count(n) != 1]
    if wrong:
        raise InputError(f"merge: shard {', '.join(wrong)} missing or given twice; expected each of {count} once")
    paths = [path for shard in shards for path in piece_paths(shard / "pieces")]
    facts = {key: first[key] for key in ("identity", "source_files", "bertkit")}
    facts["identity"] = {key: value for key, value in first["identity"].items() if key not in OF_A_SHARD}
    facts["corpus"] = {"description": first["corpus"]["description"]}
    output_dir = Path(settings.output_dir)

    def text_sha256() -> str:
        return _text_sha256(_digests(paths))

    if _is_done(output_dir, prepared.FORMAT, facts["identity"], facts["source_files"], text_sha256):
        print(f"done already: {output_dir} holds this dataset")
        return
    with building_dir(output_dir) as partial:
        shutil.copytree(shards[0] / "tokenizer", partial / "tokenizer")
        facts = _join(settings, facts, first["corpus"]["has_document_breaks"], paths, partial)
        prepared.write_manifest(partial, facts)
    _say(output_dir)


def _read_shard(directory: Path) -> dict[str, Any]:
    """Read the manifest of a shard, and check its files."""
    manifest = read_json(directory / "manifest.json")
    if not isinstance(manifest, dict) or manifest.get("format") != SHARD_FORMAT:
        raise InputError(f"merge: {directory} is not a shard; expected what bertkit prepare shard=i/n makes")
    prepared.check_files(directory, manifest)
    damaged = prepared.damaged_files(directory, manifest)
    if damaged:
        raise InputError(f"merge: {directory / damaged[0]} changed since it was made; prepare this shard again")
    return manifest


def _join(
    settings: PrepareSettings, facts: dict[str, Any], has_document_breaks: bool, paths: list[Path], partial: Path
) -> dict[str, Any]:
    """Write the splits from the pieces, and the fixed instances from the splits; give the facts of the manifest.

    Raises:
        InputError: there is no text, or the linter complains and strict=true.
    """
    identity = facts["identity"]
    tokenizer = load_tokenizer(partial / "tokenizer")
    statistics, splits = _write_splits(paths, tokenizer, identity["held_out_prob"], identity["shard_tokens"], partial)
    inside_words = statistics.token_counts[tokenizer.facts.is_continuation].sum() / max(statistics.tokens, 1)
    held_out = splits["held_out"]["documents"] if identity["held_out_prob"] > 0 else None
    findings = lint(statistics, has_document_breaks, float(inside_words), held_out)
    if not statistics.tokens:
        raise InputError(f"{facts['corpus']['description']}: no text in it; check corpus.path")
    if settings.strict and findings:
        raise InputError("\n".join(f"{finding.name}: {finding.text}" for finding in findings))
    text_hash = _text_sha256(_digests(paths))
    joined = {
        "fingerprint": prepared.fingerprint([identity, text_hash, tokenizer.files(MAX_LENGTH)]),
        **facts,
        "corpus": {**facts["corpus"], "text_sha256": text_hash},
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
        joined["instances"] = _make_instances(settings, settings.segments, tokenizer, partial, splits["train"])
    return joined


def _write_splits(
    paths: list[Path], tokenizer: Tokenizer, held_out_prob: float, shard_tokens: int, directory: Path
) -> tuple[CorpusStatistics, dict[str, Any]]:
    """Write both splits from the pieces; give the statistics and the counts of each split."""
    facts = tokenizer.facts
    dtype = prepared.token_dtype(facts.size)
    writers = {name: prepared.SplitWriter(directory / name, dtype, shard_tokens) for name in prepared.SPLITS}
    statistics = CorpusStatistics(np.zeros(facts.size, np.int64), facts.unk)
    threshold = int(held_out_prob * 2**32)
    for path in paths:
        piece = load_piece(path)
        count_piece(piece, statistics)
        is_held_out = np.ascontiguousarray(piece.digests[:, :4]).view("<u4")[:, 0] < threshold
        for name, is_chosen in (("train", ~is_held_out), ("held_out", is_held_out)):
            of_sentences = np.repeat(is_chosen, piece.document_sentences)
            of_tokens = np.repeat(of_sentences, piece.sentence_lengths)
            writers[name].write_documents(
                piece.tokens[of_tokens],
                piece.sentence_lengths[of_sentences],
                piece.document_sentences[is_chosen & (piece.document_sentences > 0)],
            )
    return statistics, {name: writer.close() for name, writer in writers.items()}


def _write_tokenizer(settings: PrepareSettings, corpus: Corpus, directory: Path) -> None:
    """Load the given vocabulary or learn one, and write the tokenizer's files."""
    if settings.tokenizer.path is not None:
        tokenizer = load_tokenizer(Path(settings.tokenizer.path), settings.tokenizer.lowercase, _rules(settings))
    else:
        tokenizer = _learn_vocabulary(settings, corpus)
    partial = directory.with_name(directory.name + PARTIAL)
    partial.mkdir(exist_ok=True)
    for name, content in tokenizer.files(MAX_LENGTH).items():
        (partial / name).write_text(content, encoding="utf-8")
    if tokenizer.rules != "hugging_face":
        (partial / RULES_FILE).write_text(to_json(tokenizer.rules), encoding="utf-8")
    publish_dir(partial, directory)


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
    for key in ("output_dir", "strict", "dump", "num_workers", "num_cached_words", "merge"):
        del identity[key]
    if settings.shard is None:
        for key in OF_A_SHARD:
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


def _is_done(
    output_dir: Path, kind: str, identity: dict[str, Any], files: list[list[Any]], text_sha256: Callable[[], str]
) -> bool:
    """Whether the directory holds this very dataset; where only places or times of the files changed, the text decides."""
    if not output_dir.exists() or (output_dir.is_dir() and not any(output_dir.iterdir())):
        return False
    manifest = read_json(output_dir / "manifest.json") if (output_dir / "manifest.json").is_file() else None
    if not isinstance(manifest, dict) or manifest.get("format") != kind:
        wanted = "prepared dataset" if kind == prepared.FORMAT else "shard of one"
        raise InputError(f"output_dir={output_dir} exists and is not a {wanted}; choose another one")
    changed = [f"{key}: {old!r} there, {new!r} here" for key, old, new in differences(manifest["identity"], identity)]
    if not changed and manifest["source_files"] != files:
        sizes = [sorted(size for _, size, _ in listed) for listed in (manifest["source_files"], files)]
        if sizes[0] != sizes[1] or manifest["corpus"]["text_sha256"] != text_sha256():
            changed = ["the text changed"]
    if changed:
        raise InputError(
            f"output_dir={output_dir} holds another dataset ({'; '.join(changed)}); choose another one or remove it"
        )
    prepared.check_files(output_dir, manifest)
    return True


def _text_sha256(digests: Iterable[bytes]) -> str:
    """Hash a text, given the digests of its documents, one or many at a time."""
    text_hash = hashlib.sha256()
    for some in digests:
        text_hash.update(some)
    return text_hash.hexdigest()


def _digests(paths: list[Path]) -> Iterator[bytes]:
    return (load_digests(path).tobytes() for path in paths)


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


def _say(output_dir: Path) -> None:
    dataset = prepared.open_prepared(output_dir)
    examples = decoded_instances(dataset, 3) if has_instances(dataset) else decoded_examples(dataset, 3)
    print(prepared.describe(dataset.manifest, examples))
    for finding in dataset.manifest["findings"]:
        print(f"\nwarning: {finding['name']}: {finding['text']}")
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
