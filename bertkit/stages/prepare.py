"""Stage: text -> tokenizer and prepared dataset on disk.

1. Read the corpus once to learn a vocabulary, unless one is given.
2. Cut it into portions, and let the workers encode them (data/encoding_workers.py). A command that is killed leaves what
   is encoded, and the same command goes on with it.
3. Send each document to its split (data/splitting.py). With shard=i/n the encoded documents of some portions are the
   result; with merge= they come from the shards.
4. With segments=google, make the fixed instances from what was written.
5. Describe it in words, say what is wrong with it, and publish the directory in one rename.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertkit import __version__
from bertkit.base.errors import InputError, say
from bertkit.base.files import UNFINISHED, building_dir, sha256_file
from bertkit.base.text_files import check_whole
from bertkit.base.typed_settings import to_mapping
from bertkit.data.batches.description import describe
from bertkit.data.batches.instances import Instances, make_instances, stored_masking
from bertkit.data.corpus import manifest, prepared
from bertkit.data.corpus.documents import Corpus
from bertkit.data.corpus.encoded_documents import (
    FOLDER,
    EncodingJob,
    encode_portions,
    encoded_files,
    text_sha256,
    text_sha256_of_files,
)
from bertkit.data.corpus.splitting import ONLY_OF_A_SHARD, open_shards, write_splits
from bertkit.data.corpus.statistics import find_faults
from bertkit.data.corpus.tokenizer import MAX_LENGTH, Rules, Tokenizer, VocabFacts, load_tokenizer, train_wordpiece
from bertkit.data.data_config import InstancesConfig
from bertkit.run.outputs import check_dump, write_dump
from bertkit.settings.prepare import PrepareSettings
from bertkit.view.progress import Progress

Facts = dict[str, Any]  # of the manifest


def run(settings: PrepareSettings) -> None:
    """Prepare a dataset, a shard of one, or one from its shards; or say that it is done.

    Raises:
        InputError: a file cannot be read, the vocabulary cannot be used, or the output directory holds something else.
        PeerError: a worker process was killed.
    """
    output_dir = Path(settings.output_dir)
    if settings.dump is not None:
        check_dump(settings.dump, output_dir, settings.overwrite)
    is_new = _merge(settings, output_dir) if settings.merge is not None else _prepare(settings, output_dir)
    if not is_new:
        say(f"done already: {output_dir} holds this {'dataset' if settings.shard is None else 'shard'}")
    elif settings.shard is not None:
        say(f"prepared shard {settings.shard} in {output_dir}; merge= makes a dataset of all of them")
    else:
        say(*describe(prepared.open_prepared(output_dir)).split("\n"), "")
        say(f"prepared dataset in {output_dir}")
    if settings.dump is not None:
        count = write_dump(prepared.open_prepared(output_dir), Path(settings.dump))
        say(f"{count:,} instances as JSON lines in {settings.dump}")


def _prepare(settings: PrepareSettings, output_dir: Path) -> bool:
    """Make a dataset, or a shard of one, from a text; False where it is there."""
    results = [output_dir, *([] if settings.dump is None else [Path(settings.dump)])]
    corpus = Corpus(settings.corpus, leave_out=results, join_files=isinstance(settings.segments, InstancesConfig))
    if (
        "corpus.field" in settings.given
        and corpus.files
        and {kind for _, kind in corpus.files} <= {"text", "wikiextractor"}
    ):
        raise InputError(
            f"corpus.field={settings.corpus.field} has no effect on plain text, which has no fields; leave it out"
        )
    portions = corpus.portions(settings.part_bytes)
    number, count = settings.shard_of
    mine = range(len(portions) * (number - 1) // count, len(portions) * number // count)
    chosen = {each: portions[each] for each in mine}
    facts: Facts = {
        "identity": _identity(settings),
        "source_files": corpus.states_of_files(),
        "bertkit": __version__,
        "corpus": {"description": corpus.describe()},
    }
    kind = manifest.FORMAT if settings.shard is None else manifest.SHARD_FORMAT

    def hash_text() -> str:
        return text_sha256(document for portion in chosen.values() for document in corpus.documents(portion))

    if manifest.is_there(output_dir, kind, facts, hash_text):
        return False
    # A streamed dataset may change, and nothing would show it.
    made_from = [facts["identity"], settings.part_bytes, facts["source_files"], __version__, sys.version]
    key = None if settings.corpus.source == "hub" else manifest.fingerprint(made_from)
    with building_dir(output_dir.resolve(), key) as partial:
        work = partial / UNFINISHED
        (work / FOLDER).mkdir(parents=True, exist_ok=True)
        if not (work / "tokenizer").exists():
            _write_tokenizer(settings, corpus, work / "tokenizer")
        job = EncodingJob(corpus, chosen, work / "tokenizer", work / FOLDER)
        _encode(job, None if settings.num_workers == "auto" else settings.num_workers)
        files = encoded_files(work / FOLDER)
        if count == 1 and not files:
            corpus.refuse_empty()
        shutil.copytree(work / "tokenizer", partial / "tokenizer")
        if settings.shard is None:
            facts = _write_dataset(settings, facts, corpus.has_document_breaks, files, partial)
        else:
            facts["corpus"]["text_sha256"] = text_sha256_of_files(files)
            facts["corpus"]["has_document_breaks"] = corpus.has_document_breaks
            facts["num_parts"] = len(portions)
            (work / FOLDER).rename(partial / FOLDER)
        manifest.write_manifest(partial, facts, kind)
    return True


def _merge(settings: PrepareSettings, output_dir: Path) -> bool:
    """Make of all shards the dataset that one command would have made, in whatever order they are given; False where it is there."""
    shards = open_shards(map(Path, settings.merge or ()))
    first = shards[0].manifest
    facts: Facts = {key: first[key] for key in ("identity", "source_files", "bertkit")}
    facts["identity"] = {key: value for key, value in first["identity"].items() if key not in ONLY_OF_A_SHARD}
    facts["corpus"] = {"description": first["corpus"]["description"]}
    files = [path for shard in shards for path in shard.files()]
    if manifest.is_there(output_dir, manifest.FORMAT, facts, lambda: text_sha256_of_files(files)):
        return False
    with building_dir(output_dir.resolve()) as partial:
        shutil.copytree(shards[0].directory / "tokenizer", partial / "tokenizer")
        facts = _write_dataset(settings, facts, first["corpus"]["has_document_breaks"], files, partial)
        manifest.write_manifest(partial, facts)
    return True


def _identity(settings: PrepareSettings) -> Facts:
    """The settings that shape the result, whatever the place of the files."""
    identity = to_mapping(settings)
    for key in ("output_dir", "strict", "dump", "overwrite", "num_workers", "merge"):
        del identity[key]
    if settings.shard is None:
        for key in ONLY_OF_A_SHARD:
            del identity[key]
    del identity["tokenizer"]["path"]
    identity["tokenizer"]["rules"] = _rules(settings)
    if settings.segments is None:
        del identity["masking"], identity["seed"]
    else:  # every document becomes instances, as in the original
        identity |= {"held_out_prob": 0.0, "masking": stored_masking(settings.masking)}
    if settings.corpus.source == "files":
        del identity["corpus"]["path"]
    identity["vocabulary_sha256"] = None
    if settings.tokenizer.path is not None:
        given = Path(settings.tokenizer.path)
        names = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
        files = [path for path in (given, *(given / name for name in names)) if path.is_file()]
        for path in files:
            check_whole(path)
        identity["vocabulary_sha256"] = [sha256_file(path) for path in files]
    return identity


def _rules(settings: PrepareSettings) -> Rules:
    """The rules of tokenization; fixed instances are Google's, and so are their words, unless another choice is made."""
    if settings.tokenizer.rules != "auto":
        return settings.tokenizer.rules
    return "hugging_face" if settings.segments is None else "google"


