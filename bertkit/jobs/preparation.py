"""The job of preparing a dataset: a tokenizer, the encoded documents of a corpus or of its shards, and fixed instances.

1. Read the corpus once to train a vocabulary, unless tokenizer.path= names one.
2. Divide the corpus into portions, which worker processes encode. After a kill, the same command reuses the finished portions.
3. Write each document to its split. With shard=i/n the encoded portions are the result; with merge= they are the input.
4. With segments=google, make the fixed instances.
5. Publish the directory by one rename, with a manifest.
"""

import dataclasses
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from bertkit import __version__
from bertkit.base.errors import InputError, say
from bertkit.base.files import UNFINISHED, building_dir
from bertkit.base.typed_settings import to_mapping
from bertkit.data.batches.instances import Instances, make_instances, stored_masking
from bertkit.data.corpus import encoded_documents, manifest, prepared
from bertkit.data.corpus.dataset_writer import (
    SHARD_SETTINGS,
    Facts,
    facts_of_shards,
    hash_vocabulary,
    open_shards,
    write_dataset,
)
from bertkit.data.corpus.tokenizer import Rules, load_tokenizer, train_tokenizer
from bertkit.data.data_config import InstancesConfig
from bertkit.data.texts.documents import Corpus, open_corpus
from bertkit.display.console import Progress
from bertkit.interop.hugging_face.tokenizer_classes import built_by_class
from bertkit.interop.model_dir import resolve_tokenizer
from bertkit.settings.prepare import PrepareSettings


