"""A prepared dataset described for people: its counts, some of its training examples, and the warnings about its text."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertkit.base.errors import counted
from bertkit.data.batches.instances import has_instances, open_stored
from bertkit.data.batches.sampling import DatasetExamples, DrawnExamples
from bertkit.data.corpus.manifest import SPLITS
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.data.data_config import SegmentsConfig

NUM_EXAMPLES = 3
EXAMPLE_SEGMENTS = SegmentsConfig("pairs", max_seq_length=64, short_seq_prob=0.1, next_sentence="nsp")


def describe(dataset: PreparedDataset) -> str:
    """Describe a dataset in several lines."""
    train, held_out = (dataset.manifest["splits"][name] for name in SPLITS)
    facts, corpus = dataset.manifest["statistics"], dataset.manifest["identity"]["corpus"]
    evaluation = f"{held_out['documents']:,} documents, {held_out['tokens']:,} tokens held out for evaluation"
    examples: DatasetExamples = DrawnExamples(dataset, EXAMPLE_SEGMENTS, None)
    if has_instances(dataset):
        examples, stored = open_stored(dataset), dataset.manifest["instances"]
        evaluation = (
            f"{stored['count']:,} fixed instances of at most {stored['segments']['max_seq_length']} tokens, from all "
            "documents: none is held out for evaluation, as in Google's original"
        )
    lines = [
        f"{train['documents']:,} documents, {train['sentences']:,} sentences, {train['tokens']:,} tokens to train on",
        evaluation,
        f"vocabulary of {facts['vocab_size']:,}, {100 * facts['unknown_rate']:.2f} % unknown, "
        f"{facts['tokens_per_sentence']:.1f} tokens per sentence",
        f"unigram entropy {facts['unigram_entropy']:.2f} nats: the loss of counting tokens at [MASK] (pretrain measures it on held-out text)",
    ]
    if (duplicates := dataset.manifest["corpus"].get("duplicates")) is not None:
        lines.append(
            f"{counted(duplicates, 'document')} left out for repeating an earlier one (corpus.deduplicate={corpus['deduplicate']})"
        )
    for is_random, ids in () if corpus["source"] == "texts" else examples.shown(NUM_EXAMPLES):
        lines += ["", f"{'random next' if is_random else 'actual next'}: {readable(dataset.tokenizer, ids)}"]
    for finding in dataset.manifest["findings"]:
        lines += ["", f"warning: {finding['name']}: {finding['text']}"]
    return "\n".join(lines)


def readable(tokenizer: Tokenizer, ids: Sequence[int] | NDArray[np.integer]) -> str:
    """Decode a sequence of a model; an ellipsis stands for the cut-off beginning of a word at the start of a segment."""
    facts, ids = tokenizer.facts, np.asarray(ids)
    follows_special = np.isin(np.concatenate([[facts.sep], ids[:-1]]), [facts.cls, facts.sep])
    cuts = np.flatnonzero(follows_special & facts.borders.continues[ids])
    parts = [tokenizer.decode(part) for part in np.split(ids, cuts)]
    return " …".join([parts[0], *(part.removeprefix("##") for part in parts[1:])]).strip()