def _write_tokenizer(settings: PrepareSettings, corpus: Corpus, directory: Path) -> None:
    """Load the given vocabulary or learn one, and write the tokenizer's files."""
    if settings.tokenizer.path is not None:
        tokenizer = load_tokenizer(Path(settings.tokenizer.path), settings.tokenizer.lowercase, _rules(settings))
    else:
        tokenizer = _learn_vocabulary(settings, corpus)
    tokenizer.save(directory)


def _learn_vocabulary(settings: PrepareSettings, corpus: Corpus) -> Tokenizer:
    def sentences() -> Iterator[str]:
        with Progress("reading for the vocabulary", corpus.total_bytes) as progress:
            for document in corpus:
                progress.advance(corpus.bytes_read)
                yield from document

    wanted, lowercase = settings.tokenizer.vocab_size, settings.tokenizer.lowercase is not False
    tokenizer = train_wordpiece(sentences, wanted, lowercase, settings.tokenizer.min_frequency, _rules(settings))
    short = f", of {wanted:,} asked for: the text has no more" if tokenizer.vocab_size < wanted else ""
    say(f"learned a vocabulary of {tokenizer.vocab_size:,} tokens{short}")
    return tokenizer


def _encode(job: EncodingJob, num_workers: int | None) -> None:
    counts = encode_portions(job, num_workers)
    with Progress("encoding", job.num_bytes or None, done=next(counts)) as progress:
        for num_bytes in counts:
            progress.advance(num_bytes)