def prepare(settings: PrepareSettings, output_dir: Path) -> bool:
    """Make a dataset, or a shard of a dataset, from text; return False if it exists already."""
    settings = _with_tokenizer_at_hand(settings)
    results = [Path(name) for name in (settings.output_dir, settings.dump) if name is not None]
    corpus = open_corpus(settings.corpus, leave_out=results, join_files=isinstance(settings.segments, InstancesConfig))
    formats = {kind for _, kind in corpus.files}
    if "corpus.field" in settings.explicit_keys and formats and formats <= {"text", "lines", "wikiextractor"}:
        raise InputError(f"corpus.field={settings.corpus.field} has no effect on plain text; leave it out")
    portions = corpus.portions(settings.part_bytes)
    number, count = settings.shard_of
    own = range(len(portions) * (number - 1) // count, len(portions) * number // count)
    chosen = {place: portions[place] for place in own}
    facts: Facts = {
        "identity": _identity(settings),
        "source_files": corpus.states_of_files(),
        "bertkit": __version__,
        "corpus": {"description": corpus.describe()},
    }
    kind = manifest.FORMAT if settings.shard is None else manifest.SHARD_FORMAT

    documents = (document for portion in chosen.values() for document in corpus.documents(portion))
    if manifest.is_done(output_dir, kind, facts, lambda: encoded_documents.text_sha256(documents)):
        return False
    say(f"reading {facts['corpus']['description']}")
    made_from = [facts["identity"], settings.part_bytes, facts["source_files"], __version__, sys.version]
    made_from += [kind, manifest.SHARD_FORMAT]
    # a streamed dataset may change unnoticed, so its portions are not kept
    key = None if settings.corpus.source == "hub" else manifest.fingerprint(made_from)
    with building_dir(output_dir.resolve(), key) as partial:
        work = partial / UNFINISHED
        (work / encoded_documents.FOLDER).mkdir(parents=True, exist_ok=True)
        if not (work / "tokenizer").exists():
            _write_tokenizer(settings, corpus, work / "tokenizer")
        job = encoded_documents.EncodingJob(corpus, chosen, work / "tokenizer", work / encoded_documents.FOLDER)
        counts = encoded_documents.encode_portions(
            job, None if settings.num_workers == "auto" else settings.num_workers
        )
        with Progress("encoding", job.num_bytes or None, done=next(counts)) as progress:
            for num_bytes in counts:
                progress.advance(num_bytes)
        files = encoded_documents.encoded_files(work / encoded_documents.FOLDER)
        if count == 1 and not files:
            corpus.refuse_empty()
        shutil.copytree(work / "tokenizer", partial / "tokenizer")
        if settings.shard is None:
            facts = _write_dataset(settings, facts, corpus.has_document_breaks, files, partial)
        else:
            breaks, text_hash = corpus.has_document_breaks, encoded_documents.text_sha256_of_files(files)
            facts["corpus"] |= {"text_sha256": text_hash, "has_document_breaks": breaks}
            facts["num_parts"] = len(portions)
            (work / encoded_documents.FOLDER).rename(partial / encoded_documents.FOLDER)
        manifest.write_manifest(partial, facts, kind)
    return True


def merge_shards(settings: PrepareSettings, output_dir: Path) -> bool:
    """Merge all shards, in any order, into the dataset that a single command would make; return False if it exists already."""
    shards = open_shards(map(Path, settings.merge or ()))
    facts, has_document_breaks = facts_of_shards(shards), shards[0].manifest["corpus"]["has_document_breaks"]
    files = [path for shard in shards for path in shard.files()]
    if manifest.is_done(output_dir, manifest.FORMAT, facts, lambda: encoded_documents.text_sha256_of_files(files)):
        return False
    with building_dir(output_dir.resolve()) as partial:
        shutil.copytree(shards[0].directory / "tokenizer", partial / "tokenizer")
        facts = _write_dataset(settings, facts, has_document_breaks, files, partial)
        manifest.write_manifest(partial, facts)
    return True


def _with_tokenizer_at_hand(settings: PrepareSettings) -> PrepareSettings:
    """Download the tokenizer, if it is named by a model of the hub."""
    path = settings.tokenizer.path
    local = None if path is None else str(resolve_tokenizer(path))
    return dataclasses.replace(settings, tokenizer=dataclasses.replace(settings.tokenizer, path=local))


def _identity(settings: PrepareSettings) -> Facts:
    """Return the settings that determine the result, without paths."""
    identity = to_mapping(settings)
    ignored = SHARD_SETTINGS if settings.shard is None else ()
    for key in ("output_dir", "strict", "dump", "overwrite", "num_workers", "merge", *ignored):
        del identity[key]
    del identity["tokenizer"]["path"]
    identity["tokenizer"]["rules"] = _rules(settings)
    if settings.segments is None:
        del identity["masking"], identity["seed"]
    else:  # no documents are held out, as in the original
        identity |= {"held_out_prob": 0.0, "masking": stored_masking(settings.masking)}
    if settings.corpus.source in ("files", "texts"):
        del identity["corpus"]["path"]
    identity["vocabulary_sha256"] = None
    if settings.tokenizer.path is not None:
        identity["vocabulary_sha256"] = hash_vocabulary(Path(settings.tokenizer.path))
    return identity


def _rules(settings: PrepareSettings) -> Rules:
    """Return the tokenization rules; the default for fixed instances is Google's, as in the original."""
    default: Rules = "hugging_face" if settings.segments is None else "google"
    return default if settings.tokenizer.rules == "auto" else settings.tokenizer.rules


def _write_tokenizer(settings: PrepareSettings, corpus: Corpus, directory: Path) -> None:
    """Load or train a vocabulary, and write the tokenizer's files."""
    config, rules = settings.tokenizer, _rules(settings)
    if config.path is not None:
        path = Path(config.path)
        load_tokenizer(path, config.lowercase, rules, config.strip_accents, built_by_class).save(directory)
        return

    def sentences() -> Iterator[str]:
        with Progress("reading for the vocabulary", corpus.total_bytes) as progress:
            for document in corpus:
                progress.advance(corpus.bytes_read)
                yield from document

    tokenizer = train_tokenizer(config, sentences, config.lowercase is not False, rules)
    say(f"trained a vocabulary of {tokenizer.vocab_size:,} tokens", *tokenizer.notes)
    tokenizer.save(directory)


def _write_dataset(
    settings: PrepareSettings, facts: Facts, has_document_breaks: bool, files: list[Path], partial: Path
) -> Facts:
    """Write the splits of a dataset, and its fixed instances, if any; return the facts for the manifest."""
    facts = write_dataset(partial, facts, files, has_document_breaks, settings.strict)
    config = settings.segments
    if isinstance(config, InstancesConfig):
        vocab, shards = load_tokenizer(partial / "tokenizer").facts, facts["splits"]["train"]["shard_tokens"]
        split = prepared.SplitTokens(partial / "train", prepared.token_dtype(vocab.size), shards)
        directory, most = partial / "instances", config.dupe_factor * split.num_tokens
        with Progress("making instances", most) as progress:
            for num_tokens in make_instances(directory, split, config, settings.masking, vocab, settings.seed):
                progress.advance(min(most, num_tokens))
        facts["instances"] = {
            "count": len(Instances(directory, vocab.size)),
            "segments": to_mapping(config),
            "masking": stored_masking(settings.masking),
            "seed": settings.seed,
        }
    return facts