def _write_dataset(
    settings: PrepareSettings, facts: Facts, has_document_breaks: bool, files: list[Path], partial: Path
) -> Facts:
    """Write the splits from the encoded documents, and the fixed instances from the splits; give the facts of the manifest.

    Raises:
        InputError: there is no text, or something is wrong with it and strict=true.
    """
    identity = facts["identity"]
    tokenizer = load_tokenizer(partial / "tokenizer")
    vocab = tokenizer.facts
    statistics, splits = write_splits(files, vocab, identity["held_out_prob"], identity["shard_tokens"], partial)
    if not statistics.tokens:
        raise InputError(f"{facts['corpus']['description']}: no text in it; check corpus.path")
    inside_words = statistics.token_counts[vocab.is_continuation].sum() / statistics.tokens
    held_out = splits["held_out"]["documents"] if identity["held_out_prob"] > 0 else None
    findings = find_faults(statistics, has_document_breaks, float(inside_words), held_out)
    if settings.strict and findings:
        raise InputError(*(f"{finding.name}: {finding.text}" for finding in findings))
    text_hash = text_sha256_of_files(files)
    facts = {
        "fingerprint": manifest.fingerprint([identity, text_hash, tokenizer.files(MAX_LENGTH)]),
        **facts,
        "corpus": {**facts["corpus"], "text_sha256": text_hash},
        "splits": splits,
        "statistics": statistics.summary(),
        "findings": [to_mapping(finding) for finding in findings],
    }
    if isinstance(settings.segments, InstancesConfig):
        split = prepared.Split(partial / "train", prepared.token_dtype(vocab.size), splits["train"]["shard_tokens"])
        facts["instances"] = _write_instances(settings, settings.segments, split, vocab, partial / "instances")
    return facts


def _write_instances(
    settings: PrepareSettings, config: InstancesConfig, split: prepared.Split, vocab: VocabFacts, directory: Path
) -> Facts:
    """Write the fixed instances of a split; give what the manifest says of them."""
    most = config.dupe_factor * split.num_tokens
    with Progress("making instances", most) as progress:
        for num_tokens in make_instances(directory, split, config, settings.masking, vocab, settings.seed):
            progress.advance(min(most, num_tokens))
    return {
        "count": len(Instances(directory, vocab.size)),
        "segments": to_mapping(config),
        "masking": stored_masking(settings.masking),
        "seed": settings.seed,
    }
